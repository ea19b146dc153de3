"""What every scheme between processes promises, seen from within the receiving process."""

from __future__ import annotations

import socket
import threading

import pytest
import torch
from torch import nn
from weight_processes import Make, MemberProcess, extremes, fill, make_models

from rlruntime.errors import ConfigError
from rlruntime.weights.joining import join
from rlruntime.weights.protocol import Receiver, Status, WeightSyncError


def test_a_rollout_that_starts_after_publish_acts_with_that_version(make: Make) -> None:
    models = make_models()
    publisher = make(models)
    with MemberProcess(publisher, "a") as a, MemberProcess(publisher, "b") as b:
        publisher.wait_joined(30.0)
        assert (a.answer()["joined"], b.answer()["joined"]) == (1, 2)
        assert publisher.publish(fill(models, 7)).version == 1
        assert a.acquire() == {"version": 1, "extremes": [7.0, 7.0]}
        publication = publisher.publish(fill(models, 8))
        assert a.acquire() == {"version": 2, "extremes": [8.0, 8.0]}
        assert b.acquire() == {"version": 2, "extremes": [8.0, 8.0]}
        outcomes = publication.wait_applied(30.0)
        assert {name: (outcome.version, outcome.status) for name, outcome in outcomes.items()} == {
            "a": (2, Status.APPLIED),
            "b": (2, Status.APPLIED),
        }


def test_weights_stay_until_the_next_acquisition(make: Make) -> None:
    models = make_models()
    publisher = make(models)
    ours = fill(make_models(), -1)
    receiver = join(publisher.invite("here"), ours)
    publisher.wait_joined(30.0)
    publisher.publish(fill(models, 1))
    assert receiver.version == 0
    assert receiver.acquire(0, 30.0) == 1
    kept = {name: tensor.clone() for name, tensor in ours["actor"].state_dict().items()}
    publisher.publish(fill(models, 2))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in ours["actor"].state_dict().items())
    assert receiver.acquire(2, 30.0) == 2
    assert ours["critic"].weight.unique().tolist() == [2.0]  # type: ignore[operator]
    receiver.close()
    receiver.close()


def test_every_kind_of_tensor_arrives_bit_for_bit_and_ties_stay(make: Make) -> None:
    torch.manual_seed(3)
    models = make_models()
    publisher = make(models)
    ours = fill(make_models(), -1)
    receiver = join(publisher.invite("here"), ours)
    publisher.wait_joined(30.0)
    publisher.publish(models)
    receiver.acquire(1, 30.0)
    for name, module in models.items():
        for key, tensor in module.state_dict().items():
            assert torch.equal(tensor, ours[name].state_dict()[key])
    actor = ours["actor"]
    assert actor.decoder.weight is actor.encoder.weight  # type: ignore[union-attr]
    receiver.close()


def test_an_acquisition_waits_for_its_version_and_fails_at_its_deadline(make: Make) -> None:
    models = make_models()
    publisher = make(models)
    with MemberProcess(publisher, "a") as a:
        publisher.wait_joined(30.0)
        a.answer()
        a.tell(do="acquire", min_version=2, timeout_s=30.0)
        publisher.publish(fill(models, 1))
        publisher.publish(fill(models, 2))
        assert a.answer() == {"version": 2, "extremes": [2.0, 2.0]}
        assert a.acquire(3, timeout_s=0.05) == {
            "error": "WeightSyncError: no version 3 or later came within 0.05 s; the newest is 2",
            "extremes": [2.0, 2.0],
            "version": 2,
        }


def test_a_receiver_with_other_weights_is_refused_before_a_byte_moves_and_the_publisher_hears_why(make: Make) -> None:
    models = fill(make_models(), 5)
    publisher = make(models)
    publisher.publish(models)
    words = (
        "ConfigError: this receiver's weights are not those that are published: actor/decoder.bias is "
        "float32[8] in the manifest, float32[9] here; build it from the same network"
    )
    with MemberProcess(publisher, "a", size=9) as a:
        with pytest.raises(WeightSyncError) as caught:
            publisher.wait_joined(30.0)
        assert str(caught.value) == f"not all have joined: a refused at version 0: {words}"
        assert a.answer() == {"error": words, "extremes": [-1.0, -1.0]}


def test_a_receiver_that_ties_otherwise_is_refused(make: Make) -> None:
    publisher = make(make_models())
    with MemberProcess(publisher, "a", tied=False), pytest.raises(WeightSyncError) as caught:
        publisher.wait_joined(30.0)
    assert caught.value.outcomes["a"].status == Status.REFUSED
    assert (
        "actor/encoder.weight is float32[8, 4] tied to actor/decoder.weight in the manifest, float32[8, 4] here"
        in caught.value.outcomes["a"].words
    )


def test_several_models_change_all_or_nothing_and_a_failure_raises_in_the_publisher(make: Make) -> None:
    models = make_models()
    publisher = make(models)
    with MemberProcess(publisher, "a") as a:
        publisher.wait_joined(30.0)
        a.answer()
        publisher.publish(fill(models, 1))
        a.acquire(1)
        a.ask(do="replace_critic")
        publication = publisher.publish(fill(models, 2))
        words = (
            "ConfigError: the weights are not those agreed on: critic/bias is bfloat16[8] in the manifest, "
            "float32[9] here; keep names, shapes, dtypes and ties, or start publisher and receivers anew"
        )
        assert a.acquire(2)["error"] == words
        with pytest.raises(WeightSyncError) as caught:
            publication.wait_applied(30.0)
        assert str(caught.value) == f"version 2 is not applied by all: a failed at version 2: {words}"
        a.ask(do="restore_critic")
        assert publisher.publish(fill(models, 3)).version == 3
        assert a.acquire(3) == {"version": 3, "extremes": [3.0, 3.0]}


def test_a_failed_acquisition_leaves_every_model_at_the_old_version(make: Make) -> None:
    models = make_models()
    publisher = make(models)
    ours = fill(make_models(), -1)
    receiver = join(publisher.invite("here"), ours)
    publisher.wait_joined(30.0)
    publisher.publish(fill(models, 1))
    receiver.acquire(1, 30.0)
    whole = ours["critic"]
    ours["critic"] = nn.Linear(4, 9)
    publisher.publish(fill(models, 2))
    with pytest.raises(ConfigError):
        receiver.acquire(2, 30.0)
    ours["critic"] = whole
    assert receiver.version == 1
    assert ours["actor"].encoder.weight.unique().tolist() == [1.0]  # type: ignore[operator, union-attr]
    assert whole.weight.unique().tolist() == [1.0]  # type: ignore[operator]
    with pytest.raises(WeightSyncError, match=r"version 3 is published, but not for all: here failed at version 2: "):
        publisher.publish(fill(models, 3))
    assert receiver.acquire(3, 30.0) == 3
    publisher.publish(fill(models, 4))
    receiver.close()


def test_weights_that_changed_their_kind_are_not_published(make: Make) -> None:
    models = make_models()
    publisher = make(models)
    publisher.publish(models)
    models["critic"] = models["critic"].to(torch.float32)
    with pytest.raises(ConfigError, match=r"critic/bias is bfloat16\[8\] in the manifest, float32\[8\] here"):
        publisher.publish(models)
    assert publisher.version == 1


def test_a_member_that_has_not_acquired_in_time_is_late(make: Make) -> None:
    models = make_models()
    publisher = make(models)
    receiver = join(publisher.invite("here"), make_models())
    publisher.wait_joined(30.0)
    first = publisher.publish(models)
    with pytest.raises(WeightSyncError) as caught:
        first.wait_applied(0.01)
    assert str(caught.value) == "version 1 is not applied by all: here late at version 0: has no weights yet"
    receiver.acquire(1, 30.0)
    with pytest.raises(WeightSyncError, match="here late at version 1: acts with version 1"):
        publisher.publish(models).wait_applied(0.01)
    assert first.wait_applied(30.0)["here"].status == Status.APPLIED
    receiver.close()


def test_numbers_go_on_where_an_earlier_publisher_ended(make: Make) -> None:
    models = make_models()
    publisher = make(models, last_version=41)
    receiver = join(publisher.invite("here"), make_models())
    publisher.wait_joined(30.0)
    with pytest.raises(WeightSyncError, match=r"no version 1 or later came within 0\.01 s; the newest is 0"):
        receiver.acquire(0, 0.01)
    assert publisher.publish(models).version == 42
    assert receiver.acquire(0, 30.0) == 42
    receiver.close()


def test_a_manifest_larger_than_a_socket_takes_at_once_gets_through(make: Make) -> None:
    names = [f"layer{'x' * 60}{number}" for number in range(4000)]
    models: dict[str, nn.Module] = {"wide": nn.ParameterDict({name: torch.ones(2) for name in names})}
    ours: dict[str, nn.Module] = {"wide": nn.ParameterDict({name: torch.zeros(2) for name in names})}
    publisher = make(models)
    sock = publisher.invite("here")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            publisher.wait_joined(30.0)
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    receiver = join(sock, ours, timeout_s=30.0)
    waiting.join(30.0)
    assert not errors
    publisher.publish(models)
    assert receiver.acquire(1, 30.0) == 1
    assert all(torch.equal(tensor, torch.ones(2)) for tensor in ours["wide"].parameters())
    receiver.close()


def test_who_never_answers_has_not_joined_at_the_deadline(make: Make) -> None:
    publisher = make(make_models())
    with publisher.invite("silent"), pytest.raises(WeightSyncError) as caught:
        publisher.wait_joined(0.01)
    assert str(caught.value) == "not all have joined: silent late at version 0: has not joined"


def test_a_receiver_whose_publisher_is_silent_or_gone_says_so(make: Make) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with pytest.raises(WeightSyncError, match=r"the publisher said nothing within 0\.01 s"):
            join(theirs, make_models(), timeout_s=0.01)
        assert theirs.fileno() == -1
    publisher = make(make_models())
    receiver = join(publisher.invite("here"), make_models())
    publisher.close()
    with pytest.raises(WeightSyncError, match="the publisher is gone, or gave up on this receiver, before version 1; "):
        receiver.acquire(0, 600.0)
    receiver.close()
    with pytest.raises(WeightSyncError, match="the receiver is closed"):
        receiver.acquire(0, 0.0)
    with pytest.raises(WeightSyncError, match="the publisher is closed"):
        publisher.publish(make_models())


def test_threads_of_one_process_exclude_each_other_as_processes_do(make: Make) -> None:
    models = make_models(20_000)
    publisher = make(models)
    copies = [make_models(20_000), make_models(20_000)]
    receivers = [join(publisher.invite(name), ours) for name, ours in zip("ab", copies, strict=True)]
    publisher.wait_joined(30.0)
    mixtures: list[int] = []

    def read(receiver: Receiver, ours: dict[str, nn.Module]) -> None:
        mixed = 0
        for _ in range(100):
            receiver.acquire(receiver.version + 1, 60.0)
            low, high = extremes(ours)
            mixed += low != high
        mixtures.append(mixed)

    threads = [threading.Thread(target=read, args=pair) for pair in zip(receivers, copies, strict=True)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        publisher.publish(fill(models, publisher.version % 256))
    assert mixtures == [0, 0]
    for receiver in receivers:
        receiver.close()


@pytest.mark.timeout(240)
def test_a_publisher_that_never_stops_and_many_reads_show_no_mixture(make: Make) -> None:
    models = make_models(8_000)
    publisher = make(models)
    with (
        MemberProcess(publisher, "a", size=8_000) as a,
        MemberProcess(publisher, "b", size=8_000) as b,
    ):
        publisher.wait_joined(60.0)
        members = (a, b)
        for member in members:
            member.answer()
            member.tell(do="read_many", reads=5000)
        answers: list[dict[str, int]] = []

        def collect() -> None:
            answers.extend(member.answer() for member in members)

        collecting = threading.Thread(target=collect)
        collecting.start()
        while collecting.is_alive():
            publisher.publish(fill(models, (publisher.version + 1) % 256))
        collecting.join()
    assert answers == [{"reads": 5000, "mixtures": 0, "backward": 0}] * 2
