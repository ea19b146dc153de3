from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kill_job import faults_of_run, kill_job, timeless_records, undisturbed_records, write_code
from pods import UID, Pod, Pods
from small_jobs import small_document

import rlruntime
from rlruntime.cli.main import main
from rlruntime.spec.contract import TerminationMessage

pytestmark = pytest.mark.timeout(300)  # a pod takes seconds to start, and longer where the machine is busy

StartJob = Callable[..., Pods]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[StartJob]:
    """Returns what makes the storage and the pods of a manifest; all pods are ended."""
    made: list[Pods] = []

    def make(manifest: dict[str, Any], code: Path | None = None) -> Pods:
        pods = Pods(tmp_path, manifest, code=code)
        made.append(pods)
        return pods

    yield make
    for pods in made:
        pods.stop()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What an undisturbed run of the kill job writes."""
    return undisturbed_records(tmp_path_factory.mktemp("undisturbed"))


def custom_document(body: str, folder: Path) -> tuple[dict[str, Any], Path]:
    """Return a manifest whose training function has ``body``, and the folder with its module."""
    (folder / "code").mkdir()
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    (folder / "code/mine.py").write_text(f"import time\n\n\ndef train(context):\n{lines}\n")
    document = small_document(algorithm="Custom", ppo=None, custom={"entrypoint": "mine:train", "config": {"a": 1}})
    del document["spec"]["training"]["ppo"]
    return document, folder / "code"


def test_job_trains_to_its_end_and_says_so_everywhere(job: StartJob, capsys: pytest.CaptureFixture[str]) -> None:
    pods = job(small_document())
    pod = pods.start()
    assert pod.wait() == 0, pod.log
    message = pod.message
    assert message.reason == "Succeeded"
    assert message.message.startswith("all frames collected; ")
    result = json.loads((pods.attempt(0) / "result.json").read_text())
    report = message.report
    assert report is not None
    assert (report.uid, report.attempt, report.phase, report.frames) == (UID, 0, "Succeeded", result["frames"])
    assert report.reward == result["evaluation"]["rewardMean"]
    assert report.best_reward == max(report.reward, result["bestEvaluationReward"])
    assert report.remaining_seconds == 0
    assert report.checkpoint is not None
    assert report.checkpoint.frames == result["frames"]
    assert (pods.storage / str(report.checkpoint.path) / "manifest.json").is_file()
    lines = [json.loads(line) for line in pod.log.splitlines()]
    assert {(line["job"], line["namespace"], line["role"], line["attempt"]) for line in lines} == {
        ("small", "team-a", "trainer", 0)
    }
    assert lines[-1]["event"] == "end"
    # The policy is found by the job's folder.
    assert rlruntime.load_policy(pods.job).act([0.0, 0.0, 0.0, 0.0]).action in (0, 1)
    assert main(["evaluate", str(pods.job), "--episodes", "2"]) == 0
    assert "small: 2 episodes" in capsys.readouterr().out
    assert main(["export", str(pods.job), "--format", "safetensors"]) == 0


def test_finished_job_is_reported_again_without_training(job: StartJob) -> None:
    pods = job(small_document())
    first = pods.start(0)
    assert first.wait() == 0, first.log
    metrics = (pods.attempt(0) / "metrics.jsonl").read_bytes()
    second = pods.start(1)
    assert second.wait() == 0
    assert second.message == first.message
    assert "attempt 0 has finished the job; reporting what it said" in second.log
    assert not pods.attempt(1).exists()
    assert (pods.attempt(0) / "metrics.jsonl").read_bytes() == metrics


def test_killed_trainer_is_resumed_at_its_last_checkpoint_with_the_same_numbers(
    job: StartJob, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    pods = job(kill_job(seconds=6.0), write_code(tmp_path / "code"))
    first = pods.start(0)
    first.wait_for_checkpoint(800)
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert not first.has_message
    second = pods.start(1)
    saved = second.wait_for_checkpoint(800)
    second.send(signal.SIGKILL)  # maybe before it has saved anything itself
    second.wait()
    third = pods.start(2)
    assert third.wait() == 0, third.log
    report = third.message.report
    assert report is not None
    assert report.resumed_frames is not None
    assert report.resumed_frames >= saved
    assert faults_of_run(pods.job, expected) == []


def test_port_answers_from_the_start_and_is_ready_when_training_begins(job: StartJob, tmp_path: Path) -> None:
    pod = job(kill_job(seconds=10.0), write_code(tmp_path / "code")).start(3, round=5)
    pod.wait_until(lambda: pod.get("/healthz")[0] == 200)
    assert pod.get("/readyz") == (503, "training hasn't begun\n")
    starting = pod.report()
    assert starting is not None
    assert (starting.uid, starting.attempt, starting.round, starting.phase) == (UID, 3, 5, "Starting")
    assert (starting.frames, starting.total_frames) == (None, 4000)
    pod.wait_until(lambda: pod.get("/readyz")[0] == 200)
    training = pod.wait_for_frames(800)
    assert training.phase == "Training"
    assert training.reward is not None
    assert training.frames_per_second is not None
    assert training.remaining_seconds is not None
    assert 0 < training.remaining_seconds < 60
    assert "rljob_progress_frames" in pod.get("/metrics")[1]
    assert pod.get("/healthz") == (200, "ok\n")


def test_sigterm_saves_a_checkpoint_and_says_at_which_frames(
    job: StartJob, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    pods = job(kill_job(seconds=6.0), write_code(tmp_path / "code"))
    first = pods.start(0)
    first.wait_for_frames(500)
    first.send(signal.SIGTERM)
    assert first.wait() == 143
    report = first.message.report
    assert report is not None
    assert report.checkpoint is not None
    assert first.message.reason == "Stopped"
    assert first.message.message == f"SIGTERM received; saved at {report.checkpoint.frames:,} frames"
    assert (report.phase, report.frames) == ("Stopped", report.checkpoint.frames)
    second = pods.start(1)
    assert second.wait() == 0, second.log
    resumed = second.message.report
    assert resumed is not None
    assert resumed.resumed_frames == report.frames
    assert faults_of_run(pods.job, expected) == []


def test_sigterm_in_the_middle_of_a_long_phase_saves_the_last_boundary(job: StartJob, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    env = {"factory": "trainer_envs:constant", "kwargs": {"hang_file": str(hang)}, "numEnvs": 4, "backend": "Loop"}
    document = small_document(env=env, totalFrames=10_000_000, evaluation={"episodes": 1})
    pods = job(document, Path(__file__).parents[2] / "support")
    pod = pods.start(options=("--grace-seconds", "0.5"))
    pod.wait_for_frames(400)
    hang.touch()
    time.sleep(0.5)
    pod.send(signal.SIGTERM)
    assert pod.wait() == 143
    report = pod.message.report
    assert report is not None
    assert report.checkpoint is not None
    assert pod.message.message == f"SIGTERM received; saved at {report.checkpoint.frames:,} frames"
    saved = json.loads((pods.storage / str(report.checkpoint.path) / "manifest.json").read_text())
    assert saved["frames"] == report.checkpoint.frames


def test_sigterm_before_training_begins_ends_at_once(job: StartJob) -> None:
    pod = job(small_document()).start()
    pod.wait_until(lambda: pod.get("/healthz")[0] == 200)
    pod.send(signal.SIGTERM)
    assert pod.wait() == 143
    assert pod.message.reason == "Stopped"
    assert pod.message.message.startswith("SIGTERM received; ")


def test_old_attempt_that_wakes_up_is_fenced_and_nothing_it_wrote_counts(
    job: StartJob, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    pods = job(kill_job(seconds=8.0), write_code(tmp_path / "code"))
    old = pods.start(0)
    old.wait_for_checkpoint(400)
    old.send(signal.SIGSTOP)  # as on a node that was lost
    new = pods.start(1)
    adopted = new.wait_until(lambda: new.report() if new.get("/readyz")[0] == 200 else None)
    old.send(signal.SIGCONT)
    assert old.wait() == 75, old.log
    assert old.message.reason == "Fenced"
    assert old.message.message == "attempt 0 was ended by attempt 1; it writes nothing more"
    assert old.message.report is not None
    assert old.message.report.phase == "Fenced"
    assert new.wait() == 0, new.log
    assert adopted.resumed_frames >= 400
    assert faults_of_run(pods.job, expected) == []
    assert not (pods.attempt(0) / "result.json").exists()


def test_old_attempt_that_lives_on_beside_the_new_one_ends_by_itself(
    job: StartJob, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    pods = job(kill_job(seconds=8.0), write_code(tmp_path / "code"))
    old = pods.start(0)
    old.wait_for_checkpoint(400)
    new = pods.start(1)
    assert old.wait() == 75, old.log
    assert old.message.reason == "Fenced"
    assert new.wait() == 0, new.log
    assert faults_of_run(pods.job, expected) == []


def test_old_attempt_whose_loop_never_looks_is_ended_by_the_watch(job: StartJob, tmp_path: Path) -> None:
    document, code = custom_document("context.save({'n': 1}, 10)\ntime.sleep(600)", tmp_path)
    pods = job(document, code)
    old = pods.start(0)
    old.wait_for_checkpoint(10)
    (code / "mine.py").write_text("def train(context):\n    return {'state': context.state}\n")
    new = pods.start(1)
    assert new.wait() == 0, new.log
    assert json.loads((pods.attempt(1) / "result.json").read_text())["returned"] == {"state": {"n": 1}}
    assert old.wait() == 75
    assert old.message.reason == "Fenced"


def test_same_attempt_twice_is_refused_while_the_first_trains_on(job: StartJob, tmp_path: Path) -> None:
    pods = job(kill_job(seconds=10.0), write_code(tmp_path / "code"))
    first = pods.start(0)
    first.wait_for_frames(100)
    again = pods.start(0)
    assert again.wait() == 75
    assert again.message.reason == "Fenced"
    assert again.message.message == f"attempt 0 has begun before, in {pods.attempt(0)}; each number is used once"
    first.wait_for_frames(300)


def test_custom_function_trains_in_a_pod_and_resumes_with_its_state(job: StartJob, tmp_path: Path) -> None:
    body = """\
start = context.state["step"] if context.state else 0
(context.folder / f"from-{start}").touch()
for step in range(start, 5):
    context.log({"frames": step + 1, "iteration": step + 1, "train/episode_reward_mean": float(step)})
    context.save({"step": step + 1}, step + 1)
    if step == 2 and not start:
        time.sleep(600)
return {"config": context.config}"""
    document, code = custom_document(body, tmp_path)
    pods = job(document, code)
    first = pods.start(0)
    first.wait_for_checkpoint(3)
    first.send(signal.SIGKILL)
    first.wait()
    second = pods.start(1)
    assert second.wait() == 0, second.log
    assert second.message.message == "the training function returned; 5 frames"
    report = second.message.report
    assert report is not None
    assert (report.frames, report.resumed_frames, report.reward) == (5, 3, 4.0)
    assert [record["frames"] for record in timeless_records(pods.job)] == [1, 2, 3, 4, 5]
    assert (pods.attempt(1) / "from-0").exists()  # the user's own files come along
    assert (pods.attempt(1) / "from-3").exists()


def ends_with(pod: Pod, code: int, reason: str, message: str) -> TerminationMessage:
    """See how a pod ends; ``message`` is how its last message begins."""
    assert pod.wait() == code, pod.log
    assert pod.message.reason == reason
    assert pod.message.message.startswith(message), pod.message.message
    assert pod.message.message in pod.log
    return pod.message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("env", {"factory": "nowhere:make"}, "spec.training.env.factory: there is no module 'nowhere'"),
        ("network", {"type": "MPL"}, "spec.training.network.type: there is no network of this name (got 'MPL')"),
    ],
)
def test_job_that_can_never_work_ends_with_78_and_names_the_field(
    job: StartJob, field: str, value: Any, message: str
) -> None:
    reason = "ManifestError" if field == "network" else "ConfigError"
    ends_with(job(small_document(**{field: value})).start(), 78, reason, message)


@pytest.mark.parametrize(
    ("roles", "processes", "message"),
    [
        (
            [{"name": "trainer", "type": "Trainer", "replicas": 2}], 1,
            "spec.roles[0].replicas: a Trainer of several replicas needs distributed training, which this version of "
            "rljob doesn't have (got 2); set replicas: 1",
        ),
        (
            [{"name": "trainer", "type": "Trainer"}], 4,
            "spec.roles[0].processesPerReplica: a Trainer of several processes needs distributed training, which this "
            "version of rljob doesn't have (got 4); set processesPerReplica: 1",
        ),
        (
            [{"name": "learner", "type": "Trainer"}], 1,
            "RLJOB_ROLE: the job has no Trainer of this name (got 'trainer'); it has learner (Trainer)",
        ),
    ],
)  # fmt: skip
def test_trainer_that_this_version_can_not_run_says_what_to_set(
    job: StartJob, roles: list[dict[str, Any]], processes: int, message: str
) -> None:
    document = small_document()
    document["spec"]["roles"] = roles
    ends_with(job(document).start(processes=processes), 78, "ConfigError", message)


@pytest.mark.parametrize("role_type", ["collector", "inference"])
def test_role_that_this_version_lacks_is_said_in_one_line(job: StartJob, role_type: str) -> None:
    message = (
        f"spec.roles: this version of rljob has no pods of type {role_type.title()}; "
        "remove the role: the trainer collects by itself"
    )
    ends_with(job(small_document()).start(role_type=role_type), 78, "ConfigError", message)


def test_type_of_a_newer_operator_is_permanent_too(job: StartJob) -> None:
    message = (
        "TYPE: this version of rljob has no pods of this type (got 'rewarder'); use an image as new as the operator"
    )
    ends_with(job(small_document()).start(role_type="rewarder"), 78, "ConfigError", message)


def test_function_that_ends_the_process_has_not_succeeded(job: StartJob, tmp_path: Path) -> None:
    document, code = custom_document("import sys\nsys.exit(0)", tmp_path)
    message = "the job's own code ended the process by sys.exit(0)"
    ends_with(job(document, code).start(), 1, "SystemExit", message)


def test_missing_variable_is_named(job: StartJob) -> None:
    pod = job(small_document()).start(variables={"RLJOB_UID": ""})
    ends_with(pod, 78, "ConfigError", "RLJOB_UID: this variable is missing; it is set in the pods")


def test_storage_that_can_not_be_written_is_a_fault_that_may_pass(job: StartJob) -> None:
    pods = job(small_document())
    pods.job.write_text("")  # a file where the job's folder would be
    message = ends_with(pods.start(), 74, "StorageError", f"cannot make the job's folder {pods.job}: ")
    assert message.report is not None
    assert message.report.phase == "Failed"


def test_spec_that_is_not_there_or_is_none_is_said(job: StartJob, tmp_path: Path) -> None:
    pods = job(small_document())
    ends_with(
        pods.start(options=("--config-dir", str(tmp_path / "nowhere"))),
        74,
        "StorageError",
        f"{tmp_path}/nowhere/spec/spec.json: can't be read: No such file or directory",
    )
    (tmp_path / "bad/spec").mkdir(parents=True)
    (tmp_path / "bad/spec/spec.json").write_text("{")
    ends_with(
        pods.start(options=("--config-dir", str(tmp_path / "bad"))),
        78,
        "ConfigError",
        f"{tmp_path}/bad/spec/spec.json: is not JSON",
    )


def test_token_that_is_none_is_refused_and_not_shown(job: StartJob, tmp_path: Path) -> None:
    pods = job(small_document())
    token = tmp_path / "config/token/token"
    for path, text in ((tmp_path / "config/spec/spec.json", pods.shared.to_text()), (token, "hunter2\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    pod = pods.start(options=("--config-dir", str(tmp_path / "config")))
    ends_with(pod, 78, "ConfigError", f"{token}: holds no token, which is 64 hexadecimal digits")
    assert "hunter2" not in pod.log


@pytest.mark.parametrize(
    ("step", "code", "reason"),
    [
        ("raise OSError('simulator is gone')", 1, "EnvironmentFault"),
        ("return self.state * float('nan'), 1.0, False, False, {}", 78, "UnlearnableFault"),
    ],
)
def test_environment_that_fails_ends_the_pod_with_the_last_state_saved(
    job: StartJob, tmp_path: Path, step: str, code: int, reason: str
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/broken.py").write_text(
        "import numpy\nfrom gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "class Broken(CartPoleEnv):\n    steps = 0\n    def step(self, action):\n        self.steps += 1\n"
        f"        if self.steps == 90:\n            self.state = numpy.zeros(4, 'f')\n            {step}\n"
        "        return super().step(action)\n"
    )
    pods = job(small_document(env={"factory": "broken:Broken", "numEnvs": 4}, evaluation={}), tmp_path / "code")
    message = ends_with(pods.start(), code, reason, "environment copy ")
    assert message.report is not None
    assert message.report.checkpoint is not None
    assert (message.report.phase, message.report.frames) == ("Failed", message.report.checkpoint.frames)


def test_exception_of_another_kind_keeps_its_name_and_shows_its_traceback(job: StartJob, tmp_path: Path) -> None:
    document, code = custom_document("raise KeyError('x')", tmp_path)
    pod = job(document, code).start()
    ends_with(pod, 1, "RLJobError", "mine:train raised KeyError: 'x'")
    assert "Traceback" in pod.log
    assert "KeyError: 'x'" in pod.log


def test_port_that_is_taken_is_said(job: StartJob) -> None:
    pods = job(small_document())
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        (pods.folder / "taken/spec").mkdir(parents=True)
        spec = {**json.loads(pods.shared.to_text()), "metrics": {"port": port}}
        (pods.folder / "taken/spec/spec.json").write_text(json.dumps(spec))
        pod = pods.start(options=("--config-dir", str(pods.folder / "taken")))
        ends_with(pod, 78, "ConfigError", "spec.metrics.port: the port can't be opened on 0.0.0.0: ")


def test_last_message_that_can_not_be_written_does_not_change_the_outcome(job: StartJob, tmp_path: Path) -> None:
    pod = job(small_document()).start(options=("--termination-file", str(tmp_path / "no/such/file")))
    assert pod.wait() == 0
    assert f"rljob: can't write the last message to {tmp_path}/no/such/file: No such file or directory" in pod.log
