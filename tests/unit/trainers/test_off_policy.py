"""SAC, TD3 and DQN as whole runs: what is collected, learned from, timed, saved and continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_jobs import (
    built_trainer,
    off_policy_job,
    off_policy_trainer,
    policy_bytes,
    records,
    run_job,
    small_document,
    timeless,
)

from rlruntime.collectors.transitions import transitions
from rlruntime.errors import ConfigError
from rlruntime.policies.artifact import load_policy
from rlruntime.registry import register
from rlruntime.spec.loader import parse_manifest
from rlruntime.spec.problems import ManifestError
from rlruntime.spec.training.components import check_components
from rlruntime.trainers.api import make_trainer
from rlruntime.trainers.callbacks import Callback, CallbackList
from rlruntime.trainers.checkpoint import read_checkpoint
from rlruntime.trainers.observer import Observer
from rlruntime.trainers.run_folder import RunFolder

ALGORITHMS = ["SAC", "TD3", "DQN"]
PRIORITISED = {"sampler": {"type": "Prioritized"}, "batchSize": 16, "prefetch": 2}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_runs_of_one_seed_give_the_same_metrics_and_policy(algorithm: str, tmp_path: Path) -> None:
    job = off_policy_job(algorithm)
    for name in ("a", "b"):
        run_job(job, tmp_path / name)
    assert len(records(tmp_path / "a")) > 5
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b")
    assert policy_bytes(tmp_path / "a") == policy_bytes(tmp_path / "b")


@pytest.mark.parametrize(
    ("algorithm", "replay", "stop_after"),
    [
        ("SAC", {}, 1),
        ("SAC", PRIORITISED, 4),
        ("TD3", {"batchSize": 16, "prefetch": 1}, 4),
        ("DQN", PRIORITISED, 1),
        ("DQN", {**PRIORITISED, "sampler": {"type": "WithoutReplacement"}}, 4),
    ],
)
def test_a_resumed_run_ends_with_the_numbers_of_an_uninterrupted_one(
    algorithm: str, replay: dict[str, Any], stop_after: int, tmp_path: Path
) -> None:
    job = off_policy_job(algorithm, replay=replay)
    whole = run_job(job, tmp_path / "whole")
    stopped = run_job(job, tmp_path / "cut", stop_after=stop_after)
    assert (stopped["status"], stopped["resumeClass"]) == ("Stopped", "exact")
    assert 0 < stopped["frames"] < whole["frames"]
    resumed = run_job(job, tmp_path / "cut", resume=True)
    assert (resumed["status"], resumed["resumed"]["class"]) == ("Succeeded", "exact")
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    last = [read_checkpoint(tmp_path / name / whole["checkpoint"]).state for name in ("whole", "cut")]
    for part in ("policy", "algorithm", "collector", "replay", "updates"):
        assert_same_tree(last[0][part], last[1][part])


def test_rewards_over_several_steps_resume_with_the_same_numbers(tmp_path: Path) -> None:
    job = off_policy_job("DQN", replay={"nStep": {"steps": 3}, "batchSize": 16}, env={"numEnvs": 3})
    run_job(job, tmp_path / "whole")
    run_job(job, tmp_path / "cut", stop_after=3)
    run_job(job, tmp_path / "cut", resume=True)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")


def test_adding_evaluations_and_checkpoints_does_not_change_training(tmp_path: Path) -> None:
    run_job(off_policy_job("SAC", evaluation={}, checkpoint={}), tmp_path / "a")
    run_job(off_policy_job("SAC", evaluation={"everyFrames": 50}, checkpoint={"everyFrames": 30}), tmp_path / "b")
    training = [record for record in timeless(tmp_path / "b") if "evaluation/reward_mean" not in record]
    assert len(timeless(tmp_path / "b")) > len(training)
    assert timeless(tmp_path / "a") == training


@pytest.mark.parametrize(("ratio", "updates"), [(1.0, 200), (0.25, 50), (2.0, 400)])
def test_a_frame_brings_as_many_updates_as_asked_for_once_the_random_frames_are_over(
    ratio: float, updates: int, tmp_path: Path
) -> None:
    sac = {"randomFrames": 40, "updateToData": ratio, "iterationFrames": 60}
    run_job(off_policy_job("SAC", totalFrames=240, sac=sac, evaluation={}, checkpoint={}), tmp_path / "a")
    lines = records(tmp_path / "a")
    assert [line["frames"] for line in lines] == [60, 120, 180, 240]
    assert sum(line["optim/steps"] for line in lines) == updates
    assert [line["replay/rows"] for line in lines] == [60, 120, 180, 240]


def test_actions_of_the_random_frames_are_uniform_and_later_ones_are_the_policys() -> None:
    trainer = off_policy_trainer("SAC", totalFrames=6000, sac={"randomFrames": 3000})
    try:
        while trainer.collector.num_frames < 3000:
            trainer.method.buffer.extend(transitions(trainer.collector.collect()))
        actions = trainer.method.buffer.sample(3000)["action"]
    finally:
        trainer.close()
    counts = torch.histc(actions, bins=10, min=-1.0, max=1.0)
    assert float(counts.min()) > 200
    assert float(counts.max()) < 400


def test_replay_holds_valid_rows_alone_and_each_with_its_true_next_observation() -> None:
    trainer = off_policy_trainer("DQN", env={"numEnvs": 3, "maxEpisodeSteps": 7}, dqn={"randomFrames": 10_000})
    buffer = trainer.method.buffer
    try:
        for _ in range(40):
            rollout = trainer.collector.collect()
            buffer.extend(transitions(rollout))
        rows = buffer.sample(2000)
        assert len(buffer) == trainer.collector.num_frames < 40 * 4 * 3
    finally:
        trainer.close()
    position, velocity = rows["observation"][:, 0], rows["observation"][:, 1]
    moved = position + 0.02 * velocity  # CartPole's own equation, which a row across a reset would break
    assert torch.allclose(rows["next.observation"][:, 0], moved, atol=1e-6)
    assert bool((rows["next.terminated"] | rows["next.truncated"]).any())


def test_rewards_are_stored_as_they_are_and_normalised_when_sampled() -> None:
    trainer = off_policy_trainer("SAC", env={"numEnvs": 2, "transforms": [{"type": "RewardNorm"}]})
    try:
        trainer.method.start()
        trainer.method.iterate(0.0, trainer.timers)
        stored = trainer.method.buffer.sample(64)
        raw = stored["next.reward"].clone()
        given = trainer.method._transformed(stored)["next.reward"]
        scale = float((trainer.policy.transforms[0].moments.variance + 1e-8).rsqrt())
    finally:
        trainer.close()
    assert float(raw.min()) < -1.0
    assert torch.allclose(given, (raw * scale).clamp(-10, 10), atol=1e-6)


def test_rewards_of_several_copies_are_summed_along_each_ones_own_episode() -> None:
    trainer = off_policy_trainer(
        "DQN",
        env={"numEnvs": 3, "maxEpisodeSteps": 9},
        replay={"nStep": {"steps": 4}, "batchSize": 16},
        dqn={"randomFrames": 10_000, "gamma": 0.5},
    )
    buffer = trainer.method.buffer
    try:
        while len(buffer) < 300:
            buffer.extend(transitions(trainer.collector.collect(), with_trajectory=True))
        rows = buffer.sample(4000)
    finally:
        trainer.close()
    # Every step of CartPole brings 1: the sum says how many there were, and where they led follows from the physics.
    steps = rows["num_steps"]
    assert torch.allclose(rows["next.reward"], 2.0 - 2.0 * 0.5 ** steps.float())
    assert torch.equal(rows["discount"], 0.5 ** steps.float())
    assert set(steps.tolist()) == {1, 2, 3, 4}
    fewer = steps < 4
    ended = rows["next.terminated"] | rows["next.truncated"]
    newest = trainer.collector.num_frames - 4 * 3 * 4
    assert bool(ended[fewer & (torch.from_numpy(rows.positions) < newest)].all())
    one = steps == 1
    moved = rows["observation"][:, 0] + 0.02 * rows["observation"][:, 1]
    assert torch.allclose(rows["next.observation"][one, 0], moved[one], atol=1e-6)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"algorithm": "PPO", "sac": {}}, "belongs to algorithm SAC"),
        ({"algorithm": "PPO", "replay": {}}, "has no replay buffer"),
        ({"algorithm": "SAC", "ppo": {}}, "belongs to algorithm PPO"),
        ({"algorithm": "SAC", "replay": {"sampler": {"type": "Uniformly"}}}, "did you mean 'Uniform'"),
        ({"algorithm": "SAC", "replay": {"storage": {"type": "Tensor", "config": {"capacity": 0}}}}, "capacity"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_built(training: dict[str, Any], words: str) -> None:
    document = small_document(**training)
    if "ppo" not in training and training["algorithm"] != "PPO":
        del document["spec"]["training"]["ppo"]
    with pytest.raises(ManifestError, match=words):
        check_components(parse_manifest(document, "test").spec.training)


_KEYS = "observation, action, next.observation, next.reward, next.terminated, next.truncated"
_THREE_STEPS = {"batchSize": 16, "nStep": {"steps": 3}}


@pytest.mark.parametrize(
    "transform",
    [
        {"type": "RewardSign"},
        {"type": "RewardClipping"},
        {"type": "BinarizeReward"},
        {"type": "RewardScaling", "config": {"loc": 10.0}},
    ],
    ids=lambda transform: transform["type"],
)
@pytest.mark.parametrize("side", ["env", "read"])
def test_what_is_no_multiplication_of_rewards_is_refused_behind_their_sum(transform: dict[str, Any], side: str) -> None:
    job = off_policy_job("SAC", env={"transforms": [transform]}, replay=_THREE_STEPS)
    field = "spec.training.env.transforms[0]"
    if side == "read":
        job = off_policy_job("SAC", replay={**_THREE_STEPS, "transforms": {"read": [transform]}})
        field = "spec.training.replay.transforms.read[0]"
    with pytest.raises(ConfigError) as refused:
        built_trainer(job)
    assert str(refused.value) == (
        f"{field}: it would map the sum of nStep's rewards in place of each (got '{transform['type']}'); "
        "put it into spec.training.replay.transforms.write"
    )


@pytest.mark.parametrize(
    ("env", "replay"),
    [
        ({"transforms": [{"type": "RewardSign"}]}, {"batchSize": 16}),
        ({"transforms": [{"type": "RewardScaling", "config": {"scale": 0.1}}]}, _THREE_STEPS),
        ({"transforms": [{"type": "RewardNorm"}]}, _THREE_STEPS),
        ({}, {**_THREE_STEPS, "transforms": {"write": [{"type": "RewardSign"}]}}),
    ],
)
def test_rewards_that_keep_their_meaning_are_learned_from(
    env: dict[str, Any], replay: dict[str, Any], tmp_path: Path
) -> None:
    assert run_job(off_policy_job("SAC", env=env, replay=replay), tmp_path)["status"] == "Succeeded"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rewards_of_whole_rollouts_are_refused_where_single_rows_are_learned_from(algorithm: str) -> None:
    with pytest.raises(ConfigError) as refused:
        built_trainer(off_policy_job(algorithm, env={"transforms": [{"type": "RewardToGo"}]}))
    assert str(refused.value) == (
        "spec.training.env.transforms[0]: its rewards are of whole rollouts, and a replay buffer gives single rows "
        "(got 'RewardToGo'); leave it out, or use algorithm: PPO"
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("sampler", ["Slice", "SliceWithoutReplacement", "PrioritizedSlice", "PromptGroup"])
def test_samplers_of_slices_and_groups_are_refused_before_any_frame(algorithm: str, sampler: str) -> None:
    config = {"groupSize": 4} if sampler == "PromptGroup" else {"sliceLength": 4}
    replay = {"batchSize": 16, "sampler": {"type": sampler, "config": config}}
    with pytest.raises(ConfigError) as refused:
        built_trainer(off_policy_job(algorithm, replay=replay))
    assert str(refused.value) == (
        f"spec.training.replay.sampler.type: {algorithm} learns from single rows, not from slices or groups of them "
        f"(got '{sampler}'); use Uniform, Prioritized or WithoutReplacement"
    )


@pytest.mark.parametrize(
    ("replay", "line"),
    [
        (
            {"sampler": {"type": "Consuming"}, "batchSize": 16},
            "spec.training.td3.updateToData: updates would consume more rows than are collected: 16 each (got 1.0); "
            "set it to at most 0.0625, or use another sampler",
        ),
        (
            {"storage": {"type": "List"}},
            "spec.training.replay.storage.type: a List storage takes lists of objects, and a collector gives columns "
            "(got 'List'); use Tensor, SharedTensor or MemoryMapped",
        ),
        (
            {"writer": {"type": "Immutable"}},
            "spec.training.replay.writer.type: an Immutable writer takes none of the rows that are collected "
            "(got 'Immutable'); use RoundRobin or MaxValue",
        ),
        (
            {"nStep": {"steps": 3, "outcomeKeys": ["next.reward", "next.info"]}},
            "spec.training.replay.nStep.outcomeKeys: the rows have no such column (got 'next.info'); "
            f"name one of {_KEYS}, trajectory",
        ),
        (
            {"nStep": {"steps": 3, "trajectoryKey": "episode"}},
            "spec.training.replay.nStep.trajectoryKey: the rows have no such column (got 'episode'); "
            f"name one of {_KEYS}",
        ),
        (
            {"nStep": {"steps": 3, "trajectoryKey": "next.reward"}},
            "spec.training.replay.nStep.trajectoryKey: the column 'next.reward' must hold integers (got 'float32')",
        ),
        (
            {"hindsight": {"rewardFunction": "math:fsum"}},
            "spec.training.replay.hindsight.achievedKey: the rows have no such column (got "
            f"'next.observation.achieved_goal'); name one of {_KEYS}, trajectory",
        ),
        (
            {"hindsight": {"rewardFunction": "math:fsum", "achievedKey": "observation", "goalKeys": ["action"]}},
            "spec.training.replay.hindsight.goalKeys: the column isn't of the shape of 'observation' (got 'action')",
        ),
        (
            {"writer": {"type": "MaxValue", "config": {"valueKey": "action_mask"}}},
            "spec.training.replay.writer.config.valueKey: the rows have no such column (got 'action_mask'); "
            f"name one of {_KEYS}",
        ),
        (
            {"writer": {"type": "MaxValue", "config": {"valueKey": "observation"}}},
            "spec.training.replay.writer.config.valueKey: the column must hold one number a row (got 'observation')",
        ),
        (
            {"sampler": {"type": "StalenessBounded", "config": {"maxStaleness": 2, "versionKey": "action"}}},
            "spec.training.replay.sampler.config.versionKey: the version of the policy would replace a column of this "
            "name (got 'action'); choose a name of its own, such as policy_version",
        ),
    ],
)
def test_a_buffer_that_could_not_be_filled_or_drawn_from_is_refused_before_any_frame(
    replay: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        built_trainer(off_policy_job("TD3", replay=replay))
    assert str(refused.value) == line


def test_rows_that_are_consumed_are_learned_from_once(tmp_path: Path) -> None:
    replay = {"sampler": {"type": "Consuming"}, "batchSize": 16}
    result = run_job(off_policy_job("TD3", td3={"updateToData": 0.0625}, replay=replay), tmp_path)
    assert result["status"] == "Succeeded"
    assert records(tmp_path)[-1]["replay/written"] == 240
    assert records(tmp_path)[-1]["replay/rows"] == 240 - 12 * 16


class _ScalarActions(gym.ActionWrapper[Any, Any, Any]):
    """One number in place of an array of one."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (), np.float32)

    def action(self, action: Any) -> Any:
        assert np.shape(action) == ()
        return np.reshape(action, 1)


def _scalar_pendulum(**_: Any) -> gym.Env[Any, Any]:
    return _ScalarActions(gym.make("Pendulum-v1"))


@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_actions_may_be_a_box_without_dimensions(algorithm: str, tmp_path: Path) -> None:
    gym.register("ScalarPendulum-v0", _scalar_pendulum)
    try:
        plain = run_job(off_policy_job(algorithm), tmp_path / "plain")
        scalar = run_job(off_policy_job(algorithm, env={"id": "ScalarPendulum-v0"}), tmp_path / "scalar")
    finally:
        del gym.registry["ScalarPendulum-v0"]
    assert scalar["status"] == "Succeeded"
    assert scalar["evaluation"] == plain["evaluation"]


def test_sac_refuses_actions_that_are_no_box() -> None:
    with pytest.raises(ConfigError, match=r"Box"):
        built_trainer(off_policy_job("SAC", env={"id": "CartPole-v1"}))


def test_dqn_refuses_actions_that_are_no_discrete_choice() -> None:
    with pytest.raises(ConfigError, match=r"Discrete"):
        built_trainer(off_policy_job("DQN", env={"id": "Pendulum-v1"}))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_trained_policy_acts_without_the_trainer(algorithm: str, tmp_path: Path) -> None:
    job = off_policy_job(algorithm)
    run_job(job, tmp_path / "a")
    policy = load_policy(tmp_path / "a")
    observation = policy.spaces.observation.sample()
    action = policy.act(observation).action
    assert policy.spaces.action.contains(action)
    assert policy.act(observation[None]).action.shape == (1, *action.shape)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_phase_of_an_iteration_is_timed_and_the_whole_ones_add_up(algorithm: str, tmp_path: Path) -> None:
    result = run_job(off_policy_job(algorithm, replay=PRIORITISED), tmp_path / "a")
    phases = result["time"]["phaseSeconds"]
    parts = {"collect/env", "collect/policy", "collect/write", "learn/sample", "learn/loss", "learn/backward"}
    assert parts | {"collect", "learn", "learn/optimizer", "evaluate", "checkpoint"} <= phases.keys()
    assert all(seconds > 0 for seconds in phases.values())
    for whole in ("collect", "learn"):
        inside = sum(seconds for name, seconds in phases.items() if name.startswith(f"{whole}/"))
        assert inside <= phases[whole]


def test_a_run_says_where_its_time_went_when_asked_to(tmp_path: Path) -> None:
    said: list[str] = []

    class Listener(Observer):
        def on_message(self, text: str) -> None:
            said.append(text)

    trainer = make_trainer(off_policy_job("SAC", logTimings=True), observer=Listener())
    with RunFolder.create(tmp_path / "a") as folder:
        trainer.run(folder)
    header, *lines = said[-1].splitlines()
    assert header.split() == ["phase", "seconds", "share"]
    names = [line.split()[0] for line in lines]
    assert names.index("loss") > names.index("learn")
    assert {"collect", "env", "policy", "write", "learn", "sample", "backward", "optimizer", "evaluate"} <= set(names)
    assert lines[names.index("env")].startswith("  ")


def test_importance_weights_reach_their_final_power_with_the_last_frame() -> None:
    sampler = {"type": "Prioritized", "config": {"beta": 0.4, "finalBeta": 1.0}}
    trainer = off_policy_trainer("DQN", totalFrames=1000, replay={"sampler": sampler, "batchSize": 16})
    try:
        trainer.method.start()
        while trainer.method.num_frames < 1000:
            trainer.method.iterate(0.0, trainer.timers)
    finally:
        trainer.close()
    assert trainer.method.buffer.sampler.beta == pytest.approx(1.0, abs=0.01)


@register("callback", "TestBatches")
class Batches(Callback):
    """Counts what it is shown."""

    seen: ClassVar[dict[str, int]] = {}

    def on_rollout_end(self, trainer: Any, rollout: Any) -> None:
        self.seen["rollouts"] = self.seen.get("rollouts", 0) + 1

    def on_batch(self, trainer: Any, batch: Any) -> None:
        assert batch["action"].shape[0] == 16
        self.seen["batches"] = self.seen.get("batches", 0) + 1

    def on_before_optimizer_step(self, trainer: Any) -> None:
        self.seen["steps"] = self.seen.get("steps", 0) + 1


def test_callbacks_see_every_rollout_and_batch(tmp_path: Path) -> None:
    Batches.seen.clear()
    job = off_policy_job(
        "DQN",
        totalFrames=100,
        env={"numEnvs": 2},
        dqn={"randomFrames": 50, "trainEverySteps": 1, "updateToData": 0.5, "iterationFrames": 50},
        callbacks=[{"type": "TestBatches"}],
    )
    run_job(job, tmp_path / "a")
    assert Batches.seen["batches"] == 25
    assert Batches.seen["steps"] == 25
    assert Batches.seen["rollouts"] >= 50


def test_a_state_too_large_to_be_held_twice_is_still_saved_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = off_policy_job("SAC")
    run_job(job, tmp_path / "whole")
    monkeypatch.setattr("rlruntime.trainers.loop._MAX_COPY_BYTES", 0)
    stopped = run_job(job, tmp_path / "cut", stop_after=4)
    assert (stopped["status"], stopped["checkpoint"]) == ("Stopped", f"checkpoints/step-{stopped['frames']}")
    run_job(job, tmp_path / "cut", resume=True)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(LookupError("no display"), ("Failed", "LookupError")), (KeyboardInterrupt(), ("Stopped", "Signal"))],
)
def test_a_large_run_that_ends_before_its_first_checkpoint_here_says_so_in_its_result(
    error: BaseException, outcome: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class End(Callback):
        def on_update_end(self, trainer: Any, record: Any) -> None:
            if isinstance(error, KeyboardInterrupt):  # a signal, and the grace period has passed
                trainer.abandon(15)
            raise error

    monkeypatch.setattr("rlruntime.trainers.loop._MAX_COPY_BYTES", 0)
    job = off_policy_job("SAC", checkpoint={})
    stopped = run_job(job, tmp_path / "a", stop_after=3)
    trainer = built_trainer(job)
    trainer.callbacks = CallbackList([End()])
    with RunFolder.create(tmp_path / "a", resume=True) as folder, pytest.raises(type(error)):
        trainer.run(folder, resume=True)
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert (result["status"], result["reason"]) == outcome
    assert result["resumed"]["frames"] == stopped["frames"]
    # What is left is what the run went on from.
    assert (result["frames"], result["checkpoint"]) == (stopped["frames"], stopped["checkpoint"])
    assert result["resumeClass"] == "exact"


def test_a_run_without_a_better_evaluation_ends_once_patience_is_over(tmp_path: Path) -> None:
    job = off_policy_job("SAC", totalFrames=100_000, evaluation={"everyFrames": 40, "episodes": 1, "patience": 3})
    result = run_job(job, tmp_path / "a")
    rewards = [line["evaluation/reward_mean"] for line in records(tmp_path / "a") if "evaluation/reward_mean" in line]
    best = rewards.index(max(rewards))
    assert (result["status"], result["reason"]) == ("Succeeded", "NoImprovement")
    assert len(rewards) == best + 4
    assert json.loads((tmp_path / "a" / "result.json").read_text())["message"] == (
        f"no better mean reward than {max(rewards):.4g} in 3 evaluations"
    )


def assert_same_tree(left: Any, right: Any) -> None:
    """See that two states are the same, bit for bit."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same_tree(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same_tree(one, other)
    elif hasattr(left, "shape"):
        assert torch.equal(torch.as_tensor(left), torch.as_tensor(right))
    else:
        assert left == right
