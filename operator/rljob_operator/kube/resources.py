"""Which kinds of objects the operator touches, and where they are served."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from rlruntime.spec.manifest import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, and its place on the API server."""

    root: str
    """Such as `/api/v1`."""
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of a list; ``namespace`` None is all of them."""
        parts = [self.root]
        if namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts.extend(part for part in (name, subresource) if part)
        return "/".join(parts)


RLJOBS = Resource(f"/apis/{GROUP}/{VERSION}", "rljobs")
PODS = Resource("/api/v1", "pods")
EVENTS = Resource("/api/v1", "events")
LEASES = Resource("/apis/coordination.k8s.io/v1", "leases")

_BY_KIND = {
    "Pod": PODS,
    "Event": EVENTS,
    "Lease": LEASES,
    "Service": Resource("/api/v1", "services"),
    "ConfigMap": Resource("/api/v1", "configmaps"),
    "Secret": Resource("/api/v1", "secrets"),
    "PersistentVolumeClaim": Resource("/api/v1", "persistentvolumeclaims"),
    "NetworkPolicy": Resource("/apis/networking.k8s.io/v1", "networkpolicies"),
}


def resource_of(kind: str) -> Resource:
    """Return where objects of ``kind`` are; KeyError for a kind that the operator never makes."""
    return _BY_KIND[kind]


def parse_path(url: str) -> tuple[str, str | None, str]:
    """Return resource, namespace and name that a URL or a path of the API server speaks of; empty where it is none."""
    parts = urlsplit(url).path.strip("/").split("/")
    if parts[:1] == ["api"]:
        rest = parts[2:]
    elif parts[:1] == ["apis"]:
        rest = parts[3:]
    else:
        return "", None, ""
    namespace = None
    if len(rest) >= 3 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    return (rest[0] if rest else ""), namespace, (rest[1] if len(rest) > 1 else "")
