"""Hands the first packet of each connection to pods to a queue, where an agent says what becomes of it.

An agent of network policies does so itself by nftables' expression ``queue``. Kernels are built without that one, this
project's test machines among them, while they have the older target ``NFQUEUE``, which nftables can call as well. The
table belongs to the socket of this process: the kernel takes it away when the process ends, however that happens.

A process of the node's guard runs this; it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
import time
from pathlib import Path

_SUPPORT = Path(__file__).resolve().parents[1]
_NETLINK_NETFILTER, _NFTABLES, _IPV4 = 12, 10, 2
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
_REQUEST, _ACK, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_NESTED = 0x8000
_OWNED = 2  # NFT_TABLE_F_OWNER
_HOOK_FORWARD, _ACCEPT = 2, 1
_STATE_NEW = 1 << 3  # NF_CT_STATE_BIT(IP_CT_NEW)
_CHAIN = "forward"


def divert_command(table: str, queue: int, subnets: list[str]) -> list[str | Path]:
    """Return the command that diverts connections to ``subnets`` into ``queue`` as long as it runs.

    It prints ``diverting`` once that is so.
    """
    program = f"import sys; sys.path.insert(0, {str(_SUPPORT)!r}); from cluster_harness.divert import main; main()"
    return [sys.executable, "-S", "-c", program, table, str(queue), *subnets]


def main() -> None:
    """Divert until killed."""
    table, queue, *subnets = sys.argv[1:]
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as netlink:
        netlink.bind((0, 0))
        messages = [
            (_NEW_TABLE, _CREATE, _text(1, table) + _number(2, _OWNED)),
            (_NEW_CHAIN, _CREATE, _chain(table)),
            *((_NEW_RULE, _CREATE | _APPEND, _rule(table, subnet, int(queue))) for subnet in subnets),
        ]
        _commit(netlink, messages)
        print("diverting", flush=True)
        while True:
            time.sleep(3600.0)


def _commit(netlink: socket.socket, messages: list[tuple[int, int, bytes]]) -> None:
    """Send ``messages`` as one transaction, and see that the kernel took each.

    Raises:
        OSError: it took none of them.
    """
    batch = _message(_BATCH_BEGIN, _REQUEST, b"", sequence=0, resource=_NFTABLES, family=0)
    for number, (kind, flags, body) in enumerate(messages, start=1):
        batch += _message(_NFTABLES << 8 | kind, _REQUEST | _ACK | flags, body, sequence=number)
    batch += _message(_BATCH_END, _REQUEST, b"", sequence=len(messages) + 1, resource=_NFTABLES, family=0)
    netlink.settimeout(5.0)
    netlink.send(batch)
    for _ in messages:
        answer = netlink.recv(65536)
        (code,) = struct.unpack_from("=i", answer, 16)
        if code:
            raise OSError(-code, "the kernel refuses the rules")


def _message(kind: int, flags: int, body: bytes, *, sequence: int, resource: int = 0, family: int = _IPV4) -> bytes:
    payload = struct.pack("!BBH", family, 0, resource) + body
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload


def _chain(table: str) -> bytes:
    hook = _number(1, _HOOK_FORWARD) + _number(2, 0)
    return _text(1, table) + _text(3, _CHAIN) + _nested(4, hook) + _number(5, _ACCEPT) + _text(7, "filter")


def _rule(table: str, subnet: str, queue: int) -> bytes:
    """``ip daddr SUBNET ct state new``, then the target; subnets end at a byte."""
    network = ipaddress.IPv4Network(subnet)
    prefix = network.network_address.packed[: network.prefixlen // 8]
    expressions = [
        # the beginning of the address that the packet goes to
        ("payload", _number(1, 1) + _number(2, 1) + _number(3, 16) + _number(4, len(prefix))),
        ("cmp", _number(1, 1) + _number(2, 0) + _value(3, prefix)),
        ("ct", _number(1, 1) + _number(2, 0)),
        ("bitwise", _number(1, 1) + _number(2, 1) + _number(3, 4) + _value(4, _host(_STATE_NEW)) + _value(5, _host(0))),
        ("cmp", _number(1, 1) + _number(2, 1) + _value(3, _host(0))),
        # struct xt_NFQ_info of revision 0, as long as the kernel aligns it
        ("target", _text(1, "NFQUEUE") + _number(2, 0) + _attribute(3, struct.pack("=H6x", queue))),
    ]
    listed = b"".join(_nested(1, _text(1, name) + _nested(2, data)) for name, data in expressions)
    return _text(1, table) + _text(2, _CHAIN) + _nested(4, listed)


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def _nested(kind: int, data: bytes) -> bytes:
    return _attribute(kind | _NESTED, data)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _number(kind: int, number: int) -> bytes:
    return _attribute(kind, struct.pack("!I", number))


def _value(kind: int, data: bytes) -> bytes:
    return _nested(kind, _attribute(1, data))


def _host(number: int) -> bytes:
    return struct.pack("=I", number)


def is_listened_to(queue: int) -> bool:
    """Return whether a program takes the packets of ``queue``."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/net/netfilter/nfnetlink_queue").read_text().splitlines()
        return any(line.split()[0] == str(queue) for line in lines)
    return False
