"""Evaluation: whole episodes on environments and seeds of their own, so that it can't change training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlruntime.collectors.episode_runs import EpisodesStopped, run_episodes
from rlruntime.envs.make import resolve_backend
from rlruntime.envs.protocol import VectorEnv
from rlruntime.metrics import names
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.env import EnvConfig
from rlruntime.transforms.staging import make_transformed_env

MAX_COPIES = 32
MAX_EPISODE_STEPS = 1_000_000


class EvaluationStopped(Exception):
    """An evaluation was given up because the run is to stop."""


@dataclass(frozen=True)
class EvaluationResult:
    """Outcome of one evaluation.

    Attributes:
        returns: ``[E]`` float64, undiscounted episode rewards, in the order of the seeds.
        lengths: ``[E]`` int64, decisions.
        seeds: of the episodes.
        frames: after which the policy was as it was evaluated, where training has gone on since; else None.
    """

    returns: np.ndarray
    lengths: np.ndarray
    seeds: tuple[int, ...]
    frames: int | None = None

    @property
    def mean(self) -> float:
        """Mean episode reward."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the episode rewards (of the population)."""
        return float(self.returns.std())

    def record(self) -> dict[str, float | int | str]:
        """Return it as fields of a record."""
        fields: dict[str, float | int | str] = {
            names.EVALUATION_REWARD_MEAN: self.mean,
            names.EVALUATION_REWARD_STD: self.std,
            "evaluation/length_mean": float(self.lengths.mean()),
            names.EVALUATION_EPISODES: len(self.returns),
        }
        return fields if self.frames is None else {**fields, names.EVALUATION_FRAMES: self.frames}


class Evaluator:
    """Runs evaluations on copies that are built at the first one and kept.

    Copies are stepped in this process, or by the process pool where training's are: the other backends can't seed
    each episode.

    Args:
        config: the environment that is trained on.
        episodes: of one evaluation.
        deterministic: take the most probable action instead of a sample.
    """

    def __init__(self, config: EnvConfig, *, episodes: int, deterministic: bool) -> None:
        self.config, self.episodes, self.deterministic = config, episodes, deterministic
        self._env: VectorEnv | None = None

    def evaluate(
        self,
        policy: Policy,
        seeds: Sequence[int],
        *,
        noise_seed: int = 0,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> EvaluationResult:
        """Run one episode for each seed and return what they brought.

        Args:
            policy: acts; left as it is.
            seeds: of the episodes.
            noise_seed: of the actions, where they are sampled.
            stop_requested: asked at every step.

        Raises:
            EvaluationStopped: ``stop_requested`` said so.
            EnvironmentFault: an environment failed, or an episode didn't end.
        """
        env = self._environment()
        generator = None
        if not self.deterministic:
            generator = torch.Generator(device=policy.device).manual_seed(noise_seed)
        try:
            returns, lengths = run_episodes(env, policy, seeds, generator, stop_requested)
        except EpisodesStopped:
            raise EvaluationStopped from None
        return EvaluationResult(returns, lengths, tuple(seeds))

    def close(self) -> None:
        """Close the copies. May be called twice."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _environment(self) -> VectorEnv:
        if self._env is None:
            backend = backend_of(self.config)
            copies = copies_of(self.episodes)
            self._env = make_transformed_env(self.config, num_envs=copies, backend=backend, evaluation=True)
        return self._env


def copies_of(episodes: int) -> int:
    """Return how many copies play so many episodes."""
    return min(episodes, MAX_COPIES)


def backend_of(config: EnvConfig) -> str:
    """Return what steps the copies; a factory of vector environments can be used in its own way only."""
    training = resolve_backend(config)
    keeps = training == "ProcessPool" or (training == "VectorEntryPoint" and config.factory is not None)
    return training if keeps else "Loop"
