"""What is learned: the manifest of each case, and what a curve is; imports nothing of RLJob, since peers run it too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

CURVES = Path(__file__).parent / "curves"


@dataclass(frozen=True)
class Case:
    """One learning task.

    Attributes:
        manifest: of RLJob, in ``examples/``.
        overrides: of its fields.
        goal: reward that is asked for; None where a peer's is.
        seeds: how many.
        peer: whether Stable-Baselines3 learns it too, with the same settings.
    """

    manifest: str
    overrides: tuple[str, ...]
    goal: float | None
    seeds: int
    peer: bool = False

    def names(self) -> list[str]:
        """Return who learns it: ``rljob``, and ``sb3`` where a peer is asked for."""
        return ["rljob", "sb3"] if self.peer else ["rljob"]


CASES = {
    "sac-pendulum": Case("02-sac-pendulum.yaml", ("training.evaluation.everyFrames=2000",), -170.0, 3),
    "td3-pendulum": Case(
        "02-sac-pendulum.yaml",
        (
            "training.algorithm=TD3",
            "training.sac=null",
            "training.td3={learningRate: 1e-3, gamma: 0.98, randomFrames: 500}",
            "training.evaluation.everyFrames=2000",
        ),
        -170.0,
        3,
    ),
    "dqn-cartpole": Case("03-dqn-cartpole.yaml", (), 475.0, 3),
    "sac-halfcheetah": Case("04-sac-halfcheetah.yaml", ("training.evaluation.everyFrames=10000",), None, 5, peer=True),
}


@dataclass(frozen=True)
class Curve:
    """Rewards of one run.

    Attributes:
        learner, case, seed: whose.
        frames: at which it was evaluated, the last of them at the end of training.
        rewards: mean of each evaluation.
        confirmed: mean of fresh episodes of the policy that is kept; for a peer the last of ``rewards``.
    """

    learner: str
    case: str
    seed: int
    frames: list[int]
    rewards: list[float]
    confirmed: float

    def write(self) -> None:
        """Write it to where `read` finds it."""
        CURVES.mkdir(exist_ok=True)
        path = curve_path(self.learner, self.case, self.seed)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self)) + "\n")
        temporary.replace(path)


def curve_path(learner: str, case: str, seed: int) -> Path:
    """Return the file of a curve."""
    return CURVES / f"{case}-{learner}-{seed}.json"


def read(learner: str, case: str, seed: int) -> Curve | None:
    """Return the curve that was recorded, or None."""
    path = curve_path(learner, case, seed)
    return Curve(**json.loads(path.read_text())) if path.exists() else None
