"""What the end of a pod means for its job."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Literal

from rljob_operator.planner.observed import ObservedPod
from rlruntime.errors import one_line, shorten
from rlruntime.spec.contract import TerminationMessage, exit_class

Outcome = Literal["Done", "Permanent", "Disruption", "Fault"]

MAX_WORDS = 1024
"""Most characters of a pod's own words that are quoted."""
CLOCKS_APART = timedelta(seconds=5)
"""How far a node's clock, which says when a container ended, may be behind the API server's."""

_OF_THE_NODE = frozenset(
    {
        "Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "Preempted", "NodeAffinity",
        "NodeName", "NodePorts", "PodFitsHostPorts", "TaintToleration", "UnexpectedAdmissionError",
        "TopologyAffinityError",
    }
)  # fmt: skip
"""Reasons with which a node ends a pod, or doesn't take it."""
_LOST_CONTAINER = "ContainerStatusUnknown"
"""Reason with which a node speaks of a container that it lost, and whose exit code it therefore makes up."""
_OUT_OF = "OutOf"
"""Beginning of the reasons with which a node has no room for a pod, such as `OutOfcpu`."""


def outcome(pod: ObservedPod, *, leads: bool = False) -> Outcome | None:
    """Return what the end of ``pod`` means, or None while it hasn't ended.

    Args:
        leads: whether this is the trainer that decides: where it is done, the job is, even if somebody deleted the pod.
    """
    end = pod.end
    if end is None:
        if pod.phase == "Failed":
            return "Disruption" if of_infrastructure(pod) else "Fault"
        if pod.phase == "Succeeded":
            return "Done" if leads or not of_infrastructure(pod) else "Disruption"
        return "Disruption" if pod.gone else None
    kind = exit_class(end.exit_code)
    if kind == "Permanent":
        return "Permanent"
    if kind == "Done":
        return "Done" if leads or not of_infrastructure(pod) else "Disruption"
    if of_infrastructure(pod) or end.reason == _LOST_CONTAINER:
        return "Disruption"
    if end.reason == "OOMKilled":
        return "Fault"
    taken = kind == "Stopped" and pod.gone and pod.deletion_at is None
    return "Disruption" if taken or kind == "Disruption" else "Fault"


def of_infrastructure(pod: ObservedPod) -> bool:
    """Return whether the pod was taken away rather than ended by itself: deleted, evicted, preempted, node lost."""
    if pod.disruption or pod.reason in _OF_THE_NODE or pod.reason.startswith(_OUT_OF):
        return True
    if pod.deletion_at is None:
        return pod.gone and pod.end is None and pod.phase not in ("Succeeded", "Failed")
    ended = pod.end.finished_at if pod.end else None
    if ended is None or pod.deletion_grace_seconds is None:
        return True
    asked = pod.deletion_at - timedelta(seconds=pod.deletion_grace_seconds)
    return ended >= asked - CLOCKS_APART


def reason_of(pod: ObservedPod) -> str:
    """Return in one word why the pod ended."""
    return _reason(pod, _last_words(pod))


def message_of(pod: ObservedPod) -> TerminationMessage | None:
    """Return the message that the main container left as the contract has it, or None.

    The text of its JSON may name half a character, which no API server stores, and what would control the terminal of
    whoever reads the job's status.
    """
    said = TerminationMessage.from_text(pod.end.message) if pod.end is not None and pod.end.message else None
    return replace(said, reason=_whole(said.reason), message=_whole(said.message)) if said is not None else None


def _whole(text: str) -> str:
    return one_line(text.encode(errors="replace").decode())


def words_of(pod: ObservedPod) -> str:
    """Return in words how the pod ended, with its own last words: one line."""
    own = _last_words(pod)
    reason = _reason(pod, own)
    if pod.end is not None:
        how = f"exit code {pod.end.exit_code}, {reason}"
    elif pod.phase == "Failed":
        how = f"failed before its main container ran, {reason}"
    else:
        how = "its pod was deleted" if pod.deletion_at or pod.disruption else "its pod vanished"
        how = f"{how}, {reason}"
    said = pod.message if of_infrastructure(pod) and pod.message else own.message if own else pod.message
    return f"{how}: {shorten(one_line(said), MAX_WORDS)}" if said else how


def _reason(pod: ObservedPod, own: TerminationMessage | None) -> str:
    if of_infrastructure(pod):
        return pod.disruption or pod.reason or ("Deleted" if pod.deletion_at else "PodLost")
    if pod.end is None:
        return pod.reason or "Failed"
    if pod.end.reason not in ("", "Error", "Completed"):
        return pod.end.reason
    return own.reason if own and own.reason else pod.end.reason or "Error"


def _last_words(pod: ObservedPod) -> TerminationMessage | None:
    if pod.end is None or not pod.end.message:
        return None
    return message_of(pod) or TerminationMessage("", _words_of_log(pod.end.message))


def _words_of_log(log: str) -> str:
    """Return the end of a log, which Kubernetes gives where a container left no message.

    Its JSON lines are left out: a trainer's are numbers for programs. The first line may be the end of one.
    """
    lines = [line for line in log.splitlines() if not line.startswith("{")]
    if lines and lines[0] == log.splitlines()[0] and lines[0].endswith("}"):
        del lines[0]
    return "\n".join(lines)[-MAX_WORDS:]
