from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from rlruntime.metrics import names
from rlruntime.metrics.exporter import MetricsExporter
from rlruntime.metrics.family import export_process

RECORD: dict[str, float | int | str] = {
    "iteration": 3,
    "frames": 1536,
    "episodes": 40,
    "train/episode_reward_mean": 21.5,
    "train/episode_length_mean": 21.5,
    "loss/policy": -0.01,
    "policy/entropy": 0.69,
    "optim/learning_rate": 1e-3,
    "optim/steps": 8,
    "time/collect_s": 0.02,
    "time/collect/env_s": 0.015,
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
    assert value(registry, "rljob_phase_part_seconds_total", phase="collect", part="env") == 0.015
    assert value(registry, "rljob_phase_seconds_count", phase="collect/env") is None
    assert value(registry, "rljob_updates_total") == 8
    assert value(registry, "rljob_evaluations_total") == 0


def test_what_a_run_has_not_done_has_no_series() -> None:
    registry = CollectorRegistry()
    exporter = MetricsExporter(registry, target_frames=1000)
    exporter.observe_iteration({"iteration": 1, "frames": 100})
    text = generate_latest(registry).decode()
    for absent in ("evaluation_reward", "episode_reward", "staleness", "replay", "sync_bytes", "dropped", "_created"):
        assert absent not in text, absent


def test_weights_replay_and_replaced_workers_are_shown_as_the_records_say() -> None:
    registry = CollectorRegistry()
    exporter = MetricsExporter(registry, target_frames=1000)
    for staleness in (3, 2):
        exporter.observe_iteration(
            {
                "collect/staleness": staleness,
                "collect/dropped_stale": 40,
                "collect/env_restarts": 1,
                "sync/publications": 4,
                "sync/bytes": 4000,
                "replay/rows": 50,
                "replay/fill": 0.5,
            }
        )
    assert value(registry, "rljob_weight_staleness_versions") == 2
    assert value(registry, "rljob_rows_dropped_total", cause="stale") == 80
    assert value(registry, "rljob_env_worker_restarts_total") == 2
    assert value(registry, "rljob_weight_publications_total") == 8
    assert value(registry, "rljob_weight_sync_bytes_total") == 8000
    assert value(registry, "rljob_replay_rows") == 50
    assert value(registry, "rljob_replay_fill_ratio") == 0.5


def test_the_oldest_row_of_a_full_buffer_is_as_old_as_the_record_that_wrote_it() -> None:
    registry, now = CollectorRegistry(), [100.0]
    exporter = MetricsExporter(registry, target_frames=1000, wall_clock=lambda: now[0])
    ages = []
    for written in (10, 20, 30, 40, 50):  # a buffer of 20 rows, a record every second
        exporter.observe_iteration({"replay/rows": min(20, written), "replay/written": written})
        ages.append(value(registry, "rljob_replay_oldest_row_age_seconds"))
        now[0] += 1.0
    assert ages == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_a_long_run_whose_buffer_never_overflows_remembers_its_first_record() -> None:
    registry, now = CollectorRegistry(), [0.0]
    exporter = MetricsExporter(registry, target_frames=1000, wall_clock=lambda: now[0])
    for written in range(1, 10_001):
        exporter.observe_iteration({"replay/rows": written, "replay/written": written})
        now[0] += 1.0
    assert value(registry, "rljob_replay_oldest_row_age_seconds") == 9999.0


def test_a_checkpoint_leaves_its_time() -> None:
    registry = CollectorRegistry()
    exporter = MetricsExporter(registry, target_frames=1000, wall_clock=lambda: 77.0)
    assert value(registry, "rljob_last_checkpoint_timestamp_seconds") is None
    exporter.checkpoint_written()
    assert value(registry, "rljob_last_checkpoint_timestamp_seconds") == 77.0


def test_every_process_tells_its_version_and_its_memory() -> None:
    registry = CollectorRegistry()
    export_process(registry, names.BUILD_INFO, "1.2.3")
    assert value(registry, "rljob_build_info", version="1.2.3") == 1
    assert (value(registry, "process_resident_memory_bytes") or 0) > 0


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
        exporter.observe_iteration(
            {
                f"loss/number_{index}": 1.0,
                f"time/phase_{index}_s": 1.0,
                f"time/collect/part_{index}_s": 1.0,
                f"collect/dropped_cause_{index}": 1.0,
            }
        )
    text = generate_latest(registry).decode()
    assert text.count("rljob_learner_value{") == 64
    assert text.count("rljob_phase_seconds_count{") == 32
    assert text.count("rljob_phase_part_seconds_total{") == 64
    assert text.count("rljob_rows_dropped_total{") == 8


def test_two_runs_on_two_registries_do_not_meet_and_on_one_are_refused() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    MetricsExporter(first, target_frames=1).observe_iteration({"frames": 5})
    MetricsExporter(second, target_frames=1)
    assert value(second, "rljob_frames_total") == 0
    with pytest.raises(ValueError, match="Duplicated"):
        MetricsExporter(first, target_frames=1)
