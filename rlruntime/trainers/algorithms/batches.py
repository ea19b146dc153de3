"""What PPO learns from: rows, or whole sequences where the policy has memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rlruntime.collectors.rollout import Rollout
from rlruntime.policies.gradients import Gradient
from rlruntime.policies.observations import (
    ObservationTensor,
    flatten_time,
    index_observation,
    map_observation,
    narrow_observation,
)
from rlruntime.policies.recurrent import State
from rlruntime.policies.sequence_gradient import SequenceGradient


class Batch(NamedTuple):
    """`N` rows to learn from.

    Attributes:
        observation: ``[N, ...]``.
        action: ``[N, ...]``.
        behaviour_log_prob, behaviour_value, advantage, target: ``[N]``; the target is what values are regressed on.
        action_mask: ``[N, n]`` or None.
    """

    observation: ObservationTensor
    action: Tensor
    behaviour_log_prob: Tensor
    behaviour_value: Tensor
    advantage: Tensor
    target: Tensor
    action_mask: Tensor | None

    @classmethod
    def of(cls, rollout: Rollout, advantage: Tensor, target: Tensor, device: torch.device) -> Batch:
        """Return the valid rows of a rollout.

        Args:
            rollout: ``[T, B]``.
            advantage, target: ``[T, B]``.
            device: of the rows.
        """
        rows = _all_rows(rollout, advantage, target)
        if rollout.num_valid != rollout.valid.numel():
            rows = rows.select(rollout.valid.flatten().nonzero().squeeze(1))
        return rows.to(device)

    @property
    def num_items(self) -> int:
        """What minibatches are made of: rows."""
        return self.advantage.shape[0]

    @property
    def rows(self) -> Batch:
        """The valid rows."""
        return self

    def with_advantage(self, advantage: Tensor) -> Batch:
        """Return it with other advantages of its rows."""
        return self._replace(advantage=advantage)

    def forward(self, gradient: Gradient) -> tuple[Tensor, Tensor]:
        """Return action parameters ``[N, P]`` and values ``[N]`` of the rows, ready for a backward pass."""
        return gradient.forward(self.observation)

    def select(self, rows: Tensor) -> Batch:
        """Return the rows, copied."""
        return self.map(lambda column: column.index_select(0, rows), index_observation(self.observation, rows))

    def narrow(self, start: int, length: int) -> Batch:
        """Return ``length`` rows from ``start``, as views."""
        rows = narrow_observation(self.observation, start, length)
        return self.map(lambda column: column.narrow(0, start, length), rows)

    def to(self, device: torch.device) -> Batch:
        """Return it on a device."""
        if self.advantage.device == device:
            return self
        on_device = map_observation(lambda leaf: leaf.to(device), self.observation)
        return self.map(lambda column: column.to(device), on_device)

    def map(self, function: Callable[[Tensor], Tensor], observation: ObservationTensor) -> Batch:
        """Apply ``function`` to every column but the observation, which is given."""
        return Batch(
            observation=observation,
            action=function(self.action),
            behaviour_log_prob=function(self.behaviour_log_prob),
            behaviour_value=function(self.behaviour_value),
            advantage=function(self.advantage),
            target=function(self.target),
            action_mask=None if self.action_mask is None else function(self.action_mask),
        )


class SequenceBatch(NamedTuple):
    """`b` whole sequences of `T` steps to learn from, for policies with memory.

    Attributes:
        observation: ``[T, b, ...]``.
        state: ``[b, ...]`` by name, what the policy remembered before the first step.
        is_init: ``[T, b]`` bool, whether a row is the first of its episode.
        places: ``[T, b]`` int64, of each valid row its place in ``all_rows``, -1 of the others.
        all_rows: the valid rows of all sequences of the rollout, also of those that aren't in this batch.
    """

    observation: ObservationTensor
    state: State
    is_init: Tensor
    places: Tensor
    all_rows: Batch

    @classmethod
    def of(cls, rollout: Rollout, advantage: Tensor, target: Tensor, device: torch.device) -> SequenceBatch:
        """Return the sequences of a rollout that have a valid row; see `Batch.of`."""
        valid = rollout.valid
        rows = Batch.of(rollout, advantage, target, device)
        places = torch.full(valid.shape, -1)
        places[valid] = torch.arange(int(valid.sum()))
        sequences = cls(
            observation=map_observation(lambda leaf: leaf[:-1], rollout.observation),
            state=rollout.initial_state,
            is_init=rollout.is_init,
            places=places,
            all_rows=rows,
        )
        seen = valid.any(0)
        if not bool(seen.all()):
            sequences = sequences.select(seen.nonzero().squeeze(1))
        return sequences._replace(
            observation=map_observation(lambda leaf: leaf.to(device), sequences.observation),
            state={name: part.to(device) for name, part in sequences.state.items()},
            is_init=sequences.is_init.to(device),
            places=sequences.places.to(device),
        )

    @property
    def num_items(self) -> int:
        """What minibatches are made of: sequences."""
        return self.places.shape[1]

    @property
    def rows(self) -> Batch:
        """The valid rows, time first."""
        places = self.places.flatten()
        return self.all_rows.select(places[places >= 0])

    def with_advantage(self, advantage: Tensor) -> SequenceBatch:
        """Return it with other advantages of its rows; for the sequences of a whole rollout."""
        return self._replace(all_rows=self.all_rows.with_advantage(advantage))

    def forward(self, gradient: SequenceGradient) -> tuple[Tensor, Tensor]:
        """Return action parameters ``[n, P]`` and values ``[n]`` of the valid rows, ready for a backward pass."""
        valid = (self.places.flatten() >= 0).nonzero().squeeze(1)
        return gradient.forward(self.observation, self.state, self.is_init, valid)

    def select(self, sequences: Tensor) -> SequenceBatch:
        """Return the sequences, copied."""
        return self._map(lambda column, dim: column.index_select(dim, sequences))

    def narrow(self, start: int, length: int) -> SequenceBatch:
        """Return ``length`` sequences from ``start``, as views."""
        return self._map(lambda column, dim: column.narrow(dim, start, length))

    def _map(self, function: Callable[[Tensor, int], Tensor]) -> SequenceBatch:
        return SequenceBatch(
            observation=map_observation(lambda leaf: function(leaf, 1), self.observation),
            state={name: function(part, 0) for name, part in self.state.items()},
            is_init=function(self.is_init, 1),
            places=function(self.places, 1),
            all_rows=self.all_rows,
        )


def minibatch_bounds(num_items: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of the fewest minibatches of at most ``most`` items, whose lengths differ by at most
    one.
    """
    count = -(-num_items // most)
    start = 0
    for number in range(count):
        length = num_items // count + (number < num_items % count)
        yield start, length
        start += length


def _all_rows(rollout: Rollout, advantage: Tensor, target: Tensor) -> Batch:
    mask = rollout.action_mask
    return Batch(
        observation=flatten_time(map_observation(lambda leaf: leaf[:-1], rollout.observation)),
        action=rollout.action.flatten(0, 1),
        behaviour_log_prob=rollout.behaviour_log_prob.flatten(),
        behaviour_value=rollout.value[:-1].flatten(),
        advantage=advantage.flatten(),
        target=target.flatten(),
        action_mask=None if mask is None else mask[:-1].flatten(0, 1),
    )
