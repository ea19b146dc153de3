"""Small environments with exact, simple dynamics, importable in worker processes by their path."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

F32 = np.float32


class CountingEnv(gym.Env[np.ndarray, Any]):
    """Observes ``[steps of this episode, seed of the last seeded reset]``; reward is the step count.

    The episode ends after ``length`` steps, as ``end`` says: ``terminated``, ``truncated`` or ``both``.
    """

    def __init__(self, length: int = 3, end: str = "terminated") -> None:
        self.length, self.end = length, end
        self.observation_space = spaces.Box(0, np.inf, (2,), np.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.count, self.seed_seen = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.seed_seen = seed
        self.count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        over = self.count >= self.length
        return (
            self._observe(),
            float(self.count),
            over and self.end in ("terminated", "both"),
            over and self.end in ("truncated", "both"),
            {},
        )

    def _observe(self) -> np.ndarray:
        return np.array([self.count, self.seed_seen], F32)


class RandomWalkEnv(gym.Env[np.ndarray, Any]):
    """A walk with random steps; episodes end at random. Observation ``[position, noise]`` in float64."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.position = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = float(self.np_random.normal())
        return np.array([self.position, 0.0]), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        noise = float(self.np_random.normal())
        self.position += int(action) - 1 + noise
        return np.array([self.position, noise]), self.position, bool(self.np_random.random() < 0.2), False, {}


class EchoEnv(gym.Env[Any, Any]):
    """Takes the action space it is told, insists on what Gymnasium would pass, and observes the action it got."""

    def __init__(self, action: str = "discrete") -> None:
        self.action_space = {
            "discrete": spaces.Discrete(3, start=5),
            "multi": spaces.MultiDiscrete([2, 4], start=[10, 20]),
            "box": spaces.Box(-2, 2, (3,), np.float64),
        }[action]
        width = int(np.prod(self.action_space.shape or (1,)))
        self.observation_space = spaces.Box(-100, 100, (width,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape or (), F32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), repr(action)
        return np.asarray(action, F32).reshape(-1), 0.0, False, False, {}


class ImageEnv(gym.Env[np.ndarray, Any]):
    """A uint8 image whose pixels all hold 10 times the step."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (6, 5, 3), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros((6, 5, 3), np.uint8), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return np.full((6, 5, 3), 10 * self.count, np.uint8), 0.0, False, False, {}


class NestedEnv(gym.Env[dict[str, Any], Any]):
    """A Dict with a nested Dict, a Tuple, text, and a mask that allows one action: the step modulo 3."""

    def __init__(self, mask: bool = True) -> None:
        parts: dict[str, gym.Space[Any]] = {
            "camera": spaces.Dict({"rgb": spaces.Box(0, 255, (2, 2, 3), np.uint8)}),
            "joints": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(4))),
            "words": spaces.Text(10),
        }
        self.mask = mask
        if mask:
            parts["action_mask"] = spaces.Box(0, 1, (3,), np.int8)
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Discrete(3)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observe(), 0.0, self.count == 3, False, {}

    def _observe(self) -> dict[str, Any]:
        observation: dict[str, Any] = {
            "camera": {"rgb": np.full((2, 2, 3), self.count, np.uint8)},
            "joints": (np.array([0.5, -0.5]), self.count % 4),
            "words": "hello",
        }
        if self.mask:
            observation["action_mask"] = np.eye(3, dtype=np.int8)[self.count % 3]
        return observation


class InfoMaskEnv(gym.Env[Any, Any]):
    """Observes a Discrete step; masks come in ``info``. Nothing is allowed, or said, once the episode is over.

    Args:
        fault: ``stuck`` allows nothing in the second step, ``silent`` leaves the mask out there.
    """

    def __init__(self, multi: bool = False, fault: str = "") -> None:
        self.observation_space = spaces.Discrete(5, start=1)
        self.action_space: Any = spaces.MultiDiscrete([2, 3]) if multi else spaces.Discrete(3)
        self.multi, self.fault, self.count = multi, fault, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return 1, self._info()

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return 1 + self.count, 1.0, self.count == 3, False, self._info()

    def _info(self) -> dict[str, Any]:
        if self.fault and self.count == 2:
            return {} if self.fault == "silent" else {"action_mask": np.zeros(3, np.int8)}
        one = np.zeros(3, np.int8) if self.count == 3 else np.eye(3, dtype=np.int8)[self.count]
        if self.multi:
            return {"action_mask": (np.array([1, 0], np.int8), one)}
        return {"action_mask": one}


class FaultyEnv(CountingEnv):
    """Fails in its own way in step ``at``, in the copy that was reset with ``seed``.

    Args:
        fault: ``raise``, ``raise_in_reset`` (the reset after the first episode), ``hang``, ``exit``, ``kill``,
            ``nan_observation``, ``inf_reward``.
    """

    def __init__(self, fault: str, seed: int = 2, at: int = 2, length: int = 3) -> None:
        super().__init__(length=length)
        self.fault, self.bad_seed, self.at = fault, seed, at

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if self.fault == "raise_in_reset" and seed is None and self.seed_seen == self.bad_seed:
            raise RuntimeError("no track to start on")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.seed_seen != self.bad_seed or self.count != self.at:
            return observation, reward, terminated, truncated, info
        if self.fault == "raise":
            raise ValueError("the wheel came off")
        if self.fault == "hang":
            self.spin_forever()
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "nan_observation":
            observation[1] = np.nan
        if self.fault == "inf_reward":
            reward = np.inf
        return observation, reward, terminated, truncated, info

    def spin_forever(self, calls: int = 59) -> None:
        if calls:
            self.spin_forever(calls - 1)
        time.sleep(3600)


class HoldingEnv(CountingEnv):
    """Holds what can't be put into a snapshot: ``file``, ``socket``, ``generator``, ``lock``, ``closure``."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self.held: Any
        if held == "file":
            self.held = Path(__file__).open()  # noqa: SIM115 - held open by intent
        elif held == "socket":
            self.held = socket.socket()
        elif held == "generator":
            self.held = _count_up()
        elif held == "lock":
            self.held = threading.Lock()
        else:
            box = [0]
            self.held = lambda: box.append(1)

    def close(self) -> None:
        if hasattr(self.held, "close"):
            self.held.close()


class GlobalRandomEnv(CountingEnv):
    """Draws from NumPy's global generator, which no snapshot of the environment holds."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(np.random.random()), terminated, truncated, info


class NestedPickleEnv(CountingEnv):
    """Holds another environment outside of the wrapper chain, which pickles as a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = gym.make("CartPole-v1")


class SharedCounterWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Shares a list with the base environment and counts its own steps in it, to be kept shared by a snapshot."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.shared: list[int] = []
        env.unwrapped.shared = self.shared  # type: ignore[attr-defined]

    def step(self, action: Any) -> Any:
        self.shared.append(1)
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, float(len(self.env.unwrapped.shared)), terminated, truncated, info  # type: ignore[attr-defined]


class WrongEnv(CountingEnv):
    """Breaks Gymnasium's contract in one way: what ``kind`` says is wrong."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "graph":
            self.observation_space = spaces.Graph(spaces.Box(-1, 1, (3,)), None)  # type: ignore[assignment]
        if kind == "dict_action":
            self.action_space = spaces.Dict({"a": spaces.Discrete(2)})
        if kind == "integer_box_action":
            self.action_space = spaces.Box(0, 9, (2,), np.int32)
        if kind == "bytes_for_floats":
            self.observation_space = spaces.Box(0, 255, (2,), np.uint8)
        if kind == "discrete_range":
            self.observation_space = spaces.Discrete(3)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        if self.kind == "reset_alone":
            return observation
        if self.kind == "discrete_range":
            return 3, info
        if self.kind == "shape":
            return observation[:1], info
        if self.kind == "bytes_for_floats":
            return observation + 0.5, info
        if self.kind == "raise_in_first_reset":
            raise OSError("no simulator at port 5000")
        return observation, info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.kind == "old_step":
            return observation, reward, terminated, info
        if self.kind == "reward_array":
            return observation, np.array([reward]), terminated, truncated, info
        if self.kind == "done_number":
            return observation, reward, 0.0, truncated, info
        return observation, reward, terminated, truncated, info


class CountingVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Counts like CountingEnv with an autoreset of its own; takes one seed for all, and ignores ``reset_mask``."""

    def __init__(self, num_envs: int, length: int = 3, mode: str = "NEXT_STEP") -> None:
        self.num_envs, self.length = num_envs, length
        self.metadata = {"autoreset_mode": AutoresetMode[mode]} if mode else {}
        self.single_observation_space = spaces.Box(0, np.inf, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(0, np.inf, (num_envs, 1), np.float32)
        self.action_space = spaces.MultiDiscrete([2] * num_envs)
        self.count = np.zeros(num_envs, np.int64)
        self.over = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count[:] = np.arange(self.num_envs) % self.length
        self.over[:] = False
        return self.count[:, None].astype(F32), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.count = np.where(self.over, 0, self.count + 1)
        reward = np.where(self.over, 99.0, 1.0)
        self.over = self.count >= self.length
        return self.count[:, None].astype(F32), reward, self.over.copy(), np.zeros_like(self.over), {}


def sync_vector(num_envs: int, env: str, mode: str, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Return Gymnasium's own vector environment of one of the classes here, with a given autoreset."""
    cls = globals()[env]
    limit = kwargs.pop("max_episode_steps", None)

    def make() -> gym.Env[Any, Any]:
        copy = cls(**kwargs)
        return copy if limit is None else gym.wrappers.TimeLimit(copy, limit)

    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode[mode])


def choosable_vector(
    num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP
) -> VectorEnv[Any, Any, Any]:
    """Return a vector environment whose caller may choose the autoreset."""
    return SyncVectorEnv([CountingEnv] * num_envs, autoreset_mode=autoreset_mode)


def not_an_env() -> str:
    """Return something else."""
    return "not an environment"


def _count_up() -> Iterator[int]:
    count = 0
    while True:
        yield count
        count += 1
