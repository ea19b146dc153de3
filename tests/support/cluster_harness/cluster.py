"""A cluster as tests see it: whoever started it, they talk to it by a kubeconfig, kubectl and a small client."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cluster_harness.api import Api, ApiError, JsonObject
from cluster_harness.errors import ClusterError

CRDS = Path(__file__).resolve().parents[3] / "crds"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
T = TypeVar("T")


class Cluster:
    """A cluster that runs.

    Args:
        kubeconfig: of a user who may do everything.
        kubectl: the program.
        folder: where kubeconfigs of other users are written.
    """

    def __init__(self, kubeconfig: Path, kubectl: Path, folder: Path) -> None:
        self.kubeconfig, self.kubectl_program, self.folder = kubeconfig, kubectl, folder
        self.api = Api(kubeconfig)
        """Client of the administrator."""

    def kubectl(
        self,
        *arguments: str | Path,
        stdin: str | None = None,
        kubeconfig: Path | None = None,
        check: bool = True,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return what it printed.

        Args:
            kubeconfig: of the user it speaks for; the administrator unless given.
            check: whether a failure raises.

        Raises:
            ClusterError: it failed, with its words.
        """
        command = [str(self.kubectl_program), "--kubeconfig", str(kubeconfig or self.kubeconfig)]
        done = subprocess.run(
            [*command, *(str(argument) for argument in arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        if check and done.returncode:
            words = " ".join(str(argument) for argument in arguments)
            raise ClusterError(f"kubectl {words} ended with {done.returncode}: {done.stderr.strip()}")
        return done

    def apply(self, *documents: Path | JsonObject, namespace: str | None = None) -> str:
        """Apply files, folders or objects by plain ``kubectl apply`` and return what it printed; raises as that."""
        place = ["--namespace", namespace] if namespace else []
        printed = []
        for document in documents:
            if isinstance(document, Path):
                printed.append(self.kubectl("apply", *place, "-f", document).stdout)
            else:
                printed.append(self.kubectl("apply", *place, "-f", "-", stdin=json.dumps(document)).stdout)
        return "".join(printed)

    def install_crds(self, folder: Path = CRDS) -> None:
        """Apply the custom resource definitions and wait until the server knows them."""
        self.apply(folder)
        self.wait_established()

    def wait_established(self) -> None:
        """Wait until the server serves every custom resource that is defined, and says so to who asks what there is.

        ``kubectl wait`` does the same, but fails for a definition whose status isn't written yet.
        """
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        wait_for(
            "every custom resource that is defined is served",
            lambda: all(_is_established(item) and self._is_offered(item) for item in self.api.get(path)["items"]),
            deadline_s=60.0,
        )

    def _is_offered(self, definition: JsonObject) -> bool:
        """Whether a custom resource stands in the server's lists, which follow its definition a little later."""
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        for version in (item["name"] for item in definition["spec"]["versions"] if item["served"]):
            place = f"apis/{group}/{version}"
            try:
                offered = self.api.get(f"/{place}")["resources"]
            except ApiError as error:
                if error.status != 404:
                    raise
                return False
            if plural not in {item["name"] for item in offered} or place not in self.api.get("/openapi/v3")["paths"]:
                return False
        return True

    def create_namespace(self, prefix: str = "test") -> str:
        """Make a namespace in which pods can be created at once, and return its name, which is new."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.create_service_account(name, "default")  # the controller manager would, half a second later
        return name

    def delete_namespace(self, name: str) -> None:
        """Ask for the end of a namespace; it isn't waited for, and takes a controller manager."""
        self.api.delete(f"/api/v1/namespaces/{name}")

    def create_service_account(self, namespace: str, name: str) -> None:
        """Make a service account, unless there is one of that name."""
        try:
            self.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        except ApiError as error:
            if error.status != 409:
                raise

    def service_account_kubeconfig(self, namespace: str, name: str, *, valid_s: int = 24 * 3600) -> Path:
        """Return the kubeconfig of a service account, which is made if it isn't there."""
        token = self.service_account_token(namespace, name, valid_s=valid_s)
        return self.token_kubeconfig(f"{namespace}-{name}", token)

    def service_account_token(self, namespace: str, name: str, *, valid_s: int = 24 * 3600) -> str:
        """Return a token of a service account, which is made if it isn't there."""
        self.create_service_account(namespace, name)
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token: str = self.api.create(path, {"spec": {"expirationSeconds": valid_s}})["status"]["token"]
        return token

    def token_kubeconfig(self, name: str, token: str) -> Path:
        """Return the kubeconfig of whoever bears a token."""
        return self.write_kubeconfig(name, {"token": token})

    def write_kubeconfig(self, name: str, user: JsonObject, *, server: str | None = None) -> Path:
        """Write a kubeconfig beside the administrator's, for the same cluster, and return its path.

        Args:
            user: the kubeconfig's ``user`` section.
            server: address in place of the cluster's own, such as that of a proxy on 127.0.0.1.
        """
        config = yaml.safe_load(self.kubeconfig.read_text())
        (cluster,) = (dict(entry["cluster"]) for entry in config["clusters"][:1])
        if server:
            cluster["server"] = server
        return write_kubeconfig(self.folder / f"{name}.kubeconfig", cluster, user)

    def proxied_kubeconfig(self, kubeconfig: Path, server: str) -> Path:
        """Return a copy of a kubeconfig for the address ``server``, such as ``https://127.0.0.1:PORT`` of a proxy."""
        config = yaml.safe_load(kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = server
        path = kubeconfig.with_name(f"{kubeconfig.stem}-proxied.kubeconfig")
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def bind_role(self, role: str, namespace: str, account: str) -> None:
        """Give a service account the rights of a ClusterRole in the whole cluster."""
        body = {
            "metadata": {"name": f"{namespace}-{account}-{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }
        self.api.create(f"{_RBAC}/clusterrolebindings", body)

    def get(self, kind: str, namespace: str, name: str) -> JsonObject | None:
        """Return an object, or None if there is none.

        Args:
            kind: path of its API and plural, such as ``/api/v1/pods`` or ``/apis/rljob.io/v1alpha1/rljobs``.
        """
        group, _, plural = kind.rpartition("/")
        try:
            return self.api.get(f"{group}/namespaces/{namespace}/{plural}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def pods(self, namespace: str, selector: str = "") -> list[JsonObject]:
        """Return the pods of a namespace."""
        query = f"?labelSelector={selector.replace('=', '%3D')}" if selector else ""
        items: list[JsonObject] = self.api.get(f"/api/v1/namespaces/{namespace}/pods{query}")["items"]
        return items

    def job(self, namespace: str, name: str) -> JsonObject | None:
        """Return an RLJob, or None if there is none."""
        return self.get("/apis/rljob.io/v1alpha1/rljobs", namespace, name)

    def evict(self, namespace: str, pod: str) -> None:
        """Evict a pod, as draining its node does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        self.api.create(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)


def write_kubeconfig(path: Path, cluster: JsonObject, user: JsonObject) -> Path:
    """Write a kubeconfig with one cluster and one user, readable to its owner alone, and return its path."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
        "current-context": "context",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document))
    return path


def _is_established(definition: JsonObject) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    *,
    deadline_s: float = 30.0,
    every_s: float = 0.05,
    describe: Callable[[], Any] | None = None,
    ignore: Sequence[type[BaseException]] = (OSError,),
) -> T:
    """Ask until ``probe`` returns something that is true, and return it.

    Args:
        what: what is waited for, as a clause: ``the pod runs``.
        describe: called at the deadline; what it returns ends the message.
        ignore: errors of the probe that count as not yet.

    Raises:
        ClusterError: it isn't so at the deadline.
    """
    ends = time.monotonic() + deadline_s
    while True:
        try:
            found = probe()
        except tuple(ignore):
            found = None
        if found:
            return found
        if time.monotonic() > ends:
            seen = f": {describe()}" if describe else ""
            raise ClusterError(f"after {deadline_s:.0f} s it is not so that {what}{seen}")
        time.sleep(every_s)
