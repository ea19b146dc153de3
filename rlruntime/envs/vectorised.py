"""`VectorEntryPoint`: an environment that steps all its copies itself, such as ``CartPoleVectorEnv``.

How its autoreset becomes the protocol's, in which the step after an episode's end resets:

- NEXT_STEP is the same and passes through; ``valid`` is False where the step before ended an episode.
- SAME_STEP resets within the step that ends the episode. The final observation comes from ``info["final_obs"]``. A
  batched environment can't leave one copy out of the next step, so that copy is stepped with the others, the outcome is
  dropped, and it is reset again by ``options={"reset_mask": ...}``: what is delivered is a true first observation, at
  the price of a second reset.
- DISABLED: copies that ended are reset by the mask, stepped with the others, and reset once more, for the same reason.

An environment whose constructor takes ``autoreset_mode`` is asked for NEXT_STEP, which costs nothing. One that ignores
``reset_mask`` and resets in the same step can't be adapted exactly, and is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from rlruntime.envs import build, checks, faults
from rlruntime.envs.loop import allows_something
from rlruntime.envs.protocol import StepSlot
from rlruntime.envs.quick_spaces import quicken
from rlruntime.envs.snapshots import SnapshotProof, capture, prove_snapshot, restore
from rlruntime.envs.spaces import MASK_KEY, EnvLayout, describe_spaces, leaf_value
from rlruntime.errors import CheckpointError, ConfigError, EnvironmentFault
from rlruntime.spec.training.env import EnvConfig

BACKEND_FIELD = "spec.training.env.backend"
_OTHER_BACKEND = "use the backend Loop or ProcessPool"


class VectorEntryPoint:
    """A vector environment of Gymnasium behind the protocol; see `VectorEnv`.

    ``config.id`` must be registered with a ``vector_entry_point``; ``config.factory`` is called once, with ``num_envs``
    and ``kwargs``, and returns a `gymnasium.vector.VectorEnv`. The first blob of a snapshot
    holds all copies.

    Args:
        config: the environment.
        make: builds the vector environment; default as above.

    Raises:
        ConfigError: there is no such entry point, wrappers are asked for, or its autoreset can't be adapted.
    """

    backend = "VectorEntryPoint"

    def __init__(self, config: EnvConfig, make: Callable[[], Any] | None = None) -> None:
        self.num_envs = config.num_envs
        if config.wrappers:
            raise ConfigError(
                "wrappers of single environments can't be put around a vector environment",
                field=build.WRAPPERS_FIELD,
                remedy=f"remove them, or {_OTHER_BACKEND}",
            )
        self._make: Callable[[], Any] = partial(_make, config) if make is None else make
        self._env = self._make()
        try:
            self._layout = self._describe(config)
            self.spaces = self._layout.spaces
            quicken(self._env)
            self._mode = _autoreset_mode(self._env, self._make, config, self._layout)
        except BaseException:
            self.close()
            raise
        self._pending = np.zeros(self.num_envs, np.bool_)
        self._any_pending = False
        self._total_steps = 0
        self._episode_start = np.zeros(self.num_envs, np.int64)
        self._single_array = not isinstance(self.spaces.observation, gs.Dict)
        self._has_start = bool(np.any(self._layout.action_start))
        floats = tuple(leaf.key for leaf in self._layout.leaves if np.dtype(leaf.space.dtype).kind == "f")
        self._finite = faults.FiniteCheck(floats)
        self._proof: SnapshotProof | None = None

    def reset(self, seeds: Sequence[int], out: StepSlot) -> None:
        """Reset all copies; an environment that takes one seed for all of them gets ``seeds[0]``.

        Raises:
            EnvironmentFault: it raised, or a first observation has NaN or infinity.
        """
        if len(seeds) != self.num_envs:
            raise ValueError(f"{self.num_envs} copies need as many seeds, got {len(seeds)}")
        try:
            observation, info = self._seeded_reset([int(seed) for seed in seeds])
        except Exception as error:
            raise faults.raised_in_batched_reset(error) from error
        self._total_steps = 0
        self._episode_start[:] = 0
        self._pending[:] = False
        self._any_pending = False
        self._write_observation(out, observation)
        out.reward.fill(0.0)
        out.terminated.fill(False)
        out.truncated.fill(False)
        out.valid.fill(False)
        if self.spaces.action_mask:
            self._write_masks(out, observation, info)
        self._check_finite(out)

    def step(self, actions: np.ndarray, out: StepSlot) -> None:
        """Step all copies with ``actions [B, ...]`` and write the outcome; see `VectorEnv.step`."""
        env_actions = self._to_env_actions(actions)
        self._total_steps += 1
        try:
            if self._any_pending and self._mode is AutoresetMode.DISABLED:
                self._env.reset(options={"reset_mask": self._pending.copy()})
            observation, reward, terminated, truncated, info = self._env.step(env_actions)
            if self._any_pending and self._mode is not AutoresetMode.NEXT_STEP:
                # Rows of other copies are kept: a masked reset repeats or leaves out what it did not touch.
                kept = observation
                observation, reset_info = self._env.reset(options={"reset_mask": self._pending.copy()})
                self._write_observation(out, kept)
                self._write_rows(out, observation, self._pending)
                if self.spaces.action_mask:
                    info = self._merged_info(info, reset_info)
            else:
                self._write_observation(out, observation)
        except Exception as error:
            raise faults.raised_in_batched_step(self._total_steps, error) from error
        out.reward[...] = reward
        out.terminated[...] = terminated
        out.truncated[...] = truncated
        out.valid.fill(True)
        ended = out.terminated | out.truncated
        if self._any_pending:
            self._after_resets(out)
        self._pending = ended
        self._any_pending = 1 in ended.tobytes()  # ten times as fast as any()
        if self._any_pending and self._mode is AutoresetMode.SAME_STEP:
            self._write_final_observations(out, info)
        if self.spaces.action_mask:
            self._write_masks(out, observation, info)
        if not self._finite.passes(out):
            self._check_finite(out)

    def snapshot(self) -> list[bytes] | None:
        """Return `B` blobs, of which the first holds all copies, or None where that is not proven to be exact."""
        if self._proof is None:
            self._proof = prove_snapshot(self._make)
        if not self._proof.restorable:
            return None
        extra = {"total": self._total_steps, "starts": self._episode_start.copy(), "pending": self._pending.copy()}
        blob = capture(self._env, extra, baseline=self._proof.baseline, full=self._proof.full)
        return None if blob is None else [blob] + [b""] * (self.num_envs - 1)

    def restore(self, snapshots: Sequence[bytes]) -> None:
        """Continue from what ``snapshot`` returned.

        Raises:
            CheckpointError: the snapshot is of another environment.
        """
        if len(snapshots) != self.num_envs:
            held = len(snapshots)
            raise CheckpointError(f"the snapshot holds {held} environment copies, the job has {self.num_envs}")
        extra = restore(self._env, snapshots[0])
        self._total_steps = extra["total"]
        self._episode_start[:] = extra["starts"]
        self._pending[:] = extra["pending"]
        self._any_pending = bool(self._pending.any())

    def close(self) -> None:
        """Close the environment. May be called twice; never raises."""
        env, self._env = self._env, None
        if env is not None:
            with contextlib.suppress(Exception):
                env.close()

    def _describe(self, config: EnvConfig) -> EnvLayout:
        """Return what the policy sees; a scratch reset shows whether ``info`` holds masks."""
        env, field = self._env, build.env_field(config)
        if env.num_envs != config.num_envs:
            raise ConfigError(f"the vector environment has {env.num_envs} copies, not {config.num_envs}", field=field)
        first, keys = (env.single_observation_space, env.single_action_space), config.observation_keys
        describe_spaces(*first, observation_keys=keys, field=field)
        try:
            observation, info = self._seeded_reset([0] * config.num_envs)
        except Exception as error:
            raise faults.raised_in_batched_reset(error) from error
        masks = {MASK_KEY: info[MASK_KEY][0]} if MASK_KEY in info else {}
        layout = describe_spaces(*first, observation_keys=keys, first_info=masks, field=field)
        for leaf in layout.leaves:
            checks.check_leaf(np.asarray(leaf_value(observation, leaf.path)), leaf, "reset", field, (config.num_envs,))
        return layout

    def _seeded_reset(self, seeds: list[int]) -> tuple[Any, dict[str, Any]]:
        """Reset with one seed per copy, or with the first alone where the environment takes only one."""
        try:
            result: tuple[Any, dict[str, Any]] = self._env.reset(seed=seeds)
        except (TypeError, ValueError, AssertionError, gym.error.Error):
            result = self._env.reset(seed=seeds[0])
        return result

    def _to_env_actions(self, actions: np.ndarray) -> np.ndarray:
        if len(actions) != self.num_envs:
            raise ValueError(f"{self.num_envs} copies need as many actions, got shape {actions.shape}")
        if self._has_start:
            return np.asarray(actions + self._layout.action_start, self._layout.action_dtype)
        return actions.astype(self._layout.action_dtype)

    def _write_observation(self, out: StepSlot, observation: Any) -> None:
        target = out.observation
        if isinstance(target, dict):
            for leaf in self._layout.leaves:
                target[leaf.key][...] = leaf_value(observation, leaf.path)
        else:
            target[...] = observation

    def _write_rows(self, out: StepSlot, observation: Any, rows: np.ndarray) -> None:
        for leaf in self._layout.leaves:
            target = out.observation[leaf.key] if isinstance(out.observation, dict) else out.observation
            target[rows] = leaf_value(observation, leaf.path)[rows]

    def _write_final_observations(self, out: StepSlot, info: dict[str, Any]) -> None:
        """SAME_STEP: replace the first observation of the next episode by the final one of the ended episode."""
        final = info.get("final_obs")
        if final is None:
            raise EnvironmentFault("the vector environment resets in the same step but gave no info['final_obs']")
        whole = isinstance(final, np.ndarray) and final.dtype == object
        for i in np.flatnonzero(self._pending).tolist():
            for leaf in self._layout.leaves:
                target = out.observation[leaf.key] if isinstance(out.observation, dict) else out.observation
                target[i] = leaf_value(final[i], leaf.path) if whole else leaf_value(final, leaf.path)[i]

    def _merged_info(self, info: dict[str, Any], reset_info: dict[str, Any]) -> dict[str, Any]:
        """Take masks of reset copies from the reset."""
        if MASK_KEY not in info or MASK_KEY not in reset_info:
            return info
        masks = [reset_info[MASK_KEY][i] if pending else info[MASK_KEY][i] for i, pending in enumerate(self._pending)]
        return {**info, MASK_KEY: masks}

    def _write_masks(self, out: StepSlot, observation: Any, info: dict[str, Any]) -> None:
        """Write action masks; where the episode ended none is needed, and all actions count as allowed."""
        masks = out.action_mask
        assert masks is not None
        given = observation[MASK_KEY] if self.spaces.action_mask == "observation" else info.get(MASK_KEY)
        for i in range(self.num_envs):
            one = None if given is None else given[i]
            if self._pending[i]:
                masks[i] = True
            elif one is None:
                raise faults.mask_missing(*self._place(i))
            else:
                masks[i] = np.asarray(one).reshape(-1)
        for i in np.flatnonzero(~allows_something(masks, self.spaces.action)).tolist():
            raise faults.no_action_allowed(*self._place(i))

    def _after_resets(self, out: StepSlot) -> None:
        pending = self._pending.nonzero()[0]  # an index is faster than a mask
        out.valid[pending] = False
        out.reward[pending] = 0.0
        out.terminated[pending] = False
        out.truncated[pending] = False
        self._episode_start[pending] = self._total_steps

    def _place(self, i: int) -> tuple[int, int, int]:
        return i, self._total_steps - int(self._episode_start[i]), self._total_steps

    def _check_finite(self, out: StepSlot) -> None:
        if not self._finite.passes(out):
            copy, what, values = self._finite.first_offender(out)
            raise faults.not_finite(*self._place(copy), what, values)


def _make(config: EnvConfig) -> Any:
    if config.factory is not None:
        return _from_factory(config)
    spec = build.find_spec(config)
    if spec.vector_entry_point is None:
        raise ConfigError(
            f"{spec.id} has no vector entry point", field=BACKEND_FIELD, value="VectorEntryPoint", remedy=_OTHER_BACKEND
        )
    kwargs = dict(config.kwargs)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    entry: Any = spec.vector_entry_point
    try:
        creator = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        if "autoreset_mode" in build.parameters(creator):
            kwargs.setdefault("autoreset_mode", AutoresetMode.NEXT_STEP)
        return gym.make_vec(spec, config.num_envs, vectorization_mode="vector_entry_point", **kwargs)
    except gym.error.DependencyNotInstalled as error:
        raise build.missing_dependency(error) from error
    except ModuleNotFoundError as error:
        raise build.missing_module(error) from error
    except Exception as error:
        raise ConfigError(
            f"building the vector environment {spec.id} raised {type(error).__name__}: {error}",
            field=build.KWARGS_FIELD if config.kwargs else BACKEND_FIELD,
            remedy=f"check its kwargs, or {_OTHER_BACKEND}",
        ) from error


def _from_factory(config: EnvConfig) -> Any:
    assert config.factory is not None
    factory = build.load_object(config.factory, build.FACTORY_FIELD)
    known = build.parameters(factory)
    kwargs: dict[str, Any] = {**config.kwargs, "num_envs": config.num_envs}
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    if "autoreset_mode" in known:
        kwargs.setdefault("autoreset_mode", AutoresetMode.NEXT_STEP)
    env = build.call_with_kwargs(factory, kwargs, what=f"the factory {config.factory}", field=build.FACTORY_FIELD)
    if not isinstance(env, gym.vector.VectorEnv):
        raise ConfigError(
            f"the factory returned a {type(env).__name__}, not a gymnasium.vector.VectorEnv",
            field=build.FACTORY_FIELD,
            value=config.factory,
            remedy=f"return one, or {_OTHER_BACKEND}",
        )
    return env


def _autoreset_mode(env: Any, make: Callable[[], Any], config: EnvConfig, layout: EnvLayout) -> AutoresetMode:
    """Return the environment's autoreset mode, having made sure that it can be adapted."""
    mode = env.metadata.get("autoreset_mode")
    try:
        mode = AutoresetMode(mode)
    except ValueError:
        raise ConfigError(
            "the vector environment does not say how it resets",
            field=build.env_field(config),
            value=mode,
            remedy="set metadata['autoreset_mode'] to a gymnasium.vector.AutoresetMode",
        ) from None
    if mode is not AutoresetMode.NEXT_STEP and not _honours_reset_mask(make, layout):
        raise ConfigError(
            f"the vector environment's autoreset is {mode.name}, and it ignores options={{'reset_mask': ...}}",
            field=build.env_field(config),
            remedy=f"build it with autoreset_mode=AutoresetMode.NEXT_STEP, or {_OTHER_BACKEND}",
        )
    return mode


def _honours_reset_mask(make: Callable[[], Any], layout: EnvLayout) -> bool:
    """Find out on a scratch environment whether a masked reset leaves the other copies where they are."""
    env = make()
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if not np.any(terminated) and not np.any(truncated):
            observation, *_rest = env.step(env.action_space.sample())
        before = [np.array(leaf_value(observation, leaf.path)[-1]) for leaf in layout.leaves]
        mask = np.zeros(env.num_envs, np.bool_)
        mask[0] = True
        after, _info = env.reset(options={"reset_mask": mask})
        if env.num_envs == 1:
            return True
        return all(
            np.array_equal(old, leaf_value(after, leaf.path)[-1])
            for old, leaf in zip(before, layout.leaves, strict=True)
        )
    except Exception:
        return False
    finally:
        with contextlib.suppress(Exception):
            env.close()
