"""The ConfigMap that holds the immutable part of a job's spec."""

from __future__ import annotations

from rljob_operator.builders.labels import job_labels
from rljob_operator.builders.names import spec_name
from rljob_operator.builders.owner import KubeObject, Owner, metadata
from rlruntime.errors import ConfigError
from rlruntime.spec.contract import SPEC_NAME, SharedSpec
from rlruntime.spec.manifest import RLJobSpec

MAX_BYTES = 1024 * 1024
"""Most data that a ConfigMap holds."""


def spec_config_map(owner: Owner, spec: RLJobSpec) -> KubeObject:
    """Return the ConfigMap that every pod of the job mounts. It is written once; nobody changes it later.

    Raises:
        ConfigError: the spec is larger than a ConfigMap may be.
    """
    text = SharedSpec.of(spec).to_text()
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(
            "is larger than 1 MiB, which no ConfigMap holds",
            field="spec.training",
            remedy="move large settings into a file of the image",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(owner, spec_name(owner), job_labels(owner)),
        "immutable": True,
        "data": {SPEC_NAME: text},
    }
