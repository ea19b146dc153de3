"""A small spec to vary, and the job that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rljob_operator.builders.owner import Owner

from rlruntime.spec.loader import parse_manifest
from rlruntime.spec.manifest import RLJobSpec

MakeSpec = Callable[..., RLJobSpec]


@pytest.fixture
def owner() -> Owner:
    return Owner(name="ppo", namespace="team-a", uid="1b4e28ba-2fa1-4a6b-8c3d-0123456789ab")


@pytest.fixture
def make_spec() -> MakeSpec:
    """Return a function from fields of `spec` to a spec that trains CartPole."""

    def make(**fields: Any) -> RLJobSpec:
        training = {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}}
        document = {
            "apiVersion": "rljob.io/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "ppo"},
            "spec": {"training": training, **fields},
        }
        return parse_manifest(document, "job.yaml").spec

    return make
