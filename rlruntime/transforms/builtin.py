"""Registers every built-in transform by its name, on import."""

from __future__ import annotations

from rlruntime.transforms import (  # noqa: F401
    actions,
    control,
    episodes,
    frames,
    keys,
    module,
    normalization,
    observation,
    pixels,
    rewards,
)
