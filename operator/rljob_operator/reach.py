"""The options that say who may reach the pods of jobs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from rljob_operator.builders.network import Peers, Reach
from rlruntime.command_line import option_type
from rlruntime.errors import ConfigError

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
_LABEL = re.compile(rf"((?:{_DOMAIN}/)?{_NAME})=({_NAME})")
_OPTIONS = ("operator_namespace_labels", "operator_pod_labels", "scraper_namespace_labels", "scraper_pod_labels")


def add_reach_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command."""
    group = parser.add_argument_group("network policies of jobs")
    group.add_argument(
        "--job-network-policies",
        action="store_true",
        help="make a NetworkPolicy for each job: its ports are reached by its own pods, and the one with metrics and"
        " status also by the operator and the scraper",
    )
    words = {
        "operator_namespace_labels": "labels of the namespace that the operator runs in",
        "operator_pod_labels": "labels of the operator's pods",
        "scraper_namespace_labels": "labels of the namespace of what scrapes metrics; left out: nobody may",
        "scraper_pod_labels": "labels of the scraper's pods; left out: all pods of that namespace may",
    }
    for name in _OPTIONS:
        group.add_argument(_flag(name), metavar="KEY=VALUE,...", type=_labels, help=words[name])


def reach_of(arguments: argparse.Namespace) -> Reach | None:
    """Return who may reach the pods of jobs; None where everybody may.

    Raises:
        ConfigError: an option is missing beside another.
    """
    given: dict[str, Mapping[str, str] | None] = {name: getattr(arguments, name) for name in _OPTIONS}
    if not arguments.job_network_policies:
        for name, labels in given.items():
            if labels is not None:
                raise ConfigError(
                    "says nothing without --job-network-policies", field=_flag(name), remedy="give both, or neither"
                )
        return None
    operator_namespace, operator_pods, scraper_namespace, scraper_pods = given.values()
    if operator_namespace is None or operator_pods is None:
        missing = "operator_namespace_labels" if operator_namespace is None else "operator_pod_labels"
        raise ConfigError(
            "is missing: the operator asks trainers for their progress, and the policies would keep it out",
            field=_flag(missing),
            remedy="give the labels of its namespace and of its pods",
        )
    if scraper_namespace is None and scraper_pods is not None:
        raise ConfigError(
            "is missing: anybody may give the labels of the scraper's pods to pods in a namespace of his own",
            field=_flag("scraper_namespace_labels"),
            remedy="give the labels of its namespace, such as kubernetes.io/metadata.name=monitoring",
        )
    scraper = None if scraper_namespace is None else Peers(scraper_namespace, scraper_pods or {})
    return Reach(Peers(operator_namespace, operator_pods), scraper)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@option_type("give labels such as app.kubernetes.io/name=prometheus,tier=platform")
def _labels(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(","):
        label = _LABEL.fullmatch(part)
        if label is None:
            raise ValueError(part)
        found[label[1]] = label[2]
    return found
