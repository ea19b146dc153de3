"""What a run must remember to go on as if it had never stopped, and how it is put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlruntime.errors import CheckpointError
from rlruntime.policies.artifact import load_parameters, policy_path, read_policy_file
from rlruntime.policies.policy import Policy
from rlruntime.seeding import ENVIRONMENT, stream_seeds
from rlruntime.trainers.beside import EvaluationBeside
from rlruntime.trainers.callbacks import CallbackList
from rlruntime.trainers.checkpoint import Checkpoint, ResumeClass, is_checkpoint, read_checkpoint
from rlruntime.trainers.methods.method import Method
from rlruntime.trainers.progress import Progress
from rlruntime.trainers.state_tree import snapshot_tree


@dataclass
class RunState:
    """The parts of a run that have state; ``beside`` where it is evaluated beside training."""

    method: Method
    callbacks: CallbackList
    progress: Progress
    seed: int
    beside: EvaluationBeside | None = None

    def capture(self, *, copy: bool = True) -> tuple[dict[str, Any], ResumeClass]:
        """Return all state at an iteration boundary, and whether a resume from it continues bit for bit.

        Args:
            copy: False where the caller is done with it before the next iteration: large parts may then be views.
        """
        state, resume_class = self.method.capture(copy=copy)
        own = {"callbacks": self.callbacks.state_dict(), "progress": self.progress.state_dict()}
        under_way = {} if self.beside is None else self.beside.state_dict()
        return {**state, **snapshot_tree(own), **({"evaluation": under_way} if under_way else {})}, resume_class

    def restore(self, checkpoint: Checkpoint, *, environments: bool = True) -> ResumeClass:
        """Put a checkpoint's state back and return the class of this resume.

        Args:
            checkpoint: of this run or of another job.
            environments: whether the environments' state is of these environments.

        Where the environments' state is there, they continue in mid-episode; else they are seeded anew from the seed,
        their number and the number of the checkpoint, and all else is put back.

        Raises:
            CheckpointError: the state doesn't fit this run.
        """
        state = checkpoint.state
        try:
            load_parameters(self.method.policy, _tensors(state["policy"]), checkpoint.path)
            self.progress.load_state_dict(state["progress"])
            self.callbacks.load_state_dict(state["callbacks"])
            self._restore_evaluation(state.get("evaluation", {}))
            num_envs, number = self.method.collector.num_envs, self.progress.checkpoints
            restart_seeds = stream_seeds(self.seed, ENVIRONMENT, num_envs, number)
            return self.method.restore(state, environments=environments, restart_seeds=restart_seeds)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"the state in {checkpoint.path} doesn't fit this run: {error}",
                remedy="resume with the manifest that wrote it, or train into a new folder",
            ) from error

    def _restore_evaluation(self, under_way: Mapping[str, Any]) -> None:
        """Go on with an evaluation that was under way, or make one now where none runs beside training any more."""
        if self.beside is not None:
            self.beside.load_state_dict(under_way)
        elif under_way:
            self.progress.next_evaluation = self.progress.frames


def load_initial_policy(policy: Policy, source: Path) -> None:
    """Give ``policy`` the parameters of another job's: of its run folder, its policy file, or one of its checkpoints.

    Raises:
        CheckpointError: there is no policy, or that of another network.
    """
    if not is_checkpoint(source):
        path = policy_path(source)
        load_parameters(policy, read_policy_file(path)[1], path)
        return
    state = read_checkpoint(source, own_run=False).state
    if not isinstance(state.get("policy"), dict):
        raise CheckpointError(
            f"the checkpoint {source} holds no policy",
            field="spec.training.checkpoint.initFrom",
            remedy="give a checkpoint of the same algorithm",
        )
    load_parameters(policy, _tensors(state["policy"]), source)


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
