"""What a run settles before it starts: device, threads, backend, and the manifest with all of it written out."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlruntime.envs.make import resolve_backend
from rlruntime.errors import ConfigError
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.observations import is_image, space_leaves
from rlruntime.spec.training.defaults import with_defaults
from rlruntime.spec.training.training import TrainingSpec

# Measured on two cores: below this, handing rows to a second thread costs more than it saves.
_PARAMETERS_PER_THREAD = 200_000


def effective_training(training: TrainingSpec) -> TrainingSpec:
    """Return ``training`` with its defaults written out and its backend resolved."""
    training = with_defaults(training)
    env = training.env
    return training.model_copy(update={"env": env.model_copy(update={"backend": resolve_backend(env)})})


def resolve_device(requested: str, policy: ActorCritic) -> torch.device:
    """Return the device to learn on.

    ``Auto`` is a rule: the GPU where there is one and the observation holds an image or the network has more than a
    million parameters, else the CPU, which is faster for small networks.

    Raises:
        ConfigError: the device isn't there.
    """
    if requested == "Auto":
        has_image = any(is_image(leaf) for leaf in space_leaves(policy.spaces.observation).values())
        large = _num_parameters(policy) > 1_000_000
        return torch.device("cuda" if torch.cuda.is_available() and (has_image or large) else "cpu")
    device = torch.device(requested)
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available[device.type]:
        raise ConfigError(
            "there is no such device on this machine",
            field="spec.training.device",
            value=requested,
            remedy="use Auto or cpu",
        )
    return device


def resolve_num_threads(requested: int | None, policy: ActorCritic) -> int:
    """Return the threads of one tensor operation: what was asked for, else one per 200,000 parameters up to the
    cores.
    """
    if requested is not None:
        return requested
    has_convolution = any(isinstance(module, torch.nn.Conv2d) for module in policy.modules())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = cores if has_convolution else 1 + _num_parameters(policy) // _PARAMETERS_PER_THREAD
    return max(1, min(cores, wanted))


def fingerprint(device: torch.device, num_threads: int, backend: str) -> dict[str, Any]:
    """Return what has to be the same for a resumed run to give the same numbers."""
    return {
        "backend": backend,
        "cpu": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "gymnasium": gym.__version__,
        "numThreads": num_threads,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def _num_parameters(policy: ActorCritic) -> int:
    return sum(parameter.numel() for parameter in policy.parameters())
