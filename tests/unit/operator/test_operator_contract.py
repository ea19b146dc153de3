"""What a pod reads of what the operator wrote: variables, spec, token; and its last message."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlruntime.errors import ConfigError, StorageError
from rlruntime.spec.contract import (
    PodIdentity,
    SharedSpec,
    TerminationMessage,
    exit_class,
    hostname,
    job_folder,
    port_of,
    read_token,
    role_command,
)
from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.policies import Metrics

IDENTITY = PodIdentity(
    name="ppo", namespace="team-a", uid="1b4e28ba", role="trainer", index=2, attempt=1, round=3, service="ppo-1b4e28ba"
)
VARIABLES = {
    "RLJOB_NAME": "ppo",
    "RLJOB_NAMESPACE": "team-a",
    "RLJOB_UID": "1b4e28ba",
    "RLJOB_ROLE": "trainer",
    "RLJOB_INDEX": "2",
    "RLJOB_ATTEMPT": "1",
    "RLJOB_ROUND": "3",
    "RLJOB_SERVICE": "ppo-1b4e28ba",
    "RLJOB_PROCESSES": "1",
}
MakeSpec = Callable[..., RLJobSpec]


def test_identity_is_written_as_variables() -> None:
    assert IDENTITY.to_variables() == VARIABLES


def test_identity_of_a_service_carries_its_entrypoint_and_config_both_ways() -> None:
    identity = PodIdentity(
        name="j", namespace="n", uid="u", role="r", index=0, attempt=0, round=0, service="s",
        processes=4, entrypoint="my.rewards:serve", config={"b": [1, None], "a": "$(HOME) \u00e9"},
    )  # fmt: skip
    written = identity.to_variables()
    assert written["RLJOB_ENTRYPOINT"] == "my.rewards:serve"
    assert json.loads(written["RLJOB_CONFIG"]) == {"a": "$(HOME) \u00e9", "b": [1, None]}
    assert PodIdentity.from_variables({"PATH": "/bin", **written}) == identity


def test_pod_of_an_older_operator_without_processes_has_one() -> None:
    assert PodIdentity.from_variables({k: v for k, v in VARIABLES.items() if k != "RLJOB_PROCESSES"}) == IDENTITY


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"RLJOB_UID": None},
            "RLJOB_UID: this variable is missing; it is set in the pods that the operator makes",
        ),
        ({"RLJOB_NAME": ""}, "RLJOB_NAME: this variable is empty; it is set in the pods that the operator makes"),
        ({"RLJOB_INDEX": "-1"}, "RLJOB_INDEX: must be a whole number, at least 0 (got '-1')"),
        ({"RLJOB_ATTEMPT": "1.0"}, "RLJOB_ATTEMPT: must be a whole number, at least 0 (got '1.0')"),
        ({"RLJOB_ROUND": "\u0663"}, "RLJOB_ROUND: must be a whole number, at least 0 (got '\u0663')"),
        ({"RLJOB_PROCESSES": "0"}, "RLJOB_PROCESSES: must be a whole number, at least 1 (got '0')"),
        ({"RLJOB_CONFIG": "{"}, "RLJOB_CONFIG: must be a JSON object (got '{')"),
        ({"RLJOB_CONFIG": "[1]"}, "RLJOB_CONFIG: must be a JSON object (got '[1]')"),
    ],
)
def test_wrong_variables_are_refused_in_one_line(change: dict[str, str | None], message: str) -> None:
    variables = {name: value for name, value in {**VARIABLES, **change}.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        PodIdentity.from_variables(variables)
    assert str(caught.value) == message


def test_addresses_commands_and_folders() -> None:
    assert hostname("trainer", 2) == "trainer-2"
    assert IDENTITY.address("trainer", 0) == "trainer-0.ppo-1b4e28ba"
    assert role_command("Inference") == ("rljob", "role", "inference")
    assert str(job_folder("ppo", "1b4e28ba")) == "/var/lib/rljob/ppo-1b4e28ba"
    assert [port_of(Metrics(port=port)) for port in (0, 8000)] == [9400, 8000]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, "Done"),
        (1, "Fault"),
        (74, "Fault"),
        (75, "Disruption"),
        (78, "Permanent"),
        (130, "Stopped"),
        (137, "Fault"),
        (143, "Stopped"),
        (255, "Fault"),
    ],
)
def test_exit_codes_have_one_meaning_each(code: int, expected: str) -> None:
    assert exit_class(code) == expected


def test_spec_is_written_without_defaults_and_mutable_fields(make_spec: MakeSpec) -> None:
    spec = make_spec(
        image="a:1",
        metrics={"port": 0},
        weightSync={"maxStaleness": 4},
        runPolicy={"suspend": True, "backoffLimit": 9},
        elastic={"role": "collector", "replicas": 3},
        roles=[
            {"name": "trainer", "type": "Trainer", "replicas": 2, "gpus": 1, "resources": {"limits": {"cpu": 2}}},
            {"name": "collector", "type": "Collector", "processesPerReplica": 4},
        ],
    )
    assert json.loads(SharedSpec.of(spec).to_text()) == {
        "training": {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}},
        "roles": [{"name": "trainer", "type": "Trainer", "replicas": 2}, {"name": "collector", "type": "Collector"}],
        "weightSync": {"maxStaleness": 4},
    }


def test_changing_what_may_change_does_not_change_the_file(make_spec: MakeSpec) -> None:
    def text(**fields: object) -> str:
        return SharedSpec.of(make_spec(**fields)).to_text()

    trainer = {"name": "trainer", "type": "Trainer"}
    service = {"name": "reward", "type": "Service", "entrypoint": "a:b"}
    before = text(roles=[trainer, service])
    assert before == text(
        image="other:2",
        runPolicy={"suspend": True, "activeDeadlineSeconds": 5},
        scheduling={"gang": "Volcano"},
        roles=[
            {**trainer, "gpus": 8, "template": {"spec": {"nodeName": "a"}}},
            {**service, "replicas": 3, "entrypoint": "c:d", "config": {"x": 1}},
        ],
    )
    assert before != text(roles=[trainer, service], metrics={"port": 1234})


def test_spec_reads_back_equal_nulls_included(make_spec: MakeSpec, tmp_path: Path) -> None:
    training = {
        "algorithm": "PPO",
        "totalFrames": 1000,
        "numThreads": 3,
        "env": {"id": "CartPole-v1"},
        "callbacks": [{"type": "my.module:Callback", "config": {"path": None}}],
    }
    shared = SharedSpec.of(make_spec(training=training, metrics={"port": 8000}))
    path = tmp_path / "spec.json"
    path.write_text(shared.to_text())
    assert SharedSpec.read(path) == shared


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "spec.json: is not JSON"),
        ("[]", "spec.json: must be a mapping (got [])"),
        ('{"training": 1, "roles": []}', "spec.json: training: must be a mapping (got 1)"),
        (
            '{"training": {"algorithm": "PPO", "totalFrames": 1, "env": {"id": "a"}, "sed": 1}, "roles": []}',
            "spec.json: training.sed: there is no such field; did you mean 'seed'?",
        ),
    ],
)
def test_wrong_spec_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SharedSpec.from_text(text, "spec.json")
    assert str(caught.value) == message


def test_missing_spec_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gone\.json: can't be read: No such file or directory"):
        SharedSpec.read(tmp_path / "gone.json")


def test_token_is_read_and_anything_else_refused_without_being_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0f" * 32 + os.linesep)
    assert read_token(path) == "0f" * 32
    path.write_text("drawn at random when the job is created")
    with pytest.raises(ConfigError) as caught:
        read_token(path)
    assert str(caught.value) == f"{path}: holds no token, which is 64 hexadecimal digits"


@pytest.mark.parametrize("message", ["", "x" * 10_000, "\u00e9" * 5_000, "\x00" * 3_000, "\U0001f600" * 2_000])
def test_last_message_is_json_of_at_most_4096_bytes(message: str) -> None:
    text = TerminationMessage("ConfigError", message).to_text()
    assert len(text.encode()) <= 4096
    read = TerminationMessage.from_text(text)
    assert read is not None
    assert read.reason == "ConfigError"
    if message:
        assert len(text.encode()) > 4080  # as much of it as there is room for
        start, end = read.message.split("...")
        assert message.startswith(start)
        assert message.endswith(end)


def test_short_last_message_is_kept_whole() -> None:
    text = TerminationMessage("ConfigError", "job.yaml: no").to_text()
    assert text == '{"reason": "ConfigError", "message": "job.yaml: no"}'


@pytest.mark.parametrize(
    "text", ["", "Traceback (most recent call last):", "[1]", "{}", '{"reason": 1, "message": "a"}']
)
def test_end_of_a_log_is_no_last_message(text: str) -> None:
    assert TerminationMessage.from_text(text) is None
