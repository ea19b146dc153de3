"""A role's template, laid over the pod that was generated for it.

The rules are those of Kubernetes' strategic merge: mappings merge, a null takes a field away, the lists that the
generated pod fills merge by the fields that identify their items, and any other list replaces the generated one. Some
rules are our own: tolerations are added, since the generated one lets a pod onto a GPU node; a field that excludes
another (a volume's source, a probe's action) takes its place, where Kubernetes would refuse both; ports differ by their
protocol too, and paths don't differ by the way they are written; what is new comes after what was generated, so that
the main container stays first. Directives such as `$patch` are refused, and so are the fields that the operator and its
pods rely on.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_operator.builders.labels import is_ours
from rljob_operator.builders.owner import KubeObject
from rlruntime.errors import ConfigError
from rlruntime.spec.contract import CODE_DIR, CONFIG_DIR, MAIN_CONTAINER, VARIABLE_PREFIX
from rlruntime.spec.problems import Path, path_text
from rlruntime.spec.roles import TemplateMetadata

SPEC_VOLUME, TOKEN_VOLUME, CODE_VOLUME = "rljob-spec", "rljob-token", "rljob-code"
CODE_VARIABLE = "PYTHONPATH"

_PROTECTED_POD_FIELDS = ("restartPolicy", "hostname", "hostnameOverride", "subdomain")
_PROTECTED_CONTAINER_FIELDS = ("restartPolicy", "restartPolicyRules")
_PROTECTED_VOLUMES = (SPEC_VOLUME, TOKEN_VOLUME, CODE_VOLUME)
_REMEDY = "remove it"


def with_metadata(
    labels: Mapping[str, str], template: TemplateMetadata, path: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations of an object whose generated labels are ``labels``.

    Args:
        path: where ``template`` stands in the manifest.

    Raises:
        ConfigError: the template sets a label or an annotation that is the operator's.
    """
    for section, given in (("labels", template.labels), ("annotations", template.annotations)):
        for key in given:
            if is_ours(key):
                raise _refused((*path, section, key))
    return {**template.labels, **labels}, dict(template.annotations)


def with_template(pod_spec: KubeObject, template: Mapping[str, Any], path: Path, *, has_code: bool) -> KubeObject:
    """Return ``pod_spec`` with ``template`` laid over it; neither is changed, and nothing of the template is shared.

    Args:
        pod_spec: the generated PodSpec.
        template: the fields of a PodSpec that the role gives.
        path: where ``template`` stands in the manifest.
        has_code: whether the job has modules on PYTHONPATH.

    Raises:
        ConfigError: a field that is protected, a directive, or a list whose items don't say which they are.
    """
    _refuse_directives(template, path)
    _refuse_protected(template, path, has_code=has_code)
    return _merged(pod_spec, copy.deepcopy(dict(template)), _POD, path)


def main_container_of(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what ``template`` lays over the main container; empty when it says nothing of it."""
    for _, container in _items(template, "containers", ()):
        if container.get("name") == MAIN_CONTAINER:
            return container
    return {}


@dataclass(frozen=True)
class _Shape:
    """How a mapping merges: which of its lists have identified items, and which of its fields exclude each other."""

    lists: Mapping[str, _ItemShape] = field(default_factory=dict)
    maps: Mapping[str, _Shape] = field(default_factory=dict)
    added: frozenset[str] = frozenset()
    """Lists whose items are added to the generated ones."""
    excludes_others: Callable[[str], bool] = lambda name: False
    """Whether a field is one of those of which a mapping has only one."""


@dataclass(frozen=True)
class _ItemShape:
    """How a list merges: its items are the same when all of ``keys`` are; a key with a default may be left out."""

    keys: Mapping[str, Any]
    shape: _Shape

    def identity(self, item: Mapping[str, Any], path: Path) -> tuple[Any, ...]:
        """Return what tells ``item`` from the others of its list."""
        for key, default in self.keys.items():
            if not isinstance(item.get(key, default), str | int):
                raise ConfigError("this field is missing", field=path_text((*path, key)), remedy="add it")
        values = [item.get(key, default) for key, default in self.keys.items()]
        return tuple(
            _normal_path(value) if key == "mountPath" else value for key, value in zip(self.keys, values, strict=True)
        )


_PLAIN = _Shape()
_PROBE = _Shape(excludes_others=lambda name: name in ("exec", "grpc", "httpGet", "tcpSocket"))
_VARIABLE = _Shape(excludes_others=lambda name: name in ("value", "valueFrom"))
_VOLUME = _Shape(excludes_others=lambda name: name != "name")
_CONTAINER = _Shape(
    lists={
        "env": _ItemShape({"name": None}, _VARIABLE),
        "ports": _ItemShape({"containerPort": None, "protocol": "TCP"}, _PLAIN),
        "volumeMounts": _ItemShape({"mountPath": None}, _PLAIN),
    },
    maps=dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), _PROBE),
)
_POD = _Shape(
    lists={"containers": _ItemShape({"name": None}, _CONTAINER), "volumes": _ItemShape({"name": None}, _VOLUME)},
    added=frozenset({"tolerations"}),
)


def _merged(base: Mapping[str, Any], patch: Mapping[str, Any], shape: _Shape, path: Path) -> KubeObject:
    given = {name for name, value in patch.items() if value is not None and shape.excludes_others(name)}
    result = {
        name: value for name, value in base.items() if not given or name in given or not shape.excludes_others(name)
    }
    for name, value in patch.items():
        here = (*path, name)
        if name in shape.lists:
            result[name] = _merged_list(result.get(name, ()), value, shape.lists[name], here)
        elif name in shape.added:
            found = list(result.get(name, ()))
            result[name] = found + [item for item in _list(value, here) if item not in found]
        elif value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            before = result.get(name)
            before = before if isinstance(before, Mapping) else {}
            result[name] = _merged(before, value, shape.maps.get(name, _PLAIN), here)
        else:
            result[name] = value
    return result


def _merged_list(base: Sequence[KubeObject], patch: Any, rule: _ItemShape, path: Path) -> list[KubeObject]:
    result = {rule.identity(item, path): item for item in base}
    seen: dict[tuple[Any, ...], int] = {}
    for number, item in enumerate(_list(patch, path)):
        here = (*path, number)
        if not isinstance(item, Mapping):
            raise ConfigError("must be a mapping", field=path_text(here), value=item)
        identity = rule.identity(item, here)
        if identity in seen:
            raise ConfigError(f"is the same as number {seen[identity]}", field=path_text(here), remedy="remove one")
        seen[identity] = number
        result[identity] = _merged(result.get(identity, {}), item, rule.shape, here)
    return list(result.values())


def _list(value: Any, path: Path) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError("must be a list", field=path_text(path), value=value)
    return value


def _refuse_directives(value: Any, path: Path) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if str(name).startswith("$"):
                problem = "directives of a strategic merge are not supported"
                raise ConfigError(problem, field=path_text((*path, name)), remedy="name the fields that should differ")
            _refuse_directives(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _refuse_directives(inner, (*path, number))


def _refuse_protected(template: Mapping[str, Any], path: Path, *, has_code: bool) -> None:
    for name in _PROTECTED_POD_FIELDS:
        if name in template:
            raise _refused((*path, name))
    for here, volume in _items(template, "volumes", path):
        if volume.get("name") in _PROTECTED_VOLUMES:
            raise _refused((*here, "name"), volume["name"])
    for here, container in _items(template, "containers", path):
        if container.get("name") == MAIN_CONTAINER:
            _refuse_protected_in_main(container, here, has_code=has_code)


def _refuse_protected_in_main(container: Mapping[str, Any], path: Path, *, has_code: bool) -> None:
    for name in _PROTECTED_CONTAINER_FIELDS:
        if name in container:
            raise _refused((*path, name))
    for here, variable in _items(container, "env", path):
        name = str(variable.get("name"))
        if name.startswith(VARIABLE_PREFIX):
            raise _refused((*here, "name"), name)
        if has_code and name == CODE_VARIABLE:
            raise _refused((*here, "name"), name, "put the modules into the ConfigMap of spec.code, or into the image")
    folders = (CONFIG_DIR, CODE_DIR) if has_code else (CONFIG_DIR,)
    for here, mount in _items(container, "volumeMounts", path):
        if any(_lies_in(mount.get("mountPath"), folder) for folder in folders):
            raise _refused((*here, "mountPath"), mount["mountPath"], "mount it elsewhere")


def _items(mapping: Mapping[str, Any], name: str, path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the mappings in the list ``name`` with where they stand; what is malformed is left to the merge."""
    values = mapping.get(name)
    for number, item in enumerate(values if isinstance(values, list) else ()):
        if isinstance(item, Mapping):
            yield (*path, name, number), item


def _lies_in(path: Any, folder: str) -> bool:
    return isinstance(path, str) and f"{_normal_path(path)}/".startswith(f"{folder}/")


def _normal_path(path: Any) -> str:
    """``//etc`` and ``/etc/`` are ``/etc``; POSIX leaves two leading slashes to the system, and Linux ignores one."""
    return posixpath.normpath(f"/{str(path).lstrip('/')}")


_NOTHING: Any = object()


def _refused(path: Path, value: Any = _NOTHING, remedy: str = _REMEDY) -> ConfigError:
    problem = "is set by the operator"
    if value is _NOTHING:
        return ConfigError(problem, field=path_text(path), remedy=remedy)
    return ConfigError(problem, field=path_text(path), value=value, remedy=remedy)
