"""The operator's requests, as a server sees them, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from http_server import serving
from prometheus_client import CollectorRegistry
from rljob_operator.handlers.login import Event, Login
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import (
    AlreadyExists,
    Conflict,
    NetworkError,
    NotLeading,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from rljob_operator.kube.http import HttpClient
from rljob_operator.kube.resources import PODS, RLJOBS, parse_path
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.reconcile.watches import Stream, WatchMonitor

from rlruntime.errors import ConfigError

Story = Callable[[HttpClient], Awaitable[Any]]


def kubeconfig(folder: Path, port: int, token: str = "first") -> Path:
    (folder / "token").write_text(token)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}/"}}],
        "users": [{"name": "u", "user": {"tokenFile": str(folder / "token")}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


class Server:
    """Answers from a list, and keeps what was asked."""

    def __init__(self, *answers: tuple[int, Any], headers: dict[str, str] | None = None) -> None:
        self.answers = list(answers)
        self.headers = headers or {}
        self.asked: list[tuple[str, str, dict[str, Any] | None]] = []
        self.tokens: list[str] = []
        self.accepted: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.path_qs, body))
        self.tokens.append(request.headers.get("Authorization", ""))
        self.accepted.append(request.headers["Accept"])
        code, document = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.Response(status=code, body=json.dumps(document).encode(), headers=self.headers)


def drive(
    folder: Path,
    server: Server,
    story: Story,
    registry: CollectorRegistry | None = None,
    may_write: Callable[[], bool] = lambda: True,
) -> Any:
    async def run() -> Any:
        async with serving(server) as port:
            connection = await Connection.load(str(kubeconfig(folder, port)))
            metrics = OperatorMetrics(registry or CollectorRegistry())
            client = HttpClient(connection, metrics, timeout_s=0.5, may_write=may_write)
            try:
                return await story(client)
            finally:
                await client.close()

    return asyncio.run(run())


POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "team-a"}}


def test_an_object_is_created_strictly_and_only_its_metadata_is_asked_back(tmp_path: Path) -> None:
    server = Server((201, {"metadata": {"uid": "u"}}))
    assert drive(tmp_path, server, lambda client: client.create(POD)) == {"metadata": {"uid": "u"}}
    path = "/api/v1/namespaces/team-a/pods?fieldValidation=Strict&fieldManager=rljob-operator"
    assert server.asked == [("POST", path, POD)]
    assert server.accepted[0].startswith("application/json;as=PartialObjectMetadata")
    assert server.tokens == ["Bearer first"]


def test_a_dry_run_says_so(tmp_path: Path) -> None:
    server = Server((201, {}))
    drive(tmp_path, server, lambda client: client.create(POD, dry_run=True))
    assert server.asked[0][1].endswith("&dryRun=All")


def test_a_status_is_merged_by_patch(tmp_path: Path) -> None:
    server = Server((200, {}))
    body = {"metadata": {"uid": "u", "resourceVersion": "3"}, "status": {"phase": None}}
    drive(tmp_path, server, lambda client: client.patch_status("team-a", "ppo", body))
    path = "/apis/rljob.io/v1alpha1/namespaces/team-a/rljobs/ppo/status?fieldManager=rljob-operator"
    assert server.asked == [("PATCH", path, body)]


def test_a_deletion_holds_its_preconditions(tmp_path: Path) -> None:
    server = Server((200, {"kind": "Status"}))
    left = drive(tmp_path, server, lambda client: client.delete(PODS, "team-a", "a", uid="u", grace_s=0))
    assert left == {}
    ((method, path, body),) = server.asked
    assert (method, path) == ("DELETE", "/api/v1/namespaces/team-a/pods/a")
    assert body is not None
    assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": "u"}, 0)


def test_a_list_is_read_page_by_page(tmp_path: Path) -> None:
    server = Server(
        (200, {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [{"n": 1}]}),
        (200, {"metadata": {"resourceVersion": "9"}, "items": [{"n": 2}]}),
    )

    async def story(client: HttpClient) -> list[Any]:
        return [item async for page in client.pages(RLJOBS, None, label_selector="a=b") for item in page.items]

    assert drive(tmp_path, server, story) == [{"n": 1}, {"n": 2}]
    assert [path for _, path, _ in server.asked] == [
        "/apis/rljob.io/v1alpha1/rljobs?limit=500&labelSelector=a%3Db",
        "/apis/rljob.io/v1alpha1/rljobs?limit=500&labelSelector=a%3Db&continue=more",
    ]


def test_a_read_is_tried_again_when_the_server_fails(tmp_path: Path) -> None:
    server = Server((503, {}), (500, {}), (200, {"metadata": {}}))
    assert drive(tmp_path, server, lambda client: client.get(PODS, "team-a", "a")) == {"metadata": {}}
    assert len(server.asked) == 3


def test_a_write_is_not_tried_again_when_the_server_fails(tmp_path: Path) -> None:
    server = Server((503, {}))
    with pytest.raises(ServerError):
        drive(tmp_path, server, lambda client: client.create(POD))
    assert len(server.asked) == 1


def test_a_write_is_tried_again_when_the_server_says_that_it_did_nothing(tmp_path: Path) -> None:
    server = Server((429, {}), (201, {"metadata": {}}), headers={"Retry-After": "0.1"})
    drive(tmp_path, server, lambda client: client.create(POD))
    assert len(server.asked) == 2


def test_a_server_that_stays_busy_is_given_up(tmp_path: Path) -> None:
    server = Server((429, {}), headers={"Retry-After": "0.1"})
    with pytest.raises(TooManyRequests):
        drive(tmp_path, server, lambda client: client.create(POD))
    assert len(server.asked) == 4


@pytest.mark.parametrize(("reason", "kind"), [("AlreadyExists", AlreadyExists), ("Conflict", Conflict)])
def test_two_kinds_of_conflict_are_told_apart(tmp_path: Path, reason: str, kind: type[Exception]) -> None:
    server = Server((409, {"kind": "Status", "reason": reason}))
    with pytest.raises(kind):
        drive(tmp_path, server, lambda client: client.create(POD))


def test_a_server_that_does_not_answer_is_a_network_error(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    with pytest.raises(NetworkError, match="create pods: no answer"):
        drive(tmp_path, silent, lambda client: client.create(POD))  # type: ignore[arg-type]


def test_a_token_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    server = Server((401, {}), (200, {"metadata": {}}))

    async def story(client: HttpClient) -> Any:
        (tmp_path / "token").write_text("second")
        return await client.get(PODS, "team-a", "a")

    drive(tmp_path, server, story)
    assert server.tokens == ["Bearer first", "Bearer second"]


def test_a_token_that_stays_refused_is_said(tmp_path: Path) -> None:
    server = Server((401, {}))
    with pytest.raises(Unauthorized):
        drive(tmp_path, server, lambda client: client.get(PODS, "team-a", "a"))
    assert len(server.asked) == 2


def test_credentials_that_can_not_be_read_anew_are_refused_ones(tmp_path: Path) -> None:
    server = Server((401, {}))

    async def story(client: HttpClient) -> Any:
        (tmp_path / "kubeconfig").write_text("half a docu")
        return await client.get(PODS, "team-a", "a")

    with pytest.raises(Unauthorized):
        drive(tmp_path, server, story)


@pytest.mark.parametrize("answer", [b"<html>log in here</html>", b"[]", b"", b"\xff"])
def test_an_answer_that_is_no_object_is_none(tmp_path: Path, answer: bytes) -> None:
    async def proxy(_: web.Request) -> web.StreamResponse:
        return web.Response(body=answer)

    with pytest.raises(NetworkError, match="get pods: no answer"):
        drive(tmp_path, proxy, lambda client: client.get(PODS, "team-a", "a"))  # type: ignore[arg-type]


def test_a_redirection_is_not_followed(tmp_path: Path) -> None:
    server = Server((302, {}), headers={"Location": "http://127.0.0.1:9/steal"})
    with pytest.raises(Exception, match="302"):
        drive(tmp_path, server, lambda client: client.get(PODS, "team-a", "a"))
    assert len(server.asked) == 1


def test_requests_are_counted_by_verb_resource_and_code(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    server = Server((503, {}), (200, {"metadata": {}}))
    drive(tmp_path, server, lambda client: client.get(PODS, "team-a", "a"), registry)

    def count(code: str) -> float | None:
        labels = {"verb": "get", "resource": "pods", "code": code}
        return registry.get_sample_value("rljob_operator_api_requests_total", labels)

    assert (count("503"), count("200")) == (1, 1)


def test_the_service_account_of_a_pod_is_taken_where_there_is_no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigError, match="Service token file does not exist"):
        asyncio.run(Connection.load())


@pytest.mark.parametrize("text", ["[", "a: b", "{}"])
def test_a_kubeconfig_that_is_none_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match="--kubeconfig"):
        asyncio.run(Connection.load(str(path)))


def test_a_context_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--context"):
        asyncio.run(Connection.load(str(kubeconfig(tmp_path, 1)), "nowhere"))


def test_what_kopf_does_not_tell_is_heard_on_its_session(tmp_path: Path) -> None:
    """A list, the opening of a watch, and each part of what it says, bookmarks included."""
    pods = Stream("pods", None)
    seconds = [0.0]
    monitor = WatchMonitor([pods], monotonic=lambda: seconds[0], time=lambda: 0.0)

    async def server(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer first"
        if request.query.get("watch") != "true":
            return web.json_response({"items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(2):
            await response.write(b'{"type": "BOOKMARK"}\n')
            await asyncio.sleep(0.05)
        return response

    async def run() -> list[float]:
        silences = []
        async with serving(server) as port:
            connection = await Connection.load(str(kubeconfig(tmp_path, port)))
            login = Login(connection, monitor, OperatorMetrics(CollectorRegistry()), monotonic=lambda: seconds[0])
            context = await login()
            async with context.aiohttp_session as session:
                seconds[0] = 50.0
                async with session.get(f"{context.server}/api/v1/pods") as response:
                    await response.json()
                silences.append(monitor.silence_s())
                async with session.get(f"{context.server}/api/v1/pods?watch=true") as response:
                    silences.append(monitor.silence_s())
                    async for _ in response.content.iter_chunked(1024):
                        silences.append(monitor.silence_s())
                        seconds[0] += 10.0
        await asyncio.wait_for(monitor.all_open(), 1.0)
        return silences

    assert asyncio.run(run()) == [50.0, 50.0, 0.0, 0.0]


def test_a_watch_and_a_list_that_are_nested_without_end_can_be_read(tmp_path: Path) -> None:
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    lines = [f'{{"type": "ADDED", "object": {deep}}}\n', '{"type": "BOOKMARK"}\n', '{"type": "DELETED"}']

    async def server(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") != "true":
            return web.Response(text=f'{{"items": [{deep}]}}', content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        text = "".join(lines).encode()
        for begin in range(0, len(text), 7000):  # in parts that end anywhere
            await response.write(text[begin : begin + 7000])
            await asyncio.sleep(0.001)
        return response

    async def run() -> list[str]:
        async with serving(server) as port:
            connection = await Connection.load(str(kubeconfig(tmp_path, port)))
            monitor = WatchMonitor([], monotonic=lambda: 0.0, time=lambda: 0.0)
            context = await Login(connection, monitor, OperatorMetrics(CollectorRegistry()), monotonic=lambda: 0.0)()
            async with context.aiohttp_session as session:
                async with session.get(f"{context.server}/api/v1/pods") as response:
                    assert len((await response.json())["items"]) == 1
                async with session.get(f"{context.server}/api/v1/pods?watch=true") as response:
                    heard = [part async for part in response.content.iter_chunked(1024)]
        return [json.loads(line)["type"] for line in b"".join(heard).splitlines()]

    assert asyncio.run(run()) == ["ADDED", "BOOKMARK", "DELETED"]


def test_events_are_taken_from_a_watch_before_kopf_which_reads_how_far_it_is(tmp_path: Path) -> None:
    def event(kind: str, version: int) -> str:
        return json.dumps({"type": kind, "object": {"metadata": {"uid": "u", "resourceVersion": str(version)}}})

    status = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    lines = [event("ADDED", 1), event("MODIFIED", 2), event("DELETED", 3), event("BOOKMARK", 4), json.dumps(status)]
    lines.insert(2, '{"type": "MODIFIED", "object": {"metadata": {"resourceVersion": "0"}}}')
    taken: list[tuple[str, str]] = []

    def take(event: Event) -> None:
        taken.append((event["type"], event["object"]["metadata"]["uid"]))

    async def server(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write("".join(f"{line}\n" for line in lines).encode())
        return response

    async def watched(plural: str) -> list[Any]:
        async with serving(server) as port:
            connection = await Connection.load(str(kubeconfig(tmp_path, port)))
            monitor = WatchMonitor([], monotonic=lambda: 0.0, time=lambda: 0.0)
            metrics = OperatorMetrics(CollectorRegistry())
            context = await Login(connection, monitor, metrics, monotonic=lambda: 0.0, takers={"pods": take})()
            url = f"{context.server}/api/v1/{plural}?watch=true"
            async with context.aiohttp_session as session, session.get(url) as response:
                heard = [part async for part in response.content.iter_chunked(1024)]
        return [json.loads(line) for line in b"".join(heard).splitlines()]

    left = asyncio.run(watched("pods"))
    assert taken == [("ADDED", "u"), ("MODIFIED", "u"), ("DELETED", "u")]
    assert [(item["type"], item["object"].get("metadata")) for item in left] == [
        ("BOOKMARK", {"resourceVersion": "1"}),
        ("BOOKMARK", {"resourceVersion": "2"}),
        ("MODIFIED", {"resourceVersion": "0"}),  # it has no uid: what can't be taken is left to kopf, which says so
        ("BOOKMARK", {"resourceVersion": "3"}),
        ("BOOKMARK", {"uid": "u", "resourceVersion": "4"}),
        ("ERROR", None),
    ]
    assert asyncio.run(watched("nodes")) == [json.loads(line) for line in lines]
    assert len(taken) == 3


def test_a_login_that_is_refused_again_and_again_grows_rarer(tmp_path: Path) -> None:
    seconds = [0.0]

    async def run() -> list[str]:
        connection = await Connection.load(str(kubeconfig(tmp_path, 1)))
        monitor = WatchMonitor([], monotonic=lambda: 0.0, time=lambda: 0.0)
        login = Login(connection, monitor, OperatorMetrics(CollectorRegistry()), monotonic=lambda: seconds[0])
        found = []
        for token in ("second", "third"):
            (tmp_path / "token").write_text(token)
            context = await login()
            await context.aiohttp_session.close()
            found.append((await connection.headers())["Authorization"])
        return found

    assert asyncio.run(run()) == ["Bearer first", "Bearer third"]


def test_a_replacement_is_guarded_by_the_version_that_it_is_based_on(tmp_path: Path) -> None:
    about = {"name": "operator", "namespace": "rljob-system", "resourceVersion": "7"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": about, "spec": {}}
    server = Server((200, {"metadata": about}))
    assert drive(tmp_path, server, lambda client: client.replace(lease)) == {"metadata": about}
    path = "/apis/coordination.k8s.io/v1/namespaces/rljob-system/leases/operator?fieldManager=rljob-operator"
    assert server.asked == [("PUT", path, lease)]


def test_nothing_is_written_by_a_client_that_may_not_write_any_more(tmp_path: Path) -> None:
    server = Server((200, {"metadata": {}}))

    async def story(client: HttpClient) -> None:
        for write in (
            client.create(POD),
            client.patch_status("team-a", "ppo", {}),
            client.delete(PODS, "team-a", "a", uid="u"),
        ):
            with pytest.raises(NotLeading):
                await write
        assert await client.get(PODS, "team-a", "a") == {"metadata": {}}

    drive(tmp_path, server, story, may_write=lambda: False)
    assert [method for method, _, _ in server.asked] == ["GET"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/pods", ("pods", None, "")),
        ("/api/v1/namespaces/a/pods", ("pods", "a", "")),
        ("/api/v1/namespaces/a/pods/p", ("pods", "a", "p")),
        ("/apis/rljob.io/v1alpha1/namespaces/a/rljobs/j/status", ("rljobs", "a", "j")),
        ("/apis/rljob.io/v1alpha1/rljobs?watch=true", ("rljobs", None, "")),
        ("/api/v1/namespaces/a", ("namespaces", None, "a")),
        ("/apis", ("", None, "")),
        ("/openapi/v3", ("", None, "")),
    ],
)
def test_what_a_path_speaks_of(path: str, expected: tuple[str, str | None, str]) -> None:
    assert parse_path(path) == expected
