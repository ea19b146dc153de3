"""Whatever happens to a job, in whatever order its operator learns of it, what it was promised holds.

Each sequence draws a job and a series of blows from its seed: pods that become ready, end in every way, are deleted,
evicted or lost with their node; a user who suspends, resumes, scales and deletes; an operator whose cache lags, whose
writes get lost or are answered by nothing, and which crashes between any two of them; a clock that jumps. What may
never be seen is checked by the world at each write; here, that all comes to rest, and at the right place.
"""

from __future__ import annotations

import random
from datetime import timedelta
from functools import cache

import pytest
from planner_operator import Operator
from planner_world import TERMINAL, World
from rljob_operator.planner.plan import Plan
from rljob_operator.planner.seen import parse_ranges

from rlruntime.spec.loader import parse_manifest
from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.status import RestartsStatus

SEQUENCES = 10_000
CHUNKS = 20
STEPS = 44
CALM_PASSES, CALM_START = 200, 12
NODES = ("node-a", "node-b")

TRAINER: dict[str, object] = {"name": "trainer", "type": "Trainer"}
ROLES: tuple[tuple[list[dict[str, object]], dict[str, object] | None], ...] = (
    ([TRAINER], None),
    ([{**TRAINER, "replicas": 2}], None),
    (
        [TRAINER, {"name": "engine", "type": "Inference"}, {"name": "collector", "type": "Collector"}],
        {"role": "collector", "replicas": 2, "minReplicas": 0, "maxReplicas": 3},
    ),
    (
        [{**TRAINER, "replicas": 2}, {"name": "reward", "type": "Service", "entrypoint": "a:b"}],
        None,
    ),
)


@cache
def base(number: int) -> RLJobSpec:
    """Return the spec with the roles of this number."""
    roles, elastic = ROLES[number]
    spec = {
        "training": {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}},
        "roles": roles,
        **({"elastic": elastic} if elastic else {}),
    }
    document = {"apiVersion": "rljob.io/v1alpha1", "kind": "RLJob", "metadata": {"name": "ppo"}, "spec": spec}
    return parse_manifest(document, "job.yaml").spec


def drawn_spec(rng: random.Random) -> RLJobSpec:
    """Return a job to maltreat."""
    spec = base(rng.randrange(len(ROLES)))
    policy = spec.run_policy.model_copy(
        update={
            "suspend": rng.random() < 0.1,
            "backoff_limit": rng.choice((0, 1, 3, 10)),
            "disruption_limit": rng.choice((0, 2, 20, 20)),
            "clean_pod_policy": rng.choice(("Running", "All", "None")),
            "active_deadline_seconds": rng.choice((None, None, None, 900)),
            "pre_running_deadline_seconds": rng.choice((None, None, None, 900)),
            "ttl_seconds_after_finished": rng.choice((None, None, 0, 60)),
        }
    )
    return spec.model_copy(update={"run_policy": policy})


class Sequence:
    """One job, from its creation to where it comes to rest."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(drawn_spec(self.rng))
        self.operator = Operator(self.world, self.rng)
        self.trouble = self.rng.choice((0.0, 0.05, 0.25))
        self.operator.remembers = self.rng.random() < 0.7
        self.trace: list[tuple[object, ...]] = []
        self.done = self.rng.random() < 0.5
        """The trainer finishes its work once it is left in peace."""

    def run(self) -> None:
        """Deal the blows, then wait for rest, and look at what is left."""
        blows = (
            (30, self.deliver), (30, self.operate), (30, self.live), (16, self.hurt), (3, self.tick), (1, self.suspend),
            (5, self.scale), (3, self.kill), (1, self.crash), (1, self.lose_node), (1, self.quota), (0.2, self.remove),
        )  # fmt: skip
        if self.rng.random() < 0.5:
            self.settle(CALM_START)
        self.operator.trouble = self.trouble
        weights, deals = zip(*blows, strict=True)
        for blow in self.rng.choices(deals, weights, k=self.rng.randint(4, STEPS)):
            blow()
        self.operator.trouble, self.operator.refuses = 0.0, False
        self.settle()
        self.check_rest()
        if self.done and self.world.job is not None and self.world.job.status.phase == "Running":
            self.finish()

    # Blows.

    def deliver(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            if self.world.events:
                self.operator.deliver(self.rng.choice(list(self.world.events)), twice=self.rng.random() < 0.1)

    def operate(self) -> None:
        plan = self.operator.step()
        self.note("pass", plan and _brief(plan))

    def live(self) -> None:
        """Let nodes get on with some pod."""
        for name in self.some_pods(3):
            if name in self.world.pods:
                self.get_on(name)

    def get_on(self, name: str) -> bool:
        pod = self.world.pods[name].pod
        if pod.node in self.world.lost_nodes or (pod.phase in TERMINAL and pod.deletion_at is None):
            return False
        if pod.deletion_at is not None:
            if pod.phase in TERMINAL or not pod.started:
                self.world.remove(name)
            else:
                self.world.end(name, self.rng.choice((0, 75, 143, 137)))
        elif not pod.node:
            self.world.update(name, node=self.rng.choice([n for n in NODES if n not in self.world.lost_nodes] or ["c"]))
        elif not pod.started:
            self.world.update(name, started=True, phase="Running", ready=self.rng.random() < 0.5)
        elif not pod.ready:
            self.world.update(name, ready=True)
        else:
            return False
        self.note("node", name, self.world.pods.get(name))
        return True

    def hurt(self) -> None:
        """Let a pod end in one of the ways in which pods end."""
        for name in self.some_pods(1):
            pod = self.world.pods[name].pod
            if pod.phase in TERMINAL or pod.node in self.world.lost_nodes:
                continue
            if not pod.started:
                self.fail(name)
            else:
                self.end(name)
            self.note("hurt", name, self.world.pods.get(name))

    def fail(self, name: str) -> None:
        if self.rng.random() < 0.5:
            self.world.fail(name, "Disruption", reason=self.rng.choice(("Evicted", "OutOfcpu", "NodeShutdown")))
        else:
            self.world.fail(name, "Fault", reason="")

    def end(self, name: str) -> None:
        code = self.rng.choice(
            (1, 1, 1, 75, 75, 137, 143, 130, 0, 78) if self.rng.random() < 0.3 else (1, 75, 137, 143)
        )
        reason = "OOMKilled" if code == 137 and self.rng.random() < 0.5 else "Error"
        taken = {"disruption": "EvictionByEvictionAPI"} if code in (143, 1) and self.rng.random() < 0.2 else {}
        self.world.end(name, code, reason, **taken)

    def tick(self) -> None:
        self.world.now += timedelta(seconds=self.rng.choice((1, 1, 2, 5, 30, 700, 90_000)))
        self.note("clock", self.world.now)

    def suspend(self) -> None:
        if self.world.job is not None:
            spec = self.world.job.spec
            policy = spec.run_policy.model_copy(update={"suspend": not spec.run_policy.suspend})
            self.world.change_spec(spec.model_copy(update={"run_policy": policy}))
            self.note("suspend", policy.suspend)

    def scale(self) -> None:
        if self.world.job is not None and (elastic := self.world.job.spec.elastic) is not None:
            elastic = elastic.model_copy(update={"replicas": self.rng.randint(0, 3)})
            self.world.change_spec(self.world.job.spec.model_copy(update={"elastic": elastic}))
            self.note("scale", elastic.replicas)

    def kill(self) -> None:
        """Delete a pod, as a user or an eviction does, or its object outright."""
        for name in self.some_pods(1):
            grace = 0 if self.rng.random() < 0.4 else None
            self.world.delete(name, self.world.pods[name].pod.uid, grace)
            self.note("delete", name, grace)

    def crash(self) -> None:
        self.operator.start()
        self.note("crash")

    def lose_node(self) -> None:
        self.world.lost_nodes ^= {self.rng.choice(NODES)}
        self.note("lost nodes", set(self.world.lost_nodes))

    def quota(self) -> None:
        self.operator.refuses = not self.operator.refuses
        self.note("quota", self.operator.refuses)

    def remove(self) -> None:
        if self.world.job is not None:
            self.world.delete_job()
            self.note("delete job")

    def some_pods(self, most: int) -> list[str]:
        names = list(self.world.pods)
        return [self.rng.choice(names) for _ in range(most)][: len(names)] if names else []

    # Peace.

    def settle(self, passes: int = CALM_PASSES) -> None:
        """Let all come to rest: nothing is lost any more, and time passes only when the operator waits for it."""
        for _ in range(passes):
            moved = self.calm_nodes()
            self.operator.deliver_all()
            plan = self.operator.step()
            self.note("calm pass", plan and _brief(plan))
            if self.operator.job is None and not self.world.events:
                return
            if moved or plan is None or _acts(plan):
                continue
            if plan.requeue_after_s is None or passes == CALM_START:
                return
            self.world.now += timedelta(seconds=plan.requeue_after_s)
        assert passes == CALM_START, "it doesn't come to rest"

    def calm_nodes(self) -> bool:
        """Let every pod get on; those on a lost node are marked for deletion, as Kubernetes does, and stay."""
        moved = False
        for name in list(self.world.pods):
            if name not in self.world.pods:
                continue
            pod = self.world.pods[name].pod
            if pod.node in self.world.lost_nodes:
                if pod.deletion_at is None and pod.phase not in TERMINAL:
                    self.world.update(name, disruption="DeletionByTaintManager")
                    self.world.delete(name, pod.uid)
                    moved = True
            else:
                moved |= self.get_on(name)
        return moved

    def finish(self) -> None:
        """The trainer does its work; the job succeeds, whatever it went through."""
        self.world.end(f"ppo-trainer-0-{self.world.job.status.attempt}", 0, "Completed")  # type: ignore[union-attr]
        self.settle()
        if self.world.job is not None:
            assert self.world.job.status.phase == "Succeeded"
            self.check_rest()

    def check_rest(self) -> None:
        """Look at what there is when nothing happens any more."""
        world = self.world
        if world.job is None:
            return
        status, policy = world.job.status, world.job.spec.run_policy
        if world.finished:
            left = [held.pod.phase for held in world.pods.values()]
            if policy.clean_pod_policy == "All":
                assert left == []
            elif policy.clean_pod_policy == "Running":
                assert set(left) <= set(TERMINAL)
            assert policy.ttl_seconds_after_finished is None, "it should be deleted by now"
            self.check_failure()
        elif policy.suspend:
            assert status.phase == "Suspended"
            assert not world.pods
        else:
            self.check_running()
        self.check_silence()

    def check_failure(self) -> None:
        assert self.world.job is not None
        status, policy = self.world.job.status, self.world.job.spec.run_policy
        restarts = status.restarts or RestartsStatus()
        if status.reason == "BackoffLimitExceeded":
            assert restarts.faults > policy.backoff_limit
        elif status.reason == "DisruptionLimitExceeded":
            assert restarts.disruptions > policy.disruption_limit
        elif status.reason == "ConfigInvalid":
            assert self.world.permanent
        else:
            assert status.reason in ("Completed", "DeadlineExceeded", "PreRunningDeadlineExceeded")

    def check_running(self) -> None:
        world = self.world
        assert world.job is not None
        status, policy = world.job.status, world.job.spec.run_policy
        assert status.phase == "Running", f"{status.phase}: {status.message}"
        assert policy.active_deadline_seconds is None, "its deadline has passed by now"
        spent = status.restarts or RestartsStatus()
        assert spent.faults <= policy.backoff_limit
        assert spent.disruptions <= policy.disruption_limit
        wanted = {(role.name, index) for role in world.job.spec.roles for index in range(world.wanted(role.name))}
        found = {held.pod.slot: held.pod for held in world.pods.values()}
        done = {(role.name, index) for role in status.roles for index in parse_ranges(role.done)}
        assert wanted - done <= set(found) <= wanted
        for slot, pod in found.items():
            assert pod.attempt == world.attempt_of(*slot)
            assert pod.ready or pod.end is not None
        for incident in world.incidents:
            role, index, attempt = incident.key
            if incident.required and incident.known:
                assert attempt != world.attempt_of(role, max(index, 0)), f"{incident} is forgotten"

    def check_silence(self) -> None:
        """Neither a later look, nor one with an empty memory, finds anything to do."""
        for restart in (False, True):
            if restart:
                self.operator.start()
            self.world.now += timedelta(hours=1)
            job = self.operator.job
            if job is None:
                return
            before = self.world.version
            plan = self.operator.step()
            assert plan is None or not _acts(plan), f"something is done at rest: {_brief(plan)}"
            assert self.world.version == before

    def note(self, *what: object) -> None:
        self.trace.append(what)


def _acts(plan: Plan) -> bool:
    return bool(plan.write != "None" or plan.dry_runs or plan.deletes or plan.creates or plan.delete_job)


def _brief(plan: Plan) -> str:
    restarts = plan.status.restarts
    return (
        f"{plan.write} {plan.status.phase} attempt={plan.status.attempt} slots={restarts.slots if restarts else {}}"
        f" faults={restarts.faults if restarts else 0} disruptions={restarts.disruptions if restarts else 0}"
        f" deletes={[item.name for item in plan.deletes]} creates={[i['metadata']['name'] for i in plan.creates]}"
        f" dry={len(plan.dry_runs)} after={plan.requeue_after_s}"
    )


def replay(seed: int) -> None:
    """Run one sequence; where it fails, say how it got there."""
    sequence = Sequence(seed)
    try:
        sequence.run()
    except Exception as error:
        spec = sequence.world.spec
        steps = "\n".join(" ".join(map(str, step)) for step in sequence.trace)
        raise AssertionError(f"seed {seed}: {error!r}\n{spec.run_policy}\n{steps}") from error


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_job_keeps_its_promises_through_any_series_of_blows(chunk: int) -> None:
    size = SEQUENCES // CHUNKS
    for seed in range(chunk * size, (chunk + 1) * size):
        replay(seed)
