"""`spec.training.env`: which environment, how many copies, and what runs them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlruntime.spec.base import AsTuple, PositiveFloat, PositiveInt, SpecModel, matching, refusal
from rlruntime.spec.training.component import Component

Backend = Literal["Auto", "Loop", "VectorEntryPoint", "ProcessPool", "EnvPool"]
ImportPath = Annotated[
    str,
    *matching(
        r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$",
        "an import path such as 'package.module:name'",
        max_length=253,
    ),
]
ModuleName = Annotated[
    str, *matching(r"^[A-Za-z_][A-Za-z0-9_.]*$", "the name of a module such as 'minigrid'", max_length=253)
]


class EnvConfig(SpecModel):
    """The environment of a job: exactly one of `id` and `factory`."""

    id: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Gymnasium id, such as `CartPole-v1`."""
    factory: ImportPath | None = None
    """`package.module:function` that returns a new `gymnasium.Env`; called once per copy with `kwargs`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment or of the factory."""
    imports: Annotated[tuple[ModuleName, ...], AsTuple] = Field(default=(), alias="import", max_length=32)
    """Modules to import first, for packages that register their environments on import, such as `minigrid`."""
    num_envs: PositiveInt = 8
    """Copies that are stepped together."""
    backend: Backend = "Auto"
    """What steps the copies. `Auto`: the in-process loop, or the process pool where the environment is registered as
    heavy."""
    num_workers: PositiveInt | None = None
    """Processes of `ProcessPool`, threads of `EnvPool`. Unset: the number of processor cores, at most `numEnvs`."""
    step_timeout_seconds: PositiveFloat = 60.0
    """Seconds a worker may take to step or reset all its copies before the run ends with an error (`ProcessPool`)."""
    restart_workers: bool = False
    """Replace a worker that died, raised or hung instead of ending the run; its unfinished episodes are dropped
    (`ProcessPool`)."""
    max_episode_steps: PositiveInt | None = None
    """Steps after which an episode is truncated. Unset: what the environment was registered with."""
    observation_keys: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], AsTuple] = Field(
        default=(), max_length=64
    )
    """Top-level keys of a Dict observation that the policy sees. Empty: all of them."""
    wrappers: Annotated[tuple[Component, ...], AsTuple] = Field(default=(), max_length=32)
    """Gymnasium wrappers of each copy, in order; `type` is a name in `gymnasium.wrappers` or `package.module:Class`."""
    transforms: Annotated[tuple[Component, ...], AsTuple] = Field(default=(), max_length=32)
    """Transforms between the environments and the policy, in order, such as `CatFrames` and `ObservationNorm`."""

    @model_validator(mode="after")
    def _exactly_one_source(self) -> EnvConfig:
        if (self.id is None) == (self.factory is None):
            raise refusal("give exactly one of id and factory")
        return self
