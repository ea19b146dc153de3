"""The command behind `make cluster`: it starts, says how to use it, and ends without a trace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_harness.leftovers import Traces

START = Path(__file__).with_name("start.py")


def run_and_end(*options: str, number: signal.Signals) -> tuple[str, Traces]:
    """Start it, list its nodes with the printed KUBECONFIG, end it, and return the list and where traces would be."""
    with subprocess.Popen([sys.executable, START, *options], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        text = ""
        while "Ctrl-C here ends it" not in text:
            line = command.stdout.readline()
            assert line, text
            text += line
        kubeconfig, path = re.findall(r"export (?:KUBECONFIG|PATH)=([^:\s]+)", text)
        listed = subprocess.run(
            [f"{path}/kubectl", "get", "rljobs,nodes", "-A", "-o", "name"],
            env={**os.environ, "KUBECONFIG": kubeconfig},
            capture_output=True,
            text=True,
            check=True,
        )
        command.send_signal(number)
        assert command.wait(60) == 0
    return listed.stdout, Traces(str(Path(kubeconfig).parent))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("controller_programs")
def test_cluster_with_simulated_nodes_is_usable_and_ends_by_a_signal(number: signal.Signals) -> None:
    listed, traces = run_and_end("--nodes", "0", "--simulated", "2", number=number)
    assert listed.split() == ["node/simulated-0", "node/simulated-1"]
    assert traces.found() == []


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("node_programs")
def test_cluster_with_two_real_nodes_is_usable_and_ends_by_a_signal() -> None:
    listed, traces = run_and_end("--nodes", "2", number=signal.SIGTERM)
    assert listed.split() == ["node/node-a", "node/node-b"]
    assert traces.found() == []
