"""Episodes of a policy as video files."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlruntime.envs.build import env_field, env_name, make_single_env
from rlruntime.envs.spaces import MASK_KEY
from rlruntime.errors import ConfigError, MissingExtraError, StorageError
from rlruntime.policies.artifact import LoadedPolicy
from rlruntime.spec.training.env import EnvConfig

_RENDER_MODE = "rgb_array"
_DEFAULT_FPS = 30
_MAX_STEPS = 100_000
_EDGE = 2  # H.264 takes an even number of pixels


def require_video(config: EnvConfig) -> None:
    """Raise what would keep `record_episodes` from its work: missing packages, an environment that can't render.

    Raises:
        MissingExtraError: the packages that write videos are missing.
        ConfigError: the environment can't render.
    """
    for package in ("imageio", "imageio_ffmpeg"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("--video", package=package, extra="rljob[video]")
    env = _make(config)
    try:
        env.reset(seed=0)
        _frame(env, config)
    finally:
        env.close()


def record_episodes(
    config: EnvConfig, policy: LoadedPolicy, seeds: Sequence[int], folder: Path, *, deterministic: bool = True
) -> list[Path]:
    """Write one episode per seed as ``folder/episode-<n>.mp4``, n from 1, and return the files.

    Args:
        config: the environment.
        policy: acts.
        seeds: of the episodes.
        folder: made when absent; files of the same names are replaced.
        deterministic: take the most probable action instead of a sample.

    Raises:
        ConfigError: the environment can't render.
        StorageError: a file can't be written.
    """
    env = _make(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"episode-{number + 1}.mp4" for number in range(len(seeds))]
        for path, seed in zip(paths, seeds, strict=True):
            _record(env, config, policy, seed, path, deterministic)
        return paths
    except OSError as error:
        raise StorageError(f"can't write videos to {folder}: {error.strerror or error}") from None
    finally:
        env.close()


def _record(
    env: gym.Env[Any, Any], config: EnvConfig, policy: LoadedPolicy, seed: int, path: Path, deterministic: bool
) -> None:
    import imageio.v2 as imageio

    temporary = path.with_name(f".writing-{path.name}")
    fps = env.metadata.get("render_fps") or _DEFAULT_FPS
    try:
        writer: Any = imageio.get_writer(temporary, fps=fps, codec="libx264", macro_block_size=_EDGE)
        with writer:
            observation, info = env.reset(seed=seed)
            state = None
            writer.append_data(_frame(env, config))
            for _ in range(_MAX_STEPS):
                mask = info.get(MASK_KEY) if policy.spaces.action_mask == "info" else None
                acted = policy.act(observation, state, deterministic=deterministic, action_mask=mask)
                state = acted.state
                observation, _, terminated, truncated, info = env.step(acted.action)
                writer.append_data(_frame(env, config))
                if terminated or truncated:
                    break
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _make(config: EnvConfig) -> gym.Env[Any, Any]:
    for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):  # Pygame draws into memory here: no window, no sound
        os.environ.setdefault(name, "dummy")
    if config.id is not None:  # Gymnasium would only warn
        modes = _class_metadata(config).get("render_modes") or []
        if _RENDER_MODE not in modes:
            raise ConfigError(
                f"the environment can't render images: its metadata['render_modes'] is {list(modes)}",
                field=env_field(config),
                value=config.id,
                remedy=f"add {_RENDER_MODE!r} to it and a render method, or leave --video out",
            )
    return make_single_env(config, _RENDER_MODE)


def _class_metadata(config: EnvConfig) -> dict[str, Any]:
    env = make_single_env(config)
    try:
        return dict(env.metadata)
    finally:
        env.close()


def _frame(env: gym.Env[Any, Any], config: EnvConfig) -> np.ndarray:
    try:
        frame: Any = env.render()
    except Exception as error:
        hint = "set MUJOCO_GL=egl or osmesa" if "mujoco" in type(env.unwrapped).__module__ else "see its documentation"
        raise ConfigError(
            f"rendering {env_name(config)} raised {type(error).__name__}: {error}",
            field=env_field(config),
            remedy=f"{hint}, or leave --video out",
        ) from error
    image = np.asarray(frame)
    if image.ndim != 3 or image.shape[-1] != 3 or image.dtype != np.uint8:
        raise ConfigError(
            f"rendering {env_name(config)} returned {image.dtype} of shape {image.shape}, not an image",
            field=env_field(config),
            remedy="return uint8 [height, width, 3] from render, or leave --video out",
        )
    height, width = image.shape[0] // _EDGE * _EDGE, image.shape[1] // _EDGE * _EDGE
    return np.ascontiguousarray(image[:height, :width])
