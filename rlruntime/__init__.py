"""RLJob's runtime: reinforcement-learning jobs from one manifest, or from Python.

Importing the package is light: nothing of torch is loaded before a name that needs it is used.
"""

from __future__ import annotations

__version__ = "0.1.0"

_LAZY = {
    "ConfigError": "rlruntime.errors",
    "EnvConfig": "rlruntime.spec.training.env",
    "InlineCollector": "rlruntime.collectors.inline",
    "PPO": "rlruntime.trainers.algorithms.ppo",
    "PPOConfig": "rlruntime.spec.training.ppo",
    "RLJob": "rlruntime.spec.manifest",
    "RLJobError": "rlruntime.errors",
    "build_policy": "rlruntime.policies.actor_critic",
    "load_manifests": "rlruntime.spec.loader",
    "load_policy": "rlruntime.policies.artifact",
    "make_vector_env": "rlruntime.envs.make",
    "register": "rlruntime.registry",
    "train": "rlruntime.trainers.api",
}

__all__ = [*_LAZY, "__version__"]  # noqa: PLE0604  (strings, from the table)


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
