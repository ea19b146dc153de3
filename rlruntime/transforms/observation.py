"""Shape and type of observations, and functions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import ConfigError
from rlruntime.registry import import_object, nearest_remedy, register
from rlruntime.spec.training.transforms import (
    DoubleToFloatConfig,
    DTypeCastConfig,
    FlattenObservationConfig,
    PermuteConfig,
    SqueezeConfig,
    UnaryConfig,
    UnsqueezeConfig,
)
from rlruntime.transforms.base import FIELD, torch_dtype
from rlruntime.transforms.leafwise import LeafTransform, mapped_box


class _BoxTransform(LeafTransform):
    """One whose rows and bounds are mapped alike."""

    def leaf_space(self, leaf: gym.Space[Any]) -> gym.Space[Any]:
        assert isinstance(leaf, gym.spaces.Box)
        return mapped_box(leaf, lambda rows: self.map_rows(rows, tuple(leaf.shape)))

    def map_leaf(self, key: str, rows: Tensor) -> Tensor:
        return self.map_rows(rows, tuple(self.leaves[key].shape or ()))

    def map_rows(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Map ``rows [N, *shape]``."""
        raise NotImplementedError


@register("transform", "FlattenObservation")
class FlattenObservation(_BoxTransform):
    """Make every array a vector."""

    Config = FlattenObservationConfig

    def map_rows(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        return rows.reshape(rows.shape[0], int(np.prod(shape)))

    def unmap_leaf(self, key: str, rows: Tensor) -> Tensor:
        return rows.reshape(rows.shape[0], *(self.leaves[key].shape or ()))


@register("transform", "Squeeze")
class Squeeze(_BoxTransform):
    """Take away one dimension of size 1."""

    Config = SqueezeConfig
    wants = "a Box with a dimension of size 1 where dim points"

    def accepts(self, leaf: gym.Space[Any]) -> bool:
        shape = tuple(leaf.shape or ())
        inside = -len(shape) <= self.config.dim < len(shape)
        return isinstance(leaf, gym.spaces.Box) and inside and shape[self.config.dim] == 1

    def map_rows(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        return rows.squeeze(_with_rows(self.config.dim))

    def unmap_leaf(self, key: str, rows: Tensor) -> Tensor:
        return rows.unsqueeze(_with_rows(self.config.dim))


@register("transform", "Unsqueeze")
class Unsqueeze(_BoxTransform):
    """Add one dimension of size 1."""

    Config = UnsqueezeConfig
    wants = "a Box with enough dimensions for dim"

    def accepts(self, leaf: gym.Space[Any]) -> bool:
        num_dims = len(leaf.shape or ()) + 1
        return isinstance(leaf, gym.spaces.Box) and -num_dims <= self.config.dim < num_dims

    def map_rows(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        return rows.unsqueeze(_with_rows(self.config.dim))

    def unmap_leaf(self, key: str, rows: Tensor) -> Tensor:
        return rows.squeeze(_with_rows(self.config.dim))


@register("transform", "Permute")
class Permute(_BoxTransform):
    """Put dimensions into another order."""

    Config = PermuteConfig
    wants = "a Box with as many dimensions as dims lists"

    def settle(self) -> None:
        dims = self.config.dims
        size = len(dims)
        self._dims = tuple(dim % size for dim in dims)
        if sorted(self._dims) != list(range(size)) or any(not -size <= dim < size for dim in dims):
            raise ConfigError(
                "dims must list each dimension once", field=FIELD, value=list(dims), remedy="correct dims"
            )
        self._back = tuple(self._dims.index(dim) for dim in range(size))

    def accepts(self, leaf: gym.Space[Any]) -> bool:
        return isinstance(leaf, gym.spaces.Box) and len(leaf.shape) == len(self._dims)

    def map_rows(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        return rows.permute(0, *(dim + 1 for dim in self._dims))

    def unmap_leaf(self, key: str, rows: Tensor) -> Tensor:
        return rows.permute(0, *(dim + 1 for dim in self._back))


@register("transform", "DTypeCast")
class DTypeCast(_BoxTransform):
    """Make numbers those of another type."""

    Config = DTypeCastConfig

    def settle(self) -> None:
        self._dtype: torch.dtype = getattr(torch, self.config.dtype)

    def leaf_space(self, leaf: gym.Space[Any]) -> gym.Space[Any]:
        assert isinstance(leaf, gym.spaces.Box)
        dtype = np.dtype(self.config.dtype)
        if dtype.kind == "b":
            return gym.spaces.MultiBinary(leaf.shape)
        if dtype.kind in "iu":
            low, high = (_to_integers(bound, dtype) for bound in (leaf.low, leaf.high))
            return gym.spaces.Box(low, high, leaf.shape, dtype.type)
        with np.errstate(over="ignore"):
            return gym.spaces.Box(leaf.low.astype(dtype), leaf.high.astype(dtype), leaf.shape, dtype.type)

    def map_rows(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self._dtype == torch.bool:
            return (rows != 0).to(torch.int8)
        return rows.to(self._dtype)

    def unmap_leaf(self, key: str, rows: Tensor) -> Tensor:
        return rows.to(torch_dtype(self.leaves[key]))


@register("transform", "DoubleToFloat")
class DoubleToFloat(_BoxTransform):
    """Make float64 float32. Rows of an environment are that already; data from elsewhere may not be."""

    Config = DoubleToFloatConfig
    wants = "a Box of floats"

    def accepts(self, leaf: gym.Space[Any]) -> bool:
        return isinstance(leaf, gym.spaces.Box) and np.dtype(leaf.dtype).kind == "f"

    def map_rows(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        return rows.to(torch.float32)

    def unmap_leaf(self, key: str, rows: Tensor) -> Tensor:
        return rows.to(torch_dtype(self.leaves[key]))


def symlog(rows: Tensor) -> Tensor:
    """Return ``sign(x) ln(1 + |x|)`` (Hafner et al. 2023, arXiv:2301.04104, equation 9)."""
    return rows.sign() * rows.abs().log1p()


@register("transform", "Unary")
class Unary(LeafTransform):
    """Apply a function to every number, or to every row."""

    Config = UnaryConfig
    FUNCTIONS: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {
        "abs": torch.abs,
        "exp": torch.exp,
        "log1p": torch.log1p,
        "neg": torch.neg,
        "sigmoid": torch.sigmoid,
        "sign": torch.sign,
        "sqrt": torch.sqrt,
        "square": torch.square,
        "symlog": symlog,
        "tanh": torch.tanh,
    }

    def settle(self) -> None:
        name = self.config.function
        if ":" in name:
            self._function: Callable[[Tensor], Tensor] = import_object(name, field=FIELD)
        elif name in self.FUNCTIONS:
            self._function = self.FUNCTIONS[name]
        else:
            known = list(self.FUNCTIONS)
            raise ConfigError(
                "Unary knows no such function",
                field=FIELD,
                value=name,
                remedy=nearest_remedy(name, known) or f"use {', '.join(known)}, or package.module:function",
            )

    def leaf_space(self, leaf: gym.Space[Any]) -> gym.Space[Any]:
        """Return a Box without bounds: nothing says what the function does to them."""
        rows = torch.from_numpy(np.ones((2, *(leaf.shape or ())), leaf.dtype))
        try:
            outcome: Any = self._function(rows)
        except Exception as error:
            raise ConfigError(
                f"the function of Unary raised {type(error).__name__}: {error}",
                field=FIELD,
                value=self.config.function,
                remedy="give one that takes a tensor [N, ...]",
            ) from error
        if not isinstance(outcome, Tensor) or outcome.shape[:1] != (2,):
            raise ConfigError(
                "the function of Unary must return a tensor with a row for each row",
                field=FIELD,
                value=type(outcome).__name__,
                remedy="keep the first dimension",
            )
        return unbounded(outcome)

    def map_leaf(self, key: str, rows: Tensor) -> Tensor:
        return self._function(rows)


def unbounded(rows: Tensor) -> gym.Space[Any]:
    """Return the space without bounds that rows like these are of; MultiBinary for bool."""
    shape, dtype = tuple(rows.shape[1:]), np.dtype(str(rows.dtype).removeprefix("torch."))
    if dtype.kind == "b":
        return gym.spaces.MultiBinary(shape)
    if dtype.kind == "f":
        return gym.spaces.Box(-np.inf, np.inf, shape, dtype.type)
    limits = np.iinfo(dtype)
    return gym.spaces.Box(limits.min, limits.max, shape, dtype.type)


def _with_rows(dim: int) -> int:
    """Return a dimension of one row as one of rows."""
    return dim + 1 if dim >= 0 else dim


def _to_integers(bound: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return a bound in an integer type, cut off at what that holds."""
    limits = np.iinfo(dtype)
    outcome = np.full(bound.shape, limits.max, dtype)
    inside = bound < limits.max
    outcome[inside] = np.maximum(bound[inside], limits.min).astype(dtype)
    return outcome
