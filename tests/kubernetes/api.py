"""Kubernetes' API over HTTP, as far as tests need it: objects are the API's own JSON."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import yaml

Json = dict[str, Any]

# The apiserver admits pods by a copy of the PriorityClasses, which is a moment behind.
ADMISSION_LAG_S = 5.0
_MERGE = {"content-type": "application/merge-patch+json"}
# The folder of each kind that tests use, and whether it is in a namespace.
_PLACES = {
    "Pod": ("api/v1", "pods", True),
    "Binding": ("api/v1", "bindings", True),
    "ConfigMap": ("api/v1", "configmaps", True),
    "Event": ("api/v1", "events", True),
    "ResourceQuota": ("api/v1", "resourcequotas", True),
    "ServiceAccount": ("api/v1", "serviceaccounts", True),
    "Service": ("api/v1", "services", True),
    "Secret": ("api/v1", "secrets", True),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims", True),
    "PersistentVolume": ("api/v1", "persistentvolumes", False),
    "Node": ("api/v1", "nodes", False),
    "Namespace": ("api/v1", "namespaces", False),
    "Deployment": ("apis/apps/v1", "deployments", True),
    "DaemonSet": ("apis/apps/v1", "daemonsets", True),
    "StatefulSet": ("apis/apps/v1", "statefulsets", True),
    "Job": ("apis/batch/v1", "jobs", True),
    "Lease": ("apis/coordination.k8s.io/v1", "leases", True),
    "Ingress": ("apis/networking.k8s.io/v1", "ingresses", True),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies", True),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets", True),
    "PriorityClass": ("apis/scheduling.k8s.io/v1", "priorityclasses", False),
    "StorageClass": ("apis/storage.k8s.io/v1", "storageclasses", False),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "ClusterRole": ("apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "FlowSchema": ("apis/flowcontrol.apiserver.k8s.io/v1", "flowschemas", False),
    "PriorityLevelConfiguration": ("apis/flowcontrol.apiserver.k8s.io/v1", "prioritylevelconfigurations", False),
    "SelfSubjectAccessReview": ("apis/authorization.k8s.io/v1", "selfsubjectaccessreviews", False),
    "ReplicaSet": ("apis/apps/v1", "replicasets", True),
    "ClusterRoleBinding": ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
}


class ApiFailed(Exception):
    """The API refused a request. The text has its status and its reason.

    :ivar code: the HTTP status.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Api:
    """A cluster's API, as the current user of a kubeconfig. Safe for several threads.

    :ivar cluster: what the kubeconfig says of the cluster.
    """

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        context = next(each for each in config["contexts"] if each["name"] == config["current-context"])["context"]
        cluster = next(each for each in config["clusters"] if each["name"] == context["cluster"])["cluster"]
        user = next(each for each in config["users"] if each["name"] == context["user"])["user"]
        headers = {"authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self.cluster = cluster
        verify = _verify(cluster, user, kubeconfig.parent)
        # One for each thread: an answer once never reached the thread that waited for it.
        self._make = lambda: httpx.Client(base_url=cluster["server"], verify=verify, headers=headers, timeout=60.0)
        self._clients = threading.local()
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="api")

    @property
    def _client(self) -> httpx.Client:
        client: httpx.Client | None = getattr(self._clients, "client", None)
        if client is None:
            client = self._clients.client = self._make()
        return client

    def close(self) -> None:
        """Ends this thread's connections. Others end with their threads.

        (A connection that was closed under a reading thread made it read from the next one with the same descriptor.)
        """
        self._pool.shutdown(cancel_futures=True)
        client: httpx.Client | None = getattr(self._clients, "client", None)
        if client is not None:
            client.close()

    def ready(self) -> bool:
        """Tells whether the apiserver says that it is ready."""
        try:
            return self._client.get("/readyz", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def create(self, thing: Json) -> Json:
        """Creates an object. Raises ApiFailed."""
        deadline_s = time.monotonic() + ADMISSION_LAG_S
        while True:
            try:
                return self._call("POST", path(thing["kind"], _namespace(thing)), thing)
            except httpx.ReadTimeout:
                # The apiserver is slow, and may have created it.
                found = self.find(thing["kind"], thing["metadata"]["name"], _namespace(thing) or "")
                if found is None:
                    raise
                return found
            except ApiFailed as failed:
                if "no PriorityClass with name" not in str(failed) or time.monotonic() > deadline_s:
                    raise
            time.sleep(0.05)

    def create_all(self, things: Sequence[Json]) -> list[Json]:
        """Creates objects, several at a time."""
        return list(self._pool.map(self.create, things))

    def apply(self, thing: Json) -> Json:
        """Creates an object, or replaces what is there."""
        try:
            return self.create(thing)
        except ApiFailed as error:
            if error.code != 409:
                raise
        where = path(thing["kind"], _namespace(thing), thing["metadata"]["name"])
        found = self._call("GET", where)
        thing = {**thing, "metadata": {**thing["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}}
        return self._call("PUT", where, thing)

    def get(self, kind: str, name: str, namespace: str = "default") -> Json:
        return self._call("GET", path(kind, namespace, name))

    def find(self, kind: str, name: str, namespace: str = "default") -> Json | None:
        """Returns an object, or None if there is none."""
        try:
            return self.get(kind, name, namespace)
        except ApiFailed as error:
            if error.code == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, **query: str) -> list[Json]:
        """Returns the objects of a kind: of a namespace, or of all. ``query``: labelSelector and the like."""
        where = path(kind, namespace) if namespace is not None else path(kind, None)
        items = self._call("GET", where, query=query)["items"]
        return [{"kind": kind, **item} for item in items]

    def count(self, kind: str, namespace: str) -> int:
        """How many objects of a kind a namespace has."""
        found = self._call("GET", path(kind, namespace), query={"limit": "1"})
        return len(found["items"]) + int(found["metadata"].get("remainingItemCount", 0))

    def patch(self, kind: str, name: str, change: Json, namespace: str = "default", part: str = "") -> Json:
        """Merges a change into an object, or into a part of it such as status."""
        where = path(kind, namespace, name) + (f"/{part}" if part else "")
        return self._call("PATCH", where, change, headers=_MERGE)

    def dry_run(self, thing: Json) -> Json:
        """What the apiserver would make of an object; an unknown field is an error. Raises ApiFailed."""
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        return self._call("POST", path(thing["kind"], _namespace(thing)), thing, query=query)

    def token(self, account: str, namespace: str) -> str:
        """A token of a service account, for a day."""
        where = f"{path('ServiceAccount', namespace, account)}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
        return str(self._call("POST", where, asked)["status"]["token"])

    def delete(
        self, kind: str, name: str, namespace: str = "default", grace_s: int | None = None, uid: str = ""
    ) -> None:
        """Deletes an object; one that is gone already is no error. ``uid``: only this one, not a later one."""
        options: Json = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._call("DELETE", path(kind, namespace, name), options)
        except ApiFailed as error:
            if error.code != 404:
                raise

    def delete_all(self, things: Sequence[Json], grace_s: int | None = None) -> None:
        """Deletes objects, several at a time."""

        def delete(thing: Json) -> None:
            self.delete(thing["kind"], thing["metadata"]["name"], _namespace(thing) or "", grace_s)

        list(self._pool.map(delete, things))

    def watch(self, kind: str, ended: threading.Event) -> Iterator[tuple[str, Json]]:
        """Yields what there is of a kind (ADDED) and then each change, until the event is set.

        A broken watch begins again, so an object may come twice. The end of an object may then be missed.
        """
        while not ended.is_set():
            try:
                yield from self._watch_once(kind, ended)
            except (httpx.HTTPError, ApiFailed):
                ended.wait(0.2)

    def _watch_once(self, kind: str, ended: threading.Event) -> Iterator[tuple[str, Json]]:
        # (In pages: an answer with all pods of a large cluster takes a busy apiserver longer than a client waits.)
        query = {"limit": "500"}
        while True:
            found = self._call("GET", path(kind, None), query=query)
            for item in found["items"]:
                yield "ADDED", item
            if not (more := found["metadata"].get("continue")):
                break
            query["continue"] = more
        query = {"watch": "true", "resourceVersion": found["metadata"]["resourceVersion"], "timeoutSeconds": "600"}
        timeout = httpx.Timeout(30.0, read=None)
        with self._client.stream("GET", path(kind, None), params=query, timeout=timeout) as answer:
            for line in answer.iter_lines():
                if ended.is_set():
                    return
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return  # too old: from the beginning
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]

    def _call(
        self,
        method: str,
        where: str,
        content: Json | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        body = None if content is None else json.dumps(content).encode()
        answer = self._client.request(
            method, where, content=body, params=query, headers={"content-type": "application/json", **(headers or {})}
        )
        if answer.status_code >= 400:
            raise ApiFailed(answer.status_code, f"{method} {where}: {answer.json().get('message', '')}")
        result: Json = answer.json()
        return result


def retried(call: Callable[[], Any]) -> Any:
    """Calls something that may meet an apiserver that restarts."""
    for _ in range(300):
        try:
            return call()
        except httpx.TransportError:
            threading.Event().wait(0.2)
    return call()


def path(kind: str, namespace: str | None, name: str = "") -> str:
    """The path of a kind's objects, or of one of them. A namespace of None means all."""
    group, folder, in_namespace = _PLACES[kind]
    where = (
        f"/{group}/namespaces/{namespace}/{folder}" if in_namespace and namespace is not None else f"/{group}/{folder}"
    )
    return f"{where}/{name}" if name else where


def _namespace(thing: Json) -> str | None:
    return str(thing["metadata"].get("namespace", "default")) if _PLACES[thing["kind"]][2] else None


def _verify(cluster: Json, user: Json, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif "certificate-authority-data" in cluster:
        context.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    elif "certificate-authority" in cluster:
        context.load_verify_locations(folder / cluster["certificate-authority"])
    if "client-certificate" in user:
        context.load_cert_chain(folder / user["client-certificate"], folder / user["client-key"])
    return context
