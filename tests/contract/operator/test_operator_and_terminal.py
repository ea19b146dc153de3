"""`rljob suspend` and `resume` with the operator that acts on them. No node is there: deleted pods go at once."""

from __future__ import annotations

from operator_place import Place


def test_jobs_are_suspended_until_the_last_pod_is_gone_and_resumed(place: Place) -> None:
    place.create("one")
    place.create("two")
    place.wait_pods("one-trainer-0-0", "two-trainer-0-0")
    done = place.rljob("suspend", "one", "two", "--wait", "--timeout", "30")
    assert done.returncode == 0, done
    assert place.pods() == []
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"{name}: suspending: each pod saves its state and goes" for name in ("one", "two")]
    assert sorted(line.partition(" after ")[0] for line in lines[2:]) == ["one: suspended", "two: suspended"]
    assert place.rljob("logs", "one").stderr == "rljob: trainer-0: no pod: the job is suspended\n"
    done = place.rljob("resume", "one")
    assert done.stdout == "one: resuming from the beginning: there is no checkpoint\n"
    place.wait_pods("one-trainer-0-1")
    done = place.rljob("logs", "one")
    assert (done.returncode, done.stdout) == (1, "")
    assert "trainer-0: attempt 1 hasn't started" in done.stderr
