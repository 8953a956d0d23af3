"""What an application has used: whole seconds of what ended, by kind, instance type and resource (§2.4)."""

from __future__ import annotations

from builders import Cluster
from muster_scheduler.core.commands import NodeAction, NodeItem, Termination, UpdateNodes
from muster_si.constants import INSTANCE_TYPE


def _cluster() -> Cluster:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
    attributes = {INSTANCE_TYPE: "m5"}
    cluster.do(UpdateNodes((NodeItem("n", NodeAction.CREATE, attributes, {"vcore": 10, "memory": 100}),)))
    cluster.app("x", "root.a")
    return cluster


def test_seconds_count_when_the_allocation_ends() -> None:
    cluster = _cluster()
    cluster.ask("x", "k1", vcore=2, memory=5)
    cluster.wait(10.9)
    assert cluster.application("x").usage == {}
    cluster.release("x", "k1")
    assert cluster.application("x").usage == {"resourceUsage": {"m5": {"vcore": 20, "memory": 50}}}


def test_they_add_up_over_allocations_and_kinds() -> None:
    cluster = _cluster()
    for key in ("k1", "k2"):
        cluster.ask("x", key, vcore=1)
    cluster.wait(3)
    cluster.release("x", "k1")
    cluster.release("x", "k2", Termination.TIMEOUT)
    assert cluster.application("x").usage == {"resourceUsage": {"m5": {"vcore": 6}}}


def test_less_than_a_second_is_nothing() -> None:
    cluster = _cluster()
    cluster.ask("x", "k1", vcore=1)
    cluster.wait(0.9)
    cluster.release("x", "k1")
    assert cluster.application("x").usage == {}


def test_a_node_that_says_nothing_of_its_type_is_unknown() -> None:
    cluster = _cluster()
    cluster.node("plain", gpu=1)
    cluster.ask("x", "k1", gpu=1)
    cluster.wait(2)
    cluster.release("x", "k1")
    assert cluster.application("x").usage == {"resourceUsage": {"UNKNOWN": {"gpu": 2}}}
