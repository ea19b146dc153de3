"""One case, or more, for each transform: on which environment, with which settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import rlruntime.transforms.builtin  # noqa: F401  (registers them)
from rlruntime.envs.protocol import EnvSpaces
from rlruntime.registry import names_of, resolve
from rlruntime.spec.training.component import Component
from rlruntime.transforms.base import Seat
from rlruntime.transforms.staging import build_transform

FIELD = "spec.training.env.transforms[0]"


@dataclass(frozen=True)
class Case:
    """A transform with settings.

    Attributes:
        name: registered name.
        env: class in `transform_envs` that it is used on.
        config: settings as in the manifest.
        undone: whether it has an inverse.
        reward_shape: of one reward, where it isn't one number.
    """

    name: str
    env: str = "Walker"
    config: dict[str, Any] = field(default_factory=dict)
    undone: bool = False
    reward_shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}-{self.env}"

    @property
    def component(self) -> Component:
        return Component(type=self.name, config=self.config)

    @property
    def seats(self) -> frozenset[Seat]:
        kind = resolve("transform", self.name)
        seats: frozenset[Seat] = kind.seats_of(kind.Config.model_validate(self.config, by_alias=True, by_name=False))
        return seats

    @property
    def within_copies(self) -> bool:
        """Whether a wrapper of each copy does the work."""
        return bool(resolve("transform", self.name).needs_wrapper)

    def build(self, spaces: EnvSpaces) -> Any:
        return build_transform(self.component, spaces, field=FIELD)


CASES = (
    Case("ObservationNorm", undone=True),
    Case("ObservationNorm", "Parts", {"loc": [1.0], "scale": [2.0], "keys": ["arm"]}, undone=True),
    Case("RewardNorm", undone=True),
    Case("FlattenObservation", "Pixels", undone=True),
    Case("FlattenObservation", "Parts", {"keys": ["camera"]}, undone=True),
    Case("CatTensors", "Parts", {"keys": ["speed", "arm"], "outKey": "body"}, undone=True),
    Case("Select", "Parts", {"keys": ["arm", "goal"]}),
    Case("Exclude", "Parts", {"keys": ["camera"]}),
    Case("Rename", "Parts", {"names": {"arm": "joints"}}, undone=True),
    Case("Squeeze", "Parts", {"keys": ["speed"]}, undone=True),
    Case("Unsqueeze", config={"dim": 0}, undone=True),
    Case("Permute", "Pixels", {"dims": [2, 0, 1]}, undone=True),
    Case("DTypeCast", "Pixels", {"dtype": "float32"}, undone=True),
    Case("DTypeCast", "Parts", {"dtype": "int32", "keys": ["arm", "speed"]}, undone=True),
    Case("DoubleToFloat", undone=True),
    Case("Unary", config={"function": "symlog"}),
    Case("Unary", "Parts", {"function": "transform_envs:double", "keys": ["arm"]}),
    Case("ToFloatImage", "Pixels", undone=True),
    Case("ToFloatImage", "Parts", undone=True),
    Case("Resize", "Pixels", {"height": 4, "width": 5}),
    Case("GrayScale", "Pixels"),
    Case("Crop", "Pixels", {"top": 1, "left": 2, "height": 3, "width": 4}),
    Case("CenterCrop", "Parts", {"height": 2, "width": 2}),
    Case("CatFrames", "Pixels", {"frames": 3}),
    Case("CatFrames", "Parts", {"frames": 2, "dim": 0, "keys": ["arm"], "padding": "Zeros"}),
    Case("TimeMaxPool", config={"frames": 2}),
    Case("ActionHistory", config={"length": 2}),
    Case("ActionHistory", "Pixels", {"length": 3}),
    Case("StepCounter"),
    Case("StepCounter", "Choice", {"limit": 2}),
    Case("RewardSum", "Parts"),
    Case("InitTracker"),
    Case("TrajectoryCounter"),
    Case("TargetReturn", config={"target": 10.0}),
    Case("RewardScaling", config={"scale": 0.5, "loc": 1.0}, undone=True),
    Case("RewardClipping"),
    Case("RewardSign"),
    Case("BinarizeReward"),
    Case("RewardToGo", config={"gamma": 0.5}),
    Case("LineariseRewards", config={"weights": [1.0, 2.0]}, reward_shape=(2,)),
    Case("ActionScaling", undone=True),
    Case("ActionDiscretizer", config={"intervals": 3}, undone=True),
    Case("ActionMask", "Parts", {"key": "legal"}),
    Case("FrameSkip", "Pixels", {"frames": 2, "maxPool": 2}),
    Case("NoopReset", config={"maxNoops": 2}),
    Case("EndOfLife", "Lives"),
    Case("RandomTruncation", config={"probability": 0.3}),
    Case("ModuleTransform", config={"factory": "transform_envs:wide_module"}),
    Case(
        "ModuleTransform",
        "Parts",
        {"factory": "transform_envs:wide_module", "kwargs": {"size_in": 2}, "inKeys": ["arm"], "outKeys": ["features"]},
    ),
    Case(
        "ModuleTransform",
        "Walker",
        {"factory": "transform_envs:BoundedActions", "inverse": True, "shape": [1], "low": -1.0, "high": 1.0},
    ),
)


def registered() -> set[str]:
    """Return the names of the transforms that the project brings."""
    return {name for name in names_of("transform") if resolve("transform", name).__module__.startswith("rlruntime.")}
