"""Runs whose environments are stepped by other processes, or don't wait for each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_jobs import built_trainer, off_policy_job, policy_bytes, records, run_job, small_job, timeless

from rlruntime.errors import EnvironmentFault
from rlruntime.spec.manifest import RLJob

TWO_WORKERS = {"numWorkers": 2}


def job_of(algorithm: str, collector: dict[str, Any]) -> RLJob:
    if algorithm == "PPO":
        return small_job(collector=collector)
    return off_policy_job(algorithm, collector=collector, sac={"trainEverySteps": 10})


@pytest.mark.parametrize("algorithm", ["PPO", "SAC"])
@pytest.mark.parametrize(
    ("kind", "config"),
    [("SyncProcess", TWO_WORKERS), ("AsyncProcess", TWO_WORKERS), ("AsyncEnv", {"workers": "Threads"})],
)
def test_every_collector_trains_to_the_last_frame_and_leaves_no_process(
    algorithm: str, kind: str, config: dict[str, Any], tmp_path: Path
) -> None:
    job = job_of(algorithm, {"type": kind, "config": config})
    before = {child.pid for child in psutil.Process().children()}
    result = run_job(job, tmp_path / "a")
    assert (result["status"], result["reason"]) == ("Succeeded", "TotalFrames")
    lines = [line for line in records(tmp_path / "a") if "collect/staleness" in line]
    assert [line["iteration"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1]["frames"] == result["frames"] >= job.spec.training.total_frames
    assert result["resumeClass"] == ("exact" if kind == "SyncProcess" else "episodeRestart")
    assert {child.pid for child in psutil.Process().children()} <= before


def test_worker_processes_in_step_give_the_numbers_of_one_process_and_resume_exactly(tmp_path: Path) -> None:
    one = {"type": "SyncProcess", "config": {"numWorkers": 1}}
    run_job(small_job(), tmp_path / "inline")
    run_job(small_job(collector=one), tmp_path / "worker")
    without = ("collect/staleness", "sync/publications", "sync/bytes")
    lines = [{k: v for k, v in line.items() if k not in without} for line in timeless(tmp_path / "worker")]
    assert lines == timeless(tmp_path / "inline")
    assert policy_bytes(tmp_path / "worker") == policy_bytes(tmp_path / "inline")
    stopped = run_job(small_job(collector=one), tmp_path / "cut", stop_after=5)
    assert (stopped["status"], stopped["resumeClass"]) == ("Stopped", "exact")
    run_job(small_job(collector=one), tmp_path / "cut", resume=True)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "worker")
    assert policy_bytes(tmp_path / "cut") == policy_bytes(tmp_path / "worker")


def test_an_asynchronous_run_resumes_with_new_episodes_and_trains_nothing_twice(tmp_path: Path) -> None:
    job = small_job(collector={"type": "AsyncProcess", "config": TWO_WORKERS})
    stopped = run_job(job, tmp_path / "a", stop_after=5)
    assert (stopped["status"], stopped["resumeClass"]) == ("Stopped", "episodeRestart")
    resumed = run_job(job, tmp_path / "a", resume=True)
    assert (resumed["status"], resumed["resumed"]["frames"]) == ("Succeeded", stopped["frames"])
    iterations = [line["iteration"] for line in records(tmp_path / "a") if "collect/staleness" in line]
    assert iterations == list(range(1, resumed["iterations"] + 1))


def test_a_bounded_staleness_is_kept_and_what_is_dropped_is_counted(tmp_path: Path) -> None:
    job = small_job(collector={"type": "AsyncProcess", "config": {**TWO_WORKERS, "maxStaleness": 1}})
    run_job(job, tmp_path / "a")
    lines = [line for line in records(tmp_path / "a") if "collect/staleness" in line]
    assert {line["collect/staleness"] for line in lines} <= {0.0, 1.0}
    assert all(line["collect/dropped_stale"] >= 0 for line in lines)


def test_a_policy_to_begin_with_acts_in_the_workers_from_their_first_step(tmp_path: Path) -> None:
    run_job(small_job(totalFrames=2000), tmp_path / "whole")
    collector = {"type": "SyncProcess", "config": TWO_WORKERS}
    job = small_job(totalFrames=40, collector=collector, checkpoint={"initFrom": str(tmp_path / "whole")})
    run_job(job, tmp_path / "begun")
    first = records(tmp_path / "begun")[0]
    assert abs(first["policy/approx_kl"]) < 0.05  # a ratio of 1 at the first step: who acted is who learns


def test_a_worker_that_is_killed_ends_the_run_with_its_number_and_saves_the_state(tmp_path: Path) -> None:
    trainer = built_trainer(small_job(totalFrames=10**6, collector={"type": "SyncProcess", "config": TWO_WORKERS}))
    pids = list(trainer.collector.worker_pids)  # type: ignore[attr-defined]
    seen = 0

    def signal() -> int | None:
        nonlocal seen
        seen += 1
        if seen == 30:
            os.kill(pids[1], 9)
        return None

    trainer.stop_signal = signal
    from rlruntime.trainers.run_folder import RunFolder

    with RunFolder.create(tmp_path / "a") as folder, pytest.raises(EnvironmentFault, match=r"worker 1"):
        trainer.run(folder)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert (tmp_path / "a" / "checkpoints" / "latest").exists()


@pytest.mark.parametrize(
    ("kind", "config"), [("Inline", {}), ("SyncProcess", TWO_WORKERS), ("AsyncEnv", {"workers": "Threads"})]
)
def test_transforms_within_each_copy_work_whatever_steps_the_copies(
    kind: str, config: dict[str, Any], tmp_path: Path
) -> None:
    env = {"id": "Pendulum-v1", "numEnvs": 2, "transforms": [{"type": "FrameSkip", "config": {"frames": 4}}]}
    job = small_job(totalFrames=240, env=env, collector={"type": kind, "config": config}, evaluation={})
    run_job(job, tmp_path / "a")
    assert records(tmp_path / "a")[-1]["train/episode_length_mean"] == 50.0  # of 200 steps, four at a time


def test_replay_beside_collection_draws_no_row_of_a_policy_too_far_behind(tmp_path: Path) -> None:
    sampler = {"type": "StalenessBounded", "config": {"maxStaleness": 3}}
    job = off_policy_job(
        "SAC",
        collector={"type": "AsyncProcess", "config": TWO_WORKERS},
        replay={"sampler": sampler, "batchSize": 4},
        sac={"trainEverySteps": 5, "randomFrames": 5},
    )
    result = run_job(job, tmp_path / "a")
    assert result["status"] == "Succeeded"
    lines = [line for line in records(tmp_path / "a") if "replay/left_out" in line]
    assert lines[-1]["replay/left_out"] > 0
    assert lines[-1]["replay/rows"] == lines[-1]["frames"]
