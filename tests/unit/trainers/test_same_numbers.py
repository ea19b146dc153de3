"""Seeds in, same numbers out: for every backend, whatever else is done beside training, and after a stop."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_jobs import built_trainer, off_policy_job, policy_bytes, records, run_job, small_job, timeless

from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.spec.manifest import RLJob
from rlruntime.trainers.checkpoint import find_checkpoint, read_checkpoint
from rlruntime.trainers.run_folder import RunFolder

NORMALISED = [{"type": "ObservationNorm"}, {"type": "RewardNorm"}]
CHEETAH = {
    "env": {"id": "HalfCheetah-v5", "numEnvs": 2, "maxEpisodeSteps": 37, "transforms": NORMALISED},
    "evaluation": {"everyFrames": 300, "episodes": 1},
}


@pytest.mark.parametrize("backend", ["Loop", "VectorEntryPoint", "ProcessPool", "EnvPool"])
def test_two_runs_of_one_seed_give_the_same_metrics_and_policy(backend: str, tmp_path: Path) -> None:
    if backend == "EnvPool":
        pytest.importorskip("envpool")
    job = small_job(env={"id": "CartPole-v1", "numEnvs": 4, "backend": backend, "numWorkers": 2})
    for name in ("a", "b"):
        run_job(job, tmp_path / name)
    assert len(records(tmp_path / "a")) > 12
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b")
    assert policy_bytes(tmp_path / "a") == policy_bytes(tmp_path / "b")


def test_another_seed_gives_other_numbers(tmp_path: Path) -> None:
    run_job(small_job(seed=1), tmp_path / "a")
    run_job(small_job(seed=2), tmp_path / "b")
    assert timeless(tmp_path / "a") != timeless(tmp_path / "b")


def test_a_run_neither_reads_nor_moves_the_global_random_states(tmp_path: Path) -> None:
    torch.manual_seed(1)
    run_job(small_job(), tmp_path / "a")
    torch.manual_seed(2)
    np.random.seed(3)
    random.seed(4)
    before = (torch.get_rng_state(), repr(np.random.get_state()), random.getstate())
    run_job(small_job(), tmp_path / "b")
    after = (torch.get_rng_state(), repr(np.random.get_state()), random.getstate())
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b")
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_adding_evaluations_and_checkpoints_does_not_change_training(tmp_path: Path) -> None:
    run_job(small_job(evaluation={}, checkpoint={}), tmp_path / "a")
    run_job(
        small_job(evaluation={"everyFrames": 100, "deterministic": False}, checkpoint={"everyFrames": 90}),
        tmp_path / "b",
    )
    training = [record for record in timeless(tmp_path / "b") if "evaluation/reward_mean" not in record]
    assert len(timeless(tmp_path / "b")) > len(training) + 5
    assert timeless(tmp_path / "a") == training
    assert policy_bytes(tmp_path / "a") == policy_bytes(tmp_path / "b")


def test_two_trainers_in_one_process_do_not_meet(tmp_path: Path) -> None:
    run_job(small_job(), tmp_path / "alone")
    first, second = built_trainer(small_job()), built_trainer(small_job(seed=9))
    for trainer, name in ((second, "second"), (first, "first")):
        with RunFolder.create(tmp_path / name) as folder:
            trainer.run(folder)
    assert timeless(tmp_path / "first") == timeless(tmp_path / "alone")


@pytest.mark.parametrize(
    "training",
    [
        pytest.param({}, id="CartPole"),
        pytest.param({"env": {"id": "Acrobot-v1", "numEnvs": 4, "backend": "ProcessPool", "numWorkers": 2}}, id="pool"),
        pytest.param({"env": {"id": "CartPole-v1", "numEnvs": 4, "backend": "VectorEntryPoint"}}, id="entry-point"),
        pytest.param(
            {"env": {"id": "Pendulum-v1", "numEnvs": 4, "maxEpisodeSteps": 33, "transforms": NORMALISED}}, id="Pendulum"
        ),
        pytest.param(CHEETAH, id="HalfCheetah"),
    ],
)
@pytest.mark.parametrize("stop_after", [5, 9])
def test_a_resumed_run_ends_with_the_numbers_of_an_uninterrupted_one(
    training: dict[str, Any], stop_after: int, tmp_path: Path
) -> None:
    job = small_job(**training)
    whole = run_job(job, tmp_path / "whole")
    stopped = run_job(job, tmp_path / "cut", stop_after=stop_after)
    assert (stopped["status"], stopped["reason"], stopped["resumeClass"]) == ("Stopped", "Signal", "exact")
    assert 0 < stopped["frames"] < whole["frames"]
    resumed = run_job(job, tmp_path / "cut", resume=True)
    assert resumed["status"] == "Succeeded"
    assert resumed["resumed"] == {
        "from": str(tmp_path / "cut" / stopped["checkpoint"]),
        "class": "exact",
        "frames": stopped["frames"],
        "differences": [],
    }
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    assert policy_bytes(tmp_path / "cut") == policy_bytes(tmp_path / "whole")
    assert resumed["evaluation"] == whole["evaluation"]


def test_a_run_resumed_from_an_older_checkpoint_drops_later_records_and_ends_the_same(tmp_path: Path) -> None:
    job = small_job(checkpoint={"everyFrames": 200, "keep": 9})
    run_job(job, tmp_path / "whole")
    run_job(job, tmp_path / "cut", stop_after=10)
    # As if the process had been killed: the newest checkpoint is gone, the metrics are ahead of what is left.
    checkpoints = sorted((tmp_path / "cut" / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    (tmp_path / "cut" / "checkpoints" / "latest").write_text(f"{checkpoints[0].name}\n")
    result = run_job(job, tmp_path / "cut", resume=True)
    assert result["resumed"]["from"] == str(checkpoints[0])
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    assert policy_bytes(tmp_path / "cut") == policy_bytes(tmp_path / "whole")


def test_a_run_stopped_in_its_first_iteration_resumes_from_the_start(tmp_path: Path) -> None:
    job = small_job()
    run_job(job, tmp_path / "whole")
    stopped = run_job(job, tmp_path / "cut", stop_after=0)
    assert (stopped["frames"], stopped["checkpoint"]) == (0, "checkpoints/step-0")
    run_job(job, tmp_path / "cut", resume=True)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")


def test_an_environment_that_cannot_be_restored_restarts_its_episodes_and_says_so(tmp_path: Path) -> None:
    job = small_job(env={"factory": "trainer_envs:unsaveable", "numEnvs": 4})
    stopped = run_job(job, tmp_path / "a", stop_after=6)
    assert stopped["resumeClass"] == "episodeRestart"
    resumed = run_job(job, tmp_path / "a", resume=True)
    assert (resumed["status"], resumed["resumed"]["class"]) == ("Succeeded", "episodeRestart")
    assert resumed["resumed"]["frames"] == stopped["frames"]
    iterations = [record["iteration"] for record in records(tmp_path / "a") if "episodes" in record]
    assert iterations == list(range(1, resumed["iterations"] + 1))


def test_a_finished_run_can_be_resumed_and_only_evaluates_again(tmp_path: Path) -> None:
    job = small_job()
    first = run_job(job, tmp_path / "a")
    before = timeless(tmp_path / "a")
    second = run_job(job, tmp_path / "a", resume=True)
    assert (second["status"], second["frames"]) == ("Succeeded", first["frames"])
    assert second["evaluation"] == first["evaluation"]
    assert timeless(tmp_path / "a") == before


@pytest.mark.parametrize("other", [small_job(), off_policy_job("SAC")], ids=["the same job", "another job"])
def test_a_finished_run_whose_checkpoints_are_gone_is_not_written_over(other: RLJob, tmp_path: Path) -> None:
    run_job(small_job(), tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").glob("**/*") if path.is_file()}
    with pytest.raises(ConfigError) as refused:
        run_job(other, tmp_path / "a", resume=True)
    assert str(refused.value) == (
        f"{tmp_path / 'a'} holds a run whose checkpoints are gone: there is nothing to go on from, and a new start "
        "would write over it; choose another folder with --out"
    )
    after = {path.name: path.read_bytes() for path in (tmp_path / "a").glob("**/*") if path.is_file()}
    assert after == before
    assert set(before) >= {"manifest.yaml", "metrics.jsonl", "policy.safetensors", "result.json"}


def test_another_network_is_refused_at_resume_and_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    run_job(small_job(), tmp_path / "a")
    result = (tmp_path / "a" / "result.json").read_bytes()
    other = small_job(network={"type": "MLP", "config": {"hiddenSizes": [17]}})
    with pytest.raises(CheckpointError, match=r"network MLP .*\[16\].* this run has MLP .*\[17\]"):
        run_job(other, tmp_path / "a", resume=True)
    assert (tmp_path / "a" / "result.json").read_bytes() == result
    run_job(small_job(), tmp_path / "a", resume=True)


def test_resume_from_continues_another_job_and_init_from_takes_its_policy_alone(tmp_path: Path) -> None:
    run_job(small_job(), tmp_path / "whole")
    stopped = run_job(small_job(), tmp_path / "cut", stop_after=8)
    continued = run_job(small_job(checkpoint={"resumeFrom": str(tmp_path / "cut")}), tmp_path / "new")
    assert continued["resumed"]["frames"] == stopped["frames"]
    assert continued["resumed"]["class"] == "episodeRestart"
    assert continued["frames"] >= 960
    begun = run_job(small_job(totalFrames=60, checkpoint={"initFrom": str(tmp_path / "whole")}), tmp_path / "init")
    assert (begun["iterations"], begun["resumed"]) == (1, None)


@pytest.mark.parametrize("num_steps", [7, 20, 31])
def test_a_resume_with_rollouts_of_another_length_acts_on_the_observation_where_it_stopped(
    num_steps: int, tmp_path: Path
) -> None:
    run_job(small_job(), tmp_path / "a", stop_after=6)
    job = small_job(ppo={"numSteps": num_steps, "minibatchSize": 32, "numEpochs": 1})
    trainer = built_trainer(job)
    first: list[torch.Tensor] = []
    collect = trainer.collector.collect

    def noted() -> Any:
        rollout = collect()
        assert rollout is not None
        assert isinstance(rollout.observation, torch.Tensor)
        first.append(rollout.observation[0].clone())
        return rollout

    trainer.collector.collect = noted  # type: ignore[method-assign]
    saved = read_checkpoint(find_checkpoint(tmp_path / "a")).state["collector"]["observation"]
    with RunFolder.create(tmp_path / "a", resume=True) as folder:
        result = trainer.run(folder, resume=True)
    assert result["status"] == "Succeeded"
    assert f"ppo.numSteps: 20 -> {num_steps}" in result["resumed"]["differences"] or num_steps == 20
    assert torch.equal(first[0], saved)


def test_a_resume_with_other_settings_says_which_and_is_not_called_exact(tmp_path: Path) -> None:
    run_job(small_job(), tmp_path / "a", stop_after=6)
    ppo = {"numSteps": 20, "minibatchSize": 32, "numEpochs": 2, "gamma": 0.5}
    resumed = run_job(small_job(ppo=ppo), tmp_path / "a", resume=True)["resumed"]
    assert (resumed["class"], resumed["differences"]) == ("episodeRestart", ["ppo.gamma: 0.99 -> 0.5"])


def test_a_resume_under_another_seed_is_refused(tmp_path: Path) -> None:
    run_job(small_job(), tmp_path / "a", stop_after=6)
    with pytest.raises(ConfigError, match=r"spec\.training\.seed: the run began with seed 0 \(got 7\); resume with"):
        run_job(small_job(seed=7), tmp_path / "a", resume=True)


def test_a_run_that_reached_its_reward_goes_on_for_a_higher_one_and_keeps_its_manifest_otherwise(
    tmp_path: Path,
) -> None:
    env = {"factory": "trainer_envs:constant", "kwargs": {"reward": 2.0}, "numEnvs": 4}

    def job(goal: float, **training: Any) -> RLJob:
        return small_job(env=env, evaluation={"everyFrames": 200, "episodes": 2, "stopAtReward": goal}, **training)

    first = run_job(job(10.0), tmp_path / "a")
    assert first["reason"] == "RewardReached"
    manifest = (tmp_path / "a" / "manifest.yaml").read_bytes()
    same = run_job(job(10.0, checkpoint={"keep": 9}), tmp_path / "a", resume=True)
    assert (same["reason"], same["frames"]) == ("RewardReached", first["frames"])
    assert (tmp_path / "a" / "manifest.yaml").read_bytes() == manifest
    further = run_job(job(11.0), tmp_path / "a", resume=True)
    assert further["reason"] == "TotalFrames"
    assert further["frames"] > first["frames"]


def test_a_logger_that_cannot_be_built_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spec\.training\.loggers\[0\]"):
        run_job(small_job(loggers=[{"type": "TensorBoard", "config": {"nonsense": 1}}]), tmp_path / "a")
    assert run_job(small_job(totalFrames=60), tmp_path / "a")["status"] == "Succeeded"


def test_init_from_takes_a_checkpoint_too(tmp_path: Path) -> None:
    run_job(small_job(), tmp_path / "other")
    checkpoint = find_checkpoint(tmp_path / "other")
    for name, source in (("run", tmp_path / "other"), ("checkpoint", checkpoint)):
        run_job(small_job(totalFrames=200, checkpoint={"initFrom": str(source)}), tmp_path / name)
    assert timeless(tmp_path / "run") == timeless(tmp_path / "checkpoint")


def test_a_run_killed_before_its_first_checkpoint_still_starts_with_the_policy_of_init_from(tmp_path: Path) -> None:
    run_job(small_job(seed=5), tmp_path / "other")
    job = small_job(checkpoint={"initFrom": str(tmp_path / "other")})
    run_job(job, tmp_path / "whole")
    run_job(job, tmp_path / "cut", stop_after=2)
    for name in ("checkpoints", "policy"):  # as if it had been killed
        shutil.rmtree(tmp_path / "cut" / name)
    resumed = run_job(job, tmp_path / "cut", resume=True)
    assert (resumed["status"], resumed["resumed"]) == ("Succeeded", None)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")


def test_a_job_continued_from_one_that_reached_its_reward_trains_on(tmp_path: Path) -> None:
    first = run_job(small_job(evaluation={"everyFrames": 300, "stopAtReward": 1.0, "episodes": 2}), tmp_path / "a")
    assert (first["reason"], first["iterations"]) == ("RewardReached", 4)
    second = run_job(small_job(checkpoint={"resumeFrom": str(tmp_path / "a")}), tmp_path / "b")
    assert (second["status"], second["reason"]) == ("Succeeded", "TotalFrames")
    assert second["frames"] >= 960


@pytest.mark.parametrize("before", [{}, {"everyFrames": 100_000}])
def test_a_resumed_run_evaluates_and_saves_as_often_as_its_new_manifest_says(
    before: dict[str, Any], tmp_path: Path
) -> None:
    run_job(small_job(evaluation={"episodes": 1, **before}, checkpoint=before), tmp_path / "a", stop_after=6)
    stopped_at = records(tmp_path / "a")[-1]["frames"]
    job = small_job(evaluation={"episodes": 1, "everyFrames": 100}, checkpoint={"everyFrames": 100, "keep": 99})
    run_job(job, tmp_path / "a", resume=True)
    rows = records(tmp_path / "a")
    later = sorted({row["frames"] for row in rows if row["frames"] > stopped_at})
    thresholds = {frames // 100 for frames in later}
    assert len([row for row in rows if "evaluation/reward_mean" in row]) == len(thresholds)
    saved = [path for path in (tmp_path / "a" / "checkpoints").glob("step-*") if int(path.name[5:]) > stopped_at]
    assert len(saved) >= len(thresholds)
