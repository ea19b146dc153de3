from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from rlruntime.errors import StorageError
from rlruntime.trainers.curves import plot_curves


def record(iteration: int, **more: Any) -> dict[str, Any]:
    return {
        "iteration": iteration,
        "frames": 512 * iteration,
        "train/episode_reward_mean": 10.0 * iteration,
        "loss/policy": -0.01,
        "loss/value": 50.0 / iteration,
        "policy/entropy": 0.6,
        "time/collect_s": 0.01,
        "time/learn_s": 0.02,
        "time/elapsed_s": 0.03 * iteration,
        **more,
    }


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_picture_and_drawing_are_made_from_the_metrics_of_a_run(tmp_path: Path) -> None:
    rows = [record(n) for n in range(1, 60)]
    rows[29].update({"evaluation/reward_mean": 300.0, "evaluation/reward_std": 5.0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    outputs = [tmp_path / "curves.png", tmp_path / "curves.svg"]
    assert plot_curves(tmp_path / "metrics.jsonl", outputs, title="ppo-cartpole", goal_reward=475)
    assert png_size(tmp_path / "curves.png") == (1300, 728)
    drawing = (tmp_path / "curves.svg").read_bytes()
    assert drawing.startswith(b"<?xml")
    plot_curves(rows, [tmp_path / "again.svg"], title="ppo-cartpole", goal_reward=475)
    assert (tmp_path / "again.svg").read_bytes() == drawing


@pytest.mark.parametrize(
    "rows",
    [
        [record(1)],
        [{"iteration": 1, "frames": 512}],
        [{"frames": 512, "evaluation/reward_mean": 1.0}],
        [record(1), record(2, **{"loss/value": None, "train/episode_reward_mean": None})],
        [{"frames": 1, "loss/q1": 1.0, "loss/q2": 2.0, "loss/actor": 3.0, "loss/alpha": 4.0, "time/wait_s": 0.0}],
    ],
)
def test_few_points_and_missing_fields_still_make_a_picture(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    assert plot_curves(rows, [tmp_path / "curves.png"])
    assert png_size(tmp_path / "curves.png") == (1300, 728)


def test_run_without_a_record_makes_no_picture(tmp_path: Path) -> None:
    assert not plot_curves([], [tmp_path / "curves.png"])
    assert not (tmp_path / "curves.png").exists()


def test_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"^cannot write .*absent/curves\.png: No such file or directory"):
        plot_curves([record(1)], [tmp_path / "absent" / "curves.png"])


def test_drawing_leaves_the_plotting_state_of_the_process_alone(tmp_path: Path) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    backend = os.environ.get("MPLBACKEND")
    plot_curves([record(1)], [tmp_path / "curves.png"])
    assert dict(mpl.rcParams) == before
    assert os.environ.get("MPLBACKEND") == backend
