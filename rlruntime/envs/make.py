"""Vector environments from an `EnvConfig`, and the rule that chooses their backend."""

from __future__ import annotations

import fnmatch
from functools import partial
from typing import TYPE_CHECKING

from rlruntime.envs import build
from rlruntime.envs.build import make_single_env
from rlruntime.envs.checks import probe
from rlruntime.envs.protocol import VectorEnv
from rlruntime.envs.spaces import EnvLayout
from rlruntime.errors import ConfigError

if TYPE_CHECKING:
    from rlruntime.spec.training.env import EnvConfig

__all__ = ["describe", "make_single_env", "make_vector_env", "register_heavy", "resolve_backend"]

# A step of these takes so long (emulators, software rendering: 100 us and more) that handing it to another process,
# which costs some 20 us, pays.
_heavy: list[str] = ["ALE/*", "*NoFrameskip-v*", "MiniWorld-*", "CarRacing-v*", "procgen*", "Vizdoom*", "dm_control/*"]


def register_heavy(pattern: str) -> None:
    """Make ``backend: Auto`` choose the process pool for ids and factories that match.

    Args:
        pattern: as in a shell, case-sensitive: ``MyGame-*``, ``my_package.envs:*``.
    """
    if pattern not in _heavy:
        _heavy.append(pattern)


def resolve_backend(config: EnvConfig) -> str:
    """Return the name of the backend that will run.

    ``Auto`` is a rule and never a measurement, so that the same manifest runs the same way everywhere: ``ProcessPool``
    for more than one copy of what is registered as heavy, else ``Loop``.

    Raises:
        ConfigError: a module of ``import`` (which may register heavy environments) can't be imported.
    """
    if config.backend != "Auto":
        return config.backend
    build.import_modules(config)
    name = build.env_name(config)
    heavy = any(fnmatch.fnmatchcase(name, pattern) for pattern in _heavy)
    return "ProcessPool" if heavy and config.num_envs > 1 else "Loop"


def describe(config: EnvConfig) -> EnvLayout:
    """Build a scratch copy, check that it keeps Gymnasium's contract, and return what the policy sees of it.

    Raises:
        ConfigError: it can't be built, has unsupported spaces, or returns what it may not.
        EnvironmentFault: its ``reset`` or ``step`` raised.
    """
    env = make_single_env(config)
    try:
        return probe(env, observation_keys=config.observation_keys, field=build.env_field(config))
    finally:
        env.close()


def make_vector_env(
    config: EnvConfig,
    *,
    num_envs: int | None = None,
    backend: str | None = None,
    render_mode: str | None = None,
    first_copy: int = 0,
) -> VectorEnv:
    """Return the environment of a job, ready for ``reset``.

    Args:
        config: the environment.
        num_envs: copies; default ``config.num_envs``.
        backend: takes the place of ``config.backend``.
        render_mode: as in ``gymnasium.make``; in-process loop only.
        first_copy: number of the first copy in messages of the in-process loop, for a part of a larger set.

    Raises:
        ConfigError: the environment can't be built, can't be learned from, or can't run on this backend.
        EnvironmentFault: a copy or a worker process raised, died or hung at start.
    """
    changed = {name: value for name, value in (("num_envs", num_envs), ("backend", backend)) if value is not None}
    if changed:
        config = type(config).model_validate({**config.model_dump(), **changed})
    chosen = resolve_backend(config)
    if render_mode is not None and chosen != "Loop":
        raise ConfigError(f"the backend {chosen} can't render", remedy="use the backend Loop")
    if chosen == "Loop":
        from rlruntime.envs.loop import LoopVectorEnv

        make = partial(make_single_env, config, render_mode)
        return LoopVectorEnv(make, describe(config), config.num_envs, first_copy=first_copy)
    if chosen == "VectorEntryPoint":
        from rlruntime.envs.vectorised import VectorEntryPoint

        return VectorEntryPoint(config)
    if chosen == "ProcessPool":
        from rlruntime.envs.process_pool import ProcessPool

        return ProcessPool(config)
    from rlruntime.envs.envpool import EnvPoolVectorEnv

    return EnvPoolVectorEnv(config)
