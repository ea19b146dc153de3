"""How `{type, config}` becomes an object: registered names, entry points, and import paths.

One table for every kind of part (algorithm, network, transform, logger, callback, ...). A name registers by decorator,
or another distribution offers it by the entry-point group ``rljob.components`` as ``<kind>.<name>``; any object is
named by ``package.module:Object``. This module imports the errors and the standard library only: config models are
pydantic's, and are used through what they have (``model_validate``, ``model_fields``, ``errors()`` of a refusal).
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar

from rlruntime.errors import ConfigError, RLJobError

ENTRY_POINT_GROUP = "rljob.components"

BUILTIN_MODULES: dict[str, tuple[str, ...]] = {
    "network": ("rlruntime.policies.networks", "rlruntime.policies.recurrent_networks"),
    "advantage": ("rlruntime.trainers.algorithms.advantages",),
    "transform": ("rlruntime.transforms.builtin",),
    "collector": (
        "rlruntime.collectors.inline",
        "rlruntime.collectors.sync_process",
        "rlruntime.collectors.async_process",
        "rlruntime.collectors.async_envs",
    ),
    "storage": ("rlruntime.storages.storage", "rlruntime.storages.mapped", "rlruntime.storages.lists"),
    "writer": ("rlruntime.storages.writers",),
    "sampler": (
        "rlruntime.storages.samplers",
        "rlruntime.storages.prioritized",
        "rlruntime.storages.slices",
        "rlruntime.storages.prioritized_slices",
        "rlruntime.storages.staleness",
        "rlruntime.storages.groups",
    ),
    "logger": ("rlruntime.trainers.loggers",),
}
"""Modules that register the built-in parts of a kind on import; they are imported on the first look-up of that kind."""

_components: dict[tuple[str, str], Any] = {}
T = TypeVar("T")


class ComponentLike(Protocol):
    """What ``build`` takes: `rlruntime.spec.training.component.Component` is one."""

    @property
    def type(self) -> str:
        """A registered name or an import path."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Settings, as they stand in the manifest."""


def register(kind: str, name: str) -> Callable[[T], T]:
    """Return a decorator that registers a class or function as ``name`` among the parts of ``kind``.

    Raises:
        ValueError: another object bears the name already. The same definition again (a reloaded module) is fine.
    """

    def decorate(target: T) -> T:
        known = _components.get((kind, name))
        if known is not None and _identity(known) != _identity(target):
            raise ValueError(f"{kind} {name!r} is registered already, by {_identity(known)}")
        _components[kind, name] = target
        return target

    return decorate


def resolve(kind: str, type_name: str, *, field: str = "") -> Any:
    """Return the class or function that ``type_name`` stands for.

    A registered name comes first, then an entry point, then ``package.module:Object``.

    Args:
        kind: such as ``network``; see the callers.
        type_name: what the manifest says.
        field: path of the component in the manifest, such as ``spec.training.network``, for the error.

    Raises:
        ConfigError: there is no such name (the nearest ones are named), or its module can't be imported.
    """
    where = f"{field}.type" if field else ""
    if ":" in type_name:
        return import_object(type_name, field=where)
    _load_builtins(kind)
    if (kind, type_name) in _components:
        return _components[kind, type_name]
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=f"{kind}.{type_name}"):
        return import_object(entry_point.value, field=where)
    names = names_of(kind)
    remedy = nearest_remedy(type_name, names)
    raise ConfigError(
        f"there is no {kind} of this name",
        field=where,
        value=type_name,
        remedy=f"{remedy or 'use ' + (', '.join(names) or 'your own')} (or package.module:Object)",
    )


def names_of(kind: str) -> list[str]:
    """Return the names of ``kind`` that are registered or offered by an installed package, sorted."""
    _load_builtins(kind)
    registered = {name for known_kind, name in _components if known_kind == kind}
    prefix = f"{kind}."
    offered = (ep.name for ep in entry_points(group=ENTRY_POINT_GROUP) if ep.name.startswith(prefix))
    return sorted(registered | {name.removeprefix(prefix) for name in offered})


def build(kind: str, component: ComponentLike, *args: Any, field: str) -> Any:
    """Return the object that a component of the manifest describes.

    A class with a ``Config`` (a pydantic model) is called as ``cls(config_model, *args)``; any other class or function
    as ``target(*args, **config)``.

    Raises:
        ConfigError: unknown type, a config that the model or the signature refuses (with the path of the field).
    """
    target = resolve(kind, component.type, field=field)
    config = validate_config(target, component.config, num_args=len(args), field=f"{field}.config")
    if config is not None:
        return target(config, *args)
    return target(*args, **component.config)


def validate_config(target: Any, config: Mapping[str, Any], *, num_args: int = 0, field: str) -> Any | None:
    """Return ``config`` as ``target.Config``, or None where the target has none and takes it as keyword arguments.

    Raises:
        ConfigError: the model refuses the config, or the signature doesn't take it; names the first field at fault.
    """
    model = getattr(target, "Config", None)
    if model is not None and hasattr(model, "model_validate"):
        try:
            return model.model_validate(dict(config), by_alias=True, by_name=False)
        except ValueError as error:
            raise _config_error(error, model, field) from None
    _check_signature(target, config, num_args, field)
    return None


def import_object(path: str, *, field: str = "") -> Any:
    """Return what ``package.module:Object`` names; the object may be dotted (``module:Class.method``).

    Raises:
        ConfigError: the module is missing, fails on import, or has no such object.
    """
    module_name, _, object_name = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            problem = f"there is no module {error.name!r}"
            remedy = "install the package that has it, or put it beside the manifest"
        else:
            problem = f"the module {module_name!r} needs {error.name!r}, which is not installed"
            remedy = f"install the package that has {error.name!r}"
        raise ConfigError(problem, field=field, value=path, remedy=remedy) from None
    except RLJobError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the module {module_name!r} raised {type(error).__name__} on import: {error}",
            field=field,
            value=path,
            remedy=f"see that python -c 'import {module_name}' works",
        ) from error
    for part in object_name.split("."):
        if not hasattr(found, part):
            public = [name for name in dir(found) if not name.startswith("_")]
            raise ConfigError(
                f"the module {module_name!r} has no {object_name!r}",
                field=field,
                value=path,
                remedy=nearest_remedy(part, public) or "see the spelling after the colon",
            )
        found = getattr(found, part)
    return found


def nearest_remedy(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x' or 'y'?`` for names near ``name``, or an empty string where none is."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(repr(by_lower[match]) for match in near)}?" if near else ""


def _load_builtins(kind: str) -> None:
    for module in BUILTIN_MODULES.get(kind, ()):
        importlib.import_module(module)


def _identity(target: Any) -> str:
    return f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', repr(target))}"


def _check_signature(target: Any, config: Mapping[str, Any], num_args: int, field: str) -> None:
    """Refuse what ``target(*args, **config)`` would, so that a TypeError from inside the target stays its own."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    accepted = [p.name for p in signature.parameters.values() if p.kind in by_name][num_args:]
    takes_any = any(p.kind == p.VAR_KEYWORD for p in signature.parameters.values())
    for key in config:
        if key not in accepted and not takes_any:
            raise ConfigError(
                f"{_identity(target)} takes no such setting",
                field=f"{field}.{key}",
                value=config[key],
                remedy=nearest_remedy(key, accepted) or f"it takes {', '.join(accepted) or 'none'}",
            )
    try:
        signature.bind(*(None,) * num_args, **config)
    except TypeError as error:
        raise ConfigError(
            f"{_identity(target)} can't be called: {error}", field=field, remedy="give the setting that it misses"
        ) from None


def _config_error(error: ValueError, model: Any, field: str) -> ConfigError:
    """Make the first of a pydantic refusal's errors one line; a model's own errors pass through."""
    details = error.errors() if hasattr(error, "errors") else []
    if not details:
        return ConfigError(str(error), field=field)
    first = details[0]
    location = tuple(first["loc"])
    path = field + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    if first["type"] == "extra_forbidden":
        known = _field_names(model, location[:-1])
        remedy = nearest_remedy(str(location[-1]), known) or f"it takes {', '.join(known) or 'none'}"
        return ConfigError("there is no such setting", field=path, value=first["input"], remedy=remedy)
    if first["type"] == "missing":
        return ConfigError("this setting is missing", field=path, remedy="give it")
    message = str(first["msg"])
    message = message.removeprefix("Value error, ")
    return ConfigError(message[:1].lower() + message[1:], field=path, value=first["input"])


def _field_names(model: Any, location: tuple[Any, ...]) -> list[str]:
    """Return the names, as in YAML, of the fields of the model at ``location``; empty where that can't be told."""
    for part in location:
        if isinstance(part, int):
            continue
        for name, info in getattr(model, "model_fields", {}).items():
            if part in (name, info.alias):
                model = info.annotation
                break
        else:
            return []
    return [info.alias or name for name, info in getattr(model, "model_fields", {}).items()]
