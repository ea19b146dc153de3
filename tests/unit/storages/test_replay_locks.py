"""Many readers or one writer, within a process."""

from __future__ import annotations

import threading

import pytest

from rlruntime.storages.locks import LockTimeoutError, ThreadLock


def refuses(lock: ThreadLock, side: str) -> bool:
    """Return whether another thread can't enter."""
    outcome: list[bool] = []

    def enter() -> None:
        try:
            with getattr(lock, side)():
                outcome.append(False)
        except LockTimeoutError:
            outcome.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return outcome[0]


def test_readers_share_and_a_writer_is_alone() -> None:
    lock = ThreadLock(timeout_s=0.05)
    with lock.reading():
        assert not refuses(lock, "reading")
        assert refuses(lock, "writing")
    with lock.writing():
        assert refuses(lock, "reading")
        assert refuses(lock, "writing")
    assert not refuses(lock, "writing")


def test_a_writer_may_enter_again_and_read() -> None:
    lock = ThreadLock(timeout_s=0.05)
    with lock.writing(), lock.writing(), lock.reading():
        assert refuses(lock, "reading")
    with lock.reading(), lock.reading():
        assert refuses(lock, "writing")
    assert not refuses(lock, "writing")


def test_an_error_inside_lets_others_in() -> None:
    lock = ThreadLock(timeout_s=0.05)
    for side in (lock.reading(), lock.writing()):
        with pytest.raises(ZeroDivisionError), side:
            _ = 1 / 0
    assert not refuses(lock, "writing")
