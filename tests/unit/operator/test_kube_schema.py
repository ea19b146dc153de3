"""Whether a server's definition knows all that this version reads and writes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from rljob_operator.kube.schema import check_crd

from rlruntime.errors import ConfigError
from rlruntime.spec.crd import crd


def openapi() -> dict[str, Any]:
    schema = copy.deepcopy(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["x-kubernetes-group-version-kind"] = [{"group": "rljob.io", "version": "v1alpha1", "kind": "RLJob"}]
    return {"components": {"schemas": {"io.rljob.v1alpha1.RLJobList": {}, "io.rljob.v1alpha1.RLJob": schema}}}


def properties(document: dict[str, Any], *path: str) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"]["io.rljob.v1alpha1.RLJob"]
    for name in path:
        found = found["items"] if name == "[]" else found["properties"][name]
    return found["properties"]  # type: ignore[no-any-return]


def test_the_definition_of_this_version_is_taken() -> None:
    check_crd(openapi())


def test_a_newer_definition_is_taken() -> None:
    document = openapi()
    properties(document, "spec")["later"] = {"type": "string"}
    check_crd(document)


@pytest.mark.parametrize(
    ("path", "field", "words"),
    [
        (("spec",), "elastic", "lacks spec.elastic"),
        (("spec", "runPolicy"), "suspend", "lacks spec.runPolicy.suspend"),
        (("spec", "roles", "[]"), "gpus", r"lacks spec.roles\[\].gpus"),
        (("spec", "training", "env"), "numEnvs", "lacks spec.training.env.numEnvs"),
        (("status", "restarts"), "streak", "lacks status.restarts.streak"),
        (("status",), "round", "lacks status.round"),
    ],
)
def test_an_older_definition_is_refused_with_the_first_field_it_lacks(
    path: tuple[str, ...], field: str, words: str
) -> None:
    document = openapi()
    del properties(document, *path)[field]
    with pytest.raises(ConfigError, match=words) as raised:
        check_crd(document)
    assert raised.value.exit_code == 78
    assert "crds/" in str(raised.value)


@pytest.mark.parametrize("document", [None, {}, {"components": {"schemas": {}}}])
def test_a_server_without_a_definition_is_refused(document: dict[str, Any] | None) -> None:
    with pytest.raises(ConfigError, match="doesn't know RLJob"):
        check_crd(document)


def test_a_definition_that_keeps_unknown_fields_is_taken() -> None:
    document = openapi()
    schema = document["components"]["schemas"]["io.rljob.v1alpha1.RLJob"]["properties"]
    schema["status"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    check_crd(document)
