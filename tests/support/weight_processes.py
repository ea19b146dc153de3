"""Processes that receive weights, told what to do line by line, and what their weights look like from within.

Run as a program, it joins by the socket whose descriptor is its first argument, with the models that its second names;
then it carries out the commands on its standard input, and answers each with a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

ANSWER_TIMEOUT_S = 100.0
SMALL, LARGE = 8, 1 << 20
Make = Callable[..., Any]
"""Makes a publisher of the scheme that is tested: ``make(models, timeout_s=..., ...)``."""


class Inviting(Protocol):
    """A publisher between processes."""

    def invite(self, name: str) -> socket.socket:
        """Return the end of a connection."""


class Tied(nn.Module):
    """A decoder that shares the encoder's weight, with a buffer of whole numbers."""

    count: Tensor

    def __init__(self, size: int, *, tied: bool = True) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, size, bias=False)
        self.decoder = nn.Linear(4, size)
        if tied:
            self.decoder.weight = self.encoder.weight
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def make_models(size: int = SMALL, *, tied: bool = True) -> dict[str, nn.Module]:
    """Return an actor of ``5 * size + 1`` elements, and a critic of ``5 * size`` in half precision."""
    return {"actor": Tied(size, tied=tied), "critic": nn.Linear(4, size).to(torch.bfloat16)}


def fill(models: dict[str, nn.Module], value: int) -> dict[str, nn.Module]:
    """Set every element to ``value``, and return the models."""
    with torch.no_grad():
        for tensor in tensors_of(models).values():
            tensor.fill_(value)
    return models


def tensors_of(models: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Return the tensors by model and name."""
    return {
        f"{model}/{name}": tensor
        for model, module in models.items()
        for name, tensor in module.state_dict(keep_vars=True).items()
    }


def extremes(models: dict[str, nn.Module]) -> list[float]:
    """Return the smallest and the greatest element of all models."""
    bounds = [torch.aminmax(tensor.detach()) for tensor in tensors_of(models).values()]
    return [min(float(low) for low, _ in bounds), max(float(high) for _, high in bounds)]


class MemberProcess:
    """A receiver's process; leave the block to end it.

    Args:
        publisher: that invites it.
        name: of the member.
        size: of its models.
        tied: whether its actor ties weights.
    """

    def __init__(self, publisher: Inviting, name: str, *, size: int = SMALL, tied: bool = True) -> None:
        with publisher.invite(name) as sock:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(sock.fileno()), str(size), str(int(tied))],
                pass_fds=[sock.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def __enter__(self) -> MemberProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def tell(self, **command: Any) -> None:
        """Give a command, such as ``do="acquire"``."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the answer to the oldest command not yet answered."""
        stdout = self.process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], ANSWER_TIMEOUT_S)
        assert ready, "the process did not answer"
        line = bytearray()
        while not line.endswith(b"\n"):
            part = os.read(stdout.fileno(), 1)
            assert part, "the process is gone"
            line += part
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **command: Any) -> dict[str, Any]:
        """Give a command and return its answer."""
        self.tell(**command)
        return self.answer()

    def acquire(self, min_version: int = 0, timeout_s: float = 30.0) -> dict[str, Any]:
        """Let it acquire: ``{version, extremes}``, or ``{error, extremes, version}`` where that failed."""
        return self.ask(do="acquire", min_version=min_version, timeout_s=timeout_s)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; SIGSTOP has taken effect on return."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def kill(self) -> None:
        """End it at once, wherever it is."""
        self.process.kill()
        self.process.wait(ANSWER_TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def main(descriptor: int, size: int, tied: bool) -> None:
    """Join, and serve until the standard input ends."""
    from rlruntime.weights.joining import join

    models = fill(make_models(size, tied=tied), -1)
    try:
        receiver = join(socket.socket(fileno=descriptor), models)
    except Exception as error:
        _say(error=f"{type(error).__name__}: {error}", extremes=extremes(models))
        return
    _say(joined=receiver.round, pid=os.getpid())
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "acquire":
            try:
                receiver.acquire(command["min_version"], command["timeout_s"])
            except Exception as error:
                _say(error=f"{type(error).__name__}: {error}", extremes=extremes(models), version=receiver.version)
            else:
                _say(version=receiver.version, extremes=extremes(models))
        elif command["do"] == "show":
            _say(**{name: tensor.tolist() for name, tensor in tensors_of(models).items()})
        elif command["do"] == "replace_critic":
            kept = models["critic"]
            models["critic"] = nn.Linear(4, size + 1)
            _say(kept=kept is not None)
        elif command["do"] == "restore_critic":
            models["critic"] = kept
            _say()
        elif command["do"] == "read_many":
            _say(**_read_many(receiver, models, command["reads"]))
        elif command["do"] == "follow":
            while True:  # until killed
                receiver.acquire(receiver.version + 1, ANSWER_TIMEOUT_S)
        elif command["do"] == "leave":
            receiver.close()
            _say()


def _read_many(receiver: Any, models: dict[str, nn.Module], reads: int) -> dict[str, Any]:
    mixtures, backward, last = 0, 0, 0
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    done = 0
    while done < reads and time.monotonic() < deadline:
        version = receiver.acquire(last + 1, ANSWER_TIMEOUT_S)
        low, high = extremes(models)
        mixtures += not low == high == float(torch.tensor(version % 256).to(torch.bfloat16))
        backward += version <= last
        last, done = version, done + 1
    return {"reads": done, "mixtures": mixtures, "backward": backward}


def _say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), bool(int(sys.argv[3])))
