"""From the algorithm's name to its policy and its method."""

from __future__ import annotations

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import PolicyKind, build_policy
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.training import TrainingSpec
from rlruntime.trainers.methods.collecting import Environments
from rlruntime.trainers.methods.method import Hooks, Method
from rlruntime.trainers.methods.off_policy import OffPolicy
from rlruntime.trainers.methods.on_policy import OnPolicy

POLICY_KINDS: dict[str, PolicyKind] = {"PPO": "ActorCritic", "SAC": "SAC", "TD3": "TD3", "DQN": "DQN"}
"""What acts, by the manifest's name of the algorithm."""


def make_policy(training: TrainingSpec, spaces: EnvSpaces) -> Policy:
    """Return the policy of the manifest's algorithm; see `build_policy` for the errors.

    Args:
        training: the effective section of the manifest; any algorithm but Custom.
        spaces: of the environment.
    """
    return build_policy(
        spaces,
        training.network,
        training.env.transforms,
        seed=training.seed,
        kind=POLICY_KINDS[training.algorithm],
        dueling=training.dqn is not None and training.dqn.dueling,
        critic_network=training.critic_network,
    )


def make_method(
    training: TrainingSpec, environments: Environments, policy: Policy, hooks: Hooks, timers: PhaseTimers
) -> Method:
    """Return the method of the manifest's algorithm.

    Args:
        training: the effective section of the manifest; any algorithm but Custom.
        environments: as `open_environments` returned them; closed with the method.
        policy: as `make_policy` returns it; learns in place.
        hooks: who is told of what happens within an iteration.
        timers: told the time of every phase.

    Raises:
        ConfigError: parts that don't go together.
    """
    if training.algorithm == "PPO":
        assert isinstance(policy, ActorCritic)
        return OnPolicy(training, environments, policy, hooks, timers)
    return OffPolicy(training, environments, policy, hooks, timers)
