"""Functions of goals that configs of hindsight name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def reward(achieved: np.ndarray, desired: np.ndarray, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return 0 where the goal was reached, and -1 elsewhere, as in Gymnasium's goal environments."""
    missed: np.ndarray = (np.abs(achieved - desired).max(-1) > 0.25).astype(np.float32)
    return -missed


def terminated(achieved: np.ndarray, desired: np.ndarray, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return where the goal was reached."""
    reached: np.ndarray = reward(achieved, desired, columns) == 0
    return reached


def summed(achieved: np.ndarray, desired: np.ndarray, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a reward that tells every argument: goals, and the action of the row."""
    result: np.ndarray = 100 * achieved[:, 0] + desired[:, 0] + columns["action"] / 10
    return result


def too_few(achieved: np.ndarray, desired: np.ndarray, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a reward too few."""
    return np.zeros(len(achieved) + 1)
