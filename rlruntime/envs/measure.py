"""How fast each backend steps an environment with random actions. For advice; no run depends on it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces as gs

from rlruntime.envs.make import make_vector_env, resolve_backend
from rlruntime.envs.process_pool import usable_cores
from rlruntime.envs.protocol import EnvSpaces, StepSlot, VectorEnv, allocate_slot
from rlruntime.errors import RLJobError
from rlruntime.spec.training.env import EnvConfig

_WARM_UP_STEPS, _STEPS_PER_CHECK, _ACTION_SETS = 8, 8, 64


@dataclass(frozen=True)
class BackendMeasurement:
    """What one backend showed.

    Attributes:
        backend: its name.
        num_workers: processes or threads; None where it has none.
        frames_per_second: valid steps of all copies per second; 0 where it can't be used.
        reason: why it can't be used, in one line; empty where it can.
    """

    backend: str
    num_workers: int | None
    frames_per_second: float
    reason: str = ""


def measure_backends(config: EnvConfig, seconds: float = 3.0) -> list[BackendMeasurement]:
    """Measure every backend for an environment, one after the other.

    Args:
        config: the environment; its ``backend`` is not looked at.
        seconds: how long each is stepped, start not counted.

    Returns:
        One entry per backend, and for the process pool one per sensible number of workers.
    """
    cores = usable_cores()
    candidates: list[tuple[str, int | None]] = [("Loop", None), ("VectorEntryPoint", None)]
    candidates += [("ProcessPool", workers) for workers in _worker_counts(cores, config.num_envs)]
    candidates.append(("EnvPool", min(cores, config.num_envs)))
    return [_measure(config, backend, workers, seconds) for backend, workers in candidates]


def advise(config: EnvConfig, measurements: list[BackendMeasurement]) -> str:
    """Return one line: what to put into ``spec.training.env``. Within 10 % of the fastest, the choice of Auto wins.

    EnvPool counts only where it has been chosen already: its environments are its own and may differ from Gymnasium's.
    """
    usable = [m for m in measurements if not m.reason and (m.backend != "EnvPool" or config.backend == "EnvPool")]
    if not usable:
        return "no backend can run this environment"
    best = max(usable, key=lambda m: m.frames_per_second)
    auto = resolve_backend(config.model_copy(update={"backend": "Auto"}))
    tolerated = [m for m in usable if m.backend == auto and m.frames_per_second >= 0.9 * best.frames_per_second]
    if tolerated:
        chosen = max(tolerated, key=lambda m: m.frames_per_second)
        extra = f", numWorkers: {chosen.num_workers}" if chosen.num_workers else ""
        return f"leave spec.training.env.backend at Auto ({auto}{extra})"
    workers = f" and numWorkers: {best.num_workers}" if best.num_workers else ""
    return f"set spec.training.env.backend: {best.backend}{workers}"


def random_actions(spaces: EnvSpaces, slot: StepSlot, rng: np.random.Generator) -> np.ndarray:
    """Return one allowed random action per copy, counted from 0: ``[B]``, or ``[B, ...]`` for several dimensions."""
    num_envs = len(slot.reward)
    action = spaces.action
    if isinstance(action, gs.Box):
        # Unbounded sides are drawn close to 0.
        low = np.where(np.isfinite(action.low), action.low, -1.0)
        high = np.where(np.isfinite(action.high), action.high, 1.0)
        drawn: np.ndarray = rng.uniform(low, high, (num_envs, *action.shape)).astype(action.dtype)
        return drawn
    sizes = np.atleast_1d(action.nvec if isinstance(action, gs.MultiDiscrete) else np.asarray(action.n)).reshape(-1)  # type: ignore[attr-defined]
    columns, start = [], 0
    for size in sizes.tolist():
        scores = rng.random((num_envs, size))
        if slot.action_mask is not None:
            scores += slot.action_mask[:, start : start + size]
        columns.append(scores.argmax(axis=1))
        start += size
    return np.stack(columns, axis=1).reshape(num_envs, *(action.shape or ()))


def _worker_counts(cores: int, num_envs: int) -> list[int]:
    counts, count = [], 1
    while count < cores:
        counts.append(count)
        count *= 2
    return sorted({min(count, num_envs) for count in [*counts, cores]} - ({1} if cores > 1 and num_envs > 1 else set()))


def _measure(config: EnvConfig, backend: str, workers: int | None, seconds: float) -> BackendMeasurement:
    changed = config.model_copy(update={"num_workers": workers})
    try:
        env = make_vector_env(changed, backend=backend)
    except RLJobError as error:
        return BackendMeasurement(backend, workers, 0.0, str(error))
    try:
        return BackendMeasurement(backend, workers, _frames_per_second(env, seconds))
    except RLJobError as error:
        return BackendMeasurement(backend, workers, 0.0, str(error))
    finally:
        env.close()


def _frames_per_second(env: VectorEnv, seconds: float) -> float:
    rng = np.random.default_rng(0)
    slot = allocate_slot(env.spaces, env.num_envs)
    env.reset(range(env.num_envs), slot)
    masked = slot.action_mask is not None
    actions = [random_actions(env.spaces, slot, rng) for _ in range(1 if masked else _ACTION_SETS)]
    frames = step = 0
    started = time.perf_counter()
    while True:
        env.step(random_actions(env.spaces, slot, rng) if masked else actions[step % len(actions)], slot)
        step += 1
        frames += int(np.count_nonzero(slot.valid))
        if step == _WARM_UP_STEPS:
            frames, started = 0, time.perf_counter()
        elif step % _STEPS_PER_CHECK == 0 and (elapsed := time.perf_counter() - started) >= seconds:
            return frames / elapsed
