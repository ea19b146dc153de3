"""A small client of the Kubernetes API, so that the harness depends on none of those that are tested."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from cluster_harness.errors import ClusterError

JsonObject = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"


class ApiError(ClusterError):
    """The API server refused a request."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        self.status = status
        """The HTTP status."""
        try:
            document = json.loads(body)
        except ValueError:
            document = {}
        self.reason = str(document.get("reason", ""))
        """One word, such as ``NotFound``."""
        self.message = str(document.get("message", body.strip()))
        """The server's sentence."""
        super().__init__(f"{method} {path}: {status} {self.message}")


class Api:
    """Requests to one API server as the user of a kubeconfig. Each has its own connection, so threads may share it.

    Args:
        kubeconfig: file with the address and, inside or beside it, the user's certificate or token.
        timeout_s: how long to wait for an answer.
    """

    def __init__(self, kubeconfig: Path, timeout_s: float = 30.0) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        address = urlsplit(cluster["server"])
        self._host, self._port = address.hostname or "", address.port or 443
        self._timeout_s = timeout_s
        self._headers = {"Accept": "application/json"}
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        authority = _content(cluster, "certificate-authority", kubeconfig)
        self._tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        certificate, key = (_content(user, field, kubeconfig) for field in ("client-certificate", "client-key"))
        if certificate and key:
            with tempfile.NamedTemporaryFile() as file:  # the standard library reads them from files only
                file.write(certificate + key)
                file.flush()
                self._tls.load_cert_chain(file.name)

    def get(self, path: str) -> JsonObject:
        """Return the object at ``path``, such as ``/api/v1/namespaces/default``.

        Raises:
            ApiError: the server refuses.
            OSError: it can't be reached.
        """
        return self.request("GET", path)

    def create(self, path: str, body: JsonObject) -> JsonObject:
        """POST an object to a collection and return it as it was stored; raises like ``get``."""
        return self.request("POST", path, body)

    def replace(self, path: str, body: JsonObject) -> JsonObject:
        """PUT an object and return it as it was stored; raises like ``get``."""
        return self.request("PUT", path, body)

    def patch(self, path: str, body: JsonObject) -> JsonObject:
        """Merge ``body`` into an object and return it as it was stored; raises like ``get``."""
        return self.request("PATCH", path, body, content_type=MERGE_PATCH)

    def delete(self, path: str, body: JsonObject | None = None) -> JsonObject:
        """DELETE an object; ``body`` may hold delete options. Raises like ``get``."""
        return self.request("DELETE", path, body)

    def request(
        self, method: str, path: str, body: JsonObject | None = None, *, content_type: str = "application/json"
    ) -> JsonObject:
        """Send one request and return the answer's JSON; raises like ``get``."""
        text = self.text(method, path, body, content_type=content_type)
        document = json.loads(text)
        return document if isinstance(document, dict) else {"value": document}

    def text(
        self, method: str, path: str, body: JsonObject | None = None, *, content_type: str = "application/json"
    ) -> str:
        """Send one request and return the answer as it is; raises like ``get``."""
        headers = self._headers if body is None else {**self._headers, "Content-Type": content_type}
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from None
        finally:
            connection.close()
        if answer.status >= 400:
            raise ApiError(method, path, answer.status, text)
        return text


def _named(entries: list[JsonObject], name: str) -> JsonObject:
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise ClusterError(f"the kubeconfig has no entry {name!r}")


def _content(entry: JsonObject, field: str, kubeconfig: Path) -> bytes | None:
    if f"{field}-data" in entry:
        return base64.b64decode(entry[f"{field}-data"])
    if field in entry:
        return kubeconfig.parent.joinpath(str(entry[field])).read_bytes()
    return None
