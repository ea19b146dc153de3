"""Settings of the built-in transforms."""

from __future__ import annotations

from rlruntime.spec.base import Fraction, PositiveFloat, SpecModel


class ObservationNormConfig(SpecModel):
    """`type: ObservationNorm`: observations brought to mean 0 and standard deviation 1 by running moments."""

    clip: PositiveFloat = 10.0
    """Largest magnitude of a normalised number, in standard deviations."""
    epsilon: PositiveFloat = 1e-8
    """Added to the variance before the division."""


class RewardNormConfig(SpecModel):
    """`type: RewardNorm`: rewards divided by the running standard deviation of the discounted return."""

    clip: PositiveFloat = 10.0
    """Largest magnitude of a normalised reward, in standard deviations."""
    gamma: Fraction | None = None
    """Discount per step of that return. Unset: the algorithm's own."""
    epsilon: PositiveFloat = 1e-8
    """Added to the variance before the division."""
