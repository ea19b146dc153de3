from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pods import UID, Pod, Pods
from small_jobs import small_document

pytestmark = pytest.mark.timeout(300)

Serve = Callable[..., Pod]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Returns what starts the pod of a Service whose module has the given text."""
    (tmp_path / "code").mkdir()
    pods = Pods(tmp_path, small_document(), code=tmp_path / "code")

    def start(text: str, *, entrypoint: str | None = "rewards:serve", config: dict[str, Any] | None = None) -> Pod:
        (tmp_path / "code/rewards.py").write_text(text)
        return pods.start(role_type="service", role="reward", entrypoint=entrypoint, config=config)

    yield start
    pods.stop()


def ending(pod: Pod) -> tuple[int, str, str]:
    """Return exit code, reason and message."""
    return pod.wait(), pod.message.reason, pod.message.message


def test_function_gets_its_config_and_its_return_ends_the_pod_with_success(serve: Serve, tmp_path: Path) -> None:
    text = f"import json\ndef serve(config):\n    open({str(tmp_path / 'seen')!r}, 'w').write(json.dumps(config))\n"
    assert ending(serve(text, config={"model": "tiny", "n": 2})) == (0, "Succeeded", "rewards:serve returned")
    assert json.loads((tmp_path / "seen").read_text()) == {"model": "tiny", "n": 2}


def test_function_without_config_gets_an_empty_one(serve: Serve, tmp_path: Path) -> None:
    text = f"def serve(config):\n    open({str(tmp_path / 'seen')!r}, 'w').write(repr(config))\n"
    assert ending(serve(text))[0] == 0
    assert (tmp_path / "seen").read_text() == "{}"


def test_port_is_ready_while_the_function_runs_and_sigterm_lets_it_clean_up(serve: Serve, tmp_path: Path) -> None:
    text = (
        "import time\n"
        "def serve(config):\n"
        "    try:\n"
        "        time.sleep(600)\n"
        "    finally:\n"
        f"        open({str(tmp_path / 'cleaned')!r}, 'w').write('')\n"
    )
    pod = serve(text)
    pod.wait_until(lambda: pod.get("/readyz")[0] == 200)
    assert pod.get("/healthz") == (200, "ok\n")
    assert json.loads(pod.get("/status")[1]) == {"uid": UID, "attempt": 0, "phase": "Running"}
    pod.send(signal.SIGTERM)
    assert ending(pod) == (143, "Stopped", "SIGTERM received")
    assert (tmp_path / "cleaned").exists()


def test_port_is_not_ready_while_the_module_is_imported(serve: Serve) -> None:
    pod = serve("import time\ntime.sleep(600)\ndef serve(config): pass\n")
    pod.wait_until(lambda: pod.get("/healthz")[0] == 200)
    assert pod.get("/readyz") == (503, "the entrypoint isn't called yet\n")
    pod.send(signal.SIGTERM)
    assert ending(pod) == (143, "Stopped", "SIGTERM received")


def test_function_that_raises_is_a_fault_that_says_what(serve: Serve) -> None:
    pod = serve("def serve(config):\n    raise ValueError('no model')\n")
    assert ending(pod) == (1, "RLJobError", "rewards:serve raised ValueError: no model")
    assert "Traceback" in pod.log


@pytest.mark.parametrize(
    ("text", "entrypoint", "message"),
    [
        ("", None, "RLJOB_ENTRYPOINT: this variable is missing; it is set in pods of a Service"),
        ("", "rewards:serve", "RLJOB_ENTRYPOINT: the module 'rewards' has no 'serve' (got 'rewards:serve')"),
        ("", "absent:serve", "RLJOB_ENTRYPOINT: there is no module 'absent' (got 'absent:serve')"),
        ("serve = 3\n", "rewards:serve", "RLJOB_ENTRYPOINT: the entrypoint can't be called (got 'rewards:serve')"),
    ],
)
def test_entrypoint_that_can_not_work_ends_with_78(
    serve: Serve, text: str, entrypoint: str | None, message: str
) -> None:
    code, reason, words = ending(serve(text, entrypoint=entrypoint))
    assert (code, reason) == (78, "ConfigError")
    assert words.startswith(message)
