"""Images: their type, size, colour and part. An image is a Box of height, width and channels, in either order."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rlruntime.errors import ConfigError
from rlruntime.registry import register
from rlruntime.spec.training.transforms import (
    CenterCropConfig,
    CropConfig,
    GrayScaleConfig,
    ResizeConfig,
    ToFloatImageConfig,
)
from rlruntime.transforms.base import FIELD
from rlruntime.transforms.leafwise import LeafTransform, mapped_box

_LUMA = (0.299, 0.587, 0.114)
_MODES = {"Area": "area", "Bilinear": "bilinear", "Nearest": "nearest"}


class _ImageTransform(LeafTransform):
    """Base of these. Rows come to `map_image` with channels first, and go back the way they came."""

    wants = "an image (a Box with three dimensions)"

    def accepts(self, leaf: gym.Space[Any]) -> bool:
        return isinstance(leaf, gym.spaces.Box) and len(leaf.shape) == 3

    def channels_last(self, shape: tuple[int, ...]) -> bool:
        """Whether the channels of an image of this shape come last."""
        if self.config.channels != "Auto":
            return bool(self.config.channels == "Last")
        return shape[-1] <= shape[0]

    def size(self, leaf: gym.Space[Any]) -> tuple[int, int, int]:
        """Return height, width and channels."""
        shape = tuple(leaf.shape or ())
        return (shape[0], shape[1], shape[2]) if self.channels_last(shape) else (shape[1], shape[2], shape[0])

    def leaf_space(self, leaf: gym.Space[Any]) -> gym.Space[Any]:
        """Return a Box of the outcome's shape; bounds that differ within the image become the outermost ones."""
        assert isinstance(leaf, gym.spaces.Box)
        shape = self._map(torch.from_numpy(np.zeros((1, *leaf.shape), leaf.dtype)), leaf).shape[1:]
        return gym.spaces.Box(leaf.low.min(), leaf.high.max(), tuple(shape), np.dtype(leaf.dtype).type)

    def map_leaf(self, key: str, rows: Tensor) -> Tensor:
        return self._map(rows, self.leaves[key])

    def _map(self, rows: Tensor, leaf: gym.Space[Any]) -> Tensor:
        if not self.channels_last(tuple(leaf.shape or ())):
            return self.map_image(rows)
        return self.map_image(rows.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def map_image(self, images: Tensor) -> Tensor:
        """Map images ``[N, C, H, W]``."""
        raise NotImplementedError


@register("transform", "ToFloatImage")
class ToFloatImage(_ImageTransform):
    """Make images of bytes float32 from 0 to 1, with channels first."""

    Config = ToFloatImageConfig
    config: ToFloatImageConfig
    wants = "an image of bytes (a Box of uint8 with three dimensions)"

    def accepts(self, leaf: gym.Space[Any]) -> bool:
        return super().accepts(leaf) and leaf.dtype == np.uint8

    def leaf_space(self, leaf: gym.Space[Any]) -> gym.Space[Any]:
        height, width, channels = self.size(leaf)
        return gym.spaces.Box(0.0, 1.0, (channels, height, width), np.float32)

    def map_leaf(self, key: str, rows: Tensor) -> Tensor:
        if self.channels_last(tuple(self.leaves[key].shape or ())):
            rows = rows.permute(0, 3, 1, 2)
        return rows.to(torch.float32) / 255.0

    def unmap_leaf(self, key: str, rows: Tensor) -> Tensor:
        bytes_ = (rows * 255.0).round().clamp(0, 255).to(torch.uint8)
        return bytes_.permute(0, 2, 3, 1) if self.channels_last(tuple(self.leaves[key].shape or ())) else bytes_


@register("transform", "Resize")
class Resize(_ImageTransform):
    """Make images larger or smaller."""

    Config = ResizeConfig
    config: ResizeConfig

    def map_image(self, images: Tensor) -> Tensor:
        numbers = images.to(torch.float32)
        if images.shape[1] == 1:  # whose strides would choose the kernels for channels last, which take longer
            numbers = numbers[:, 0].contiguous().unsqueeze(1)
        size = (self.config.height, self.config.width)
        corners = False if self.config.interpolation == "Bilinear" else None
        scaled = functional.interpolate(numbers, size, mode=_MODES[self.config.interpolation], align_corners=corners)
        return _like(scaled, images.dtype)


@register("transform", "GrayScale")
class GrayScale(_ImageTransform):
    """Make images of three colours grey."""

    Config = GrayScaleConfig
    config: GrayScaleConfig
    wants = "an image with three channels"

    def accepts(self, leaf: gym.Space[Any]) -> bool:
        return super().accepts(leaf) and self.size(leaf)[2] == 3

    def map_image(self, images: Tensor) -> Tensor:
        red, green, blue = images.to(torch.float32).unbind(1)
        return _like((_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue).unsqueeze(1), images.dtype)


class _Crop(_ImageTransform):
    """One that cuts out a rectangle."""

    def corner(self, height: int, width: int) -> tuple[int, int]:
        """Return the first row and column of the rectangle in an image of this size."""
        raise NotImplementedError

    def leaf_space(self, leaf: gym.Space[Any]) -> gym.Space[Any]:
        assert isinstance(leaf, gym.spaces.Box)
        height, width, _ = self.size(leaf)
        top, left = self.corner(height, width)
        if min(top, left) < 0 or top + self.config.height > height or left + self.config.width > width:
            raise ConfigError(
                f"{type(self).__name__} reaches beyond an image of {height} x {width} pixels",
                field=FIELD,
                value=(self.config.height, self.config.width),
                remedy="cut out less",
            )
        return mapped_box(leaf, lambda rows: self._map(rows, leaf))

    def map_image(self, images: Tensor) -> Tensor:
        top, left = self.corner(images.shape[-2], images.shape[-1])
        return images[..., top : top + self.config.height, left : left + self.config.width]


@register("transform", "Crop")
class Crop(_Crop):
    """Cut out a rectangle."""

    Config = CropConfig
    config: CropConfig

    def corner(self, height: int, width: int) -> tuple[int, int]:
        return self.config.top, self.config.left


@register("transform", "CenterCrop")
class CenterCrop(_Crop):
    """Cut out the middle."""

    Config = CenterCropConfig
    config: CenterCropConfig

    def corner(self, height: int, width: int) -> tuple[int, int]:
        return (height - self.config.height) // 2, (width - self.config.width) // 2


def _like(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers as another type, rounded where that holds integers."""
    return numbers.to(dtype) if dtype.is_floating_point else numbers.round().to(dtype)
