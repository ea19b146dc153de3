from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlruntime.errors import ConfigError, MissingExtraError, RLJobError, StorageError
from rlruntime.registry import build
from rlruntime.spec.training.component import Component
from rlruntime.trainers.loggers import JsonLinesLogger, LoggerContext, Loggers, Record, read_records, without_time

RECORD: dict[str, float | int | str] = {"iteration": 1, "frames": 512, "loss/policy": 0.1 + 0.2, "time/learn_s": 0.5}


def message_of(kind: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_record_is_in_the_file_when_log_returns_and_reads_back_exactly(tmp_path: Path) -> None:
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    logger.log(RECORD)
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"iteration": 1, "frames": 512, "loss/policy": 0.30000000000000004, "time/learn_s": 0.5}\n'
    )
    tiny: dict[str, float | int | str] = {
        "iteration": 2,
        "x": 5e-324,
        "y": -0.0,
        "text": "ü\n",
        "bad": math.inf,
        "numpy": float(np.float32(0.1)),
    }
    logger.log(tiny)
    logger.sync()
    logger.close()
    logger.close()
    assert read_records(tmp_path / "metrics.jsonl") == [RECORD, {**tiny, "bad": None}]


def test_resumed_logger_appends(tmp_path: Path) -> None:
    for iteration in (1, 2):
        logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
        logger.log({"iteration": iteration})
        logger.close()
    assert read_records(tmp_path / "metrics.jsonl") == [{"iteration": 1}, {"iteration": 2}]


def test_line_that_a_kill_cut_short_is_left_out_and_garbage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iterat')
    assert read_records(path) == [{"iteration": 1}]
    path.write_text('{"iteration": 1}\n17\n{"iteration": 3}\n')
    assert message_of(ConfigError, lambda: read_records(path)) == f"{path}, line 2 is not a JSON object"


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    logger = JsonLinesLogger(Path("/dev/full"))
    assert message_of(StorageError, lambda: logger.log(RECORD)) == (
        f"cannot write /dev/full: {os.strerror(errno.ENOSPC)}; free space there, or choose another folder"
    )
    logger.close()
    missing = tmp_path / "absent" / "metrics.jsonl"
    assert message_of(StorageError, lambda: JsonLinesLogger(missing)).startswith(
        f"cannot write {missing}: No such file"
    )


@pytest.mark.no_cover  # the limit would hit the coverage file too
def test_disk_that_fills_up_in_the_middle_of_a_line_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom rlruntime.errors import StorageError\n"
        "from rlruntime.trainers.loggers import JsonLinesLogger\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "logger = JsonLinesLogger(Path(sys.argv[1]))\n"
        "try:\n    while True:\n        logger.log({'iteration': 1, 'text': 'x' * 90})\n"
        "except StorageError as error:\n    sys.exit(error.exit_code)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program, str(path)], timeout=50, check=False)
    assert finished.returncode == 74
    assert path.read_bytes().endswith(b'"}\n')
    assert len(read_records(path)) == path.read_bytes().count(b"\n") == 8


def test_time_fields_are_the_only_ones_that_two_runs_may_differ_in() -> None:
    assert without_time(RECORD) == {"iteration": 1, "frames": 512, "loss/policy": 0.1 + 0.2}


def test_all_loggers_are_closed_though_one_fails() -> None:
    closed: list[str] = []

    class Failing:
        def log(self, record: Record) -> None:
            closed.append("logged")

        def close(self) -> None:
            raise RLJobError("no connection")

    class Quiet(Failing):
        def close(self) -> None:
            closed.append("closed")

    loggers = Loggers([Failing(), Quiet()])
    loggers.log(RECORD)
    loggers.sync()
    with pytest.raises(RLJobError, match="no connection"):
        loggers.close()
    assert closed == ["logged", "logged", "closed"]


def scalars(folder: Path, key: str) -> list[tuple[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, round(event.value, 5)) for event in events.Scalars(key)]


def test_tensorboard_shows_each_frame_once_after_a_resume_from_an_earlier_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    first = build("logger", Component(type="TensorBoard"), LoggerContext(tmp_path), field="spec.training.loggers[0]")
    for frames in (100, 200, 300):
        first.log({"frames": frames, "loss/policy": frames / 1000, "note": "text", "bad": math.nan})
    first.close()
    context = LoggerContext(tmp_path, resumed_frames=200)
    second = build("logger", Component(type="TensorBoard"), context, field="spec.training.loggers[0]")
    for frames in (300, 400):
        second.log({"frames": frames, "loss/policy": frames / 1000})
    second.close()
    assert scalars(tmp_path / "tensorboard", "loss/policy") == [(100, 0.1), (200, 0.2), (300, 0.3), (400, 0.4)]


def test_tensorboard_writes_into_the_folder_of_its_config(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    component = Component(type="TensorBoard", config={"folder": str(tmp_path / "events")})
    logger = build("logger", component, LoggerContext(tmp_path), field="f")
    logger.log(RECORD)
    logger.close()
    assert scalars(tmp_path / "events", "loss/policy") == [(512, 0.3)]


def test_misspelt_setting_of_a_logger_names_field_and_nearest_one(tmp_path: Path) -> None:
    component = Component(type="WandB", config={"projcet": "mine"})
    message = message_of(
        ConfigError, lambda: build("logger", component, LoggerContext(tmp_path), field="spec.training.loggers[1]")
    )
    assert message.startswith("spec.training.loggers[1].config.projcet: ")
    assert "did you mean 'project'?" in message


@pytest.mark.parametrize(("name", "package"), [("WandB", "wandb"), ("MLflow", "mlflow")])
def test_logger_without_its_package_says_which_extra_to_install(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (package, f"{package}.tracking"):
        monkeypatch.setitem(sys.modules, module, None)  # what an import of a missing package meets
    call = lambda: build("logger", Component(type=name), LoggerContext(tmp_path), field="f")  # noqa: E731
    assert message_of(MissingExtraError, call) == (
        f"the logger {name} needs the package {package!r}, which is not installed; "
        f"install it with: pip install 'rljob[{package}]'"
    )


class FakeWandB:
    """The part of the client that the logger uses; offline, a resumed run doesn't know which steps it has."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}

    def init(self, **arguments: Any) -> Any:
        run = self.runs.setdefault(arguments["id"], {"arguments": arguments, "rows": [], "finished": 0})

        def log(values: dict[str, float], step: int) -> None:
            run["rows"].append((step, values["loss/policy"]))

        def finish() -> None:
            run["finished"] += 1

        return SimpleNamespace(step=0, log=log, finish=finish)


def test_wandb_continues_the_same_run_after_a_resume_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", client)
    component = Component(type="WandB", config={"project": "p", "mode": "offline", "tags": ["a"]})
    first = build("logger", component, LoggerContext(tmp_path, {"kind": "RLJob"}), field="f")
    for frames, loss in ((100, 0.1), (200, 0.2), (200, 0.25), (300, 0.3)):
        first.log({"frames": frames, "loss/policy": loss, "note": "text"})
    # no close: a kill comes in between
    context = LoggerContext(tmp_path, {"kind": "RLJob"}, resumed_frames=200, resumed_records=3)
    second = build("logger", component, context, field="f")
    for frames, loss in ((300, 0.3), (300, 0.35), (400, 0.4)):
        second.log({"frames": frames, "loss/policy": loss})
    second.close()
    (run,) = client.runs.values()
    assert run["rows"] == [(100, 0.1), (200, 0.2), (200, 0.25), (300, 0.3), (300, 0.35), (400, 0.4)]
    assert run["finished"] == 1
    arguments = run["arguments"]
    assert (arguments["project"], arguments["name"], arguments["tags"]) == ("p", tmp_path.name, ["a"])
    assert arguments["config"] == {"kind": "RLJob"}


def test_new_run_in_a_folder_does_not_continue_a_strangers_wandb_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", client)
    for _ in range(2):
        build("logger", Component(type="WandB"), LoggerContext(tmp_path), field="f").close()
    first, second = client.runs
    assert first != second
    assert json.loads((tmp_path / ".wandb.json").read_text()) == {"id": second, "records": 0}


def test_failure_of_a_service_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**arguments: Any) -> Any:
        raise ConnectionError("api.wandb.ai\nunreachable")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    call = lambda: build("logger", Component(type="WandB"), LoggerContext(tmp_path), field="f")  # noqa: E731
    assert message_of(RLJobError, call) == "the logger WandB failed: ConnectionError: api.wandb.ai unreachable"


def test_mlflow_continues_the_same_run_after_a_resume_and_repeats_nothing(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    store = f"sqlite:///{tmp_path}/store.db"
    component = Component(type="MLflow", config={"trackingUri": store, "experiment": "e"})
    first = build("logger", component, LoggerContext(tmp_path), field="f")
    for frames in (100, 200, 300):
        first.log({"frames": frames, "loss/policy": frames / 1000})
    first.close()
    context = LoggerContext(tmp_path, resumed_frames=200, resumed_records=2)
    second = build("logger", component, context, field="f")
    for frames in (300, 400):
        second.log({"frames": frames, "loss/policy": frames / 1000})
    second.close()
    client = tracking.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("e")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss/policy")
    assert [(metric.step, metric.value) for metric in history] == [(100, 0.1), (200, 0.2), (300, 0.3), (400, 0.4)]
    assert run.info.status == "FINISHED"
