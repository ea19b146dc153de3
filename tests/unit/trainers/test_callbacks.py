from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlruntime.errors import CheckpointError
from rlruntime.trainers.callbacks import HOOKS, Callback, CallbackList, Stop


class Recorder(Callback):
    def __init__(self, log: list[str], name: str = "recorder", stop: Stop | None = None) -> None:
        self.log, self.name, self.stop, self.count = log, name, stop, 0

    def on_rollout_end(self, trainer: Any, rollout: Any) -> Stop | None:
        self.log.append(f"{self.name} {trainer} {rollout}")
        self.count += 1
        return self.stop

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class Failing(Callback):
    def __init__(self, words: str) -> None:
        self.words = words

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        raise ValueError(self.words)

    def on_shutdown(self, trainer: Any) -> None:
        raise ValueError(self.words)


class Late(Callback):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        self.log.append(f"exception {error}")

    def on_shutdown(self, trainer: Any) -> None:
        self.log.append("shutdown")


class Duck:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_batch(self, trainer: Any, batch: Any) -> None:
        self.seen.append(batch)


def test_hooks_are_called_in_order_and_the_first_stop_wins() -> None:
    log: list[str] = []
    callbacks = CallbackList(
        [Recorder(log, "a"), Recorder(log, "b", Stop("enough")), Recorder(log, "c", Stop("more than enough"))]
    )
    assert callbacks.on_rollout_end("trainer", 7) == Stop("enough")
    assert log == ["a trainer 7", "b trainer 7", "c trainer 7"]


def test_hooks_that_nobody_has_are_not_active_and_do_nothing() -> None:
    callbacks = CallbackList([Recorder([])])
    assert callbacks.active == {"on_rollout_end"}
    assert callbacks.on_batch("trainer", 1) is None
    assert CallbackList().active == frozenset()


def test_any_object_with_a_hook_is_a_callback() -> None:
    duck = Duck()
    callbacks = CallbackList([duck])
    assert callbacks.active == {"on_batch"}
    callbacks.on_batch("trainer", 3)
    assert duck.seen == [3]
    assert callbacks.state_dict() == {}


def test_every_hook_reaches_a_callback_that_has_it() -> None:
    calls: list[str] = []
    methods: dict[str, Any] = {hook: lambda self, *args, hook=hook: calls.append(hook) for hook in HOOKS}
    callbacks = CallbackList([type("All", (Callback,), methods)()])
    assert callbacks.active == frozenset(HOOKS)
    callbacks.on_setup("t")
    callbacks.on_rollout_end("t", 0)
    callbacks.on_batch("t", 0)
    callbacks.on_before_optimizer_step("t")
    callbacks.on_update_end("t", {})
    callbacks.on_evaluation_end("t", 0)
    callbacks.on_checkpoint("t", Path())
    callbacks.on_exception("t", ValueError())
    callbacks.on_shutdown("t")
    assert tuple(calls) == HOOKS


def test_all_hear_of_an_exception_though_one_fails_and_the_cause_is_not_hidden() -> None:
    log: list[str] = []
    cause = RuntimeError("cause")
    CallbackList([Failing("first"), Late(log)]).on_exception("trainer", cause)
    assert log == ["exception cause"]
    assert cause.__notes__ == ["Failing.on_exception raised ValueError: first"]


def test_all_are_shut_down_though_some_fail_and_the_first_failure_is_raised() -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match="first") as caught:
        CallbackList([Failing("first"), Failing("second"), Late(log)]).on_shutdown("trainer")
    assert log == ["shutdown"]
    assert caught.value.__notes__ == ["Failing.on_shutdown raised ValueError: second"]


def test_state_goes_to_the_callback_of_the_same_place_and_class() -> None:
    first, second = Recorder([]), Recorder([])
    callbacks = CallbackList([first, Late([]), second])
    first.count, second.count = 3, 5
    state = callbacks.state_dict()
    assert state == {"0.Recorder": {"count": 3}, "1.Late": {}, "2.Recorder": {"count": 5}}
    restored = CallbackList([Recorder([]), Late([]), Recorder([]), Recorder([])])
    restored.load_state_dict(state)
    assert [callback.count for callback in restored.callbacks if isinstance(callback, Recorder)] == [3, 5, 0]


def test_state_without_its_callback_is_refused_unless_it_is_empty() -> None:
    CallbackList([]).load_state_dict({"0.Late": {}})
    with pytest.raises(CheckpointError) as caught:
        CallbackList([Late([])]).load_state_dict({"0.Recorder": {"count": 3}})
    assert str(caught.value) == (
        "spec.training.callbacks: the checkpoint holds the state of a callback that this run does not have "
        "(got '0.Recorder'); give the callbacks in the order of the run that wrote it"
    )
