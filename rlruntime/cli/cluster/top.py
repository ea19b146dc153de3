"""`rljob top`: a live table of jobs, from what the API server says of them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from rlruntime.cli.cluster.jobs import SORT_KEYS, JobView, in_order
from rlruntime.cli.cluster.options import add_cluster_options, run_on_cluster
from rlruntime.errors import EXIT_OK

if TYPE_CHECKING:
    from rlruntime.cli.cluster.api import Api
    from rlruntime.cli.cluster.table import Line

_MOST_PAINTS_S = 0.25
"""Shortest time between two paints, however much changes."""
_CLOCK_S = 1.0
"""Longest time between two paints: ages grow."""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "top",
        help="watch the jobs of a cluster",
        description="Show the jobs of a namespace with their progress, and keep the table up to date until Ctrl-C."
        " Where the output isn't a terminal, the table is printed once: every value in full, the same columns always, a"
        " dash where nothing is known. Needs rljob[cluster].",
    )
    add_cluster_options(parser, all_namespaces=True)
    parser.add_argument("-l", "--selector", metavar="LABELS", default="", help="only jobs with these labels")
    parser.add_argument("--once", action="store_true", help="print the table once")
    parser.add_argument(
        "--sort",
        choices=SORT_KEYS,
        default="status",
        help="names from A on, times from the newest on, numbers from the largest on; default: status, which is jobs"
        " that run before those that wait, are suspended, have ended, the newest first of each",
    )
    parser.add_argument("--reverse", action="store_true", help="sort the other way round")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Show the table, and return the exit code."""

    async def work(api: Api) -> int:
        view = _View(arguments, api)
        if sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
            await (view.print_for_people() if arguments.once else view.stay())
        else:
            await view.print_for_programs()
        return EXIT_OK

    return run_on_cluster(arguments, work)


class _View:
    """The jobs that are looked at, and how they are shown."""

    def __init__(self, arguments: argparse.Namespace, api: Api) -> None:
        from rlruntime.cli.cluster.api import jobs_path

        self._arguments, self._api = arguments, api
        self._all = bool(arguments.all_namespaces)
        self._namespace = arguments.namespace or api.connection.namespace
        self._path = jobs_path(None if self._all else self._namespace)
        self._selector = {"labelSelector": arguments.selector}
        self._jobs: dict[tuple[str, str], JobView] = {}
        self._trouble = ""

    async def print_for_programs(self) -> None:
        """Print every value, once."""
        from rlruntime.cli.cluster.table import plain

        for line in plain(await self._listed(), datetime.now(UTC)):
            print(line)

    async def print_for_people(self) -> None:
        """Print what the terminal has room for, once."""
        from rlruntime.cli.cluster.screen import show_lines, shows_unicode
        from rlruntime.cli.cluster.table import table

        jobs = await self._listed()
        if not jobs:
            print(f"no jobs in {self._place()}", file=sys.stderr)
            return
        width, unicode = _width_of(sys.stdout), shows_unicode(sys.stdout)
        show_lines(sys.stdout, table(jobs, datetime.now(UTC), width, all_namespaces=self._all, unicode=unicode))

    async def stay(self) -> None:
        """Show what there is and what changes, until somebody ends it."""
        from rlruntime.cli.cluster.screen import Screen, shows_unicode

        changed = asyncio.Event()
        follower = asyncio.create_task(self._follow(changed))
        try:
            await _first(follower, changed)
            with Screen(sys.stdout) as screen:
                while True:
                    changed.clear()
                    screen.paint(self._frame(*screen.size, unicode=shows_unicode(sys.stdout)))
                    await asyncio.sleep(_MOST_PAINTS_S)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(_first(follower, changed), _CLOCK_S - _MOST_PAINTS_S)
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    def _frame(self, width: int, height: int, *, unicode: bool) -> list[Line]:
        from rlruntime.cli.cluster.frame import frame

        jobs = in_order(self._jobs.values(), self._arguments.sort, reverse=self._arguments.reverse)
        return frame(
            jobs,
            datetime.now().astimezone(),
            width,
            height,
            place=self._place(),
            all_namespaces=self._all,
            trouble=self._trouble,
            unicode=unicode,
        )

    async def _listed(self) -> list[JobView]:
        items, _ = await self._api.list(self._path, self._selector)
        jobs = (JobView.of(item) for item in items)
        return in_order(jobs, self._arguments.sort, reverse=self._arguments.reverse)

    async def _follow(self, changed: asyncio.Event) -> None:
        from rlruntime.cli.cluster.watching import Silence, Snapshot, observe

        async with contextlib.aclosing(observe(self._api, self._path, self._selector)) as events:
            async for event in events:
                if isinstance(event, Silence):
                    self._trouble = event.words
                elif isinstance(event, Snapshot):
                    self._jobs = {job.key: job for job in map(JobView.of, event.items)}
                    self._trouble = ""
                else:
                    job = JobView.of(event.item)
                    if event.deleted:
                        self._jobs.pop(job.key, None)
                    else:
                        self._jobs[job.key] = job
                changed.set()

    def _place(self) -> str:
        return "all namespaces" if self._all else f"namespace {self._namespace}"


async def _first(follower: asyncio.Task[None], changed: asyncio.Event) -> None:
    """Wait for a change; raise what the follower ended with."""
    waiter = asyncio.create_task(changed.wait())
    try:
        await asyncio.wait({follower, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
    if follower.done():
        follower.result()


def _width_of(stream: TextIO) -> int:
    from rich.console import Console

    return Console(file=stream).width
