"""Settings of the built-in advantages."""

from __future__ import annotations

from rlruntime.spec.base import Fraction, PositiveFloat, SpecModel


class GAEConfig(SpecModel):
    """`type: GAE`: generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438)."""

    gamma: Fraction | None = None
    """Discount per step. Unset: that of `spec.training.ppo`."""
    gae_lambda: Fraction | None = None
    """Lambda of the estimator. Unset: that of `spec.training.ppo`."""


class VTraceConfig(SpecModel):
    """`type: VTrace`: V-trace (Espeholt et al. 2018, arXiv:1802.01561), for data that older weights collected."""

    gamma: Fraction | None = None
    """Discount per step. Unset: that of `spec.training.ppo`."""
    trace_lambda: Fraction = 1.0
    """Lambda of the traces; at 1 they are as in the paper."""
    rho_bar: PositiveFloat = 1.0
    """Largest importance weight of a step's own temporal difference: what values converge to."""
    c_bar: PositiveFloat = 1.0
    """Largest importance weight that later differences are carried back with: how fast they converge."""
