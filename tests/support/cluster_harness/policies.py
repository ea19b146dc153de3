"""An agent that enforces NetworkPolicies on test nodes: kube-network-policies, as it is released.

It looks at the first packet of each connection to a pod, asks the API server whose addresses these are, and lets the
packet pass or drops it. What the nodes' own processes open, such as the kubelet's probes, never comes to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from cluster_harness import binaries, products
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane
from cluster_harness.divert import divert_command, is_listened_to
from cluster_harness.errors import ClusterError
from cluster_harness.node import Node

_ACCOUNT = ("kube-system", "kube-network-policies")
_FIRST_QUEUE = 9100
_SECRETS = "private/run/secrets/kubernetes.io/serviceaccount"


class PolicyAgent:
    """Enforces NetworkPolicies on nodes of one control plane from the constructor's end until ``stop``.

    It ends with the first of the nodes. It is a context manager.
    """

    def __init__(
        self, control_plane: ControlPlane, nodes: Sequence[Node], *, report: binaries.Report = binaries.say
    ) -> None:
        program = binaries.find(products.NETWORK_POLICIES, report)["kube-network-policies"]
        self._guard = nodes[0].guard
        number = control_plane.reservations.number("policies")
        queue = _FIRST_QUEUE + number
        self._write_account(control_plane)
        self.agent = self._guard.start(
            "kube-network-policies",
            [
                program,
                f"--nfqueue-id={queue}",
                f"--hostname-override={nodes[0].name}",
                f"--metrics-bind-address=127.0.0.1:{control_plane.reservations.port()}",
            ],
            env={"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(control_plane.port)},
        )
        wait_for(
            "the agent takes packets",
            lambda: self._is_alive() and is_listened_to(queue),
            describe=self.agent.log_tail,
        )
        subnets = [node.subnet for node in nodes]
        self._divert = self._guard.start("divert", divert_command(f"rljob-policies-{number}", queue, subnets))
        wait_for(
            "packets are diverted",
            lambda: "diverting" in self._divert.log.read_text() and self._divert.returncode is None,
            describe=self._divert.log_tail,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it: all connections pass again."""
        if self._divert.returncode is None:
            self._divert.end()
        if self.agent.returncode is None:
            self.agent.end()

    def _is_alive(self) -> bool:
        if self.agent.returncode is not None:
            raise ClusterError(f"kube-network-policies ended with {self.agent.returncode}:\n{self.agent.log_tail()}")
        return True

    def _write_account(self, control_plane: ControlPlane) -> None:
        """Put an account's token where a pod of the agent's would have it: it reads no kubeconfig."""
        control_plane.bind_role("view", *_ACCOUNT)
        folder = self._guard.folder / _SECRETS
        folder.mkdir(parents=True)
        folder.joinpath("token").write_text(control_plane.service_account_token(*_ACCOUNT))
        folder.joinpath("ca.crt").write_bytes(control_plane.authority.certificate)
