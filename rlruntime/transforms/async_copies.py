"""Copies of an asynchronous pool behind transforms: each has its own, which remember its episode alone.

It is the module of the pool's worker processes, too, which import torch for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from rlruntime.envs.async_worker import AsyncServer
from rlruntime.envs.make import describe
from rlruntime.envs.protocol import VectorEnv
from rlruntime.envs.spaces import EnvLayout
from rlruntime.envs.worker import serve
from rlruntime.spec.training.env import EnvConfig
from rlruntime.transforms.staging import make_transformed_env


class TransformedCopies:
    """What `rlruntime.envs.async_pool.AsyncEnvPool` makes copies by, where transforms work in the environment."""

    module = __name__

    def describe(self, config: EnvConfig) -> EnvLayout:
        """See `rlruntime.envs.async_worker.Copies`."""
        env = self.make(config, None, 0)
        try:
            return replace(describe(config), spaces=env.spaces)
        finally:
            env.close()

    def make(self, config: EnvConfig, layout: EnvLayout | None, copy: int) -> VectorEnv:
        """See `rlruntime.envs.async_worker.Copies`."""
        return make_transformed_env(config, num_envs=1, first_copy=copy, backend="Loop")


class TransformingServer(AsyncServer):
    """Steps copies behind transforms."""

    copies = TransformedCopies()

    def read_config(self, fields: dict[str, Any]) -> EnvConfig:
        """Return the config with its class: transforms need it."""
        return EnvConfig.model_validate(fields)


def main(socket_fd: int, memory_fd: int, trace_fd: int, lifeline_fd: int, parent_pid: int) -> None:
    """Serve until told to quit; see `rlruntime.envs.worker.main`."""
    torch.set_num_threads(1)
    serve(TransformingServer, socket_fd, memory_fd, trace_fd, lifeline_fd, parent_pid)
