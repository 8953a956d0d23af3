"""O(changed), measured in executed lines: a step costs the same in a small and in a large cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import pytest
from builders import Cluster, ask, nodes
from muster_core.model.commands import (
    AppItem,
    Command,
    NodeAction,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
)
from muster_core.model.outcome import Outcome
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config

SMALL, LARGE = 60, 3_000
QUEUES = "{name: root, submitacl: '*', queues: [{name: a, resources: {max: {memory: 1000}}}, {name: b}]}"


def _work(cluster: Cluster, command: Command) -> int:
    """How many lines the step runs (single instructions are not counted reliably on every Python)."""
    count = 0

    def trace(_frame: FrameType, event: str, _: object) -> Callable[..., object]:
        nonlocal count
        count += event in ("line", "call")  # each turn of a loop is one, also within one line
        return trace

    out, before = Outcome(), sys.gettrace()
    sys.settrace(trace)
    try:
        cluster.core.apply(command, cluster.now_ns, out)
        cluster.core.cycle(cluster.now_ns, 1 << 30, out)
    finally:
        sys.settrace(before)
    assert out, "the step did nothing"
    return count


def _fill(size: int, *, apps: int = 1, nodes_count: int = 1) -> Cluster:
    """Every node full, ``size`` asks of one shape waiting, spread over ``apps`` applications."""
    cluster = Cluster(QUEUES)
    cluster.core.apply(
        nodes(NodeAction.CREATE, {f"n{number}": {"vcore": 10, "memory": 100} for number in range(nodes_count)}), 1
    )
    new = tuple(AppItem(f"x{number}", "root.a", "default", "u") for number in range(apps))
    cluster.core.apply(UpdateApplications(new), cluster.now_ns)
    items = [ask(f"x{n % apps}", f"k{n}", vcore=1) for n in range(10 * nodes_count + size)]
    cluster.core.apply(UpdateAllocations(items), cluster.now_ns)
    cluster.core.cycle(cluster.now_ns, 1 << 30)
    return cluster


def _release(app_id: str, key: str = "", uuid: str = "") -> UpdateAllocations:
    return UpdateAllocations((), [ReleaseItem("default", app_id, key, Termination.STOPPED_BY_RM, uuid)])


def _of_an_allocation_before_many_asks(size: int) -> tuple[Cluster, Command]:
    return _fill(size), _release("x0", "k0")


def _of_an_allocation_before_many_applications(size: int) -> tuple[Cluster, Command]:
    return _fill(size, apps=size), _release("x0", "k0")


def _of_a_pending_ask(size: int) -> tuple[Cluster, Command]:
    return _fill(size), _release("x0", "k15")


def _of_a_pending_ask_beside_many_allocations(size: int) -> tuple[Cluster, Command]:
    return _fill(10, nodes_count=size // 10), _release("x0", f"k{size // 10 * 10 + 5}")


def _by_uuid(size: int) -> tuple[Cluster, Command]:
    cluster = Cluster(QUEUES).having({"n": {"vcore": size}}, {"x": "root.b"})
    item = replace(ask("x", "k", wanted=size, vcore=1), previous_generation=True)
    cluster.core.apply(UpdateAllocations([item]), cluster.now_ns)
    cluster.core.cycle(cluster.now_ns, 1 << 30)
    uuid = cluster.application("x").allocations[f"k#{size // 2}"].uuid
    return cluster, _release("x", uuid=uuid)


def _a_new_ask_that_waits_with_many(size: int) -> tuple[Cluster, Command]:
    return _fill(size), UpdateAllocations([ask("x0", "one more", vcore=1)])


def _a_new_ask_that_fits_nowhere(size: int) -> tuple[Cluster, Command]:
    """The figures of its "no" come from the index, not from every node."""
    cluster = _fill(0, nodes_count=size // 10)
    cluster.app("y", "root.b")
    cluster.ask("y", "first", vcore=5)
    cluster.core.apply(_release("x0", "k0"), cluster.now_ns)
    return cluster, UpdateAllocations([ask("y", "other", vcore=7)])


def _a_dynamic_queue_beside_many(size: int) -> tuple[Cluster, Command]:
    config, _ = load_queue_config(
        "partitions: [{placementrules: [{name: provided, create: true}], queues: [{name: root, submitacl: '*'}]}]"
    )
    assert config is not None
    cluster = Cluster("{name: root}")
    cluster.core = SchedulerCore(config)
    for number in range(size):
        new = AppItem(f"x{number}", f"root.q{number}", "default", "u")
        cluster.core.apply(UpdateApplications((new,)), cluster.now_ns)
    cluster.core.cycle(cluster.now_ns, 1)
    return cluster, UpdateApplications((AppItem("new", "root.new", "default", "u"),))


USERS = (
    "{name: root, submitacl: '*',"
    " limits: [{limit: each, users: ['*'], maxresources: {memory: 100}, maxapplications: 1}],"
    " queues: [{name: a}, {name: b}]}"
)


def _users(size: int, *, apps: int = 1, shapes: int = 1, fit: bool = True) -> Cluster:
    """One full node; ``size`` users, each under an own copy of the limits, wait in one leaf."""
    cluster = Cluster(USERS)
    cluster.node("n", vcore=20, memory=10 * size)
    cluster.app("filler", "root.b", user="filler")
    cluster.core.apply(UpdateAllocations([ask("filler", f"f{n}", vcore=1) for n in range(20)]), cluster.now_ns)
    cluster.core.cycle(cluster.now_ns, 1 << 30)
    own = range(apps)
    new = tuple(AppItem(f"x{n}-{m}", "root.a", "default", f"u{n}") for n in range(size) for m in own)
    cluster.core.apply(UpdateApplications(new), cluster.now_ns)
    items = [
        ask(f"x{n}-{m}", f"k{each}", vcore=1 if fit else 5 + (n % shapes), memory=n % shapes)
        for n in range(size)
        for m in own
        for each in range(2)
    ]
    cluster.core.apply(UpdateAllocations(items), cluster.now_ns)
    cluster.core.cycle(cluster.now_ns, 1 << 30)
    _work(cluster, _release("filler", "f19"))  # (what is set up at the first gain is not the cost of a gain)
    return cluster


def _of_an_allocation_before_many_users(size: int) -> tuple[Cluster, Command]:
    return _users(size), _release("filler", "f0")


def _of_an_allocation_too_small_for_many_shapes(size: int) -> tuple[Cluster, Command]:
    return _users(max(size, 200), shapes=max(size, 200), fit=False), _release("filler", "f0")


def _beside_many_users_that_run_as_many_applications_as_they_may(size: int) -> tuple[Cluster, Command]:
    cluster = _users(0)
    cluster.node("large", vcore=size, memory=100)
    new = tuple(AppItem(f"x{n}-{m}", "root.a", "default", f"u{n}") for n in range(size) for m in range(2))
    cluster.core.apply(UpdateApplications(new), cluster.now_ns)
    items = [ask(f"x{n}-{m}", "k", vcore=1) for n in range(size) for m in range(2)]
    cluster.core.apply(UpdateAllocations(items), cluster.now_ns)
    cluster.core.cycle(cluster.now_ns, 1 << 30)
    return cluster, _release("filler", "f0")


def _beside_many_reservations(size: int) -> tuple[Cluster, Command]:
    cluster = Cluster(QUEUES)
    cluster.core.apply(nodes(NodeAction.CREATE, {f"n{n}": {"vcore": 10} for n in range(size)}), cluster.now_ns)
    cluster.app("filler", "root.b")
    cluster.core.apply(UpdateAllocations([ask("filler", f"f{n}", vcore=9) for n in range(size)]), cluster.now_ns)
    new = tuple(AppItem(f"x{n}", "root.a", "default", "u") for n in range(size))
    cluster.core.apply(UpdateApplications(new), cluster.now_ns)
    items = [replace(ask(f"x{n}", "k", vcore=10), quantities={"vcore": 10, f"t{n % 30}": 0}) for n in range(size)]
    cluster.core.apply(UpdateAllocations(items), cluster.now_ns)
    for seconds in range(30):
        cluster.core.cycle(cluster.now_ns + seconds * 1_000_000_000, 1 << 30)
    cluster.now_ns += 30_000_000_000
    assert sum(bool(node.reservations) for node in cluster.partition.nodes.values()) >= 30
    return cluster, _release("filler", "f0")


STEPS: list[Callable[[int], tuple[Cluster, Command]]] = [
    _of_an_allocation_before_many_asks,
    _of_an_allocation_before_many_applications,
    _of_a_pending_ask,
    _of_a_pending_ask_beside_many_allocations,
    _by_uuid,
    _a_new_ask_that_waits_with_many,
    _a_new_ask_that_fits_nowhere,
    _a_dynamic_queue_beside_many,
    _of_an_allocation_before_many_users,
    _of_an_allocation_too_small_for_many_shapes,
    _beside_many_users_that_run_as_many_applications_as_they_may,
    _beside_many_reservations,
]


@pytest.mark.source
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__.strip("_"))
def test_a_step_costs_the_same_in_a_large_cluster(step: Callable[[int], tuple[Cluster, Command]]) -> None:
    small, large = _work(*step(SMALL)), _work(*step(LARGE))
    # Fifty times as much of everything; sorted lists and blocks of nodes cost a little more, nothing else does.
    assert large < 2 * small, (small, large)
