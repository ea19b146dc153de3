"""Transforms that change some leaves of an observation, each by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import ConfigError, shorten
from rlruntime.registry import nearest_remedy
from rlruntime.transforms.base import FIELD, ObservationTensor, Transform, no_inverse, space_leaves


class LeafTransform(Transform):
    """Base of these: a subclass says which leaves it can take, what becomes of their space, and of their rows.

    Args:
        config: whose ``keys`` of a Dict observation change; none for all that `accepts` says it can take.
        observation_space: of the observation.

    Attributes:
        leaves: space of each leaf that changes, by key.

    Raises:
        ConfigError: a key that isn't there or can't be taken, or no leaf that can.
    """

    wants = "a Box"
    remedy = "remove the transform"

    def __init__(self, config: Any, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.config = config
        self.settle()
        name, keys = type(self).__name__, config.keys
        self.leaves = select_leaves(name, keys, observation_space, self.accepts, wants=self.wants, remedy=self.remedy)
        self._outcomes = {key: self.leaf_space(leaf) for key, leaf in self.leaves.items()}

    def settle(self) -> None:
        """Take in the config, before any leaf is looked at."""

    def accepts(self, leaf: gym.Space[Any]) -> bool:
        """Whether it can take this leaf; with `wants`, the words for it."""
        return isinstance(leaf, gym.spaces.Box)

    def leaf_space(self, leaf: gym.Space[Any]) -> gym.Space[Any]:
        """Return the space that the rows of a leaf are mapped to.

        Raises:
            ConfigError: its settings don't fit the leaf.
        """
        raise NotImplementedError

    def map_leaf(self, key: str, rows: Tensor) -> Tensor:
        """Map the rows ``[N, ...]`` of a leaf."""
        raise NotImplementedError

    def unmap_leaf(self, key: str, rows: Tensor) -> Tensor:
        """Map them back."""
        raise no_inverse(self)

    def observation_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        if not isinstance(space, gym.spaces.Dict):
            return self._outcomes[""]
        return gym.spaces.Dict({key: self._outcomes.get(key, leaf) for key, leaf in space.spaces.items()})

    def passes(self, space: gym.Space[Any]) -> dict[str, str]:
        return {key: key for key in space_leaves(space) if key not in self.leaves}

    def forward(self, observation: ObservationTensor) -> ObservationTensor:
        if not isinstance(observation, dict):
            return self.map_leaf("", observation)
        return {**observation, **{key: self.map_leaf(key, observation[key]) for key in self.leaves}}

    def inverse(self, observation: ObservationTensor) -> ObservationTensor:
        if not isinstance(observation, dict):
            return self.unmap_leaf("", observation)
        return {**observation, **{key: self.unmap_leaf(key, observation[key]) for key in self.leaves}}


def select_leaves(
    name: str,
    keys: Sequence[str],
    space: gym.Space[Any],
    accepts: Callable[[gym.Space[Any]], bool],
    *,
    wants: str,
    remedy: str,
) -> dict[str, gym.Space[Any]]:
    """Return the leaves with these keys, or all that are accepted where ``keys`` is empty.

    Args:
        name: of the transform, for errors.
        wants: words for what it accepts.
        remedy: what to do where there is no such leaf.

    Raises:
        ConfigError: see `LeafTransform`.
    """
    leaves = space_leaves(space)
    require_keys(name, keys, space)
    for key in keys:
        if not accepts(leaves[key]):
            raise ConfigError(
                f"{name} needs {wants}, and the observation {key!r} is {shorten(repr(leaves[key]))}",
                field=FIELD,
                value=key,
                remedy="leave this key out",
            )
    chosen = {key: leaf for key, leaf in leaves.items() if (key in keys if keys else accepts(leaf))}
    if not chosen:
        problem = f"{name} needs {wants}, and no part of the observation is one"
        raise ConfigError(problem, field=FIELD, value=space, remedy=remedy)
    return chosen


def require_keys(name: str, keys: Sequence[str], space: gym.Space[Any]) -> None:
    """Raise a ConfigError where an observation lacks one of ``keys``."""
    if not keys:
        return
    if not isinstance(space, gym.spaces.Dict):
        raise ConfigError(
            f"{name} was given keys, but the observation {shorten(repr(space))} is not a Dict",
            field=FIELD,
            value=list(keys),
            remedy="leave the keys out",
        )
    for key in keys:
        if key not in space.spaces:
            known = list(space.spaces)
            raise ConfigError(
                f"{name} finds no such key in the observation",
                field=FIELD,
                value=key,
                remedy=nearest_remedy(key, known) or f"the keys are {', '.join(known)}",
            )


def mapped_box(box: gym.spaces.Box, function: Callable[[Tensor], Tensor]) -> gym.spaces.Box:
    """Return the Box that a function of rows maps ``box`` to, where it moves or grows numbers but turns none around.

    Its bounds are those of the bounds, and its shape and dtype those of what comes out.
    """
    bounds = torch.from_numpy(np.stack([box.low, box.high]))
    low, high = function(bounds).numpy()
    return gym.spaces.Box(low, high, low.shape, low.dtype.type)
