"""What is known of jobs and pods, in whatever order it arrives."""

from __future__ import annotations

from typing import Any

from rljob_operator.builders.owner import KubeObject
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.job_metrics import phases

from rlruntime.spec.status import RLJobStatus

JOB, POD = "job-uid", "pod-uid"


def job(version: int, *, uid: str = JOB, **more: Any) -> KubeObject:
    training = {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}}
    about = {"name": "ppo", "namespace": "team-a", "uid": uid, "generation": 1, "resourceVersion": str(version)}
    return {"metadata": about, "spec": {"training": training}, **more}


def pod(version: int, *, uid: str = POD, phase: str = "Pending", owner: str = JOB, **about: Any) -> KubeObject:
    labels = {"rljob.io/job-uid": JOB, "rljob.io/role": "trainer", "rljob.io/index": "0", "rljob.io/attempt": "0"}
    reference = {"uid": owner, "controller": True}
    metadata = {"name": "ppo-trainer-0-0", "namespace": "team-a", "uid": uid, "labels": labels, **about}
    metadata |= {"resourceVersion": str(version), "ownerReferences": [reference]}
    return {"metadata": metadata, "status": {"phase": phase}}


def filled() -> Cache:
    cache = Cache(lambda: 0.0)
    assert cache.apply_job(job(1)) == JOB
    assert cache.apply_pod(pod(2)) == JOB
    return cache


def phase(cache: Cache) -> str:
    (found,) = cache.pods(JOB)
    return found.phase


def test_an_older_view_does_not_replace_a_newer_one() -> None:
    cache = filled()
    assert cache.apply_pod(pod(9, phase="Running")) == JOB
    assert cache.apply_pod(pod(5, phase="Pending")) is None
    assert phase(cache) == "Running"
    assert cache.apply_job(job(10, status={"phase": "Running"})) == JOB
    assert cache.apply_job(job(8, status={"phase": "Pending"})) is None
    assert phases(cache.jobs()) == {"Running": 1}


def test_a_pod_of_another_namespace_is_none_of_a_jobs_whatever_it_says_of_itself() -> None:
    cache = filled()
    cache.apply_pod(pod(5, uid="forged", phase="Failed", namespace="team-b"))
    assert [found.uid for found in cache.pods(JOB)] == [POD]
    early = Cache(lambda: 0.0)
    early.apply_pod(pod(5, uid="forged", namespace="team-b"))  # before the job is known
    early.apply_job(job(6))
    assert early.pods(JOB) == ()


def test_versions_are_compared_as_numbers() -> None:
    cache = filled()
    cache.apply_pod(pod(9, phase="Pending"))
    assert cache.apply_pod(pod(10, phase="Running")) == JOB
    assert phase(cache) == "Running"


def test_a_change_that_no_rule_reads_has_nobody_look() -> None:
    cache = filled()
    assert cache.apply_pod(pod(3, annotations={"note": "x"})) is None
    assert cache.apply_job(job(4)) is None


def test_a_listed_object_that_was_deleted_meanwhile_does_not_come_back() -> None:
    cache = filled()
    assert cache.remove_pod(JOB, POD, pod(7)) == JOB
    assert cache.apply_pod(pod(6)) is None
    assert [found.gone for found in cache.pods(JOB)] == [True]
    assert cache.remove_job(JOB) == JOB
    assert cache.apply_job(job(3)) is None
    assert cache.job(JOB) is None


def test_what_a_pod_said_last_is_kept_when_it_is_gone() -> None:
    cache = filled()
    ended = {"name": "rljob", "state": {"terminated": {"exitCode": 0}}}
    last = pod(8, phase="Succeeded")
    last["status"]["containerStatuses"] = [ended]
    cache.remove_pod(JOB, POD, last)
    (found,) = cache.pods(JOB)
    assert (found.gone, found.phase, found.end and found.end.exit_code) == (True, "Succeeded", 0)


def test_a_second_word_of_a_deletion_changes_nothing() -> None:
    cache = filled()
    cache.remove_pod(JOB, POD)
    assert cache.remove_pod(JOB, POD) is None


def test_pods_of_a_job_that_is_gone_are_forgotten_as_they_go() -> None:
    cache = filled()
    cache.apply_pod(pod(3, uid="other"))
    cache.remove_pod(JOB, POD)
    cache.remove_job(JOB)
    assert [found.uid for found in cache.pods(JOB)] == ["other"]
    cache.remove_pod(JOB, "other")
    assert cache.pods(JOB) == ()
    assert list(cache.pod_views()) == []


def test_a_pod_that_bears_our_labels_but_is_another_controllers_is_not_seen() -> None:
    cache = filled()
    assert cache.apply_pod(pod(3, uid="theirs", owner="somebody")) is None
    assert [found.uid for found in cache.pods(JOB)] == [POD]


def test_a_pod_may_be_known_before_its_job() -> None:
    cache = Cache(lambda: 0.0)
    assert cache.apply_pod(pod(2)) == JOB
    assert cache.apply_job(job(1)) == JOB
    assert len(cache.pods(JOB)) == 1


def test_a_status_of_our_own_is_known_at_once_and_its_event_has_nobody_look() -> None:
    cache = filled()
    cache.wrote_status(JOB, RLJobStatus(phase="Running"), 12)
    found = cache.job(JOB)
    assert found is not None
    assert found.status.phase == "Running"
    assert cache.apply_job(job(12, status={"phase": "Running"})) is None
    assert cache.apply_job(job(11, status={"phase": "Pending"})) is None
    cache.wrote_status(JOB, RLJobStatus(phase="Pending"), 11)
    assert phases(cache.jobs()) == {"Running": 1}


def test_a_deletion_of_our_own_is_known_at_once_and_keeps_what_the_pod_said() -> None:
    cache = filled()
    cache.apply_pod(pod(3, phase="Running"))
    cache.wrote_deletion(JOB, POD, pod(4, deletionTimestamp="2026-01-01T00:00:30Z"))
    (found,) = cache.pods(JOB)
    assert found.deletion_at is not None
    assert found.phase == "Running"
    cache.wrote_deletion(JOB, POD, {})
    assert len(cache.pods(JOB)) == 1


def test_a_spec_is_read_once_a_generation() -> None:
    cache = filled()
    first = cache.job(JOB)
    cache.apply_job(job(5, status={"phase": "Running"}))
    second = cache.job(JOB)
    assert first is not None
    assert second is not None
    assert first.spec is second.spec


def test_a_spec_that_can_not_be_read_says_which_field_and_why() -> None:
    cache = Cache(lambda: 0.0)
    broken = job(1)
    broken["spec"]["runPolicy"] = {"backoffLimit": -1}
    cache.apply_job(broken)
    found = cache.job(JOB)
    assert found is not None
    assert found.spec is None
    assert "spec.runPolicy.backoffLimit" in found.spec_problem
    broken["spec"]["managedBy"] = "example.com/other"
    broken["metadata"].update(resourceVersion="2", generation=2)
    cache.apply_job(broken)
    changed = cache.job(JOB)
    assert changed is not None
    assert changed.managed_by == "example.com/other"


def test_word_of_deletions_is_kept_for_a_while_only() -> None:
    times = [0.0]
    cache = Cache(lambda: times[0])
    cache.apply_job(job(1))
    for number in range(100):
        times[0] = 60.0 * number
        cache.apply_pod(pod(2 + number, uid=f"pod-{number}"))
        cache.remove_pod(JOB, f"pod-{number}")
        cache.forget_gone(JOB, lambda _: True)
    assert cache.pods(JOB) == ()
    assert not cache.is_deleted("pod-0")
    assert cache.is_deleted("pod-99")
