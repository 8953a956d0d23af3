"""The counting of violations finds each kind. (Without this, a count of 0 would prove nothing.)"""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.kubelets import node
from kubernetes.rig import pod
from kubernetes.violations import quantity, violations

pytestmark = pytest.mark.kubernetes

RULE = "requiredDuringSchedulingIgnoredDuringExecution"


def placed(name: str, on: str, **spec: Any) -> Any:
    made = pod(name, "space", **spec)
    made["metadata"]["uid"] = name
    made["spec"]["nodeName"] = f"fake-{on}"
    made["status"] = {"phase": "Running"}
    return made


def term(group: str, key: str) -> list[Any]:
    return [{"labelSelector": {"matchLabels": {"group": group}}, "topologyKey": key}]


NODES = [
    node("a", cpu="2", zone="a"),
    node("b", cpu="2", zone="b", labels={"disk": "ssd"}),
    node("t", cpu="2", zone="b", taints=[{"key": "gpu", "effect": "NoSchedule"}]),
]
SPREAD = [
    {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"group": "s"}},
    }
]
APART = {"podAntiAffinity": {RULE: term("x", "topology.kubernetes.io/zone")}}
BESIDE = {"podAffinity": {RULE: term("x", "kubernetes.io/hostname")}}
PORT = {"ports": [{"containerPort": 1, "hostPort": 8080}]}
IN_B = [{"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"]}]}]
AFFINE = {"nodeAffinity": {RULE: {"nodeSelectorTerms": IN_B}}}


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        ([placed("p", "a", cpu="2"), placed("q", "a", cpu="100m")], "cpu 2100 of 2000"),
        ([placed("p", "a", nodeSelector={"disk": "ssd"})], "has not disk=ssd"),
        ([placed("p", "a", affinity=AFFINE)], "fits none of its node affinity's terms"),
        ([placed("p", "t")], "does not tolerate gpu"),
        ([placed("p", "a", container=PORT), placed("q", "a", container=PORT)], "2 pods have host port 8080"),
        ([placed("p", "b", affinity=APART), placed("q", "b", labels={"group": "x"})], "is beside q"),
        ([placed("p", "a", affinity=BESIDE), placed("q", "b", labels={"group": "x"})], "has nobody of its affinity"),
        ([placed(f"p{i}", "a", labels={"group": "s"}, topologySpreadConstraints=SPREAD) for i in range(2)], "skew 2"),
    ],
)  # fmt: skip
def test_each_violation_is_found(pods: list[Any], found: str) -> None:
    sentences = violations(NODES, pods)
    assert sentences, found
    assert all(found in sentence for sentence in sentences)


def test_what_is_allowed_is_none() -> None:
    tolerates = [{"key": "gpu", "operator": "Exists"}]
    pods = [
        placed("fits", "b", cpu="1", nodeSelector={"disk": "ssd"}, affinity=AFFINE),
        placed("tolerates", "t", tolerations=tolerates),
        placed("port-a", "a", container=PORT),
        placed("port-b", "b", container=PORT),
        placed("first", "a", labels={"group": "x"}, affinity=BESIDE),
        placed("second", "a", affinity=BESIDE),
        placed("apart", "b", affinity=APART),
        *(placed(f"s{i}", "ab"[i % 2], labels={"group": "s"}, topologySpreadConstraints=SPREAD) for i in range(3)),
        {**placed("over", "a", cpu="64"), "status": {"phase": "Succeeded"}},
    ]
    assert violations(NODES, pods) == []


def test_quantities() -> None:
    assert [quantity(text) for text in ("1500m", "2", "1Ki", "0.5", 3)] == [1500, 2000, 1_024_000, 500, 3000]
