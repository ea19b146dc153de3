"""`rljob role service`: calls a function of the user's in a pod."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from prometheus_client import CollectorRegistry

from rlruntime import __version__
from rlruntime.cli.role_ending import Ending
from rlruntime.errors import EXIT_OK, EXIT_SIGTERM, ConfigError, RLJobError, one_line
from rlruntime.metrics import names
from rlruntime.metrics.family import export_process
from rlruntime.registry import import_object
from rlruntime.services.health import HealthServer
from rlruntime.spec.contract import PodIdentity, TerminationMessage

_LEAVE_S = 20.0  # of the pod's 30 s until SIGKILL


class _Stopped(BaseException):
    """SIGTERM, raised where the function is."""


def serve(identity: PodIdentity, arguments: argparse.Namespace, ending: Ending) -> int:
    """Call the entrypoint with its config until it returns, and return the exit code.

    The port answers meanwhile; ``/readyz`` does from the moment of the call. SIGTERM raises an exception in the
    function, which may clean up, unless the function has set a handler of its own.

    Raises:
        ConfigError: there is no entrypoint, or it can't be imported or called.
        RLJobError: the function raised.
    """
    from rlruntime.cli.role_trainer import read_spec

    spec = read_spec(arguments.config_dir)
    if identity.entrypoint is None:
        raise ConfigError("this variable is missing", field="RLJOB_ENTRYPOINT", remedy="it is set in pods of a Service")
    state: dict[str, Any] = {"uid": identity.uid, "attempt": identity.attempt, "phase": "Starting"}
    registry = CollectorRegistry()
    export_process(registry, names.BUILD_INFO, __version__)
    server = HealthServer(
        spec.metrics.port,
        host="0.0.0.0",
        registry=registry,
        live=lambda: None,
        ready=lambda: None if state["phase"] != "Starting" else "the entrypoint isn't called yet",
        status=lambda: dict(state),
    )
    previous = signal.signal(signal.SIGTERM, lambda signum, frame: _leave(ending, frame))
    try:
        with server:
            function = _function(identity.entrypoint)
            state["phase"] = "Running"
            _log(identity, f"calling {identity.entrypoint}")
            function(identity.config if identity.config is not None else {})
            state["phase"] = "Succeeded"
            _log(identity, f"{identity.entrypoint} returned")
        ending.write(TerminationMessage("Succeeded", f"{identity.entrypoint} returned"))
        return EXIT_OK
    except _Stopped:
        ending.write(_stopped_message())
        return EXIT_SIGTERM
    except RLJobError:
        raise
    except Exception as error:
        raise RLJobError(one_line(f"{identity.entrypoint} raised {type(error).__name__}: {error}")) from error
    finally:
        signal.signal(signal.SIGTERM, previous)


def _function(entrypoint: str) -> Any:
    function = import_object(entrypoint, field="RLJOB_ENTRYPOINT")
    if not callable(function):
        raise ConfigError(
            "the entrypoint can't be called",
            field="RLJOB_ENTRYPOINT",
            value=entrypoint,
            remedy="name a function that takes the config",
        )
    return function


def _leave(ending: Ending, frame: FrameType | None) -> None:
    """Raise in the main thread, and end the process where that doesn't."""

    def end() -> None:
        ending.write(_stopped_message())
        os._exit(EXIT_SIGTERM)

    timer = threading.Timer(_LEAVE_S, end)
    timer.daemon = True
    timer.start()
    raise _Stopped


def _stopped_message() -> TerminationMessage:
    return TerminationMessage("Stopped", "SIGTERM received")


def _log(identity: PodIdentity, text: str) -> None:
    fields = {"job": identity.name, "namespace": identity.namespace, "role": identity.role, "index": identity.index}
    line = {**fields, "attempt": identity.attempt, "event": "message", "message": text}
    print(json.dumps(line), file=sys.stdout, flush=True)
