"""A loop that is sent signals. Usage: interrupted.py MODE FILE. Prints ``ready`` when it may be interrupted.

``FILE`` gets what ``on_deadline`` writes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from rlruntime.trainers.interrupts import InterruptGuard


def polite(guard: InterruptGuard) -> None:
    while guard.requested is None:
        time.sleep(0.01)
    guard.acknowledge()
    print(f"boundary after signal {guard.requested}", flush=True)


def slow_to_save(guard: InterruptGuard) -> None:
    polite(guard)
    time.sleep(1.0)
    print("saved", flush=True)


def blocked(guard: InterruptGuard) -> None:
    time.sleep(60)


def busy(guard: InterruptGuard) -> None:
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        sum(range(1000))


def with_child(guard: InterruptGuard) -> None:
    """A forked child has the old handlers and doesn't write into its parent's pipe."""
    child = os.fork()
    if child == 0:
        default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        wakeup = signal.set_wakeup_fd(-1)
        os._exit(0 if default and wakeup == -1 else 1)
    _, status = os.waitpid(child, 0)
    print(f"child {os.waitstatus_to_exitcode(status)}", flush=True)
    polite(guard)


def main() -> None:
    mode, record = sys.argv[1], Path(sys.argv[2])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the launcher had set

    def on_deadline(signum: int) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        record.write_text(f"{signum} {in_main}")
        if mode == "hung_writer":
            time.sleep(60)
        if mode == "failing_writer":
            raise OSError("no space")

    loops = {"polite": polite, "slow_to_save": slow_to_save, "busy": busy, "with_child": with_child}
    grace_s = 0.3 if mode == "slow_to_save" else 3.0 if mode in ("blocked", "busy", "impatient") else 0.5
    with InterruptGuard(on_deadline, grace_s=grace_s) as guard:
        print("ready", flush=True)
        loops.get(mode, blocked)(guard)
    threads = [thread.name for thread in threading.enumerate()]
    restored = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    print(f"left {threads} {restored} {signal.set_wakeup_fd(-1)}", flush=True)
    sys.exit(guard.exit_code)


if __name__ == "__main__":
    main()
