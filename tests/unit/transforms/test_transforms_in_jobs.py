"""Jobs whose transforms work in the environments, in the policy and on rollouts: they learn, evaluate and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_jobs import off_policy_job, policy_bytes, run_job, small_job, timeless

from rlruntime.errors import ConfigError
from rlruntime.policies.artifact import load_policy
from rlruntime.spec.manifest import RLJob

TRANSFORMS: list[dict[str, Any]] = [
    {"type": "RewardScaling", "config": {"scale": 0.1}},
    {"type": "FrameSkip", "config": {"frames": 2}},
    {"type": "CatFrames", "config": {"frames": 3}},
    {"type": "StepCounter", "config": {"limit": 40}},
    {"type": "CatTensors"},
    {"type": "ObservationNorm"},
    {"type": "RewardNorm"},
]


def on_policy(backend: str = "Loop", transforms: Any = TRANSFORMS) -> RLJob:
    env = {"id": "CartPole-v1", "numEnvs": 4, "numWorkers": 2, "backend": backend, "transforms": transforms}
    return small_job(env=env, totalFrames=640)


def discretised() -> RLJob:
    chosen = [{"type": "ActionDiscretizer"}, {"type": "CatFrames", "config": {"frames": 2}}, {"type": "RewardNorm"}]
    return off_policy_job("DQN", env={"id": "Pendulum-v1", "transforms": chosen})


@pytest.mark.parametrize(
    ("job", "stop_after"),
    [
        pytest.param(on_policy(), 5, id="PPO"),
        pytest.param(on_policy("ProcessPool"), 5, id="PPO-pool"),
        pytest.param(discretised(), 3, id="DQN"),
    ],
)
def test_job_resumes_in_the_middle_of_what_its_transforms_remember(job: RLJob, stop_after: int, tmp_path: Path) -> None:
    whole = run_job(job, tmp_path / "whole")
    stopped = run_job(job, tmp_path / "cut", stop_after=stop_after)
    assert (stopped["status"], stopped["resumeClass"]) == ("Stopped", "exact")
    assert 0 < stopped["frames"] < whole["frames"]
    resumed = run_job(job, tmp_path / "cut", resume=True)
    assert resumed["resumed"]["class"] == "exact"
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    assert policy_bytes(tmp_path / "cut") == policy_bytes(tmp_path / "whole")


def test_evaluations_see_the_transforms_of_the_environment_and_its_own_rewards(tmp_path: Path) -> None:
    result = run_job(on_policy(), tmp_path / "run")
    # At most 40 decisions of two frames, each worth 1, although 0.1 of that is learned from.
    assert 2.0 < result["evaluation"]["rewardMean"] <= 80.0
    assert result["evaluation"]["rewardMean"] <= 2 * result["evaluation"]["lengthMean"]
    assert result["evaluation"]["lengthMean"] <= 40
    policy = load_policy(tmp_path / "run")
    assert policy.spaces.observation["observation"].shape == (12,)  # type: ignore[index]
    names = [part.type for part in policy.module.transform_components]
    assert names == ["RewardScaling", "CatTensors", "ObservationNorm", "RewardNorm"]


def test_resume_with_other_transforms_in_the_environment_begins_new_episodes(tmp_path: Path) -> None:
    run_job(on_policy(), tmp_path / "run", stop_after=5)
    longer = [{**part, "config": {"limit": 50}} if part["type"] == "StepCounter" else part for part in TRANSFORMS]
    resumed = run_job(on_policy(transforms=longer), tmp_path / "run", resume=True)
    assert resumed["resumed"]["class"] == "episodeRestart"


def test_order_that_can_not_work_ends_the_job_before_anything_is_written(tmp_path: Path) -> None:
    wrong = [{"type": "ObservationNorm"}, {"type": "CatFrames"}]
    with pytest.raises(
        ConfigError, match=r"transforms\[0\]: ObservationNorm is a part of the policy.*put it after Cat"
    ):
        run_job(on_policy(transforms=wrong), tmp_path / "run")
