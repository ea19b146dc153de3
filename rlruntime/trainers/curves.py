"""The picture of a run: reward, what the learner says of itself, and where the time went, over frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlruntime.errors import MissingExtraError
from rlruntime.metrics import names
from rlruntime.trainers.durable import storage_errors
from rlruntime.trainers.loggers import read_records

_TRAIN, _EVALUATION, _GRID, _TEXT, _GOAL = "#4c78a8", "#e4572e", "#e6e6e6", "#333333", "#7a7a7a"
_LINES = ("#4c78a8", "#f2a541", "#54a24b", "#b279a2", "#9d755d", "#72b7b2")
_MAX_MARKERS = 40
_MAX_SERIES = 3
_MAX_TIME_BINS = 40
_LABELS = {"approx_kl": "KL"}

Record = Mapping[str, Any]


def plot_curves(
    records: Sequence[Record] | Path, outputs: Sequence[Path], *, title: str = "", goal_reward: float | None = None
) -> bool:
    """Draw the curves of a run into files; the ending of each (``.png``, ``.svg``) says the format.

    Args:
        records: what the loggers got, or the ``metrics.jsonl`` that holds it.
        outputs: files to write.
        title: shown above.
        goal_reward: drawn as a line, when given.

    Returns:
        False when there is nothing to draw yet; no file is written then.

    Raises:
        MissingExtraError: matplotlib isn't installed.
        StorageError: a file can't be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing curves", package="matplotlib", extra="rljob[runtime]") from None
    rows = read_records(records) if isinstance(records, Path) else records
    if not any(names.FRAMES in row for row in rows):
        return False
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 9, "svg.hashsalt": "rljob", "text.color": _TEXT}):
        figure = Figure(figsize=(10, 5.6), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.subplot_mosaic(
            [["reward", "losses"], ["reward", "policy"], ["reward", "time"]], width_ratios=[3, 2]
        )
        _plot_reward(axes["reward"], rows, goal_reward)
        _plot_lines(axes["losses"], rows, "loss/", " loss")
        _plot_lines(axes["policy"], rows, "policy/", "")
        _plot_time(axes["time"], rows)
        for name, axis in axes.items():
            _style(axis, name)
        if title:
            figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
        for output in outputs:
            metadata = {"Date": None} if output.suffix == ".svg" else {}
            with storage_errors("write", output):
                figure.savefig(output, dpi=130, metadata=metadata)
    return True


def _series(rows: Sequence[Record], key: str) -> tuple[list[float], list[float]]:
    """Return frames and values of the rows that have the key and a number in it."""
    points = [(row[names.FRAMES], row[key]) for row in rows if names.FRAMES in row and row.get(key) is not None]
    return [float(x) for x, _ in points], [float(y) for _, y in points]


def _as_evaluated(row: Record) -> Record:
    """Return a record at the frames of what was evaluated, where training went on meanwhile."""
    frames = row.get(names.EVALUATION_FRAMES)
    return row if frames is None else {**row, names.FRAMES: frames}


def _plot_reward(axis: Any, rows: Sequence[Record], goal_reward: float | None) -> None:
    frames, rewards = _series(rows, names.EPISODE_REWARD_MEAN)
    if frames:
        axis.plot(frames, rewards, color=_TRAIN, linewidth=1.4, label="training", **_markers(frames))
    frames, rewards = _series([_as_evaluated(row) for row in rows], names.EVALUATION_REWARD_MEAN)
    if frames:
        _, spread = _series(rows, names.EVALUATION_REWARD_STD)
        errors = spread if len(spread) == len(frames) else None
        axis.errorbar(
            frames, rewards, yerr=errors, color=_EVALUATION, marker="o", markersize=5, linewidth=1.2,
            elinewidth=1.0, capsize=3, label="evaluation, ± 1 standard deviation" if errors else "evaluation",
        )  # fmt: skip
    if goal_reward is not None:
        axis.axhline(goal_reward, color=_GOAL, linestyle=(0, (5, 3)), linewidth=1.0, label=f"goal: {goal_reward:g}")
    axis.set_ylabel("episode reward")
    axis.set_xlabel("frames")


def _plot_lines(axis: Any, rows: Sequence[Record], prefix: str, ending: str) -> None:
    """Draw the first few fields with the prefix: the first on a scale at the left, the others on one at the right."""
    keys = list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))
    drawn = []
    for key in keys[:_MAX_SERIES]:
        name = key.removeprefix(prefix)
        drawn.append((_LABELS.get(name, name.replace("_", " ")) + ending, *_series(rows, key)))
    drawn = [entry for entry in drawn if entry[1]]
    target = axis
    handles = []
    for index, (label, frames, values) in enumerate(drawn):
        if index == 1:
            target = axis.twinx()
            _style(target, "right")
        colour = _LINES[index]
        handles += target.plot(frames, values, color=colour, linewidth=1.1, label=label, **_markers(frames))
    if handles:
        side = len(handles) > 1
        labels = [f"{h.get_label()}{' (right)' if side and index else ''}" for index, h in enumerate(handles)]
        _legend(axis, handles, labels)


def _plot_time(axis: Any, rows: Sequence[Record]) -> None:
    """Draw the share of each phase in what was timed, stacked, over stretches of the run."""
    axis.set_ylabel("time, %")
    axis.set_xlabel("frames")
    axis.set_ylim(0, 100)
    timed = [row for row in rows if names.FRAMES in row and sum(_phases_s(row).values()) > 0]
    if not timed:
        return
    per_bin = -(-len(timed) // _MAX_TIME_BINS)
    edges, bins = [0.0], []
    for start in range(0, len(timed), per_bin):
        stretch = timed[start : start + per_bin]
        edges.append(float(stretch[-1][names.FRAMES]))
        bins.append(sum((Counter(_phases_s(row)) for row in stretch), Counter()))
    phases = [
        phase for phase in dict.fromkeys(p for row in timed for p in _phases_s(row)) if any(b[phase] for b in bins)
    ]
    shares = [[100 * seconds[phase] / seconds.total() for seconds in bins] for phase in phases]
    shares = [[*share, share[-1]] for share in shares]
    handles = axis.stackplot(edges, *shares, step="post", labels=phases, colors=_LINES, alpha=0.85, linewidth=0)
    _legend(axis, handles, phases)


def _phases_s(row: Record) -> dict[str, float]:
    return {phase: float(row[key] or 0) for key in row if (phase := names.whole_phase_of(key)) is not None}


def _markers(frames: Sequence[float]) -> dict[str, Any]:
    return {"marker": "o", "markersize": 3} if len(frames) <= _MAX_MARKERS else {}


def _legend(axis: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    axis.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(labels), frameon=False, fontsize=8,
        borderaxespad=0.2, handlelength=1.4, columnspacing=1.2,
    )  # fmt: skip


def _style(axis: Any, name: str) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.spines[["top", "right"]].set_visible(False)
    for spine in axis.spines.values():
        spine.set_color("#bbbbbb")
    axis.tick_params(colors=_TEXT, length=3, color="#bbbbbb")
    if name == "right":
        axis.spines["right"].set_visible(True)
        return
    axis.grid(color=_GRID, linewidth=0.7)
    axis.set_axisbelow(True)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.xaxis.set_major_locator(MaxNLocator(6))
    axis.set_xlim(left=0)
    if name == "reward":
        axis.legend(*axis.get_legend_handles_labels(), loc="best", frameon=True, framealpha=0.9, edgecolor="none")
