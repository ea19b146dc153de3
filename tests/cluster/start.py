"""Start a Kubernetes on this machine with the definition of RLJob, print its KUBECONFIG, and end it on Ctrl-C.

`make cluster` runs it. Real nodes need root; `--simulated N` adds nodes whose pods run at once and do nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from cluster_harness.binaries import say
from cluster_harness.control_plane import ControlPlane, Settings
from cluster_harness.errors import ClusterError
from cluster_harness.images import OPERATOR, RUNTIME
from cluster_harness.node import Node
from cluster_harness.simulated import SimulatedNodes
from cluster_harness.volumes import offer_volumes

_LETTERS = "abcdefgh"


class Ended(BaseException):
    """Someone asked for the end."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parsed(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        with contextlib.ExitStack() as stack:
            plane = started(stack, options.nodes, options.simulated)
            introduce(plane, options.nodes, options.simulated)
            watch(plane)
    except Ended:
        say("The cluster has ended; nothing of it is left.")
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    return 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    real = 1 if os.geteuid() == 0 else 0
    parser.add_argument("--nodes", type=int, default=real, help=f"real nodes; they need root (default: {real})")
    parser.add_argument("--simulated", type=int, default=0, help="simulated nodes (default: 0)")
    options = parser.parse_args(arguments)
    if not 0 <= options.nodes <= len(_LETTERS):
        parser.error(f"--nodes must be between 0 and {len(_LETTERS)}")
    return options


def started(stack: contextlib.ExitStack, nodes: int, simulated: int) -> ControlPlane:
    """Start everything, each part to be ended by ``stack``, and return the control plane."""
    plane = stack.enter_context(ControlPlane(Settings(controller_manager=True, scheduler=True)))
    plane.install_crds()
    for letter in _LETTERS[:nodes]:
        stack.enter_context(Node(plane, f"node-{letter}"))
    if simulated:
        stack.enter_context(SimulatedNodes(plane, simulated))
    offer_volumes(plane, plane.guard.folder / "volumes")
    return plane


def introduce(plane: ControlPlane, nodes: int, simulated: int) -> None:
    """Tell what was started, and how it is used."""
    version = plane.api.get("/version")["gitVersion"]
    print(
        f"Kubernetes {version} at {plane.server}: {nodes} real and {simulated} simulated nodes, kind RLJob installed."
    )
    if nodes:
        print(f"Its images: {RUNTIME} and {OPERATOR}, both with the Python and the packages of this checkout.")
    else:
        print("Without a real node no container runs; start it as root for one.")
    print("In another terminal:")
    print(f"  export KUBECONFIG={plane.kubeconfig}")
    print(f"  export PATH={plane.kubectl_program.parent}:$PATH   # kubectl")
    print("Ctrl-C here ends it, with all its objects.", flush=True)


def watch(plane: ControlPlane) -> None:
    """Wait for the end of a process of the control plane.

    Raises:
        ClusterError: one has ended.
    """
    while True:
        time.sleep(1.0)
        for name in plane.process_ids:
            code = plane.process(name).returncode
            if code is not None:
                raise ClusterError(f"{name} ended with {code}:\n{plane.process(name).log_tail()}")


def _end(number: int, frame: FrameType | None) -> None:
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)  # the end takes a second, and is not to be cut short
    raise Ended


if __name__ == "__main__":
    sys.exit(main())
