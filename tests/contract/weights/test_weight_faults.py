"""What becomes of weights when a process dies or stops: real processes, real signals."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from weight_processes import LARGE, Make, MemberProcess, extremes, fill, make_models

from rlruntime.errors import one_line
from rlruntime.weights.joining import join
from rlruntime.weights.protocol import Status, WeightSyncError
from rlruntime.weights.schemes.pipe import PipePublisher
from rlruntime.weights.schemes.shared_memory import SharedMemoryPublisher

GONE = "its process is gone, or has left"
SUPPORT = Path(__file__).parents[2] / "support"


def test_a_killed_member_is_named_and_replaced_in_a_new_round_while_the_other_goes_on(make: Make) -> None:
    models = make_models()
    publisher = make(models)
    with MemberProcess(publisher, "a") as a, MemberProcess(publisher, "b") as b:
        publisher.wait_joined(30.0)
        stays = b.answer()["pid"]
        publisher.publish(fill(models, 1))
        with pytest.raises(ValueError, match="there is a member 'a'; remove it first"):
            publisher.invite("a")
        a.kill()
        with pytest.raises(WeightSyncError) as caught:
            publisher.publish(fill(models, 2))
        assert str(caught.value) == f"version 2 is published, but not for all: a lost at version 0: {GONE}"
        assert b.acquire(2) == {"version": 2, "extremes": [2.0, 2.0]}
        with MemberProcess(publisher, "a") as fresh:
            publisher.wait_joined(30.0)
            assert fresh.answer()["joined"] == 3
            assert caught.value.publication is not None
            fresh.tell(do="acquire", min_version=2, timeout_s=30.0)  # it joined after that version was published
            assert caught.value.publication.wait_applied(30.0)["a"].version == 2
            assert fresh.answer() == {"version": 2, "extremes": [2.0, 2.0]}
            publication = publisher.publish(fill(models, 3))
            assert fresh.acquire(3)["extremes"] == b.acquire(3)["extremes"] == [3.0, 3.0]
            assert {one.status for one in publication.wait_applied(30.0).values()} == {Status.APPLIED}
            assert b.process.pid == stays


def test_a_member_that_dies_while_the_publisher_waits_ends_the_wait(make: Make) -> None:
    models = make_models()
    publisher = make(models)
    with MemberProcess(publisher, "a") as a:
        publisher.wait_joined(30.0)
        publication = publisher.publish(models)
        a.process.kill()
        with pytest.raises(WeightSyncError) as caught:
            publication.wait_applied(600.0)
    assert str(caught.value) == f"version 1 is not applied by all: a lost at version 0: {GONE}"


def test_a_member_that_left_or_was_removed_is_missed_no_more(make: Make) -> None:
    models = make_models()
    publisher = make(models)
    receiver = join(publisher.invite("here"), make_models())
    publisher.wait_joined(30.0)
    receiver.close()
    with pytest.raises(WeightSyncError, match=f"here lost at version 0: {GONE}"):
        publisher.publish(models)
    publisher.remove("here")
    assert publisher.publish(models).wait_applied(30.0) == {}


@pytest.mark.parametrize(
    "publisher", ["shared_memory:SharedMemoryPublisher", "pipe:PipePublisher"], ids=["SharedMemory", "Pipe"]
)
def test_members_killed_at_fifty_moments_are_all_noticed_and_leave_no_lock_and_no_mixture(publisher: str) -> None:
    command = [sys.executable, str(SUPPORT / "weight_kills.py"), f"rlruntime.weights.schemes.{publisher}", "50", "5"]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT.parents[1])}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=100)
    assert json.loads(done.stdout) == {"lost": 50, "applied_last": True, "mixtures": 0, "read_some": True}


def test_the_lock_of_a_reader_killed_while_it_copies_dies_with_it() -> None:
    models = make_models(LARGE)
    publisher = SharedMemoryPublisher(models, num_slots=2, timeout_s=0.2)
    with MemberProcess(publisher, "a", size=LARGE) as a:
        publisher.wait_joined(30.0)
        a.answer()
        a.tell(do="follow")
        held = None
        for _ in range(300):  # stop it until it is stopped amid a copy: then one of two slots is held for good
            a.send_signal(signal.SIGSTOP)
            try:
                publisher.publish(models)
                publisher.publish(models)
            except WeightSyncError as error:
                held = error
                break
            a.send_signal(signal.SIGCONT)
            time.sleep(random.Random(publisher.version).uniform(0.0, 0.02))
        assert held is not None
        assert str(held) == (
            "no slot came free within 0.2 s: receivers hold all but the newest (a); "
            "end those that are stopped, or give more slots"
        )
        assert held.publication is None
        interrupted = publisher.version + 1
        a.process.kill()
        a.process.wait()
        with pytest.raises(WeightSyncError, match=f"a lost at version [0-9]+: {GONE}"):
            publisher.publish(models)
        assert publisher.version == interrupted + 1  # no number stands for two versions
        publisher.remove("a")
        assert publisher.publish(models).wait_applied(1.0) == {}
    publisher.close()


def test_a_stopped_member_is_given_up_at_the_deadline_and_its_successor_takes_over() -> None:
    models = make_models()
    publisher = PipePublisher(models, timeout_s=0.3)
    with MemberProcess(publisher, "a") as a, MemberProcess(publisher, "b") as b:
        publisher.wait_joined(30.0)
        b.answer()
        a.send_signal(signal.SIGSTOP)
        with pytest.raises(WeightSyncError) as caught:
            publisher.publish(fill(models, 1))
        assert str(caught.value) == (
            "version 1 is published, but not for all: a lost at version 0: "
            "it did not take version 1 within 0.3 s and was given up"
        )
        assert b.acquire(1) == {"version": 1, "extremes": [1.0, 1.0]}
        a.send_signal(signal.SIGCONT)
        a.answer()
        assert a.acquire(2)["error"].startswith("WeightSyncError: the publisher is gone, or gave up on this receiver")
        with MemberProcess(publisher, "a") as fresh:
            publisher.wait_joined(30.0)
            fresh.answer()
            fresh.tell(do="acquire", min_version=1, timeout_s=30.0)
            assert publisher.publish(fill(models, 2)).version == 2
            assert fresh.answer()["version"] in (1, 2)
    publisher.close()


def test_a_stopped_reader_keeps_nobody_else_from_new_weights() -> None:
    models = make_models()
    publisher = SharedMemoryPublisher(models, timeout_s=5.0)
    with MemberProcess(publisher, "a") as a, MemberProcess(publisher, "b") as b:
        publisher.wait_joined(30.0)
        b.answer()
        a.send_signal(signal.SIGSTOP)
        for value in range(1, 6):
            publisher.publish(fill(models, value))
        assert b.acquire(5) == {"version": 5, "extremes": [5.0, 5.0]}
        publication = publisher.publish(fill(models, 6))
        b.acquire(6)
        with pytest.raises(WeightSyncError, match="a late at version 0: has no weights yet"):
            publication.wait_applied(0.1)
    publisher.close()


PUBLISH = one_line(
    """
    import socket, sys; sys.path.insert(0, sys.argv[1]);
    from weight_processes import fill, make_models;
    from rlruntime.weights.schemes.{module} import {publisher} as Publisher;
    """
)


@pytest.mark.parametrize(
    ("module", "name"),
    [("shared_memory", "SharedMemoryPublisher"), ("pipe", "PipePublisher")],
    ids=["SharedMemory", "Pipe"],
)
def test_a_publisher_killed_while_it_publishes_leaves_whole_weights_and_its_receivers_notice(
    module: str, name: str
) -> None:
    size = LARGE // 16
    program = PUBLISH.format(module=module, publisher=name) + (
        f"\nmodels = make_models({size}); publisher = Publisher(models)"
        "\nwith socket.socket(fileno=int(sys.argv[2])) as door, publisher.invite('here') as sock:"
        "\n    socket.send_fds(door, [b'!'], [sock.fileno()])"
        "\npublisher.wait_joined(30.0)"
        "\nwhile True: publisher.publish(fill(models, (publisher.version + 1) % 256))"
    )
    ours = fill(make_models(size), -1)
    door, theirs = socket.socketpair()
    with door, theirs:
        command = [sys.executable, "-c", program, str(SUPPORT), str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
            door.settimeout(30.0)
            _, (descriptor,), _, _ = socket.recv_fds(door, 1, 1)
            receiver = join(socket.socket(fileno=descriptor), ours)
            receiver.acquire(20, 30.0)
            process.kill()
            process.wait(30.0)
    version = receiver.acquire(1, 30.0)
    assert version >= 20
    low, high = extremes(ours)
    assert low == high
    with pytest.raises(WeightSyncError, match=f"the publisher is gone, or gave up .* before version {version + 1}"):
        receiver.acquire(version + 1, 600.0)
    receiver.close()
