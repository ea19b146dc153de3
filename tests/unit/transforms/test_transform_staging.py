"""Where the transforms of a job work, and the orders that can't."""

from __future__ import annotations

from typing import Any

import pytest

from rlruntime.errors import ConfigError
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.transforms.base import SEATS, RolloutView, Transform
from rlruntime.transforms.staging import environment_transforms, split_transforms, with_copy_wrappers

FIXED = {"loc": [0.0], "scale": [1.0]}
SIZE = {"height": 84, "width": 84}


def components(*names: Any) -> list[Component]:
    return [
        Component(type=name) if isinstance(name, str) else Component(type=name[0], config=name[1]) for name in names
    ]


def split(*names: Any, **options: Any) -> tuple[list[str], list[str], list[str]]:
    found = split_transforms(components(*names), **options)
    wrappers = [part.type.partition(":")[2] for part in found.wrappers]
    return wrappers, [p.component.type for p in found.environment], [p.component.type for p in found.policy]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), ([], [], [])),
        (("ObservationNorm", "RewardNorm"), ([], [], ["ObservationNorm", "RewardNorm"])),
        (("FlattenObservation", "ObservationNorm"), ([], [], ["FlattenObservation", "ObservationNorm"])),
        (
            ("GrayScale", ("Resize", SIZE), "CatFrames", "ToFloatImage"),
            ([], ["GrayScale", "Resize", "CatFrames"], ["ToFloatImage"]),
        ),
        (("RewardClipping", "FrameSkip", "CatFrames"), (["FrameSkip"], ["CatFrames"], ["RewardClipping"])),
        (
            (("StepCounter", {"limit": 9}), "ActionScaling", "ObservationNorm"),
            (["StepLimit"], ["StepCounter", "ActionScaling"], ["ObservationNorm"]),
        ),
        ((("ObservationNorm", FIXED), "CatFrames"), ([], ["ObservationNorm", "CatFrames"], [])),
        (("RewardSum", "RewardNorm"), ([], ["RewardSum"], ["RewardNorm"])),
        (("NoopReset", "FrameSkip", "EndOfLife"), (["NoopReset", "FrameSkip", "EndOfLife"], [], [])),
        (
            (("ModuleTransform", {"factory": "torch.nn:Identity"}),),
            ([], [], ["ModuleTransform"]),
        ),
        (
            (
                "FlattenObservation",
                ("ModuleTransform", {"factory": "torch.nn:Identity", "inverse": True, "shape": [1]}),
            ),
            ([], ["FlattenObservation", "ModuleTransform"], []),
        ),
    ],
)
def test_list_is_cut_behind_the_last_that_needs_the_environment(names: Any, expected: Any) -> None:
    assert split(*names) == expected


class Squared(Transform):
    """A transform of a user's own."""


class Counting(Squared):
    """One with statistics."""

    def update(self, rollout: RolloutView) -> None:
        raise NotImplementedError


def test_own_transform_may_sit_anywhere_unless_its_statistics_move() -> None:
    assert Squared.seats == frozenset(SEATS)
    assert Counting.seats == {"policy", "rollout", "read"}


def test_places_in_the_list_are_kept_for_errors() -> None:
    found = split_transforms(components("RewardClipping", "CatFrames", "ObservationNorm"))
    assert [(part.place, part.field) for part in found.environment] == [(1, "spec.training.env.transforms[1]")]
    assert [part.place for part in found.policy] == [0, 2]


def test_evaluations_leave_out_what_serves_training_alone() -> None:
    names = ("FrameSkip", "EndOfLife", ("RandomTruncation", {"probability": 0.1}), "CatFrames")
    assert split(*names, evaluation=True) == (["FrameSkip"], ["CatFrames"], [])


def test_transforms_of_the_environments_are_known_without_building_them() -> None:
    parts = components("RewardClipping", "FrameSkip", "FlattenObservation", "CatFrames", "ObservationNorm")
    names = [part.type for part in environment_transforms(parts)]
    assert names == ["FrameSkip", "FlattenObservation", "CatFrames"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("ObservationNorm", "CatFrames"),
            r"^spec.training.env.transforms\[0\]: ObservationNorm is a part of the policy, and CatFrames works in the "
            r"environment \(got 'ObservationNorm'\); put it after CatFrames$",
        ),
        (
            ("CatFrames", "FrameSkip"),
            r"^spec.training.env.transforms\[1\]: FrameSkip works within each copy, before CatFrames "
            r"\(got 'FrameSkip'\); put it before CatFrames$",
        ),
        (
            ("RewardClipping", "RewardSum"),
            r"^spec.training.env.transforms\[0\]: RewardClipping works on finished rollouts, after RewardSum, which "
            r"sees the environment's rewards \(got 'RewardClipping'\); put it after RewardSum$",
        ),
        (
            ("RewardNorm", ("TargetReturn", {"target": 1.0})),
            r"RewardNorm works on finished rollouts, after TargetReturn, .*; put it after TargetReturn$",
        ),
        (
            (("LineariseRewards", {"weights": [1.0]}),),
            r"^spec.training.env.transforms\[0\]: LineariseRewards can't work in an environment .*; use it on the "
            r"write side of a buffer or on the read side of a buffer$",
        ),
        (("CatFrame",), r"^spec.training.env.transforms\[0\].type: there is no transform .* did you mean 'CatFrames'"),
        ((("CatFrames", {"frames": 0}),), r"^spec.training.env.transforms\[0\].config.frames: "),
    ],
)
def test_order_that_can_not_work_is_refused_with_a_remedy(names: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split_transforms(components(*names))


def test_who_steps_single_copies_gets_their_wrappers_alone() -> None:
    transforms = [{"type": "NoopReset", "config": {"maxNoops": 3}}, {"type": "EndOfLife"}, {"type": "ObservationNorm"}]
    document = {"id": "CartPole-v1", "wrappers": [{"type": "ClipAction"}], "transforms": transforms}
    config = EnvConfig.model_validate(document)
    names = [part.type for part in with_copy_wrappers(config).wrappers]
    assert names == ["ClipAction", "rlruntime.transforms.copies:NoopReset", "rlruntime.transforms.copies:EndOfLife"]
    assert with_copy_wrappers(config, evaluation=True).wrappers[-1].config == {"max_noops": 3}
