"""Evaluation in a process of its own while training goes on, with outcomes that don't depend on how fast it is.

At most one is under way. Its result counts when the next one is due, or when training ends, whichever comes first; who
asks for it before it is there waits. So evaluations of a run come at the same frames, in the same order and with the
same consequences, whatever the machine does. The weights that are evaluated are part of a checkpoint until the result
has counted: a resumed run evaluates them again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from rlruntime.collectors.evaluator import ProcessEvaluator
from rlruntime.policies.policy import Policy
from rlruntime.seeding import EVALUATION, stream_seed, stream_seeds
from rlruntime.spec.training.training import TrainingSpec
from rlruntime.trainers.evaluation import EvaluationResult, EvaluationStopped, backend_of, copies_of
from rlruntime.trainers.state_tree import snapshot_tree

_LOOK_EVERY_S = 0.05
_NO_LIMIT_S = 7 * 86_400.0  # as an evaluation in turn, it may take as long as its episodes do
_SILENCE_S = 600.0  # and as one in turn, it is dead where nothing of it moves: whoever waits looks alive himself


class EvaluationBeside:
    """The evaluation that is under way.

    Args:
        training: the effective section of the manifest.
        policy: the learner's; a copy of it holds what is evaluated.

    Attributes:
        policy: with the weights that were evaluated last, or are about to be.
    """

    def __init__(self, training: TrainingSpec, policy: Policy) -> None:
        self._training, self.policy = training, copy.deepcopy(policy)
        self._frames: int | None = None
        self._process: ProcessEvaluator | None = None

    @property
    def is_pending(self) -> bool:
        """Whether there is an evaluation whose result hasn't counted yet."""
        return self._frames is not None

    def submit(self, policy: Policy, frames: int) -> None:
        """Have the present weights of the policy evaluated; they are copied.

        Args:
            frames: after which they are as they are.

        Raises:
            EnvironmentFault: the process died or hung at start.
        """
        assert self._frames is None
        self.policy.load_state_dict(policy.state_dict())
        self._started().submit(frames)
        self._frames = frames

    def take(self, stop_requested: Callable[[], bool] = lambda: False) -> EvaluationResult:
        """Wait for the result; then none is under way.

        Args:
            stop_requested: asked now and then.

        Raises:
            EvaluationStopped: it said so; the evaluation is still under way.
            EnvironmentFault: an environment failed or hung, or the process died.
        """
        assert self._frames is not None
        if self._process is None:  # a checkpoint brought it
            self._started().submit(self._frames)
        process = self._started()
        while True:
            if stop_requested():
                raise EvaluationStopped
            try:
                outcome = process.wait(self._frames, _LOOK_EVERY_S)
                break
            except TimeoutError:
                continue
        frames, self._frames = self._frames, None
        seeds = stream_seeds(self._training.seed, EVALUATION, self._training.evaluation.episodes)
        return EvaluationResult(outcome.returns, outcome.lengths, tuple(seeds), frames)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what is under way; empty where nothing is."""
        if self._frames is None:
            return {}
        state: dict[str, Any] = snapshot_tree({"frames": self._frames, "policy": self.policy.state_dict()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned; what was under way begins anew when it is asked for."""
        if state:
            self.policy.load_state_dict(state["policy"])
            self._frames = int(state["frames"])

    def _started(self) -> ProcessEvaluator:
        """Return the process, started when it is first needed."""
        training, settings = self._training, self._training.evaluation
        if self._process is None:
            self._process = ProcessEvaluator(
                training.env,
                self.policy,
                seeds=stream_seeds(training.seed, EVALUATION, settings.episodes),
                noise_seed=None if settings.deterministic else stream_seed(training.seed, f"{EVALUATION}-noise"),
                num_envs=copies_of(settings.episodes),
                backend=backend_of(training.env),
                timeout_s=_NO_LIMIT_S,
                silence_s=max(_SILENCE_S, 2 * training.env.step_timeout_seconds),
            )
        return self._process

    def close(self) -> None:
        """End the process. May be called twice; never raises."""
        if self._process is not None:
            self._process.close()
