"""A trained policy in one file, and its use without the trainer.

The file is in the safetensors format: the parameters and buffers of the policy, and in its metadata what is needed to
build the modules again: kind, spaces, network, transforms.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rlruntime.attempts import find_run
from rlruntime.envs.protocol import leaf_dtype
from rlruntime.envs.spaces import MASK_KEY, flat_mask
from rlruntime.errors import CheckpointError, StorageError
from rlruntime.policies.build import KINDS, build_policy
from rlruntime.policies.observations import ObservationTensor, leading_size, space_leaves
from rlruntime.policies.policy import Policy
from rlruntime.policies.spaces_json import spaces_from_json, spaces_to_json
from rlruntime.spec.training.component import Component
from rlruntime.user_code import make_importable, remembered_code

FORMAT_VERSION = 1
POLICY_FILE = Path("policy") / "policy.safetensors"
_METADATA_KEY = "rljob.policy"


class ActResult(NamedTuple):
    """What `LoadedPolicy.act` returns.

    Attributes:
        action: as the environment takes it, with a leading dimension where the observation had one.
        state: of a policy with memory, for the next call; None without one.
    """

    action: np.ndarray
    state: dict[str, Tensor] | None


class LoadedPolicy:
    """A trained policy, ready to act.

    Attributes:
        module: the policy, in evaluation mode.
        spaces: what it was trained for.
    """

    def __init__(self, module: Policy, seed: int = 0) -> None:
        self.module, self.spaces = module, module.spaces
        self._leaves = space_leaves(module.spaces.observation)
        self._generator = torch.Generator(device=module.device).manual_seed(seed)

    def act(
        self,
        observation: Any,
        state: dict[str, Tensor] | None = None,
        deterministic: bool = True,
        action_mask: Any = None,
    ) -> ActResult:
        """Choose actions.

        Args:
            observation: as the environment returns it, for one copy or with a leading batch dimension; nested Dict
                and Tuple observations may hold more than the policy looks at.
            state: that of the previous call; None at the start of an episode, and for policies without memory. To
                start an episode in some rows of a batch alone, set them to 0.
            deterministic: take the most probable action instead of a sample.
            action_mask: ``[n]`` or ``[N, n]`` bool where the environment gives one in ``info``; that of a Dict
                observation is found.

        Raises:
            ValueError: the observation, the state or the mask doesn't fit what the policy was trained for, or the mask
                is missing.
        """
        rows, batched = self._rows(observation)
        mask = self._mask(observation, action_mask, leading_size(rows), batched)
        distribution = self.module.distribution
        with torch.no_grad():
            remembered = self._state(state, leading_size(rows))
            going_on = torch.zeros(leading_size(rows), dtype=torch.bool, device=self.module.device)
            params, remembered = self.module.step(rows, remembered, going_on)
            if deterministic:
                action = distribution.mode(params, mask)
            else:
                noise = distribution.draw_noise((params.shape[0],), self._generator, params.device)
                shape = (params.shape[0], *distribution.action_shape)
                action = torch.empty(shape, dtype=distribution.action_dtype, device=params.device)
                distribution.sample(params, noise, mask, action)
            chosen = self._to_env(distribution.to_env_tensor(action).cpu().numpy())
        return ActResult(chosen if batched else chosen[0], remembered if self.module.is_recurrent else None)

    def _state(self, state: dict[str, Tensor] | None, num_rows: int) -> dict[str, Tensor]:
        initial = self.module.initial_state(num_rows)
        if state is None:
            return initial
        for name in sorted(initial.keys() | state.keys()):
            if name not in initial:
                raise ValueError(f"state has {name!r}, which this policy doesn't remember")
            shape = tuple(initial[name].shape)
            if name not in state or tuple(state[name].shape) != shape:
                raise ValueError(f"state {name!r} must have shape {shape}; hand in what the previous call returned")
        return {name: rows.to(initial[name]) for name, rows in state.items()}

    def _rows(self, observation: Any) -> tuple[ObservationTensor, bool]:
        device = self.module.device
        leading: set[tuple[int, ...]] = set()
        tensors = {}
        for key, leaf in self._leaves.items():
            array, shape = np.asarray(_find(observation, key)), tuple(leaf.shape or ())
            before = array.shape[: array.ndim - len(shape)]
            if array.shape != before + shape or len(before) > 1:
                name = f"observation {key!r}" if key else "observation"
                raise ValueError(f"{name} has shape {array.shape}, expected {shape} or (N, *{shape})")
            leading.add(before)
            rows = np.require(array if before else array[None], leaf_dtype(leaf), ["C", "W"])
            tensors[key] = torch.from_numpy(rows).to(device)
        if len(leading) > 1:
            raise ValueError(f"the parts of the observation differ in their number of rows: {sorted(leading)}")
        single = not isinstance(self.spaces.observation, gym.spaces.Dict)
        return (tensors[""] if single else tensors), leading != {()}

    def _mask(self, observation: Any, action_mask: Any, num_rows: int, batched: bool) -> Tensor | None:
        if self.spaces.action_mask is None:
            return None
        found = action_mask
        if found is None and isinstance(observation, Mapping):
            found = observation.get(MASK_KEY)
        if found is None:
            raise ValueError("this policy was trained with action masks; hand in action_mask=info['action_mask']")
        rows = np.array(found, np.bool_).reshape(num_rows, -1) if batched else flat_mask(found)[None]
        if rows.shape != (num_rows, self.spaces.action_mask_size):
            size = self.spaces.action_mask_size
            raise ValueError(f"action_mask has shape {np.shape(found)}, expected ({size},) or (N, {size})")
        return torch.from_numpy(rows).to(self.module.device)

    def _to_env(self, action: np.ndarray) -> np.ndarray:
        space = self.spaces.action
        start = space.start if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete) else 0
        return np.asarray(action + start, space.dtype)


def load_policy(run: str | os.PathLike[str], *, device: str = "cpu", seed: int = 0) -> LoadedPolicy:
    """Read a trained policy.

    Args:
        run: a run folder, or a policy file. The modules of its user's that a run remembers become importable.
        device: where it shall live.
        seed: of the noise where actions are sampled.

    Raises:
        CheckpointError: there is no policy, or its file is damaged or of a newer format.
        ConfigError: a class of the user's that it needs can't be imported.
    """
    path = policy_path(Path(run))
    code = remembered_code(Path(run))
    if code is not None:
        make_importable(code)
    document, tensors = read_policy_file(path)
    try:
        spaces = spaces_from_json(document["spaces"])
        network = Component.model_validate(document["network"])
        transforms = [Component.model_validate(part) for part in document["transforms"]]
        kind = document.get("kind", "ActorCritic")  # files of before there were others have none
        if kind not in KINDS:
            raise ValueError(f"the kind {kind!r} is unknown")
        dueling = bool(document.get("dueling", False))
        critic = document.get("criticNetwork")
        critic_network = None if critic is None else Component.model_validate(critic)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read as a policy: {error}", remedy="train or export it again") from None
    policy = build_policy(spaces, network, transforms, kind=kind, dueling=dueling, critic_network=critic_network)
    load_parameters(policy, tensors, path)
    return LoadedPolicy(policy.to(device), seed)


def policy_path(run: Path) -> Path:
    """Return the policy file that a path means: itself, or that of a run folder, or of a job's newest attempt.

    Raises:
        CheckpointError: there is none.
    """
    run = find_run(run)
    path = run / POLICY_FILE if run.is_dir() else run
    if not path.is_file():
        problem = "holds no policy" if run.is_dir() else "does not exist"
        raise CheckpointError(f"{run} {problem}", remedy="give the folder of a run that has saved a checkpoint")
    return path


def save_policy(policy: Policy, path: Path, state: Mapping[str, Tensor] | None = None) -> None:
    """Write a policy file in one step: it is complete or as it was.

    Args:
        policy: what to save.
        path: of the file; its folder is made.
        state: parameters to save in place of the policy's own, such as those of an earlier moment.

    Raises:
        StorageError: it can't be written.
    """
    document = {
        "formatVersion": FORMAT_VERSION,
        "kind": policy.kind,
        "dueling": getattr(policy.distribution, "dueling", False),
        "spaces": spaces_to_json(policy.spaces),
        "network": policy.network.model_dump(mode="json", by_alias=True),
        "transforms": [part.model_dump(mode="json", by_alias=True) for part in policy.transform_components],
    }
    critic_network = getattr(policy, "critic_network", None)
    if critic_network is not None:
        document["criticNetwork"] = critic_network.model_dump(mode="json", by_alias=True)
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in (state or policy.state_dict()).items()}
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, metadata={_METADATA_KEY: json.dumps(document, sort_keys=True)})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StorageError(f"can't write the policy {path}: {error}; free space or choose another folder") from None


def load_parameters(policy: Policy, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy named tensors into a policy.

    Raises:
        CheckpointError: a name is missing or new, or a shape differs: another network.
    """
    own = policy.state_dict()
    resizable = {
        f"transforms.{number}.{name}"
        for number, transform in enumerate(policy.transforms)
        for name in getattr(transform, "resizable_buffers", ())
    }
    for name in sorted(own.keys() | tensors.keys()):
        theirs, ours = tensors.get(name), own.get(name)
        if theirs is None or ours is None or (theirs.shape != ours.shape and name not in resizable):
            raise CheckpointError(
                f"{path} holds a policy with another network: its {name} {_shape(theirs)}, this one's {_shape(ours)}",
                field="spec.training.network",
                remedy="use the network and transforms that it was trained with",
            )
    policy.load_state_dict(tensors)


def read_policy_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what a policy file says of itself, and its tensors by name.

    Raises:
        CheckpointError: it is damaged, no policy, or of a newer format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            document = json.loads((file.metadata() or {})[_METADATA_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read as a policy: {error}", remedy="train or export it again") from None
    version = document.get("formatVersion")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise CheckpointError(
            f"the policy {path} has format {version}, newer than this version's {FORMAT_VERSION}",
            remedy="install a newer rljob",
        )
    return document, tensors


def _shape(tensor: Tensor | None) -> str:
    return "is absent" if tensor is None else f"has shape {tuple(tensor.shape)}"


def _find(observation: Any, key: str) -> Any:
    """Return the leaf with a dotted key; a key that has dots of its own is found too."""
    if not key:
        return observation
    if isinstance(observation, Mapping):
        if key in observation:
            return observation[key]
        for name in observation:
            if key.startswith(f"{name}."):
                return _find(observation[name], key[len(name) + 1 :])
        raise ValueError(f"the observation has no {key!r}; it has {', '.join(map(str, observation))}")
    if isinstance(observation, tuple | list):
        index, _, rest = key.partition(".")
        return _find(observation[int(index)], rest)
    raise ValueError(f"the observation is a {type(observation).__name__} where a mapping with {key!r} was expected")
