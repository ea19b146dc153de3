"""Factors that fall from 1 to 0 over a run."""

from __future__ import annotations

import math

from rlruntime.spec.training.ppo import Schedule


def schedule_factor(schedule: Schedule, progress: float) -> float:
    """Return the factor at ``progress`` in [0, 1] of ``totalFrames``; beyond, as at the nearer end."""
    progress = min(max(progress, 0.0), 1.0)
    if schedule == "Linear":
        return 1.0 - progress
    if schedule == "Cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0
