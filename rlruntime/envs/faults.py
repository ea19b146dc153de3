"""Words for what goes wrong in an environment copy, and the check that its numbers can be learned from."""

from __future__ import annotations

import contextvars
import math
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from rlruntime.envs.protocol import StepSlot
from rlruntime.errors import EXIT_CONFIG, EnvironmentFault, shorten

_SMALL = 4096
_RUNTIME = str(Path(__file__).parents[1])
_NOT_OWN = (_RUNTIME, sysconfig.get_path("stdlib"), "<frozen")


class UnlearnableFault(EnvironmentFault):
    """An environment returned numbers that can't be learned from: NaN, infinity, a mask that allows nothing.

    It would do so again: the exit code is that of a configuration that can never work.
    """

    exit_code = EXIT_CONFIG


def where(copy: int, episode_step: int, total_step: int) -> str:
    """Return the words for a place: copies and steps count from 0 and 1."""
    return f"environment copy {copy} (step {episode_step} of its episode, {total_step} in total)"


def raised_in_step(copy: int, episode_step: int, total_step: int, error: BaseException) -> EnvironmentFault:
    """Return the fault for an exception in ``step``, with its traceback."""
    return _raised(f"{where(copy, episode_step, total_step)}: step raised", error)


def raised_in_batched_step(total_step: int, error: BaseException) -> EnvironmentFault:
    """Return the fault for an exception in the step of an environment that steps all its copies itself."""
    return _raised(f"environment copies, all of them (step {total_step}): step raised", error)


def raised_in_batched_reset(error: BaseException) -> EnvironmentFault:
    """Return the fault for an exception in the reset of an environment that steps all its copies itself."""
    return _raised("environment copies, all of them: reset raised", error)


def raised_in_reset(copy: int, error: BaseException) -> EnvironmentFault:
    """Return the fault for an exception in ``reset``, with its traceback."""
    return _raised(f"environment copy {copy}: reset raised", error)


def _raised(prefix: str, error: BaseException) -> EnvironmentFault:
    text = shorten(str(error), 300)
    return EnvironmentFault(
        f"{prefix} {type(error).__name__}{': ' if text else ''}{text}{place_of(error)}",
        worker_traceback="".join(traceback.format_exception(error)),
    )


def place_of(error: BaseException) -> str:
    """Return file and line where an environment raised, as ``" (my_env.py:12)"``; empty where nothing tells.

    It is the innermost line of the user's own code where there is one, not of a library that it called.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith(_NOT_OWN) and "site-packages" not in frame.filename
    ]
    foreign = [frame for frame in frames if not frame.filename.startswith(_RUNTIME)]
    found = own or foreign
    return f" ({Path(found[-1].filename).name}:{found[-1].lineno})" if found else ""


class FiniteCheck:
    """Tells whether a step's floats have neither NaN nor infinity, at a fraction of a microsecond for small arrays.

    A small array is multiplied with zeros: the product of NaN or infinity with 0 is NaN, of all else 0. A large one is
    summed in float64, where no sum of float32 values overflows. Not thread-safe; one per vector environment.

    Args:
        float_keys: keys of the float arrays of a Dict observation; ``("",)`` where the observation is one float array.
    """

    def __init__(self, float_keys: tuple[str, ...]) -> None:
        self._keys = float_keys
        self._zeros: dict[int, np.ndarray] = {}
        quiet = contextvars.copy_context()  # numpy keeps its error state in a context variable: no cost per call
        quiet.run(np.seterr, invalid="ignore", over="ignore")
        self._run = quiet.run

    def passes(self, slot: StepSlot) -> bool:
        """Tell whether observation and reward are finite."""
        observation = slot.observation
        for key in self._keys:
            if not self._finite(observation[key] if isinstance(observation, dict) else observation):
                return False
        return self._finite(slot.reward)

    def first_offender(self, slot: StepSlot) -> tuple[int, str, Any]:
        """Return copy, what, and values of the first row that has NaN or infinity."""
        for key in self._keys:
            array = slot.observation[key] if isinstance(slot.observation, dict) else slot.observation
            bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
            if bad.any():
                copy = int(np.argmax(bad))
                return copy, f"observation{f' {key!r}' if key else ''}", array[copy].tolist()
        copy = int(np.argmax(~np.isfinite(slot.reward)))
        return copy, "reward", float(slot.reward[copy])

    def _finite(self, array: np.ndarray) -> bool:
        flat = array.reshape(-1)
        size = flat.size
        if size > _SMALL:
            return math.isfinite(self._run(_sum, flat))
        zeros = self._zeros.get(size)
        if zeros is None:
            zeros = self._zeros.setdefault(size, np.zeros(size, np.float32))
        return bool(self._run(flat.dot, zeros) == 0)


def _sum(flat: np.ndarray) -> float:
    return float(flat.sum(dtype=np.float64))


def not_finite(copy: int, episode_step: int, total_step: int, what: str, values: Any) -> UnlearnableFault:
    """Return the fault for NaN or infinity."""
    return UnlearnableFault(
        f"{where(copy, episode_step, total_step)}: {what} is not finite: {shorten(str(values), 200)}"
    )


def no_action_allowed(copy: int, episode_step: int, total_step: int) -> UnlearnableFault:
    """Return the fault for a mask that allows nothing although the episode goes on."""
    return UnlearnableFault(f"{where(copy, episode_step, total_step)}: action_mask allows no action")


def mask_missing(copy: int, episode_step: int, total_step: int) -> UnlearnableFault:
    """Return the fault for an ``info`` that lacks its mask."""
    return UnlearnableFault(
        f"{where(copy, episode_step, total_step)}: info has no action_mask, although its first reset had one"
    )
