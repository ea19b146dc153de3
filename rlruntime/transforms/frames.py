"""Several steps of an episode in one observation: frames, their largest values, actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rlruntime.envs.protocol import EnvSpaces, StepSlot, leaf_dtype, leaf_shape
from rlruntime.errors import ConfigError
from rlruntime.registry import register
from rlruntime.spec.training.transforms import ActionHistoryConfig, CatFramesConfig, TimeMaxPoolConfig
from rlruntime.transforms.base import FIELD, Copies, Leaves, space_leaves
from rlruntime.transforms.leafwise import select_leaves
from rlruntime.transforms.remembering import AddedKey, RememberingTransform


class _Window(RememberingTransform):
    """The last ``frames`` observations of each copy, in a ring of which nothing moves but one frame a step.

    All copies write the same place of the ring; where an episode begins, all places of that copy are filled.
    """

    wants = "a Box with dimensions"

    def __init__(self, config: Any, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.config = config
        self.frames = int(config.frames)
        self.leaves: dict[str, Any] = select_leaves(
            type(self).__name__, config.keys, observation_space, self.accepts, wants=self.wants, remedy="remove it"
        )

    def accepts(self, leaf: gym.Space[Any]) -> bool:
        """Whether it can take this leaf."""
        return isinstance(leaf, gym.spaces.Box) and len(leaf.shape) > 0

    def bind(self, spaces: EnvSpaces, copies: Copies) -> EnvSpaces:
        self._head = 0  # the place of the newest frame
        self._names = {key: f"frames_{number}" for number, key in enumerate(self.leaves)}
        for key, leaf in self.leaves.items():
            shape = (copies.num, self.frames, *leaf_shape(leaf))
            self.remember(self._names[key], np.zeros(shape, leaf_dtype(leaf)))
        return super().bind(spaces, copies)

    def passes(self, space: gym.Space[Any]) -> dict[str, str]:
        return {key: key for key in space_leaves(space) if key not in self.leaves}

    def after_step(self, seen: Leaves, out: Leaves, row: StepSlot, begins: np.ndarray | None) -> None:
        self._head = head = (self._head + 1) % self.frames
        for key, name in self._names.items():
            frame, ring = seen[key], self.held[name]
            if begins is not None:
                self.fill(ring, frame, begins)
            ring[:, head] = frame
            self.emit(key, ring, head, out[key])

    def fill(self, ring: np.ndarray, frame: np.ndarray, begins: np.ndarray) -> None:
        """Set what stands for the frames before the first one of some copies."""
        ring[begins] = frame[begins][:, None]

    def emit(self, key: str, ring: np.ndarray, head: int, out: np.ndarray) -> None:
        """Write the observation; the newest frame is ``ring[:, head]``, the oldest that after it."""
        raise NotImplementedError

    def memory(self) -> Mapping[str, np.ndarray]:
        """Return the frames from the oldest to the newest, so that a snapshot doesn't depend on the ring's place."""
        return {name: np.roll(ring, self.frames - 1 - self._head, axis=1) for name, ring in self.held.items()}

    def load_memory(self, memory: Mapping[str, np.ndarray]) -> None:
        super().load_memory(memory)
        self._head = self.frames - 1

    def get_extra_state(self) -> dict[str, int]:
        """Return what `state_dict` holds beside the buffers."""
        return {"head": getattr(self, "_head", 0)}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Take it over."""
        self._head = int(state["head"])


@register("transform", "CatFrames")
class CatFrames(_Window):
    """Join the last observations of an episode along one dimension, the newest last (Mnih et al. 2015)."""

    Config = CatFramesConfig
    wants = "a Box with the dimension that dim points to"

    def accepts(self, leaf: gym.Space[Any]) -> bool:
        num_dims = len(leaf.shape or ())
        return super().accepts(leaf) and -num_dims <= self.config.dim < num_dims

    def observation_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        joined = {key: self._joined(leaf) for key, leaf in self.leaves.items()}
        if not isinstance(space, gym.spaces.Dict):
            return joined[""]
        return gym.spaces.Dict({key: joined.get(key, leaf) for key, leaf in space.spaces.items()})

    def _joined(self, leaf: gym.spaces.Box) -> gym.spaces.Box:
        low, high = (np.concatenate([bound] * self.frames, self.config.dim) for bound in (leaf.low, leaf.high))
        if self.config.padding == "Zeros":
            low, high = np.minimum(low, 0).astype(low.dtype), np.maximum(high, 0).astype(high.dtype)
        return gym.spaces.Box(low, high, low.shape, np.dtype(leaf.dtype).type)

    def fill(self, ring: np.ndarray, frame: np.ndarray, begins: np.ndarray) -> None:
        if self.config.padding == "Zeros":
            ring[begins] = 0
        else:
            super().fill(ring, frame, begins)

    def bind(self, spaces: EnvSpaces, copies: Copies) -> EnvSpaces:
        self._parts = {key: self._parts_of(leaf) for key, leaf in self.leaves.items()}
        return super().bind(spaces, copies)

    def _parts_of(self, leaf: gym.spaces.Box) -> list[tuple[Any, ...]]:
        """Return where each frame lies in ``[B, ...]`` of the outcome, the newest first."""
        axis = self.config.dim % len(leaf.shape)
        size, before = leaf.shape[axis], (slice(None),) * (axis + 1)
        return [(*before, slice(place * size, (place + 1) * size)) for place in reversed(range(self.frames))]

    def emit(self, key: str, ring: np.ndarray, head: int, out: np.ndarray) -> None:
        for age, part in enumerate(self._parts[key]):
            out[part] = ring[:, head - age]


@register("transform", "TimeMaxPool")
class TimeMaxPool(_Window):
    """Return the largest of the last observations of an episode, element by element."""

    Config = TimeMaxPoolConfig

    def emit(self, key: str, ring: np.ndarray, head: int, out: np.ndarray) -> None:
        np.max(ring, axis=1, out=out)


@register("transform", "ActionHistory")
class ActionHistory(AddedKey):
    """Show the last actions of an episode, as the policy chose them, the newest last.

    A Box action adds its numbers, categories their index, and -1 where there was none yet.
    """

    Config = ActionHistoryConfig

    def __init__(self, config: ActionHistoryConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config.key)
        self.length = config.length

    def start(self, spaces: EnvSpaces, copies: Copies) -> gym.Space[Any]:
        action = spaces.action
        self._size = size = int(np.prod(action.shape or ()))
        if isinstance(action, gym.spaces.Box):
            dtype: np.dtype[Any] = np.dtype(np.float32)
            self._nothing = 0.0
            low = np.minimum(np.tile(action.low.reshape(-1), self.length), 0)
            high = np.maximum(np.tile(action.high.reshape(-1), self.length), 0)
        elif isinstance(action, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            dtype = np.dtype(np.int64)
            self._nothing = -1.0
            sizes = action.n if isinstance(action, gym.spaces.Discrete) else action.nvec
            high = np.tile(np.reshape(sizes, -1) - 1, self.length)
            low = np.full_like(high, -1)
        else:
            raise ConfigError("ActionHistory can't show these actions", field=FIELD, value=action, remedy="remove it")
        self.remember("history", np.full((copies.num, self.length * size), self._nothing, dtype))
        self._last = np.full((copies.num, size), self._nothing, dtype)
        return gym.spaces.Box(low.astype(dtype), high.astype(dtype), low.shape, dtype.type)

    def before_step(self, actions: np.ndarray) -> np.ndarray:
        self._last[...] = actions.reshape(len(actions), -1)
        return actions

    def follow(self, row: StepSlot, begins: np.ndarray | None, out: np.ndarray) -> None:
        history, size = self.held["history"], self._size
        history[:, :-size] = history[:, size:]
        history[:, -size:] = self._last
        if begins is not None:
            history[begins] = self._nothing
        out[...] = history
