"""A job at which nobody will look again has nothing left to be done.

Each sequence draws a job and what happens to it from its seed. The job is looked at only when something about it was
news to the cache, or when the last pass asked for it, as by the queue. Once all is quiet, an operator that starts anew
finds nothing to do: whatever it found, the first one would have left undone for ever.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fake_kube import FakeKube
from reconcile_bench import NAMESPACE, Bench, job_document
from rljob_operator.builders.owner import KubeObject
from rljob_operator.kube.client import Propagation
from rljob_operator.kube.errors import Conflict, Forbidden, KubeError, NetworkError, ServerError, TooManyRequests
from rljob_operator.kube.resources import PODS, RLJOBS, Resource

SEQUENCES, CHUNKS = 240, 8
QUIET_STEPS = 600
ENDED = ("Succeeded", "Failed")
ROLES: tuple[tuple[list[KubeObject], KubeObject], ...] = (
    ([{"name": "trainer", "type": "Trainer"}], {}),
    ([{"name": "trainer", "type": "Trainer", "replicas": 2}], {}),
    (
        [
            {"name": "trainer", "type": "Trainer"},
            {"name": "engine", "type": "Inference"},
            {"name": "collector", "type": "Collector"},
        ],
        {"elastic": {"role": "collector", "replicas": 2, "minReplicas": 0}},
    ),
)


class Kube(FakeKube):
    """Gives a pod that runs on a node half a minute to end, by the test's clock."""

    time: Callable[[float], str]

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: Propagation = "Background",
    ) -> KubeObject:
        """Delete the object, or have its node end it."""
        item = self.objects.get((resource.plural, namespace, name), {})
        stays = item.get("spec", {}).get("nodeName") and item.get("status", {}).get("phase") not in ENDED
        if resource is not PODS or not stays or grace_s == 0 or item["metadata"]["uid"] != uid:
            guard = {"uid": uid, "resource_version": resource_version, "grace_s": 0}
            return await super().delete(resource, namespace, name, **guard)  # type: ignore[arg-type]
        self._begin("delete", resource, name)
        if "deletionTimestamp" not in item["metadata"]:
            item["metadata"] |= {"deletionTimestamp": self.time(30.0), "deletionGracePeriodSeconds": 30}
            self.put(PODS, item)
        return self._end("delete", resource, name, {"metadata": copy.deepcopy(item["metadata"])})


class Sequence:
    """One job, and an operator that comes back to it only when it has reason to."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kube = Kube()
        self.kube.refuse, self.kube.lose = self.refuse, lambda *_: self.rng.random() < self.trouble / 2
        self.bench = Bench(kube=self.kube, seconds=0.0)
        self.kube.time = self.time
        self.trouble = 0.0
        self.lost: set[str] = set()
        """Nodes that don't answer."""
        self.due: float | None = 0.0
        """When the job is to be looked at."""
        roles, more = self.rng.choice(ROLES)
        self.kube.put(RLJOBS, job_document(roles=roles, runPolicy=self.policy(), **copy.deepcopy(more)))

    def policy(self) -> KubeObject:
        rng = self.rng
        policy: KubeObject = {
            "suspend": rng.random() < 0.1,
            "backoffLimit": rng.choice((0, 3, 10)),
            "disruptionLimit": rng.choice((0, 20, 20)),
            "cleanPodPolicy": rng.choice(("Running", "All", "None")),
            "activeDeadlineSeconds": rng.choice((None, None, None, 900)),
            "preRunningDeadlineSeconds": rng.choice((None, None, None, 900)),
            "ttlSecondsAfterFinished": rng.choice((None, None, None, 0, 60)),
        }
        return {name: value for name, value in policy.items() if value is not None}

    def time(self, after_s: float = 0.0) -> str:
        return (self.bench.now() + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def refuse(self, verb: str, plural: str, name: str) -> KubeError | None:
        if self.rng.random() >= self.trouble:
            return None
        quota = Forbidden(verb, code=403, message="exceeded quota") if verb == "create" else ServerError(verb, code=503)
        busy = TooManyRequests(verb, code=429)
        return self.rng.choice((NetworkError(verb), ServerError(verb, code=500), Conflict(verb, code=409), quota, busy))

    async def run(self) -> None:
        """Deal the blows, wait until nobody will look again, and look with other eyes."""
        trouble = self.rng.choice((0.0, 0.0, 0.05, 0.25))
        for _ in range(self.rng.randint(0, 40)):
            self.bench.seconds += self.rng.choice((0.0, 0.0, 0.1, 1.0, 5.0, 40.0, 700.0))
            await self.blow()
            self.trouble = trouble
            await self.watch()
            self.trouble = 0.0
        if self.rng.random() < 0.5:
            self.lost = set()
        await self.settle()
        if self.rng.random() < 0.5:  # once more, when a blow can't be lost among others
            await self.lose()
            await self.watch()
            await self.edit()
            await self.watch()
            await self.settle()
        writes = len(self.kube.writes())
        self.bench.start()
        self.bench.watch()
        await self.look()
        await self.settle()
        assert self.kube.writes()[writes:] == [], "something was left undone"
        if self.job is not None:
            assert self.bench.status()["phase"] in ("Running", "Suspended", *ENDED)

    async def watch(self) -> None:
        """Let the watches speak, mostly, and the operator look where it has reason to."""
        if self.rng.random() < 0.8 and self.deliver():
            self.due = self.bench.seconds
        if self.due is not None and self.due <= self.bench.seconds:
            await self.look()

    async def settle(self) -> None:
        for _ in range(QUIET_STEPS):
            await self.lose_pods()
            moved = [self.get_on(name) for name in self.kube.names(PODS)]
            if self.deliver():
                await self.look()
            elif self.due is not None:
                self.bench.seconds = max(self.bench.seconds, self.due)
                await self.look()
            elif not any(moved):
                return
        raise AssertionError("it doesn't come to rest")

    async def look(self) -> None:
        bench = self.bench
        bench.delays.clear()
        bench.added.clear()
        try:
            wait_s = await bench.look()
        except KubeError:
            wait_s = 0.2
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the events of pods are read beside the pass
        waits = [item for item in (wait_s, *bench.delays, 0.0 if bench.added else None) if item is not None]
        self.due = bench.seconds + min(waits) if waits else None

    def deliver(self) -> bool:
        """Let the watches speak, of some things only while there is trouble; return whether anything was news."""
        cache, news = self.bench.cache, False
        uids = {item["metadata"]["uid"] for item in self.kube.objects.values()}
        for (plural, _, _), item in list(self.kube.objects.items()):
            if plural in (RLJOBS.plural, PODS.plural) and self.is_told():
                apply = cache.apply_job if plural == RLJOBS.plural else cache.apply_pod
                news |= apply(copy.deepcopy(item)) is not None
        for view in list(cache.pod_views()):
            if view.pod.uid not in uids and self.is_told():
                news |= cache.remove_pod(view.job_uid, view.pod.uid) is not None
        for job in list(cache.jobs()):
            if job.owner.uid not in uids and self.is_told():
                news |= cache.remove_job(job.owner.uid) is not None
        return news

    def is_told(self) -> bool:
        return self.trouble == 0.0 or self.rng.random() < 0.7

    # What happens to the job.

    @property
    def job(self) -> KubeObject | None:
        return self.kube.objects.get((RLJOBS.plural, NAMESPACE, "ppo"))

    async def blow(self) -> None:
        blows = ((7, self.live), (3, self.end), (2, self.remove), (1, self.lose), (4, self.edit), (1, self.crash))
        weights, deals = zip(*blows, strict=True)
        await self.rng.choices(deals, weights)[0]()

    async def live(self) -> None:
        for name in self.some_pod():
            self.get_on(name)

    async def end(self) -> None:
        for name in self.some_pod():
            pod = self.kube.stored(PODS, name)
            if pod.get("status", {}).get("phase") == "Running" and pod["spec"]["nodeName"] not in self.lost:
                self.finish(name, self.rng.choice((1, 1, 75, 75, 137, 143, 0)))

    async def remove(self) -> None:
        for name in self.some_pod():
            uid = self.kube.stored(PODS, name)["metadata"]["uid"]
            await self.kube.delete(PODS, NAMESPACE, name, uid=uid, grace_s=self.rng.choice((None, None, 0)))

    async def lose(self) -> None:
        """A node is lost, or comes back; what Kubernetes says first is that its pods aren't ready."""
        self.lost ^= {self.rng.choice("ab")}
        for name in self.kube.names(PODS):
            pod = self.kube.stored(PODS, name)
            if pod["spec"].get("nodeName") in self.lost and pod.get("status", {}).get("phase") == "Running":
                self.say(name, conditions=[{"type": "Ready", "status": "False"}])

    async def lose_pods(self) -> None:
        """The pods of lost nodes are deleted; their objects stay."""
        for name in self.kube.names(PODS):
            pod = self.kube.stored(PODS, name)
            about, phase = pod["metadata"], pod.get("status", {}).get("phase")
            if pod["spec"].get("nodeName") in self.lost and "deletionTimestamp" not in about and phase not in ENDED:
                await self.kube.delete(PODS, NAMESPACE, name, uid=about["uid"])

    async def edit(self) -> None:
        """Somebody suspends, resumes, scales or labels the job."""
        if self.job is None:
            return
        job = copy.deepcopy(self.job)
        spec, about = job["spec"], job["metadata"]
        what = self.rng.choice(("suspend", "scale", "label"))
        if what == "label":
            about["labels"] = {"number": str(self.rng.random())}
        elif what == "scale" and "elastic" in spec:
            spec["elastic"]["replicas"] = self.rng.randint(0, 3)
            about["generation"] += 1
        elif what == "suspend":
            spec["runPolicy"]["suspend"] = not spec["runPolicy"]["suspend"]
            about["generation"] += 1
        self.kube.put(RLJOBS, job)

    async def crash(self) -> None:
        self.bench.start()
        self.due = self.bench.seconds

    def some_pod(self) -> list[str]:
        names = self.kube.names(PODS)
        return [self.rng.choice(names)] if names else []

    # What nodes do.

    def get_on(self, name: str) -> bool:
        """Let a pod take its next step; return whether there was one."""
        pod = self.kube.stored(PODS, name)
        node, status = pod["spec"].get("nodeName"), pod.get("status", {})
        if node in self.lost:
            return False
        if "deletionTimestamp" in pod["metadata"]:
            if status.get("phase") == "Running" and self.rng.random() < 0.5:
                self.finish(name, 143)
            else:
                del self.kube.objects[PODS.plural, NAMESPACE, name]
        elif status.get("phase") in ENDED:
            return False
        elif not node:
            pod["spec"]["nodeName"] = self.rng.choice([item for item in "ab" if item not in self.lost] or ["c"])
            self.kube.put(PODS, pod)
        elif status.get("conditions", [{}])[0].get("status") != "True":
            running = [{"name": "rljob", "state": {"running": {}}}]
            ready = [{"type": "Ready", "status": "True"}]
            self.say(name, phase="Running", conditions=ready, containerStatuses=running)
        else:
            return False
        return True

    def finish(self, name: str, code: int) -> None:
        reason = "Error" if code else "Completed"
        state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": self.time()}}
        phase, ready = "Failed" if code else "Succeeded", [{"type": "Ready", "status": "False"}]
        self.say(name, phase=phase, conditions=ready, containerStatuses=[{"name": "rljob", "state": state}])

    def say(self, name: str, **status: Any) -> None:
        pod = self.kube.stored(PODS, name)
        self.kube.put(PODS, {**pod, "status": {**pod.get("status", {}), **status}})


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nothing_is_left_undone_for_ever(chunk: int) -> None:
    for seed in range(chunk * SEQUENCES // CHUNKS, (chunk + 1) * SEQUENCES // CHUNKS):
        try:
            asyncio.run(Sequence(seed).run())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
