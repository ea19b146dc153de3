"""Spaces as JSON, so that a trained policy needs no environment to be read back."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlruntime.envs.protocol import EnvSpaces


def spaces_to_json(spaces: EnvSpaces) -> dict[str, Any]:
    """Return a JSON value that `spaces_from_json` reads back equal."""
    return {
        "observation": _to_json(spaces.observation),
        "action": _to_json(spaces.action),
        "actionMask": spaces.action_mask,
        "actionMaskSize": spaces.action_mask_size,
    }


def spaces_from_json(document: dict[str, Any]) -> EnvSpaces:
    """Return the spaces.

    Raises:
        ValueError, KeyError, TypeError: ``document`` isn't what `spaces_to_json` returns.
    """
    return EnvSpaces(
        observation=_from_json(document["observation"]),
        action=_from_json(document["action"]),
        action_mask=document["actionMask"],
        action_mask_size=int(document["actionMaskSize"]),
    )


def _to_json(space: gym.Space[Any]) -> dict[str, Any]:
    if isinstance(space, gym.spaces.Dict):
        return {"type": "Dict", "spaces": {key: _to_json(leaf) for key, leaf in space.spaces.items()}}
    if isinstance(space, gym.spaces.Box):
        return {
            "type": "Box",
            "dtype": str(space.dtype),
            "shape": list(space.shape),
            "low": _bound_to_json(space.low),
            "high": _bound_to_json(space.high),
        }
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"type": "MultiDiscrete", "nvec": nvec, "start": start, "dtype": str(space.dtype)}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    raise TypeError(f"no JSON for the space {space}")


def _from_json(document: dict[str, Any]) -> gym.Space[Any]:
    kind = document["type"]
    if kind == "Dict":
        return gym.spaces.Dict({key: _from_json(leaf) for key, leaf in document["spaces"].items()})
    if kind == "Box":
        dtype, shape = np.dtype(document["dtype"]), tuple(document["shape"])
        low, high = (_bound_from_json(document[name], shape, dtype) for name in ("low", "high"))
        return gym.spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return gym.spaces.Discrete(document["n"], start=document["start"], dtype=np.dtype(document["dtype"]).type)
    if kind == "MultiDiscrete":
        dtype = np.dtype(document["dtype"])
        nvec, start = (np.array(document[name], dtype) for name in ("nvec", "start"))
        return gym.spaces.MultiDiscrete(nvec, dtype.type, start=start)
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(tuple(document["shape"]))
    raise ValueError(f"unknown space {kind!r}")


def _bound_to_json(bound: np.ndarray) -> Any:
    """Return one number where all are the same, else all of them, flat; infinities as strings, since JSON has none."""
    numbers = [_number(value) for value in bound.reshape(-1).tolist()]
    return numbers[0] if numbers and all(number == numbers[0] for number in numbers) else numbers


def _number(value: float) -> float | str:
    return str(value) if value in (float("inf"), float("-inf")) else value


def _bound_from_json(document: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    values = document if isinstance(document, list) else [document] * int(np.prod(shape))
    return np.array([float(value) if isinstance(value, str) else value for value in values], dtype).reshape(shape)
