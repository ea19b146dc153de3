"""Records the curve of one run of Stable-Baselines3: ``sb3.py CASE SEED``; runs in the peers' environment.

Its settings are those of the case's manifest; what that leaves out has the same default in both: batches of 256, two
layers of 256 units, an update a frame, learning rate 3e-4, tau 0.005, gamma 0.99, automatic temperature.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import torch
from cases import Curve

TASKS = {
    "sac-halfcheetah": {"env": "HalfCheetah-v5", "frames": 200_000, "every": 10_000, "episodes": 10, "random": 10_000}
}


def main(name: str, seed: int) -> None:
    """Train, and write the curve."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    task: dict[str, Any] = TASKS[name]
    frames: list[int] = []
    rewards: list[float] = []

    class Evaluations(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % task["every"] == 0:
                env = make_vec_env(task["env"], 1, seed=seed + 10_000)
                mean, _ = evaluate_policy(self.model, env, n_eval_episodes=task["episodes"], deterministic=True)
                env.close()
                frames.append(self.num_timesteps)
                rewards.append(float(np.mean(mean)))
            return True

    env = make_vec_env(task["env"], 1, seed=seed)
    settings = {"learning_starts": task["random"], "policy_kwargs": {"net_arch": [256, 256]}}
    SAC("MlpPolicy", env, seed=seed, device="cpu", **settings).learn(task["frames"], callback=Evaluations())
    Curve("sb3", name, seed, frames, rewards, confirmed=rewards[-1]).write()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
