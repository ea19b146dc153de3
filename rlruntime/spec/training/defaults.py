"""Defaults that depend on another part of the training, written out."""

from __future__ import annotations

from typing import Any

from rlruntime.spec.training.component import Component
from rlruntime.spec.training.storages import TRAJECTORY_KEY, ReplayBufferConfig
from rlruntime.spec.training.training import OFF_POLICY, SECTIONS, TrainingSpec

_LAYERS = {"hiddenSizes": [256, 256], "activation": "ReLU"}
"""Of an `MLP` off policy: Haarnoja et al. 2018, table 1."""


def with_defaults(training: TrainingSpec) -> TrainingSpec:
    """Return ``training`` with what it leaves to another part: the algorithm's section, network and replay buffer, its
    discount in `RewardNorm` and in rewards over several steps.

    This is what a run uses and what its effective manifest holds.
    """
    if training.algorithm == "Custom":
        return training
    section: Any = training.section or SECTIONS[training.algorithm]()
    off_policy = training.algorithm in OFF_POLICY
    transforms = tuple(_with_gamma(transform, section.gamma) for transform in training.env.transforms)
    update: dict[str, Any] = {
        training.algorithm.lower(): section,
        "env": training.env.model_copy(update={"transforms": transforms}),
        "network": _with_layers(training.network) if off_policy else training.network,
    }
    if off_policy:
        replay = training.replay or ReplayBufferConfig()
        if replay.n_step is not None:
            told = {"gamma": section.gamma, "trajectory_key": TRAJECTORY_KEY}
            unset = {name: value for name, value in told.items() if getattr(replay.n_step, name) is None}
            replay = replay.model_copy(update={"n_step": replay.n_step.model_copy(update=unset)})
        if replay.hindsight is not None and replay.hindsight.trajectory_key is None:
            hindsight = replay.hindsight.model_copy(update={"trajectory_key": TRAJECTORY_KEY})
            replay = replay.model_copy(update={"hindsight": hindsight})
        update["replay"] = replay
    return training.model_copy(update=update)


def _with_layers(network: Component) -> Component:
    return network.model_copy(update={"config": {**_LAYERS, **network.config}}) if network.type == "MLP" else network


def _with_gamma(transform: Component, gamma: float) -> Component:
    if transform.type != "RewardNorm" or transform.config.get("gamma") is not None:
        return transform
    return transform.model_copy(update={"config": {**transform.config, "gamma": gamma}})
