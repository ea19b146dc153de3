"""The operator's reconciling, put together around an API server in memory and clocks that tests move."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from fake_kube import FakeKube
from prometheus_client import CollectorRegistry
from rljob_operator.builders.owner import KubeObject
from rljob_operator.kube.resources import PODS, RLJOBS
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.planner.decide import decide
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.events import EventWriter
from rljob_operator.reconcile.execute import Executor
from rljob_operator.reconcile.inspect import PodInspector
from rljob_operator.reconcile.memory import Memories
from rljob_operator.reconcile.reconciler import Decide, Reconciler
from rljob_operator.settings import Timing

UID = "1b4e28ba-2fa1-4a6b-8c3d-0123456789ab"
NAMESPACE = "team-a"


def job_document(**spec: Any) -> KubeObject:
    """Return a job as the API server has it."""
    training = {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}}
    about = {"name": "ppo", "namespace": NAMESPACE, "uid": UID, "generation": 1}
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": about,
        "spec": {"training": training, **spec},
    }


@dataclass
class Bench:
    """One job, and an operator that looks at it when a test says so."""

    kube: FakeKube = field(default_factory=FakeKube)
    decide: Decide = decide
    timing: Timing = field(default_factory=Timing)
    dry_run: bool = False
    seconds: float = 1000.0
    """Of the clock that never jumps; the other follows it."""
    pace_s: float = 0.0
    """How long passes are said to take."""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin with an empty memory, as a process does."""
        numbers = itertools.count()
        self.metrics = OperatorMetrics(CollectorRegistry())
        self.cache, self.memories = Cache(self.monotonic), Memories()
        self.added: list[str] = []
        self.delays: list[float] = []
        executor = Executor(
            self.kube,
            self.cache,
            timing=self.timing,
            monotonic=self.monotonic,
            pace_s=lambda: self.pace_s,
            on_status=lambda *_: None,
        )
        self.events = EventWriter(
            self.kube,
            timing=self.timing,
            metrics=self.metrics,
            now=self.now,
            monotonic=self.monotonic,
            suffix=lambda: f"{next(numbers):016x}",
            is_busy=lambda: False,
            instance="test",
        )
        self.inspector = PodInspector(
            self.kube,
            self.cache,
            self.memories,
            add=self.added.append,
            add_after=lambda _, delay_s: self.delays.append(delay_s),
            timing=self.timing,
            monotonic=self.monotonic,
        )
        self.reconciler = Reconciler(
            self.decide,
            self.kube,
            self.cache,
            self.memories,
            executor,
            self.events,
            self.inspector,
            timing=self.timing,
            now=self.now,
            nonce=lambda: "abcde",
            image="image:1",
            dry_run=self.dry_run,
        )

    def monotonic(self) -> float:
        """Return the seconds of now."""
        return self.seconds

    def now(self) -> datetime:
        """Return the time of now."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def submit(self, **spec: Any) -> None:
        """Store a job, and tell the operator."""
        self.kube.put(RLJOBS, job_document(**spec))
        self.watch()

    def watch(self) -> None:
        """Tell the operator of everything as it is now."""
        for (plural, _, _), item in self.kube.objects.items():
            if plural == RLJOBS.plural:
                self.cache.apply_job(item)
            elif plural == PODS.plural:
                self.cache.apply_pod(item)
        for view in list(self.cache.pod_views()):
            if (PODS.plural, view.namespace, view.pod.name) not in self.kube.objects:
                self.cache.remove_pod(view.job_uid, view.pod.uid)

    async def look(self) -> float | None:
        """Make one pass; return after how many seconds the job wants to be looked at again."""
        return await self.reconciler.work(UID)

    def status(self) -> dict[str, Any]:
        """Return the status that is stored."""
        found: dict[str, Any] = self.kube.stored(RLJOBS, "ppo").get("status", {})
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        """Return a condition that is stored; empty where it isn't there."""
        return next((item for item in self.status().get("conditions", []) if item["type"] == kind), {})

    def play(self, name: str, **status: Any) -> None:
        """Store what a node says of a pod, and tell the operator."""
        pod = self.kube.stored(PODS, name)
        pod["status"] = {**pod.get("status", {}), **status}
        self.kube.put(PODS, pod)
        self.watch()

    def run_pod(self, name: str) -> None:
        """Say that a pod runs and is ready."""
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        self.play(
            name,
            phase="Running",
            podIP="10.0.0.1",
            conditions=[{"type": "Ready", "status": "True"}],
            containerStatuses=[{"name": "rljob", "ready": True, "state": running}],
        )
