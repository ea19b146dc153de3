"""An API server in memory, for tests in which the order of things matters: answers get lost, objects change in between.

It speaks the operator's own protocol, keeps versions and uids as the real one does, and obeys preconditions.
"""

from __future__ import annotations

import copy
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from rljob_operator.builders.owner import KubeObject
from rljob_operator.kube.client import Page, Propagation
from rljob_operator.kube.errors import AlreadyExists, Conflict, KubeError, NetworkError, NotFound
from rljob_operator.kube.resources import PODS, RLJOBS, Resource, resource_of

Fault = Callable[[str, str, str], KubeError | None]
"""Given verb, plural and name of a request, returns what goes wrong about it."""


class FakeKube:
    """A `KubeClient` and its server."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], KubeObject] = {}
        """By plural, namespace and name."""
        self.requests: list[str] = []
        """``verb plural name``, in their order; a dry run is a verb of its own."""
        self.refuse: Fault = lambda *_: None
        """Asked before a request is carried out; what it returns is raised, and nothing is done."""
        self.lose: Callable[[str, str, str], bool] = lambda *_: False
        """Asked after a request was carried out: whether its answer is lost."""
        self._versions = itertools.count(1)
        self.version = 0

    def put(self, resource: Resource, item: KubeObject) -> KubeObject:
        """Store an object as if somebody else had written it; return it as it is stored."""
        about = item["metadata"]
        about.setdefault("uid", str(uuid.uuid4()))
        about["resourceVersion"] = str(self._next())
        about.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self.objects[resource.plural, about["namespace"], about["name"]] = copy.deepcopy(item)
        return copy.deepcopy(item)

    def stored(self, resource: Resource, name: str, namespace: str = "team-a") -> KubeObject:
        """Return an object as it is stored."""
        return copy.deepcopy(self.objects[resource.plural, namespace, name])

    def names(self, resource: Resource) -> list[str]:
        """Return the names of all objects of a kind."""
        return sorted(name for plural, _, name in self.objects if plural == resource.plural)

    def writes(self) -> list[str]:
        """Return the requests that change something."""
        return [item for item in self.requests if item.split()[0] in ("create", "patch", "delete")]

    async def create(self, body: KubeObject, *, dry_run: bool = False) -> KubeObject:
        """Create ``body``."""
        resource, about = resource_of(body["kind"]), body["metadata"]
        verb = "dry-run" if dry_run else "create"
        self._begin(verb, resource, about["name"])
        if (resource.plural, about["namespace"], about["name"]) in self.objects:
            raise AlreadyExists(f"{verb} {resource.plural}", code=409, reason="AlreadyExists")
        if dry_run:
            return {"metadata": copy.deepcopy(about)}
        made = self.put(resource, copy.deepcopy(body))
        return self._end(verb, resource, about["name"], {"metadata": made["metadata"]})

    async def get(self, resource: Resource, namespace: str, name: str, *, metadata_only: bool = False) -> KubeObject:
        """Return the object."""
        self._begin("get", resource, name)
        return self._end("get", resource, name, copy.deepcopy(self._find("get", resource, namespace, name)))

    async def pages(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        chunk: int = 500,
    ) -> AsyncIterator[Page]:
        """Yield all objects, one in a page; selectors of fields and labels don't count."""
        self._begin("list", resource, "metadata" if metadata_only else "full")
        version = str(self.version)
        found = [item for (plural, _, _), item in sorted(self.objects.items()) if plural == resource.plural]
        for item in found:
            kept = {"metadata": item["metadata"]} if metadata_only else item
            yield Page([copy.deepcopy(kept)], version)
        yield Page([], version)

    async def patch_status(self, namespace: str, name: str, body: KubeObject) -> KubeObject:
        """Merge ``body`` into a job's status."""
        self._begin("patch", RLJOBS, name)
        item = self._find("patch", RLJOBS, namespace, name)
        self._guard("patch", item, body["metadata"]["uid"], body["metadata"]["resourceVersion"])
        item["status"] = _merged(item.get("status", {}), body["status"])
        item["metadata"]["resourceVersion"] = str(self._next())
        return self._end("patch", RLJOBS, name, {"metadata": copy.deepcopy(item["metadata"])})

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
        """Delete the object; a pod that runs on a node stays until its grace period is over."""
        self._begin("delete", resource, name)
        item = self._find("delete", resource, namespace, name)
        self._guard("delete", item, uid, resource_version)
        if resource is PODS and item.get("spec", {}).get("nodeName") and grace_s != 0:
            item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
            item["metadata"]["resourceVersion"] = str(self._next())
            return self._end("delete", resource, name, {"metadata": copy.deepcopy(item["metadata"])})
        del self.objects[resource.plural, namespace, name]
        self._next()
        return self._end("delete", resource, name, {})

    def _next(self) -> int:
        self.version = next(self._versions)
        return self.version

    def _find(self, verb: str, resource: Resource, namespace: str, name: str) -> KubeObject:
        try:
            return self.objects[resource.plural, namespace, name]
        except KeyError:
            raise NotFound(f"{verb} {resource.plural}", code=404, reason="NotFound") from None

    def _guard(self, verb: str, item: KubeObject, uid: str, version: str | None) -> None:
        about = item["metadata"]
        if about["uid"] != uid or (version is not None and about["resourceVersion"] != version):
            raise Conflict(verb, code=409, reason="Conflict")

    def _begin(self, verb: str, resource: Resource, name: str) -> None:
        self.requests.append(f"{verb} {resource.plural} {name}")
        if (error := self.refuse(verb, resource.plural, name)) is not None:
            raise error

    def _end(self, verb: str, resource: Resource, name: str, answer: KubeObject) -> KubeObject:
        if self.lose(verb, resource.plural, name):
            raise NetworkError(f"{verb} {resource.plural}", reason="lost")
        return answer


def _merged(stored: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    found = dict(stored)
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, dict):
            found[name] = _merged(found.get(name) or {}, value)
        else:
            found[name] = value
    return found
