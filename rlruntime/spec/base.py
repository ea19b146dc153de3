"""What every model of the manifest shares: names, strictness, and the two scalar types that pydantic lacks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasGenerator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel


def _whole_float_to_int(value: Any) -> Any:
    """The API server stores ``1e6`` as a number; an integer field takes it when it is whole."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Int = Annotated[int, BeforeValidator(_whole_float_to_int)]
PositiveInt = Annotated[int, BeforeValidator(_whole_float_to_int), Field(ge=1)]
NonNegativeInt = Annotated[int, BeforeValidator(_whole_float_to_int), Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
AsTuple = BeforeValidator(_list_to_tuple)


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
