"""`rljob evaluate` and `rljob export` as a user meets them: what is printed, what is written, how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Protocol

import gymnasium as gym
import policy_envs
import pytest
from policy_runs import job_of
from small_jobs import run_job, small_job

from rlruntime.cli.main import main
from rlruntime.cli.video import require_video
from rlruntime.errors import ConfigError
from rlruntime.spec.training.env import EnvConfig
from rlruntime.trainers.loop import Trainer
from rlruntime.trainers.run_folder import RunFolder

SUPPORT = str(Path(policy_envs.__file__).parent)
MAIN = "import sys; from rlruntime.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Outcome(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


class Command(Protocol):
    """Runs ``rljob`` with these arguments."""

    def __call__(self, *arguments: object) -> Outcome: ...


@pytest.fixture
def rljob(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the command, run in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: object) -> Outcome:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:  # argparse's
            code = int(error.code or 0)
        return Outcome(code, *capfd.readouterr())

    return run


def new_process(*arguments: object) -> Outcome:
    """Run the command in a process of its own, with warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", MAIN, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained("cartpole", tmp_path_factory)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained("masked", tmp_path_factory)


def trained(kind: str, factory: pytest.TempPathFactory) -> Path:
    path = factory.mktemp(kind) / "run"
    with RunFolder.create(path) as folder:
        Trainer(job_of(kind)).run(folder)
    return path


def test_evaluate_repeats_the_runs_own_final_evaluation_and_nothing_else_is_printed(
    cartpole: Path, rljob: Command
) -> None:
    done = rljob("evaluate", cartpole, "--log-format", "json")
    assert (done.code, done.err) == (0, "")
    found, result = json.loads(done.out), json.loads((cartpole / "result.json").read_text())
    assert found["rewardMean"] == result["evaluation"]["rewardMean"]
    assert found["rewardStd"] == result["evaluation"]["rewardStd"]
    assert found["lengthMean"] == result["evaluation"]["lengthMean"]
    assert found["episodes"] == len(found["rewards"]) == 2
    assert found["deterministic"] is True
    assert found["rewardMin"] == min(found["rewards"])
    assert found["lengthMax"] == max(found["lengths"])
    assert found["videos"] == []


def test_evaluate_prints_a_short_summary_for_people(cartpole: Path, rljob: Command) -> None:
    done = rljob("evaluate", cartpole, "--episodes", 1, "--seed", 7, "--stochastic")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "cartpole: 1 episode, sampled actions, seed 7"
    assert lines[1].startswith("  reward  mean ")
    assert lines[2].startswith("  length  mean ")
    assert len(lines) == 3


def test_evaluate_writes_videos_of_the_first_episodes(cartpole: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    done = new_process("evaluate", cartpole, "--video", "--log-format", "json")
    assert (done.code, done.err) == (0, "")
    videos = [Path(path) for path in json.loads(done.out)["videos"]]
    assert videos == [cartpole / "videos" / f"episode-{number}.mp4" for number in (1, 2)]
    lengths = json.loads(done.out)["lengths"]
    assert [frames(video) for video in videos] == [length + 1 for length in lengths]
    assert sorted(path.name for path in (cartpole / "videos").iterdir()) == ["episode-1.mp4", "episode-2.mp4"]


def test_a_policy_with_transforms_in_its_environment_is_evaluated_and_filmed_behind_them(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    transforms = [{"type": "FrameSkip", "config": {"frames": 3}}, {"type": "CatFrames", "config": {"frames": 2}}]
    env = {"id": "CartPole-v1", "numEnvs": 4, "transforms": transforms}
    run_job(small_job(totalFrames=160, env=env, evaluation={"episodes": 2}), tmp_path / "run")
    done = new_process("evaluate", tmp_path / "run", "--video", "--log-format", "json")
    assert (done.code, done.err) == (0, "")
    said = json.loads(done.out)
    assert [frames(Path(video)) for video in said["videos"]] == [length + 1 for length in said["lengths"]]


def test_evaluate_finds_the_users_modules_in_the_folder_it_is_given(masked: Path) -> None:
    without = new_process("evaluate", masked)
    assert without.code == 78
    assert without.err.startswith("rljob: error: spec.training.env.factory: there is no module 'policy_envs'")
    done = new_process("evaluate", masked, "--code", SUPPORT)
    assert (done.code, done.err) == (0, "")


def test_an_environment_that_cannot_render_is_one_line_with_a_remedy(masked: Path, rljob: Command) -> None:
    pytest.importorskip("imageio_ffmpeg")
    done = rljob("evaluate", masked, "--code", SUPPORT, "--video")
    assert (done.code, done.out) == (78, "")
    assert done.err == (
        "rljob: error: spec.training.env.factory: the environment does not render as rgb_array"
        " (got 'policy_envs:masked_env'); let it take render_mode and keep it as an attribute\n"
    )


def test_what_a_render_method_does_wrong_is_said_before_the_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setitem(gym.registry, "Blind-v0", gym.envs.registration.EnvSpec("Blind-v0", "policy_envs:masked_env"))
    config = EnvConfig(factory="policy_envs:drawing_env", kwargs={"drawing": "nothing"})
    with pytest.raises(
        ConfigError, match=r"rendering policy_envs:drawing_env returned object of shape \(\), not an image"
    ):
        require_video(config)
    config = EnvConfig(factory="policy_envs:drawing_env", kwargs={"drawing": "fails"})
    with pytest.raises(ConfigError, match="raised OSError: no display; see its documentation, or leave --video out"):
        require_video(config)
    with pytest.raises(ConfigError, match=r"render_modes'\] is \[\] \(got 'Blind-v0'\); add 'rgb_array' to it"):
        require_video(EnvConfig(id="Blind-v0"))


def test_a_missing_extra_is_named_with_its_command_before_anything_runs(
    cartpole: Path, tmp_path: Path, rljob: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("imageio_ffmpeg", "onnxscript"):
        monkeypatch.setitem(sys.modules, package, None)
    video = rljob("evaluate", cartpole, "--video")
    assert (video.code, video.out) == (78, "")
    assert video.err.endswith("install it with: pip install 'rljob[video]'\n")
    onnx = rljob("export", cartpole, "--output", tmp_path / "out")
    assert (onnx.code, onnx.out) == (78, "")
    assert onnx.err.endswith("install it with: pip install 'rljob[onnx]'\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_folder_that_is_no_run_is_one_line(command: str, tmp_path: Path, rljob: Command) -> None:
    done = rljob(command, tmp_path)
    assert done.code == 78
    assert done.err.count("\n") == 1
    assert str(tmp_path) in done.err


@pytest.mark.parametrize("option", [("--episodes", "0"), ("--episodes", "many"), ("--seed", "-1")])
def test_numbers_that_make_no_sense_are_refused(cartpole: Path, option: tuple[str, str], rljob: Command) -> None:
    done = rljob("evaluate", cartpole, *option)
    assert done.code == 2
    assert f"argument {option[0]}: give a whole number" in done.err


def test_export_writes_every_format_says_so_and_is_otherwise_silent(cartpole: Path) -> None:
    pytest.importorskip("onnxscript")
    done = new_process("export", cartpole)
    assert (done.code, done.err) == (0, "")
    names = ["policy.safetensors", "policy.pt2", "policy.onnx", "policy.json"]
    assert [line.split("  ")[0] for line in done.out.splitlines()] == [str(cartpole / "export" / n) for n in names]
    assert sorted(path.name for path in (cartpole / "export").iterdir()) == sorted(names)


def test_export_takes_one_format_a_policy_file_and_another_folder(
    cartpole: Path, tmp_path: Path, rljob: Command
) -> None:
    source = cartpole / "policy" / "policy.safetensors"
    done = rljob("export", source, "--format", "safetensors", "--output", tmp_path)
    assert (done.code, done.err) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "policy.safetensors"]
    assert (tmp_path / "policy.safetensors").read_bytes() == source.read_bytes()


def test_export_into_something_that_is_no_folder_is_one_line(cartpole: Path, tmp_path: Path, rljob: Command) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    done = rljob("export", cartpole, "--format", "safetensors", "--output", occupied)
    assert done.code == 74
    assert (
        done.err == f"rljob: error: can't write the exported policy to {occupied}: File exists; choose another folder\n"
    )


def frames(path: Path) -> int:
    number, _seconds = pytest.importorskip("imageio_ffmpeg").count_frames_and_secs(os.fspath(path))
    return int(number)
