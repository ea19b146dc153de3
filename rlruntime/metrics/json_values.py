"""Numbers as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """Return a tree with every float that isn't finite made None: JSON knows no NaN and no infinity.

    Keys become strings and tuples lists. Scalars, arrays and tensors of NumPy and of torch become
    Python's numbers and lists.
    """
    if isinstance(value, (str, int)) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return finite(value.tolist()) if hasattr(value, "tolist") else str(value)
