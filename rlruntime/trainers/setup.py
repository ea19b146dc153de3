"""What a run settles before it starts: device, threads, backend, and the manifest with all of it written out."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlruntime.envs.make import resolve_backend
from rlruntime.errors import ConfigError
from rlruntime.policies.observations import is_image, space_leaves
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.defaults import with_defaults
from rlruntime.spec.training.training import CustomConfig, TrainingSpec
from rlruntime.transforms.staging import environment_transforms

# Measured on two cores: below this, handing rows to a second thread costs more than it saves.
_PARAMETERS_PER_THREAD = 200_000
_ENVIRONMENT = "environment."
_NOT_THE_ENVIRONMENT = {"backend", "num_workers", "step_timeout_seconds", "restart_workers", "transforms"}


def effective_training(training: TrainingSpec) -> TrainingSpec:
    """Return ``training`` with its defaults written out and its backend resolved."""
    training = with_defaults(training)
    env = training.env
    return training.model_copy(update={"env": env.model_copy(update={"backend": resolve_backend(env)})})


def resolve_device(requested: str, policy: Policy) -> torch.device:
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


def resolve_num_threads(requested: int | None, policy: Policy) -> int:
    """Return the threads of one tensor operation: what was asked for, else one per 200,000 parameters up to the
    cores.
    """
    if requested is not None:
        return requested
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = 1 + _num_parameters(policy) // _PARAMETERS_PER_THREAD
    return max(1, min(cores, wanted))


def fingerprint(device: torch.device, num_threads: int, training: TrainingSpec, products: str) -> dict[str, Any]:
    """Return what has to be the same for a resumed run to give the same numbers.

    Args:
        device: where the networks live.
        num_threads: of one tensor operation.
        training: the effective section of the manifest.
        products: name of the kernel of matrix products.
    """
    env = training.env
    described = env.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_NOT_THE_ENVIRONMENT)
    section = training.section
    assert section is not None
    assert not isinstance(section, CustomConfig)
    settings = section.model_dump(mode="json", by_alias=True)
    in_env = [part.model_dump(mode="json", by_alias=True) for part in environment_transforms(env.transforms)]
    replay = {} if training.replay is None else training.replay.model_dump(mode="json", by_alias=True)
    return {
        "backend": env.backend,
        "collector": json.dumps(training.collector.model_dump(mode="json", by_alias=True), sort_keys=True),
        "cpu": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "gymnasium": gym.__version__,
        "numThreads": num_threads,
        "numpy": np.__version__,
        "products": products,
        "python": platform.python_version(),
        "seed": training.seed,
        "torch": metadata.version("torch"),
        **{f"{_ENVIRONMENT}{name}": json.dumps(value, sort_keys=True) for name, value in described.items()},
        **({f"{_ENVIRONMENT}transforms": json.dumps(in_env, sort_keys=True)} if in_env else {}),
        **{f"{training.algorithm.lower()}.{name}": value for name, value in settings.items()},
        **{f"replay.{name}": json.dumps(value, sort_keys=True) for name, value in replay.items()},
        **({"totalFrames": training.total_frames} if section.follows_progress else {}),
    }


def restores_environments(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether snapshots of environments under fingerprint ``old`` may be put into those of ``new``.

    A snapshot holds an environment's settings with its state, so it would silently bring old settings back; and it is
    read by the versions that wrote it. The loop and the process pool hold the same copies.
    """
    settings = {key for key in (*old, *new) if key.startswith(_ENVIRONMENT)}
    same = all(old.get(key) == new.get(key) for key in (*settings, "gymnasium", "numpy", "python"))
    single_copies = {"Loop", "ProcessPool"}
    backends = {old.get("backend"), new.get("backend")}
    return same and (len(backends) == 1 or backends <= single_copies)


def require_same_seed(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` where a run would go on under another seed than it began with."""
    if old.get("seed", new["seed"]) != new["seed"]:
        raise ConfigError(
            f"the run began with seed {old['seed']}",
            field="spec.training.seed",
            value=new["seed"],
            remedy="resume with its own seed, or train into a new folder",
        )


def _num_parameters(policy: Policy) -> int:
    return sum(parameter.numel() for parameter in policy.parameters())
