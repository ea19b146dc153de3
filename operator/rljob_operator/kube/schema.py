"""Whether the API server's CRD knows every field that this version reads and writes.

A server whose CRD is older drops the fields that it doesn't know, without a word: a newer operator would then read a
manifest with holes, and forget its own status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlruntime.errors import ConfigError
from rlruntime.spec.crd import crd
from rlruntime.spec.manifest import GROUP, KIND, VERSION

OPENAPI_PATH = f"/openapi/v3/apis/{GROUP}/{VERSION}"
"""Readable by every account, without rights of its own."""

_REMEDY = "apply this version's crds/ with kubectl, then start the operator again"


def check_crd(document: Mapping[str, Any] | None) -> None:
    """Check what the server says at `OPENAPI_PATH`.

    Args:
        document: the answer; None when there is none.

    Raises:
        ConfigError: the CRD is missing, or lacks a field, which is named.
    """
    served = None if document is None else _served(document)
    if served is None:
        raise ConfigError(f"the API server doesn't know {KIND} of {GROUP}/{VERSION}", remedy=_REMEDY)
    wanted = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        missing = next(_missing(wanted["properties"][part], served.get("properties", {}).get(part, {}), part), None)
        if missing is not None:
            raise ConfigError(
                f"the CRD on the API server is older than this operator: it lacks {missing}", remedy=_REMEDY
            )


def _served(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schemas = document.get("components", {}).get("schemas", {})
    for schema in schemas.values():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            if kind.get("group") == GROUP and kind.get("kind") == KIND and kind.get("version") == VERSION:
                found: Mapping[str, Any] = schema
                return found
    return None


def _missing(wanted: Mapping[str, Any], served: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of fields that ``wanted`` has and ``served`` lacks."""
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, schema in wanted.get("properties", {}).items():
        here = f"{path}.{name}"
        if name not in served.get("properties", {}):
            yield here
            continue
        yield from _missing(schema, served["properties"][name], here)
    if "items" in wanted:
        yield from _missing(wanted["items"], served.get("items", {}), f"{path}[]")
    if isinstance(wanted.get("additionalProperties"), Mapping):
        served_values = served.get("additionalProperties")
        values = served_values if isinstance(served_values, Mapping) else {}
        yield from _missing(wanted["additionalProperties"], values, f"{path}.*")
