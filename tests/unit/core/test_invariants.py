"""Each violation is found: one value of a sound core is corrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from builders import Cluster, ask
from muster_core import invariants
from muster_core.invariants import InvariantViolated
from muster_core.model.commands import AskItem, UpdateAllocations
from muster_core.model.node import Node
from muster_core.model.queue import Tracker, Waitlist
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.states import AppState


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(
        "{name: root, submitacl: '*', queues: [{name: p, queues: [{name: a}]}, {name: b, maxapplications: 1}]}"
    )
    for number in range(3):
        made.node(f"n{number}", vcore=10, memory=10)
    made.app("x", "root.p.a")
    made.app("y", "root.b")
    made.app("z", "root.b")
    made.do(UpdateAllocations([replace(ask("x", "old", wanted=2, vcore=3), previous_generation=True)]))
    made.ask("x", "k", vcore=2, memory=1)
    made.ask("x", "waits", vcore=50)
    made.ask("y", "k", vcore=1)
    made.ask("z", "k", vcore=1)
    made.do(UpdateAllocations([AskItem("f", "", "default", {"memory": 2}, tags={"foreign": "static"}, node_id="n2")]))
    return made


def _first_allocation(cluster: Cluster) -> object:
    return next(iter(cluster.application("x").allocations.values()))


def _wrong_node(cluster: Cluster) -> None:
    _first_allocation(cluster).node_id = "elsewhere"  # type: ignore[attr-defined]


def _misfile(cluster: Cluster) -> None:
    app = cluster.application("x")
    app.allocations["other"] = app.allocations.pop("k")


def _forget_group_count(cluster: Cluster) -> None:
    for group in cluster.application("x").groups.values():
        group.asks += 1


def _swap_index(cluster: Cluster) -> None:
    block = cluster.partition.index._blocks[0]
    block.nodes.reverse()


def _finish(cluster: Cluster) -> None:
    cluster.application("x").state = AppState.COMPLETED


def _empty_ask(cluster: Cluster) -> None:
    cluster.application("x").asks["waits"].pending = 0


def _orphan_list(cluster: Cluster) -> None:
    leaf = cluster.queue("root.b")
    key = (cluster.partition.types.shape({"vcore": 7}), (), "", 0)
    leaf.waitlists[key] = Waitlist(leaf, key)


def _make_ready(cluster: Cluster) -> None:
    app = cluster.application("x")
    (group,) = app.groups.values()
    cluster.partition.waiting.parking.unpark(app.queue.waitlists[group.wait_key], group)
    cluster.partition.waiting.make_ready(group)


def _bump(vector: list[int]) -> None:
    vector[0] += 1


CORRUPTIONS: list[tuple[Callable[[Cluster], object], str]] = [
    (_wrong_node, "of node elsewhere"),
    (lambda c: _bump(c.the_node("n0").allocated), "its allocations sum to"),
    (lambda c: _bump(c.the_node("n2").occupied), "is held by others"),
    (lambda c: _bump(c.the_node("n1").available), "available, should be"),
    (lambda c: _bump(c.the_node("n1").capacity), "available, should be"),
    (lambda c: _bump(c.partition.capacity), "partition default: capacity"),
    (lambda c: setattr(c.the_node("n0"), "schedulable", False), "but not to be searched"),
    (lambda c: setattr(c.the_node("n0"), "index_key", None), "but not to be searched"),
    (lambda c: setattr(c.partition.index, "count", 7), "lost count"),
    (_swap_index, "out of order"),
    (lambda c: _bump(c.queue("root").allocated), "applications sum to"),
    (lambda c: _bump(c.queue("root.p").pending), "applications sum to"),
    (lambda c: setattr(c.queue("root.b"), "running_applications", 0), "applications running, counted"),
    (_empty_ask, "has nothing pending"),
    (lambda c: _bump(c.application("x").allocated), "sum to"),
    (lambda c: _bump(c.application("x").pending), "sum to"),
    (_finish, "is over, but holds|running, counted"),
    (_forget_group_count, "counts 2 asks, has 1"),
    (_misfile, "is filed under other"),
    (lambda c: c.application("x").repeats.clear(), "not found by its number"),
    (lambda c: c.application("x").by_uuid.clear(), "not found by its UUID"),
    (lambda c: c.application("x").repeats.update(gone={1: None}), "repeats that are gone"),
    (lambda c: c.application("x").by_uuid.update(gone={None: None}), "UUIDs that are gone"),
    (_orphan_list, "no group waits on it"),
    (lambda c: c.queue("root.p.a").waitlists.clear(), "pending without a reason"),
    (_make_ready, "something ready after an exhausted cycle|no group waits on it"),
    (
        lambda c: setattr(c.application("y"), "reason", Reason(ReasonCode.QUEUE_MAX_APPLICATIONS)),
        "does not wait",
    ),
]


RESERVED = (
    "{name: root, submitacl: '*', limits: [{limit: each, users: ['*'], maxresources: {memory: 90}}],"
    " queues: [{name: p}, {name: q, properties: {preemption.delay: 1s}}]}"
)


@pytest.fixture
def reserved() -> Cluster:
    """A cluster with a reserved node, users with limits, and a releasing allocation."""
    made = Cluster(RESERVED)
    for number in range(2):
        made.node(f"n{number}", memory=10)
    made.app("x", "root.q")
    made.do(UpdateAllocations([replace(ask("x", f"k{each}", memory=6), allow_preempt_self=True) for each in range(2)]))
    made.app("y", "root.q", user="bob")
    made.ask("y", "large", memory=9)
    made.do(UpdateAllocations([replace(ask("y", "urgent", memory=5, priority=4), allow_preempt_other=True)]))
    made.wait(3)
    assert any(held.preempted for held in made.application("x").allocations.values())
    assert all(node.reservations for node in made.partition.nodes.values())
    return made


def _keeper(cluster: Cluster) -> Node:
    return next(node for node in cluster.partition.nodes.values() if node.reservations)


def _forget_who(cluster: Cluster) -> None:
    next(iter(_keeper(cluster).reservations)).reserved_node = ""


def _forget_where(cluster: Cluster) -> None:
    _keeper(cluster).reservations.clear()


def _keep_for_two(cluster: Cluster) -> None:
    first, second = cluster.partition.nodes.values()
    (ask_of_second,) = second.reservations
    first.reservations[ask_of_second] = None
    ask_of_second.reserved_node = first.node_id
    second.reservations.clear()
    cluster.partition.node_books.update_index(second)


def _unmark(cluster: Cluster) -> None:
    for held in cluster.application("x").allocations.values():
        held.preempted = None


def _lone_tracker(cluster: Cluster) -> None:
    limits = cluster.partition.limits
    limits._trackers["root", "nobody", False] = Tracker(cluster.partition.types, "root", "nobody", group=False)


def _tracker(cluster: Cluster) -> Tracker:
    return next(iter(cluster.partition.limits))


def _wait_behind(cluster: Cluster) -> None:
    for waitlist in cluster.queue("root.q").waitlists.values():
        assert waitlist.bench is not None
        waitlist.bench.moving = True


MORE_CORRUPTIONS: list[tuple[Callable[[Cluster], object], str]] = [
    (_forget_who, "which does not know"),
    (_forget_where, "thinks that|but not to be searched"),
    (_keep_for_two, "for more than one"),
    (_unmark, "preempting .* marks sum to"),
    (_lone_tracker, "of which 1|of which 2"),
    (lambda c: _bump(_tracker(c).allocated), "Tracker.*its applications sum to"),
    (lambda c: setattr(_tracker(c), "running_applications", 7), "Tracker.*7 running"),
    (lambda c: setattr(_tracker(c), "applications", 7), "Tracker.*7 applications"),
    (lambda c: setattr(c.application("x"), "bounds", ()), "keeps other limits"),
    (lambda c: setattr(c.application("x"), "ledgers", ()), "counts elsewhere"),
    (lambda c: setattr(c.application("y"), "parked", 9), "9 groups parked"),
    (_wait_behind, "that is not tried"),
]


def test_a_core_with_reservations_and_limits_passes(reserved: Cluster) -> None:
    invariants.check(reserved.core, exhausted=True)


@pytest.mark.parametrize(("corrupt", "said"), MORE_CORRUPTIONS, ids=range(len(MORE_CORRUPTIONS)))
def test_a_violation_of_claims_and_limits_is_found(
    reserved: Cluster, corrupt: Callable[[Cluster], object], said: str
) -> None:
    corrupt(reserved)
    with pytest.raises(InvariantViolated, match=said):
        invariants.check(reserved.core, exhausted=True)


def test_the_sound_core_passes(cluster: Cluster) -> None:
    invariants.check(cluster.core, exhausted=True)


@pytest.mark.parametrize(("corrupt", "said"), CORRUPTIONS, ids=range(len(CORRUPTIONS)))
def test_a_violation_is_found(cluster: Cluster, corrupt: Callable[[Cluster], object], said: str) -> None:
    corrupt(cluster)
    with pytest.raises(InvariantViolated, match=said):
        invariants.check(cluster.core, exhausted=True)
