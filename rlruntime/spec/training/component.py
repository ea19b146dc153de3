"""The one shape of every pluggable part."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rlruntime.spec.base import SpecModel, matching

ComponentType = Annotated[
    str,
    *matching(
        r"^[A-Za-z_][A-Za-z0-9_.\-]*(:[A-Za-z_][A-Za-z0-9_.]*)?$",
        "a registered name such as 'MLP', or 'package.module:Object'",
        max_length=253,
    ),
]


class Component(SpecModel):
    """A pluggable part: a registered name, or an object of your own, with its settings."""

    type: ComponentType
    """A registered name such as `MLP`, or `package.module:Object` for your own."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the part. Its own model checks them: `rljob validate` does, and so does the start of every run."""
