"""What every model of the manifest shares: names, strictness, scalar types, and how a model refuses a combination."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, AliasGenerator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

MAX_INT = 2**53 - 1
"""Largest integer that YAML, JSON and every client read alike."""


def _whole_float_to_int(value: Any) -> Any:
    """The API server stores ``1e6`` as a number; an integer field takes it when it is whole."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def refusal(problem: str, *path: str | int, remedy: str = "", value: Any = None) -> PydanticCustomError:
    """Return the error that a model validator raises for a combination of fields.

    Args:
        problem: what is wrong, without a full stop.
        path: where, from the model that raises: names as in YAML, and list indexes.
        remedy: what the user should do, as an imperative.
        value: the offending value; None shows none.
    """
    words = problem.replace("{", "{{").replace("}", "}}")
    return PydanticCustomError("refused", words, {"path": path, "remedy": remedy, "value": value})


def matching(pattern: str, words: str, *, max_length: int) -> tuple[Any, Any]:
    """Return the metadata of a string field that ``pattern`` describes and ``words`` explain.

    The pattern is written so that Python's ``re``, Go's RE2 and ECMAScript read it alike.
    """
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.search(value) or value.endswith("\n"):
            raise refusal(f"must be {words}")
        return value

    return Field(min_length=1, max_length=max_length, json_schema_extra={"pattern": pattern}), AfterValidator(check)


def text(max_length: int, *, min_length: int = 1) -> Any:
    """Return the metadata of a string field of at most ``max_length`` characters."""
    return Field(min_length=min_length, max_length=max_length)


Whole = BeforeValidator(_whole_float_to_int)
"""Lets an int field take a whole float. It comes after the bounds, or JSON Schema loses them."""
Int = Annotated[int, Whole]
PositiveInt = Annotated[int, Field(ge=1), Whole]
NonNegativeInt = Annotated[int, Field(ge=0), Whole]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
AsTuple = BeforeValidator(_list_to_tuple)

_label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNSLabel = Annotated[
    str,
    *matching(
        r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        "lower-case letters, digits and '-', starting with a letter and not ending with '-' (DNS-1035)",
        max_length=40,
    ),
]
ObjectName = Annotated[
    str,
    *matching(
        rf"^{_label}(\.{_label})*$",
        "the name of a Kubernetes object: lower-case letters, digits, '-' and '.'",
        max_length=253,
    ),
]
QualifiedName = Annotated[
    str,
    *matching(
        rf"^({_label}(\.{_label})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "a qualified name such as 'nvidia.com/gpu'",
        max_length=317,
    ),
]
ImageName = Annotated[str, *matching(r"^[^\s]+$", "a container image such as 'ghcr.io/org/name:tag'", max_length=1024)]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=65536)]], Field(max_length=64)]


class SpecModel(BaseModel):
    """Base of all models: camelCase in YAML, snake_case in Python, frozen, strict, no unknown field, no NaN."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(alias=to_camel),
        populate_by_name=True,
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        ser_json_inf_nan="constants",
    )
