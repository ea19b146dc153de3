"""One measurement: a fresh control plane, one operator, and jobs all at once or one after the other."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import usage
from burst import Burst
from cluster_harness.control_plane import ControlPlane, Settings
from cluster_harness.simulated import SimulatedNodes
from contenders import Contender

Result = dict[str, object]
NODES = 50
_SETTLE_S = 2.0


@dataclass
class _Before:
    """What had been used before the first job was created."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    busy_s: float = 0.0
    stolen_s: float = 0.0
    requests: int = 0
    time_s: float = 0.0


def measure(contender: Contender, count: int, *, one_by_one: bool, deadline_s: float) -> Result:
    """Run one case.

    Returns:
        Figures by name; those that end in ``_s`` are seconds, times count from the first creation.

    Raises:
        ClusterError: something of the cluster can't be started, or has ended.
        TimeoutError: the deadline passed.
    """
    # Node leases are long, and a simulated node is never given up: no controller reacts to a machine that is busy.
    settings = Settings(
        controller_manager=True,
        scheduler=True,
        audit_users=[contender.user] if contender.user else [],
        controller_manager_arguments=["--node-monitor-grace-period=24h"],
    )
    with ControlPlane(settings) as plane, SimulatedNodes(plane, NODES), contender.start(plane) as operator:
        burst = Burst(contender, plane.create_namespace("bench"), plane.kubeconfig, deadline_s=deadline_s)
        processes = {**plane.process_ids, "kwok": usage.pid_of("kwok", f"--kubeconfig={plane.kubeconfig}")}
        if operator:
            processes["operator"] = operator
        before = _Before()

        def note() -> None:
            before.cpu_s = _cpu_s(processes)
            before.requests = len(plane.audit_events())
            before.busy_s, before.stolen_s = usage.machine_s()
            before.time_s = time.monotonic()

        time.sleep(_SETTLE_S)
        asyncio.run(burst.run(count, one_by_one=one_by_one, before=note))
        wall_s = time.monotonic() - before.time_s
        used_s = {name: after - before.cpu_s[name] for name, after in _cpu_s(processes).items()}
        busy_s, stolen_s = usage.machine_s()
        time.sleep(_SETTLE_S)  # requests that follow the last pod count too
        requests, refused = _requests(plane, before.requests)
        peak_mib = usage.peak_rss_mib(operator) if operator else None
    result: Result = {"case": contender.name, "jobs": count, "mode": "one by one" if one_by_one else "at once"}
    result |= _times_one_by_one(burst) if one_by_one else _times_at_once(burst, contender)
    result |= {
        "wall_s": round(wall_s, 2),
        "cpu_s": {name: round(seconds, 2) for name, seconds in used_s.items()},
        "operator_peak_mib": round(peak_mib, 1) if peak_mib else None,
        "requests": dict(requests.most_common()),
        "refused": dict(refused.most_common()),
        "requests_per_job": round(requests.total() / count, 1),
        "machine_used": round(sum(used_s.values()) / (usage.CORES * wall_s), 2),
        "others_cpu_s": round(busy_s - before.busy_s - sum(used_s.values()), 2),
        "stolen_s": round(stolen_s - before.stolen_s, 2),
        "watches_closed": burst.watches_closed,
    }
    return result


def _cpu_s(processes: dict[str, int]) -> dict[str, float]:
    return {name: usage.cpu_s(pid) for name, pid in processes.items()} | {"client": time.process_time()}


def _times_at_once(burst: Burst, contender: Contender) -> Result:
    first = min(burst.started.values())
    return {
        "submitted_s": round(max(burst.started.values()) - first, 2),
        "created_s": round(max(burst.created.values()) - first, 2),
        "running_s": round(max(burst.running.values()) - first, 2),
        "done_s": round(max(burst.done.values()) - first, 2) if contender.jobs else None,
        "first_job_running_s": round(min(burst.full.values()) - first, 2),
    }


def _times_one_by_one(burst: Burst) -> Result:
    running = [burst.full[name] - began for name, began in burst.started.items()]
    done = [burst.done[name] - began for name, began in burst.started.items()]
    return {
        "running_p50_s": round(statistics.median(running), 3),
        "running_p99_s": round(_quantile(running, 0.99), 3),
        "done_p50_s": round(statistics.median(done), 3),
    }


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _requests(plane: ControlPlane, skip: int) -> tuple[Counter[str], Counter[str]]:
    """Return the operator's requests by verb and resource without watches, and those of them that were refused."""
    all_of_them: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for event in plane.audit_events()[skip:]:
        about = event.get("objectRef", {})
        resource = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
        if event["verb"] == "watch":
            continue
        dry = " (dry run)" if "dryRun=All" in event["requestURI"] else ""
        all_of_them[f"{event['verb']} {resource}{dry}"] += 1
        if (code := event.get("responseStatus", {}).get("code", 0)) >= 400:
            refused[f"{event['verb']} {resource} {code}"] += 1
    return all_of_them, refused
