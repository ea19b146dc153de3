"""What can go wrong with a cluster for tests."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster didn't do what it should; ``str(error)`` says what, with the end of the log that tells why."""


class Unavailable(ClusterError):
    """This machine lacks what such a cluster needs; ``str(error)`` names it, and what to do."""
