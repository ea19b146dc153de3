"""What forked children must do at once, before any other code of theirs runs."""

from __future__ import annotations

import os
from collections.abc import Callable

_registered: set[Callable[[], None]] = set()


def in_forked_children(function: Callable[[], None]) -> None:
    """Call ``function`` in every child that is forked from now on. The interpreter can't take that back, so what was
    registered once stays, and is called once however often it is registered.
    """
    if function not in _registered:
        _registered.add(function)
        os.register_at_fork(after_in_child=function)
