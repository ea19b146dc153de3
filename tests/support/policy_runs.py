"""Short training runs, one for each kind of policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from rlruntime.envs.make import describe, make_vector_env
from rlruntime.envs.protocol import allocate_slot
from rlruntime.spec.manifest import RLJob
from rlruntime.spec.training.env import EnvConfig
from rlruntime.trainers.loop import Trainer
from rlruntime.trainers.run_folder import RunFolder

FACTORIES = "policy_envs"

SMALL = {"type": "MLP", "config": {"hiddenSizes": [16]}}
SMALL_CNN = {"type": "CNN", "config": {"channels": [4], "kernelSizes": [4], "strides": [4], "hiddenSizes": [8]}}
NORM = {"type": "ObservationNorm", "config": {}}

TRAININGS: dict[str, dict[str, Any]] = {
    "cartpole": {"env": {"id": "CartPole-v1"}, "network": SMALL},
    "pendulum": {"env": {"id": "Pendulum-v1", "transforms": [NORM, {"type": "RewardNorm"}]}, "network": SMALL},
    "image": {"env": {"factory": f"{FACTORIES}:image_env"}, "network": SMALL_CNN},
    "masked": {"env": {"factory": f"{FACTORIES}:masked_env", "transforms": [NORM]}, "network": SMALL},
    "dict": {"env": {"factory": f"{FACTORIES}:dict_env", "transforms": [NORM]}, "network": SMALL},
    "multi_discrete": {"env": {"factory": f"{FACTORIES}:multi_discrete_env"}, "network": SMALL},
    "box": {"env": {"factory": f"{FACTORIES}:box_env", "transforms": [NORM]}, "network": SMALL},
    "stateful": {"env": {"id": "CartPole-v1"}, "network": {"type": f"{FACTORIES}:StatefulNetwork"}},
    "user": {"env": {"id": "CartPole-v1"}, "network": {"type": f"{FACTORIES}:UserNetwork", "config": {"width": 12}}},
}


def job_of(kind: str, *, total_frames: int = 256) -> RLJob:
    """Return the manifest of a short training."""
    training = TRAININGS[kind]
    document = {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": kind.replace("_", "-")},
        "spec": {
            "training": {
                "algorithm": "PPO",
                "seed": 3,
                "totalFrames": total_frames,
                "device": "cpu",
                "numThreads": 1,
                "env": {"numEnvs": 4, **training["env"]},
                "network": training["network"],
                "ppo": {"numSteps": 32, "minibatchSize": 64, "numEpochs": 2, "learningRate": 1e-2},
                "evaluation": {"episodes": 2},
            }
        },
    }
    return RLJob.model_validate(document)


class Run(NamedTuple):
    """A finished training.

    Attributes:
        folder: of the run.
        observation: 1,000 flat observations by input name, as `rlruntime.policies.export` calls them.
        mask: ``[1000, n]`` or None.
        actions: ``[1000, ...]`` that the trainer takes, in the environment's units.
    """

    folder: Path
    observation: dict[str, np.ndarray]
    mask: np.ndarray | None
    actions: np.ndarray


def train(kind: str, folder: Path) -> Run:
    """Train briefly, and ask the trainer's own policy for its actions on 1,000 observations."""
    job = job_of(kind)
    trainer = Trainer(job)
    with RunFolder.create(folder) as run_folder:
        trainer.run(run_folder)
    observation, mask = observations(job.spec.training.env, num_envs=20, num_steps=50)
    layout, policy = describe(job.spec.training.env), trainer.policy
    keyed = {key: torch.from_numpy(leaf) for key, leaf in observation.items()}
    rows = keyed[""] if set(keyed) == {""} else keyed
    with torch.no_grad():
        params = policy.action_params(rows)
        action = policy.distribution.mode(params, None if mask is None else torch.from_numpy(mask))
    taken = (policy.distribution.to_env(action.numpy()) + layout.action_start).astype(layout.action_dtype)
    return Run(folder, observation, mask, taken)


def observations(
    config: EnvConfig, *, num_envs: int, num_steps: int
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return flat observations by key (``""`` for a single array) and masks, of random steps."""
    env = make_vector_env(config, num_envs=num_envs, backend="Loop")
    try:
        slot = allocate_slot(env.spaces, num_envs)
        env.reset(list(range(num_envs)), slot)
        random, seen, masks = np.random.default_rng(0), [], []
        for _ in range(num_steps):
            found = slot.observation if isinstance(slot.observation, dict) else {"": slot.observation}
            seen.append({key: leaf.copy() for key, leaf in found.items()})
            masks.append(None if slot.action_mask is None else slot.action_mask.copy())
            env.step(random_actions(env.spaces.action, num_envs, random), slot)
        stacked = {key: np.concatenate([step[key] for step in seen]) for key in seen[0]}
        return stacked, None if masks[0] is None else np.concatenate([mask for mask in masks if mask is not None])
    finally:
        env.close()


def random_actions(space: gym.Space[Any], num_envs: int, random: np.random.Generator) -> np.ndarray:
    """Return actions ``[num_envs, ...]`` as a policy counts them."""
    if isinstance(space, spaces.Discrete):
        return random.integers(0, space.n, num_envs)
    if isinstance(space, spaces.MultiDiscrete):
        return random.integers(0, space.nvec, (num_envs, *space.nvec.shape))
    assert isinstance(space, spaces.Box)
    return random.uniform(space.low, space.high, (num_envs, *space.shape)).astype(np.float32)
