from __future__ import annotations

import http.client
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from rlruntime.errors import ConfigError
from rlruntime.services.health import _MAX_THREADS, HealthServer, Heartbeat

Start = Callable[..., HealthServer]


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[HealthServer] = []

    def _start(**overrides: Any) -> HealthServer:
        arguments: dict[str, Any] = {
            "registry": CollectorRegistry(),
            "live": lambda: None,
            "ready": lambda: None,
            "status": dict,
            **overrides,
        }
        server = HealthServer(arguments.pop("port", 0), **arguments)
        servers.append(server)
        return server

    yield _start
    for server in servers:
        server.close()
    deadline_s = time.monotonic() + 5
    while any(thread.name == "rljob-health" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, "a server's thread outlived it"
        time.sleep(0.01)


def ask(
    server: HealthServer, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.headers.get("Content-Type", ""), response.read()
    finally:
        connection.close()


def test_metrics_are_those_of_the_given_registry(start: Start) -> None:
    registry = CollectorRegistry()
    Counter("things_total", "Things.", registry=registry).inc(3)
    server = start(registry=registry)
    assert server.port > 0
    status, content_type, body = ask(server, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    assert b"things_total 3.0" in body
    status, content_type, body = ask(
        server, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    assert (status, content_type.startswith("application/openmetrics-text")) == (200, True)
    assert body.endswith(b"# EOF\n")


def test_probes_answer_503_with_the_reason_until_it_is_gone(start: Start) -> None:
    reasons: dict[str, str | None] = {"live": None, "ready": "building\nenvironments"}
    server = start(live=lambda: reasons["live"], ready=lambda: reasons["ready"])
    assert ask(server, "/healthz") == (200, "text/plain; charset=utf-8", b"ok\n")
    assert ask(server, "/readyz")[::2] == (503, b"building environments\n")
    reasons.update(live="stuck", ready=None)
    assert ask(server, "/healthz")[::2] == (503, b"stuck\n")
    assert ask(server, "/readyz")[0] == 200


def test_liveness_fails_when_the_heartbeat_stops_and_returns_with_it(start: Start) -> None:
    now_s = [100.0]
    heartbeat = Heartbeat(30.0, clock=lambda: now_s[0])
    server = start(live=heartbeat)
    now_s[0] = 130.0
    assert ask(server, "/healthz")[0] == 200
    now_s[0] = 142.0
    assert ask(server, "/healthz")[::2] == (503, b"no progress for 42 s (allowed: 30 s)\n")
    heartbeat.beat()
    assert ask(server, "/healthz")[0] == 200


def test_status_is_json_even_with_numbers_that_json_lacks(start: Start) -> None:
    server = start(status=lambda: {"frames": 512, "reward": float("nan"), "phase": "Running"})
    status, content_type, body = ask(server, "/status")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body) == {"frames": 512, "reward": None, "phase": "Running"}


def test_callable_that_raises_is_a_500_of_one_line_and_the_server_lives_on(start: Start) -> None:
    def status() -> Mapping[str, Any]:
        raise KeyError("frames")

    server = start(status=status)
    assert ask(server, "/status")[::2] == (500, b"KeyError: 'frames'\n")
    assert ask(server, "/healthz")[0] == 200


def test_unknown_path_is_404_and_a_query_is_ignored(start: Start) -> None:
    server = start()
    assert ask(server, "/")[0] == 404
    assert ask(server, "/healthz/../metrics")[0] == 404
    assert ask(server, "/healthz?verbose=1")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(start: Start, method: str) -> None:
    assert ask(start(), "/healthz", method)[0] == 405


def test_head_has_the_headers_of_get_and_no_body(start: Start) -> None:
    assert ask(start(), "/healthz", "HEAD") == (200, "text/plain; charset=utf-8", b"")


def test_taken_port_is_one_line_with_field_and_remedy(start: Start) -> None:
    taken = start().port
    with pytest.raises(ConfigError) as caught:
        start(port=taken)
    assert str(caught.value) == (
        f"spec.metrics.port: the port can't be opened on 127.0.0.1: Address already in use (got {taken}); "
        "choose another port, or 0 for any free one"
    )
    assert caught.value.exit_code == 78


def test_number_that_is_no_port_is_refused(start: Start) -> None:
    with pytest.raises(ConfigError, match=r"^spec\.metrics\.port: "):
        start(port=70_000)


def test_closed_server_frees_its_port_and_may_be_closed_again(start: Start) -> None:
    first = start()
    first.close()
    first.close()
    second = start(port=first.port)
    assert ask(second, "/healthz")[0] == 200


def test_close_is_quick_though_clients_hang_and_others_are_served_meanwhile(start: Start) -> None:
    server = start()
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(8)]
    assert ask(server, "/healthz")[0] == 200
    began_s = time.monotonic()
    server.close()
    assert time.monotonic() - began_s < 2
    for client in silent:
        client.close()


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nX-Slow: "], ids=["nothing", "half a request"])
def test_connections_that_are_held_open_keep_no_probe_from_its_answer(start: Start, said: bytes) -> None:
    server = start()
    held = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(30)]
    for client in held:
        client.sendall(said)
    time.sleep(0.2)
    assert [ask(server, "/healthz")[0] for _ in range(40)] == [200] * 40
    for client in held:
        client.close()


def test_threads_that_can_not_be_started_cost_their_connections_and_no_later_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, failures = start(), iter(range(_MAX_THREADS + 1))
    process_request = socketserver.ThreadingMixIn.process_request

    def fail_at_first(self: Any, request: Any, client_address: Any) -> None:
        if next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        process_request(self, request, client_address)

    monkeypatch.setattr(socketserver.ThreadingMixIn, "process_request", fail_at_first)
    for _ in range(_MAX_THREADS + 1):
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(server, "/healthz")
    assert ask(server, "/healthz")[0] == 200


def test_flood_of_connections_is_dropped_beyond_a_bound(start: Start) -> None:
    server = start()
    before = threading.active_count()
    clients = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(40)]
    time.sleep(0.3)
    assert threading.active_count() - before <= 16
    for client in clients:
        client.close()
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s:
        try:
            assert ask(server, "/healthz")[0] == 200
            break
        except (ConnectionError, http.client.HTTPException):
            time.sleep(0.05)
    else:
        pytest.fail("the server did not recover")
