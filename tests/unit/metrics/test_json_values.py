from __future__ import annotations

import numpy as np
import torch

from rlruntime.metrics.json_values import finite


def test_values_that_json_lacks_become_null_or_plain_numbers() -> None:
    tree = {"a": float("nan"), 2: [float("-inf"), 1.5, None, True], "c": (np.float32(0.5), np.int64(7)), "d": "text"}
    assert finite(tree) == {"a": None, "2": [None, 1.5, None, True], "c": [0.5, 7], "d": "text"}


def test_arrays_and_tensors_become_lists() -> None:
    tree = {"array": np.array([[1.0, np.nan]]), "scalar": torch.tensor(2), "tensor": torch.tensor([0.5, float("inf")])}
    assert finite(tree) == {"array": [[1.0, None]], "scalar": 2, "tensor": [0.5, None]}
