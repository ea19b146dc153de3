"""Prints what the recorded curves show, and draws them: ``compare.py [PICTURE]``."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from cases import CASES, Case, Curve, read
from matplotlib.axes import Axes

COLOURS = {"rljob": "#1f5fbf", "sb3": "#d97a1d"}
LABELS = {"rljob": "RLJob", "sb3": "Stable-Baselines3"}
TITLES = {
    "sac-pendulum": "SAC, Pendulum-v1",
    "td3-pendulum": "TD3, Pendulum-v1",
    "dqn-cartpole": "DQN, CartPole-v1",
    "sac-halfcheetah": "SAC, HalfCheetah-v5",
}


def interquartile_mean(values: list[float]) -> float:
    """Return the mean of the middle half; numbers on its edges count in part."""
    ordered, cut = sorted(values), len(values) / 4
    weights = [min(1.0, max(0.0, min(rank + 1 - cut, len(values) - cut - rank))) for rank in range(len(values))]
    return sum(weight * value for weight, value in zip(weights, ordered, strict=True)) / sum(weights)


def pooled_standard_error(one: list[float], other: list[float]) -> float:
    """Return that of the mean of as many runs as ``one`` has, by the spread within both."""
    squares = (len(one) - 1) * statistics.variance(one) + (len(other) - 1) * statistics.variance(other)
    return float((squares / (len(one) + len(other) - 2) / len(one)) ** 0.5)


def curves_of(learner: str, name: str) -> list[Curve]:
    """Return the curves that were recorded of a case."""
    found = (read(learner, name, seed) for seed in range(CASES[name].seeds))
    return [curve for curve in found if curve is not None]


def table() -> str:
    """Return all cases as Markdown; rewards are the last ones of training where there is a peer, else the confirmed."""
    lines = ["| case | learner | seeds | reward of each | interquartile mean | asked |", "|---|---|---|---|---|---|"]
    for name, case in CASES.items():
        for learner in case.names():
            rewards = _rewards(curves_of(learner, name), case)
            if rewards:
                each, mean = ", ".join(f"{reward:,.0f}" for reward in rewards), interquartile_mean(rewards)
                asked = _asked(name, case) if learner == "rljob" else ""
                lines.append(
                    f"| {TITLES[name]} | {LABELS[learner]} | {len(rewards)} | {each} | {mean:,.0f} | {asked} |"
                )
    return "\n".join(lines)


def _rewards(curves: list[Curve], case: Case) -> list[float]:
    return [curve.rewards[-1] if case.peer else curve.confirmed for curve in curves]


def _asked(name: str, case: Case) -> str:
    if case.goal is not None:
        return f"{case.goal:.0f}"
    ours, peers = (_rewards(curves_of(learner, name), case) for learner in ("rljob", "sb3"))
    if len(ours) < 2 or len(peers) < 2:
        return ""
    return f"{interquartile_mean(peers) - pooled_standard_error(ours, peers):,.0f}"


def draw(path: Path) -> None:
    """Draw a panel for each case: thin lines are runs, thick ones their interquartile mean."""
    plt.rcParams.update({"svg.hashsalt": "rljob", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
    for axes, name in zip(panels.flat, CASES, strict=True):
        for learner in CASES[name].names():
            _draw_runs(axes, curves_of(learner, name), learner)
        goal = CASES[name].goal
        if goal is not None:
            axes.axhline(goal, color="#777777", linewidth=1, linestyle="--")
        axes.set(title=TITLES[name], xlabel="frames", ylabel="reward of an evaluation")
        axes.xaxis.set_major_formatter(lambda frames, _: f"{frames / 1000:g}k")
        if CASES[name].peer:
            axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, metadata={"Date": None})


def _draw_runs(axes: Axes, curves: list[Curve], learner: str) -> None:
    for curve in curves:
        axes.plot(curve.frames, curve.rewards, color=COLOURS[learner], linewidth=0.8, alpha=0.45)
    common = sorted(set.intersection(*(set(curve.frames) for curve in curves))) if curves else []
    means = [interquartile_mean([curve.rewards[curve.frames.index(frame)] for curve in curves]) for frame in common]
    axes.plot(common, means, color=COLOURS[learner], linewidth=2, label=LABELS[learner])


def main() -> None:
    """Print the table, and draw the picture where one is named."""
    print(table())
    for path in sys.argv[1:]:
        draw(Path(path))


if __name__ == "__main__":
    main()
