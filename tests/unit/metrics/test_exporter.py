from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import rlruntime
from rlruntime.metrics.exporter import MetricsExporter

RECORD: dict[str, float | int | str] = {
    "iteration": 3,
    "frames": 1536,
    "episodes": 40,
    "train/episode_reward_mean": 21.5,
    "train/episode_length_mean": 21.5,
    "loss/policy": -0.01,
    "policy/entropy": 0.69,
    "optim/learning_rate": 1e-3,
    "time/collect_s": 0.02,
    "time/learn_s": 0.2,
    "time/frames_per_second": 2000.0,
    "time/elapsed_s": 7.0,
    "note": "text",
}


def value(registry: CollectorRegistry, metric: str, /, **labels: str) -> float | None:
    return registry.get_sample_value(metric, labels)


def test_one_record_fills_counters_gauges_and_phase_histograms() -> None:
    registry = CollectorRegistry()
    exporter = MetricsExporter(registry, target_frames=100_000, wall_clock=lambda: 1234.5)
    exporter.observe_iteration(RECORD)
    assert value(registry, "rljob_frames_total") == 1536
    assert value(registry, "rljob_iterations_total") == 3
    assert value(registry, "rljob_episodes_total") == 40
    assert value(registry, "rljob_progress_frames") == 1536
    assert value(registry, "rljob_target_frames") == 100_000
    assert value(registry, "rljob_episode_reward") == 21.5
    assert value(registry, "rljob_episode_length_steps") == 21.5
    assert value(registry, "rljob_frames_per_second") == 2000
    assert value(registry, "rljob_phase_seconds_sum", phase="collect") == 0.02
    assert value(registry, "rljob_phase_seconds_count", phase="learn") == 1
    assert value(registry, "rljob_phase_seconds_count", phase="elapsed") is None
    assert value(registry, "rljob_learner_value", name="policy/entropy") == 0.69
    assert value(registry, "rljob_learner_value", name="optim/learning_rate") == 1e-3
    assert value(registry, "rljob_last_iteration_timestamp_seconds") == 1234.5
    assert value(registry, "rljob_build_info", version=rlruntime.__version__) == 1
    assert value(registry, "rljob_evaluations_total") == 0


def test_counters_rise_by_what_each_record_adds() -> None:
    registry = CollectorRegistry()
    exporter = MetricsExporter(registry, target_frames=1000)
    exporter.observe_iteration({"iteration": 1, "frames": 100})
    exporter.observe_iteration({"iteration": 2, "frames": 250, "evaluation/reward_mean": 9.0})
    exporter.checkpoint_written()
    assert value(registry, "rljob_frames_total") == 250
    assert value(registry, "rljob_iterations_total") == 2
    assert value(registry, "rljob_evaluations_total") == 1
    assert value(registry, "rljob_evaluation_reward") == 9.0
    assert value(registry, "rljob_checkpoints_total") == 1


def test_record_of_an_evaluation_counts_no_frames_and_no_phase_that_did_not_happen() -> None:
    registry = CollectorRegistry()
    exporter = MetricsExporter(registry, target_frames=1000)
    exporter.observe_iteration({"iteration": 1, "frames": 100, "time/collect_s": 0.5, "time/evaluate_s": 0.0})
    exporter.observe_iteration({"iteration": 1, "frames": 100, "time/collect_s": 0.0, "time/evaluate_s": 2.0})
    assert value(registry, "rljob_frames_total") == 100
    assert value(registry, "rljob_iterations_total") == 1
    assert value(registry, "rljob_phase_seconds_count", phase="collect") == 1
    assert value(registry, "rljob_phase_seconds_sum", phase="evaluate") == 2.0


def test_resumed_run_counts_its_own_frames_and_shows_the_progress_of_the_job() -> None:
    registry = CollectorRegistry()
    exporter = MetricsExporter(registry, target_frames=1000, start_frames=600, start_iterations=6)
    assert value(registry, "rljob_progress_frames") == 600
    exporter.observe_iteration({"iteration": 7, "frames": 700})
    assert value(registry, "rljob_frames_total") == 100
    assert value(registry, "rljob_iterations_total") == 1
    assert value(registry, "rljob_progress_frames") == 700


def test_label_values_are_bounded_whatever_the_records_hold() -> None:
    registry = CollectorRegistry()
    exporter = MetricsExporter(registry, target_frames=1)
    for index in range(500):
        exporter.observe_iteration({f"loss/number_{index}": 1.0, f"time/phase_{index}_s": 1.0})
    text = generate_latest(registry).decode()
    assert text.count("rljob_learner_value{") == 64
    assert text.count("rljob_phase_seconds_count{") == 32


def test_two_runs_on_two_registries_do_not_meet_and_on_one_are_refused() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    MetricsExporter(first, target_frames=1).observe_iteration({"frames": 5})
    MetricsExporter(second, target_frames=1)
    assert value(second, "rljob_frames_total") == 0
    with pytest.raises(ValueError, match="Duplicated"):
        MetricsExporter(first, target_frames=1)
