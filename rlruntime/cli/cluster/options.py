"""What the commands about a cluster have in common: options, the way they are run, and the extra that they need."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rlruntime.errors import EXIT_SIGTERM, MissingExtraError

if TYPE_CHECKING:
    from rlruntime.cli.cluster.api import Api

_EXTRA = "rljob[cluster]"
_PACKAGES = ("kubernetes", "aiohttp", "rich")


def add_cluster_options(parser: argparse.ArgumentParser, *, all_namespaces: bool = False) -> None:
    """Add the options that say which cluster and which namespace."""
    place = parser.add_mutually_exclusive_group() if all_namespaces else parser
    place.add_argument("-n", "--namespace", metavar="NAME", help="default: the context's namespace")
    if all_namespaces:
        place.add_argument("-A", "--all-namespaces", action="store_true", help="the jobs of all namespaces")
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: KUBECONFIG, ~/.kube/config, the pod's account")
    parser.add_argument("--context", metavar="NAME", help="a context of the kubeconfig (default: the current one)")


def run_on_cluster(arguments: argparse.Namespace, work: Callable[[Api], Awaitable[int]]) -> int:
    """Connect, do ``work``, disconnect, and return the exit code. SIGTERM ends it as Ctrl-C does: in good order.

    Raises:
        MissingExtraError: the packages of these commands aren't installed.
        ConfigError: there is no usable kubeconfig.
        RLJobError: the API server can't be reached, or refuses.
    """

    async def main() -> int:
        from rlruntime.cli.cluster.api import Api
        from rlruntime.cli.cluster.connection import Connection

        connection = await Connection.load(arguments.kubeconfig, arguments.context)
        async with Api(connection) as api:
            return await _until_sigterm(work(api))

    try:
        return asyncio.run(main())
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise MissingExtraError(f"rljob {arguments.command}", package=package, extra=_EXTRA) from None


async def _until_sigterm(work: Awaitable[int]) -> int:
    task = asyncio.ensure_future(work)
    asked = False

    def end() -> None:
        nonlocal asked
        asked = True
        task.cancel()

    with contextlib.suppress(NotImplementedError):  # on Windows, where there is no such signal
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    try:
        return await task
    except asyncio.CancelledError:
        if asked:
            return EXIT_SIGTERM
        raise
