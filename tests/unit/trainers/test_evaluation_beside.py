"""Evaluation in a process of its own while training goes on: the same results, counted at the same frames."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from small_jobs import built_trainer, off_policy_job, policy_bytes, records, run_job, small_job, timeless

from rlruntime.errors import EnvironmentFault
from rlruntime.registry import register
from rlruntime.trainers.callbacks import Callback, Stop
from rlruntime.trainers.run_folder import RunFolder

pytestmark = pytest.mark.timeout(300)  # each run starts a process, on a machine that may be busy
IN_TURN = {"everyFrames": 240, "episodes": 3}
BESIDE = {**IN_TURN, "beside": True}


def children() -> set[int]:
    """Return the processes that this one has started; clusters of other tests may be among them."""
    return {child.pid for child in psutil.Process().children()}


@register("callback", "TestEvaluated")
class Evaluated(Callback):
    """Notes which weights each evaluation was of, and kills the evaluator where it is told to."""

    seen: ClassVar[list[tuple[Any, float, float]]] = []

    def __init__(self, kill: bool = False) -> None:
        self.kill, self.before = kill, children()

    def on_update_end(self, trainer: Any, record: Any) -> Stop | None:
        if self.kill and trainer.beside.is_pending:
            os.kill(next(iter(children() - self.before)), 9)
        return None

    def on_evaluation_end(self, trainer: Any, result: Any) -> Stop | None:
        policy = trainer.policy if result.frames is None else trainer.beside.policy
        weight = float(policy.actor_head.weight.detach().sum())
        self.seen.append((result.frames, result.mean, weight))
        return None


def evaluated(path: Path) -> list[tuple[int, float, float]]:
    """Return frames, mean and deviation of every evaluation of a run."""
    lines = [line for line in records(path) if "evaluation/reward_mean" in line]
    return [
        (line.get("evaluation/frames", line["frames"]), line["evaluation/reward_mean"], line["evaluation/reward_std"])
        for line in lines
    ]


def trained(path: Path) -> list[dict[str, Any]]:
    return [line for line in timeless(path) if "evaluation/reward_mean" not in line]


def test_results_are_those_of_evaluations_in_turn_and_training_is_the_same(tmp_path: Path) -> None:
    before = children()
    Evaluated.seen.clear()
    noting = [{"type": "TestEvaluated"}]
    for name, evaluation in (("turn", IN_TURN), ("beside", BESIDE)):
        result = run_job(small_job(evaluation=evaluation, callbacks=noting), tmp_path / name)
        assert (result["status"], result["reason"]) == ("Succeeded", "TotalFrames")
    assert len(evaluated(tmp_path / "turn")) == 4
    assert evaluated(tmp_path / "beside") == evaluated(tmp_path / "turn")
    assert trained(tmp_path / "beside") == trained(tmp_path / "turn")
    assert policy_bytes(tmp_path / "beside") == policy_bytes(tmp_path / "turn")
    turn, beside = Evaluated.seen[:4], Evaluated.seen[4:]
    assert [part[1:] for part in beside] == [part[1:] for part in turn]  # a callback has the weights that it was of
    assert [part[0] for part in beside] == [*[frames for frames, _, _ in evaluated(tmp_path / "turn")][:3], None]
    # A result counts when the next evaluation is due.
    logged = [line["frames"] for line in records(tmp_path / "beside") if "evaluation/frames" in line]
    assert logged == [frames for frames, _, _ in evaluated(tmp_path / "turn")][1:]
    assert children() <= before


def test_sampled_actions_give_the_same_results_too(tmp_path: Path) -> None:
    for name, evaluation in (("turn", IN_TURN), ("beside", BESIDE)):
        run_job(
            off_policy_job("SAC", evaluation={**evaluation, "everyFrames": 100, "deterministic": False}),
            tmp_path / name,
        )
    assert evaluated(tmp_path / "beside") == evaluated(tmp_path / "turn")


def test_a_run_stopped_while_one_is_under_way_ends_with_the_numbers_of_an_uninterrupted_one(tmp_path: Path) -> None:
    job = small_job(evaluation=BESIDE)
    run_job(job, tmp_path / "whole")
    stopped = run_job(job, tmp_path / "cut", stop_after=4)
    assert (stopped["status"], stopped["resumeClass"]) == ("Stopped", "exact")
    run_job(job, tmp_path / "cut", resume=True)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    assert policy_bytes(tmp_path / "cut") == policy_bytes(tmp_path / "whole")


def test_a_resumed_run_that_evaluates_in_turn_makes_up_for_the_one_under_way(tmp_path: Path) -> None:
    stopped = run_job(small_job(evaluation=BESIDE), tmp_path / "a", stop_after=4)
    assert evaluated(tmp_path / "a") == []
    run_job(small_job(evaluation=IN_TURN), tmp_path / "a", resume=True)
    assert evaluated(tmp_path / "a")[0][0] == stopped["frames"]


def test_a_reward_to_stop_at_is_confirmed_before_training_goes_on(tmp_path: Path) -> None:
    env = {"factory": "trainer_envs:constant", "kwargs": {"reward": 2.0, "length": 5}, "numEnvs": 4}
    job = small_job(env=env, evaluation={**BESIDE, "stopAtReward": 10.0})
    result = run_job(job, tmp_path / "a")
    assert (result["status"], result["reason"]) == ("Succeeded", "RewardReached")
    first, second = [line for line in records(tmp_path / "a") if "evaluation/reward_mean" in line]
    assert "evaluation/confirmation_mean" not in first
    assert second["evaluation/confirmation_mean"] == 10.0
    assert first["frames"] == second["frames"] == result["frames"]  # the policy that is saved is the one confirmed
    assert first["evaluation/frames"] < second["frames"]


def test_patience_counts_results_in_their_order(tmp_path: Path) -> None:
    env = {"factory": "trainer_envs:constant", "numEnvs": 4}
    job = small_job(env=env, totalFrames=100_000, evaluation={**BESIDE, "patience": 2})
    result = run_job(job, tmp_path / "a")
    assert (result["status"], result["reason"]) == ("Succeeded", "NoImprovement")
    assert len(evaluated(tmp_path / "a")) == 3
    assert result["frames"] > evaluated(tmp_path / "a")[-1][0]  # one interval more than in turn


def test_an_evaluator_that_is_killed_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    before = children()
    trainer = built_trainer(
        small_job(evaluation=BESIDE, callbacks=[{"type": "TestEvaluated", "config": {"kill": True}}])
    )
    with (
        RunFolder.create(tmp_path / "a") as folder,
        pytest.raises(EnvironmentFault, match=r"evaluation worker 0 .* was killed by SIGKILL"),
    ):
        trainer.run(folder)
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("Failed", "EnvironmentFault")
    assert children() <= before
