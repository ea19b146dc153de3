"""A trained policy for other programs: safetensors, torch.export and ONNX.

The exported program maps raw observations, transforms included, to the most probable action in the environment's own
units. A policy with memory takes what it remembered as further inputs, zeros where an episode begins, and returns what
to remember, for the next call, as further outputs. The batch size is free. Inputs come one by one, not as a dict, in
the same order and under the same names in every format; a small ``policy.json`` beside the files says which.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlruntime.envs.protocol import leaf_dtype, leaf_shape
from rlruntime.errors import MissingExtraError, RLJobError, StorageError
from rlruntime.policies.artifact import load_policy, policy_path
from rlruntime.policies.observations import space_leaves
from rlruntime.policies.policy import Policy

FORMATS = ("safetensors", "torch", "onnx")
DESCRIPTION_FILE = "policy.json"
_FILES = {"safetensors": "policy.safetensors", "torch": "policy.pt2", "onnx": "policy.onnx"}
_EXAMPLE_ROWS = 3
_BATCH = "batch"
_OPSET = 20


class Port(NamedTuple):
    """One input or output of an exported policy.

    Attributes:
        name: as in the ONNX file.
        shape: of one row.
        dtype: NumPy's name of the dtype.
        key: dotted key of the observation that goes in; empty for all else.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    key: str = ""


class DeterministicPolicy(nn.Module):
    """What is exported: the most probable action for `N` raw observations.

    Attributes:
        inputs: what `forward` takes, in order.
        outputs: what it returns, in order: the action, and what to remember.
    """

    start: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        spaces = policy.spaces
        leaves = space_leaves(spaces.observation)
        self.inputs = [
            Port(_input_name(key), leaf_shape(leaf), str(leaf_dtype(leaf)), key) for key, leaf in leaves.items()
        ]
        if spaces.action_mask is not None:
            self.inputs.append(Port("action_mask", (spaces.action_mask_size,), "bool"))
        action = spaces.action
        self.outputs = [Port("action", tuple(action.shape or ()), str(action.dtype))]
        self.memory = [
            Port(f"state.{name}", shape, "float32")
            for name, shape in policy.state_shapes.items()
            if name.startswith("actor.")
        ]
        self.inputs += self.memory
        self.outputs += [port._replace(name=f"next.{port.name}") for port in self.memory]
        self._keys = list(leaves)
        self._single = not isinstance(spaces.observation, gym.spaces.Dict)
        self._has_mask = spaces.action_mask is not None
        self._dtype = torch.from_numpy(np.zeros(0, action.dtype)).dtype
        discrete = isinstance(action, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
        start = np.asarray(action.start if discrete else 0, np.int64)  # type: ignore[attr-defined]
        self.starts_at_zero = not start.any()
        self.register_buffer("start", torch.from_numpy(start.copy()))

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return actions ``[N, ...]`` as the environment takes them, and what to remember.

        Args:
            inputs: one tensor ``[N, ...]`` for each of ``self.inputs``.
        """
        leaves = inputs[: len(self._keys)]
        observation = leaves[0] if self._single else dict(zip(self._keys, leaves, strict=True))
        mask = inputs[len(self._keys)] if self._has_mask else None
        names = [port.name.removeprefix("state.") for port in self.memory]
        state = dict(zip(names, inputs[len(inputs) - len(names) :], strict=True))
        going_on = torch.zeros_like(leaves[0].flatten(1)[:, 0] if leaves[0].ndim > 1 else leaves[0], dtype=torch.bool)
        distribution = self.policy.distribution
        params, state = self.policy.step(observation, state, going_on)
        action = distribution.to_env_tensor(distribution.mode(params, mask))
        if not self.starts_at_zero:
            action = action + self.start
        action = action.to(self._dtype)
        return (action, *(state[name] for name in names)) if names else action


def export_policy(run: str | os.PathLike[str], folder: Path, formats: Sequence[str] = FORMATS) -> dict[str, Path]:
    """Write a trained policy in each format, and ``policy.json``.

    Args:
        run: a run folder, or a policy file.
        folder: where the files go; made when absent.
        formats: some of `FORMATS`.

    Returns:
        The files by format, and the description as ``json``.

    Raises:
        CheckpointError: there is no policy, or it is damaged.
        MissingExtraError: ONNX is asked for, and its packages are missing.
        RLJobError: the network can't be traced.
        StorageError: a file can't be written.
    """
    if "onnx" in formats:
        _require_onnx()
    source = policy_path(Path(run))
    policy = DeterministicPolicy(load_policy(source).module)
    program = _trace(policy) if {"torch", "onnx"} & set(formats) else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = {name: _write(folder / _FILES[name], _writer(name, source, policy, program)) for name in formats}
        text = json.dumps(describe(policy, formats), indent=2) + "\n"
        written["json"] = _write(folder / DESCRIPTION_FILE, lambda path: path.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise StorageError(
            f"can't write the exported policy to {folder}: {error.strerror or error}; choose another folder"
        ) from None
    return written


def describe(policy: DeterministicPolicy, formats: Sequence[str]) -> dict[str, Any]:
    """Return what ``policy.json`` says."""
    return {
        "formatVersion": 1,
        "files": {name: _FILES[name] for name in formats},
        "inputs": [_port_to_json(port) for port in policy.inputs],
        "outputs": [_port_to_json(port) for port in policy.outputs],
        "action": "the most probable one, in the environment's units",
    }


def _input_name(key: str) -> str:
    return f"observation.{key}" if key else "observation"


def _port_to_json(port: Port) -> dict[str, Any]:
    document: dict[str, Any] = {"name": port.name, "shape": [_BATCH, *port.shape], "dtype": port.dtype}
    if port.key:
        document["observationKey"] = port.key
    return document


def _writer(
    name: str, source: Path, policy: DeterministicPolicy, program: torch.export.ExportedProgram | None
) -> Callable[[Path], object]:
    if name == "safetensors":
        return lambda path: shutil.copyfile(source, path)
    assert program is not None
    if name == "torch":
        return lambda path: _save_torch(program, path)
    return lambda path: _save_onnx(policy, program, path)


def _write(path: Path, write: Callable[[Path], object]) -> Path:
    """Write beside the file and rename, so that it is complete or as it was."""
    temporary = path.with_name(f".writing-{path.name}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _trace(policy: DeterministicPolicy) -> torch.export.ExportedProgram:
    example = tuple(_example(port) for port in policy.inputs)
    batch = torch.export.Dim(_BATCH, min=1)
    shapes = {"inputs": tuple({0: batch} for _ in example)}
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(policy, example, dynamic_shapes=shapes)
    except Exception as error:
        raise _untraceable(policy, "torch.export", error) from error


def _example(port: Port) -> Tensor:
    array = np.zeros((_EXAMPLE_ROWS, *port.shape), port.dtype)
    return torch.from_numpy(~array if port.dtype == "bool" else array)


def _save_torch(program: torch.export.ExportedProgram, path: Path) -> None:
    with _quiet():
        torch.export.save(program, path)


def _save_onnx(policy: DeterministicPolicy, program: torch.export.ExportedProgram, path: Path) -> None:
    try:
        with _quiet():
            converted = torch.onnx.export(
                program,
                input_names=[port.name for port in policy.inputs],
                output_names=[port.name for port in policy.outputs],
                opset_version=_OPSET,
                dynamo=True,
                external_data=False,
                optimize=True,
                verbose=False,
            )
            assert converted is not None
            path.write_bytes(_with_named_batch(converted.model_proto).SerializeToString())
    except OSError:
        raise
    except Exception as error:
        raise _untraceable(policy, "ONNX", error) from error


def _with_named_batch(model: Any) -> Any:
    """Give the one free dimension of an ONNX model its name; the exporter's own is a number of torch's."""
    graph = model.graph
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == symbol:
                dimension.dim_param = _BATCH
    return model


def _untraceable(policy: DeterministicPolicy, target: str, error: Exception) -> RLJobError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    network = policy.policy.network.type
    return RLJobError(f"the network {network} can't be exported to {target}: {reason}; use --format safetensors")


def _require_onnx() -> None:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("the ONNX export", package=package, extra="rljob[onnx]")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' own warnings and progress off the terminal; what fails is raised."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
