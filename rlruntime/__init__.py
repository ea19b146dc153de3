"""RLJob's runtime: reinforcement-learning jobs from one manifest, or from Python.

Importing the package is light: nothing of torch is loaded before a name that needs it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlruntime.collectors.async_envs import AsyncEnvCollector
    from rlruntime.collectors.async_process import AsyncProcessCollector
    from rlruntime.collectors.inline import InlineCollector
    from rlruntime.collectors.sync_process import SyncProcessCollector
    from rlruntime.envs.make import make_vector_env
    from rlruntime.errors import ConfigError, RLJobError
    from rlruntime.policies.artifact import load_policy
    from rlruntime.policies.build import build_policy
    from rlruntime.registry import register
    from rlruntime.spec.loader import load_manifests
    from rlruntime.spec.manifest import RLJob
    from rlruntime.spec.training.dqn import DQNConfig
    from rlruntime.spec.training.env import EnvConfig
    from rlruntime.spec.training.ppo import PPOConfig
    from rlruntime.spec.training.sac import SACConfig
    from rlruntime.spec.training.storages import ReplayBufferConfig
    from rlruntime.spec.training.td3 import TD3Config
    from rlruntime.storages.buffer import ReplayBuffer
    from rlruntime.trainers.algorithms.advantages import AdvantageData
    from rlruntime.trainers.algorithms.dqn import DQN
    from rlruntime.trainers.algorithms.ppo import PPO
    from rlruntime.trainers.algorithms.sac import SAC
    from rlruntime.trainers.algorithms.td3 import TD3
    from rlruntime.trainers.api import train
    from rlruntime.transforms.columns import ColumnTransforms
    from rlruntime.transforms.module import ModuleTransform
    from rlruntime.transforms.staging import make_transformed_env
    from rlruntime.weights.mapping import WeightMap

__version__ = "0.1.0"

_LAZY = {
    "AsyncEnvCollector": "rlruntime.collectors.async_envs",
    "AsyncProcessCollector": "rlruntime.collectors.async_process",
    "ColumnTransforms": "rlruntime.transforms.columns",
    "ConfigError": "rlruntime.errors",
    "DQN": "rlruntime.trainers.algorithms.dqn",
    "DQNConfig": "rlruntime.spec.training.dqn",
    "AdvantageData": "rlruntime.trainers.algorithms.advantages",
    "EnvConfig": "rlruntime.spec.training.env",
    "WeightMap": "rlruntime.weights.mapping",
    "InlineCollector": "rlruntime.collectors.inline",
    "ModuleTransform": "rlruntime.transforms.module",
    "PPO": "rlruntime.trainers.algorithms.ppo",
    "PPOConfig": "rlruntime.spec.training.ppo",
    "RLJob": "rlruntime.spec.manifest",
    "RLJobError": "rlruntime.errors",
    "ReplayBuffer": "rlruntime.storages.buffer",
    "ReplayBufferConfig": "rlruntime.spec.training.storages",
    "SAC": "rlruntime.trainers.algorithms.sac",
    "SACConfig": "rlruntime.spec.training.sac",
    "SyncProcessCollector": "rlruntime.collectors.sync_process",
    "TD3": "rlruntime.trainers.algorithms.td3",
    "TD3Config": "rlruntime.spec.training.td3",
    "build_policy": "rlruntime.policies.build",
    "load_manifests": "rlruntime.spec.loader",
    "load_policy": "rlruntime.policies.artifact",
    "make_transformed_env": "rlruntime.transforms.staging",
    "make_vector_env": "rlruntime.envs.make",
    "register": "rlruntime.registry",
    "train": "rlruntime.trainers.api",
}

__all__ = [
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "AdvantageData",
    "AsyncEnvCollector",
    "AsyncProcessCollector",
    "ColumnTransforms",
    "ConfigError",
    "DQNConfig",
    "EnvConfig",
    "InlineCollector",
    "ModuleTransform",
    "PPOConfig",
    "RLJob",
    "RLJobError",
    "ReplayBuffer",
    "ReplayBufferConfig",
    "SACConfig",
    "SyncProcessCollector",
    "TD3Config",
    "WeightMap",
    "__version__",
    "build_policy",
    "load_manifests",
    "load_policy",
    "make_transformed_env",
    "make_vector_env",
    "register",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name on its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
