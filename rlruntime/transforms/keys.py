"""Which keys an observation has: joined, selected, renamed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import ConfigError
from rlruntime.registry import register
from rlruntime.spec.training.transforms import CatTensorsConfig, ExcludeConfig, RenameConfig, SelectConfig
from rlruntime.transforms.base import FIELD, ObservationTensor, Transform, no_inverse, space_leaves, torch_dtype
from rlruntime.transforms.leafwise import require_keys, select_leaves


@register("transform", "CatTensors")
class CatTensors(Transform):
    """Join several keys into one, along the last dimension, as float32."""

    Config = CatTensorsConfig

    def __init__(self, config: CatTensorsConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        if not isinstance(observation_space, gym.spaces.Dict):
            raise ConfigError(
                "CatTensors needs a Dict observation", field=FIELD, value=observation_space, remedy="remove it"
            )
        name, chosen = "CatTensors", sorted(config.keys) if not config.keys else list(config.keys)
        leaves = select_leaves(
            name, chosen, observation_space, _is_numeric_array, wants="a Box with dimensions", remedy="remove it"
        )
        self.keys = chosen or sorted(leaves)
        self._leaves: dict[str, Any] = {key: leaves[key] for key in self.keys}
        leading = {leaf.shape[:-1] for leaf in self._leaves.values()}
        if len(leading) > 1:
            raise ConfigError(
                "CatTensors can join only what differs in the last dimension alone",
                field=FIELD,
                value={key: tuple(leaf.shape) for key, leaf in self._leaves.items()},
                remedy="name keys of one shape, or flatten them before",
            )
        self._sizes = [int(leaf.shape[-1]) for leaf in self._leaves.values()]
        self._keep, self._out_key = config.keep, config.out_key
        others = [key for key in observation_space.spaces if config.keep or key not in self.keys]
        if config.out_key is None and others:
            raise ConfigError(
                f"CatTensors leaves {', '.join(others)} beside what it joins, which needs a name",
                field=FIELD,
                value=list(self.keys),
                remedy="give outKey, or join or exclude all keys",
            )
        if config.out_key in others:
            raise _taken(name, str(config.out_key))

    def observation_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        low = np.concatenate([leaf.low.astype(np.float32) for leaf in self._leaves.values()], -1)
        high = np.concatenate([leaf.high.astype(np.float32) for leaf in self._leaves.values()], -1)
        joined = gym.spaces.Box(low, high, low.shape, np.float32)
        if self._out_key is None:
            return joined
        return gym.spaces.Dict({**{key: space_leaves(space)[key] for key in self.passes(space)}, self._out_key: joined})

    def passes(self, space: gym.Space[Any]) -> dict[str, str]:
        return {key: key for key in space_leaves(space) if self._keep or key not in self.keys}

    def forward(self, observation: ObservationTensor) -> ObservationTensor:
        assert isinstance(observation, dict)
        joined = torch.cat([observation[key].to(torch.float32) for key in self.keys], -1)
        if self._out_key is None:
            return joined
        others = {key: leaf for key, leaf in observation.items() if self._keep or key not in self.keys}
        return {**others, self._out_key: joined}

    def inverse(self, observation: ObservationTensor) -> ObservationTensor:
        others: dict[str, Tensor] = {}
        if isinstance(observation, dict):
            others = {key: leaf for key, leaf in observation.items() if key != self._out_key}
            observation = observation[str(self._out_key)]
        parts = zip(self.keys, torch.split(observation, self._sizes, -1), strict=True)
        return {**others, **{key: part.to(torch_dtype(self._leaves[key])) for key, part in parts}}


class _NamesTransform(Transform):
    """One that changes which keys there are and what they are called; nothing is computed.

    Args:
        name_of: new name of each key that stays, in order.
    """

    def __init__(self, name_of: dict[str, str]) -> None:
        super().__init__()
        self._name_of = name_of

    def observation_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        leaves = space_leaves(space)
        return gym.spaces.Dict({new: leaves[old] for old, new in self._name_of.items()})

    def passes(self, space: gym.Space[Any]) -> dict[str, str]:
        return {new: old for old, new in self._name_of.items()}

    def forward(self, observation: ObservationTensor) -> ObservationTensor:
        assert isinstance(observation, dict)
        return {new: observation[old] for old, new in self._name_of.items()}


@register("transform", "Select")
class Select(_NamesTransform):
    """Keep only these keys."""

    Config = SelectConfig

    def __init__(self, config: SelectConfig, observation_space: gym.Space[Any]) -> None:
        require_keys("Select", config.keys, observation_space)
        super().__init__({key: key for key in space_leaves(observation_space) if key in config.keys})


@register("transform", "Exclude")
class Exclude(_NamesTransform):
    """Leave these keys out."""

    Config = ExcludeConfig

    def __init__(self, config: ExcludeConfig, observation_space: gym.Space[Any]) -> None:
        require_keys("Exclude", config.keys, observation_space)
        kept = {key: key for key in space_leaves(observation_space) if key not in config.keys}
        if not kept:
            raise ConfigError(
                "Exclude leaves no observation", field=FIELD, value=list(config.keys), remedy="keep at least one key"
            )
        super().__init__(kept)


@register("transform", "Rename")
class Rename(_NamesTransform):
    """Call keys by other names."""

    Config = RenameConfig

    def __init__(self, config: RenameConfig, observation_space: gym.Space[Any]) -> None:
        require_keys("Rename", list(config.names), observation_space)
        name_of = {key: config.names.get(key, key) for key in space_leaves(observation_space)}
        for name in name_of.values():
            if list(name_of.values()).count(name) > 1:
                raise _taken("Rename", name)
        super().__init__(name_of)

    def inverse(self, observation: ObservationTensor) -> ObservationTensor:
        if not isinstance(observation, dict):
            raise no_inverse(self)
        return {old: observation[new] for old, new in self._name_of.items()}


def _is_numeric_array(leaf: gym.Space[Any]) -> bool:
    return isinstance(leaf, gym.spaces.Box) and len(leaf.shape) > 0


def _taken(name: str, key: str) -> ConfigError:
    return ConfigError(
        f"{name} would give two parts of the observation one name", field=FIELD, value=key, remedy="choose another name"
    )
