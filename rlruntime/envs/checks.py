"""What is checked once, on a scratch copy, before the first step: that an environment keeps Gymnasium's contract.

Bounds of a Box are not enforced, since many environments leave them; shapes, structure and dtypes are, because a row of
another shape would silently be spread over the array it is written to.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from rlruntime.envs.faults import place_of
from rlruntime.envs.protocol import leaf_dtype, leaf_shape
from rlruntime.envs.sampling import ActionSampler, mask_of
from rlruntime.envs.spaces import ID_FIELD, EnvLayout, Leaf, describe_spaces, leaf_value
from rlruntime.errors import ConfigError, EnvironmentFault

_STEP_PARTS, _OLD_STEP_PARTS = 5, 4


def probe(env: gym.Env[Any, Any], *, observation_keys: Sequence[str] = (), field: str = ID_FIELD) -> EnvLayout:
    """Reset and step a scratch environment once, and return what the policy sees of it.

    Args:
        env: a new environment; it is not fit for use afterwards, and the caller closes it.
        observation_keys: top-level keys of a Dict observation that the policy sees; empty for all.
        field: manifest field that errors name.

    Raises:
        ConfigError: unsupported spaces, or ``reset`` or ``step`` return what they may not.
        EnvironmentFault: ``reset`` or ``step`` raised.
    """
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gym.Space):
            raise ConfigError(f"the environment has no {name}", field=field, remedy="set it in the constructor")
    describe_spaces(env.observation_space, env.action_space, observation_keys=observation_keys, field=field)
    observation, info = _checked_reset(env, field)
    layout = describe_spaces(
        env.observation_space, env.action_space, observation_keys=observation_keys, first_info=info, field=field
    )
    _check_observation(observation, layout, "reset", field)
    _check_step(env, layout, mask_of(observation, info), field)
    return layout


def _checked_reset(env: gym.Env[Any, Any], field: str) -> tuple[Any, dict[str, Any]]:
    try:
        result: Any = env.reset(seed=0)
    except Exception as error:
        raise _fault("reset", error) from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise ConfigError(
            f"reset returned {_shape_of(result)}", field=field, remedy="return (observation, info) with info a dict"
        )
    return result


def _check_step(env: gym.Env[Any, Any], layout: EnvLayout, mask: Any | None, field: str) -> None:
    try:
        result: Any = env.step(ActionSampler(env, seed=0).draw(mask))
    except Exception as error:
        raise _fault("step", error) from error
    remedy = "return (observation, reward, terminated, truncated, info)"
    if not (isinstance(result, tuple) and len(result) == _STEP_PARTS):
        old = isinstance(result, tuple) and len(result) == _OLD_STEP_PARTS
        raise ConfigError(
            f"step returned {_shape_of(result)}{', as the old Gym API did' if old else ''}", field=field, remedy=remedy
        )
    observation, reward, terminated, truncated, info = result
    _check_observation(observation, layout, "step", field)
    if np.ndim(reward) != 0 or np.asarray(reward).dtype.kind not in "fiub":
        raise ConfigError("step returned a reward that is not one number", field=field, value=reward, remedy=remedy)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            raise ConfigError(f"step returned {name} that is not a bool", field=field, value=flag, remedy=remedy)
    if not isinstance(info, dict):
        raise ConfigError("step returned info that is not a dict", field=field, value=info, remedy=remedy)


def _check_observation(observation: Any, layout: EnvLayout, call: str, field: str) -> None:
    for leaf in layout.leaves:
        name = f"observation {leaf.key!r}" if leaf.key else "an observation"
        try:
            value = np.asarray(leaf_value(observation, leaf.path))
        except (KeyError, IndexError, TypeError) as error:
            raise ConfigError(
                f"{call} returned no {name}, although observation_space has it", field=field, remedy="return every part"
            ) from error
        check_leaf(value, leaf, call, field)


def check_leaf(value: np.ndarray, leaf: Leaf, call: str, field: str, leading: tuple[int, ...] = ()) -> None:
    """Check shape, dtype, and for counts the range of one array of an observation.

    Args:
        value: what came back.
        leaf: what was announced.
        call: ``reset`` or ``step``, for the message.
        field: manifest field that errors name.
        leading: dimensions before those of one copy.

    Raises:
        ConfigError: they don't agree.
    """
    what = f"{call} returned observation {leaf.key!r}" if leaf.key else f"{call} returned an observation"
    shape, dtype = leading + leaf_shape(leaf.space), leaf_dtype(leaf.space)
    if value.shape != shape:
        raise ConfigError(
            f"{what} of shape {value.shape}, but observation_space says {shape}", field=field, remedy="make them agree"
        )
    fits = value.dtype.kind in "fiub" and np.can_cast(value.dtype, dtype, "same_kind")
    if not fits and not (value.dtype.kind in "iub" and np.array_equal(value.astype(dtype), value)):
        raise ConfigError(
            f"{what} of dtype {value.dtype}, but observation_space says {np.dtype(leaf.space.dtype)}",
            field=field,
            remedy="make them agree",
        )
    if isinstance(leaf.space, gs.Discrete | gs.MultiDiscrete):
        low, size = np.asarray(leaf.space.start), getattr(leaf.space, "nvec", getattr(leaf.space, "n", 0))
        if np.any(value < low) or np.any(value >= low + size):
            raise ConfigError(
                f"{what} outside of {leaf.space}", field=field, value=value.tolist(), remedy="make them agree"
            )


def _fault(call: str, error: Exception) -> EnvironmentFault:
    return EnvironmentFault(
        f"the environment's first {call} raised {type(error).__name__}: {error}{place_of(error)}",
        worker_traceback="".join(traceback.format_exception(error)),
    )


def _shape_of(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
