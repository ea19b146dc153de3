"""Many readers or one writer, within a process."""

from __future__ import annotations

import os
import threading

import pytest

from rlruntime.storages.locks import KernelLock, LockTimeoutError, ThreadLock


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


def take_turns(lock: ThreadLock, side: str, ended: threading.Event) -> None:
    """Hold one side again and again, with hardly a moment in between."""
    while not ended.is_set():
        with getattr(lock, side)():
            ended.wait(0.002)


@pytest.mark.parametrize(("others", "side"), [("reading", "writing"), ("writing", "reading")])
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_threads_that_hold_the_rows_by_turns_keep_nobody_out(kind: str, others: str, side: str) -> None:
    descriptor = os.memfd_create("lock")
    theirs = ThreadLock(timeout_s=20) if kind == "threads" else KernelLock(descriptor, timeout_s=20)
    ours = theirs if kind == "threads" else KernelLock(descriptor, timeout_s=20)
    ended = threading.Event()
    threads = [threading.Thread(target=take_turns, args=(theirs, others, ended)) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            with getattr(ours, side)():
                pass
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        os.close(descriptor)


def test_a_thread_that_gives_up_waiting_lets_those_in_that_waited_for_it() -> None:
    lock = ThreadLock(timeout_s=0.2)
    entered = threading.Event()

    def read() -> None:
        with lock.reading():
            entered.set()

    with lock.reading():
        writer = threading.Thread(target=lambda: refuses(lock, "writing"))
        writer.start()
        while writer.is_alive() and not lock._waiting_writers:
            pass
        lock.timeout_s = 30  # of the reader, which mustn't give up by itself as soon as the writer does
        reader = threading.Thread(target=read)
        reader.start()
        writer.join()
        assert entered.wait(30)
        reader.join()
    assert not refuses(lock, "writing")


def test_a_reader_enters_again_although_a_writer_waits() -> None:
    lock = ThreadLock(timeout_s=20)
    with lock.reading():
        writer = threading.Thread(target=lambda: refuses(lock, "writing"))
        writer.start()
        while not lock._waiting_writers:
            pass
        with lock.reading():
            pass
    writer.join()
