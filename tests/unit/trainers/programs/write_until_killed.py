"""Fork writers of checkpoints, kill each at a random moment, and read what is left. Prints one JSON object.

Usage: write_until_killed.py FOLDER ROUNDS SEED fresh|same
With ``same`` every checkpoint has the same number of frames, so that each one replaces the one before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from rlruntime.trainers.checkpoint import CheckpointInfo, CheckpointStore, latest_checkpoint, read_checkpoint


def write_forever(folder: Path, first: int, same: bool, report: int) -> None:
    store = CheckpointStore(folder, keep=2)
    os.write(report, b"ready\n")
    count = first
    while True:
        rows = 1 + (count * 7919) % 40_000
        state = {"count": count, "rows": torch.full((rows,), count), "snapshot": bytes([count % 251]) * 5000}
        store.write(state, CheckpointInfo(7 if same else count, count, "exact"))
        os.write(report, f"{count}\n".encode())
        count += 1


def last_committed(report: int) -> int:
    numbers = b""
    while chunk := os.read(report, 65536):
        numbers += chunk
    return int(numbers.split(b"\n")[-2]) if numbers else 0


def check(folder: Path, committed: int) -> int:
    """Return the count of the latest checkpoint, after looking at all of it."""
    latest = latest_checkpoint(folder)
    if latest is None:
        assert committed == 0, f"{committed} was committed, nothing is left"
        return 0
    state = read_checkpoint(latest).state
    count = int(state["count"])
    assert count in (committed, committed + 1), f"committed {committed}, found {count}"
    assert bool((state["rows"] == count).all())
    assert state["snapshot"] == bytes([count % 251]) * 5000
    return count


def main() -> None:
    folder, rounds, seed, same = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "same"
    chance = random.Random(seed)
    latest, leftovers, total = 0, 0, 0
    for _ in range(rounds):
        read_end, write_end = os.pipe()
        writer = os.fork()
        if writer == 0:
            os.close(read_end)
            write_forever(folder, latest + 1, same, write_end)
        os.close(write_end)
        assert os.read(read_end, 6) == b"ready\n"
        time.sleep(chance.uniform(0, 0.12))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        committed = last_committed(read_end) or latest
        os.close(read_end)
        total += committed - latest
        leftovers += any(path.name.startswith(".") for path in folder.glob("*")) if folder.exists() else 0
        if same:
            CheckpointStore(folder)  # brings back what had stepped aside
        latest = check(folder, committed)
    CheckpointStore(folder)
    hidden = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
    print(json.dumps({"commits": total, "rounds_with_leftovers": leftovers, "hidden_at_the_end": hidden}))


if __name__ == "__main__":
    main()
