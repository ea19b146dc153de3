"""What a publisher hears of its members in one exchange."""

from __future__ import annotations

import pytest

from rlruntime.weights.protocol import Status
from rlruntime.weights.schemes import wire
from rlruntime.weights.schemes.members import Member, Members


def member_of(members: Members) -> Member:
    (member,) = members
    return member


@pytest.mark.parametrize("count", [0, 1, 40], ids=["nothing", "a message", "more than one read takes"])
def test_a_member_that_spoke_and_left_is_heard_and_missed_in_one_exchange(count: int) -> None:
    members = Members(lambda member: None)
    theirs = members.invite("one", b"hello", ())
    theirs.recv(5)
    theirs.sendall(wire.frame(wire.JOINED, 0, ""))
    members.exchange(0.0)
    theirs.sendall(b"".join(wire.frame(wire.FAILED, version, "x" * 1_900) for version in range(count)))
    theirs.close()
    members.exchange(0.0)
    member = member_of(members)
    assert member.ended is not None
    assert member.ended.status == Status.LOST
    assert member.failure == ((count - 1, "x" * 1_900) if count else None)
    members.close()


def test_what_a_member_says_in_between_is_heard_by_the_next_exchange() -> None:
    members = Members(lambda member: None)
    with members.invite("one", b"hello", ()) as theirs:
        for version in (1, 2):
            theirs.sendall(wire.frame(wire.APPLIED, version, ""))
            members.exchange(0.0)
            assert member_of(members).applied == version
        members.close()
