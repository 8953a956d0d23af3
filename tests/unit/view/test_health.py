"""Each health check finds the fault of its name, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import Cluster
from muster_core.model.commands import NodeAction, NodeItem, UpdateNodes
from muster_core.partition import Partition
from muster_rest.shapes.measures import HealthDao
from muster_state.state_folder import RmEntry, RmInfo
from muster_view.health import HealthCheck

NAMES = [
    "Scheduling errors",
    "Failed nodes",
    "Negative resources",
    "Negative resources",
    "Consistency of data",
    "Consistency of data",
    "Reservation check",
    "Orphan allocation on node check",
    "Orphan allocation on app check",
    "State lag",
    "External sources",
    "Whole log",
    "Access lists",
]


def cluster_in_use() -> Cluster:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}").having(
        {"n1": {"vcore": 10}, "n2": {"vcore": 10}}, {"x": "root.a"}
    )
    for number in range(12):
        cluster.ask("x", f"k{number}", vcore=1)
    return cluster


def checked(
    cluster: Cluster, problems: tuple[str, ...] = (), lagging: str = "", lost: tuple[str, ...] = ()
) -> HealthDao:
    check = HealthCheck([RmEntry(RmInfo("rm1"), cluster.core)], problems, lagging, lost)
    for _ in check.steps():
        pass
    return check.result()


def failed(health: HealthDao) -> dict[int, str]:
    return {place: check.diagnosis_message for place, check in enumerate(health.health_checks) if not check.succeeded}


def test_a_busy_cluster_is_healthy() -> None:
    health = checked(cluster_in_use())
    assert health.healthy
    assert [check.name for check in health.health_checks] == NAMES


def test_rejected_items_do_not_make_it_unhealthy() -> None:
    cluster = cluster_in_use()
    cluster.ask("nobody", "k", vcore=1)
    cluster.app("y", "root.nope")
    cluster.node("n1", vcore=1)
    assert checked(cluster).healthy


def test_a_node_that_its_rm_shrank_is_named_but_not_unhealthy() -> None:
    cluster = cluster_in_use()
    cluster.do(UpdateNodes((NodeItem("n1", NodeAction.UPDATE, capacity={"vcore": 1}),)))
    health = checked(cluster)
    assert health.healthy
    assert health.health_checks[3].diagnosis_message == "over-committed from outside: rm1/default n1"


def _lose_from_app(partition: Partition) -> None:
    partition.apps["x"].allocations.pop("k0")


def _lose_from_node(partition: Partition) -> None:
    held = partition.apps["x"].allocations["k0"]
    del partition.nodes[held.node_id].allocations["x", "k0"]


def _negative_queue(partition: Partition) -> None:
    partition.queues["root.a"].pending[0] = -1


def _negative_use(partition: Partition) -> None:
    partition.queues["root.a"].allocated[0] = -1


def _negative_capacity(partition: Partition) -> None:
    partition.capacity[0] = -1


def _negative_allocated(partition: Partition) -> None:
    node = partition.nodes["n2"]
    node.allocated[0], node.available[0] = -1, 11


def _negative_node(partition: Partition) -> None:
    node = partition.nodes["n1"]
    node.capacity[0], node.available[0] = -1, -1 - node.allocated[0]
    partition.capacity[0] = 9


def _other_capacity(partition: Partition) -> None:
    partition.capacity[0] += 1


def _other_available(partition: Partition) -> None:
    partition.nodes["n2"].available[0] += 1


@pytest.mark.parametrize(
    ("breakage", "found"),
    [
        (_negative_queue, {2: "queue rm1/default root.a"}),
        (_negative_use, {2: "queue rm1/default root.a"}),
        (_negative_capacity, {2: "partition rm1/default", 4: "partition rm1/default"}),
        (_negative_node, {3: "node rm1/default n1"}),
        (_negative_allocated, {3: "node rm1/default n2", 5: "node rm1/default n2"}),
        (_other_capacity, {4: "partition rm1/default"}),
        (_other_available, {5: "node rm1/default n2"}),
        (_lose_from_app, {7: "k0 on node rm1/default n1"}),
        (_lose_from_node, {5: "node rm1/default n1", 8: "k0 of application rm1/default x"}),
    ],
)
def test_each_check_finds_its_own(breakage: Callable[[Partition], None], found: dict[int, str]) -> None:
    cluster = cluster_in_use()
    assert cluster.placed("x")["k0"] == "n1"
    breakage(cluster.partition)
    health = checked(cluster)
    assert not health.healthy
    assert failed(health) == found


def _reserved() -> Cluster:
    cluster = cluster_in_use()
    cluster.ask("x", "large", vcore=9)
    cluster.wait(3)
    assert cluster.application("x").asks["large"].reserved_node
    return cluster


def test_a_reservation_has_its_node_and_its_ask() -> None:
    assert checked(_reserved()).healthy
    forgotten = _reserved()
    ask = forgotten.application("x").asks["large"]
    ask.reserved_node = ""
    assert failed(checked(forgotten)) == {6: "large of application rm1/default x"}
    lost = _reserved()
    node = lost.the_node(lost.application("x").asks["large"].reserved_node)
    node.reservations.clear()
    assert failed(checked(lost)) == {6: "large of application rm1/default x"}


def test_problems_and_lag_are_checks_too() -> None:
    health = checked(cluster_in_use(), ("partition 0: cannot be folded",), "far behind")
    assert failed(health) == {0: "partition 0: cannot be folded", 9: "far behind"}


def test_of_many_findings_a_few_are_named() -> None:
    cluster = cluster_in_use()
    for held in list(cluster.application("x").allocations.values())[:7]:
        del cluster.application("x").allocations[held.key]
    message = failed(checked(cluster))[7]
    assert message.count("on node") == 5
    assert message.endswith(" and 2 more")


def test_a_lost_source_is_named() -> None:
    health = checked(cluster_in_use(), lost=("source rm1/default/vms (connection refused)",))
    assert failed(health) == {10: "source rm1/default/vms (connection refused)"}
    assert not health.healthy
