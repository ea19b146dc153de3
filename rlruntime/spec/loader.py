"""Reads manifests from YAML as kubectl and the API server read them.

PyYAML parses; what a scalar means is decided by `rlruntime.spec.scalars`. Beyond what kubectl does, a mapping that
gives a key twice is refused, and so is a merge (`<<`) that would silently replace a key given before it.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rlruntime.errors import ConfigError, StorageError
from rlruntime.spec.manifest import API_VERSION, KIND, RLJob
from rlruntime.spec.problems import Locate, ManifestError, model_error, path_text
from rlruntime.spec.problems import Path as FieldPath
from rlruntime.spec.scalars import Scalar, ScalarError, key_text, plain_scalar, resolve_plain, tagged_scalar

MAX_BYTES = 3 * 1024 * 1024
"""Largest file that is read; the API server takes no larger request."""
MAX_VALUES = 200_000
"""Most values in one document once its aliases are written out."""

STDIN = "-"
_PLAIN, _QUOTED = "plain", "quoted"


@dataclass(frozen=True)
class Document:
    """One YAML document: its value, and where each field of it stands."""

    value: Any
    source: str
    """The file as the user named it."""
    number: int
    """Position in the file, from 1, counting documents that aren't empty."""
    line: int
    """First line, from 1."""
    lines: dict[FieldPath, int] = field(default_factory=dict, repr=False)
    """Line of each field, from 1."""

    def locate(self, path: FieldPath) -> str:
        """Return ``file:line`` of the field at ``path``, or of the nearest part above it that stands in the file."""
        for length in range(len(path), 0, -1):
            line = self.lines.get(path[:length])
            if line is not None:
                return f"{self.source}:{line}"
        return f"{self.source}:{self.line}"


def load_manifests(path: str | Path) -> list[RLJob]:
    """Return the jobs of a YAML file, in order.

    Args:
        path: the file, or ``-`` for standard input.

    Raises:
        ManifestError: a document is no valid job, or two bear one name; holds every problem of the file.
        ConfigError: there is no such file, it is a folder, it is empty, or it isn't YAML.
        StorageError: the file can't be read.
    """
    jobs: list[RLJob] = []
    problems: list[ConfigError] = []
    documents = read_documents(read_source(path), source_name(path))
    for document in documents:
        try:
            jobs.append(parse_document(document))
        except ManifestError as error:
            problems.extend(error.problems)
    problems.extend(repeated_names(documents))
    if problems:
        raise ManifestError(problems)
    return jobs


def load_documents(text: str, source: str) -> list[dict[str, Any]]:
    """Return the documents of ``text`` as plain dicts, lists and scalars; empty ones are left out.

    Args:
        text: YAML, or JSON.
        source: what the text is called in errors, such as the path of a file.

    Raises:
        ConfigError: not YAML, no document, a document that is no mapping, a repeated key, a number that JSON lacks.
    """
    return [document.value for document in read_documents(text, source)]


def parse_manifest(document: Any, source: str) -> RLJob:
    """Return the job that ``document`` describes.

    Args:
        document: a manifest as `load_documents` returns it.
        source: what the document is called in errors.

    Raises:
        ManifestError: holds every problem of the document.
    """
    return _parse(document, lambda _path: source, source)


def parse_document(document: Document) -> RLJob:
    """Return the job that ``document`` describes; like `parse_manifest`, with the line of each problem."""
    return _parse(document.value, document.locate, document.locate(()))


def read_source(path: str | Path) -> str:
    """Return the text of the file ``path``, or of standard input for ``-``.

    Raises:
        ConfigError: no such file, a folder, more than 3 MiB, or not UTF-8.
        StorageError: the file can't be read.
    """
    name = source_name(path)
    try:
        if str(path) == STDIN:
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("there is no such file", source=name, remedy=_nearest_file(Path(path))) from None
    except IsADirectoryError:
        raise ConfigError("is a folder, not a file", source=name, remedy="name the manifests in it") from None
    except OSError as error:
        raise StorageError(f"{name}: can't be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ConfigError("is larger than 3 MiB, which no API server takes", source=name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not YAML: it is not UTF-8 text", source=f"{name}:{line}") from None


def source_name(path: str | Path) -> str:
    """Return what ``path`` is called in errors."""
    return "standard input" if str(path) == STDIN else str(path)


def read_documents(text: str, source: str) -> list[Document]:
    """Return the documents of ``text`` with the lines of their fields; raises what `load_documents` does."""
    documents: list[Document] = []
    with _syntax_errors(source):
        for node in yaml.compose_all(text, Loader=_NodeLoader):
            line = node.start_mark.line + 1
            lines: dict[FieldPath, int] = {}
            value = _Builder(source, lines).build(node, ())
            if value is None:
                continue
            if not isinstance(value, dict):
                raise ConfigError(
                    "a manifest must be a mapping", source=f"{source}:{line}", value=value, remedy="see examples/"
                )
            documents.append(Document(value, source, len(documents) + 1, line, lines))
    if not documents:
        raise ConfigError("holds no manifest: it is empty", source=source, remedy="see examples/ for one to start with")
    return documents


def read_value(text: str, source: str) -> Any:
    """Return the value of one piece of YAML, such as ``1e-3`` or ``[64, 64]``, by the rules of a manifest.

    Raises:
        ConfigError: not YAML, or a number that JSON lacks.
    """
    with _syntax_errors(source):
        node = yaml.compose(text, Loader=_NodeLoader)
        return None if node is None else _Builder(source, {}).build(node, ())


@contextmanager
def _syntax_errors(source: str) -> Iterator[None]:
    """Turn what PyYAML raises into one line."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        raise ConfigError(f"is not YAML: {error.problem or error.context}", source=where) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"is not YAML: {error}", source=source) from None
    except RecursionError:
        raise ConfigError("is nested too deeply", source=source) from None


def repeated_names(documents: Iterable[Document]) -> list[ConfigError]:
    """Return a problem for each document that bears the name of one before it."""
    problems = []
    seen: dict[tuple[Any, Any], Document] = {}
    for document in documents:
        metadata = document.value.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            continue
        key = (str(metadata.get("namespace")), metadata["name"])
        if key in seen:
            problems.append(
                ConfigError(
                    f"two documents are called {key[1]!r} (the other begins at line {seen[key].line})",
                    field="metadata.name",
                    source=document.locate(("metadata", "name")),
                    remedy="give each job a name of its own",
                )
            )
        seen.setdefault(key, document)
    return problems


def _parse(document: Any, locate: Locate, source: str) -> RLJob:
    if not isinstance(document, dict):
        raise ManifestError([ConfigError("a manifest must be a mapping", source=source, value=document)])
    _check_kind(document, locate)
    try:
        return RLJob.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise model_error(error, RLJob, document, locate=locate) from None


def _check_kind(document: dict[str, Any], locate: Locate) -> None:
    """Say first that a document is of another kind: nothing else in it could be right then."""
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(name) == expected:
            continue
        where = locate((name,))
        if name in document:
            error = ConfigError(f"must be {expected}", field=name, value=document[name], source=where)
        else:
            error = ConfigError("this field is missing", field=name, source=where, remedy=f"add {name}: {expected}")
        raise ManifestError([error])


def _nearest_file(path: Path) -> str:
    try:
        names = {entry.stem: entry.name for entry in path.parent.iterdir() if entry.suffix == path.suffix}
    except OSError:
        return "check the path"
    near = difflib.get_close_matches(path.stem, names, n=1)
    return f"did you mean {names[near[0]]!r}?" if near else "check the path"


class _NodeLoader(yaml.BaseLoader):
    """PyYAML up to its node tree, without its rules for what a scalar means: only whether it was quoted is kept."""

    def scan_to_next_token(self) -> None:
        """Skip tabs between tokens where libyaml, and with it kubectl, does."""
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Let an anchor be given anew, and make the tag ``!`` mean a string."""
        if not self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            self.anchors.pop(event.anchor, None)
            if event.tag == "!":
                event.implicit = (False, True)
        return super().compose_node(parent, index)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """Return what stands in for the tag of a node that has none."""
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _QUOTED
        return ""


class _Builder:
    """Turns one document's nodes into values."""

    def __init__(self, source: str, lines: dict[FieldPath, int]) -> None:
        self._source = source
        self._lines = lines
        self._open: set[int] = set()
        self._num_values = 0

    def build(self, node: yaml.Node, path: FieldPath) -> Any:
        """Return the value of ``node``, which stands at ``path``."""
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise self._error(node, path, f"its aliases expand to more than {MAX_VALUES} values")
        if isinstance(node, yaml.ScalarNode):
            return self._finite(node, path, self._scalar(node, path))
        if id(node) in self._open:
            raise self._error(node, path, "an anchor contains itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _item(self, node: yaml.Node, path: FieldPath) -> Any:
        self._lines.setdefault(path, node.start_mark.line + 1)
        return self.build(node, path)

    def _mapping(self, node: yaml.Node, path: FieldPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        given: dict[str, int] = {}
        for key_node, value_node in node.value:
            if _is_merge(key_node):
                merged = self._merged(value_node, path)
                replaced = sorted(given.keys() & merged.keys())
                if replaced:
                    problem = f"this merge would replace {replaced[0]!r}, given before it"
                    raise self._error(key_node, path, problem, remedy="put << first")
                values.update(merged)
                continue
            key = self._key(key_node, path)
            line = key_node.start_mark.line + 1
            if key in given:
                problem = f"the key is given twice (first at line {given[key]})"
                raise self._error(key_node, (*path, key), problem, remedy="remove one")
            given[key] = line
            self._lines[(*path, key)] = line
            values[key] = self.build(value_node, (*path, key))
        return values

    def _merged(self, node: yaml.Node, path: FieldPath) -> dict[str, Any]:
        """What ``<<`` adds: of several mappings the earlier ones win."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode):
                raise self._error(node, path, "a merge needs a mapping, or a list of mappings")
            merged.update(self.build(source, path))
        return merged

    def _key(self, node: yaml.Node, path: FieldPath) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, path, "a key of a mapping must be a string")
        try:
            value = resolve_plain(node.value) if node.tag == _PLAIN else self._scalar(node, path)
            return key_text(value)
        except ScalarError as error:
            raise self._error(node, path, str(error), remedy="write it in quotes") from None

    def _scalar(self, node: yaml.ScalarNode, path: FieldPath) -> Scalar:
        text = str(node.value)
        if node.tag == _QUOTED:
            return text
        if node.tag == _PLAIN:
            return plain_scalar(text)
        try:
            return tagged_scalar(node.tag, text)
        except ScalarError as error:
            raise self._error(node, path, str(error)) from None

    def _finite(self, node: yaml.Node, path: FieldPath, value: Scalar) -> Scalar:
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error(node, path, f"must be a finite number (got {node.value})")
        return value

    def _error(self, node: yaml.Node, path: FieldPath, problem: str, remedy: str = "") -> ConfigError:
        source = f"{self._source}:{node.start_mark.line + 1}"
        return ConfigError(problem, field=path_text(path), source=source, remedy=remedy)


def _is_merge(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value == "<<" and node.tag in (_PLAIN, "tag:yaml.org,2002:merge")
