"""`rljob logs`, `suspend` and `resume` against a played API server, and what they say where something is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from played_api import PlayedApi

from rlruntime.cli.main import kubectl_main, main

UID = "0000-1111"


@pytest.fixture
def api() -> Iterator[PlayedApi]:
    with PlayedApi() as played:
        yield played


@pytest.fixture
def config(api: PlayedApi, tmp_path: Path) -> list[str]:
    """Options that name the played server."""
    return ["--kubeconfig", str(api.kubeconfig(tmp_path / "kubeconfig"))]


def job(name: str = "ppo", **status: Any) -> dict[str, Any]:
    said = {"phase": "Running", "attempt": 0, "roles": [{"name": "trainer", "desired": 1}], **status}
    return {"metadata": {"namespace": "team-a", "name": name, "uid": UID, "generation": 1}, "spec": {}, "status": said}


def pod(attempt: int = 0, *, index: int = 0, role: str = "trainer", state: str = "running", **waiting: str) -> Any:
    labels = {
        "rljob.io/job-uid": UID, "rljob.io/role": role, "rljob.io/index": str(index), "rljob.io/attempt": str(attempt)
    }  # fmt: skip
    name = f"ppo-{role}-{index}-{attempt}"
    return {
        "metadata": {"namespace": "team-a", "name": name, "uid": name, "labels": labels},
        "status": {"phase": "Running", "containerStatuses": [{"name": "rljob", "state": {state: waiting}}]},
    }


def at(second: int, text: str) -> str:
    return f"2026-05-04T14:02:{second:02}.000000001Z {text}"


def test_logs_of_all_pods_come_in_the_order_of_time_behind_their_names(
    api: PlayedApi, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    roles = [{"name": "trainer", "desired": 1}, {"name": "helper", "desired": 2}]
    api.put("rljobs", job(roles=roles, progress={"totalFrames": 1000}))
    for item in (pod(), pod(role="helper"), pod(role="helper", index=1, state="waiting", reason="ImagePullBackOff")):
        api.put("pods", item)
    record = {"job": "ppo", "event": "iteration", "frames": 500}
    api.log("ppo-trainer-0-0", at(1, "first"), at(3, json.dumps(record)), ends=True)
    api.log("ppo-helper-0-0", at(2, "second"), ends=True)
    assert main(["logs", "ppo", *config]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "trainer-0 | first",
        "helper-0  | second",
        "trainer-0 | 500 / 1,000 frames (50%)",
    ]
    assert said.err == "rljob: helper-1: attempt 0 hasn't started: ImagePullBackOff\n"


def test_raw_lines_are_as_they_were_written(
    api: PlayedApi, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    api.put("rljobs", job())
    api.put("pods", pod())
    record = json.dumps({"job": "ppo", "event": "iteration", "frames": 500})
    api.log("ppo-trainer-0-0", at(1, record), ends=True)
    assert main(["logs", "ppo", "--raw", *config]) == 0
    assert capsys.readouterr().out == f"{record}\n"
    assert main(["logs", "ppo", "--timestamps", "--tail", "5", "--since", "10m", *config]) == 0
    assert capsys.readouterr().out == "trainer-0 | 2026-05-04T14:02:01.000000001Z 500 frames\n"
    assert "tailLines=5" in api.requests[-1]
    assert "sinceSeconds=600" in api.requests[-1]


@pytest.mark.parametrize(
    ("status", "options", "said"),
    [
        (
            {"phase": "Succeeded", "message": "reached 475"},
            [],
            "trainer-0: no pod: the job has succeeded, and what is gone took its log along (reached 475)",
        ),
        (
            {"phase": "Pending", "reason": "QuotaExceeded", "message": "exceeded quota"},
            [],
            "trainer-0: no pod yet: QuotaExceeded: exceeded quota",
        ),
        (
            {"attempt": 3, "restarts": {"lastMessage": "trainer-0: exit code 137,\x1b OOMKilled"}},
            ["--previous"],
            "trainer-0: no pod of attempt 2 is there any more, and its log went with it; what the last restart was for:"
            " trainer-0: exit code 137, OOMKilled",
        ),
    ],
)
def test_pods_that_are_gone_are_named_and_nothing_printed_is_a_failure(
    api: PlayedApi,
    config: list[str],
    capsys: pytest.CaptureFixture[str],
    status: dict[str, Any],
    options: list[str],
    said: str,
) -> None:
    api.put("rljobs", job(**status))
    assert main(["logs", "ppo", *options, *config]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"rljob: {said}\n")


@pytest.mark.parametrize("options", [[], ["--follow"]])
def test_a_container_that_no_pod_has_is_refused_with_those_that_there_are(
    api: PlayedApi, config: list[str], capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    api.put("rljobs", job())
    api.put("pods", {**pod(), "spec": {"containers": [{"name": "rljob"}, {"name": "proxy"}]}})
    assert main(["logs", "ppo", "-c", "prox", *options, *config]) == 78
    said = capsys.readouterr().err
    assert "--container" in said
    assert "there are rljob, proxy" in said


def test_a_node_that_does_not_answer_is_said_beside_the_logs_of_others(
    api: PlayedApi, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    api.put("rljobs", job(roles=[{"name": "trainer", "desired": 1}, {"name": "helper", "desired": 1}]))
    api.put("pods", pod())
    api.put("pods", pod(role="helper"))
    api.log("ppo-trainer-0-0", at(1, "here"), ends=True)
    api.refuse["ppo-helper-0-0/log"] = (502, "dial tcp 10.0.0.7:10250: connection refused")
    assert main(["logs", "ppo", *config]) == 0
    printed = capsys.readouterr()
    assert printed.out == "trainer-0 | here\n"
    assert "helper-0: its node doesn't hand out the log: dial tcp 10.0.0.7:10250" in printed.err


def follow(config: list[str], *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rlruntime.cli.main", "logs", "ppo", "-f", *options, *config]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_following_goes_over_broken_connections_and_restarts_until_the_job_has_ended(
    api: PlayedApi, config: list[str]
) -> None:
    api.put("rljobs", job())
    api.put("pods", pod())
    api.log("ppo-trainer-0-0", at(1, "one"))
    with follow(config) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == "trainer-0 | one\n"
            api.break_streams()
            api.log("ppo-trainer-0-0", at(2, "two"), ends=True)
            assert process.stdout.readline() == "trainer-0 | two\n"
            api.put("rljobs", job(phase="Restarting", reason="BackOff", message="trainer-0: exit code 1"))
            notes = []
            for line in process.stderr:  # it may still be connecting anew
                notes.append(line.rstrip("\n"))
                if "Restarting" in line:
                    break
            else:
                pytest.fail(f"it ended: {notes}")
            api.remove("pods", "ppo-trainer-0-0")
            api.put("pods", pod(1, state="waiting", reason="ContainerCreating"))
            api.put("pods", pod(1))
            api.log("ppo-trainer-0-1", at(3, "three"), ends=True)
            assert process.stdout.readline() == "trainer-0 | three\n"
            api.put("pods", pod(1, state="terminated"))
            api.put("rljobs", job(phase="Succeeded", reason="Completed", message="reached 475"))
            assert process.wait(20) == 0
            assert process.stdout.read() == ""
            notes += process.stderr.read().splitlines()
        finally:
            process.kill()
    assert notes[-1] == "rljob: ppo is Succeeded: Completed: reached 475"
    assert "rljob: trainer-0: attempt 0 is gone" in notes
    assert "rljob: trainer-0: attempt 1 has started" in notes
    assert "rljob: ppo is Restarting: BackOff: trainer-0: exit code 1" in notes


def test_sigterm_ends_following_with_143_and_ctrl_c_with_130(api: PlayedApi, config: list[str]) -> None:
    api.put("rljobs", job())
    api.put("pods", pod())
    api.log("ppo-trainer-0-0", at(1, "one"))
    for number, code in ((15, 143), (2, 130)):
        with follow(config) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                assert process.stdout.readline() == "trainer-0 | one\n"
                process.send_signal(number)
                assert process.wait(20) == code
                assert process.stderr.read() == ""
            finally:
                process.kill()


def test_suspend_patches_one_field_and_says_what_follows(
    api: PlayedApi, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {"type": "CheckpointDurable", "status": "False"}
    api.put("rljobs", job(checkpoint={"frames": 20480}, conditions=[lost]))
    assert main(["suspend", "ppo", *config]) == 0
    printed = capsys.readouterr()
    assert printed.out == "ppo: suspending: each pod saves its state and goes\n"
    assert "no spec.storage" in printed.err
    assert main(["suspend", "ppo", *config]) == 0
    assert capsys.readouterr().out == "ppo: is suspended already (now Running)\n"
    assert main(["resume", "ppo", *config]) == 0
    assert capsys.readouterr().out == "ppo: resuming from the beginning: there is no checkpoint\n"
    assert sum(request.startswith("PATCH") for request in api.requests) == 2


def test_waiting_sees_each_job_arrive(api: PlayedApi, config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    api.put("rljobs", job("one", observedGeneration=1, phase="Suspended", checkpoint={"frames": 20480}))
    api.put("rljobs", job("two"))

    def operator() -> None:
        until_s = time.monotonic() + 20
        while time.monotonic() < until_s and sum(item.startswith("PATCH") for item in api.requests) < 2:
            time.sleep(0.02)
        api.put("rljobs", job("two", phase="Failed", reason="DeadlineExceeded"))

    acting = threading.Thread(target=operator)
    acting.start()
    assert main(["suspend", "one", "two", "--wait", "--timeout", "30", *config]) == 1
    acting.join(30)
    assert sorted(line.partition(" after ")[0] for line in capsys.readouterr().out.splitlines()) == [
        "one: suspended, saved at 20,480 frames,",
        "one: suspending: each pod saves its state and goes",
        "two: has failed",
        "two: suspending: each pod saves its state and goes",
    ]


def test_waiting_in_vain_says_what_the_job_does_instead(
    api: PlayedApi, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    api.put("rljobs", job(phase="Pending", reason="Unschedulable", message="0/3 nodes are available"))
    assert main(["resume", "ppo", "--wait", "--timeout", "0.5", *config]) == 75
    printed = capsys.readouterr()
    assert printed.out == "ppo: is not suspended already (now Pending)\n"
    assert printed.err == (
        "rljob: error: ppo: not running after 0.5 s: Pending: Unschedulable: 0/3 nodes are available\n"
    )


def test_a_job_that_has_ended_is_left_alone_and_the_others_are_suspended(
    api: PlayedApi, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    api.put("rljobs", job("done", phase="Succeeded"))
    api.put("rljobs", job("ppo"))
    assert main(["suspend", "done", "nowhere", "ppo", *config]) == 78
    printed = capsys.readouterr()
    assert printed.out == "ppo: suspending: each pod saves its state and goes\n"
    assert printed.err.splitlines() == [
        "rljob: error: done has succeeded already: there is nothing to suspend",
        "rljob: error: there is no job of this name in the namespace team-a (got 'nowhere'); see rljob top -A",
    ]


@pytest.mark.parametrize(
    ("code", "message", "exit_code", "line"),
    [
        (
            403,
            'rljobs is forbidden: User "x" cannot list',
            78,
            'rljobs is forbidden: User "x" cannot list; ask whoever',
        ),
        (401, "Unauthorized", 78, "the API server doesn't accept the credentials of the context played; log in again"),
        (404, "", 78, "doesn't know RLJob; install RLJob there, or name another --context"),
        (503, "etcd is away", 75, "the API server can't do this now: etcd is away"),
        (429, "slow down", 75, "the API server can't do this now: slow down"),
        (418, "a teapot", 1, "the API server refuses: a teapot"),
    ],
)
def test_a_refusal_is_one_line(
    api: PlayedApi,
    config: list[str],
    capsys: pytest.CaptureFixture[str],
    code: int,
    message: str,
    exit_code: int,
    line: str,
) -> None:
    api.refuse["/rljobs"] = (code, message)
    assert main(["top", *config]) == exit_code
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_a_server_that_is_away_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PlayedApi() as gone:
        path = gone.kubeconfig(tmp_path / "kubeconfig")
    assert main(["top", "--kubeconfig", str(path)]) == 75
    said = capsys.readouterr().err
    assert said.startswith("rljob: error: the API server http://127.0.0.1:")
    assert "can't be reached: " in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "there is no such kubeconfig (got '"),
        ("{}", "the Kubernetes configuration can't be used: "),
        ("contexts: [", "the Kubernetes configuration can't be used: "),
        ("no: mapping: of: ours", "the Kubernetes configuration can't be used: "),
        ("just words", "the Kubernetes configuration can't be used: what was read is no kubeconfig"),
    ],
)
def test_a_kubeconfig_that_can_not_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, line: str
) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    assert main(["top", "--kubeconfig", str(path)]) == 78
    said = capsys.readouterr().err
    assert said.startswith(f"rljob: error: {line}")
    assert said.count("\n") == 1


def test_a_misspelt_job_gets_the_nearest_name(
    api: PlayedApi, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    api.put("rljobs", job("ppo-cartpole"))
    assert main(["logs", "ppo-catpole", *config]) == 78
    assert "did you mean 'ppo-cartpole'?" in capsys.readouterr().err
    assert main(["logs", "PPO/../x", *config]) == 78
    assert "no job can have this name" in capsys.readouterr().err


def test_a_role_that_is_not_there_is_refused_with_those_that_are(
    api: PlayedApi, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    api.put("rljobs", job())
    assert main(["logs", "ppo", "--role", "trainr", *config]) == 78
    assert "--role: the job has no such role (got 'trainr'); it has trainer" in capsys.readouterr().err
    assert main(["logs", "ppo", "--previous", *config]) == 78
    assert "ppo is in its first attempt" in capsys.readouterr().err
    assert main(["logs", "ppo", "-f", "--attempt", "1", *config]) == 78


def test_the_plugin_of_kubectl_knows_these_commands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        kubectl_main(["--help"])
    assert ended.value.code == 0
    help_text = capsys.readouterr().out
    assert help_text.startswith("usage: kubectl rlj ")
    assert all(f"\n    {name} " in help_text for name in ("top", "logs", "suspend", "resume"))
    assert "validate" not in help_text


def test_commands_without_their_packages_name_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    program = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from rlruntime.cli.main import main
sys.exit(main(["top"]))
"""
    for package in ("kubernetes", "aiohttp"):
        done = subprocess.run([sys.executable, "-c", program, package], capture_output=True, text=True, check=False)
        assert done.returncode == 78
        assert done.stderr == (
            f"rljob: error: rljob top needs the package {package!r}, which is not installed;"
            " install it with: pip install 'rljob[cluster]'\n"
        )


def test_help_loads_none_of_their_packages() -> None:
    program = (
        "import sys; from rlruntime.cli.main import parser; parser().format_help();"
        "print([name for name in ('kubernetes', 'aiohttp', 'rich', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_these_commands_need_no_package_of_the_runtime() -> None:
    modules = sorted(path.stem for path in (Path(main.__code__.co_filename).parent / "cluster").glob("[a-z]*.py"))
    program = (
        "import importlib, sys\n"
        f"for name in {modules}: importlib.import_module(f'rlruntime.cli.cluster.{{name}}')\n"
        "heavy = ('torch', 'numpy', 'gymnasium', 'prometheus_client', 'matplotlib')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(modules) > 10
    assert done.stdout == "[]\n"
