"""The NetworkPolicy of a job, and the options that say whom it lets in."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reconcile_bench import Bench
from rljob_operator.builders.children import children
from rljob_operator.builders.network import Peers, Reach, network_policy
from rljob_operator.builders.owner import Owner
from rljob_operator.cli import main
from rljob_operator.kube.errors import Forbidden, KubeError
from rljob_operator.kube.resources import PODS, resource_of
from rljob_operator.planner.decide import decide

from rlruntime.spec.manifest import RLJobSpec

MakeSpec = Callable[..., RLJobSpec]
UID = "1b4e28ba-2fa1-4a6b-8c3d-0123456789ab"
POLICIES = resource_of("NetworkPolicy")
OPERATOR = Peers({"kubernetes.io/metadata.name": "rljob-system"}, {"app.kubernetes.io/name": "rljob-operator"})
SCRAPER = Peers({"kubernetes.io/metadata.name": "monitoring"}, {"app.kubernetes.io/name": "prometheus"})
OPERATOR_OPTIONS = [
    "--job-network-policies",
    "--operator-namespace-labels=kubernetes.io/metadata.name=rljob-system",
    "--operator-pod-labels=app.kubernetes.io/name=rljob-operator",
]
MANIFEST = """\
apiVersion: rljob.io/v1alpha1
kind: RLJob
metadata: {name: tiny}
spec:
  training:
    algorithm: PPO
    totalFrames: 1000
    env: {id: CartPole-v1}
"""


def test_pods_of_a_job_reach_each_other_and_operator_and_scraper_reach_its_one_port(
    owner: Owner, make_spec: MakeSpec
) -> None:
    assert network_policy(owner, make_spec(metrics={"port": 8000}), Reach(OPERATOR, SCRAPER)) == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": "ppo-1b4e28ba-network",
            "namespace": "team-a",
            "labels": {
                "app.kubernetes.io/managed-by": "rljob-operator",
                "rljob.io/job-name": "ppo",
                "rljob.io/job-uid": UID,
            },
            "ownerReferences": [
                {
                    "apiVersion": "rljob.io/v1alpha1",
                    "kind": "RLJob",
                    "name": "ppo",
                    "uid": UID,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            "podSelector": {"matchLabels": {"rljob.io/job-uid": UID}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"rljob.io/job-uid": UID}}}]},
                {
                    "from": [
                        {
                            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rljob-system"}},
                            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "rljob-operator"}},
                        },
                        {
                            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
                            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
                        },
                    ],
                    "ports": [{"port": 8000, "protocol": "TCP"}],
                },
            ],
        },
    }


def test_a_port_that_the_manifest_leaves_open_is_the_one_that_pods_serve(owner: Owner, make_spec: MakeSpec) -> None:
    policy = network_policy(owner, make_spec(metrics={"port": 0}), Reach(OPERATOR))
    assert policy["spec"]["ingress"][1]["ports"] == [{"port": 9400, "protocol": "TCP"}]


def test_without_a_scraper_the_operator_alone_is_let_in(owner: Owner, make_spec: MakeSpec) -> None:
    (peer,) = network_policy(owner, make_spec(), Reach(OPERATOR))["spec"]["ingress"][1]["from"]
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "rljob-system"}}


def test_a_scraper_without_labels_of_its_own_is_every_pod_of_its_namespace(owner: Owner, make_spec: MakeSpec) -> None:
    reach = Reach(OPERATOR, Peers({"team": "monitoring"}))
    peer = network_policy(owner, make_spec(), reach)["spec"]["ingress"][1]["from"][1]
    assert peer == {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}


@pytest.mark.parametrize(
    ("reach", "kinds"),
    [
        (None, ["ConfigMap", "Secret", "Service", "Pod"]),
        (Reach(OPERATOR), ["ConfigMap", "Secret", "Service", "NetworkPolicy", "Pod"]),
    ],
    ids=["off", "on"],
)
def test_a_job_has_a_policy_before_its_pods_where_that_is_wanted(
    reach: Reach | None, kinds: list[str], owner: Owner, make_spec: MakeSpec
) -> None:
    built = children(owner, make_spec(), token="t", image="i", nonce="a", reach=reach)
    assert [item["kind"] for item in built] == kinds


def test_the_names_of_all_objects_of_a_job_differ(owner: Owner, make_spec: MakeSpec) -> None:
    storage: dict[str, Any] = {"volumeClaimTemplate": {"spec": {}}}
    built = children(owner, make_spec(storage=storage), token="t", image="i", nonce="a", reach=Reach(OPERATOR))
    names = [item["metadata"]["name"] for item in built]
    assert len(set(names)) == len(names) == 6


def a_bench() -> Bench:
    return Bench(decide=functools.partial(decide, reach=Reach(OPERATOR)))


def test_the_policy_is_created_once_and_before_the_first_pod() -> None:
    bench = a_bench()

    async def story() -> None:
        bench.submit()
        await bench.look()
        bench.watch()
        bench.run_pod("ppo-trainer-0-0")
        await bench.look()

    asyncio.run(story())
    creations = [item for item in bench.kube.writes() if item.startswith("create ") and " events " not in item]
    assert creations[-1] == "create pods ppo-trainer-0-0"
    assert creations.count("create networkpolicies ppo-1b4e28ba-network") == 1


def test_no_pod_is_created_while_the_policy_can_not_be() -> None:
    bench = a_bench()

    def refuse(verb: str, plural: str, name: str) -> KubeError | None:
        refused = verb == "create" and plural == "networkpolicies"
        return Forbidden("create networkpolicies", code=403, message="no such right") if refused else None

    bench.kube.refuse = refuse

    async def story() -> None:
        bench.submit()
        await bench.look()
        await bench.look()

    asyncio.run(story())
    assert bench.kube.names(PODS) == []
    said = bench.condition("PodsReady")
    assert (said["reason"], "no such right" in said["message"]) == ("Forbidden", True)


def test_a_policy_of_a_stranger_is_left_and_no_pod_is_made() -> None:
    bench = a_bench()
    theirs: dict[str, Any] = {
        "kind": "NetworkPolicy",
        "metadata": {"name": "ppo-1b4e28ba-network", "namespace": "team-a"},
        "spec": {"podSelector": {}},
    }
    bench.kube.put(POLICIES, theirs)

    async def story() -> None:
        bench.submit()
        await bench.look()
        await bench.look()

    asyncio.run(story())
    assert bench.condition("PodsReady")["reason"] == "NameTaken"
    assert bench.kube.names(PODS) == []
    assert bench.kube.stored(POLICIES, "ppo-1b4e28ba-network")["spec"] == {"podSelector": {}}


def test_a_plan_shows_the_policy_that_its_options_ask_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(MANIFEST)
    scraper = "--scraper-namespace-labels=team=monitoring,tier=platform"
    assert main(["plan", str(file), "--format", "json", *OPERATOR_OPTIONS, scraper]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    (policy,) = [item for item in items if item["kind"] == "NetworkPolicy"]
    assert policy["metadata"]["name"] == "tiny-00000000-network"
    assert policy["spec"]["ingress"][1]["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rljob-system"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "rljob-operator"}},
        },
        {"namespaceSelector": {"matchLabels": {"team": "monitoring", "tier": "platform"}}},
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (OPERATOR_OPTIONS[1:], "--operator-namespace-labels: says nothing without --job-network-policies"),
        (["--scraper-pod-labels=a=b"], "--scraper-pod-labels: says nothing without --job-network-policies"),
        (OPERATOR_OPTIONS[:1], "--operator-namespace-labels: is missing"),
        (OPERATOR_OPTIONS[:2], "--operator-pod-labels: is missing"),
        ([*OPERATOR_OPTIONS, "--scraper-pod-labels=a=b"], "--scraper-namespace-labels: is missing"),
    ],
)
@pytest.mark.parametrize("command", [["plan", "-"], ["run", "--all-namespaces"]], ids=["plan", "run"])
def test_options_that_say_half_are_refused(
    command: list[str], options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *options]) == 78
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("labels", ["", "a", "a=", "=b", "a=b,", "a=b c", "A/b=c", "a=b;c=d", "a=" + "x" * 64])
def test_labels_that_are_none_are_refused(labels: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", "job.yaml", "--job-network-policies", f"--operator-pod-labels={labels}"])
    assert caught.value.code == 2
    assert "argument --operator-pod-labels: give labels such as" in capsys.readouterr().err
