"""The transforms on the two sides of a job's replay buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.transitions import transitions
from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.policies.distributions import ActionDistribution
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.storages import ReplayTransformsConfig
from rlruntime.transforms.base import Seat, Transform, wrong_seat
from rlruntime.transforms.columns import ColumnTransforms
from rlruntime.transforms.staging import build_transform

FIELD = "spec.training.replay.transforms"


class RowTransforms:
    """Transforms of rows that a buffer is written with, and of those that it gives.

    What comes of a row that is written and read must have the columns that it had, so that the learner can take it.

    Args:
        config: their names and settings.
        spaces: of the environment, behind its own transforms.
        distribution: of the policy's actions.

    Attributes:
        write, read: what `rlruntime.storages.buffer.ReplayBuffer` takes.
        modules: all of them, for their state.

    Raises:
        ConfigError: one can't be built, can't work on its side, or has statistics, which nothing moves here; or columns
            differ behind them.
    """

    def __init__(self, config: ReplayTransformsConfig, spaces: EnvSpaces, distribution: ActionDistribution) -> None:
        written, between = _built(config.write, "write", spaces)
        given, _ = _built(config.read, "read", between)
        self.modules = nn.ModuleList([*written, *given])
        write, read = ColumnTransforms(written, "write"), ColumnTransforms(given, "read")
        self.write, self.read = [write] if written else [], [read] if given else []
        if self.modules:
            _check(write, read, example_rows(spaces, distribution))


def check_rewards(transforms: Iterable[nn.Module], *, sums_steps: bool) -> None:
    """Refuse transforms that would give other rewards than they say, where rows are learned from one by one.

    Args:
        transforms: work on rewards of rows that a buffer gave.
        sums_steps: whether the buffer sums rewards over steps before.

    Raises:
        ConfigError: one needs whole rollouts; or it isn't a multiplication, and would be given sums.
    """
    for transform in transforms:
        if not isinstance(transform, Transform):
            continue
        kind, name = type(transform), type(transform).__name__
        if kind.reward is not Transform.reward and kind.map_reward is Transform.map_reward:
            raise ConfigError(
                "its rewards are of whole rollouts, and a replay buffer gives single rows",
                field=transform.manifest_field,
                value=name,
                remedy="leave it out, or use algorithm: PPO",
            )
        if sums_steps and not transform.scales_rewards:
            raise ConfigError(
                "it would map the sum of nStep's rewards in place of each",
                field=transform.manifest_field,
                value=name,
                remedy="put it into spec.training.replay.transforms.write",
            )


def example_rows(
    spaces: EnvSpaces,
    distribution: ActionDistribution,
    *,
    with_trajectory: bool = False,
    version_key: str | None = None,
) -> dict[str, Tensor]:
    """Return two rows as a collector makes them, of zeros; see `transitions`."""
    rollout = Rollout(spaces, distribution, 1, 2)
    rollout.valid.fill_(True)
    rollout.num_valid = 2
    return transitions(rollout, with_trajectory=with_trajectory, version_key=version_key)


def _built(components: Sequence[Component], side: Seat, spaces: EnvSpaces) -> tuple[list[Transform], EnvSpaces]:
    """Return the transforms of a side, and the spaces behind them."""
    built = []
    for number, component in enumerate(components):
        field = f"{FIELD}.{side}[{number}]"
        transform = build_transform(component, spaces, field=field)
        seats = transform.seats
        if side not in seats:
            raise wrong_seat(component.type, side, seats, field)
        if "write" not in seats:  # where rows would be left in other units than those written before
            raise ConfigError(
                f"{component.type} has statistics that rollouts move, and a buffer sees rows alone",
                field=field,
                value=component.type,
                remedy="put it into spec.training.env.transforms; rows are normalised by it when they are learned from",
            )
        space = transform.observation_space(spaces.observation)
        spaces = EnvSpaces(space, spaces.action, spaces.action_mask, spaces.action_mask_size)
        built.append(transform)
    return built, spaces


def _check(write: ColumnTransforms, read: ColumnTransforms, rows: dict[str, Tensor]) -> None:
    outcome = read(write(rows))
    for name, column in rows.items():
        found = outcome.get(name)
        if found is None or found.shape != column.shape or found.dtype != column.dtype:
            raise ConfigError(
                f"what is learned from must have the column {name!r} as {_words(column)}, and behind these transforms "
                f"{'it is gone' if found is None else f'it is {_words(found)}'}",
                field=FIELD,
                remedy="let those of `read` undo what those of `write` do",
            )


def _words(column: Tensor) -> str:
    return f"{str(column.dtype).removeprefix('torch.')} {list(column.shape[1:])}"
