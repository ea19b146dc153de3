"""What can go wrong with a buffer while it is used."""

from __future__ import annotations

from rlruntime.errors import EXIT_TRY_AGAIN, RLJobError


class TooFewRowsError(RLJobError):
    """A batch was asked of a buffer that doesn't hold enough rows yet."""

    exit_code = EXIT_TRY_AGAIN
