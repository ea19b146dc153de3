from __future__ import annotations

import numpy as np

from rlruntime.metrics.json_values import finite


def test_values_that_json_lacks_become_null_or_plain_numbers() -> None:
    tree = {"a": float("nan"), 2: [float("-inf"), 1.5, None, True], "c": (np.float32(0.5), np.int64(7)), "d": "text"}
    assert finite(tree) == {"a": None, "2": [None, 1.5, None, True], "c": [0.5, 7], "d": "text"}
