"""The process of a collector that owns some environment copies, and a copy of the policy that acts in them.

It is an inline collector that writes into its columns of rollouts in shared memory. Orders and reports are a few
numbers on a socket; what else is asked, such as a snapshot, is pickled, and never while collecting. It ends when told
to, when the socket closes, and when its parent dies.
"""

from __future__ import annotations

import mmap
import pickle
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from rlruntime.collectors.inline import InlineCollector
from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.shared import CUT_SHORT, IDLE, PAUSE, PAUSED, RUN, STEPPING, Control, SharedRollouts
from rlruntime.collectors.transitions import transitions
from rlruntime.envs import messages
from rlruntime.envs.protocol import VectorEnv
from rlruntime.envs.worker import prepare_process, to_worker_error
from rlruntime.errors import ConfigError
from rlruntime.policies.policy import Policy
from rlruntime.seeding import POLICY, stream_seed
from rlruntime.spec.training.env import EnvConfig
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.transforms.staging import make_transformed_env
from rlruntime.weights.joining import join
from rlruntime.weights.manifest import ModuleState
from rlruntime.weights.protocol import Receiver

ORDER = struct.Struct("=cqq??")
"""Kind, number of the rollout to fill, version that the weights must have at least, whether to take a newer one,
whether to act at random."""
REPORT = struct.Struct("=cqqqqdddd")
"""Kind, number of the rollout, version that acted, valid rows, rows written; seconds of environments, policy, weights
and writing."""
COLLECT, ASK, QUIT = b"c", b"a", b"q"
DONE, ANSWER, FAILED = b"d", b"v", b"e"
_PAUSE_S = 0.002


@dataclass(frozen=True)
class WorkerPlan:
    """First message: everything a worker needs.

    Attributes:
        env: of all copies.
        policy: pickled, on the CPU.
        device: where it acts.
        index: of the worker.
        first, last: its copies are ``first .. last - 1``.
        num_steps, num_rollouts, num_workers: of the shared rollouts.
        seed: of the job.
        timeout_s: that acquiring weights may take.
        buffer: what makes the replay buffer to write into, from the inherited descriptor; None to write into none.
    """

    env: EnvConfig
    policy: bytes
    device: str
    index: int
    first: int
    last: int
    num_steps: int
    num_rollouts: int
    num_workers: int
    seed: int
    timeout_s: float
    buffer: Callable[[int], ReplayBuffer] | None


def main(
    socket_fd: int, memory_fd: int, trace_fd: int, lifeline_fd: int, parent_pid: int, weights_fd: int, buffer_fd: int
) -> None:
    """Serve until told to quit; see `rlruntime.envs.worker.main` for the first arguments.

    Args:
        weights_fd: socket of the publisher's invitation.
        buffer_fd: file of the replay buffer's storage, or -1.
    """
    prepare_process(trace_fd, lifeline_fd, parent_pid)
    torch.set_num_threads(1)
    with socket.socket(fileno=socket_fd) as sock, socket.socket(fileno=weights_fd) as weights:
        try:
            kind, plan = messages.receive(sock)
            if kind != messages.VALUE:
                return
            try:
                worker = _Worker(plan, sock, memory_fd, weights, buffer_fd)
            except Exception as error:
                messages.send(sock, messages.ERROR, to_worker_error(error))
                return
            messages.send(sock, messages.DONE)
            try:
                worker.serve()
            finally:
                worker.close()
        except (EOFError, OSError):  # the parent is gone or has given up on this worker
            return


class SegmentCollector(InlineCollector):
    """Fills columns of shared rollouts, and can be cut short and paused between two steps.

    Its owner accounts for what it collected, and applies the transforms of rewards.

    Args:
        rollouts: its columns of the shared rollouts.
        control: its line.
    """

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        rollouts: list[Rollout],
        control: Control,
        *,
        seed: int,
        index: int,
        first_copy: int,
    ) -> None:
        super().__init__(
            env,
            policy,
            num_steps=rollouts[0].num_steps,
            seed=seed,
            rollout=rollouts[0],
            first_copy=first_copy,
        )
        self.segments, self._control, self.at_random = rollouts, control, False
        self._current = 0
        if index:  # the first worker draws what an inline collector does
            self._generator.manual_seed(stream_seed(seed, POLICY, index))

    def collect_into(self, number: int, *, at_random: bool) -> Rollout:
        """Fill the rollout of this number."""
        self.at_random = at_random
        if number != self._current:
            self.use(self.segments[number])
            if not self._goes_on:  # first observations lie in the rollout that was used before
                self.rollout.begin_at(self.segments[self._current])
            self._current = number
        return self.collect()

    def begin_episodes(self, seeds: list[int]) -> None:
        """Start new episodes with these seeds."""
        self._begin_episodes(seeds)

    def update_transforms(self) -> None:
        """Do nothing: statistics come with the weights."""

    @property
    def _acts_at_random(self) -> bool:
        return self.at_random

    def _fill(self, rollout: Rollout, choose: Callable[[int], None]) -> None:
        control, step_env, to_env = self._control, self.env.step, self.policy.distribution.to_env
        actions, num_envs = self._action_arrays, self.num_envs
        env_seconds, started, waited = 0.0, perf_counter(), 0.0
        rollout.num_filled.fill_(rollout.num_steps)
        for step, slot in enumerate(self._slots):
            if control.told != RUN:
                waited += self._obey_pause()
                if control.told == CUT_SHORT:
                    rollout.cut(step)
                    break
            choose(step)
            before = perf_counter()
            step_env(to_env(actions[step]), slot)
            env_seconds += perf_counter() - before
            self.steps += 1
            control.progress += 1
            control.steps += num_envs
        self.env_seconds += env_seconds
        self.policy_seconds += perf_counter() - started - env_seconds - waited
        rollout.policy_version.fill_(self.policy_version)

    def _obey_pause(self) -> float:
        """Stay where it is while a pause lasts; return the seconds."""
        control, started = self._control, perf_counter()
        while control.told == PAUSE:
            control.state = PAUSED
            control.progress += 1
            time.sleep(_PAUSE_S)
        control.state = STEPPING
        return perf_counter() - started

    def _judge(self, rollout: Rollout) -> None:
        self._evaluate(rollout)
        rollout.reward = rollout.env_reward

    def _account(self, rollout: Rollout) -> None:
        rollout.num_valid = int(np.count_nonzero(rollout.valid.numpy()))


class _Worker:
    def __init__(
        self, plan: WorkerPlan, sock: socket.socket, memory_fd: int, weights: socket.socket, buffer_fd: int
    ) -> None:
        self._sock, self._plan = sock, plan
        policy: Policy = pickle.loads(plan.policy)
        env = make_transformed_env(plan.env, num_envs=plan.last - plan.first, first_copy=plan.first)
        try:
            if env.spaces != policy.spaces:
                raise ConfigError(
                    "the policy was built for other spaces than the environment's",
                    value=env.spaces,
                    remedy="build it from rlruntime.envs.make.describe(env).spaces",
                )
            shared = SharedRollouts(
                policy.spaces,
                policy.distribution,
                policy.state_shapes,
                num_steps=plan.num_steps,
                num_envs=plan.env.num_envs,
                num_rollouts=plan.num_rollouts,
                num_workers=plan.num_workers,
                memory=mmap.mmap(memory_fd, 0),
            )
            self._policy = policy.to(plan.device)
            self._receiver: Receiver = join(weights, {"policy": weights_of(policy)}, timeout_s=plan.timeout_s)
            self._control = shared.control[plan.index]
            self._collector = SegmentCollector(
                env,
                policy,
                [rollout.columns(plan.first, plan.last) for rollout in shared.rollouts],
                self._control,
                seed=plan.seed,
                index=plan.index,
                first_copy=plan.first,
            )
            self._buffer = None if plan.buffer is None else plan.buffer(buffer_fd)
        except BaseException:
            env.close()
            raise

    def serve(self) -> None:
        """Follow orders until told to quit."""
        sock = self._sock
        while True:
            kind = messages.read(sock, 1)
            if kind == QUIT:
                return
            try:
                if kind == COLLECT:
                    _, *order = ORDER.unpack(kind + messages.read(sock, ORDER.size - 1))
                    sock.sendall(self._collect(*order))
                else:
                    _, (name, argument) = messages.receive(sock)
                    answer = getattr(self, f"_on_{name}")(argument)
                    sock.sendall(ANSWER)
                    messages.send(sock, messages.VALUE, answer)
            except (EOFError, OSError):
                raise
            except Exception as error:
                sock.sendall(FAILED)
                messages.send(sock, messages.ERROR, to_worker_error(error))
                return

    def close(self) -> None:
        """Close environments and connections."""
        self._collector.close()
        self._receiver.close()

    def _collect(self, number: int, version: int, newest: bool, at_random: bool) -> bytes:
        collector, control = self._collector, self._control
        control.state = STEPPING
        env_before, policy_before, started = collector.env_seconds, collector.policy_seconds, perf_counter()
        if newest or version > self._receiver.version:
            collector.policy_version = self._receiver.acquire(version, self._plan.timeout_s)
        acquired = perf_counter()
        rollout = collector.collect_into(number, at_random=at_random)
        collected, num_written = perf_counter(), 0
        if self._buffer is not None:
            num_written = len(self._buffer.extend(transitions(rollout)))
        control.progress += 1
        control.state = IDLE
        return REPORT.pack(
            DONE,
            number,
            collector.policy_version,
            rollout.num_valid,
            num_written,
            collector.env_seconds - env_before,
            collector.policy_seconds - policy_before,
            acquired - started,
            perf_counter() - collected,
        )

    def _on_start(self, _: None) -> None:
        self._collector.start()

    def _on_snapshot(self, _: None) -> list[bytes] | None:
        return self._collector.snapshot()

    def _on_restore(self, snapshots: list[bytes]) -> None:
        self._collector.restore(snapshots)

    def _on_state(self, _: None) -> dict[str, Any]:
        return self._collector.state_dict()

    def _on_load_state(self, state: dict[str, Any]) -> None:
        self._collector.load_state_dict(state)

    def _on_reset(self, seeds: list[int]) -> None:
        self._collector.begin_episodes(seeds)

    def _on_restart(self, argument: tuple[list[int], dict[str, Any]]) -> None:
        self._collector.restart_episodes(*argument)


def weights_of(policy: Policy) -> ModuleState:
    """Return what workers need of a policy: all but what transforms keep of each environment copy."""
    of_copies = {
        f"transforms.{number}.{name}"
        for number, transform in enumerate(policy.transforms)
        for name in getattr(transform, "resizable_buffers", ())
    }
    return ModuleState(policy, leave_out=of_copies)
