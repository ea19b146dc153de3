"""Encoders with memory, and how they are run: one step at a time where a policy acts, over sequences where it learns.

An encoder has memory by an attribute ``recurrent_state_shapes``: names, and the shape of one row of each. Its
``forward(observation, state, is_init)`` takes `N` rows of an observation, the state (``{name: [N, *shape]}`` float32,
zeros where an episode begins) and ``is_init [N]`` bool, whether a row is the first of its episode; it returns features
``[N, output_size]`` and the state for the next step. What depends on earlier rows must be in the state.

Over a sequence it is called step by step, unless it has ``forward_sequence(observation, state, is_init)`` that does
the same at once: ``T * N`` rows of an observation, time first, the state before the first step, not yet zeroed, and
``is_init [T, N]``; features ``[T * N, output_size]`` and the state after the last step.

A policy's state is flat: ``actor.<name>``, and ``critic.<name>`` where the critic has an encoder of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlruntime.errors import ConfigError
from rlruntime.policies.observations import ObservationTensor, narrow_observation

State = dict[str, Tensor]
"""Rows of a recurrent state by name, ``[N, *shape]``; empty where there is no memory."""
Shapes = dict[str, tuple[int, ...]]


def is_recurrent(encoder: nn.Module) -> bool:
    """Whether an encoder has memory."""
    return hasattr(encoder, "recurrent_state_shapes")


def check_recurrent(encoder: nn.Module, type_name: str, field: str) -> None:
    """Raise a `ConfigError` where an encoder's ``recurrent_state_shapes`` are no shapes by name."""
    shapes: Any = encoder.recurrent_state_shapes
    fit = isinstance(shapes, Mapping) and len(shapes) > 0
    if not fit or not all(_is_name(name) and _is_shape(shape) for name, shape in shapes.items()):
        raise ConfigError(
            "a network's recurrent_state_shapes must name at least one shape, without dots in the names",
            field=f"{field}.type",
            value=type_name,
            remedy='set self.recurrent_state_shapes = {"hidden": (64,)} in its __init__',
        )


def named_shapes(encoders: Iterable[tuple[str, nn.Module]]) -> Shapes:
    """Return the shapes of one row of state of some encoders by ``<encoder>.<name>``; one that is there twice counts
    under its first name.
    """
    shapes: Shapes = {}
    seen: list[nn.Module] = []
    for prefix, encoder in encoders:
        if is_recurrent(encoder) and not any(encoder is other for other in seen):
            own: Any = encoder.recurrent_state_shapes
            shapes |= {f"{prefix}.{name}": tuple(shape) for name, shape in own.items()}
        seen.append(encoder)
    return shapes


def zeros_of(shapes: Mapping[str, tuple[int, ...]], num_rows: int, device: torch.device) -> State:
    """Return the state of `N` episodes that begin."""
    return {name: torch.zeros((num_rows, *shape), device=device) for name, shape in shapes.items()}


def zeroed(tensor: Tensor, is_init: Tensor) -> Tensor:
    """Return ``tensor [N, ...]`` with zeros in the rows where ``is_init [N]``."""
    return tensor.masked_fill(is_init.view(-1, *(1,) * (tensor.ndim - 1)), 0.0)


def encode_step(
    encoder: nn.Module, prefix: str, observation: ObservationTensor, state: State, is_init: Tensor
) -> tuple[Tensor, State]:
    """Return the features ``[N, F]`` of `N` rows, and the policy's state after them.

    Args:
        encoder: with memory or without.
        prefix: its name in the state.
        observation: `N` rows.
        state: of the whole policy, before the rows.
        is_init: ``[N]`` bool, whether a row is the first of its episode.

    Raises:
        ConfigError: the encoder returns a state of other names.
    """
    if not is_recurrent(encoder):
        return encoder(observation), state
    own = {name: zeroed(rows, is_init) for name, rows in _part(state, prefix).items()}
    features, after = encoder(observation, own, is_init)
    return features, _updated(state, prefix, own, after, encoder)


def encode_sequence(
    encoder: nn.Module, prefix: str, observation: ObservationTensor, state: State, is_init: Tensor
) -> tuple[Tensor, State]:
    """Return the features ``[T * N, F]`` of a sequence, and the policy's state after it.

    Args:
        encoder: with memory or without.
        prefix: its name in the state.
        observation: ``T * N`` rows, time first.
        state: of the whole policy, before the first step.
        is_init: ``[T, N]`` bool.

    Raises:
        ConfigError: the encoder returns a state of other names.
    """
    if not is_recurrent(encoder):
        return encoder(observation), state
    if hasattr(encoder, "forward_sequence"):
        own = _part(state, prefix)
        features, after = encoder.forward_sequence(observation, own, is_init)  # type: ignore[operator]
        return features, _updated(state, prefix, own, after, encoder)
    num_steps, num_rows = is_init.shape
    outputs = []
    for step in range(num_steps):
        rows = narrow_observation(observation, step * num_rows, num_rows)
        features, state = encode_step(encoder, prefix, rows, state, is_init[step])
        outputs.append(features)
    return torch.cat(outputs), state


def _part(state: State, prefix: str) -> State:
    start = f"{prefix}."
    return {name.removeprefix(start): rows for name, rows in state.items() if name.startswith(start)}


def _updated(state: State, prefix: str, before: State, after: Mapping[str, Tensor], encoder: nn.Module) -> State:
    if after.keys() != before.keys():
        raise ConfigError(
            f"the network {type(encoder).__name__} returned a state of {sorted(after)}, and was given {sorted(before)}",
            field="spec.training.network",
            remedy="return a tensor for each of its recurrent_state_shapes",
        )
    return {**state, **{f"{prefix}.{name}": rows for name, rows in after.items()}}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and "." not in name


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple | list | torch.Size) and all(isinstance(size, int) and size > 0 for size in shape)
