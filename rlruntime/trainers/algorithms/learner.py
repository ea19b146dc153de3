"""What learners from replay share: their interface, the rows they read, and their means of metrics."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rlruntime.errors import RLJobError
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.distributions import BoxDistribution
from rlruntime.policies.flat import FlatParameters
from rlruntime.policies.observations import ObservationTensor, space_leaves
from rlruntime.policies.policy import Policy
from rlruntime.seeding import stream_seed
from rlruntime.storages.batch import Batch

_NOISE_STREAM = "learning-noise"


class Learner(Protocol):
    """Learns from batches of a replay buffer.

    A batch has the columns ``observation`` and ``next.observation`` (or their leaves, ``observation.<key>``), raw;
    ``action`` in the policy's units; ``next.reward`` and ``next.terminated``; ``next.action_mask`` where actions can be
    forbidden; ``discount`` where rewards are over several steps; and a ``weight`` where rows were drawn by priority.
    ``next.truncated`` isn't looked at: an episode that was cut off bootstraps.

    Attributes:
        policy: learned in place; its parameters become views of one flat tensor.
    """

    policy: Policy

    def schedule(self, progress: float) -> None:
        """Set step sizes, and how much the policy explores, for the share of the run that lies behind."""

    def update(self, batch: Batch) -> None:
        """Learn from one batch."""

    def td_error(self) -> Tensor:
        """Return target less value of each row of the last batch, ``[n]``; the mean where there are several critics."""

    def metrics(self) -> dict[str, float]:
        """Return the means over the updates since the last call, by metric name; nothing where there was no update.

        Raises:
            RLJobError: one of them is no longer finite.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all but the policy's state: critics, targets, optimisers, counts, randomness."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned; the caller puts the policy's state back."""


class Rows(NamedTuple):
    """A batch as the losses take it, on the policy's device.

    Attributes:
        observation, next_observation: that went through `Policy.preprocess`.
        action: ``[N, A]`` float32, or ``[N]`` int64.
        reward: ``[N]`` float32.
        terminated: ``[N]`` bool.
        discount: of the next value: one number, or ``[N]``.
        weight: ``[N]`` or None.
        next_mask: ``[N, n]`` bool or None.
    """

    observation: ObservationTensor
    next_observation: ObservationTensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    discount: Tensor | float
    weight: Tensor | None
    next_mask: Tensor | None


class RowReader:
    """Makes `Rows` of batches.

    Args:
        policy: whose transforms are applied.
        gamma: discount per step, where a batch doesn't bring its own.
    """

    def __init__(self, policy: Policy, gamma: float) -> None:
        self._policy, self._gamma = policy, gamma
        self._keys = list(space_leaves(policy.spaces.observation))
        self._single = self._keys == [""]
        self._has_mask = policy.spaces.action_mask is not None
        self._flat_actions = isinstance(policy.distribution, BoxDistribution)

    def __call__(self, batch: Batch) -> Rows:
        """Return the rows of a batch.

        Raises:
            KeyError: it lacks a column.
        """
        policy = self._policy
        device = policy.device
        columns: Any = batch if device.type == "cpu" else batch.to(device)
        weight = batch.weight
        return Rows(
            observation=policy.preprocess(self._observation(columns, "observation")),
            next_observation=policy.preprocess(self._observation(columns, "next.observation")),
            action=columns["action"].reshape(len(batch), -1) if self._flat_actions else columns["action"],
            reward=columns["next.reward"],
            terminated=columns["next.terminated"],
            discount=columns["discount"] if "discount" in columns else self._gamma,  # noqa: SIM401  (a Batch has no get)
            weight=None if weight is None else weight.to(device),
            next_mask=columns["next.action_mask"] if self._has_mask else None,
        )

    def _observation(self, columns: Any, name: str) -> ObservationTensor:
        if self._single:
            column: Tensor = columns[name]
            return column.contiguous()
        return {key: columns[f"{name}.{key}"] for key in self._keys}


class Means:
    """Sums diagnostics of updates on their device, and gives their means as numbers.

    Args:
        section: of the algorithm in the manifest, for what is said when one is not finite.
        names: of the metrics.
    """

    def __init__(self, section: str, names: tuple[str, ...], device: torch.device) -> None:
        self._section, self._names = section, names
        self._sums = torch.zeros(len(names), device=device)
        self._count = 0

    def add(self, *values: Tensor) -> None:
        """Add one scalar for each name."""
        self._sums += torch.stack(values)
        self._count += 1

    def take(self) -> dict[str, float]:
        """Return the means since the last call, and begin anew.

        Raises:
            RLJobError: one of them isn't finite.
        """
        if not self._count:
            return {}
        means = dict(zip(self._names, (self._sums / self._count).tolist(), strict=True))
        self._sums.zero_()
        self._count = 0
        for name, value in means.items():
            if not math.isfinite(value):
                raise RLJobError(
                    f"{name} is {value}: learning has diverged; lower spec.training.{self._section}.learningRate, set"
                    " maxGradNorm, or normalise observations with the transform ObservationNorm"
                )
        return means


class Phases:
    """The clocks of an update's phases."""

    def __init__(self, timers: PhaseTimers | None) -> None:
        timers = PhaseTimers() if timers is None else timers
        self.transform, self.loss = timers("transform"), timers("loss")
        self.backward, self.optimizer = timers("backward"), timers("optimizer")


_Module = TypeVar("_Module", bound=nn.Module)


class Target(Generic[_Module]):
    """A copy of a module that follows it slowly.

    Attributes:
        module: the copy; nothing of it learns.
    """

    def __init__(self, online: _Module, parameters: FlatParameters) -> None:
        self.module = copy.deepcopy(online)
        self._online, self._flat = parameters, FlatParameters(self.module)

    def follow(self, tau: float) -> None:
        """Move the copy by ``tau`` of the way to the module; 1 makes them equal."""
        if tau == 1.0:
            self._flat.data.copy_(self._online.data)
        else:
            self._flat.data.lerp_(self._online.data, tau)


def noise_generator(seed: int, device: torch.device) -> torch.Generator:
    """Return the generator of a learner's own noise."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, _NOISE_STREAM))


BeforeStep = Callable[[], None]


def nothing() -> None:
    """What is called before a step where nobody listens."""
