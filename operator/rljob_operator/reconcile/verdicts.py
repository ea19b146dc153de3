"""What the API server says of pods before anything is created.

A verdict is shared for some minutes between jobs whose pods differ in names alone, as those of a sweep do; of those
that ask at the same time, one asks the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable

from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.kube.client import KubeClient
from rljob_operator.kube.errors import AlreadyExists, Forbidden, Invalid, ServerError

_MOST = 1024
_STAND_IN = "\x00"
"""Stands in for a quoted name; no JSON text holds it as it is."""
_TOKEN_NAME = re.compile(f"{_STAND_IN}-token-[0-9a-z]+")
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

        A refusal for want of quota or rights is no fault of the pod, nor is a webhook that is away: what is created
        later meets it, and waits.

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
        except ServerError as error:
            if not error.is_webhook:
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
    content = [owner.namespace, about.get("labels"), about.get("annotations"), pod["spec"]]
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    for name in (owner.name, owner.uid):
        if f'"{name}":' not in text:  # a job may be called as a field is; then it shares nothing
            text = text.replace(f'"{name}"', _STAND_IN)
    text = text.replace(f'"{owner.name}-{owner.uid[:_UID_CHARS]}', _STAND_IN)
    text = _TOKEN_NAME.sub(_STAND_IN, text)
    return hashlib.sha256(text.encode()).hexdigest()
