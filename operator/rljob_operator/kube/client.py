"""What the operator asks of the API server. Tests hand in an API server of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from rljob_operator.builders.owner import KubeObject
from rljob_operator.kube.resources import Resource
from rljob_operator.settings import LIST_CHUNK

Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    items: list[KubeObject]
    resource_version: str
    """Of the whole list, the same in all its pages."""


class KubeClient(Protocol):
    """All requests of the operator. Every method raises `KubeError` or one of its kinds.

    Answers to writes hold an object's metadata alone.
    """

    async def create(self, body: KubeObject, *, dry_run: bool = False) -> KubeObject:
        """Create ``body``; unknown fields are refused. A dry run has the server judge it, and creates nothing."""

    async def get(self, resource: Resource, namespace: str, name: str, *, metadata_only: bool = False) -> KubeObject:
        """Return the object."""

    def pages(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        chunk: int = LIST_CHUNK,
    ) -> AsyncIterator[Page]:
        """Yield the objects of a namespace, or of all, ``chunk`` in a page."""

    async def patch_status(self, namespace: str, name: str, body: KubeObject) -> KubeObject:
        """Merge ``body`` into a job's status. Its metadata must hold `uid` and `resourceVersion`."""

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: Propagation = "Background",
    ) -> KubeObject:
        """Delete the object if it still has this uid, and this resourceVersion where one is given.

        Returns what is left of it while it ends; empty when it is gone.
        """
