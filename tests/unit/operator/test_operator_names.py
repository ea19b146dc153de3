"""Names and labels: valid, bounded, and different where they must differ."""

from __future__ import annotations

import re

import pytest
from rljob_operator.builders import names
from rljob_operator.builders.labels import is_ours, job_labels, job_selector, pod_labels
from rljob_operator.builders.owner import Owner, metadata

from rlruntime.spec.contract import hostname
from rlruntime.spec.roles import Role

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # DNS-1035, the strictest of the rules for names
UID = "1b4e28ba-2fa1-4a6b-8c3d-0123456789ab"
LONG = Owner(name="a" * 40, namespace="n", uid=UID)
MAX_ATTEMPT = 2**31 - 1


def test_names_of_a_short_job(owner: Owner) -> None:
    assert names.pod_name(owner, "trainer", 0, 3) == "ppo-trainer-0-3"
    assert names.service_name(owner) == "ppo-1b4e28ba"
    assert names.spec_name(owner) == "ppo-1b4e28ba-spec"
    assert names.token_name(owner, "a1b2c") == "ppo-1b4e28ba-token-a1b2c"
    assert names.claim_name(owner) == "ppo-1b4e28ba-storage"


def test_names_at_their_longest_are_valid_dns_labels() -> None:
    found = [
        names.pod_name(LONG, "b" * 40, 4095, MAX_ATTEMPT),
        names.service_name(LONG),
        names.spec_name(LONG),
        names.token_name(LONG, "a1b2c"),
        names.claim_name(LONG),
        hostname("b" * 40, 4095),
    ]
    assert [len(name) for name in found] == [63, 49, 54, 61, 57, 45]
    assert all(LABEL.fullmatch(name) for name in found)


def test_long_pod_name_is_cut_and_hashed() -> None:
    assert names.pod_name(LONG, "trainer-of-one-job", 0, 0) == f"{'a' * 38}-6dbda9af-0-0"


def test_cut_never_doubles_the_hyphen() -> None:
    owner = Owner(name=f"{'a' * 37}-b", namespace="n", uid=UID)
    assert re.fullmatch(r"a{37}-[0-9a-f]{8}-1-2", names.pod_name(owner, "role-of-ten", 1, 2))


def test_long_names_that_are_cut_alike_differ() -> None:
    roles = ["b" * 39 + end for end in "xyz"]
    assert len({names.pod_name(LONG, role, 0, 0) for role in roles}) == 3


def test_longest_name_kept_whole_has_47_characters_before_the_numbers() -> None:
    owner = Owner(name="a" * 40, namespace="n", uid=UID)
    assert names.pod_name(owner, "bcdefg", 0, 0) == f"{'a' * 40}-bcdefg-0-0"


def test_pods_of_one_job_have_different_names_whatever_the_roles_are_called(owner: Owner) -> None:
    places = [(role, i, a) for role in ("a", "a-0", "a-0-0", "a-1") for i in range(3) for a in range(3)]
    assert len({names.pod_name(owner, *place) for place in places}) == len(places)


def test_jobs_of_one_name_share_no_name_but_those_of_pods(owner: Owner) -> None:
    other = Owner(owner.name, owner.namespace, "2c4e28ba-2fa1-4a6b-8c3d-0123456789ab")
    for name in (names.service_name, names.spec_name, names.claim_name):
        assert name(owner) != name(other)
    assert names.token_name(owner, "a1b2c") != names.token_name(other, "a1b2c")


def test_labels_say_job_role_and_place(owner: Owner) -> None:
    role = Role(name="engine", type="Inference")
    assert pod_labels(owner, role, 4, 1) == {
        "app.kubernetes.io/managed-by": "rljob-operator",
        "rljob.io/job-name": "ppo",
        "rljob.io/job-uid": UID,
        "rljob.io/role": "engine",
        "rljob.io/role-type": "Inference",
        "rljob.io/index": "4",
        "rljob.io/attempt": "1",
    }
    assert job_selector(owner) == {"rljob.io/job-uid": UID}
    assert job_labels(owner).items() <= pod_labels(owner, role, 0, 0).items()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("rljob.io/role", True),
        ("rljob.io/anything", True),
        ("app.kubernetes.io/managed-by", True),
        ("app.kubernetes.io/name", False),
        ("team", False),
        ("notrljob.io/role", False),
    ],
)
def test_own_labels_are_told_from_the_users(key: str, expected: bool) -> None:
    assert is_ours(key) is expected


def test_owner_never_holds_up_the_deletion_of_its_job(owner: Owner) -> None:
    assert metadata(owner, "x", {"a": "b"}) == {
        "name": "x",
        "namespace": "team-a",
        "labels": {"a": "b"},
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
    }
