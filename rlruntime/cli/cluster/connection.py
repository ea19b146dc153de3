"""Where the API server is, in which namespace we are, and how to prove who we are.

`kubernetes.aio` reads the configuration, with its certificates, tokens and plugins, as the official client does.
"""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from rlruntime import __version__
from rlruntime.errors import ConfigError

_DEFAULT = "~/.kube/config"
_IN_CLUSTER_VARIABLE = "KUBERNETES_SERVICE_HOST"
_IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_REMEDY = "see --kubeconfig and --context"
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""After 30 s without a byte the other machine is asked, and given up a minute later: a log may be silent for hours."""


def _probed_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket whose other end is noticed to be gone, by the kernel's own questions, while nothing is sent."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):  # not every system has all
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


class Connection:
    """An API server and an identity.

    Attributes:
        namespace: the context's own, in which jobs are where no other is named.
        context: name of the context; empty in a pod.
    """

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._kubeconfig, self._wanted_context = kubeconfig, context
        self._configuration = Configuration()
        self.namespace, self.context = "default", context or ""

    @classmethod
    async def load(cls, kubeconfig: str | None = None, context: str | None = None) -> Connection:
        """Return the connection that the arguments, or else the surroundings, describe.

        Raises:
            ConfigError: there is no usable configuration.
        """
        connection = cls(kubeconfig, context)
        await connection.reload()
        return connection

    @property
    def server(self) -> str:
        """URL of the API server, without a slash at the end."""
        return str(self._configuration.host).rstrip("/")

    async def reload(self) -> None:
        """Read the configuration anew: a token of a plugin may have expired. Raises as `load`."""
        configuration = Configuration()
        try:
            await self._read(configuration)
        except (KeyError, TypeError, AttributeError):  # of the client, which takes the file for what it isn't
            words = "what was read is no kubeconfig"
            raise ConfigError(f"the Kubernetes configuration can't be used: {words}", remedy=_REMEDY) from None
        except (ConfigException, yaml.YAMLError, OSError, ValueError) as error:
            raise ConfigError(f"the Kubernetes configuration can't be used: {error}", remedy=_REMEDY) from None
        self._configuration = configuration

    async def _read(self, configuration: Any) -> None:
        explicit = self._kubeconfig or os.environ.get("KUBECONFIG")
        path = explicit or str(Path(_DEFAULT).expanduser())
        found = [part for part in path.split(os.pathsep) if part and Path(part).expanduser().is_file()]
        if not explicit and not found and self._wanted_context is None and _IN_CLUSTER_VARIABLE in os.environ:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            self.namespace = _IN_CLUSTER_NAMESPACE.read_text(encoding="utf-8").strip()
            return
        if not found:
            remedy = "set KUBECONFIG, or give one by --kubeconfig"
            raise ConfigError("there is no such kubeconfig", value=explicit or _DEFAULT, remedy=remedy)
        loader = await load_kube_config(  # type: ignore[no-untyped-call]
            path, self._wanted_context, client_configuration=configuration, persist_config=False
        )
        current = loader.current_context
        self.context = str(current["name"])
        self.namespace = str(current["context"].get("namespace") or "default")

    async def headers(self) -> dict[str, str]:
        """Return the headers that prove who we are."""
        value = await self._configuration.get_api_key_with_prefix("BearerToken")
        return {"Authorization": value} if value else {}

    def session(self) -> aiohttp.ClientSession:
        """Return a new session for this server, which its owner closes."""
        tls: ssl.SSLContext | bool = True
        if self.server.startswith("https"):
            try:
                tls = RESTClientObject(self._configuration).ssl_context
            except (OSError, ValueError) as error:  # of the certificates that the kubeconfig names
                raise ConfigError(f"the certificates of the kubeconfig can't be used: {error}") from None
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls, socket_factory=_probed_socket),
            headers={"User-Agent": f"rljob/{__version__}"},
            proxy=self._proxy(),
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def _proxy(self) -> str | None:
        """Return the kubeconfig's proxy, else that of the usual variables; never one before this machine itself."""
        if self._configuration.proxy:
            return str(self._configuration.proxy)
        parts = urlsplit(self.server)
        host = parts.hostname or ""
        if host in ("localhost", "::1") or host.startswith("127.") or proxy_bypass(host):
            return None
        return getproxies().get(parts.scheme)

    @property
    def server_hostname(self) -> str | None:
        """Name that the server's certificate must bear, where it isn't the URL's."""
        name = self._configuration.tls_server_name
        return str(name) if name else None
