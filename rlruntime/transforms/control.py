"""Transforms that decide when a copy is stepped, reset or cut off; their work is done by the wrappers in `copies`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rlruntime.registry import register
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.transforms import (
    EndOfLifeConfig,
    FrameSkipConfig,
    NoopResetConfig,
    RandomTruncationConfig,
)
from rlruntime.transforms.base import Seat, Transform


class CopyTransform(Transform):
    """Base of these: a wrapper of each copy, with the settings of the config, and nothing else."""

    seats: frozenset[Seat] = frozenset({"environment"})
    needs_wrapper = True

    def __init__(self, config: Any, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def copy_wrapper(cls, config: Any) -> Component:
        settings = {name: value for name, value in config.model_dump().items() if value is not None}
        return Component(type=f"rlruntime.transforms.copies:{cls.__name__}", config=settings)


@register("transform", "FrameSkip")
class FrameSkip(CopyTransform):
    """Repeat each action and sum its rewards; see `rlruntime.transforms.copies.FrameSkip`."""

    Config = FrameSkipConfig


@register("transform", "NoopReset")
class NoopReset(CopyTransform):
    """Begin episodes after some steps that do nothing; see `rlruntime.transforms.copies.NoopReset`."""

    Config = NoopResetConfig


@register("transform", "EndOfLife")
class EndOfLife(CopyTransform):
    """End episodes where a life is lost; see `rlruntime.transforms.copies.EndOfLife`."""

    Config = EndOfLifeConfig
    training_only = True


@register("transform", "RandomTruncation")
class RandomTruncation(CopyTransform):
    """Truncate episodes at random; see `rlruntime.transforms.copies.RandomTruncation`."""

    Config = RandomTruncationConfig
    training_only = True
