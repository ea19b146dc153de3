"""What a job's own code may say to the operator, by `/status` and by its last words: nothing that does harm."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import time
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from http_server import serving
from planner_cases import ENGINE, TRAINER, ended, job_spec, plan_for, running, seen, status_of
from rljob_operator.reconcile.progress import fetch_report, is_address_of_a_pod

from rlruntime.spec.contract import TrainerReport

UID = "1b4e28ba-2fa1-4a6b-8c3d-0123456789ab"
DEADLINE_S = 60.0
"""Most seconds, on a busy machine, for what the operator gives up after one."""


def text_of(**fields: Any) -> str:
    """Return a report, as a trainer that means no good may write it: with NaN and half characters."""
    return json.dumps({"uid": UID, "attempt": 0, **fields})


def session() -> aiohttp.ClientSession:
    """Return a session as the operator's."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1.0), trust_env=False)


@asynccontextmanager
async def answering(*parts: bytes, forever: bytes = b"", pause_s: float = 0.0) -> AsyncIterator[int]:
    """Serve these bytes to whoever connects, then others without end; yield the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
            while forever:
                writer.write(forever)
                await writer.drain()
                await asyncio.sleep(pause_s)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def fetched(*parts: bytes, forever: bytes = b"", pause_s: float = 0.0) -> TrainerReport | None:
    """Return what the operator makes of these bytes."""

    async def story() -> TrainerReport | None:
        async with answering(*parts, forever=forever, pause_s=pause_s) as port, session() as client:
            return await fetch_report(client, "127.0.0.1", port)

    began_s = time.monotonic()
    found = asyncio.run(story())
    assert time.monotonic() - began_s < DEADLINE_S
    return found


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "forever", "pause_s"),
    [
        ([OK], b"X-Header: " + b"x" * 4000 + b"\r\n", 0.0),
        ([], b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
        ([CHUNKED], b"400\r\n" + b" " * 1024 + b"\r\n", 0.0),
        ([CHUNKED], b"1\r\n \r\n", 0.2),
        ([OK + b"\r\n"], b" " * 65536, 0.0),
        ([OK + b"Content-Length: 99999999999\r\n\r\n"], b"[", 0.01),
        ([OK + b"Content-Length: -1\r\n\r\n", text_of().encode()], b"", 0.0),
        ([b"\x00" * 100], b"", 0.0),
        ([b"SSH-2.0-OpenSSH_9.9\r\n"], b"", 0.0),
        ([], b"", 0.0),
    ],
    ids=[
        "headers without end",
        "interim answers without end",
        "chunks without end",
        "a drip",
        "a body without end",
        "less than is promised",
        "a negative length",
        "no HTTP",
        "another protocol",
        "nothing",
    ],
)
def test_an_answer_without_end_or_sense_is_given_up_within_seconds(
    parts: list[bytes], forever: bytes, pause_s: float
) -> None:
    assert fetched(*parts, forever=forever, pause_s=pause_s) is None


@pytest.mark.parametrize(
    "body",
    [
        "[" * 16_000,
        '{"a":' * 2000 + "1" + "}" * 2000,
        text_of(frames=int("9" * 4000)),
        f'{{"uid": "{UID}", "attempt": 0, "frames": {"9" * 16_000}}}',
        text_of(frames=-1),
        text_of(frames=True),
        text_of(frames=1e300),
        text_of(reward=float("nan")),
        text_of(bestReward=float("inf")),
        text_of(framesPerSecond="many"),
        text_of(uid="x" * 1000),
        text_of(checkpoint={"frames": 1, "path": "\ud800"}),
        text_of(checkpoint={"frames": 1, "path": "x" * 2000}),
        text_of(checkpoint={"frames": 2**60}),
        text_of(checkpoint={"time": {}}),
        "null",
        "[]",
        '"text"',
    ],
    ids=range(18),
)
def test_a_report_that_no_status_can_hold_is_none(body: str) -> None:
    raw = body.encode(errors="surrogatepass")
    assert fetched(OK + b"Content-Length: " + str(len(raw)).encode() + b"\r\n\r\n" + raw) is None


def test_whatever_is_taken_can_be_written_into_a_status() -> None:
    body = text_of(
        frames=2**53 - 1,
        reward=-1.7e308,
        phase="\u202e\x00<script>",
        checkpoint={"frames": 0, "path": "../../etc/\n\x1b[31m", "time": "yesterday"},
        unknown={"deep": [1]},
    ).encode()
    found = fetched(OK + b"Content-Type: image/png\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
    assert found is not None
    stored = json.dumps(found.to_document(), ensure_ascii=False, allow_nan=False).encode()
    assert len(stored) < 16 * 1024


def test_a_compressed_answer_is_not_even_unpacked() -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bomb = gzip.compress(b" " * (512 * 1024 * 1024 // 4), 1)
    made_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    head = OK + f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    assert fetched(head, bomb) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - max(before_kib, made_kib) < 32 * 1024


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("target", ["http://127.0.0.1:{port}/elsewhere", "//127.0.0.1:{port}/elsewhere", "/elsewhere"])
def test_a_redirection_is_not_followed(code: int, target: str) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        port = request.url.port
        return web.Response(status=code, headers={"Location": target.format(port=port), "Refresh": "0; url=/elsewhere"})

    async def story() -> TrainerReport | None:
        async with serving(handler) as port, session() as client:
            return await fetch_report(client, "127.0.0.1", port)

    assert asyncio.run(story()) is None
    assert asked == ["/status"]


@pytest.mark.parametrize("code", [0, 1, 78, 143])
@pytest.mark.parametrize("role", ["trainer", "engine"])
@pytest.mark.parametrize(
    "message",
    [
        json.dumps({"reason": "\x1b]0;owned\x07", "message": "one\r\n\x1b[2Jtwo\u202egpj.exe\x00\x9b31m \ud800"}),
        "a log\x1b[2J\r\x08\x08\u2066 that was never JSON",
        json.dumps({"reason": "x" * 4000, "message": ""}),
        json.dumps({"reason": "", "message": "m" * 4000}),
        "[" * 4096,
    ],
    ids=["message", "log", "long reason", "long message", "deep"],
)
def test_last_words_of_a_container_control_no_terminal_and_fit_a_status(role: str, code: int, message: str) -> None:
    spec = job_spec(roles=[TRAINER, ENGINE])
    pods = (running(), running("engine"))
    last = ended(code, role, message=message)
    plan = plan_for(seen(spec, last, *(pod for pod in pods if pod.role != role), status=status_of(spec, *pods)))
    said = [*strings_of(plan.status.model_dump(by_alias=True)), *(event.message for event in plan.events)]
    assert len(said) > 5
    assert [text for text in said if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)] == []
    assert [text for text in said if any(letter in text for letter in "\u202e\u2066")] == []
    assert len(json.dumps(plan.status.model_dump(mode="json"), ensure_ascii=False).encode()) < 64 * 1024
    assert type(plan.status).model_validate(plan.status.model_dump(by_alias=True), by_alias=True) == plan.status


def strings_of(value: Any) -> list[str]:
    """Return all texts in a document."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for item in inner for text in strings_of(item)]


@pytest.mark.parametrize("ip", ["10.244.0.7", "192.168.1.1", "100.64.0.9", "2001:db8::7", "fd00::1", "::ffff:10.0.0.1"])
def test_addresses_that_pods_have_are_asked(ip: str) -> None:
    assert is_address_of_a_pod(ip)


@pytest.mark.parametrize(
    "ip",
    [
        "",
        "127.0.0.1",
        "127.8.8.8",
        "::1",
        "::ffff:127.0.0.1",
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "metadata.google.internal",
        "10.0.0.1:80",
        "10.0.0.1/status?x=",
        "10.0.0.1#",
        "user@10.0.0.1",
        "2130706433",
        "0x7f000001",
        "127.1",
        "10.0.0.01",
        " 10.0.0.1",
        "10.0.0.1\r\nHost: x",
    ],
)
def test_what_is_no_address_of_a_pod_is_not_asked(ip: str) -> None:
    assert not is_address_of_a_pod(ip)
