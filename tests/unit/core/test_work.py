"""O(changed), counted in lines run, not in seconds: a step costs the same in a small cluster and in a large one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from builders import Cluster, ask, nodes
from muster_scheduler.core.commands import (
    AppItem,
    Command,
    NodeAction,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
)
from muster_scheduler.core.outcome import Outcome
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.queue_yaml import load_queue_config

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
    cluster = Cluster(QUEUES)
    cluster.node("n", vcore=size)
    cluster.app("x", "root.b")
    item = ask("x", "k", wanted=size, vcore=1)._replace(previous_generation=True)
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


STEPS: list[Callable[[int], tuple[Cluster, Command]]] = [
    _of_an_allocation_before_many_asks,
    _of_an_allocation_before_many_applications,
    _of_a_pending_ask,
    _of_a_pending_ask_beside_many_allocations,
    _by_uuid,
    _a_new_ask_that_waits_with_many,
    _a_new_ask_that_fits_nowhere,
    _a_dynamic_queue_beside_many,
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__.strip("_"))
def test_a_step_costs_the_same_in_a_large_cluster(step: Callable[[int], tuple[Cluster, Command]]) -> None:
    small, large = _work(*step(SMALL)), _work(*step(LARGE))
    # Fifty times as much of everything; sorted lists and blocks of nodes cost a little more, nothing else does.
    assert large < 2 * small, (small, large)
