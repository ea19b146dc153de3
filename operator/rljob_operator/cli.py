"""The command `rljob-operator`."""

from __future__ import annotations

import argparse
import platform
import re
import sys
import traceback
import uuid
from collections.abc import Sequence

from rljob_operator.builders.network import Reach
from rljob_operator.documents import to_json, to_yaml
from rljob_operator.preview import Preview, preview
from rljob_operator.reach import add_reach_options, reach_of
from rljob_operator.settings import DEFAULT_IMAGE, DEFAULT_LEASE_S, DEFAULT_METRICS_PORT, DEFAULT_WORKERS, Options
from rlruntime import __version__
from rlruntime.command_line import Parser, option_type, run_quietly, whole_number
from rlruntime.errors import EXIT_OK, ConfigError, MissingExtraError, RLJobError
from rlruntime.spec.loader import Document, parse_document, read_documents, read_source, repeated_names, source_name
from rlruntime.spec.problems import ManifestError, path_text
from rlruntime.spec.training.components import check_components

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``rljob-operator`` with ``argv`` (default: the process's arguments) and return its exit code."""
    return run_quietly("rljob-operator", lambda: _run_command(argv))


def _run_command(argv: Sequence[str] | None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.handler(arguments))
    except RLJobError as error:
        if arguments.debug:
            traceback.print_exc()
        for problem in error.problems if isinstance(error, ManifestError) else (error,):
            print(f"rljob-operator: error: {problem}", file=sys.stderr)
        return error.exit_code


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    root = Parser(prog="rljob-operator", description="What an RLJob becomes on Kubernetes.")
    root.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_run(commands)
    plan = commands.add_parser(
        "plan",
        help="print the objects that a job becomes",
        description="Print the Kubernetes objects that each job of FILE becomes, as they are before anything has"
        " happened to it. Needs no cluster and changes nothing. Exit code 78 when a manifest is wrong.",
    )
    plan.add_argument("file", metavar="FILE", help="a manifest, or - for standard input")
    plan.add_argument("--format", choices=("yaml", "json"), default="yaml", help="default: yaml, one document each")
    plan.add_argument("--image", type=_image, default=DEFAULT_IMAGE, help="image of roles without one (%(default)s)")
    plan.add_argument("--namespace", metavar="NAME", type=_namespace, help="the manifest's, else default")
    plan.add_argument("--uid", type=_uid, help="uid of the job (default: the manifest's, else zeros)")
    add_reach_options(plan)
    plan.set_defaults(handler=_plan)
    version = commands.add_parser(
        "version", help="print versions", description="Print the versions of rljob and Python."
    )
    version.set_defaults(handler=_version)
    return root


def _add_run(commands: argparse._SubParsersAction[Parser]) -> None:
    run = commands.add_parser(
        "run",
        help="act on the RLJobs of a cluster",
        description="Act on the RLJobs of a cluster until a signal ends it. Exit code 78 when it can't work as it is,"
        " such as without rights or with an older CRD; 75 when the API server doesn't answer.",
    )
    where = run.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--namespace",
        metavar="NAME",
        type=_namespace,
        action="append",
        help="act on the jobs of this namespace; may be repeated",
    )
    where.add_argument("--all-namespaces", action="store_true", help="act on all jobs")
    run.add_argument("--image", type=_image, default=DEFAULT_IMAGE, help="image of roles without one (%(default)s)")
    run.add_argument("--log-format", choices=("text", "json"), default="text", help="default: text; json: one a line")
    run.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=_port,
        default=DEFAULT_METRICS_PORT,
        help="port of /metrics, /healthz and /readyz; 0 for a free one (%(default)s)",
    )
    run.add_argument(
        "--workers", metavar="N", type=_count, default=DEFAULT_WORKERS, help="jobs worked on at a time (%(default)s)"
    )
    run.add_argument(
        "--lease", metavar="NAMESPACE/NAME", type=_lease, help="act while holding this Lease; for two or more operators"
    )
    run.add_argument(
        "--lease-seconds",
        metavar="N",
        type=_lease_seconds,
        default=DEFAULT_LEASE_S,
        help="how long its holder may be silent before another takes it (%(default)s)",
    )
    run.add_argument("--dry-run", action="store_true", help="log each plan as a line of JSON, and write nothing")
    run.add_argument("--kubeconfig", metavar="FILE", help="default: the pod's account, KUBECONFIG, or ~/.kube/config")
    run.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    add_reach_options(run)
    run.set_defaults(handler=_run)


def _run(arguments: argparse.Namespace) -> int:
    import asyncio
    import functools

    from rljob_operator import logs

    try:
        from rljob_operator.handlers import operator
    except ModuleNotFoundError as error:
        raise MissingExtraError("rljob-operator run", package=str(error.name), extra="rljob[operator]") from None
    from rljob_operator.planner.decide import decide

    reach = reach_of(arguments)
    logs.configure(arguments.log_format, debug=arguments.debug)
    options = Options(
        namespaces=tuple(dict.fromkeys(arguments.namespace or ())),
        image=arguments.image,
        workers=arguments.workers,
        metrics_port=arguments.metrics_port,
        lease=arguments.lease,
        lease_s=arguments.lease_seconds,
        dry_run=arguments.dry_run,
        kubeconfig=arguments.kubeconfig,
        context=arguments.context,
    )
    return asyncio.run(operator.run(options, functools.partial(decide, reach=reach)))


def _plan(arguments: argparse.Namespace) -> int:
    reach = reach_of(arguments)
    documents = read_documents(read_source(arguments.file), source_name(arguments.file))
    problems = repeated_names(documents)
    previews: list[Preview] = []
    for document in documents:
        try:
            previews.append(_preview(document, arguments, reach))
        except ManifestError as error:
            problems.extend(error.problems)
        except ConfigError as error:
            problems.append(error)
    if problems:
        raise ManifestError(problems)
    for note in (note for found in previews for note in found.notes):
        print(f"rljob-operator: note: {note}", file=sys.stderr)
    write = to_json if arguments.format == "json" else to_yaml
    sys.stdout.write(write([item for found in previews for item in found.objects]))
    sys.stdout.flush()
    return EXIT_OK


def _preview(document: Document, arguments: argparse.Namespace, reach: Reach | None) -> Preview:
    job = parse_document(document)
    check_components(job.spec.training, document.locate)
    try:
        return preview(job, image=arguments.image, uid=arguments.uid, namespace=arguments.namespace, reach=reach)
    except ConfigError as error:
        path = next((path for path in document.lines if path_text(path) == error.field), ())
        raise ConfigError(str(error), source=document.locate(path)) from None


def _version(_arguments: argparse.Namespace) -> int:
    print(f"rljob-operator {__version__}")
    print(f"Python {platform.python_version()}")
    return EXIT_OK


@option_type("give a container image such as ghcr.io/org/name:tag")
def _image(text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise ValueError(text)
    return text


@option_type("give the name of a namespace: lower-case letters, digits and '-'")
def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise ValueError(text)
    return text


@option_type("give a port from 0 to 65535")
def _port(text: str) -> int:
    return whole_number(text, 0, 65535)


@option_type("give a number from 1 to 1024")
def _count(text: str) -> int:
    return whole_number(text, 1, 1024)


@option_type("give the namespace and the name of a Lease, such as rljob-system/operator")
def _lease(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash or not _NAMESPACE.fullmatch(namespace) or not _NAMESPACE.fullmatch(name):
        raise ValueError(text)
    return namespace, name


@option_type("give a number from 2 to 600")
def _lease_seconds(text: str) -> int:
    return whole_number(text, 2, 600)


@option_type(f"give a uid such as {uuid.UUID(int=0)}")
def _uid(text: str) -> str:
    return str(uuid.UUID(text))


if __name__ == "__main__":
    sys.exit(main())
