"""What real runs export, by HTTP as Prometheus sees it: the names that the docs have, and phases that add up."""

from __future__ import annotations

import io
import urllib.request
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import pytest
from collector_envs import env_seed
from pods import free_port
from prometheus_client.parser import text_string_to_metric_families
from small_jobs import off_policy_job, small_job

from rlruntime.cli.pod_observer import PodObserver
from rlruntime.metrics.names import FAMILIES, whole_phase_of
from rlruntime.spec.contract import PodIdentity, SharedSpec
from rlruntime.spec.manifest import RLJob
from rlruntime.spec.policies import Metrics
from rlruntime.trainers.api import make_trainer
from rlruntime.trainers.observer import Record
from rlruntime.trainers.run_folder import RunFolder

SHARE = 0.95
JOBS: dict[str, RLJob] = {
    "PPO": small_job(
        totalFrames=4800,
        env={
            "factory": "toy_envs:FaultyEnv",
            "kwargs": {"fault": "raise", "seed": env_seed(0), "length": 20},
            "numEnvs": 4,
            "backend": "ProcessPool",
            "restartWorkers": True,
        },
        evaluation={"everyFrames": 1500, "episodes": 2},
        checkpoint={"everyFrames": 2000},
    ),
    "SAC": off_policy_job("SAC", replay={"storage": {"type": "Tensor", "config": {"capacity": 160}}, "batchSize": 16}),
    "AsyncProcess": small_job(totalFrames=4800, collector={"type": "AsyncProcess", "config": {"numWorkers": 1}}),
}


@dataclass(frozen=True)
class Told:
    """What a run has left.

    Attributes:
        samples: by series' name, the sum over its labels.
        families: names of what has a series.
        accounted: share of the time from the run's begin to its last record that the exported phases make up.
        result: of the run.
    """

    samples: dict[str, float]
    families: set[str]
    accounted: float
    result: dict[str, Any]


class _Watch(PodObserver):
    """Notes when the last record came."""

    last_s = 0.0

    def on_record(self, record: Record) -> None:
        super().on_record(record)
        self.last_s = perf_counter()


@pytest.fixture(scope="module", params=JOBS)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """One of the runs, scraped once it has ended."""
    job = JOBS[request.param]
    identity = PodIdentity("small", "default", "uid", "trainer", 0, 0, 0, "small")
    spec = SharedSpec(training=job.spec.training, roles=(), metrics=Metrics(port=free_port()))
    folder = tmp_path_factory.mktemp("run")
    with _Watch(identity, spec, storage=folder, stream=io.StringIO(), host="127.0.0.1") as observer:
        trainer = make_trainer(job, observer=observer)
        with RunFolder.create(folder / "run") as run:
            began_s = perf_counter()
            result = trainer.run(run)
        with urllib.request.urlopen(f"http://127.0.0.1:{observer.port}/metrics", timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    samples: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    accounted = samples["rljob_phase_seconds_sum"] / (observer.last_s - began_s)
    return Told(samples, set(samples), accounted, result)


EXPORTED: set[str] = set()


def test_a_run_exports_only_what_the_docs_name_and_its_phases_make_up_its_time(told: Told) -> None:
    known = {series for family in FAMILIES.values() for series in family.series}
    assert told.families - known == set()
    EXPORTED.update(told.families)
    assert SHARE <= told.accounted <= 1.02
    time = told.result["time"]
    wholes = sum(seconds for name, seconds in time["phaseSeconds"].items() if whole_phase_of(f"time/{name}_s"))
    assert SHARE <= wholes / time["elapsedSeconds"] <= 1.02
    assert told.samples["rljob_frames_total"] == told.result["frames"]


def test_the_runs_together_export_everything_that_the_docs_name() -> None:
    if not EXPORTED:
        pytest.skip("the runs were left out")
    assert {series for family in FAMILIES.values() for series in family.series} - EXPORTED == set()
