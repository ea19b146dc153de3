"""Whole episodes with a policy, one in every environment copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from rlruntime.envs.protocol import VectorEnv, allocate_slot
from rlruntime.errors import EnvironmentFault
from rlruntime.policies.observations import ObservationTensor, map_observation
from rlruntime.policies.policy import Policy
from rlruntime.policies.recurrent import State

MAX_EPISODE_STEPS = 1_000_000


class EpisodesStopped(Exception):
    """Episodes were given up because that was asked for."""


def run_episodes(
    env: VectorEnv,
    policy: Policy,
    seeds: Sequence[int],
    generator: torch.Generator | None,
    stop_requested: Callable[[], bool] = lambda: False,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Run one episode for each seed, as many at a time as there are copies.

    Args:
        env: reset for every group of seeds.
        policy: acts.
        seeds: of the episodes.
        generator: of the actions; None takes the most probable ones.
        stop_requested: asked at every step.
        on_step: called when a group of episodes has begun, and after each of its steps.

    Returns:
        rewards ``[E]`` float64 and lengths ``[E]`` int64, in the order of the seeds.

    Raises:
        EpisodesStopped: ``stop_requested`` said so.
        EnvironmentFault: an environment failed, or an episode didn't end.
    """
    returns, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
    for start in range(0, len(seeds), env.num_envs):
        chunk = list(seeds[start : start + env.num_envs])
        padded = chunk + [chunk[-1]] * (env.num_envs - len(chunk))
        outcome = _run_together(env, policy, padded, generator, stop_requested, on_step)
        returns[start : start + len(chunk)] = outcome[0][: len(chunk)]
        lengths[start : start + len(chunk)] = outcome[1][: len(chunk)]
    return returns, lengths


def _run_together(
    env: VectorEnv,
    policy: Policy,
    seeds: Sequence[int],
    generator: torch.Generator | None,
    stop_requested: Callable[[], bool],
    on_step: Callable[[], None],
) -> tuple[np.ndarray, np.ndarray]:
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
            raise EpisodesStopped
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
            observation = map_observation(lambda leaf: leaf.to(device), observation)
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
