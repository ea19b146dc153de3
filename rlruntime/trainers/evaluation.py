"""Evaluation: whole episodes on environments and seeds of their own, so that it can't change training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlruntime.envs.make import resolve_backend
from rlruntime.envs.protocol import VectorEnv, allocate_slot
from rlruntime.errors import EnvironmentFault
from rlruntime.policies.observations import ObservationTensor
from rlruntime.policies.policy import Policy
from rlruntime.policies.recurrent import State
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
    """

    returns: np.ndarray
    lengths: np.ndarray
    seeds: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Mean episode reward."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the episode rewards (of the population)."""
        return float(self.returns.std())


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
        returns, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
        for start in range(0, len(seeds), env.num_envs):
            chunk = list(seeds[start : start + env.num_envs])
            padded = chunk + [chunk[-1]] * (env.num_envs - len(chunk))
            outcome = run_episodes(env, policy, padded, generator, stop_requested)
            returns[start : start + len(chunk)] = outcome[0][: len(chunk)]
            lengths[start : start + len(chunk)] = outcome[1][: len(chunk)]
        return EvaluationResult(returns, lengths, tuple(seeds))

    def close(self) -> None:
        """Close the copies. May be called twice."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _environment(self) -> VectorEnv:
        if self._env is None:
            backend = _backend(self.config)
            copies = min(self.episodes, MAX_COPIES)
            self._env = make_transformed_env(self.config, num_envs=copies, backend=backend, evaluation=True)
        return self._env


def _backend(config: EnvConfig) -> str:
    """Return what steps the copies; a factory of vector environments can be used in its own way only."""
    training = resolve_backend(config)
    keeps = training == "ProcessPool" or (training == "VectorEntryPoint" and config.factory is not None)
    return training if keeps else "Loop"


def run_episodes(
    env: VectorEnv,
    policy: Policy,
    seeds: Sequence[int],
    generator: torch.Generator | None,
    stop_requested: Callable[[], bool],
    on_step: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Run one episode in every copy of ``env`` and return their rewards ``[B]`` float64 and lengths ``[B]`` int64.

    ``on_step`` is called once the episodes have begun, and after each step.
    """
    slot = allocate_slot(env.spaces, env.num_envs)
    env.reset(seeds, slot)
    observation = _tensors(slot.observation)
    mask = None if slot.action_mask is None else torch.from_numpy(slot.action_mask)
    running = np.ones(env.num_envs, np.bool_)
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    action_shape = (env.num_envs, *policy.distribution.action_shape)
    action = torch.zeros(action_shape, dtype=policy.distribution.action_dtype)
    on_step()
    steps, state, is_init = 0, policy.initial_state(env.num_envs), np.ones(env.num_envs, np.bool_)
    while running.any():
        if stop_requested():
            raise EvaluationStopped
        if steps >= MAX_EPISODE_STEPS:
            copy = int(running.argmax())
            raise EnvironmentFault(
                f"the evaluation episode in environment {copy} did not end within {MAX_EPISODE_STEPS} steps; "
                "set spec.training.env.maxEpisodeSteps"
            )
        state = _act(policy, observation, state, is_init, mask, generator, action)
        env.step(policy.distribution.to_env(action.numpy()), slot)
        on_step()
        returns += slot.reward * running
        lengths += running
        # A copy whose worker was replaced in mid-episode has begun anew.
        begun_anew = running & ~slot.valid
        returns[begun_anew], lengths[begun_anew] = 0.0, 0
        np.logical_not(slot.valid, out=is_init)
        running &= ~(slot.terminated | slot.truncated)
        steps += 1
    return returns, lengths


def _act(
    policy: Policy,
    observation: ObservationTensor,
    state: State,
    is_init: np.ndarray,
    mask: torch.Tensor | None,
    generator: torch.Generator | None,
    out: torch.Tensor,
) -> State:
    """Write actions into ``out`` and return what is remembered after them."""
    device = policy.device
    with torch.no_grad():
        if device.type != "cpu":
            observation = (
                {key: leaf.to(device) for key, leaf in observation.items()}
                if isinstance(observation, dict)
                else observation.to(device)
            )
            mask = None if mask is None else mask.to(device)
        params, state = policy.step(observation, state, torch.from_numpy(is_init).to(device))
        if generator is None:
            out.copy_(policy.distribution.mode(params, mask))
            return state
        noise = policy.distribution.draw_noise((params.shape[0],), generator, device)
        chosen = torch.empty_like(out, device=device)
        policy.distribution.sample(params, noise, mask, chosen)
        out.copy_(chosen)
    return state


def _tensors(observation: np.ndarray | dict[str, np.ndarray]) -> ObservationTensor:
    if isinstance(observation, dict):
        return {key: torch.from_numpy(leaf) for key, leaf in observation.items()}
    return torch.from_numpy(observation)
