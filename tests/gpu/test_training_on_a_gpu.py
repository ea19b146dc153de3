"""The same run with its networks on a GPU: `pytest -m gpu`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_jobs import run_job, small_job, timeless

import rlruntime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
NORMALISED = [{"type": "ObservationNorm"}, {"type": "RewardNorm"}]


@pytest.mark.parametrize("env", [{"id": "CartPole-v1"}, {"id": "Pendulum-v1", "transforms": NORMALISED}])
def test_a_run_on_the_gpu_resumes_exactly_and_its_policy_acts_on_the_cpu(
    env: dict[str, object], tmp_path: Path
) -> None:
    job = small_job(device="cuda", env={"numEnvs": 4, **env})
    whole = run_job(job, tmp_path / "whole")
    assert whole["fingerprint"]["device"] == torch.cuda.get_device_name()
    run_job(job, tmp_path / "cut", stop_after=6)
    run_job(job, tmp_path / "cut", resume=True)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    policy = rlruntime.load_policy(tmp_path / "whole")
    observation = policy.spaces.observation.sample()
    assert policy.spaces.action.contains(policy.act(observation).action)
