"""What the operator and its pods agree on: names, paths, variables, and the files that a pod reads.

The operator writes what is here into pods, and in them it is read; neither side knows more of the other. Identity
comes by variables, since it differs from pod to pod and from attempt to attempt; the immutable part of the spec comes
as a file, written once per job. A pod may run an older or a newer version than the operator: what is added here later
must be optional, and what is here must keep its meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from rlruntime.errors import (
    EXIT_CONFIG,
    EXIT_OK,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    EXIT_TRY_AGAIN,
    ConfigError,
    StorageError,
    shorten,
)
from rlruntime.spec.base import AsTuple, DNSLabel, NonNegativeInt, SpecModel
from rlruntime.spec.manifest import GROUP, RLJobSpec
from rlruntime.spec.policies import Metrics, WeightSync
from rlruntime.spec.problems import model_error
from rlruntime.spec.roles import RoleType
from rlruntime.spec.status import CheckpointStatus, ProgressStatus, StatusModel, Word
from rlruntime.spec.training.training import TrainingSpec

MAIN_CONTAINER = "rljob"
"""Name of the container that runs `rljob role`."""

DEFAULT_PORT = 9400
"""Port of a pod whose manifest leaves the choice open with 0."""
PORT_NAME = "metrics"
LIVENESS_PATH = "/healthz"
READINESS_PATH = "/readyz"
STATUS_PATH = "/status"
"""Where a trainer answers with a `TrainerReport`."""
STATUS_BYTES = 16 * 1024
"""Longest answer there that is read."""

CONFIG_DIR = "/etc/rljob"
"""Holds what a pod is told; nothing else may be mounted in it."""
SPEC_DIR, SPEC_NAME = f"{CONFIG_DIR}/spec", "spec.json"
TOKEN_DIR, TOKEN_NAME = f"{CONFIG_DIR}/token", "token"
SPEC_FILE = f"{SPEC_DIR}/{SPEC_NAME}"
TOKEN_FILE = f"{TOKEN_DIR}/{TOKEN_NAME}"
CODE_DIR = "/opt/rljob/code"
"""The user's own modules; on PYTHONPATH where the job has any."""
STORAGE_DIR = "/var/lib/rljob"
"""Root of the job's storage in a Trainer's pod: the claim, or a folder that goes with the pod."""

LABEL_PREFIX = f"{GROUP}/"
"""Labels and annotations under it are set by the operator alone."""
LABEL_JOB_NAME = f"{LABEL_PREFIX}job-name"
LABEL_JOB_UID = f"{LABEL_PREFIX}job-uid"
LABEL_ROLE = f"{LABEL_PREFIX}role"
LABEL_ROLE_TYPE = f"{LABEL_PREFIX}role-type"
LABEL_INDEX = f"{LABEL_PREFIX}index"
LABEL_ATTEMPT = f"{LABEL_PREFIX}attempt"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY_OPERATOR = "rljob-operator"

VARIABLE_PREFIX = "RLJOB_"
"""Variables under it are set by the operator alone."""
MAX_VARIABLE_BYTES = 100_000
"""Longest value of a variable; Linux starts no process with one above 128 KiB."""
TERMINATION_FILE = "/dev/termination-log"
"""Where Kubernetes takes a container's last message from."""
TERMINATION_MESSAGE_BYTES = 4096
"""Longest last message of a container that Kubernetes keeps."""
TOKEN_BYTES = 32
"""Random bytes of the job's token, which is their hexadecimal text."""

_TOKEN = re.compile(rf"[0-9a-f]{{{2 * TOKEN_BYTES}}}")

ExitClass = Literal["Done", "Permanent", "Disruption", "Stopped", "Fault"]


def exit_class(code: int) -> ExitClass:
    """Return what the exit code of a pod's main container means for the job.

    Returns:
        ``Done``: the work is finished. ``Permanent``: another attempt would end the same way. ``Disruption``: try
        again, at the cost of the disruption budget. ``Stopped``: it obeyed a signal, a disruption if its pod was being
        deleted or disrupted, else a fault. ``Fault``: try again, at the cost of the fault budget.
    """
    classes: dict[int, ExitClass] = {
        EXIT_OK: "Done",
        EXIT_CONFIG: "Permanent",
        EXIT_TRY_AGAIN: "Disruption",
        EXIT_SIGINT: "Stopped",
        EXIT_SIGTERM: "Stopped",
    }
    return classes.get(code, "Fault")


def role_command(role_type: RoleType) -> tuple[str, ...]:
    """Return the command of a pod: ``rljob role trainer``."""
    return ("rljob", "role", role_type.lower())


def port_of(metrics: Metrics) -> int:
    """Return the TCP port that every pod of a job serves."""
    return metrics.port or DEFAULT_PORT


def hostname(role: str, index: int) -> str:
    """Return the hostname of a pod, the same for every attempt: ``trainer-0``."""
    return f"{role}-{index}"


def job_folder(name: str, uid: str) -> PurePosixPath:
    """Return the folder of a job in its storage. It bears the uid: a job of the same name never finds a stranger's."""
    return PurePosixPath(STORAGE_DIR) / f"{name}-{uid}"


@dataclass(frozen=True)
class PodIdentity:
    """Who a pod is, as its variables say."""

    name: str
    """Name of the job."""
    namespace: str
    """Namespace of the job."""
    uid: str
    """Uid of the job."""
    role: str
    """Name of the role."""
    index: int
    """Number of the pod within its role, from 0."""
    attempt: int
    """How many pods had this place before: a restarted pod has a higher number. All trainers share one."""
    round: int
    """Rendezvous round that the pod joins first; a handshake with another is refused."""
    service: str
    """Name of the Service under which the job's pods find each other."""
    processes: int = 1
    """Processes of the pod: trainer ranks, or collector workers."""
    entrypoint: str | None = None
    """``package.module:function`` that a pod of type Service runs."""
    config: dict[str, Any] | None = None
    """Handed to the entrypoint as it is."""

    def address(self, role: str, index: int) -> str:
        """Return the DNS name of a pod of the job, valid in the job's namespace; it resolves before that is ready."""
        return f"{hostname(role, index)}.{self.service}"

    def to_variables(self) -> dict[str, str]:
        """Return the variables that say this; those without a value are left out."""
        config = None if self.config is None else json.dumps(self.config, sort_keys=True, allow_nan=False)
        values = {
            "NAME": self.name,
            "NAMESPACE": self.namespace,
            "UID": self.uid,
            "ROLE": self.role,
            "INDEX": str(self.index),
            "ATTEMPT": str(self.attempt),
            "ROUND": str(self.round),
            "SERVICE": self.service,
            "PROCESSES": str(self.processes),
            "ENTRYPOINT": self.entrypoint,
            "CONFIG": config,
        }
        return {f"{VARIABLE_PREFIX}{key}": value for key, value in values.items() if value is not None}

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> PodIdentity:
        """Return the identity that ``variables``, such as ``os.environ``, give.

        Raises:
            ConfigError: a variable is missing, empty, or isn't what it should be; variables of other names are ignored.
        """
        return cls(
            name=_required(variables, "NAME"),
            namespace=_required(variables, "NAMESPACE"),
            uid=_required(variables, "UID"),
            role=_required(variables, "ROLE"),
            index=_count(variables, "INDEX"),
            attempt=_count(variables, "ATTEMPT"),
            round=_count(variables, "ROUND"),
            service=_required(variables, "SERVICE"),
            processes=_count(variables, "PROCESSES", least=1) if f"{VARIABLE_PREFIX}PROCESSES" in variables else 1,
            entrypoint=variables.get(f"{VARIABLE_PREFIX}ENTRYPOINT"),
            config=_mapping(variables, "CONFIG"),
        )


def _required(variables: Mapping[str, str], key: str) -> str:
    name = f"{VARIABLE_PREFIX}{key}"
    if not variables.get(name):
        problem = "this variable is empty" if name in variables else "this variable is missing"
        raise ConfigError(problem, field=name, remedy="it is set in the pods that the operator makes")
    return variables[name]


def _count(variables: Mapping[str, str], key: str, *, least: int = 0) -> int:
    text = _required(variables, key)
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ConfigError(f"must be a whole number, at least {least}", field=f"{VARIABLE_PREFIX}{key}", value=text)
    return int(text)


def _mapping(variables: Mapping[str, str], key: str) -> dict[str, Any] | None:
    name = f"{VARIABLE_PREFIX}{key}"
    if name not in variables:
        return None
    try:
        value = json.loads(variables[name])
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError("must be a JSON object", field=name, value=variables[name])
    return value


class SharedRole(SpecModel):
    """What all pods know of one role."""

    name: DNSLabel
    """Name of the role."""
    type: RoleType
    """What its pods do."""
    replicas: Annotated[int, Field(ge=1)] | None = None
    """Pods of the Trainer role. Unset for the others, whose number may change."""


class SharedSpec(SpecModel):
    """The file that all pods of a job read: what can't change of its spec, as far as pods need it."""

    training: TrainingSpec
    """What to run."""
    roles: Annotated[tuple[SharedRole, ...], AsTuple]
    """Roles of the job, in the manifest's order."""
    weight_sync: WeightSync = WeightSync()
    """How new weights reach collectors and engines."""
    metrics: Metrics = Metrics()
    """Where metrics are served; the port is never 0."""

    @classmethod
    def of(cls, spec: RLJobSpec) -> SharedSpec:
        """Return what the pods of a job share."""
        roles = tuple(
            SharedRole(name=role.name, type=role.type, replicas=role.replicas if role.type == "Trainer" else None)
            for role in spec.roles
        )
        metrics = Metrics(port=port_of(spec.metrics))
        return cls(training=spec.training, roles=roles, weight_sync=spec.weight_sync, metrics=metrics)

    def to_text(self) -> str:
        """Return the file's text: JSON with sorted keys, the same for equal specs.

        What has its default value is left out: a pod whose image is older than the operator then meets no field that it
        doesn't know, unless the job uses it.
        """
        document = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_text(cls, text: str, source: str = SPEC_FILE) -> SharedSpec:
        """Return the spec that ``text`` holds.

        Args:
            source: what the text is called in errors.

        Raises:
            ConfigError: it isn't JSON, or not such a spec; one line with the path of the first field that is wrong.
        """
        try:
            document = json.loads(text)
        except ValueError:
            raise ConfigError("is not JSON", source=source) from None
        try:
            return cls.model_validate(document, by_alias=True, by_name=False)
        except ValidationError as error:
            raise model_error(error, cls, document, locate=lambda _path: source) from None

    @classmethod
    def read(cls, path: Path) -> SharedSpec:
        """Return the spec in the file ``path``.

        Raises:
            ConfigError: it holds no such spec.
            StorageError: it can't be read.
        """
        return cls.from_text(_text_of(path), str(path))


def read_token(path: Path) -> str:
    """Return the job's token. No error shows it.

    Raises:
        ConfigError: the file holds no token.
        StorageError: it can't be read.
    """
    text = _text_of(path).strip()
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"holds no token, which is {2 * TOKEN_BYTES} hexadecimal digits", source=str(path))
    return text


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text", source=str(path)) from None


def progress_percent(frames: int | None, total_frames: int | None) -> int | None:
    """Return the whole percents, 0 to 100, that ``frames`` are of ``total_frames``; None where either is unknown.

    A job that reached its reward early ends below 100.
    """
    if frames is None or not total_frames:
        return None
    return max(0, min(100, frames * 100 // total_frames))


class TrainerReport(StatusModel):
    """What a trainer says of itself: the answer of ``/status``, and part of its last message.

    Fields that a reader doesn't know are left out, so that a newer trainer can be read.
    """

    uid: Word
    """Uid of the job."""
    attempt: NonNegativeInt
    """The attempt whose numbers these are; an earlier one's where that had finished the job."""
    round: NonNegativeInt = 0
    """Rendezvous round of the trainer."""
    phase: Word = "Starting"
    """`Starting` until training begins, then `Training`; `Succeeded`, `Stopped`, `Fenced` or `Failed` at the end."""
    frames: NonNegativeInt | None = None
    """Decisions of environments so far, those of earlier attempts included; at the end, those that were saved."""
    total_frames: NonNegativeInt | None = None
    """Decisions after which training ends."""
    resumed_frames: NonNegativeInt | None = None
    """Decisions at which this attempt went on; unset for one that began anew."""
    reward: float | None = None
    """Mean reward of the last 100 training episodes; at the end of a job that succeeded, that of the final
    evaluation."""
    best_reward: float | None = None
    """Best mean reward of an evaluation, the final one included."""
    frames_per_second: float | None = None
    """Rate over the last half minute of training, evaluations and checkpoints included."""
    remaining_seconds: NonNegativeInt | None = None
    """Estimated whole seconds of training that are left, at that rate."""
    checkpoint: CheckpointStatus | None = None
    """The newest checkpoint of this attempt, or the one that it went on from; `path` is relative to the storage."""

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON values with names as in YAML; what is unset is left out. Far below `STATUS_BYTES`."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def to_progress(self, update_time: str) -> ProgressStatus:
        """Return it as the job's status shows it.

        Args:
            update_time: when the trainer said this, RFC 3339.
        """
        return ProgressStatus(
            frames=self.frames,
            total_frames=self.total_frames,
            percent=progress_percent(self.frames, self.total_frames),
            reward=self.reward,
            best_reward=self.best_reward,
            frames_per_second=self.frames_per_second,
            remaining_seconds=self.remaining_seconds,
            update_time=update_time,
        )

    @classmethod
    def from_document(cls, document: Any) -> TrainerReport | None:
        """Return the report that a JSON value holds, or None where it is none."""
        try:
            return cls.model_validate(document, by_alias=True, by_name=False)
        except ValidationError:
            return None

    @classmethod
    def from_text(cls, text: str | bytes) -> TrainerReport | None:
        """Return the report that an answer of ``/status`` holds, or None where it is none, or is too long."""
        if len(text) > STATUS_BYTES:
            return None
        try:
            return cls.from_document(json.loads(text))
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True)
class TerminationMessage:
    """A container's last words, which Kubernetes keeps in the status of its pod."""

    reason: str
    """One word for programs, such as ``ConfigError``."""
    message: str
    """One line for people."""
    report: TrainerReport | None = None
    """A trainer's last numbers, so that they are known even if it was never asked; left out where they don't fit."""

    def to_text(self) -> str:
        """Return JSON of at most 4,096 bytes in UTF-8; a message that is longer is cut in the middle."""
        return _json_bytes(self.to_document()).decode()

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON values, cut to what `to_text` has room for."""
        document: dict[str, Any] = {"reason": shorten(self.reason), "message": ""}
        if self.report is not None:
            report = self.report.to_document()
            if len(_json_bytes({**document, "report": report})) <= TERMINATION_MESSAGE_BYTES // 2:
                document["report"] = report
        fits, too_long = 0, len(self.message) + 1
        while too_long - fits > 1:
            limit = (fits + too_long) // 2
            if len(_json_bytes({**document, "message": _cut(self.message, limit)})) <= TERMINATION_MESSAGE_BYTES:
                fits = limit
            else:
                too_long = limit
        return {**document, "message": _cut(self.message, fits)}

    @classmethod
    def from_text(cls, text: str) -> TerminationMessage | None:
        """Return the message that ``text`` holds, or None: Kubernetes gives the end of the log where there is none."""
        try:
            return cls.from_document(json.loads(text))
        except (ValueError, RecursionError):
            return None

    @classmethod
    def from_document(cls, document: Any) -> TerminationMessage | None:
        """Return the message that a JSON value holds, or None where it is none."""
        if not isinstance(document, dict):
            return None
        reason, message = document.get("reason"), document.get("message")
        if not (isinstance(reason, str) and isinstance(message, str)):
            return None
        return cls(reason, message, TrainerReport.from_document(document.get("report")))


def _json_bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", errors="replace")


def _cut(text: str, limit: int) -> str:
    return shorten(text, limit) if limit > 4 else text[:limit]
