"""Writes objects as text that kubectl reads back unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import yaml

from rljob_operator.builders.owner import KubeObject
from rlruntime.spec.scalars import resolve_plain


def to_yaml(objects: Iterable[KubeObject]) -> str:
    """Return one YAML document per object."""
    return "".join(
        "---\n" + yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True) for item in objects
    )


def to_json(objects: Iterable[KubeObject]) -> str:
    """Return the objects as one JSON object of kind List."""
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return json.dumps(listed, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


class _Dumper(yaml.SafeDumper):
    """Writes lists indented, aliases out in full, and quotes whatever a reader might take for more than text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


_PLAIN = re.compile(r"[A-Za-z_/]([A-Za-z0-9_./:\-]*[A-Za-z0-9_/])?")


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) is not None and resolve_plain(text) == text
    style = None if plain else "|" if "\n" in text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
