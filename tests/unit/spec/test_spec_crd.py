"""The generated files: the CRD, the JSON Schema and the reference page."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlruntime.spec.crd import crd, crd_yaml, json_schema_text
from rlruntime.spec.loader import load_documents
from rlruntime.spec.reference import reference_markdown
from rlruntime.spec.rules import LIST_KEYS, RULES

ROOT = Path(__file__).parents[3]


def _root() -> dict[str, Any]:
    schema: dict[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _schemas(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema in ``schema`` with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from _schemas(field, f"{path}.{name}".strip("."))
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from _schemas(schema[key], path + mark)


@functools.cache
def _all() -> list[tuple[str, dict[str, Any]]]:
    return list(_schemas(_root(), ""))


def test_the_files_in_the_repository_are_the_generated_ones() -> None:
    assert (ROOT / "crds" / "rljob.io_rljobs.yaml").read_text(encoding="utf-8") == crd_yaml()
    assert (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8") == reference_markdown()


def test_the_file_read_by_kubectls_rules_is_what_was_rendered() -> None:
    assert load_documents(crd_yaml(), "crd") == [json.loads(json.dumps(crd()))]


def test_the_crd_fits_into_the_annotation_of_client_side_apply() -> None:
    assert len(crd_yaml().encode()) < 250_000
    assert len(json.dumps(crd())) < 250_000


def test_names_scope_subresources_and_columns_are_those_of_the_design() -> None:
    spec = crd()["spec"]
    assert spec["names"] == {
        "kind": "RLJob",
        "listKind": "RLJobList",
        "plural": "rljobs",
        "singular": "rljob",
        "shortNames": ["rlj"],
        "categories": ["all", "rl"],
    }
    assert spec["scope"] == "Namespaced"
    assert spec["versions"][0]["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.elastic.replicas",
            "statusReplicasPath": ".status.elastic.replicas",
            "labelSelectorPath": ".status.elastic.selector",
        },
    }
    columns = [column["name"] for column in spec["versions"][0]["additionalPrinterColumns"] if "priority" not in column]
    assert columns == ["Phase", "Reason", "Ready", "Progress", "Reward", "Age"]


def test_every_printer_column_and_scale_path_leads_to_a_field() -> None:
    known = {f".{path}" for path, _ in _all()} | {".metadata.creationTimestamp"}
    version = crd()["spec"]["versions"][0]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    assert set(paths) | set(version["subresources"]["scale"].values()) <= known


def test_the_schema_is_structural() -> None:
    for path, schema in _all():
        assert not schema.keys() & {"$ref", "anyOf", "oneOf", "allOf", "const", "title", "ge", "le", "gt", "lt"}, path
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        assert schema.get("exclusiveMinimum", True) is True, path
        if schema.get("type") == "object" and path != "metadata":
            kinds = [key for key in ("properties", "additionalProperties") if key in schema]
            assert len(kinds) == 1 or schema.get("x-kubernetes-preserve-unknown-fields") is True, path


def test_everything_that_a_rule_may_read_is_bounded() -> None:
    for path, schema in _all():
        kind = schema.get("type")
        if not path or path in ("apiVersion", "kind", "metadata"):
            continue
        if kind == "string":
            assert "maxLength" in schema or "enum" in schema, path
        elif kind == "array":
            assert "maxItems" in schema, path
        elif kind == "object" and "additionalProperties" in schema:
            assert "maxProperties" in schema, path
        elif kind == "integer":
            assert "minimum" in schema, path


def test_every_field_is_described() -> None:
    for path, schema in _all():
        if path in ("apiVersion", "kind", "metadata") or path.endswith(("[]", "{}")):
            continue
        assert schema.get("description"), path
        assert "\n" not in schema["description"], path


def test_the_status_has_no_enumeration_and_no_default_that_the_server_would_write() -> None:
    status = list(_schemas(_root()["properties"]["status"], "status"))
    assert [path for path, schema in status if "enum" in schema] == []


def test_optional_union_members_have_no_default_and_roles_have_theirs_in_full() -> None:
    spec = _root()["properties"]["spec"]["properties"]
    for field in (spec["training"]["properties"]["ppo"], spec["training"]["properties"]["custom"], spec["storage"]):
        assert "default" not in field
    assert "default" not in spec["elastic"]
    [trainer] = spec["roles"]["default"]
    assert trainer == {
        "name": "trainer",
        "type": "Trainer",
        "replicas": 1,
        "gpus": 0,
        "gpuResourceName": "nvidia.com/gpu",
        "processesPerReplica": 1,
        "hostsPerReplica": 1,
        "resources": {"requests": {}, "limits": {}},
        "template": {"metadata": {"labels": {}, "annotations": {}}, "spec": {}},
    }
    assert spec["training"]["properties"]["network"]["default"] == {"type": "MLP", "config": {}}


def test_null_is_kept_only_where_it_means_something_else_than_the_default() -> None:
    nullable = [path for path, schema in _all() if schema.get("nullable")]
    assert nullable == ["spec.training.ppo.maxGradNorm", "spec.training.dqn.maxGradNorm"]
    assert dict(_all())["spec.training.ppo.maxGradNorm"]["default"] == 0.5


def test_every_rule_stands_at_a_field_of_the_schema() -> None:
    found = {path for path, schema in _all() if "x-kubernetes-validations" in schema}
    assert found == set(RULES)
    lists = {path for path, schema in _all() if schema.get("x-kubernetes-list-type") == "map"}
    assert lists == set(LIST_KEYS)


@pytest.mark.parametrize("path", ["spec.training.ppo.learningRate", "spec.training.env.stepTimeoutSeconds"])
def test_an_exclusive_bound_has_the_form_of_the_server(path: str) -> None:
    schema = dict(_all())[path]
    assert (schema["minimum"], schema["exclusiveMinimum"]) == (0, True)


def test_patterns_are_written_without_what_go_lacks() -> None:
    for path, schema in _all():
        assert not re.search(r"\(\?|\\[Zzb]|\\[1-9]", schema.get("pattern", "")), path


def test_the_json_schema_refuses_unknown_fields_and_describes_known_ones() -> None:
    schema = json.loads(json_schema_text())
    assert schema["$id"] == "https://rljob.io/schemas/v1alpha1/rljob.json"
    assert schema["properties"]["kind"]["const"] == "RLJob"
    for name, definition in schema["$defs"].items():
        if definition["type"] == "object" and "Status" not in name and name != "Condition":
            assert definition["additionalProperties"] is False, name
            assert all(field.keys() & {"description", "$ref"} for field in definition["properties"].values()), name
    assert "x-kubernetes" not in json_schema_text()


def test_the_reference_page_says_type_default_and_meaning_of_a_field() -> None:
    page = reference_markdown()
    assert "| `learningRate` | number > 0 | `0.0003` | Step size of Adam. |\n" in page
    assert "| `totalFrames` | integer ≥ 1 | *required* | Decisions of environments after which" in page
    assert "### `RewardNorm` (transform)\n" in page
    for path, _ in _all():
        name = path.rsplit(".", 1)[-1].strip("[]{}")
        assert f"`{name}`" in page or path in ("", "apiVersion", "kind", "metadata"), path
