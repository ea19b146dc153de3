"""`rljob run` as a person uses it: real processes, real signals, real files."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from small_jobs import policy_bytes, records, small_document, timeless

SUPPORT = Path(__file__).parents[2] / "support"


_started: list[subprocess.Popen[str]] = []


@pytest.fixture
def workdir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


def manifest(folder: Path, **training: Any) -> Path:
    """Write a small manifest, with the support environments beside it."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(small_document(**training)))
    (folder / "trainer_envs.py").write_text((SUPPORT / "trainer_envs.py").read_text())
    return path


def start(folder: Path, *arguments: str | Path, **popen: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rlruntime.cli.main", "run", *map(str, arguments)]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=folder, text=True, **pipes, **popen)
    _started.append(process)
    return process


def rljob(folder: Path, *arguments: str | Path, **popen: Any) -> tuple[int, str, str]:
    process = start(folder, *arguments, **popen)
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


def wait_for_records(run: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while len(records(run)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_leaves_its_files_and_says_what_happened(workdir: Path) -> None:
    code, out, err = rljob(workdir, manifest(workdir), "-o", "training.ppo.learningRate=1e-3")
    assert (code, err) == (0, "")
    run = workdir / "runs" / "small-1"
    assert "run folder: runs/small-1" in out
    assert "final evaluation" in out.splitlines()[-1]
    assert sorted(path.name for path in run.iterdir() if not path.name.startswith(".")) == [
        "checkpoints", "curves.png", "manifest.yaml", "metrics.jsonl", "origin.json", "policy", "result.json",
    ]  # fmt: skip
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["reason"], result["evaluation"]["episodes"]) == ("Succeeded", "TotalFrames", 2)
    effective = yaml.safe_load((run / "manifest.yaml").read_text())["spec"]["training"]
    assert (effective["ppo"]["learningRate"], effective["env"]["backend"]) == (0.001, "Loop")
    assert (run / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_quiet_prints_nothing_and_json_prints_only_json(workdir: Path) -> None:
    path = manifest(workdir)
    assert rljob(workdir, path, "--quiet", "--out", "a") == (0, "", "")
    code, out, err = rljob(workdir, path, "--log-format", "json", "--out", "b")
    assert (code, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["status"] == "Succeeded"
    assert all(isinstance(json.loads(line), dict) for line in out.splitlines())


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_at_a_boundary_and_resume_ends_with_the_same_numbers(
    signum: int, code: int, workdir: Path
) -> None:
    path = manifest(workdir, totalFrames=6000, evaluation={}, checkpoint={})
    assert rljob(workdir, path, "--quiet", "--out", "whole")[0] == 0
    process = start(workdir, path, "--out", "cut")
    wait_for_records(workdir / "cut", 10, process)
    process.send_signal(signum)
    sent = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - sent < 5
    assert (process.returncode, err) == (code, "")
    assert "continue with --resume" in out
    assert json.loads((workdir / "cut" / "result.json").read_text())["status"] == "Stopped"
    assert rljob(workdir, path, "--quiet", "--resume", "--out", "cut") == (0, "", "")
    assert timeless(workdir / "cut") == timeless(workdir / "whole")
    assert policy_bytes(workdir / "cut") == policy_bytes(workdir / "whole")


def test_a_signal_in_a_step_that_hangs_saves_the_last_boundary_within_five_seconds(workdir: Path) -> None:
    kwargs = {"hang_file": str(workdir / "hang")}
    path = manifest(workdir, totalFrames=10_000_000, env={"factory": "trainer_envs:constant", "kwargs": kwargs})
    process = start(workdir, path, "--out", "cut")
    wait_for_records(workdir / "cut", 3, process)
    (workdir / "hang").write_text("")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    process.communicate(timeout=30)
    assert time.monotonic() - sent < 5
    assert process.returncode == 143
    result = json.loads((workdir / "cut" / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("Stopped", "Signal")
    checkpoint = workdir / "cut" / result["checkpoint"]
    saved = json.loads((checkpoint / "manifest.json").read_text())
    # The environment is mended, the run goes on where it was.
    (workdir / "hang").unlink()
    target = saved["frames"] + 100
    arguments = ["--quiet", "--resume", "--out", "cut", "-o", f"training.totalFrames={target}"]
    assert rljob(workdir, path, *arguments) == (0, "", "")
    again = json.loads((workdir / "cut" / "result.json").read_text())
    assert (again["resumed"]["frames"], again["resumed"]["class"]) == (saved["frames"], "exact")


def test_a_killed_run_resumes_from_its_last_checkpoint_with_the_same_numbers(workdir: Path) -> None:
    path = manifest(workdir, totalFrames=4000, evaluation={"everyFrames": 500, "episodes": 2})
    assert rljob(workdir, path, "--quiet", "--out", "whole")[0] == 0
    process = start(workdir, path, "--out", "cut")
    wait_for_records(workdir / "cut", 15, process)
    process.kill()
    process.communicate()
    assert rljob(workdir, path, "--quiet", "--resume", "--out", "cut") == (0, "", "")
    assert timeless(workdir / "cut") == timeless(workdir / "whole")


def test_metrics_probes_and_status_are_served_while_it_runs(workdir: Path) -> None:
    process = start(workdir, manifest(workdir, totalFrames=10_000_000), "--log-format", "json", "--out", "run")
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["message"].rsplit(":", 1)[1].split("/")[0]
        wait_for_records(workdir / "run", 3, process)
        base = f"http://127.0.0.1:{port}"
        for probe in ("healthz", "readyz"):
            assert urllib.request.urlopen(f"{base}/{probe}", timeout=5).read() == b"ok\n"
        status = json.load(urllib.request.urlopen(f"{base}/status", timeout=5))
        assert (status["name"], status["phase"], status["progress"]["totalFrames"]) == ("small", "Running", 10_000_000)
        metrics = urllib.request.urlopen(f"{base}/metrics", timeout=5).read().decode()
        frames = next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("rljob_frames_total"))
        assert frames >= 3 * 4 * 15
        assert 'rljob_phase_seconds_count{phase="collect"}' in metrics
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


@pytest.mark.no_cover  # the limit would hit the coverage file too
def test_a_full_disk_is_one_line_and_keeps_the_previous_checkpoint(workdir: Path) -> None:
    path = manifest(workdir, totalFrames=100_000, evaluation={}, checkpoint={"everyFrames": 100_000})

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    code, _, err = rljob(workdir, path, "--out", "run", preexec_fn=limit_file_size)
    assert code == 74
    assert err.count("\n") == 1
    assert err.startswith("rljob: error: ")
    assert "metrics.jsonl" in err


def test_a_run_folder_that_cannot_be_made_is_one_line(workdir: Path) -> None:
    (workdir / "file").write_text("")
    code, _, err = rljob(workdir, manifest(workdir), "--out", "file/run")
    assert (code, err.count("\n")) == (74, 1)
    assert "file/run" in err


def test_a_folder_that_holds_a_run_is_refused_without_resume(workdir: Path) -> None:
    path = manifest(workdir, totalFrames=80)
    assert rljob(workdir, path, "--quiet", "--out", "run")[0] == 0
    code, _, err = rljob(workdir, path, "--out", "run")
    assert (code, err) == (
        78,
        "rljob: error: the folder run already holds a run; add --resume to go on with it, "
        "or choose another folder with --out\n",
    )


def test_a_taken_metrics_port_that_was_asked_for_is_one_line(workdir: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, _, err = rljob(workdir, manifest(workdir), "-o", f"metrics.port={port}")
    assert (code, err.count("\n")) == (78, 1)
    assert f"spec.metrics.port: the port can't be opened on 127.0.0.1: Address already in use (got {port})" in err


def test_a_custom_algorithm_trains_saves_and_resumes(workdir: Path) -> None:
    (workdir / "mine.py").write_text(
        "def train(context):\n"
        "    done = (context.state or {'done': 0})['done']\n"
        "    env = context.make_env()\n"
        "    env.close()\n"
        "    for step in range(done, done + context.config['steps']):\n"
        "        context.log({'iteration': step + 1, 'frames': 10 * (step + 1)})\n"
        "    context.save({'done': done + context.config['steps']}, frames=10 * (step + 1))\n"
        "    return {'steps': step + 1}\n"
    )
    custom = {"entrypoint": "mine:train", "config": {"steps": 3}}
    path = manifest(workdir, algorithm="Custom", custom=custom, ppo=None)
    document = yaml.safe_load(path.read_text())
    del document["spec"]["training"]["ppo"]
    path.write_text(yaml.safe_dump(document))
    for total in (3, 6):
        resume = ["--resume"] if total == 6 else []
        code, _, err = rljob(workdir, path, "--out", "run", *resume)
        assert (code, err) == (0, "")
        result = json.loads((workdir / "run" / "result.json").read_text())
        assert (result["status"], result["returned"]) == ("Succeeded", {"steps": total})
        assert [record["iteration"] for record in records(workdir / "run")] == list(range(1, total + 1))


def test_roles_that_act_on_a_cluster_only_are_named(workdir: Path) -> None:
    path = manifest(workdir, totalFrames=80)
    roles = "[{name: trainer, type: Trainer}, {name: actor, type: Collector}]"
    code, out, err = rljob(workdir, path, "-o", f"roles={roles}")
    assert (code, err) == (0, "")
    assert "the roles actor act on a cluster only: here one process does everything" in out


def test_a_killed_worker_ends_the_run_with_one_line_and_leaves_no_process(workdir: Path) -> None:
    env = {"id": "CartPole-v1", "numEnvs": 4, "backend": "ProcessPool", "numWorkers": 2}
    process = start(workdir, manifest(workdir, totalFrames=10_000_000, env=env), "--out", "run")
    wait_for_records(workdir / "run", 3, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    workers[0].kill()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.count("\n") == 1
    assert f"pid {workers[0].pid}" in err
    assert "SIGKILL" in err
    assert not psutil.wait_procs(workers, timeout=5)[1]
    result = json.loads((workdir / "run" / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("Failed", "EnvironmentFault")


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "soon"])
def test_a_grace_period_that_is_no_number_of_seconds_is_refused(seconds: str, workdir: Path) -> None:
    code, _, err = rljob(workdir, manifest(workdir), f"--grace-seconds={seconds}")
    assert (code, "--grace-seconds" in err) == (2, True)
    assert not (workdir / "runs").exists()


def test_a_custom_function_that_raises_is_one_line_and_does_not_resume_what_it_did_not_write(workdir: Path) -> None:
    document = small_document(totalFrames=80)
    ppo = workdir / "ppo.yaml"
    ppo.write_text(yaml.safe_dump(document))
    del document["spec"]["training"]["ppo"]
    document["spec"]["training"] |= {"algorithm": "Custom", "custom": {"entrypoint": "own:learn"}}
    custom = workdir / "custom.yaml"
    custom.write_text(yaml.safe_dump(document))
    (workdir / "own.py").write_text("def learn(context):\n    raise ValueError('two\\nlines')\n")
    assert rljob(workdir, custom, "--quiet", "--out", "a") == (
        1, "", "rljob: error: own:learn raised ValueError: two lines; see where with --debug\n",
    )  # fmt: skip
    assert json.loads((workdir / "a" / "result.json").read_text())["message"] == "two lines"
    assert rljob(workdir, ppo, "--quiet", "--out", "b")[0] == 0
    code, _, err = rljob(workdir, custom, "--quiet", "--resume", "--out", "b")
    assert (code, err.count("\n")) == (78, 1)
    assert "was not written by algorithm Custom" in err


def test_a_custom_function_that_has_seen_the_signal_may_save_for_longer_than_the_grace_period(workdir: Path) -> None:
    document = small_document(totalFrames=80)
    del document["spec"]["training"]["ppo"]
    document["spec"]["training"] |= {"algorithm": "Custom", "custom": {"entrypoint": "own:learn"}}
    path = workdir / "custom.yaml"
    path.write_text(yaml.safe_dump(document))
    (workdir / "own.py").write_text(
        "import time\n"
        "def learn(context):\n"
        "    context.log({'frames': 1, 'iteration': 1})\n"
        "    while not context.stop_requested:\n"
        "        time.sleep(0.01)\n"
        "    time.sleep(1.5)\n"
        "    context.save({'weights': 1}, 1)\n"
    )
    process = start(workdir, path, "--quiet", "--out", "run", "--grace-seconds", "0.5")
    wait_for_records(workdir / "run", 1, process)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 143
    assert json.loads((workdir / "run" / "result.json").read_text())["status"] == "Stopped"
    assert (workdir / "run" / "checkpoints" / "step-1").is_dir()


def test_a_run_whose_output_was_closed_from_the_start_trains_in_silence(workdir: Path) -> None:
    code, _, err = rljob(workdir, manifest(workdir, totalFrames=80), "--out", "run", preexec_fn=lambda: os.close(1))
    assert (code, err) == (0, "")
    assert json.loads((workdir / "run" / "result.json").read_text())["status"] == "Succeeded"


RAISING = """
import trainer_envs


class Raising(trainer_envs.Constant):
    def step(self, action):
        return self.lift() if self.steps > 150 else super().step(action)

    def lift(self):
        raise ValueError("the arm is broken")
"""


def test_the_traceback_of_a_worker_is_in_the_result_and_under_debug_on_the_terminal(workdir: Path) -> None:
    env = {"factory": "raising_env:Raising", "numEnvs": 4, "backend": "ProcessPool", "numWorkers": 2}
    path = manifest(workdir, env=env)
    (workdir / "raising_env.py").write_text(RAISING)
    line = "step raised ValueError: the arm is broken (raising_env.py:10)"
    code, _, err = rljob(workdir, path, "--out", "a")
    assert (code, err.count("\n")) == (1, 1)
    assert line in err
    result = json.loads((workdir / "a" / "result.json").read_text())
    assert "in lift" in result["traceback"]
    assert 'raise ValueError("the arm is broken")' in result["traceback"]
    _, _, err = rljob(workdir, path, "--out", "b", "--debug")
    assert err.index("Where the environment raised:") < err.index("in lift") < err.index("rljob: error: ")
    assert line in err.splitlines()[-1]
