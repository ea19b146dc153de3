"""One measurement of a peer on one thread, as a JSON line; runs in the peers' own environment, see the README."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

NUM_ENVS, NUM_STEPS = 16, 128
WARM_UP_FRAMES, TRAIN_FRAMES = 4_096, 100_000


def rate(batches: Iterator[int]) -> dict[str, float]:
    """Return frames per second over four seconds, the first two batches left out."""
    next(batches)
    next(batches)
    frames, started = 0, time.perf_counter()
    while time.perf_counter() - started < 4.0:
        frames += next(batches)
    return {"frames_per_second": frames / (time.perf_counter() - started)}


def collect_sb3() -> dict[str, float]:
    """Stable-Baselines3 with its in-process vector environment."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", NUM_ENVS), n_steps=NUM_STEPS, batch_size=256, device="cpu")
    _, callback = model._setup_learn(1_000_000_000, None)

    def batches() -> Iterator[int]:
        while True:
            model.collect_rollouts(model.env, callback, model.rollout_buffer, NUM_STEPS)
            yield NUM_ENVS * NUM_STEPS

    return rate(batches())


def collect_torchrl(kind: str) -> dict[str, float]:
    """TorchRL's collectors: in-process, or two processes in step or not."""
    from tensordict.nn import TensorDictModule
    from torch.distributions import Categorical
    from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
    from torchrl.envs import GymEnv, SerialEnv
    from torchrl.modules import MLP, ProbabilisticActor

    def make() -> Any:
        return GymEnv("CartPole-v1", categorical_action_encoding=True)

    network = MLP(4, 2, num_cells=[64, 64], activation_class=torch.nn.Tanh)
    policy = ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["logits"]),
        ["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    batch = NUM_ENVS * NUM_STEPS
    if kind == "single":
        collector = Collector(lambda: SerialEnv(NUM_ENVS, make), policy, frames_per_batch=batch, total_frames=-1)
    else:
        halves = [lambda: SerialEnv(NUM_ENVS // 2, make)] * 2
        if kind == "multisync":
            collector = MultiSyncCollector(halves, policy, frames_per_batch=batch, total_frames=-1, cat_results="stack")
        else:
            collector = MultiAsyncCollector(halves, policy, frames_per_batch=batch // 2, total_frames=-1)
    try:
        return rate(data.numel() for data in collector)
    finally:
        collector.shutdown()


def train(module: str) -> dict[str, float]:
    """PPO of Stable-Baselines3, or of its JAX sibling sbx."""
    library = __import__(module)
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    class Clock(BaseCallback):
        warm: tuple[float, int] | None = None

        def _on_step(self) -> bool:
            if self.warm is None and self.num_timesteps >= WARM_UP_FRAMES:
                self.warm = (time.perf_counter(), self.num_timesteps)
            return True

    extra = {} if module == "sbx" else {"device": "cpu"}
    env = make_vec_env("CartPole-v1", NUM_ENVS)
    model = library.PPO("MlpPolicy", env, n_steps=NUM_STEPS, batch_size=256, n_epochs=4, seed=0, **extra)
    clock, begun = Clock(), time.perf_counter()
    model.learn(TRAIN_FRAMES, callback=clock)
    ended = time.perf_counter()
    assert clock.warm is not None
    reward, _ = evaluate_policy(model, make_vec_env("CartPole-v1", 1), n_eval_episodes=20)
    return {
        "frames_per_second": (model.num_timesteps - clock.warm[1]) / (ended - clock.warm[0]),
        "warm_up_s": clock.warm[0] - begun,
        "reward": float(reward),
    }


def main() -> None:
    """Run the case named on the command line."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    kind, _, which = sys.argv[1].partition(":")
    if kind == "train":
        measured = train({"sb3": "stable_baselines3", "sbx": "sbx"}[which])
    elif which == "sb3":
        measured = collect_sb3()
    else:
        measured = collect_torchrl(which.removeprefix("torchrl-"))
    print(json.dumps({"case": sys.argv[1], **measured}))


if __name__ == "__main__":
    main()
