"""RLJob's runtime: reinforcement-learning jobs from one manifest, or from Python.

Importing the package is light: nothing of torch is loaded before a name that needs it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlruntime.collectors.inline import InlineCollector
    from rlruntime.envs.make import make_vector_env
    from rlruntime.errors import ConfigError, RLJobError
    from rlruntime.policies.artifact import load_policy
    from rlruntime.policies.build import build_policy
    from rlruntime.registry import register
    from rlruntime.spec.loader import load_manifests
    from rlruntime.spec.manifest import RLJob
    from rlruntime.spec.training.env import EnvConfig
    from rlruntime.spec.training.ppo import PPOConfig
    from rlruntime.trainers.algorithms.ppo import PPO
    from rlruntime.trainers.api import train

__version__ = "0.1.0"

_LAZY = {
    "ConfigError": "rlruntime.errors",
    "EnvConfig": "rlruntime.spec.training.env",
    "InlineCollector": "rlruntime.collectors.inline",
    "PPO": "rlruntime.trainers.algorithms.ppo",
    "PPOConfig": "rlruntime.spec.training.ppo",
    "RLJob": "rlruntime.spec.manifest",
    "RLJobError": "rlruntime.errors",
    "build_policy": "rlruntime.policies.build",
    "load_manifests": "rlruntime.spec.loader",
    "load_policy": "rlruntime.policies.artifact",
    "make_vector_env": "rlruntime.envs.make",
    "register": "rlruntime.registry",
    "train": "rlruntime.trainers.api",
}

__all__ = [
    "PPO",
    "ConfigError",
    "EnvConfig",
    "InlineCollector",
    "PPOConfig",
    "RLJob",
    "RLJobError",
    "__version__",
    "build_policy",
    "load_manifests",
    "load_policy",
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
