"""Defaults that depend on another part of the training, written out."""

from __future__ import annotations

from rlruntime.spec.training.component import Component
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.spec.training.training import TrainingSpec


def with_defaults(training: TrainingSpec) -> TrainingSpec:
    """Return ``training`` with what it leaves to another part: the algorithm's section, its discount in `RewardNorm`.

    This is what a run uses and what its effective manifest holds.
    """
    if training.algorithm != "PPO":
        return training
    ppo = training.ppo or PPOConfig()
    transforms = tuple(_with_gamma(transform, ppo.gamma) for transform in training.env.transforms)
    env = training.env.model_copy(update={"transforms": transforms})
    return training.model_copy(update={"ppo": ppo, "env": env})


def _with_gamma(transform: Component, gamma: float) -> Component:
    if transform.type != "RewardNorm" or transform.config.get("gamma") is not None:
        return transform
    return transform.model_copy(update={"config": {**transform.config, "gamma": gamma}})
