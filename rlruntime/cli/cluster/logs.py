"""`rljob logs JOB`: what the pods of a job have written."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

from rlruntime.cli.cluster.options import add_cluster_options, run_on_cluster
from rlruntime.command_line import option_type, whole_number
from rlruntime.errors import ConfigError

if TYPE_CHECKING:
    from rlruntime.cli.cluster.api import Api

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "logs",
        help="print the logs of a job's pods",
        description="Print the logs of a job's pods, each line behind the pod's name, in the order of time. The"
        " runtime's JSON lines become words; --raw leaves every line as it was written, without a name before it. What"
        " isn't a log (a pod that is gone or hasn't started) is said on standard error. A log goes with its pod:"
        " Kubernetes keeps none of an earlier attempt. Needs rljob[cluster].",
    )
    parser.add_argument("job", metavar="JOB", help="name of the job")
    parser.add_argument("--role", metavar="ROLE", help="only pods of this role")
    parser.add_argument("--index", type=_count, metavar="N", help="only the pod of this number")
    attempts = parser.add_mutually_exclusive_group()
    attempts.add_argument("--attempt", type=_count, metavar="N", help="pods of this attempt (default: the newest)")
    attempts.add_argument("--previous", action="store_true", help="the attempt before the newest")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on, over restarts too, until the job has ended or Ctrl-C"
    )
    parser.add_argument("--raw", action="store_true", help="lines as they were written, without the pod's name")
    parser.add_argument("--timestamps", action="store_true", help="begin each line with its time")
    parser.add_argument("--tail", type=_count, metavar="N", help="only so many lines of each pod, from the end")
    parser.add_argument("--since", type=_seconds, metavar="TIME", help="only lines of the last 30s, 10m, 2h or 1d")
    parser.add_argument("-c", "--container", metavar="NAME", help="a container other than the main one")
    add_cluster_options(parser)
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the logs, and return the exit code: 1 where there was none to print."""

    async def work(api: Api) -> int:
        from rlruntime.cli.cluster.log_reader import Follower, LogPrinter, Request, print_logs

        request = await Request.make(api, arguments)
        printer = LogPrinter(sys.stdout, request, raw=arguments.raw, timestamps=arguments.timestamps)
        if arguments.follow:
            if arguments.previous or arguments.attempt is not None:
                raise ConfigError("an earlier attempt has ended", field="--follow", remedy="leave one of the two out")
            return await Follower(api, request, printer).run()
        return await print_logs(api, request, printer)

    return run_on_cluster(arguments, work)


@option_type("give a whole number, at least 0")
def _count(text: str) -> int:
    return whole_number(text, 0)


@option_type("give a time such as 30s, 10m, 2h or 1d")
def _seconds(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None or int(found[1]) < 1:
        raise ValueError(text)
    return int(found[1]) * _UNITS_S[found[2]]
