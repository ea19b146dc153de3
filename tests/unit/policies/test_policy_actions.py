"""A policy file acts as the trainer did, on 1,000 observations, in a process that never sees the trainer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import policy_envs
import pytest
import torch
from policy_envs import dict_env, masked_env
from policy_runs import TRAININGS, Run, job_of

from rlruntime.policies.artifact import load_policy
from rlruntime.policies.export import FORMATS, export_policy

Trained = Callable[[str], Run]

ACT = """
import json, sys
import numpy as np
from rlruntime.policies.artifact import load_policy

for kind, (run, inputs, outputs) in json.load(sys.stdin).items():
    arrays = dict(np.load(inputs))
    mask = arrays.pop("mask", None)
    keyed = {key.removeprefix("observation."): leaf for key, leaf in arrays.items()}
    observation = keyed[""] if set(keyed) == {""} else keyed
    np.save(outputs, load_policy(run).act(observation, action_mask=mask).action)
loaded = [name for name in sys.modules if name.startswith(("rlruntime.trainers", "rlruntime.collectors"))]
assert not loaded, loaded
"""


def test_loaded_policies_act_as_the_trainer_did_without_importing_it(trained: Trained, tmp_path: Path) -> None:
    orders = {}
    for kind in TRAININGS:
        run = trained(kind)
        arrays = {f"observation.{key}": leaf for key, leaf in run.observation.items()}
        if run.mask is not None:
            arrays["mask"] = run.mask
        np.savez(tmp_path / f"{kind}.npz", allow_pickle=False, **arrays)
        orders[kind] = (str(run.folder), str(tmp_path / f"{kind}.npz"), str(tmp_path / f"{kind}.npy"))

    subprocess.run(
        [sys.executable, "-W", "error", "-c", ACT],
        input=json.dumps(orders),
        text=True,
        check=True,
        timeout=100,
        env={"PYTHONPATH": str(Path(policy_envs.__file__).parent), "PATH": ""},
    )

    for kind in TRAININGS:
        acted, run = np.load(tmp_path / f"{kind}.npy"), trained(kind)
        assert len(acted) == 1000
        assert acted.dtype == run.actions.dtype
        np.testing.assert_array_equal(acted, run.actions, err_msg=kind)


@pytest.mark.parametrize("kind", ["cartpole", "pendulum", "image", "masked", "dict", "multi_discrete", "box"])
def test_exports_act_as_the_trainer_did(trained: Trained, kind: str, tmp_path: Path) -> None:
    run = trained(kind)
    files = export_policy(run.folder, tmp_path, FORMATS)
    description = json.loads(files["json"].read_text())
    inputs = [
        run.mask if port["name"] == "action_mask" else run.observation[port.get("observationKey", "")]
        for port in description["inputs"]
    ]
    assert [array.dtype.name for array in inputs if array is not None] == [p["dtype"] for p in description["inputs"]]

    close = 1e-5 if run.actions.dtype.kind == "f" else 0.0  # rounding differs where operations are fused
    np.testing.assert_allclose(by_torch(files["torch"], inputs), run.actions, rtol=0, atol=close)
    by_name = dict(zip([port["name"] for port in description["inputs"]], inputs, strict=True))
    from_onnx = by_onnx(files["onnx"], by_name)
    np.testing.assert_allclose(from_onnx, run.actions, rtol=0, atol=close)
    assert from_onnx.dtype == run.actions.dtype
    copied = load_policy(files["safetensors"]).act(observation_of(run), action_mask=run.mask).action
    np.testing.assert_array_equal(copied, run.actions)
    first = [array[:1] for array in inputs if array is not None]
    np.testing.assert_allclose(by_torch(files["torch"], first), run.actions[:1], rtol=0, atol=close)


def test_exported_actions_lie_in_the_environments_space_where_float32_cannot_hold_its_bounds(trained: Trained) -> None:
    run = trained("box")
    space = gym.spaces.Box(-0.1, 0.3, (2, 2), np.float64)
    policy = load_policy(run.folder)
    with torch.no_grad():
        policy.module.actor_head.bias.fill_(5.0)
        high = policy.act(run.observation[""][0]).action
        policy.module.actor_head.bias.fill_(-5.0)
        low = policy.act(run.observation[""][0]).action
    assert high.dtype == np.float64
    assert space.contains(high)
    assert space.contains(low)
    np.testing.assert_allclose(high, 0.3, atol=1e-7)
    np.testing.assert_allclose(low, -0.1, atol=1e-7)


def test_a_single_nested_observation_gets_the_action_that_its_row_in_a_batch_gets(trained: Trained) -> None:
    run = trained("dict")
    env, policy = dict_env(), load_policy(run.folder)
    observations = [env.reset(seed=seed)[0] for seed in range(20)]
    singly = [policy.act(observation).action for observation in observations]
    batch = {
        "arm": {key: np.stack([each["arm"][key] for each in observations]) for key in ("joints", "grip")},
        **{
            key: np.stack([each[key] for each in observations])
            for key in ("goal", "inventory", "pixels", "action_mask")
        },
    }
    np.testing.assert_array_equal(policy.act(batch).action, np.stack(singly))
    assert all(env.action_space.contains(action) for action in singly)


def test_discrete_actions_count_from_the_spaces_start_and_respect_the_mask(trained: Trained) -> None:
    policy, env = load_policy(trained("masked").folder), masked_env()
    observation, _ = env.reset(seed=0)
    for only in range(5):
        mask = np.arange(5) == only
        for deterministic in (True, False):
            action = policy.act(observation, deterministic=deterministic, action_mask=mask).action
            assert action == 5 + only
            assert env.action_space.contains(action)


def test_sampled_actions_vary_and_repeat_with_the_seed(trained: Trained) -> None:
    run = trained("cartpole")

    def sampled(seed: int) -> list[int]:
        policy = load_policy(run.folder, seed=seed)
        return policy.act(run.observation[""][:64], deterministic=False).action.tolist()  # type: ignore[no-any-return]

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
    assert set(sampled(1)) == {0, 1}


def test_acting_reads_arrays_that_may_not_be_written(trained: Trained) -> None:
    run = trained("cartpole")
    observation = run.observation[""][0].copy()
    observation.flags.writeable = False
    assert load_policy(run.folder).act(observation).action == run.actions[0]


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("cartpole", lambda rows: rows[:, :3], r"observation has shape \(2, 3\), expected \(4,\) or \(N, \*\(4,\)\)"),
        ("cartpole", lambda rows: rows[None], r"observation has shape \(1, 2, 4\)"),
        ("dict", lambda rows: {**rows, "goal": rows["goal"][0]}, "differ in their number of rows"),
        ("dict", lambda rows: {"arm": rows["goal"]}, "has no 'goal'|expected"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(
    trained: Trained, kind: str, change: Callable[[object], object], words: str
) -> None:
    run = trained(kind)
    rows = {key: leaf[:2] for key, leaf in run.observation.items()}
    observation = rows[""] if kind == "cartpole" else rows
    mask = None if run.mask is None else run.mask[:2]
    with pytest.raises(ValueError, match=words):
        load_policy(run.folder).act(change(observation), action_mask=mask)


def test_a_policy_trained_with_masks_does_not_act_without_one(trained: Trained) -> None:
    run = trained("masked")
    policy = load_policy(run.folder)
    with pytest.raises(ValueError, match=r"hand in action_mask=info\['action_mask'\]"):
        policy.act(run.observation[""][0])
    with pytest.raises(ValueError, match=r"action_mask has shape \(4,\), expected \(5,\)"):
        policy.act(run.observation[""][0], action_mask=np.ones(4))


def test_the_description_names_inputs_in_order_with_free_batch(trained: Trained, tmp_path: Path) -> None:
    files = export_policy(trained("dict").folder, tmp_path, ("safetensors",))
    assert json.loads(files["json"].read_text()) == {
        "formatVersion": 1,
        "files": {"safetensors": "policy.safetensors"},
        "inputs": [
            port("observation.arm.grip", [2], "int8", "arm.grip"),
            port("observation.arm.joints", [2], "float32", "arm.joints"),
            port("observation.goal", [], "int64", "goal"),
            port("observation.inventory", [2], "int64", "inventory"),
            port("observation.pixels", [3], "uint8", "pixels"),
            {"name": "action_mask", "shape": ["batch", 5], "dtype": "bool"},
        ],
        "outputs": [{"name": "action", "shape": ["batch", 2], "dtype": "int64"}],
        "action": "the most probable one, in the environment's units",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "policy.safetensors"]


def test_the_transforms_statistics_had_moved_before_the_policy_was_saved(trained: Trained) -> None:
    norm: Any = load_policy(trained("box").folder).module.transforms[0]
    assert torch.all((norm.shift_0 > 95) & (norm.shift_0 < 105))
    assert job_of("box").spec.training.env.transforms[0].type == "ObservationNorm"


def port(name: str, shape: list[int], dtype: str, key: str) -> dict[str, object]:
    return {"name": name, "shape": ["batch", *shape], "dtype": dtype, "observationKey": key}


def observation_of(run: Run) -> object:
    return run.observation[""] if set(run.observation) == {""} else run.observation


def by_torch(path: Path, inputs: Sequence[np.ndarray | None]) -> np.ndarray:
    module = torch.export.load(path).module()
    with torch.no_grad():
        action = module(*(torch.from_numpy(array) for array in inputs if array is not None))
    return np.asarray(action.numpy())


def by_onnx(path: Path, inputs: dict[str, np.ndarray | None]) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == list(inputs)
    assert [each.shape[0] for each in session.get_inputs()] == ["batch"] * len(inputs)
    return np.asarray(session.run(["action"], inputs)[0])
