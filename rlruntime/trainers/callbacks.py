"""Code of the user's that is called at the phases of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlruntime.errors import CheckpointError

HOOKS = (
    "on_setup",
    "on_rollout_end",
    "on_batch",
    "on_before_optimizer_step",
    "on_update_end",
    "on_evaluation_end",
    "on_checkpoint",
    "on_exception",
    "on_shutdown",
)


@dataclass(frozen=True)
class Stop:
    """Returned by a hook to end training at the next phase boundary; ``reason`` goes into the result."""

    reason: str


class Callback:
    """Base of callbacks. Override what is needed; every hook but the last two may return ``Stop``.

    A hook sees the trainer and may read and change it. What a callback must remember over a resume it returns from
    ``state_dict``: a tree of dicts, lists, tensors, arrays, bytes, numbers, strings and None.
    """

    def on_setup(self, trainer: Any) -> Stop | None:
        """Everything is built or restored, nothing has been collected yet."""

    def on_rollout_end(self, trainer: Any, rollout: Any) -> Stop | None:
        """A rollout was collected: a TensorDict ``[T, B]``."""

    def on_batch(self, trainer: Any, batch: Any) -> Stop | None:
        """A minibatch is about to go through the loss. Called for each optimiser step."""

    def on_before_optimizer_step(self, trainer: Any) -> Stop | None:
        """Gradients are computed and clipped, parameters not yet changed. Called for each optimiser step."""

    def on_update_end(self, trainer: Any, record: Mapping[str, Any]) -> Stop | None:
        """The rollout has been learned from; ``record`` is what the loggers get."""

    def on_evaluation_end(self, trainer: Any, result: Any) -> Stop | None:
        """An evaluation ended."""

    def on_checkpoint(self, trainer: Any, path: Path) -> Stop | None:
        """A checkpoint was written to the folder ``path`` and is now the latest."""

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        """Training ends by ``error``, which is raised again afterwards."""

    def on_shutdown(self, trainer: Any) -> None:
        """Training is over, however it ended. Free what the callback holds."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must keep."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned."""


class CallbackList:
    """Calls the hooks of several callbacks in order.

    Attributes:
        active: names of the hooks that at least one callback has; a hot loop asks ``"on_batch" in callbacks.active``
            once and calls nothing when it is not. Any object with some of the hooks is a callback; it need not derive
            from ``Callback``.
    """

    def __init__(self, callbacks: Iterable[Any] = ()) -> None:
        self.callbacks = tuple(callbacks)
        self._bound = {hook: tuple(cb for cb in self.callbacks if _overrides(cb, hook)) for hook in HOOKS}
        self.active = frozenset(hook for hook, bound in self._bound.items() if bound)

    def on_setup(self, trainer: Any) -> Stop | None:
        """See `Callback.on_setup`."""
        return self._call("on_setup", trainer)

    def on_rollout_end(self, trainer: Any, rollout: Any) -> Stop | None:
        """See `Callback.on_rollout_end`."""
        return self._call("on_rollout_end", trainer, rollout)

    def on_batch(self, trainer: Any, batch: Any) -> Stop | None:
        """See `Callback.on_batch`."""
        return self._call("on_batch", trainer, batch)

    def on_before_optimizer_step(self, trainer: Any) -> Stop | None:
        """See `Callback.on_before_optimizer_step`."""
        return self._call("on_before_optimizer_step", trainer)

    def on_update_end(self, trainer: Any, record: Mapping[str, Any]) -> Stop | None:
        """See `Callback.on_update_end`."""
        return self._call("on_update_end", trainer, record)

    def on_evaluation_end(self, trainer: Any, result: Any) -> Stop | None:
        """See `Callback.on_evaluation_end`."""
        return self._call("on_evaluation_end", trainer, result)

    def on_checkpoint(self, trainer: Any, path: Path) -> Stop | None:
        """See `Callback.on_checkpoint`."""
        return self._call("on_checkpoint", trainer, path)

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        """Tell every callback. What one raises becomes a note on ``error``, so that it never hides the cause."""
        for raised, callback in self._call_all("on_exception", trainer, error):
            error.add_note(f"{type(callback).__name__}.on_exception raised {type(raised).__name__}: {raised}")

    def on_shutdown(self, trainer: Any) -> None:
        """Tell every callback; then raise what the first of them raised, with a note for each other one."""
        failures = self._call_all("on_shutdown", trainer)
        if not failures:
            return
        first = failures[0][0]
        for raised, callback in failures[1:]:
            first.add_note(f"{type(callback).__name__}.on_shutdown raised {type(raised).__name__}: {raised}")
        raise first

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each callback by its place and class, such as ``0.EarlyStop``."""
        return {
            _key(index, callback): callback.state_dict()
            for index, callback in enumerate(self.callbacks)
            if hasattr(callback, "state_dict")
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``. A callback that it doesn't know starts anew.

        Raises:
            CheckpointError: the state of a callback would be lost, since no callback of that class is at that place.
        """
        by_key = {_key(index, callback): callback for index, callback in enumerate(self.callbacks)}
        for key, callback_state in state.items():
            callback = by_key.get(key)
            if callback is not None and hasattr(callback, "load_state_dict"):
                callback.load_state_dict(callback_state)
            elif callback_state:
                raise CheckpointError(
                    "the checkpoint holds the state of a callback that this run does not have",
                    field="spec.training.callbacks",
                    value=key,
                    remedy="give the callbacks in the order of the run that wrote it",
                )

    def _call(self, hook: str, *args: Any) -> Stop | None:
        """Call all that have the hook, in order; the first ``Stop`` wins."""
        stop: Stop | None = None
        for callback in self._bound[hook]:
            answer = getattr(callback, hook)(*args)
            if stop is None and isinstance(answer, Stop):
                stop = answer
        return stop

    def _call_all(self, hook: str, *args: Any) -> list[tuple[Exception, Any]]:
        failures: list[tuple[Exception, Any]] = []
        for callback in self._bound[hook]:
            try:
                getattr(callback, hook)(*args)
            except Exception as raised:
                failures.append((raised, callback))
        return failures


def _key(index: int, callback: Any) -> str:
    return f"{index}.{type(callback).__name__}"


def _overrides(callback: Any, hook: str) -> bool:
    method = getattr(callback, hook, None)
    return method is not None and getattr(method, "__func__", method) is not getattr(Callback, hook)
