"""Which transforms of a job work in its environments, which in its policy, and the environment that follows from it.

The list ``env.transforms`` goes from the environment to the policy, and is cut once: behind the last transform that can
only work in an environment, because it remembers something of the episode, changes actions, or decides when a copy is
stepped. All before the cut is in the environment, all behind it in the policy. Two kinds stand outside of this:
transforms of rewards work on the finished rollout, wherever they stand, so that an environment's rewards stay what
they are; and those that decide when a copy is stepped work within each copy, so they come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rlruntime.envs.make import make_vector_env, resolve_backend
from rlruntime.envs.protocol import EnvSpaces, VectorEnv
from rlruntime.errors import ConfigError
from rlruntime.registry import resolve, validate_config
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.transforms.base import FIELD, Copies, Seat, Transform, naming, wrong_seat
from rlruntime.transforms.environment import TransformedEnv

_BATCHED = ("VectorEntryPoint", "EnvPool")


class Placed(NamedTuple):
    """A component and its place in ``env.transforms``."""

    place: int
    component: Component

    @property
    def field(self) -> str:
        """Its path in the manifest."""
        return f"{FIELD}[{self.place}]"


@dataclass(frozen=True)
class Split:
    """Where the transforms of a job work.

    Attributes:
        environment: behind the environments, in order.
        policy: in the policy, and on finished rollouts, in order.
        wrappers: of each copy, the innermost first.
    """

    environment: tuple[Placed, ...]
    policy: tuple[Placed, ...]
    wrappers: tuple[Component, ...]


@dataclass(frozen=True)
class _Part:
    """What is known of a component before it is built."""

    placed: Placed
    kind: Any
    config: Any

    @property
    def name(self) -> str:
        return self.placed.component.type

    @property
    def seats(self) -> frozenset[Seat]:
        own: frozenset[Seat] = frozenset({"policy"})
        return self.kind.seats_of(self.config) if _is_transform(self.kind) else own

    @property
    def wrapper(self) -> Component | None:
        return self.kind.copy_wrapper(self.config) if _is_transform(self.kind) else None

    @property
    def within_copies(self) -> bool:
        """Whether it is a wrapper of each copy and nothing else."""
        return _is_transform(self.kind) and bool(self.kind.needs_wrapper)

    @property
    def of_rewards(self) -> bool:
        return "rollout" in self.seats and "policy" not in self.seats

    @property
    def needs_environment(self) -> bool:
        return "environment" in self.seats and "policy" not in self.seats and not self.of_rewards


def split_transforms(transforms: Sequence[Component], *, evaluation: bool = False) -> Split:
    """Return where each transform works; see the module for the rule.

    Args:
        transforms: ``env.transforms``.
        evaluation: leave out of the environments what serves training alone, such as `EndOfLife`.

    Raises:
        ConfigError: an unknown transform, a config that it refuses, one that can't work in a job, or an order that
            can't work.
    """
    parts = [_look_up(Placed(place, component)) for place, component in enumerate(transforms)]
    _check_order(parts)
    cut = _cut(parts)
    kept = [part for part in parts if not (evaluation and getattr(part.kind, "training_only", False))]
    behind = [part for part in kept if part.of_rewards or part.placed.place >= cut]
    before = [part for part in kept if not part.of_rewards and part.placed.place < cut]
    return Split(
        environment=tuple(part.placed for part in before if not part.within_copies),
        policy=tuple(part.placed for part in behind),
        wrappers=tuple(part.wrapper for part in kept if part.wrapper is not None),
    )


def environment_transforms(transforms: Sequence[Component]) -> tuple[Component, ...]:
    """Return those of ``env.transforms`` that change what a job's environments are; the others belong to its policy."""
    in_policy = {placed.place for placed in split_transforms(transforms).policy}
    return tuple(component for place, component in enumerate(transforms) if place not in in_policy)


def with_copy_wrappers(config: EnvConfig, *, evaluation: bool = False) -> EnvConfig:
    """Return ``config`` with the wrappers that its transforms put around each copy, such as that of `FrameSkip`.

    It is for who steps single copies; `make_transformed_env` does it by itself.

    Raises:
        ConfigError: what `split_transforms` raises.
    """
    return _wrapped(config, split_transforms(config.transforms, evaluation=evaluation))


def make_transformed_env(
    config: EnvConfig,
    *,
    num_envs: int | None = None,
    backend: str | None = None,
    render_mode: str | None = None,
    first_copy: int = 0,
    evaluation: bool = False,
) -> VectorEnv:
    """Return the environment of a job with those of its transforms that work in environments.

    Where there are none, it is that of `make_vector_env`, and costs nothing more.

    Args:
        config: the environment and its transforms.
        num_envs, backend, render_mode, first_copy: as in `make_vector_env`. Where these copies are a part of a job's,
            ``config.num_envs`` is the number of all.
        evaluation: leave out what serves training alone.

    Raises:
        ConfigError: what `make_vector_env` and `split_transforms` raise; transforms that can't work with this
            environment or backend.
        EnvironmentFault: a copy or a worker process raised, died or hung at start.
    """
    split = split_transforms(config.transforms, evaluation=evaluation)
    chosen = resolve_backend(config if backend is None else config.model_copy(update={"backend": backend}))
    if split.wrappers and chosen in _BATCHED:
        names = ", ".join(component.type.partition(":")[2] for component in split.wrappers)
        raise ConfigError(
            f"the backend {chosen} steps its copies itself, which leaves no place within them",
            field=FIELD,
            value=names,
            remedy="use the backend Loop or ProcessPool, or do without",
        )
    env = make_vector_env(
        _wrapped(config, split), num_envs=num_envs, backend=backend, render_mode=render_mode, first_copy=first_copy
    )
    if not split.environment:
        return env
    try:
        parts = [partial(build_transform, placed.component, field=placed.field) for placed in split.environment]
        copies = Copies(env.num_envs, first_copy, max(config.num_envs, first_copy + env.num_envs))
        return TransformedEnv(env, parts, wrapped=True, copies=copies)
    except BaseException:
        env.close()
        raise


def build_transform(component: Component, spaces: EnvSpaces, *, field: str) -> Transform:
    """Return the transform that a component describes, for the spaces before it.

    Raises:
        ConfigError: unknown type, a config that it refuses, or spaces that it can't work with.
    """
    part = _look_up(Placed(0, component), field)
    with naming(field):
        space = part.kind.space_of(part.config, spaces) if _is_transform(part.kind) else spaces.observation
        if part.config is None:
            built: Transform = part.kind(space, **component.config)
        else:
            built = part.kind(part.config, space)
    if isinstance(built, Transform):
        built.manifest_field = field
    return built


def _wrapped(config: EnvConfig, split: Split) -> EnvConfig:
    return config.model_copy(update={"wrappers": (*config.wrappers, *split.wrappers)})


def _look_up(placed: Placed, field: str = "") -> _Part:
    field, component = field or placed.field, placed.component
    kind = resolve("transform", component.type, field=field)
    return _Part(placed, kind, validate_config(kind, component.config, num_args=1, field=f"{field}.config"))


def _cut(parts: Sequence[_Part]) -> int:
    return max((part.placed.place + 1 for part in parts if part.needs_environment), default=0)


def _check_order(parts: Sequence[_Part]) -> None:
    cut = _cut(parts)
    needing = [part for part in parts if part.needs_environment]
    for part in parts:
        place, later = part.placed.place, [other for other in needing if other.placed.place > part.placed.place]
        if not part.seats & {"policy", "rollout", "environment"}:
            raise wrong_seat(part.name, "environment", part.seats, part.placed.field)
        if part.within_copies and any(not other.within_copies and not other.of_rewards for other in parts[:place]):
            first = next(other for other in parts if not other.within_copies and not other.of_rewards)
            raise _order(part, f"works within each copy, before {first.name}", f"put it before {first.name}")
        if part.of_rewards:
            reading = [other.name for other in later if other.kind.reads_reward]
            if reading:
                problem = f"works on finished rollouts, after {reading[0]}, which sees the environment's rewards"
                raise _order(part, problem, f"put it after {reading[0]}")
        elif place < cut and "environment" not in part.seats:
            last = later[-1].name
            raise _order(part, f"is a part of the policy, and {last} works in the environment", f"put it after {last}")


def _order(part: _Part, problem: str, remedy: str) -> ConfigError:
    return ConfigError(f"{part.name} {problem}", field=part.placed.field, value=part.name, remedy=remedy)


def _is_transform(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Transform)
