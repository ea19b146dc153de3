"""`EnvPool`: environments written in C++ and stepped by threads, from the package of that name (``rljob[envpool]``).

Its autoreset is NEXT_STEP and passes through. Two of its ways show: seeds are taken only when a pool is built, so
``reset`` builds a new one; and where an episode both ends and reaches its time limit in one step, it says ``truncated``
alone. Its state can't be captured. Ids are EnvPool's own (``Pong-v5``, not ``ALE/Pong-v5``).
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import warnings
from collections.abc import Sequence
from typing import Any

from rlruntime.envs import build
from rlruntime.envs.process_pool import usable_cores
from rlruntime.envs.spaces import ID_FIELD
from rlruntime.envs.vectorised import VectorEntryPoint
from rlruntime.errors import ConfigError, MissingExtraError
from rlruntime.spec.training.env import EnvConfig

BACKEND_FIELD = "spec.training.env.backend"
_MAX_SEED = 2**31


class EnvPoolVectorEnv(VectorEntryPoint):
    """Copies of one of EnvPool's environments; see `VectorEnv`.

    Raises:
        MissingExtraError: EnvPool is not installed.
        ConfigError: EnvPool has no such environment, or wrappers or a factory are asked for.
    """

    backend = "EnvPool"

    def __init__(self, config: EnvConfig) -> None:
        if config.factory is not None:
            raise ConfigError("EnvPool runs its own environments only", field=BACKEND_FIELD, remedy="give an id")
        self._config, self._envpool = config, _import_envpool()
        _check_id(self._envpool, config)
        super().__init__(config, lambda: self._build([0] * config.num_envs))

    def snapshot(self) -> list[bytes] | None:
        """Return None: EnvPool's state can't be captured."""
        return None

    def restore(self, snapshots: Sequence[bytes]) -> None:
        """Raise `ConfigError`: EnvPool's state can't be put back."""
        raise ConfigError("EnvPool can't restore the state of its environments", field=BACKEND_FIELD)

    def _seeded_reset(self, seeds: list[int]) -> tuple[Any, dict[str, Any]]:
        old, self._env = self._env, self._build(seeds)
        with contextlib.suppress(Exception):
            old.close()
        result: tuple[Any, dict[str, Any]] = self._env.reset()
        return result

    def _build(self, seeds: list[int]) -> Any:
        config = self._config
        kwargs = dict(config.kwargs)
        if config.max_episode_steps is not None:
            kwargs["max_episode_steps"] = config.max_episode_steps
        threads = config.num_workers or usable_cores()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the precision of bounds, on every construction
            try:
                env = self._envpool.make(
                    config.id,
                    env_type="gymnasium",
                    num_envs=config.num_envs,
                    env_seed=[seed % _MAX_SEED for seed in seeds],
                    num_threads=min(threads, config.num_envs),
                    **kwargs,
                )
            except Exception as error:
                raise ConfigError(
                    f"EnvPool could not build {config.id}: {type(error).__name__}: {error}",
                    field=build.KWARGS_FIELD if config.kwargs else ID_FIELD,
                    remedy="check its kwargs",
                ) from error
            _ = env.single_observation_space, env.single_action_space
        if env.config["max_num_players"] > 1:
            env.close()
            raise ConfigError("it has several players", field=ID_FIELD, value=config.id, remedy="choose another")
        return env


def _import_envpool() -> Any:
    try:
        return importlib.import_module("envpool")
    except ImportError as error:
        raise MissingExtraError(
            "the backend EnvPool", package="envpool", extra="rljob[envpool]", field=BACKEND_FIELD
        ) from error


def _check_id(envpool: Any, config: EnvConfig) -> None:
    known = envpool.list_all_envs()
    if config.id not in known:
        wanted = str(config.id).rpartition("/")[2]
        nearest = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean {nearest[0]}? or " if nearest else ""
        raise ConfigError(
            "EnvPool has no such environment",
            field=ID_FIELD,
            value=config.id,
            remedy=f"{hint}use another backend",
        )
