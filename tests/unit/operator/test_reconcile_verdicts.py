"""What the API server says of pods, and for which others it may be taken."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
from fake_kube import FakeKube
from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.builders.pods import Place, pod
from rljob_operator.kube.errors import Forbidden, Invalid, NetworkError, error_of
from rljob_operator.reconcile.verdicts import Verdicts, fingerprint

from rlruntime.spec.manifest import RLJobSpec

MakeSpec = Callable[..., RLJobSpec]


def owner_of(name: str, uid: str) -> Owner:
    return Owner(name=name, namespace="team-a", uid=f"{uid * 8}-2fa1-4a6b-8c3d-0123456789ab")


def rendered(owner: Owner, spec: RLJobSpec, nonce: str) -> KubeObject:
    return pod(owner, spec, Place(0, 0), image="i", secret=f"{owner.name}-{owner.uid[:8]}-token-{nonce}")


def test_pods_of_two_jobs_that_differ_in_names_alone_are_alike(make_spec: MakeSpec) -> None:
    first, second = owner_of("sweep-1", "a"), owner_of("sweep-2", "b")
    spec = make_spec(storage={"volumeClaimTemplate": {"spec": {}}})
    alike = {fingerprint(owner, rendered(owner, spec, nonce)) for owner, nonce in ((first, "aaaa"), (second, "bbbb"))}
    assert len(alike) == 1


def test_any_other_difference_makes_them_differ(make_spec: MakeSpec) -> None:
    first, second = owner_of("sweep-1", "a"), owner_of("sweep-2", "b")
    one, other = rendered(first, make_spec(), "aaaa"), rendered(second, make_spec(image="another"), "bbbb")
    assert fingerprint(first, one) != fingerprint(second, other)
    elsewhere = Owner(first.name, "team-b", first.uid)
    assert fingerprint(first, one) != fingerprint(elsewhere, one)


def test_a_job_that_is_called_as_a_field_is_takes_nobody_in(make_spec: MakeSpec) -> None:
    """With requests of `cpu` and of `gpu`, the pods of jobs named so differ in more than names."""

    def asking(name: str, uid: str) -> tuple[Owner, KubeObject]:
        owner = owner_of(name, uid)
        found = rendered(owner, make_spec(), "aaaa")
        found["spec"]["containers"][0]["resources"] = {"requests": {name: "1"}}
        return owner, found

    assert fingerprint(*asking("cpu", "a")) != fingerprint(*asking("cpux", "b"))


class Server(FakeKube):
    """Judges as a test says, and lets others ask meanwhile."""

    error: Exception | None = None

    async def create(self, body: KubeObject, *, dry_run: bool = False) -> KubeObject:
        self.requests.append("dry-run")
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        return {}


def ask(server: Server, owner: Owner, item: KubeObject, times: int = 1) -> list[Any]:
    verdicts = Verdicts(server, keep_s=60.0, monotonic=lambda: 0.0)

    async def run() -> list[Any]:
        return await asyncio.gather(
            *(verdicts.problem_of(owner, copy.deepcopy(item)) for _ in range(times)), return_exceptions=True
        )

    return asyncio.run(run())


def test_of_those_that_ask_at_the_same_time_one_asks_the_server(make_spec: MakeSpec) -> None:
    server, owner = Server(), owner_of("ppo", "a")
    assert ask(server, owner, rendered(owner, make_spec(), "aaaa"), times=20) == [""] * 20
    assert server.requests == ["dry-run"]


def test_a_failure_to_ask_is_everyones_who_waited(make_spec: MakeSpec) -> None:
    server, owner = Server(), owner_of("ppo", "a")
    server.error = NetworkError("create pods")
    found = ask(server, owner, rendered(owner, make_spec(), "aaaa"), times=3)
    assert [type(item) for item in found] == [NetworkError] * 3


def test_a_refusal_for_want_of_quota_is_no_fault_of_the_pod(make_spec: MakeSpec) -> None:
    server, owner = Server(), owner_of("ppo", "a")
    server.error = Forbidden("create pods", code=403, message="exceeded quota: small")
    assert ask(server, owner, rendered(owner, make_spec(), "aaaa")) == [""]


def test_a_refused_pod_is_not_remembered(make_spec: MakeSpec) -> None:
    server, owner = Server(), owner_of("ppo", "a")
    server.error = Invalid("create pods", code=422, message="spec.containers: Required value")
    verdicts = Verdicts(server, keep_s=60.0, monotonic=lambda: 0.0)
    item = rendered(owner, make_spec(), "aaaa")
    for _ in range(2):
        assert asyncio.run(verdicts.problem_of(owner, item)) == "spec.containers: Required value"
    assert server.requests == ["dry-run"] * 2


def test_a_verdict_is_kept_for_a_while_only(make_spec: MakeSpec) -> None:
    times = [0.0]
    server, owner = Server(), owner_of("ppo", "a")
    verdicts = Verdicts(server, keep_s=60.0, monotonic=lambda: times[0])
    item = rendered(owner, make_spec(), "aaaa")
    for times[0] in (0.0, 59.0, 61.0):
        asyncio.run(verdicts.problem_of(owner, item))
    assert server.requests == ["dry-run"] * 2


def test_who_waits_for_another_that_is_ended_asks_himself(make_spec: MakeSpec) -> None:
    server, owner = Server(), owner_of("ppo", "a")
    verdicts = Verdicts(server, keep_s=60.0, monotonic=lambda: 0.0)
    item = rendered(owner, make_spec(), "aaaa")

    async def story() -> str:
        first = asyncio.create_task(verdicts.problem_of(owner, item))
        await asyncio.sleep(0.001)
        second = asyncio.create_task(verdicts.problem_of(owner, item))
        await asyncio.sleep(0.001)
        first.cancel()
        return await second

    assert asyncio.run(story()) == ""
    assert server.requests == ["dry-run"] * 2


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (409, b'{"reason": "AlreadyExists"}', "AlreadyExists"),
        (409, b'{"reason": "Conflict"}', "Conflict"),
        (404, b"not json", "NotFound"),
        (403, b'{"message": "pods \\"a\\" is forbidden: exceeded quota: q"}', "Forbidden"),
        (400, b'{"reason": "BadRequest"}', "Invalid"),
        (422, b'{"reason": "Invalid"}', "Invalid"),
        (410, b'{"reason": "Expired"}', "Expired"),
        (401, b"[]", "Unauthorized"),
        (429, b"{}", "TooManyRequests"),
        (500, b'{"details": {"retryAfterSeconds": 3}}', "TooManyRequests"),
        (503, b"<html>", "ServerError"),
        (302, b"", "KubeError"),
    ],
)
def test_each_refusal_has_its_type(code: int, body: bytes, expected: str) -> None:
    error = error_of("create pods", code, body)
    assert type(error).__name__ == expected
    assert str(error).startswith(f"create pods: {code}")


def test_the_words_of_the_server_are_not_in_what_is_logged() -> None:
    error = error_of("create pods", 422, b'{"reason": "Invalid", "message": "env SECRET=hunter2"}')
    assert "hunter2" not in str(error)
    assert "hunter2" in error.message


@pytest.mark.parametrize(("header", "pause_s"), [("7", 7.0), (None, 1.0), ("soon", 1.0), ("9999", 60.0)])
def test_the_pause_that_the_server_asks_for_is_bounded(header: str | None, pause_s: float) -> None:
    error = error_of("list pods", 429, b"{}", header)
    assert getattr(error, "retry_after_s", None) == pause_s
