"""The state that every method has: policy, learner, collector and environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlruntime.collectors.protocol import Collector
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.training import TrainingSpec
from rlruntime.trainers.checkpoint import ComponentRecord, ResumeClass
from rlruntime.trainers.state_tree import snapshot_tree


def capture_parts(policy: Policy, algorithm: Any, collector: Collector) -> tuple[dict[str, Any], ResumeClass]:
    """Return a copy of their state, and whether a resume from it continues bit for bit."""
    environments = collector.snapshot()
    tree = snapshot_tree(
        {
            "policy": policy.state_dict(),
            "algorithm": algorithm.state_dict(),
            "collector": collector.state_dict(),
            "environments": environments,
        }
    )
    return tree, "exact" if environments is not None else "episodeRestart"


def restore_parts(
    state: Mapping[str, Any],
    algorithm: Any,
    collector: Collector,
    *,
    environments: bool,
    restart_seeds: Sequence[int],
) -> ResumeClass:
    """Put back learner, collector and environments; see `Method.restore`."""
    algorithm.load_state_dict(state["algorithm"])
    snapshots = [blob for blob in state["environments"] or () if blob is not None]
    if environments and len(snapshots) == collector.num_envs:
        collector.load_state_dict(state["collector"])
        collector.restore(snapshots)
        return "exact"
    collector.restart_episodes(restart_seeds, state["collector"])
    return "episodeRestart"


def component_records(training: TrainingSpec, policy: Policy, algorithm: Any) -> dict[str, ComponentRecord]:
    """Return the parts that every method has."""
    network = policy.network
    records = {
        "algorithm": ComponentRecord.of(training.algorithm, algorithm),
        "network": ComponentRecord.of(network.type, policy.actor_encoder, network.config),
    }
    if isinstance(policy, ActorCritic) and policy.critic_network is not None:
        critic = policy.critic_network
        records["criticNetwork"] = ComponentRecord.of(critic.type, policy.critic_encoder, critic.config)
    for number, (part, module) in enumerate(zip(policy.transform_components, policy.transforms, strict=True)):
        records[f"transforms.{number}"] = ComponentRecord.of(part.type, module, part.config)
    return records
