"""Observations as tensors: one tensor, or a flat dict of tensors with dotted keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

ObservationTensor = Tensor | dict[str, Tensor]


def map_observation(function: Callable[[Tensor], Tensor], observation: ObservationTensor) -> ObservationTensor:
    """Apply ``function`` to the tensor, or to each tensor of the dict."""
    if isinstance(observation, dict):
        return {key: function(leaf) for key, leaf in observation.items()}
    return function(observation)


def observation_leaves(observation: ObservationTensor) -> list[Tensor]:
    """Return the tensors of an observation in key order."""
    return list(observation.values()) if isinstance(observation, dict) else [observation]


def space_leaves(space: gym.Space[Any]) -> dict[str, gym.Space[Any]]:
    """Return the leaf spaces by key; a space that is no Dict has the one key ``""``."""
    return dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {"": space}


def leading_size(observation: ObservationTensor) -> int:
    """Return the first dimension's size."""
    return observation_leaves(observation)[0].shape[0]


def flatten_time(observation: ObservationTensor) -> ObservationTensor:
    """Merge the two leading dimensions ``[T, B, ...]`` into ``[T * B, ...]``, without a copy where memory allows."""
    return map_observation(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observation)


def index_observation(observation: ObservationTensor, rows: Tensor) -> ObservationTensor:
    """Return the rows ``[len(rows), ...]``."""
    return map_observation(lambda leaf: leaf.index_select(0, rows), observation)


def narrow_observation(observation: ObservationTensor, start: int, length: int) -> ObservationTensor:
    """Return a view of ``length`` rows from ``start``."""
    return map_observation(lambda leaf: leaf.narrow(0, start, length), observation)


def is_image(space: gym.Space[Any]) -> bool:
    """Whether a leaf space is an image: a Box with three dimensions."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 3


def scales_as_bytes(space: gym.Space[Any]) -> bool:
    """Whether the values of a leaf are bytes of 0 to 255 that a network should see as 0 to 1."""
    return isinstance(space, gym.spaces.Box) and space.dtype == "uint8" and int(space.high.max()) == 255


def one_hot(index: Tensor, size: int) -> Tensor:
    """Return ``[..., size]`` float32; unlike `torch.nn.functional.one_hot` it traces and exports everywhere."""
    return (index.unsqueeze(-1) == torch.arange(size, device=index.device)).to(torch.float32)
