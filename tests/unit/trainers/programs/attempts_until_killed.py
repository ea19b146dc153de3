"""Attempts at a job that are killed at any moment. Usage: attempts_until_killed.py JOB ATTEMPTS.

Each takes over what its predecessor committed and commits more, until it is killed. Checks that each goes on from the
very last commit or a later one, and from one that holds what it should.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from rlruntime.trainers.checkpoint import CheckpointInfo, CheckpointStore, read_checkpoint
from rlruntime.trainers.fence import Attempt


def attempt_at(job: Path, number: int, pipe: int) -> None:
    attempt = Attempt(job, number)
    found = attempt.take_over()
    frames = 0
    if found.checkpoint is not None:
        state = read_checkpoint(found.checkpoint).state
        frames = int(state["frames"])
        assert found.checkpoint.name == f"step-{frames}"
        assert state["weights"].tolist() == [float(frames)] * 8
    os.write(pipe, f"found {frames}\n".encode())
    store = CheckpointStore(attempt.folder / "checkpoints", 2, require_writable=attempt.require_held)
    while True:
        frames += 1
        state = {"frames": frames, "weights": torch.full((8,), float(frames))}
        store.write(state, CheckpointInfo(frames, iteration=frames, resume_class="exact"))
        os.write(pipe, f"saved {frames}\n".encode())
        attempt.remove_superseded()


def main() -> None:
    job, attempts = Path(sys.argv[1]), int(sys.argv[2])
    draw, saved = random.Random(0), 0
    for number in range(attempts):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            attempt_at(job, number, write_end)
        os.close(write_end)
        time.sleep(draw.uniform(0.0, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(read_end) as pipe:
            for line in pipe:
                word, frames = line.split()
                if word == "found":
                    assert int(frames) >= saved, f"attempt {number} went on from {frames}, but {saved} was committed"
                saved = max(saved, int(frames))
    assert saved > 0
    print(f"{attempts} attempts, {saved} commits")


if __name__ == "__main__":
    main()
