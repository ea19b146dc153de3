"""Policy files: what they hold, and what is said when one can't be used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_envs import dict_env
from policy_runs import Run
from safetensors import safe_open
from safetensors.torch import save_file

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import CheckpointError, ConfigError, StorageError
from rlruntime.policies.artifact import POLICY_FILE, load_parameters, load_policy, read_policy_file, save_policy
from rlruntime.policies.build import build_policy
from rlruntime.policies.spaces_json import spaces_from_json, spaces_to_json
from rlruntime.spec.training.component import Component

SPACES = EnvSpaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
MLP = Component(type="MLP", config={"hiddenSizes": [8]})
NORM, REWARD = Component(type="ObservationNorm"), Component(type="RewardNorm")


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.safetensors"
    save_policy(build_policy(SPACES, MLP), path)
    return path


def with_document(source: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write the file again with its description changed."""
    with safe_open(source, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    document = json.loads(metadata["rljob.policy"])
    change(document)
    save_file(tensors, source, metadata={"rljob.policy": json.dumps(document)})
    return source


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_policy(path)
    assert caught.value.exit_code == 78
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_saved_policy_is_the_same_policy_when_read_back(tmp_path: Path) -> None:
    policy = build_policy(SPACES, MLP, [NORM, REWARD], seed=4)
    save_policy(policy, tmp_path / "a" / "policy.safetensors")
    loaded = load_policy(tmp_path / "a" / "policy.safetensors")
    assert loaded.spaces == SPACES
    assert loaded.module.state_dict().keys() == policy.state_dict().keys()
    for name, tensor in policy.state_dict().items():
        assert torch.equal(loaded.module.state_dict()[name], tensor), name
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["policy.safetensors"]


def test_a_policy_that_normalised_rewards_loads_whatever_the_number_of_copies(tmp_path: Path) -> None:
    policy = build_policy(SPACES, MLP, [REWARD])
    policy.transforms[0].running_return = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    save_policy(policy, tmp_path / "policy.safetensors")
    transform: Any = load_policy(tmp_path / "policy.safetensors").module.transforms[0]
    assert transform.running_return.tolist() == [1.0, 2.0, 3.0]


def test_a_file_that_was_cut_short_is_refused(policy_file: Path) -> None:
    whole = policy_file.read_bytes()
    for length in (0, 4, 100, len(whole) - 10):
        policy_file.write_bytes(whole[:length])
        text = refusal(policy_file)
        assert text.startswith(f"{policy_file} can't be read as a policy: ")
        assert text.endswith("; train or export it again")


def test_a_newer_format_is_refused_by_its_number(policy_file: Path) -> None:
    with_document(policy_file, lambda document: document.update(formatVersion=99))
    text = refusal(policy_file)
    assert text == f"the policy {policy_file} has format 99, newer than this version's 1; install a newer rljob"


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(formatVersion=None),
        lambda document: document.pop("spaces"),
        lambda document: document["spaces"].update(action={"type": "Text"}),
        lambda document: document["spaces"]["observation"].pop("low"),
        lambda document: document.update(network={"type": 3}),
        lambda document: document.update(transforms=None),
    ],
)
def test_a_description_that_is_damaged_is_refused(
    policy_file: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    assert "policy" in refusal(with_document(policy_file, change))


def test_other_safetensors_files_are_no_policies(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    assert "can't be read as a policy" in refusal(tmp_path / "other.safetensors")


def test_tensors_of_another_network_are_refused_by_the_first_that_differs(policy_file: Path) -> None:
    wider = {"type": "MLP", "config": {"hiddenSizes": [16]}}
    with_document(policy_file, lambda document: document.update(network=wider))
    assert refusal(policy_file) == (
        f"spec.training.network: {policy_file} holds a policy with another network: its actor_encoder.layers.0.bias has"
        " shape (8,), this one's has shape (16,); use the network and transforms that it was trained with"
    )


def test_missing_and_additional_tensors_are_refused(policy_file: Path) -> None:
    _, tensors = read_policy_file(policy_file)
    policy = build_policy(SPACES, MLP)
    less = {name: tensor for name, tensor in tensors.items() if name != "actor_head.bias"}
    with pytest.raises(CheckpointError, match=r"its actor_head.bias is absent, this one's has shape \(2,\)"):
        load_parameters(policy, less, policy_file)
    with pytest.raises(CheckpointError, match=r"its surplus has shape \(1,\), this one's is absent"):
        load_parameters(policy, {**tensors, "surplus": torch.zeros(1)}, policy_file)


def test_a_class_that_is_not_importable_is_named(policy_file: Path) -> None:
    with_document(policy_file, lambda document: document.update(network={"type": "no_such_module_here:Net"}))
    with pytest.raises(ConfigError, match="there is no module 'no_such_module_here'"):
        load_policy(policy_file)


def test_a_folder_without_a_policy_and_a_path_that_is_not_there_are_told_apart(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith(f"{tmp_path} holds no policy; give the folder of a run")
    assert refusal(tmp_path / "nowhere").startswith(f"{tmp_path / 'nowhere'} does not exist")


def test_a_policy_that_cannot_be_written_leaves_the_old_one_as_it_was(policy_file: Path, tmp_path: Path) -> None:
    before = policy_file.read_bytes()
    (tmp_path / ".policy.safetensors.tmp").mkdir()  # writing beside the file fails
    (tmp_path / ".policy.safetensors.tmp" / "occupied").touch()
    with pytest.raises(
        StorageError, match=f"can't write the policy {policy_file}: .*free space or choose another folder"
    ):
        save_policy(build_policy(SPACES, MLP, seed=9), policy_file)
    assert policy_file.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_one_clear_line(policy_file: Path) -> None:
    with pytest.raises(StorageError, match=r"can't write the policy .*choose another folder"):
        save_policy(build_policy(SPACES, MLP), policy_file / "below" / "policy.safetensors")


def test_a_run_folder_holds_its_policy_where_load_policy_looks(trained: Callable[[str], Run]) -> None:
    run = trained("cartpole")
    assert (run.folder / POLICY_FILE).is_file()
    document, tensors = read_policy_file(run.folder / POLICY_FILE)
    assert document["network"] == {"type": "MLP", "config": {"hiddenSizes": [16]}}
    assert all(tensor.device.type == "cpu" for tensor in tensors.values())


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2, 3), np.float32),
        spaces.Box(np.array([0, -np.inf], np.float64), np.array([np.inf, 0.1], np.float64), dtype=np.float64),
        spaces.Box(0, 255, (2, 2, 3), np.uint8),
        spaces.Box(-(2**40), 2**40, (1,), np.int64),
        spaces.Discrete(7, start=-3),
        spaces.Discrete(3, dtype=np.uint8),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 1], [0, 0]])),
        spaces.MultiDiscrete([2, 3], dtype=np.int32),
        spaces.MultiBinary((2, 2)),
        spaces.Dict({"b": spaces.Discrete(2), "a.c": spaces.Box(0, 1, (), np.float32)}),
    ],
)
def test_spaces_read_back_equal_from_strict_json(space: gym.Space[Any]) -> None:
    written = EnvSpaces(space, spaces.Discrete(2), "info", 2)
    text = json.dumps(spaces_to_json(written), allow_nan=False)
    read = spaces_from_json(json.loads(text))
    assert read == written
    assert read.observation.dtype == space.dtype
    if isinstance(space, spaces.Dict):
        assert list(read.observation.spaces) == list(space.spaces)  # type: ignore[attr-defined]


def test_the_dict_environments_own_spaces_need_its_flat_form() -> None:
    with pytest.raises(TypeError, match="no JSON for the space"):
        spaces_to_json(EnvSpaces(spaces.Tuple((dict_env().observation_space,)), spaces.Discrete(2)))


def test_loading_is_light_and_silent(policy_file: Path) -> None:
    code = (
        "import sys; from rlruntime.policies.artifact import load_policy; import numpy as np;"
        f"print(load_policy({str(policy_file)!r}).act(np.zeros(4, np.float32)).action in (0, 1));"
        "heavy = {'matplotlib', 'rich', 'prometheus_client', 'pygame'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
