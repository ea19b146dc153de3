"""What the policy sees of an environment, and where each part of it lies in what the environment returns.

Nested Dict and Tuple observations become one flat Dict with dotted keys (``camera.rgb``, ``0.position``); where the
observation is a Dict it stays one, even with a single key. Floats become float32. An action mask comes from the
top-level key ``action_mask`` of a Dict observation, which the policy then does not see as an observation, or from
``info["action_mask"]``. Discrete observations keep their ``start``; actions of the policy count from 0 and the backend
adds it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError

MASK_KEY = "action_mask"
ID_FIELD = "spec.training.env.id"
KEYS_FIELD = "spec.training.env.observationKeys"

_LEAVES = (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary)
_SUPPORTED_ACTIONS = "Discrete, MultiDiscrete and Box of floats"


@dataclass(frozen=True)
class Leaf:
    """One array of the observation.

    Attributes:
        key: dotted name in the flat Dict; empty where the whole observation is one array.
        path: keys and indices that lead to it in what the environment returns.
        space: its space, floats as float32.
    """

    key: str
    path: tuple[str | int, ...]
    space: gym.Space[Any]


@dataclass(frozen=True)
class EnvLayout:
    """How an environment's own values map to what the policy sees.

    Attributes:
        spaces: what the policy sees.
        leaves: the arrays of the observation, in the order of ``spaces.observation``.
        action_start: what is added to the policy's action: 0 for Box.
        action_dtype: dtype of actions as the environment takes them.
    """

    spaces: EnvSpaces
    leaves: tuple[Leaf, ...]
    action_start: np.ndarray
    action_dtype: np.dtype[Any]


def describe_spaces(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *,
    observation_keys: Sequence[str] = (),
    first_info: Mapping[str, Any] | None = None,
    field: str = ID_FIELD,
) -> EnvLayout:
    """Return the layout of an environment with these spaces.

    Args:
        observation_space: space of one copy.
        action_space: space of one copy.
        observation_keys: top-level keys of a Dict observation that the policy sees; empty for all.
        first_info: the ``info`` of a reset, which shows whether the environment gives masks there.
        field: manifest field that errors name.

    Raises:
        ConfigError: a space that can't be learned from or acted in, or a key that isn't there.
    """
    start, dtype = _describe_action(action_space, field)
    mask_source, mask_size = _find_mask(observation_space, action_space, first_info or {}, field)
    selected = _select_keys(observation_space, observation_keys, hide_mask=mask_source == "observation")
    if isinstance(selected, gs.Dict | gs.Tuple):
        leaves = tuple(_walk(selected, (), field))
        observation: gym.Space[Any] = gs.Dict(_unique(leaves, field))
    else:
        leaves = (Leaf("", (), _leaf_space(selected, "observation", field)),)
        observation = leaves[0].space
    seen = EnvSpaces(observation, action_space, mask_source, mask_size)
    return EnvLayout(seen, leaves, start, dtype)


def leaf_value(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return what lies at ``path`` in a nested observation."""
    for step in path:
        value = value[step]
    return value


def number_of_actions(space: gym.Space[Any]) -> int:
    """Return the length of an action mask: `n` for Discrete, the sum over dimensions for MultiDiscrete, else 0."""
    if isinstance(space, gs.Discrete):
        return int(space.n)
    if isinstance(space, gs.MultiDiscrete):
        return int(np.sum(space.nvec))
    return 0


def flat_mask(mask: Any) -> np.ndarray:
    """Return a mask as one bool array ``[n]``; a tuple or list of masks, one per dimension, is joined."""
    if isinstance(mask, tuple | list) and mask and np.ndim(mask[0]) > 0:
        return np.concatenate([np.asarray(part).reshape(-1) for part in mask]).astype(np.bool_)
    return np.asarray(mask).reshape(-1).astype(np.bool_)


def _describe_action(space: gym.Space[Any], field: str) -> tuple[np.ndarray, np.dtype[Any]]:
    if isinstance(space, gs.Discrete | gs.MultiDiscrete):
        dtype = np.dtype(space.dtype)
        return np.asarray(space.start, dtype), dtype
    if isinstance(space, gs.Box) and np.dtype(space.dtype).kind == "f":
        return np.zeros((), space.dtype), np.dtype(space.dtype)
    raise ConfigError(
        f"the action space {_short(space)} is not supported",
        field=field,
        remedy=f"supported are {_SUPPORTED_ACTIONS}; put a wrapper around the environment that offers one of them",
    )


def _find_mask(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], first_info: Mapping[str, Any], field: str
) -> tuple[Literal["observation", "info"] | None, int]:
    size = number_of_actions(action_space)
    if size == 0:
        return None, 0
    if isinstance(observation_space, gs.Dict) and MASK_KEY in observation_space.spaces:
        found, where = gs.flatdim(observation_space[MASK_KEY]), "the observation"
        if isinstance(observation_space[MASK_KEY], gs.Discrete | gs.MultiDiscrete):
            found = int(np.prod(observation_space[MASK_KEY].shape or ()))
        source: Literal["observation", "info"] = "observation"
    elif MASK_KEY in first_info:
        found, where, source = flat_mask(first_info[MASK_KEY]).size, "info", "info"
    else:
        return None, 0
    if found != size:
        raise ConfigError(
            f"action_mask in {where} has {found} entries, but {_short(action_space)} has {size} actions",
            field=field,
            remedy="give one entry per action",
        )
    return source, size


def _select_keys(space: gym.Space[Any], keys: Sequence[str], *, hide_mask: bool) -> gym.Space[Any]:
    if not isinstance(space, gs.Dict):
        if keys:
            raise ConfigError(
                f"the observation {_short(space)} is not a Dict, so it has no keys",
                field=KEYS_FIELD,
                value=list(keys),
                remedy="remove observationKeys",
            )
        return space
    known = [key for key in space.spaces if not (hide_mask and key == MASK_KEY)]
    for key in keys:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"the keys are {', '.join(map(str, known))}"
            raise ConfigError("the observation has no such key", field=KEYS_FIELD, value=key, remedy=hint)
    chosen = [key for key in known if key in keys] if keys else known
    return gs.Dict({key: space[key] for key in chosen})


def _walk(space: gym.Space[Any], path: tuple[str | int, ...], field: str) -> Iterator[Leaf]:
    """Yield the leaves of a nested space in its own order."""
    if isinstance(space, gs.Dict):
        for key, inner in space.spaces.items():
            yield from _walk(inner, (*path, key), field)
    elif isinstance(space, gs.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _walk(inner, (*path, index), field)
    else:
        key = ".".join(map(str, path))
        yield Leaf(key, path, _leaf_space(space, f"observation key {key!r}", field))


def _unique(leaves: tuple[Leaf, ...], field: str) -> dict[str, gym.Space[Any]]:
    if not leaves:
        raise ConfigError("no observation is left for the policy", field=KEYS_FIELD, remedy="choose at least one key")
    by_key: dict[str, gym.Space[Any]] = {}
    for leaf in leaves:
        if leaf.key in by_key:
            raise ConfigError(
                f"two parts of the observation would both be called {leaf.key!r}",
                field=field,
                remedy="rename one; nested keys are joined with dots",
            )
        by_key[leaf.key] = leaf.space
    return by_key


def _leaf_space(space: gym.Space[Any], name: str, field: str) -> gym.Space[Any]:
    if not isinstance(space, _LEAVES) or np.dtype(space.dtype).kind not in "fiub" or 0 in (space.shape or ()):
        raise ConfigError(
            f"{name} is {_short(space)}, which a network can't take",
            field=field,
            remedy="choose keys with observationKeys, or put a wrapper around the environment that leaves it out",
        )
    if isinstance(space, gs.Box) and space.dtype != np.float32 and np.dtype(space.dtype).kind == "f":
        with np.errstate(over="ignore"):
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        return gs.Box(low, high, dtype=np.float32)
    return space


def _short(space: gym.Space[Any]) -> str:
    text = " ".join(repr(space).split())
    return text if len(text) <= 160 else f"{text[:157]}..."
