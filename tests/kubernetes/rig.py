"""A whole cluster under Muster: Muster and the shim as processes, and the books of both sides compared."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import yaml
from kubernetes.api import Api, ApiFailed, Json, retried
from kubernetes.cluster import kubeconfig_of, kubectl
from kubernetes.kubelets import FAKE, Kubelets
from kubernetes.processes import ShimProcess
from kubernetes.violations import violations
from muster_replay.local_process import LocalProcess, free_ports, muster_command

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "deploy" / "kubernetes" / "shim"
SHIM_PROGRAM = SHIM / "bin" / "muster-kubernetes-shim"
LEASE = "muster-kubernetes-shim"
# So long that no busy machine lets it end. Tests do not wait for it, but for one: end_lease.
LEASE_S = 30
LEASE_FLAGS = (
    "-lease-duration", f"{LEASE_S}s", "-renew-deadline", f"{LEASE_S * 5 // 6}s", "-retry-period", "500ms",
)  # fmt: skip
# What a busy machine of two cores needs at most for anything that tests wait for: only a failure takes so long.
PATIENCE_S = 300.0
NAMESPACE = "yunikorn"  # of the ConfigMaps and the Lease
SCHEDULER = "yunikorn"
CLUSTER = "kubernetes-test"
ACCOUNT = "yunikorn-admin"  # the shim's
RIGHTS = (
    "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
    "PriorityLevelConfiguration", "FlowSchema",
)  # fmt: skip
PACKAGED = (ACCOUNT, "muster-shim", "muster-shim-lease")  # names of the shim's objects of these kinds
_OVER = ("Succeeded", "Failed")


def packaged(name: str) -> list[Json]:
    """The objects of one of the plain manifests."""
    text = (ROOT / "deploy" / "kubernetes" / "manifests" / name).read_text()
    return [thing for thing in yaml.safe_load_all(text) if thing]


def eventually(condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Asks a condition until its answer is true; gives the answer. A server that does not answer means no."""
    deadline, pause_s = time.monotonic() + within_s, 0.02
    while True:
        found = None
        with suppress(httpx.TransportError, urllib.error.URLError, ConnectionError, TimeoutError):
            found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(pause_s)
        pause_s = min(1.3 * pause_s, 0.5)


def build_shim() -> Path:
    """Builds the shim (nothing to do if it is up to date), and returns the program."""
    subprocess.run(["make", "--no-print-directory", "-C", str(SHIM), "build"], check=True, stdout=subprocess.DEVNULL)
    return SHIM_PROGRAM


class Rig:
    """Muster, a shim, and a cluster's API.

    :param queues: the cluster's queue configuration; "": it has none.
    :param settings: more variables of Muster; ``shim_settings``: of the shim.
    :param cluster: the cluster's id, and Muster's name of this RM; ``beside``: the rig whose Muster this one uses.
    :ivar muster, shim: processes; ``api``: of the admin.
    :ivar settings: more settings of the cluster's ConfigMap; ``queues``: the configuration that it began with.
    """

    def __init__(
        self,
        directory: Path,
        kubeconfig: Path,
        queues: str = "",
        *,
        settings: Mapping[str, str] | None = None,
        shim_settings: Mapping[str, str] | None = None,
        cluster: str = CLUSTER,
        beside: Rig | None = None,
    ) -> None:
        self.directory, self.cluster, self.kubeconfig = directory, cluster, kubeconfig
        directory.mkdir(parents=True, exist_ok=True)
        self.api = Api(kubeconfig)
        self.kubelets = Kubelets(self.api)
        grpc_port, http_port, shim_port = free_ports(3)
        self.grpc, self.http = f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}"
        self.shim_http = f"http://127.0.0.1:{shim_port}"
        up = ["up", "--data-dir", str(directory / "data"), "--grpc-address", self.grpc, "--http-address", self.http[7:]]
        self.muster = LocalProcess(muster_command(*up), directory / "muster.log", settings)
        self._owns_muster = beside is None
        if beside is not None:
            self.grpc, self.http, self.muster = beside.grpc, beside.http, beside.muster
        # The shim has the rights that the packages give it.
        self.shim_kubeconfig = directory / "shim.kubeconfig"
        self.shim_environment = {
            "KUBECONFIG": str(self.shim_kubeconfig),
            "NAMESPACE": NAMESPACE,
            **(shim_settings or {}),
        }
        self.shim = self.another_shim(shim_port)
        self.settings: dict[str, str] = {}
        self.namespaces: list[str] = []
        self._made_nodes: set[str] = set()
        self.queues = queues

    def another_shim(self, port: int) -> ShimProcess:
        """A shim of this cluster, not started."""
        flags = ["-gateway", self.grpc, "-http-address", f"127.0.0.1:{port}", *LEASE_FLAGS]
        log_file = self.directory / f"shim-{port}.log"
        return ShimProcess([str(SHIM_PROGRAM), *flags], log_file, self.shim_environment, self.end_lease)

    def end_lease(self) -> None:
        """Lets the next shim begin without waiting for the end of a killed one's Lease."""
        retried(lambda: self.api.delete("Lease", LEASE, NAMESPACE))

    def start(self) -> None:
        """Starts everything, and returns when the shim has told Muster of the whole cluster."""
        self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for thing in packaged("muster.yaml"):
            if thing["kind"] in RIGHTS and thing["metadata"]["name"] in PACKAGED:
                self.api.apply(thing)
        token = self.api.token(ACCOUNT, NAMESPACE)
        self.shim_kubeconfig.write_text(json.dumps(kubeconfig_of(self.api.cluster, token)))
        self.configure(self.queues)
        if self._owns_muster:
            self.muster.start()
        self.shim.start()
        self.works()

    def configure(self, queues: str = "", **more: str) -> None:
        """Writes the ConfigMap."""
        data = {
            "service.clusterId": self.cluster,
            **({"queues.yaml": queues} if queues else {}),
            **self.settings,
            **more,
        }
        meta = {"name": "yunikorn-configs", "namespace": NAMESPACE}
        self.api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})

    def works(self, http: str = "") -> None:
        """Waits until the shim leads and has all its streams."""

        def well() -> bool:
            assert self.shim.running or self.shim.ends, f"the shim ended:\n{self.shim.log_tail()}"
            status, health = self.health(http)
            return status == 200 and health["role"] == "leading"

        try:
            eventually(well, "the shim works")
        except AssertionError as error:
            logs = f"the shim's log:\n{self.shim.log_tail()}\nMuster's log:\n{self.muster.log_tail()}"
            raise AssertionError(f"{error}: {self.health(http)}\n{logs}") from None

    def health(self, http: str = "") -> tuple[int, Json]:
        """Status and body of the shim's /health; (0, {}): it does not answer."""
        try:
            answer = httpx.get(f"{http or self.shim_http}/health", timeout=60.0)
        except httpx.TransportError:
            return 0, {}
        return answer.status_code, answer.json()

    def metric(self, name: str) -> float:
        """The sum of a metric of the shim over its labels."""
        text = httpx.get(f"{self.shim_http}/metrics", timeout=60.0).text
        lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def close(self) -> None:
        self.shim.stop()
        self.kubelets.close()
        if self._owns_muster:
            self.muster.kill()
        self.api.close()

    # ---- objects ---------------------------------------------------------------------------------------------------

    def namespace(self, name: str, annotations: Mapping[str, str] | None = None) -> str:
        meta: Json = {"name": name, "annotations": dict(annotations or {})}
        self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self.namespaces.append(name)
        return name

    def nodes(self, *nodes: Json) -> None:
        """Creates nodes, and waits until Muster takes allocations there."""
        self.api.create_all(nodes)
        names = {node["metadata"]["name"] for node in nodes}
        self._made_nodes |= names

        def known() -> bool:
            return names <= {each["nodeID"] for each in self.muster_nodes() if each["schedulable"]}

        eventually(known, f"Muster knows {sorted(names)}")

    def cordon(self, name: str) -> None:
        """Cordons a node, and gives the shim time to hear of it.

        (It watches nodes and pods apart. Its predicates know of a cordon, Muster does not, so nothing shows it.)
        """
        self.api.patch("Node", name, {"spec": {"unschedulable": True}})
        time.sleep(3)

    def remove_nodes(self, names: Iterable[str]) -> None:
        gone = set(names)
        for name in gone:
            self.api.delete("Node", name)
        eventually(
            lambda: not gone & {each["nodeID"] for each in self.muster_nodes()}, f"Muster forgets {sorted(gone)}"
        )

    def clear(self) -> None:
        """Removes all pods and their owners, namespaces' content and nodes of a test, and waits until all is gone."""
        for kind in ("Deployment", "DaemonSet", "Job", "ResourceQuota", "PersistentVolumeClaim"):
            self.api.delete_all([o for space in self.namespaces for o in self.api.list(kind, space)])
        self.api.delete_all(self.pods(*self.namespaces), grace_s=0)
        eventually(lambda: not self.pods(*self.namespaces), "all pods are gone")
        nodes = [each["metadata"]["name"] for each in self.api.list("Node", labelSelector=f"{FAKE}=true")]
        self.remove_nodes(nodes)
        self.namespaces.clear()

    def pods(self, *namespaces: str) -> list[Json]:
        """The pods of namespaces that are not over; without names: of all namespaces."""
        found = [p for space in namespaces for p in self.api.list("Pod", space)] if namespaces else self.api.list("Pod")
        return [pod for pod in found if pod["status"].get("phase") not in _OVER]

    def placed(self, *namespaces: str) -> list[Json]:
        return [pod for pod in self.pods(*namespaces) if pod["spec"].get("nodeName")]

    def all_placed(self, namespace: str, count: int, within_s: float = PATIENCE_S) -> list[Json]:
        """Waits until a namespace has so many pods, and all of them are placed."""

        def ready() -> list[Json]:
            pods = self.pods(namespace)
            placed = [pod for pod in pods if pod["spec"].get("nodeName")]
            return placed if len(pods) == len(placed) == count else []

        found: list[Json] = eventually(ready, f"{count} pods of {namespace} are placed", within_s)
        return found

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """What kubectl prints, as the admin. ``given``: its input."""
        return kubectl(self.kubeconfig, *arguments, given=given)

    # ---- Muster's side ---------------------------------------------------------------------------------------------

    def ask(self, path: str, *, of_all: bool = False) -> Any:
        """What Muster's REST says: of this cluster's RM, or of all RMs."""
        if not of_all:
            path += f"{'&' if '?' in path else '?'}rm={self.cluster}"
        with urllib.request.urlopen(f"{self.http}{path}", timeout=30) as answer:
            return json.load(answer)

    def muster_nodes(self) -> list[Json]:
        try:
            found: list[Json] = self.ask("/ws/v1/partition/default/nodes")
        except urllib.error.HTTPError as error:
            if error.code in (400, 404, 503):
                return []  # not registered yet
            raise
        return found

    def explained(self, application: str, key: str) -> Json:
        found: Json = self.ask(f"/ws/v1/explain/ask/{application}/{key}")
        return found

    # ---- both sides ------------------------------------------------------------------------------------------------

    def differences(self) -> list[str]:
        """What the books of Kubernetes and Muster say differently of pods on nodes, as sentences."""
        nodes = {each["nodeID"]: each for each in self.muster_nodes()}
        pods = {pod["metadata"]["uid"]: pod for pod in self.placed()}
        made = {a["allocationKey"]: name for name, node in nodes.items() for a in node.get("allocations") or ()}
        foreign = {
            a["allocationKey"]: name for name, node in nodes.items() for a in node.get("foreignAllocations") or ()
        }
        found = []
        for uid, pod in pods.items():
            where, name = pod["spec"]["nodeName"], pod["metadata"]["name"]
            if where not in nodes:
                continue  # of a cluster that is not the test's
            books = made if pod["spec"]["schedulerName"] == SCHEDULER else foreign
            if books.get(uid) != where:
                found.append(f"{name} is on {where}, Muster has it on {books.get(uid)}")
        for uid, where in {**made, **foreign}.items():
            if uid not in pods:
                found.append(f"Muster has {uid} on {where}, Kubernetes has no such pod there")
        actual = {n["metadata"]["name"] for n in self.api.list("Node", labelSelector=f"{FAKE}=true")}
        if actual != set(nodes):
            found.append(f"nodes: Kubernetes {sorted(actual)}, Muster {sorted(nodes)}")
        return found

    def settled(self) -> None:
        """Waits until both books agree, and checks every rule on the pods alone."""
        last: list[str] = []

        def agree() -> bool:
            last[:] = self.differences()
            return not last

        try:
            eventually(agree, "the books agree")
        except AssertionError as error:
            raise AssertionError(f"{error}: {last[:10]}") from None
        found = self.violations()
        assert not found, found[:10]

    def violations(self) -> list[str]:
        return violations(self.api.list("Node"), self.api.list("Pod"))


# ---- objects that tests make ---------------------------------------------------------------------------------------


def pod(name: str, namespace: str, *, cpu: str = "100m", memory: str = "64Mi", app: str = "", **spec: Any) -> Json:
    """A pod for Muster. ``app``: its application; ``labels`` and ``annotations`` are added, all else is its spec's."""
    labels = {"applicationId": app or f"app-{namespace}", **spec.pop("labels", {})}
    meta: Json = {"name": name, "namespace": namespace, "labels": labels, "annotations": spec.pop("annotations", {})}
    container: Json = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    container.update(spec.pop("container", {}))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }


def template(made: Json) -> Json:
    """The template of a Deployment, a Job or a DaemonSet, from a pod."""
    return {"metadata": {k: made["metadata"][k] for k in ("labels", "annotations")}, "spec": made["spec"]}


def deployment(name: str, made: Json, replicas: int) -> Json:
    labels = {"part-of": name}
    made["metadata"]["labels"].update(labels)
    meta = {"name": name, "namespace": made["metadata"]["namespace"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template(made)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def daemon_set(name: str, made: Json) -> Json:
    labels = {"part-of": name}
    made["metadata"]["labels"].update(labels)
    meta = {"name": name, "namespace": made["metadata"]["namespace"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": meta,
        "spec": {"selector": {"matchLabels": labels}, "template": template(made)},
    }


def job(name: str, made: Json, completions: int) -> Json:
    meta = {"name": name, "namespace": made["metadata"]["namespace"]}
    made["spec"]["restartPolicy"] = "Never"
    spec = {"completions": completions, "parallelism": completions, "template": template(made)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def names(pods: Sequence[Json]) -> list[str]:
    return sorted(each["metadata"]["name"] for each in pods)


def conditions(of: Json) -> dict[str, Json]:
    return {each["type"]: each for each in of["status"].get("conditions", ())}


__all__ = ["ApiFailed", "Rig", "conditions", "daemon_set", "deployment", "eventually", "job", "names", "pod"]
