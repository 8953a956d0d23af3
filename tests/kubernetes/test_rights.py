"""The shim's rights: it needs all of them, it is refused nothing, and it may do nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from kubernetes.api import Api, ApiFailed, Json
from kubernetes.cluster import ControlPlane
from kubernetes.kubelets import node
from kubernetes.rig import ACCOUNT, LEASE, NAMESPACE, Rig, conditions, eventually, packaged, pod

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

# Verb, group, resource.
Right = tuple[str, str, str]

# What somebody who has the shim's token must not be able to do: verb, group, resource, namespace, name.
FORBIDDEN = [
    ("get", "", "secrets", NAMESPACE, ""),
    ("list", "", "secrets", "", ""),
    ("create", "", "pods/exec", "default", ""),
    ("create", "", "pods/eviction", "default", ""),
    ("update", "", "pods", "default", ""),
    ("patch", "", "pods", "default", ""),
    ("deletecollection", "", "pods", "default", ""),
    ("update", "", "nodes", "", ""),
    ("delete", "", "nodes", "", ""),
    ("update", "", "configmaps", NAMESPACE, "yunikorn-configs"),
    ("get", "", "configmaps", "kube-system", ""),
    ("get", "coordination.k8s.io", "leases", NAMESPACE, "of-another"),
    ("update", "coordination.k8s.io", "leases", "kube-system", "kube-scheduler"),
    ("delete", "coordination.k8s.io", "leases", NAMESPACE, LEASE),
    ("create", "", "serviceaccounts/token", NAMESPACE, ACCOUNT),
    ("create", "apps", "deployments", "default", ""),
    ("delete", "", "persistentvolumeclaims", "default", ""),
    ("create", "", "namespaces", "", ""),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles", "", ""),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", "", ""),
    ("update", "flowcontrol.apiserver.k8s.io", "flowschemas", "", ""),
    ("create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", ""),
    ("impersonate", "", "users", "", ""),
]


@pytest.fixture
def shim(cluster: Rig) -> Iterator[Api]:
    """The API as the shim has it."""
    one = Api(cluster.shim_kubeconfig)
    yield one
    one.close()


def may(api: Api, verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> bool:
    resource, _, part = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": part, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": {**attributes, "name": name}},
    }
    return bool(api.create(review)["status"]["allowed"])


@pytest.mark.parametrize(("verb", "group", "resource", "namespace", "name"), FORBIDDEN)
def test_the_shim_may_not(shim: Api, verb: str, group: str, resource: str, namespace: str, name: str) -> None:
    assert not may(shim, verb, group, resource, namespace, name)


def test_the_apiserver_refuses_the_shim_what_is_not_its_own(cluster: Rig, shim: Api) -> None:
    space = cluster.namespace("rights")
    made = cluster.api.create(pod("stays", space))
    assert may(shim, "get", "", "pods", space)
    for attempt in (
        lambda: shim.list("Secret", NAMESPACE),
        lambda: shim.patch("Pod", "stays", {"metadata": {"labels": {"a": "b"}}}, space),
        lambda: shim.delete("Node", "fake-none"),
        lambda: shim.delete("Lease", LEASE, NAMESPACE),
    ):
        with pytest.raises(ApiFailed) as refused:
            attempt()
        assert refused.value.code == 403
    assert cluster.api.get("Pod", "stays", space)["metadata"]["uid"] == made["metadata"]["uid"]


@pytest.mark.own_control_plane
def test_the_shim_needs_its_rights_and_is_refused_nothing(cluster: Rig, control_plane: ControlPlane | None) -> None:
    assert control_plane is not None
    audit = Audit(control_plane.audit_log)
    # From its start: lists, watches (which the log has at their end), ConfigMaps, the Lease, which is gone.
    cluster.shim.kill()
    cluster.shim.start()
    cluster.works()
    _life(cluster)
    missing: set[Right] = set()

    def all_used() -> bool:
        missing.clear()
        missing.update(_given() - audit.used)
        return not missing

    try:
        eventually(lambda: audit.read() or all_used(), "each right is used")
    except AssertionError:
        pytest.fail(f"rights that the shim does not use: {sorted(missing)}")
    assert audit.refused == []


class Audit:
    """The requests of the shim's account from now on."""

    def __init__(self, log_file: Path) -> None:
        self._file = log_file
        self._at = log_file.stat().st_size
        self.used: set[Right] = set()
        self.refused: list[str] = []

    def read(self) -> None:
        with self._file.open("rb") as log:
            log.seek(self._at)
            for line in log:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._at += len(line)
                self._take(json.loads(line))

    def _take(self, request: Json) -> None:
        if request["user"]["username"] != f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}":
            return
        what = request.get("objectRef", {})
        resource = "/".join(filter(None, (what.get("resource"), what.get("subresource"))))
        self.used.add((request["verb"], what.get("apiGroup", ""), resource))
        if request.get("responseStatus", {}).get("code") == 403:
            self.refused.append(f"{request['verb']} {request['requestURI']}")


def _given() -> set[Right]:
    rules = [
        rule
        for thing in packaged("muster.yaml")
        if thing["kind"] in ("Role", "ClusterRole") and thing["metadata"]["name"] == "muster-shim"
        for rule in thing["rules"]
    ]
    return {right for rule in rules for right in product(rule["verbs"], rule["apiGroups"], rule["resources"])}


def _life(cluster: Rig) -> None:
    """Everything for which the shim has a right: a gang, a pod that fits nowhere, volumes of both kinds."""
    space = cluster.namespace("rights-life")
    cluster.nodes(node("rights"))
    # Placeholders are made and removed; events are written and counted up.
    groups = [{"name": "g", "minMember": 2, "minResource": {"cpu": "100m", "memory": "64Mi"}}]
    gang = {
        "yunikorn.apache.org/task-group-name": "g",
        "yunikorn.apache.org/task-groups": json.dumps(groups),
    }
    cluster.api.create_all([pod(f"member-{i}", space, app="gang", annotations=dict(gang)) for i in range(2)])
    cluster.api.create(pod("huge", space, app="huge", cpu="64"))
    bound = ("member-0", "member-1")
    eventually(
        lambda: all(cluster.api.get("Pod", name, space)["spec"].get("nodeName") for name in bound), "the gang runs"
    )
    eventually(
        lambda: conditions(cluster.api.get("Pod", "huge", space)).get("PodScheduled", {}).get("reason"), "a condition"
    )
    _volumes(cluster, space)


def _volumes(cluster: Rig, space: str) -> None:
    """A volume that is there (the shim claims it), and one that is made on the node of the shim's choice."""
    for name, provisioner in (("there", "kubernetes.io/no-provisioner"), ("made", "test/provisioner")):
        cluster.api.apply(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": f"test-{name}"},
                "provisioner": provisioner,
                "volumeBindingMode": "WaitForFirstConsumer",
            }
        )
    cluster.api.create(_volume(f"{space}-there", "test-there"))
    for name in ("there", "made"):
        cluster.api.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": space},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": f"test-{name}",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }
        )
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": name}}
        cluster.api.create(pod(f"volume-{name}", space, app="volumes", volumes=[volume]))
    try:
        chosen = eventually(
            lambda: (
                cluster.api.get("PersistentVolumeClaim", "made", space)["metadata"]
                .get("annotations", {})
                .get("volume.kubernetes.io/selected-node")
            ),
            "the shim has chosen a node for the volume",
        )
        assert chosen == "fake-rights"
        claim = cluster.api.get("PersistentVolumeClaim", "made", space)
        meta = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": space, "name": "made"}
        reference = {**meta, "uid": claim["metadata"]["uid"]}
        cluster.api.create(_volume(f"{space}-made", "test-made", claimRef=reference))
        for name in ("volume-there", "volume-made"):
            eventually(
                lambda name=name: cluster.api.get("Pod", name, space)["spec"].get("nodeName"), f"{name} is placed"
            )
        cluster.settled()
    finally:
        cluster.api.delete_all([{"kind": "Pod", **each} for each in cluster.pods(space)], grace_s=0)
        for name in ("there", "made"):
            cluster.api.delete("PersistentVolumeClaim", name, space)
            cluster.api.delete("PersistentVolume", f"{space}-{name}")


def _volume(name: str, storage_class: str, **more: Any) -> Json:
    on = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["fake-rights"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": "/none"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on]}]}},
            **more,
        },
    }
