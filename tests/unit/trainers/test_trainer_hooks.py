"""The trainer's callbacks, loggers, and reasons to stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from small_jobs import built_trainer, records, run_job, small_job

from rlruntime.errors import ConfigError, EnvironmentFault
from rlruntime.registry import register
from rlruntime.trainers.api import train
from rlruntime.trainers.callbacks import Callback, CallbackList, Stop
from rlruntime.trainers.run_folder import RunFolder


@register("callback", "TestRecorder")
class Recorder(Callback):
    """Notes every hook, counts updates, and stops where it is told to."""

    calls: ClassVar[list[str]] = []

    def __init__(self, stop_at: int = 0) -> None:
        self.stop_at, self.updates = stop_at, 0

    def on_setup(self, trainer: Any) -> Stop | None:
        self.calls.append(f"setup {trainer.progress.frames}")
        return None

    def on_rollout_end(self, trainer: Any, rollout: Any) -> Stop | None:
        self.calls.append(f"rollout {tuple(rollout.batch_size)}")
        return None

    def on_batch(self, trainer: Any, batch: Any) -> Stop | None:
        self.calls.append("batch")
        return None

    def on_before_optimizer_step(self, trainer: Any) -> Stop | None:
        self.calls.append("step")
        return None

    def on_update_end(self, trainer: Any, record: Any) -> Stop | None:
        self.updates += 1
        self.calls.append(f"update {record['iteration']}")
        return Stop(f"{self.updates} updates are enough") if self.updates == self.stop_at else None

    def on_evaluation_end(self, trainer: Any, result: Any) -> Stop | None:
        self.calls.append(f"evaluation of {len(result.returns)}")
        return None

    def on_checkpoint(self, trainer: Any, path: Path) -> Stop | None:
        self.calls.append(f"checkpoint {path.is_dir()}")
        return None

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        self.calls.append(f"exception {type(error).__name__}")

    def on_shutdown(self, trainer: Any) -> None:
        self.calls.append("shutdown")

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: Any) -> None:
        self.updates = state["updates"]


@register("callback", "TestBadShutdown")
class BadShutdown(Callback):
    """Fails as it is shut down."""

    def on_shutdown(self, trainer: Any) -> None:
        raise OSError("the display is gone")


@register("callback", "TestBadSetup")
class BadSetup(Callback):
    """Fails before anything was collected."""

    def on_setup(self, trainer: Any) -> Stop | None:
        raise LookupError("no such display")


@pytest.fixture(autouse=True)
def calls() -> list[str]:
    Recorder.calls.clear()
    return Recorder.calls


def recorded(**config: Any) -> dict[str, Any]:
    return {"callbacks": [{"type": "TestRecorder", "config": config}]}


def test_hooks_are_called_in_the_order_of_a_run(calls: list[str], tmp_path: Path) -> None:
    ppo = {"numSteps": 20, "minibatchSize": 80, "numEpochs": 1}
    run_job(
        small_job(totalFrames=70, ppo=ppo, evaluation={"everyFrames": 70, "episodes": 2}, **recorded()), tmp_path / "a"
    )
    assert calls == [
        "setup 0", "rollout (20, 4)", "batch", "step", "update 1", "evaluation of 2", "checkpoint True", "shutdown",
    ]  # fmt: skip


def test_a_callback_ends_the_run_with_its_reason_and_keeps_its_state_over_a_resume(
    calls: list[str], tmp_path: Path
) -> None:
    stopped = run_job(small_job(**recorded(stop_at=7)), tmp_path / "a", stop_after=5)
    assert stopped["status"] == "Stopped"
    result = run_job(small_job(**recorded(stop_at=7)), tmp_path / "a", resume=True)
    assert (result["status"], result["reason"]) == ("Succeeded", "Callback")
    assert (result["message"], result["iterations"]) == ("7 updates are enough", 7)


def test_a_failure_is_told_saved_and_written_and_the_run_can_be_resumed(calls: list[str], tmp_path: Path) -> None:
    env = {"factory": "trainer_envs:constant", "kwargs": {"bad_step": 90}, "numEnvs": 4}
    with pytest.raises(EnvironmentFault, match="environment copy 0"):
        run_job(small_job(env=env, **recorded()), tmp_path / "a")
    assert calls[-2:] == ["exception UnlearnableFault", "shutdown"]
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("Failed", "UnlearnableFault")
    assert result["message"].startswith("environment copy 0 (step ")
    assert result["checkpoint"] is not None
    mended = {**env, "kwargs": {}}
    resumed = run_job(small_job(env=mended, **recorded()), tmp_path / "a", resume=True)
    # The saved state of the environments holds their old settings, so it is not used.
    assert (resumed["status"], resumed["resumed"]["class"]) == ("Succeeded", "episodeRestart")
    assert resumed["resumed"]["differences"] == ['environment.kwargs: {"bad_step": 90} -> {}']


def test_a_reward_to_stop_at_must_be_reached_twice(tmp_path: Path) -> None:
    env = {"factory": "trainer_envs:constant", "kwargs": {"reward": 2.0, "length": 5}, "numEnvs": 4}
    for goal, reason in ((10.0, "RewardReached"), (10.5, "TotalFrames")):
        evaluation = {"everyFrames": 200, "episodes": 3, "stopAtReward": goal}
        result = run_job(small_job(env=env, evaluation=evaluation), tmp_path / reason)
        assert (result["status"], result["reason"]) == ("Succeeded", reason)
        assert result["evaluation"]["rewardMean"] == 10.0
        evaluated = [record for record in records(tmp_path / reason) if "evaluation/reward_mean" in record]
        assert ("evaluation/confirmation_mean" in evaluated[0]) == (goal == 10.0)
        assert len(evaluated) == (1 if goal == 10.0 else 5)


def test_evaluations_come_once_for_each_threshold_that_is_passed(tmp_path: Path) -> None:
    run_job(small_job(evaluation={"everyFrames": 50, "episodes": 1}), tmp_path / "a")
    frames = [record["frames"] for record in records(tmp_path / "a") if "evaluation/reward_mean" in record]
    assert frames == sorted(set(frames))
    assert len(frames) == len([record for record in records(tmp_path / "a") if "episodes" in record])


def test_records_count_valid_frames_only(tmp_path: Path) -> None:
    result = run_job(small_job(totalFrames=400), tmp_path / "a")
    rows = [record for record in records(tmp_path / "a") if "episodes" in record]
    # 80 rows an iteration; each episode but those that ended in the very last row has cost one ignored reset row.
    ignored = 80 * len(rows) - rows[-1]["frames"]
    assert 0 < ignored <= rows[-1]["episodes"]
    assert ignored >= rows[-1]["episodes"] - 4
    assert result["frames"] == rows[-1]["frames"]


def test_a_tensorboard_logger_gets_the_records(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_job(small_job(totalFrames=200, loggers=[{"type": "TensorBoard"}]), tmp_path / "a")
    assert list((tmp_path / "a").rglob("events.out.tfevents.*"))


def test_the_environments_are_closed_whatever_happens(tmp_path: Path) -> None:
    env = {"id": "CartPole-v1", "numEnvs": 4, "backend": "ProcessPool", "numWorkers": 2}
    trainer = built_trainer(small_job(env=env, totalFrames=100))
    pids = list(trainer.collector.env.worker_pids)  # type: ignore[attr-defined]
    assert len(pids) == 2
    with RunFolder.create(tmp_path / "a") as folder:
        trainer.run(folder)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_what_fails_at_shutdown_is_noted_on_the_error_and_raised_where_there_is_none(tmp_path: Path) -> None:
    callbacks = [{"type": "TestBadShutdown"}]
    env = {"factory": "trainer_envs:constant", "kwargs": {"bad_step": 90}, "numEnvs": 4}
    with pytest.raises(EnvironmentFault) as raised:
        run_job(small_job(env=env, callbacks=callbacks), tmp_path / "a")
    assert raised.value.__notes__ == ["while the run was shut down: OSError: the display is gone"]
    with pytest.raises(OSError, match="the display is gone"):
        run_job(small_job(totalFrames=80, callbacks=callbacks), tmp_path / "b")


def test_a_run_that_fails_before_its_first_rollout_says_so_in_its_result(tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        run_job(small_job(callbacks=[{"type": "TestBadSetup"}]), tmp_path / "a")
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert (result["status"], result["reason"], result["message"]) == ("Failed", "LookupError", "no such display")
    assert (result["frames"], result["checkpoint"], result["policy"]) == (0, None, None)


def test_a_result_written_for_a_deadline_counts_from_where_the_run_was_resumed(tmp_path: Path) -> None:
    stopped = run_job(small_job(), tmp_path / "a", stop_after=6)

    class Abandon(Callback):
        def on_update_end(self, trainer: Any, record: Any) -> Stop | None:
            trainer.abandon(15)
            raise KeyboardInterrupt

    trainer = built_trainer(small_job(callbacks=[{"type": "TestBadShutdown"}]))
    trainer.callbacks = CallbackList([Abandon()])
    with RunFolder.create(tmp_path / "a", resume=True) as folder, pytest.raises(KeyboardInterrupt):
        trainer.run(folder, resume=True)
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("Stopped", "Signal")
    assert result["resumed"]["frames"] == stopped["frames"]
    frames_here = result["frames"] - stopped["frames"]
    assert result["time"]["framesPerSecond"] == pytest.approx(frames_here / result["time"]["elapsedSeconds"])
    whole = {name: seconds for name, seconds in result["time"]["phaseSeconds"].items() if "/" not in name}
    assert result["time"]["elapsedSeconds"] >= sum(whole.values())


def test_a_deadline_that_passes_after_the_end_leaves_the_result(tmp_path: Path) -> None:
    trainer = built_trainer(small_job(totalFrames=80))
    with RunFolder.create(tmp_path / "a") as folder:
        trainer.run(folder)
        before = folder.result.read_bytes()
        trainer.abandon(15)
        assert folder.result.read_bytes() == before


def test_a_folder_that_is_refused_leaves_no_process(tmp_path: Path) -> None:
    env = {"id": "CartPole-v1", "numEnvs": 4, "backend": "ProcessPool", "numWorkers": 2}
    train(small_job(totalFrames=80), out=tmp_path / "a")
    children = set(psutil.Process().children())
    with pytest.raises(ConfigError, match="already holds a run"):
        train(small_job(env=env), out=tmp_path / "a")
    assert set(psutil.Process().children()) == children
