"""Where the API server is, and how to prove who we are.

`kubernetes.aio` reads the configuration: a pod's service account, or a kubeconfig with its certificates, tokens and
plugins. Requests themselves are made on sessions of aiohttp that are made here, as raw JSON.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import ClientMiddlewareType
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from rljob_operator.kube.nesting import Response
from rlruntime import __version__
from rlruntime.errors import ConfigError

IN_CLUSTER_VARIABLE = "KUBERNETES_SERVICE_HOST"


class Connection:
    """An API server and an identity. The identity is read anew when the server refuses it, or its file has changed."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._kubeconfig, self._context = kubeconfig, context
        self._configuration = Configuration()
        self._tls: ssl.SSLContext | None = None
        self._lock = asyncio.Lock()
        self.generation = 0
        """Rises with every reading; a session that was made before may hold an old certificate."""

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

    async def reload(self, seen: int | None = None) -> None:
        """Read the configuration anew, unless somebody did so since generation ``seen``.

        Raises:
            ConfigError: there is no usable configuration.
        """
        async with self._lock:
            if seen is not None and self.generation != seen:
                return
            configuration = Configuration()
            await self._read(configuration)
            self._configuration = configuration
            self._tls = RESTClientObject(configuration).ssl_context if self.server.startswith("https") else None
            self.generation += 1

    async def _read(self, configuration: Any) -> None:
        explicit = self._kubeconfig or os.environ.get("KUBECONFIG")
        try:
            if explicit is None and self._context is None and IN_CLUSTER_VARIABLE in os.environ:
                load_incluster_config(configuration)  # type: ignore[no-untyped-call]
                return
            path = explicit or str(Path.home() / ".kube/config")
            missing = [part for part in path.split(os.pathsep) if part and not Path(part).is_file()]
            if missing and (self._kubeconfig or len(missing) == len(path.split(os.pathsep))):
                raise ConfigError(
                    "there is no such kubeconfig", value=missing[0], remedy="give another by --kubeconfig"
                )
            await load_kube_config(  # type: ignore[no-untyped-call]
                path, self._context, client_configuration=configuration, persist_config=False
            )
        except (KeyError, TypeError, AttributeError):  # of the client, which takes the file for what it isn't
            words = "what was read is no kubeconfig"
            raise ConfigError(
                f"the Kubernetes configuration can't be used: {words}", remedy="see --kubeconfig and --context"
            ) from None
        except (ConfigException, yaml.YAMLError, OSError, ValueError) as error:
            raise ConfigError(
                f"the Kubernetes configuration can't be used: {error}", remedy="see --kubeconfig and --context"
            ) from None

    async def headers(self) -> dict[str, str]:
        """Return the headers that prove who we are. A service account's token is read from its file once a minute."""
        value = await self._configuration.get_api_key_with_prefix("BearerToken")
        return {"Authorization": value} if value else {}

    def session(
        self, *, limit: int, timeout: aiohttp.ClientTimeout, middlewares: Sequence[ClientMiddlewareType] = ()
    ) -> aiohttp.ClientSession:
        """Return a new session for this server; variables of the surroundings that name proxies don't count.

        Args:
            limit: connections at a time; 0 is any number.
        """
        proxy = self._configuration.proxy
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, ssl=self._tls if self._tls is not None else True),
            headers={"User-Agent": f"rljob-operator/{__version__}"},
            timeout=timeout,
            proxy=str(proxy) if proxy else None,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=middlewares,
            response_class=Response,
        )

    @property
    def server_hostname(self) -> str | None:
        """Name that the server's certificate must bear, where it isn't the URL's."""
        name = self._configuration.tls_server_name
        return str(name) if name else None
