"""A job by its name, with the nearest name where there is none."""

from __future__ import annotations

import difflib
import re

from rlruntime.cli.cluster.api import Api, ApiError, JsonObject, jobs_path
from rlruntime.errors import ConfigError, RLJobError

_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


async def find_job(api: Api, namespace: str, name: str) -> JsonObject:
    """Return a job.

    Raises:
        ConfigError: there is none of this name.
        ApiError: the server refuses.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError("no job can have this name", value=name)
    try:
        return await api.get(jobs_path(namespace, name))
    except ApiError as error:
        if error.code != 404 or error.reason != "NotFound":
            raise
    remedy = await _near(api, namespace, name)
    raise ConfigError(f"there is no job of this name in the namespace {namespace}", value=name, remedy=remedy)


async def _near(api: Api, namespace: str, name: str) -> str:
    """Return what the user may have meant."""
    try:
        items, _ = await api.list(jobs_path(namespace))
    except RLJobError:  # whoever may get a job need not be allowed to list them
        return "see rljob top"
    known = [str(item["metadata"]["name"]) for item in items]
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else "see rljob top -A"
