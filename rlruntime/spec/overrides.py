"""Single fields of a manifest, set from the command line: `-o training.ppo.learningRate=1e-3`."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from rlruntime.errors import ConfigError
from rlruntime.spec.loader import parse_manifest, read_value
from rlruntime.spec.manifest import RLJob
from rlruntime.spec.problems import Path, alternatives, annotation_at, field_names, name_remedy, path_text

_PART = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")
_PATH = re.compile(r"[^.\[\]]+(\[[0-9]+\])*(\.[^.\[\]]+(\[[0-9]+\])*)*")


def apply_overrides(document: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return ``document`` with ``overrides`` applied in order; the result is a valid manifest.

    Args:
        document: a manifest as `load_documents` returns it. It isn't changed.
        overrides: each ``path=value``. The path is relative to `spec` (`spec.` in front is allowed; `metadata.` leads
            to the metadata); entries of a list are `roles.0.gpus` or `roles[0].gpus`, and the number after the last
            adds one. The value is YAML by the manifest's rules; a field that is a string takes it as it stands.

    Raises:
        ConfigError: not of this form, or no such field (the nearest is named).
        ManifestError: the result is no valid manifest.
    """
    changed = copy.deepcopy(document)
    for override in overrides:
        _apply(changed, override)
    if overrides:
        parse_manifest(changed, "with -o " + " -o ".join(overrides))
    return changed


def _apply(document: dict[str, Any], override: str) -> None:
    source = f"-o {override}"
    name, equals, text = override.partition("=")
    if not equals or not _PATH.fullmatch(name.strip()):
        raise ConfigError("an override has the form path=value", source=source, remedy="see training.seed=1")
    path = _typed_path(name.strip(), document)
    for length in range(1, len(path) + 1):
        _check_known(path[:length], source)
    here: Any = document
    for position, part in enumerate(path[:-1]):
        here = _descend(here, part, path[: position + 1], source)
    _check_index(here, path, source)
    value = _value(annotation_at(RLJob, path), text, source)
    if isinstance(here, list) and path[-1] == len(here):
        here.append(value)
    else:
        here[path[-1]] = value


def _typed_path(name: str, document: dict[str, Any]) -> Path:
    """Return the path from the root of the manifest; a number is an index where the schema has a list."""
    parts = [match[0] if not match[0].startswith("[") else int(match[2]) for match in _PART.finditer(name)]
    if parts[0] not in ("spec", "metadata"):
        parts.insert(0, "spec")
    path: list[str | int] = []
    here: Any = document
    for part in parts:
        annotation = annotation_at(RLJob, path)
        in_list = isinstance(here, list) if annotation is Any else _is_list(annotation)
        path.append(int(part) if in_list and str(part).isdigit() else part)
        here = _child(here, path[-1])
    return tuple(path)


def _is_list(annotation: Any) -> bool:
    return any(get_origin(option) in (tuple, list) for option in alternatives(annotation))


def _child(here: Any, part: str | int) -> Any:
    if isinstance(here, dict):
        return here.get(part)
    if isinstance(here, list) and isinstance(part, int) and part < len(here):
        return here[part]
    return None


def _check_known(path: Path, source: str) -> None:
    if annotation_at(RLJob, path) is not None:
        return
    above = annotation_at(RLJob, path[:-1])
    if _is_list(above):
        remedy = f"give the number of an entry, such as {path_text(path[:-1])}[0]"
    else:
        remedy = name_remedy(str(path[-1]), field_names(above))
    raise ConfigError("there is no such field", field=path_text(path), source=source, remedy=remedy)


def _check_index(here: Any, path: Path, source: str) -> None:
    part = path[-1]
    if isinstance(here, list) and (not isinstance(part, int) or part > len(here)):
        raise ConfigError(f"the list has {len(here)} entries", field=path_text(path), source=source)
    if not isinstance(here, dict | list):
        raise ConfigError("is inside a field that has no fields", field=path_text(path), source=source, value=here)


def _descend(here: Any, part: str | int, path: Path, source: str) -> Any:
    """Return what lies at ``part`` of ``here``; what isn't given is put there first, with the schema's default."""
    _check_index(here, path, source)
    missing = part not in here if isinstance(here, dict) else part == len(here)
    if isinstance(here, dict):
        if missing or here[part] is None:
            here[part] = _default_at(path)
    elif missing:
        here.append({})
    return here[part]


def _default_at(path: Path) -> Any:
    """Return the default of the field at ``path`` as plain data, without what is a default in its turn."""
    above = annotation_at(RLJob, path[:-1])
    models = [option for option in alternatives(above) if isinstance(option, type) and issubclass(option, BaseModel)]
    for info in (info for model in models for info in model.model_fields.values() if info.alias == path[-1]):
        if isinstance(info.default, tuple):
            return [_plain(item) for item in info.default]
        if isinstance(info.default, BaseModel):
            return _plain(info.default)
        return [] if _is_list(info.annotation) else {}
    return {}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return value


def _value(annotation: Any, text: str, source: str) -> Any:
    options = [] if annotation is Any else list(alternatives(annotation))
    strings = [option for option in options if option is str or _is_string_literal(option)]
    if not options or len(strings) < len(options):
        return read_value(text, source)
    stripped = text.strip()
    if len(stripped) >= 2 and stripped[0] in "'\"" and stripped[0] == stripped[-1]:
        return read_value(stripped, source)
    if stripped in ("null", "~") and type(None) in get_args(annotation):
        return None
    return stripped


def _is_string_literal(option: Any) -> bool:
    return get_origin(option) is Literal and all(isinstance(value, str) for value in get_args(option))
