"""One port with ``/metrics``, ``/healthz``, ``/readyz`` and ``/status``. They hold no secret and need no token."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from rlruntime.errors import ConfigError, one_line
from rlruntime.metrics.json_values import finite

_REQUEST_TIMEOUT_S = 5.0
_MAX_CONCURRENT = 16
_MAX_THREADS = 64
"""Those of connections that were dropped included: they end once they notice."""
_POLL_S = 0.05

Check = Callable[[], str | None]
"""Returns what is wrong in a few words, or None when all is well."""


class Heartbeat:
    """Liveness of a loop: well as long as the last beat isn't older than ``timeout_s``.

    ``beat`` costs one clock read; call it at phase boundaries, or from anything that shows progress. Phases that may
    rightly take longer than the time-out are no sign of death: choose the time-out for the longest.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._last_s = clock()

    def beat(self) -> None:
        """Say that there was progress."""
        self._last_s = self._clock()

    def __call__(self) -> str | None:
        """Return None, or for how long there has been no progress."""
        silent_s = self._clock() - self._last_s
        if silent_s <= self.timeout_s:
            return None
        return f"no progress for {silent_s:.0f} s (allowed: {self.timeout_s:g} s)"


class Liveness:
    """Liveness of a loop whose phases may rightly take long: it is dead only where nothing of it moves.

    Before ``begin`` it is alive: a start may take as long as it must. After it, it is well as long as there was within
    ``timeout_s`` a beat, a change of ``mark``, or work for the processor: a long update computes, an evaluation and a
    collection step environments; a loop that waits for what never comes does none of it.

    Args:
        timeout_s: longest silence.
        clock: seconds, monotonic.
        cpu_clock: seconds of processor time of this process.
    """

    _BUSY_SHARE = 0.02  # answering probes and scrapes takes less

    def __init__(
        self,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self.timeout_s = timeout_s
        self.mark: Callable[[], object] = lambda: None
        self._clock, self._cpu_clock = clock, cpu_clock
        self._begun = False
        self._mark: object = None
        self._last_s = self._asked_s = clock()
        self._cpu_s = cpu_clock()

    def begin(self) -> None:
        """Say that the loop has begun."""
        self._note(self.mark())
        self._begun = True

    def beat(self) -> None:
        """Say that there was progress."""
        self._last_s = self._clock()

    def __call__(self) -> str | None:
        """Return None, or for how long nothing has moved. Call it at least once within the time-out."""
        if not self._begun:
            return None
        now_s, mark = self._clock(), self.mark()
        asked_ago_s = now_s - self._asked_s
        busy = self._cpu_clock() - self._cpu_s > self._BUSY_SHARE * asked_ago_s
        if mark != self._mark or (busy and asked_ago_s >= 1.0):
            self._note(mark)
            return None
        if asked_ago_s >= 1.0:
            self._asked_s, self._cpu_s = now_s, self._cpu_clock()
        silent_s = now_s - self._last_s
        return None if silent_s <= self.timeout_s else f"nothing has moved for {silent_s:.0f} s"

    def _note(self, mark: object) -> None:
        self._mark = mark
        self._last_s = self._asked_s = self._clock()
        self._cpu_s = self._cpu_clock()


class HealthServer:
    """Serves a run's port from daemon threads, from construction until ``close``.

    Args:
        port: 0 picks a free one; see the attribute ``port`` for which.
        host: address to listen on; ``0.0.0.0`` for all.
        registry: what ``/metrics`` shows.
        live: behind ``/healthz``; not None answers 503 and its words.
        ready: behind ``/readyz``, likewise.
        status: behind ``/status``; returned as JSON. Called by the server's threads, so it must only read.

    Raises:
        ConfigError: the port is taken, may not be opened, or isn't one.
    """

    def __init__(
        self,
        port: int,
        *,
        registry: CollectorRegistry,
        live: Check,
        ready: Check,
        status: Callable[[], Mapping[str, Any]],
        host: str = "127.0.0.1",
    ) -> None:
        self.host = host
        routes = _Routes(registry, live, ready, status)
        handler = type("Handler", (_Handler,), {"routes": routes})
        try:
            self._server = _Server((host, port), handler)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"the port can't be opened on {host or 'all addresses'}: {reason}",
                field="spec.metrics.port",
                value=port,
                remedy="choose another port, or 0 for any free one",
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": _POLL_S}, name="rljob-health", daemon=True
        )
        self._thread.start()
        self._closed = False

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop listening and free the port, within ``timeout_s``. May be called twice."""
        if self._closed:
            return
        self._closed = True
        stopper = threading.Thread(target=self._server.shutdown, daemon=True)
        stopper.start()
        stopper.join(timeout_s)
        self._server.server_close()
        self._thread.join(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._open: dict[Any, None] = {}
        self._workers = threading.BoundedSemaphore(_MAX_THREADS)
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of the host's own name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Drop the oldest connection when too many are open: a flood costs no memory, and whoever is slow on purpose
        doesn't keep a probe from its answer."""
        if not self._workers.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._lock:
            if len(self._open) >= _MAX_CONCURRENT:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):  # it wakes its thread, which closes it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started: this connection is dropped, and takes no place from later ones
            self._let_go(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._let_go(request)

    def _let_go(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        self._workers.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is its own affair."""


class _Routes:
    def __init__(
        self, registry: CollectorRegistry, live: Check, ready: Check, status: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._registry, self._live, self._ready, self._status = registry, live, ready, status

    def answer(self, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        """Return status, content type and body."""
        match path:
            case "/metrics":
                encoder, content_type = choose_encoder(accept)
                return HTTPStatus.OK, content_type, encoder(self._registry)
            case "/healthz":
                return _checked(self._live())
            case "/readyz":
                return _checked(self._ready())
            case "/status":
                body = json.dumps(finite(self._status()), allow_nan=False)
                return HTTPStatus.OK, "application/json", f"{body}\n".encode()
        return HTTPStatus.NOT_FOUND, _TEXT, b"not found; there are /metrics, /healthz, /readyz, /status\n"


class _Handler(BaseHTTPRequestHandler):
    routes: _Routes
    timeout = _REQUEST_TIMEOUT_S
    server_version = "rljob"
    sys_version = ""

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Give the base class the method for a request: it looks for ``do_<VERB>``."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self._answer if name in ("do_GET", "do_HEAD") else self._refuse

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        try:
            status, content_type, body = self.routes.answer(path, self.headers.get("Accept", ""))
        except Exception as error:
            words = one_line(f"{type(error).__name__}: {error}")
            status, content_type, body = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, f"{words}\n".encode()
        self._send(status, content_type, body)

    def _refuse(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"only GET and HEAD\n", {"Allow": "GET, HEAD"})

    def log_message(self, format: str, *args: Any) -> None:
        """Probes are no news."""

    def _send(self, status: HTTPStatus, content_type: str, body: bytes, extra: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            **(extra or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)


_TEXT = "text/plain; charset=utf-8"


def _checked(problem: str | None) -> tuple[HTTPStatus, str, bytes]:
    if problem is None:
        return HTTPStatus.OK, _TEXT, b"ok\n"
    return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{one_line(problem)}\n".encode()
