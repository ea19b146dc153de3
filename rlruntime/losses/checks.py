"""Argument checks of the loss functions."""

from __future__ import annotations

import torch


def require_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...] | torch.Size) -> None:
    """Raise ``ValueError`` unless ``tensor`` has ``shape``."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")


def require_rank(name: str, tensor: torch.Tensor, rank: int) -> None:
    """Raise ``ValueError`` unless ``tensor`` has ``rank`` dimensions."""
    if tensor.ndim != rank:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {rank} dimensions")


def require_float(name: str, tensor: torch.Tensor) -> None:
    """Raise ``TypeError`` unless ``tensor`` holds floating-point numbers."""
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {tensor.dtype}, expected a floating-point dtype")


def require_bool(name: str, tensor: torch.Tensor) -> None:
    """Raise ``TypeError`` unless ``tensor`` holds booleans."""
    if tensor.dtype != torch.bool:
        raise TypeError(f"{name} has dtype {tensor.dtype}, expected torch.bool")
