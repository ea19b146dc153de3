"""Passes TCP connections on: what pods reach at the address of the API server's Service comes out at the API server.

There is no kube-proxy on test nodes, and the API server listens on 127.0.0.1 alone. A process of the node's guard runs
this; it imports the standard library alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

_CHUNK = 65536
_SUPPORT = Path(__file__).resolve().parents[1]


def relay_command(address: str, port: int, target_port: int) -> list[str | Path]:
    """Return the command that passes connections to ``address`` and ``port`` on to 127.0.0.1.

    Several relays may listen there at once, so that each node can have one.
    """
    program = f"import sys; sys.path.insert(0, {str(_SUPPORT)!r}); from cluster_harness.relay import main; main()"
    return [sys.executable, "-S", "-c", program, address, str(port), str(target_port)]


def main() -> None:
    """Relay until killed."""
    address, port, target_port = sys.argv[1:]
    asyncio.run(_serve(address, int(port), int(target_port)))


async def _serve(address: str, port: int, target_port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", target_port)
            await asyncio.gather(_pass_on(reader, target_writer), _pass_on(target_reader, writer))
            target_writer.close()
        writer.close()

    server = await asyncio.start_server(connected, address, port, reuse_port=True)
    await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof() if writer.can_write_eof() else writer.close()
