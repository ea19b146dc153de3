"""`TransformedEnv`: a vector environment behind transforms, which is a vector environment itself.

One step: the policy's actions go through the transforms from the last to the first, the inner environment writes what
comes of them, and that goes through the transforms from the first to the last. Parts of the observation that a
transform leaves as they are lie in the caller's memory from the start; what one computes for the next lies in memory
that is allocated once. Rewards, flags and masks are written by the environment into the caller's memory and changed
there. Autoreset is that of the protocol: the row of an episode's end holds its true final observation, transformed as
any other, and the next row, which isn't valid, is the first of a new episode: what transforms remember of that copy
begins anew with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlruntime.envs.protocol import EnvSpaces, Observation, StepSlot, VectorEnv, allocate_observation
from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.transforms.base import FIELD, Copies, Leaves, Transform, naming, require_seat

SNAPSHOT_FORMAT = 1
Build = Callable[[EnvSpaces], Transform]


class _Stage:
    """The memory between a transform and its neighbours.

    Attributes:
        seen: the observation before it, by key; the memory of keys in ``passes`` is that of the stage after it.
        written: what it writes, by key.
        passes: pairs of a key after it and the key before it whose memory is the same.
        written_keys: keys of ``written``.
    """

    def __init__(self, transform: Transform, before: EnvSpaces, after: EnvSpaces, num_envs: int) -> None:
        through = transform.passes(before.observation)
        self.passes = list(through.items())
        self.seen: Leaves = _leaves(allocate_observation(before.observation, (num_envs,)))
        self.written_keys = [
            key for key in _leaves(allocate_observation(after.observation, (0,))) if key not in through
        ]
        self.written: Leaves = {}


class TransformedEnv:
    """``env`` behind ``transforms``, in order; see `VectorEnv` for the protocol.

    Args:
        env: is stepped, and closed, by this one.
        transforms: those that can work in an environment, or functions that build them for the spaces before them. What
            one remembers is its own, so each has one place.
        wrapped: whether each copy has the wrappers that some of them need.
        copies: which ones these are of all that a job has; by default all.

    Attributes:
        env: the inner environment.
        transforms: in order.

    Raises:
        ConfigError: one can't work in an environment, or not with these spaces.
    """

    def __init__(
        self,
        env: VectorEnv,
        transforms: Sequence[Transform | Build],
        *,
        wrapped: bool = False,
        copies: Copies | None = None,
    ) -> None:
        self.env = env
        self.num_envs, self.backend = env.num_envs, env.backend
        copies, spaces = copies or Copies(env.num_envs, 0, env.num_envs), env.spaces
        self._stages: list[_Stage] = []
        self._work: list[tuple[Transform, _Stage | None]] = []
        built: list[Transform] = []
        for part in transforms:
            transform = part if isinstance(part, Transform) else part(spaces)
            built.append(transform)
            require_seat(transform, "environment")
            if transform.needs_wrapper and not wrapped:
                raise _needs_wrapper(transform)
            with naming(getattr(transform, "manifest_field", FIELD)):
                before, spaces = spaces, transform.bind(spaces, copies)
            stage = _Stage(transform, before, spaces, env.num_envs) if transform.rewrites else None
            if stage is not None:
                self._stages.append(stage)
            if stage is not None or _changes_rows(transform):
                self._work.append((transform, stage))
        self.spaces, self.transforms = spaces, tuple(built)
        self._pointing = list(reversed(self._stages))
        self._before_step = [part.before_step for part in reversed(self.transforms) if _changes_actions(part)]
        self._begins = np.zeros(env.num_envs, np.bool_)
        self._has_inner_mask = env.spaces.action_mask is not None
        scratch = np.zeros(0, np.bool_)
        self._inner = StepSlot(scratch, np.zeros(0, np.float32), scratch, scratch, scratch)
        self._row = replace(self._inner)

    def reset(self, seeds: Sequence[int], out: StepSlot) -> None:
        """Reset copy `i` with ``seeds[i]``; see `VectorEnv.reset`."""
        self.env.reset(seeds, self._aim(out))
        self._follow(out)

    def step(self, actions: np.ndarray, out: StepSlot) -> None:
        """Step every copy with ``actions [B, ...]`` and write the outcome; see `VectorEnv.step`."""
        for change in self._before_step:
            actions = change(actions)
        self.env.step(actions, self._aim(out))
        self._follow(out)

    def snapshot(self) -> list[bytes] | None:
        """Return the state of each copy with what transforms remember of it; None where the environment has none."""
        blobs = self.env.snapshot()
        if blobs is None:
            return None
        parts = [(f"{number}.{name}", value) for number, name, value in self._memory()]
        fields = [[name, value.dtype.str, list(value.shape[1:])] for name, value in parts]
        head = json.dumps({"format": SNAPSHOT_FORMAT, "fields": fields}).encode()
        prefix = len(head).to_bytes(4, "little") + head
        return [
            prefix + b"".join(np.ascontiguousarray(value[copy]).tobytes() for _, value in parts) + blob
            for copy, blob in enumerate(blobs)
        ]

    def restore(self, snapshots: Sequence[bytes]) -> None:
        """Continue from what ``snapshot`` returned.

        Raises:
            CheckpointError: the snapshots are of another number of copies, of another environment or of other
                transforms; then nothing has changed.
        """
        if len(snapshots) != self.num_envs:
            raise CheckpointError(
                f"the snapshot holds {len(snapshots)} environment copies, the job has {self.num_envs}"
            )
        rows = [_read(blob) for blob in snapshots]
        memory: dict[int, dict[str, np.ndarray]] = {number: {} for number in range(len(self.transforms))}
        for name in rows[0][0]:
            place, _, own_name = name.partition(".")
            memory.setdefault(int(place), {})[own_name] = np.stack([fields[name] for fields, _ in rows])
        if set(memory) != set(range(len(self.transforms))):
            raise _other_transforms()
        for number, transform in enumerate(self.transforms):
            own = {name: (value.shape, value.dtype) for name, value in transform.memory().items()}
            if own != {name: (value.shape, value.dtype) for name, value in memory[number].items()}:
                raise _other_transforms()
        self.env.restore([inner for _, inner in rows])
        for number, transform in enumerate(self.transforms):
            transform.load_memory(memory[number])

    def close(self) -> None:
        """Close the environment. May be called twice; never raises."""
        self.env.close()

    def _aim(self, out: StepSlot) -> StepSlot:
        """Let the inner slot, and all between it and ``out``, share the caller's memory where they can."""
        after = out.observation if isinstance(out.observation, dict) else {"": out.observation}
        for stage in self._pointing:
            seen, written = stage.seen, stage.written
            for key in stage.written_keys:
                written[key] = after[key]
            for outer, inner_key in stage.passes:
                seen[inner_key] = after[outer]
            after = seen
        inner, row = self._inner, self._row
        inner.observation = after.get("", after)
        inner.reward = row.reward = out.reward
        inner.terminated = row.terminated = out.terminated
        inner.truncated = row.truncated = out.truncated
        inner.valid = row.valid = out.valid
        inner.action_mask = out.action_mask if self._has_inner_mask else None
        row.action_mask = out.action_mask
        return inner

    def _follow(self, out: StepSlot) -> None:
        begins: np.ndarray | None = np.logical_not(out.valid, out=self._begins)
        if 1 not in self._begins.tobytes():  # ten times as fast as any()
            begins = None
        row = self._row
        for transform, stage in self._work:
            if stage is None:
                transform.after_step({}, {}, row, begins)
            else:
                transform.after_step(stage.seen, stage.written, row, begins)

    def _memory(self) -> list[tuple[int, str, np.ndarray]]:
        return [
            (number, name, value)
            for number, transform in enumerate(self.transforms)
            for name, value in transform.memory().items()
        ]


def _changes_actions(transform: Transform) -> bool:
    return type(transform).before_step is not Transform.before_step


def _changes_rows(transform: Transform) -> bool:
    kind = type(transform)
    return kind.after_step is not Transform.after_step or kind.map_reward is not Transform.map_reward


def _read(blob: bytes) -> tuple[dict[str, np.ndarray], bytes]:
    """Return what one copy's snapshot holds of the transforms, by name, and the environment's own."""
    try:
        size = int.from_bytes(blob[:4], "little")
        head = json.loads(blob[4 : 4 + size])
        if head["format"] != SNAPSHOT_FORMAT:
            raise CheckpointError("the snapshot of transforms has another format", value=head["format"])
        fields, offset = {}, 4 + size
        for name, dtype_name, shape in head["fields"]:
            dtype, count = np.dtype(dtype_name), int(np.prod(shape))
            fields[name] = np.frombuffer(blob, dtype, count, offset).reshape(shape)
            offset += count * dtype.itemsize
        return fields, blob[offset:]
    except (ValueError, KeyError, TypeError) as error:
        raise _other_transforms() from error


def _leaves(observation: Observation) -> Leaves:
    return observation if isinstance(observation, dict) else {"": observation}


def _other_transforms() -> CheckpointError:
    return CheckpointError(
        "the environment snapshot is of other transforms",
        field=FIELD,
        remedy="resume with the transforms that it was made with",
    )


def _needs_wrapper(transform: Any) -> ConfigError:
    name = type(transform).__name__
    return ConfigError(
        f"{name} needs a wrapper within each copy, which a finished vector environment can't be given",
        field=FIELD,
        value=name,
        remedy="put it in the transforms of an EnvConfig, and use make_transformed_env",
    )
