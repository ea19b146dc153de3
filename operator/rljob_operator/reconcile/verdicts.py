"""What the API server says of pods before anything is created.

A verdict is shared for some minutes between jobs whose pods differ in names alone, as those of a sweep do; of those
that ask at the same time, one asks the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.kube.client import KubeClient
from rljob_operator.kube.errors import AlreadyExists, Forbidden, Invalid

_MOST = 1024
_STAND_IN = "\x00"
_UID_CHARS = 8


class Verdicts:
    """Asks the API server to judge pods, and remembers what it found good.

    Args:
        keep_s: for how long.
        monotonic: seconds on a clock that never jumps.
    """

    def __init__(self, client: KubeClient, *, keep_s: float, monotonic: Callable[[], float]) -> None:
        self._client, self._keep_s, self._monotonic = client, keep_s, monotonic
        self._good: OrderedDict[str, float] = OrderedDict()
        self._asking: dict[str, asyncio.Future[str]] = {}

    async def problem_of(self, owner: Owner, pod: KubeObject) -> str:
        """Return why the API server refuses ``pod``, in its words; empty when it takes it.

        A refusal for want of quota or rights is no fault of the pod: what is created later meets it, and waits.

        Raises:
            KubeError: there is no verdict, for want of an answer or of the namespace.
        """
        key = fingerprint(owner, pod)
        if self._is_good(key):
            return ""
        if (other := self._asking.get(key)) is not None:
            try:
                return await asyncio.shield(other)
            except asyncio.CancelledError:
                if not other.cancelled():
                    raise
                return await self._ask(key, pod)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else may have waited
        self._asking[key] = answer
        try:
            problem = await self._ask(key, pod)
        except Exception as error:
            answer.set_exception(error)
            raise
        except BaseException:
            answer.cancel()
            raise
        else:
            answer.set_result(problem)
            return problem
        finally:
            del self._asking[key]

    async def _ask(self, key: str, pod: KubeObject) -> str:
        try:
            await self._client.create(pod, dry_run=True)
        except AlreadyExists:
            pass  # it was found valid before its name was looked up
        except Invalid as error:
            return error.message or str(error)
        except Forbidden as error:
            if error.namespace_is_going:
                raise
            return ""
        self._good[key] = self._monotonic() + self._keep_s
        while len(self._good) > _MOST:
            self._good.popitem(last=False)
        return ""

    def _is_good(self, key: str) -> bool:
        until = self._good.get(key)
        if until is None:
            return False
        if until <= self._monotonic():
            del self._good[key]
            return False
        self._good.move_to_end(key)
        return True


def fingerprint(owner: Owner, pod: KubeObject) -> str:
    """Return a digest that is the same for pods of one namespace that differ only in what their jobs are called."""
    about = pod["metadata"]
    stem = f"{owner.name}-{owner.uid[:_UID_CHARS]}"

    def neutral(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: neutral(item) for key, item in value.items()}
        if isinstance(value, list):
            return [neutral(item) for item in value]
        if isinstance(value, str):
            if value in (owner.name, owner.uid):
                return _STAND_IN
            if value.startswith(f"{stem}-token"):
                return f"{_STAND_IN}-token"
            if value.startswith(stem):
                return _STAND_IN + value[len(stem) :]
        return value

    content = {
        "namespace": owner.namespace,
        "labels": neutral(about.get("labels")),
        "annotations": neutral(about.get("annotations")),
        "spec": neutral(pod["spec"]),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
