"""Transforms on the two sides of a job's replay buffer, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_jobs import built_trainer, off_policy_job, records, run_job, small_document, timeless

from rlruntime.errors import ConfigError
from rlruntime.spec.loader import parse_manifest
from rlruntime.spec.problems import ManifestError
from rlruntime.spec.training.components import check_components
from rlruntime.spec.training.storages import ReplayBufferConfig
from rlruntime.storages.buffer import ReplayBuffer

HALVES = {
    "write": [{"type": "DTypeCast", "config": {"dtype": "float16"}}],
    "read": [{"type": "DTypeCast", "config": {"dtype": "float32"}}],
}
SMALL_REWARDS = {"read": [{"type": "RewardScaling", "config": {"scale": 0.1}}]}


def job(transforms: dict[str, Any]) -> Any:
    return off_policy_job("SAC", replay={"batchSize": 16, "transforms": transforms})


def test_rows_are_stored_as_write_makes_them_and_learned_from_as_read_does() -> None:
    trainer: Any = built_trainer(job({**HALVES, "read": [*HALVES["read"], *SMALL_REWARDS["read"]]}))
    try:
        method = trainer.method
        while len(method.buffer) < 30:
            method.iterate(0.0, trainer.timers)
        stored = {field.name: field.dtype for field in method.buffer.storage.layout.fields}
        batch = method.buffer.sample()
        raw = method.buffer.storage.gather(batch.positions)
    finally:
        trainer.close()
    assert stored["observation"] == stored["next.observation"] == "float16"
    assert stored["next.reward"] == "float32"
    assert batch["observation"].dtype == torch.float32
    assert torch.equal(batch["observation"], torch.from_numpy(raw["observation"].astype("float32")))
    torch.testing.assert_close(batch["next.reward"], torch.from_numpy(raw["next.reward"].copy()) * 0.1)


def test_a_job_with_them_trains_and_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    run_job(job(HALVES), tmp_path / "whole")
    run_job(job(HALVES), tmp_path / "cut", stop_after=4)
    run_job(job(HALVES), tmp_path / "cut", resume=True)
    assert len(records(tmp_path / "cut")) > 5
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        (
            {"write": HALVES["write"]},
            "spec.training.replay.transforms: what is learned from must have the column 'observation' as float32 [3], "
            "and behind these transforms it is float16 [3]; let those of `read` undo what those of `write` do",
        ),
        (
            {"write": [{"type": "CatFrames", "config": {"frames": 2}}]},
            "spec.training.replay.transforms.write[0]: CatFrames can't work on the write side of a buffer "
            "(got 'CatFrames'); use it in an environment (make_transformed_env)",
        ),
        (
            {"read": [{"type": "RewardNorm", "config": {"gamma": 0.9}}]},
            "spec.training.replay.transforms.read[0]: RewardNorm has statistics that rollouts move, and a buffer sees "
            "rows alone (got 'RewardNorm'); put it into spec.training.env.transforms; rows are normalised by it when "
            "they are learned from",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(transforms: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built_trainer(job(transforms))
    assert str(caught.value) == words


def test_their_names_and_settings_are_checked_before_anything_is_built() -> None:
    replay = {
        "transforms": {"read": [{"type": "RewardScalling"}], "write": [{"type": "DTypeCast", "config": {"x": 1}}]}
    }
    document = small_document(algorithm="SAC", env={"id": "Pendulum-v1"}, replay=replay)
    del document["spec"]["training"]["ppo"]
    with pytest.raises(ManifestError) as caught:
        check_components(parse_manifest(document, "test").spec.training)
    fields = {problem.field for problem in caught.value.problems}
    where = "spec.training.replay.transforms"
    assert fields == {f"{where}.read[0].type", f"{where}.write[0].config.x", f"{where}.write[0].config.dtype"}


def test_a_buffer_from_its_config_alone_does_not_leave_them_out() -> None:
    config = ReplayBufferConfig.model_validate({"transforms": HALVES})
    with pytest.raises(ConfigError, match=r"replay\.transforms\.write: transforms are built for the spaces"):
        ReplayBuffer.from_config(config, seed=0)
