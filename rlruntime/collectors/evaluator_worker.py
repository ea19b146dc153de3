"""The process of an evaluator beside training: whole episodes with the newest weights, whenever that is asked for."""

from __future__ import annotations

import pickle
import select
import socket
import struct
from dataclasses import dataclass

import torch

from rlruntime.collectors.episode_runs import run_episodes
from rlruntime.collectors.worker import DONE, FAILED, QUIT, weights_of
from rlruntime.envs import messages
from rlruntime.envs.worker import prepare_process, to_worker_error
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.env import EnvConfig
from rlruntime.transforms.staging import make_transformed_env
from rlruntime.weights.joining import join
from rlruntime.weights.protocol import Receiver

EVALUATE = b"c"
ORDER = struct.Struct("=cq")
"""Kind, and the version to evaluate, or a later one."""
REPORT = struct.Struct("=cqq")
"""Kind, version, number of episodes; their rewards (float64) and lengths (int64) follow."""


@dataclass(frozen=True)
class EvaluatorPlan:
    """First message.

    Attributes:
        env: the environment.
        num_envs, backend: of the copies, which are stepped together; None for those of ``env``.
        policy: pickled, on the CPU.
        seeds: of the episodes.
        noise_seed: of the actions, where they are sampled; None takes the most probable ones.
        timeout_s: that acquiring weights may take.
    """

    env: EnvConfig
    num_envs: int | None
    backend: str | None
    policy: bytes
    seeds: tuple[int, ...]
    noise_seed: int | None
    timeout_s: float


def main(socket_fd: int, _memory_fd: int, trace_fd: int, lifeline_fd: int, parent_pid: int, weights_fd: int) -> None:
    """Serve until told to quit; see `rlruntime.collectors.worker.main`."""
    prepare_process(trace_fd, lifeline_fd, parent_pid)
    torch.set_num_threads(1)
    with socket.socket(fileno=socket_fd) as sock, socket.socket(fileno=weights_fd) as weights:
        try:
            kind, plan = messages.receive(sock)
            if kind == messages.VALUE:
                _serve(plan, sock, weights)
        except (EOFError, OSError):  # the parent is gone or has given up on this process
            return


def _serve(plan: EvaluatorPlan, sock: socket.socket, weights: socket.socket) -> None:
    try:
        policy: Policy = pickle.loads(plan.policy)
        env = make_transformed_env(plan.env, num_envs=plan.num_envs, backend=plan.backend, evaluation=True)
    except Exception as error:
        messages.send(sock, messages.ERROR, to_worker_error(error))
        return
    try:
        receiver: Receiver = join(weights, {"policy": weights_of(policy)}, timeout_s=plan.timeout_s)
        messages.send(sock, messages.DONE)
        while True:
            version = _newest_order(sock)
            if version is None:
                return
            try:
                version = receiver.acquire(version, plan.timeout_s)
                generator = None
                if plan.noise_seed is not None:
                    generator = torch.Generator().manual_seed(plan.noise_seed)
                returns, lengths = run_episodes(env, policy, plan.seeds, generator)
            except (EOFError, OSError):
                raise
            except Exception as error:
                sock.sendall(FAILED)
                messages.send(sock, messages.ERROR, to_worker_error(error))
                return
            sock.sendall(REPORT.pack(DONE, version, len(returns)) + returns.tobytes() + lengths.tobytes())
    finally:
        env.close()


def _newest_order(sock: socket.socket) -> int | None:
    """Wait for an order, skip those that a later one overtook, and return its version; None to quit."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while True:
        kind = messages.read(sock, 1)
        if kind == QUIT:
            return None
        _, version = ORDER.unpack(kind + messages.read(sock, ORDER.size - 1))
        if not poller.poll(0):
            return int(version)
