"""Episodes of a policy as video files."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from rlruntime.collectors.episode_runs import run_episodes
from rlruntime.envs.build import env_field, env_name, make_single_env
from rlruntime.envs.protocol import VectorEnv, allocate_slot
from rlruntime.errors import ConfigError, MissingExtraError, StorageError
from rlruntime.policies.artifact import LoadedPolicy
from rlruntime.spec.training.env import EnvConfig
from rlruntime.transforms.environment import TransformedEnv
from rlruntime.transforms.staging import make_transformed_env

_RENDER_MODE = "rgb_array"
_DEFAULT_FPS = 30
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
    shown = _make(config)
    try:
        shown.env.reset([0], allocate_slot(shown.env.spaces, 1))
        _frame(shown.single, config)
    finally:
        shown.env.close()


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
    shown = _make(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"episode-{number + 1}.mp4" for number in range(len(seeds))]
        for path, seed in zip(paths, seeds, strict=True):
            _record(shown, config, policy, seed, path, deterministic)
        return paths
    except OSError as error:
        raise StorageError(f"can't write videos to {folder}: {error.strerror or error}") from None
    finally:
        shown.env.close()


class _Shown(NamedTuple):
    """One copy of an environment with its transforms, and within it the environment that draws."""

    env: VectorEnv
    single: gym.Env[Any, Any]


def _record(shown: _Shown, config: EnvConfig, policy: LoadedPolicy, seed: int, path: Path, deterministic: bool) -> None:
    import imageio.v2 as imageio

    temporary = path.with_name(f".writing-{path.name}")
    fps = shown.single.metadata.get("render_fps") or _DEFAULT_FPS
    generator = None if deterministic else torch.Generator(policy.module.device).manual_seed(seed)
    try:
        writer: Any = imageio.get_writer(temporary, fps=fps, codec="libx264", macro_block_size=_EDGE)
        with writer:
            run_episodes(
                shown.env,
                policy.module,
                [seed],
                generator,
                on_step=lambda: writer.append_data(_frame(shown.single, config)),
            )
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _make(config: EnvConfig) -> _Shown:
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
    env = make_transformed_env(config, num_envs=1, backend="Loop", render_mode=_RENDER_MODE, evaluation=True)
    loop: Any = env.env if isinstance(env, TransformedEnv) else env
    return _Shown(env, loop.envs[0])


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
