"""`rljob suspend JOB...` and `rljob resume JOB...`: take a job's pods away, and bring them back."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from rlruntime.cli.cluster.jobs import JobView
from rlruntime.cli.cluster.options import add_cluster_options, run_on_cluster
from rlruntime.cli.output import print_error
from rlruntime.command_line import option_type, seconds_of
from rlruntime.errors import EXIT_FAULT, EXIT_OK, EXIT_TRY_AGAIN, RLJobError

if TYPE_CHECKING:
    from rlruntime.cli.cluster.api import Api

_WAIT_S = 300


def add_parser(subparsers: Any) -> None:
    """Add both commands."""
    suspend = subparsers.add_parser(
        "suspend",
        help="take the pods of jobs away; their checkpoints stay",
        description="Suspend jobs: each pod saves its state and goes. rljob resume brings them back, where they"
        " stopped. It costs none of a job's budgets. Needs rljob[cluster].",
    )
    resume = subparsers.add_parser(
        "resume",
        help="bring suspended jobs back",
        description="Resume jobs that were suspended: they go on from their checkpoint. Needs rljob[cluster].",
    )
    for parser, wanted in ((suspend, True), (resume, False)):
        parser.add_argument("jobs", nargs="+", metavar="JOB", help="name of a job")
        until = "the last pod is gone" if wanted else "all pods are ready"
        parser.add_argument("--wait", action="store_true", help=f"wait until {until}, or the job has ended")
        parser.add_argument(
            "--timeout",
            type=_seconds,
            default=_WAIT_S,
            metavar="SECONDS",
            help=f"how long --wait waits (default: {_WAIT_S}); then the exit code is {EXIT_TRY_AGAIN}",
        )
        add_cluster_options(parser)
        parser.set_defaults(handler=run, suspend=wanted)


def run(arguments: argparse.Namespace) -> int:
    """Change every job, wait where that is asked for, and return the exit code: that of the last thing that failed."""

    async def work(api: Api) -> int:
        namespace = arguments.namespace or api.connection.namespace
        code, pending = EXIT_OK, {}
        for name in dict.fromkeys(arguments.jobs):
            try:
                job = await _change(api, namespace, name, suspend=arguments.suspend)
            except RLJobError as error:
                print_error(error)
                code = error.exit_code
                continue
            if job.ended:
                code = EXIT_FAULT
            else:
                pending[name] = job
        if arguments.wait and pending:
            code = await _wait(api, namespace, pending, suspend=arguments.suspend, timeout_s=arguments.timeout) or code
        return code

    return run_on_cluster(arguments, work)


async def _change(api: Api, namespace: str, name: str, *, suspend: bool) -> JobView:
    """Set what is wanted of a job, say what follows, and return the job as it is then."""
    from rlruntime.cli.cluster.api import jobs_path
    from rlruntime.cli.cluster.finding import find_job

    job = JobView.of(await find_job(api, namespace, name))
    verb = "suspend" if suspend else "resume"
    if job.ended:
        print_error(RLJobError(f"{name} has {job.phase.lower()} already: there is nothing to {verb}"))
        return job
    if job.suspend == suspend:
        print(f"{name}: {'is suspended' if suspend else 'is not suspended'} already{_now(job)}", flush=True)
        return job
    job = JobView.of(await api.patch(jobs_path(namespace, name), {"spec": {"runPolicy": {"suspend": suspend}}}))
    print(f"{name}: {_follows(job)}", flush=True)
    if suspend and not job.durable:
        print(
            f"rljob: warning: {name} has no spec.storage: its checkpoint goes with its pod, and it will begin anew",
            file=sys.stderr,
            flush=True,
        )
    if not job.ours:
        print(f"rljob: warning: {name} is managed by somebody else than the operator", file=sys.stderr, flush=True)
    return job


def _now(job: JobView) -> str:
    return f" (now {job.phase})" if job.phase else ""


def _follows(job: JobView) -> str:
    """Return what will happen to a job that was just changed."""
    if job.suspend:
        return "suspending: each pod saves its state and goes"
    if job.checkpoint_frames is not None and job.durable:
        return f"resuming from the checkpoint of {job.checkpoint_frames:,} frames"
    return "resuming from the beginning: there is no checkpoint"


async def _wait(api: Api, namespace: str, jobs: dict[str, JobView], *, suspend: bool, timeout_s: float) -> int:
    """Wait until all jobs are where they should be, say so of each, and return the exit code."""
    began_s = time.monotonic()
    code = EXIT_OK
    waiting = dict(jobs)
    try:
        async with (
            asyncio.timeout(timeout_s),
            contextlib.aclosing(_news(api, namespace, waiting)) as news,
        ):
            async for job in news:
                words, failed = arrived(job, suspend=suspend)
                if words:
                    print(f"{job.name}: {words} after {time.monotonic() - began_s:.0f} s", flush=True)
                    code = EXIT_FAULT if failed else code
                    del waiting[job.name]
                if not waiting:
                    return code
    except TimeoutError:
        pass
    for job in waiting.values():
        why = ": ".join(part for part in (job.phase or "no operator has seen it", job.reason, job.message) if part)
        print_error(RLJobError(f"{job.name}: not {'suspended' if suspend else 'running'} after {timeout_s:g} s: {why}"))
    return EXIT_TRY_AGAIN


def arrived(job: JobView, *, suspend: bool) -> tuple[str, bool]:
    """Return in words that a job is where it should be, empty while it isn't, and whether it never will be."""
    if job.phase == "Deleted":
        return "was deleted", not suspend
    if job.ended:
        return f"has {job.phase.lower()}", job.phase == "Failed"
    if job.observed_generation < job.generation:
        return "", False  # what the status says is older than what was asked for
    if suspend and job.phase == "Suspended":
        frames = job.checkpoint_frames
        saved = f", saved at {frames:,} frames," if frames is not None and job.durable else ""
        return f"suspended{saved}", False
    return ("running" if not suspend and job.phase == "Running" else ""), False


async def _news(api: Api, namespace: str, waiting: dict[str, JobView]) -> AsyncGenerator[JobView, None]:
    """Yield what is heard of the jobs that are waited for, and keep ``waiting`` up to date."""
    from dataclasses import replace

    from rlruntime.cli.cluster.api import jobs_path
    from rlruntime.cli.cluster.watching import Change, Silence, Snapshot, observe

    only = {"fieldSelector": f"metadata.name={next(iter(waiting))}"} if len(waiting) == 1 else {}
    async with contextlib.aclosing(observe(api, jobs_path(namespace), only)) as events:
        async for event in events:
            if isinstance(event, Silence):
                continue
            views = {view.name: view for view in map(JobView.of, _items(event))}
            gone = isinstance(event, Change) and event.deleted
            for name, known in list(waiting.items()):
                found = views.get(name)
                if (found is None and isinstance(event, Snapshot)) or (found is not None and gone):
                    yield replace(known, phase="Deleted")
                elif found is not None:
                    waiting[name] = found
                    yield found


def _items(event: Any) -> list[dict[str, Any]]:
    from rlruntime.cli.cluster.watching import Snapshot

    return event.items if isinstance(event, Snapshot) else [event.item]


@option_type("give a positive number of seconds")
def _seconds(text: str) -> float:
    return seconds_of(text, zero=False)
