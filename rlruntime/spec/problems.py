"""From what pydantic says about a document to lines that a user can act on."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rlruntime.errors import ConfigError
from rlruntime.registry import nearest_remedy

Path = tuple[str | int, ...]
Locate = Callable[[Path], str]
"""Says where a path of a document stands, such as ``job.yaml:12``; an empty string where that isn't known."""
_MAX_NAMES_SHOWN = 12


class ManifestError(ConfigError):
    """All that is wrong with one document. ``str()`` is the first problem and how many more there are.

    Attributes:
        problems: one error per problem; misspelt fields come first, since others follow from them.
    """

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        first = problems[0]
        more = len(problems) - 1
        also = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
        super().__init__(f"{first}{also}")
        self.field, self.remedy, self.problem = first.field, first.remedy, first.problem
        self.problems = tuple(problems)


def nowhere(path: Path) -> str:
    """Locate nothing."""
    return ""


def path_text(path: Sequence[str | int]) -> str:
    """Return ``path`` as it is shown to a user: ``spec.roles[0].name``."""
    parts: list[str] = []
    for part in path:
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}" if parts else part)
    return "".join(parts)


def model_error(
    error: ValidationError, model: type[BaseModel], document: Any, *, at: str = "", locate: Locate = nowhere
) -> ManifestError:
    """Return the problems of ``document`` that ``model`` found.

    Args:
        error: what ``model.model_validate(document)`` raised.
        model: the model.
        document: what was validated, with names as in YAML.
        at: path of the document in the manifest, such as ``spec.training.network.config``; empty for a whole one.
        locate: says where a path of the document stands.
    """
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    problems = []
    for detail in details:
        if _is_echo(detail, details):
            continue
        path = _document_path(detail, document)
        shown = f"{at}.{path_text(path)}".strip(".") if at and path else at or path_text(path)
        problems.append(_problem(detail, model, path, shown, locate(path)))
    return ManifestError(problems)


def _is_echo(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """A list whose items were refused is also called too short by pydantic."""
    loc = detail["loc"]
    return detail["type"] == "too_short" and any(
        len(other["loc"]) > len(loc) and other["loc"][: len(loc)] == loc for other in details
    )


def _document_path(detail: ErrorDetails, document: Any) -> Path:
    """Return the location of a problem in terms of the document; pydantic mixes names of types into its own."""
    path: list[str | int] = []
    here = document
    last = len(detail["loc"]) - 1
    for index, part in enumerate(detail["loc"]):
        if isinstance(here, Mapping) and (part in here or (index == last and detail["type"] == "missing")):
            path.append(part)
            here = here.get(part)
        elif isinstance(here, list | tuple) and isinstance(part, int) and part < len(here):
            path.append(part)
            here = here[part]
    if detail["type"] == "refused":
        path.extend(detail["ctx"]["path"])
    return tuple(path)


def _problem(detail: ErrorDetails, model: type[BaseModel], path: Path, shown: str, source: str) -> ConfigError:
    kind = detail["type"]
    context = detail.get("ctx", {})
    remedy, value = "", detail["input"]
    if kind == "extra_forbidden":
        problem = "there is no such field"
        remedy = name_remedy(str(path[-1]), field_names(annotation_at(model, path[:-1])))
        return ConfigError(problem, field=shown, remedy=remedy, source=source)
    if kind == "missing":
        return ConfigError("this field is missing", field=shown, remedy="add it", source=source)
    if kind == "refused":
        remedy, value = context["remedy"], context["value"]
        if value is None and not isinstance(detail["input"], Mapping | list | tuple):
            value = detail["input"]
        problem = detail["msg"]
    elif kind == "literal_error":
        choices = literal_choices(annotation_at(model, path))
        problem = f"must be {'one of ' if len(choices) > 1 else ''}{', '.join(choices)}"
        remedy = nearest_remedy(str(value), choices)
    else:
        problem = _WORDS.get(kind, _plain_words(str(detail["msg"]))).format(**_plurals(context))
        if value is None:
            remedy = "leave it out where the default will do"
    if isinstance(value, Mapping | list | tuple) and kind in ("too_long", "too_short", "refused"):
        value = None
    if value is None and kind in ("refused", "too_long", "too_short"):
        return ConfigError(problem, field=shown, remedy=remedy, source=source)
    return ConfigError(problem, field=shown, value=value, remedy=remedy, source=source)


_WORDS = {
    "int_type": "must be a whole number",
    "int_parsing_size": "must be a whole number that 64 bits can hold",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "finite_number": "must be a finite number",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} {entries}",
}


def _plurals(context: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {key: f"{value:g}" for key, value in context.items() if isinstance(value, float)}
    return {**context, **numbers, "entries": "entry" if context.get("min_length") == 1 else "entries"}


def _plain_words(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("{", "{{").replace("}", "}}")
    return message[:1].lower() + message[1:]


def name_remedy(name: str, known: Sequence[str]) -> str:
    """Return what to write instead of the unknown field ``name``: the nearest of ``known``, or which there are."""
    near = nearest_remedy(name.replace("_", ""), known)
    if near or not known:
        return near
    shown = ", ".join(known[:_MAX_NAMES_SHOWN]) + (", ..." if len(known) > _MAX_NAMES_SHOWN else "")
    return f"the fields here are: {shown}"


def field_names(annotation: Any) -> list[str]:
    """Return the names, as in YAML, of the fields of the model that ``annotation`` allows; none without a model."""
    for option in alternatives(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return [info.alias or name for name, info in option.model_fields.items()]
    return []


def literal_choices(annotation: Any) -> list[str]:
    """Return the values of the Literal that ``annotation`` allows."""
    return [str(value) for option in alternatives(annotation) if "Literal" in str(get_origin(option))
            for value in get_args(option)]  # fmt: skip


def alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the types that ``annotation`` allows, without None, metadata and unions around them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for option in get_args(annotation):
            yield from alternatives(option)
    elif annotation is not type(None):
        yield annotation


def annotation_at(annotation: Any, path: Sequence[str | int]) -> Any:
    """Return the annotation that the model gives to what lies at ``path``.

    Returns:
        ``Any`` inside a part that the schema leaves open, and None where there is no such field.
    """
    for part in path:
        annotation = _annotation_of_part(annotation, part)
        if annotation is None or annotation is Any:
            return annotation
    return annotation


def _annotation_of_part(annotation: Any, part: str | int) -> Any:
    for option in alternatives(annotation):
        origin, arguments = get_origin(option), get_args(option)
        if option is Any:
            return Any
        if isinstance(option, type) and issubclass(option, BaseModel):
            for name, info in option.model_fields.items():
                if part == (info.alias or name):
                    return info.annotation
        elif origin is dict and isinstance(part, str):
            return arguments[1]
        elif origin in (tuple, list) and isinstance(part, int):
            return arguments[0]
    return None
