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
SAC_WARM_UP_FRAMES, SAC_FRAMES, SAC_RANDOM_FRAMES = 1_000, 4_000, 500


MODULES = {"sb3": "stable_baselines3", "sbx": "sbx"}


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
    settings = {"n_steps": NUM_STEPS, "batch_size": 256, "n_epochs": 4}
    return whole_run(module, "PPO", "CartPole-v1", NUM_ENVS, settings, WARM_UP_FRAMES, TRAIN_FRAMES)


def sac(module: str, env_id: str) -> dict[str, float]:
    """SAC of the same: one copy, an update a frame, batches of 256, two layers of 256."""
    settings = {"learning_starts": SAC_RANDOM_FRAMES, "batch_size": 256, "policy_kwargs": {"net_arch": [256, 256]}}
    return whole_run(module, "SAC", env_id, 1, settings, SAC_WARM_UP_FRAMES, SAC_FRAMES)


def whole_run(
    module: str, algorithm: str, env_id: str, num_envs: int, settings: dict[str, Any], warm_up_frames: int, frames: int
) -> dict[str, float]:
    """Frames per second of a run after its warm-up, the seconds of that, and what it had learned."""
    library = __import__(module)
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    class Clock(BaseCallback):
        warm: tuple[float, int] | None = None

        def _on_step(self) -> bool:
            if self.warm is None and self.num_timesteps >= warm_up_frames:
                self.warm = (time.perf_counter(), self.num_timesteps)
            return True

    extra = {} if module == "sbx" else {"device": "cpu"}
    env = make_vec_env(env_id, num_envs)
    model = getattr(library, algorithm)("MlpPolicy", env, seed=0, **settings, **extra)
    clock, begun = Clock(), time.perf_counter()
    model.learn(frames, callback=clock)
    ended = time.perf_counter()
    assert clock.warm is not None
    reward, _ = evaluate_policy(model, make_vec_env(env_id, 1), n_eval_episodes=20)
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
        measured = train(MODULES[which])
    elif kind == "sac":
        name, _, env_id = which.partition("/")
        measured = sac(MODULES[name], env_id)
    elif which == "sb3":
        measured = collect_sb3()
    else:
        measured = collect_torchrl(which.removeprefix("torchrl-"))
    print(json.dumps({"case": sys.argv[1], **measured}))


if __name__ == "__main__":
    main()
