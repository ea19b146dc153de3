"""Lines of a pod's log for people: the runtime's JSON becomes words, everything else stays as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlruntime.cli.numbers import number, short
from rlruntime.errors import one_line

FRAMES = "frames"
RATE = "time/frames_per_second"
REWARD = "train/episode_reward_mean"
EVALUATION = "evaluation/reward_mean"
"""Fields of the lines that pods write, as in `rlruntime.metrics.names`, which needs the packages of the runtime."""
_PHASE_PREFIX, _PHASE_SUFFIX, _NO_PHASE = "time/", "_s", "time/elapsed_s"
_SHOWN_PHASES = 4


def readable(line: str, total_frames: int | None = None) -> str:
    """Return a line of a log as words, where it is one of the runtime's JSON lines; else as it is.

    Args:
        total_frames: after which training ends, where that is known.
    """
    if not line.startswith("{"):
        return line
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(document, dict) or "job" not in document:
        return line
    match document.get("event"):
        case "message":
            return _words(document.get("message"))
        case "iteration":
            return _iteration(document, total_frames)
        case "end":
            return _end(document)
        case _:
            return line


def _iteration(record: Mapping[str, Any], total_frames: int | None) -> str:
    parts = [_frames(record, total_frames)]
    if (rate := _real(record, RATE)) is not None:
        parts.append(f"{short(rate)} frames/s")
    if (reward := _real(record, REWARD)) is not None:
        parts.append(f"reward {number(reward)}")
    if (evaluation := _real(record, EVALUATION)) is not None:
        parts.append(f"evaluation {number(evaluation)}")
    if split := _split(record):
        parts.append(split)
    return "  ".join(part for part in parts if part)


def _end(record: Mapping[str, Any]) -> str:
    words = [_words(record.get("message")), _frames(record, None)]
    said = "; ".join(part for part in words if part)
    return f"ended: {said}" if said else "ended"


def _frames(record: Mapping[str, Any], total_frames: int | None) -> str:
    frames = record.get(FRAMES)
    if not isinstance(frames, int):
        return ""
    if not total_frames:
        return f"{frames:,} frames"
    return f"{frames:,} / {total_frames:,} frames ({min(100, frames * 100 // total_frames)}%)"


def _split(record: Mapping[str, Any]) -> str:
    """Return the largest phases of this iteration, in their order, with their percents; nothing of one alone."""
    seconds: dict[str, float] = {}
    for key in record:
        phase = key.removeprefix(_PHASE_PREFIX).removesuffix(_PHASE_SUFFIX)
        timed = key.startswith(_PHASE_PREFIX) and key.endswith(_PHASE_SUFFIX) and key != _NO_PHASE
        value = _real(record, key)
        if timed and "/" not in phase and value is not None:  # a part of a phase is within it
            seconds[phase] = value
    whole_s = sum(seconds.values())
    if whole_s <= 0 or len(seconds) < 2:
        return ""
    largest = sorted(seconds, key=lambda phase: -seconds[phase])[:_SHOWN_PHASES]
    shares = {phase: 100 * seconds[phase] / whole_s for phase in seconds if phase in largest}
    return " · ".join(f"{phase} {share:.0f}%" for phase, share in shares.items() if share >= 0.5)


def _real(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _words(value: Any) -> str:
    """Return a text that JSON had made harmless, and so must be again: no line of it may pass for another pod's."""
    return one_line(value) if isinstance(value, str) else ""
