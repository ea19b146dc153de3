"""Collectors from a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rlruntime.errors import ConfigError
from rlruntime.registry import resolve, validate_config

if TYPE_CHECKING:
    from rlruntime.collectors.protocol import Collector
    from rlruntime.policies.policy import Policy
    from rlruntime.spec.training.component import Component
    from rlruntime.spec.training.env import EnvConfig

FIELD = "spec.training.collector"


def make_collector(
    component: Component,
    env: EnvConfig,
    policy: Policy,
    *,
    num_steps: int,
    seed: int,
    random_frames: int = 0,
    field: str = FIELD,
) -> Collector:
    """Return the collector that ``component`` describes, for the environment that ``env`` does.

    A class of your own takes part by a class method ``from_config`` with the arguments that this function gives, and a
    pydantic model ``Config`` for its settings.

    Args:
        component: its type and settings.
        env: the environment; the collector makes its copies.
        policy: the learner's, for that environment (its spaces: ``rlruntime.envs.make.describe(env).spaces``).
        num_steps: `T` of a rollout.
        seed: of the job.
        random_frames: frames at the beginning whose actions are drawn uniformly.
        field: path of the component in the manifest, for errors.

    Raises:
        ConfigError: there is no such collector, or it refuses its settings or the environment.
        EnvironmentFault: an environment or a worker failed at start.
    """
    target = resolve("collector", component.type, field=field)
    if not hasattr(target, "from_config"):
        raise ConfigError(
            "a collector needs a class method from_config",
            field=f"{field}.type",
            value=component.type,
            remedy="see rlruntime.collectors.make",
        )
    config = validate_config(target, component.config, field=f"{field}.config")
    made = target.from_config(config, env, policy, num_steps=num_steps, seed=seed, random_frames=random_frames)
    return cast("Collector", made)
