"""Containers and VMs on the same hosts: what the event handler framework is for ("Motivation"), by the default event
handler.

The RM places containers, another manager runs VMs on the same machines. Without what that one says the scheduler
over-commits hosts; with it, no step does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from builders import ask, nodes
from manual_clock import ManualClock
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    SetSourceState,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.model.commands import (
    NodeAction,
    ReleaseItem,
    SetSchedulingEnabled,
    Termination,
    UpdateAllocations,
)
from muster_core.model.outcome import NewAllocation, Outcome, ReleasedAllocation
from muster_informers.contract import EventHandler, HandlerContext
from muster_informers.handlers import default
from outside import Outside

HOSTS = {f"host-{number}": 16 for number in range(6)}


class Hosts:
    """Everything that runs on the machines. The VMs' manager knows its own share only."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.vms: dict[str, tuple[str, int]] = {}
        self.containers: dict[tuple[str, str], tuple[str, int]] = {}
        self._next = 0

    def used(self, host: str) -> int:
        return sum(size for on, size in (*self.vms.values(), *self.containers.values()) if on == host)

    def start_or_stop_a_vm(self) -> ExternalChange | None:
        """The other manager starts a VM on a host with room, or ends one."""
        if self.vms and self.dice.random() < 0.4:
            key = self.dice.choice([*self.vms])
            del self.vms[key]
            return ExternalChange(ExternalKind.ALLOCATION, key, None)
        size = self.dice.randint(1, 6)
        room = [host for host, whole in HOSTS.items() if self.used(host) + size <= whole]
        if not room:
            return None
        self._next += 1
        key, host = f"vm-{self._next}", self.dice.choice(room)
        self.vms[key] = (host, size)
        vm = ExternalAllocation(key, host, {"vcore": size})
        return ExternalChange(ExternalKind.ALLOCATION, key, vm)

    def take(self, out: Outcome) -> None:
        for fact in out.facts:
            match fact:
                case NewAllocation(allocation=held):
                    self.containers[held.app_id, held.key] = (held.node_id, held.shape.quantities["vcore"])
                case ReleasedAllocation():
                    self.containers.pop((fact.app_id, fact.key), None)

    def over_committed(self) -> list[str]:
        return [host for host, whole in HOSTS.items() if self.used(host) > whole]


def life(seed: int, *, informed: bool) -> int:
    """The number of steps after which a host is overcommitted."""
    dice = random.Random(seed)
    cluster = Outside()
    cluster.app("x", "root.a")
    cluster.do(nodes(NodeAction.CREATE, {host: {"vcore": size} for host, size in HOSTS.items()}))
    hosts = Hosts(dice)
    over = 0
    for step in range(60):
        vm = hosts.start_or_stop_a_vm()
        if vm is not None and informed:
            hosts.take(cluster.do(ApplyExternalChanges("default", "vms", "life", (vm,))))
        wanted = [ask("x", f"c{step}-{number}", vcore=dice.randint(1, 4)) for number in range(dice.randint(0, 3))]
        gone = [
            ReleaseItem("default", app_id, key, Termination.STOPPED_BY_RM)
            for app_id, key in hosts.containers
            if dice.random() < 0.15
        ]
        hosts.take(cluster.do(UpdateAllocations(wanted, gone)))
        over += bool(hosts.over_committed())
    return over


@pytest.mark.parametrize("seed", range(8))
def test_with_what_the_other_manager_says_no_step_over_commits_a_host(seed: int) -> None:
    assert life(seed, informed=True) == 0


@pytest.mark.parametrize("seed", range(4))
def test_without_it_both_over_commit(seed: int) -> None:
    assert life(seed, informed=False) > 0


# ---- the first cycle waits -------------------------------------------------------------------------------------------


def test_nothing_is_placed_before_the_informer_has_synced() -> None:
    cluster = Outside()
    cluster.do(SetSchedulingEnabled(False))
    cluster.app("x", "root.a")
    cluster.node("host-0", vcore=4)
    cluster.ask("x", "container", vcore=3)
    cluster.says("vms", ExternalAllocation("vm", "host-0", {"vcore": 2}), life="1")
    cluster.sets("vms", SourceState.LIVE)
    assert cluster.placed("x") == {}
    cluster.do(SetSchedulingEnabled(True))
    assert cluster.pending("x") == {"container": "NO_NODE_HAS_ROOM"}, "the VM's resources were known before"


# ---- the default event handler ---------------------------------------------------------------------------------------


class CoreCache:
    """Puts objects directly into the core, without a log."""

    source = "vms"

    def __init__(self, cluster: Outside) -> None:
        self._cluster = cluster
        self.out = Outcome()

    def put(self, what: ExternalObject) -> None:
        self._send(ExternalChange(kind_of(what), id_of(what), what))

    def delete(self, kind: ExternalKind, object_id: str) -> None:
        self._send(ExternalChange(kind, object_id, None))

    def distrust(self, kind: ExternalKind, object_id: str) -> None:
        self._send(ExternalChange(kind, object_id, None, stale=True))

    def _send(self, change: ExternalChange) -> None:
        self.out = self._cluster.do(ApplyExternalChanges("default", self.source, "life", (change,)))


@pytest.fixture
def cluster() -> Outside:
    made = Outside("{name: root, submitacl: '*', queues: [{name: a}, {name: b}]}")
    made.node("host-0", vcore=8)
    return made


@pytest.fixture
def handler(cluster: Outside) -> Iterator[EventHandler]:
    context = HandlerContext("file", ManualClock(0))
    yield default.make_handler(CoreCache(cluster), None, context)
    cluster.check_folds()


def vcores(cluster: Outside, host: str = "host-0") -> tuple[int, int]:
    """(what the host has, what is free of it)."""
    node = cluster.the_node(host)
    number = node.types.number("vcore")
    return node.capacity[number], node.available[number]


def test_add_update_delete_node(cluster: Outside, handler: EventHandler) -> None:
    first, second = ExternalNode("host-1", {"vcore": 4}), ExternalNode("host-1", {"vcore": 6}, {"vcore": 1})
    handler.add_node(first, initial=True)
    assert vcores(cluster, "host-1") == (4, 4)
    handler.update_node(first, second)
    assert vcores(cluster, "host-1") == (6, 5)
    handler.delete_node(second)
    assert [*cluster.partition.nodes] == ["host-0"]


def test_add_update_delete_allocation(cluster: Outside, handler: EventHandler) -> None:
    first, second = (ExternalAllocation("vm", "host-0", {"vcore": size}) for size in (2, 3))
    handler.add_allocation(first, initial=False)
    assert vcores(cluster) == (8, 6)
    handler.update_allocation(first, second)
    assert vcores(cluster) == (8, 5)
    handler.delete_allocation(second)
    assert vcores(cluster) == (8, 8)


def test_add_update_delete_queue(cluster: Outside, handler: EventHandler) -> None:
    first, second = (ExternalQueue("root.a", {"vcore": size}) for size in (2, 3))
    queue = cluster.queue("root.a")
    handler.add_queue(first, initial=True)
    assert queue.by_name(queue.maximum) == {"vcore": 2}
    handler.update_queue(first, second)
    assert queue.by_name(queue.maximum) == {"vcore": 3}
    handler.delete_queue(second)
    assert queue.maximum is None


def test_add_update_delete_application(cluster: Outside, handler: EventHandler) -> None:
    first, second = (ExternalApplication("tenant", path, "vic") for path in ("root.a", "root.b"))
    handler.add_application(first, initial=True)
    handler.add_allocation(ExternalAllocation("vm", "host-0", {"vcore": 2}, "tenant"), initial=True)
    number = cluster.partition.types.number("vcore")
    assert cluster.queue("root.a").allocated[number] == 2
    handler.update_application(first, second)
    assert (cluster.queue("root.a").allocated[number], cluster.queue("root.b").allocated[number]) == (0, 2)
    handler.delete_application(second)
    assert cluster.queue("root.b").allocated[number] == 0
    assert vcores(cluster) == (8, 6), "the VM is still there"


def test_add_update_delete_offer(cluster: Outside, handler: EventHandler) -> None:
    first, second = (ExternalOffer("o-1", "lent", {"vcore": size}) for size in (2, 3))
    handler.add_offer(first, initial=True)
    assert vcores(cluster, "lent") == (2, 2)
    handler.update_offer(first, second)
    assert vcores(cluster, "lent") == (3, 3)
    handler.delete_offer(second)
    assert "lent" not in cluster.partition.nodes


def test_add_update_delete_pool(cluster: Outside, handler: EventHandler) -> None:
    first, second = (ExternalPool("licence", quantity) for quantity in (2, 3))
    number = cluster.partition.types.number("licence")
    handler.add_pool(first, initial=True)
    assert cluster.partition.capacity[number] == 2
    handler.update_pool(first, second)
    assert cluster.partition.capacity[number] == 3
    handler.delete_pool(second)
    assert cluster.partition.capacity[number] == 0


def test_objects_put_again_after_a_new_listing_change_nothing(cluster: Outside, handler: EventHandler) -> None:
    host = ExternalNode("host-1", {"vcore": 4})
    handler.add_node(host, initial=True)
    out = cluster.do(
        ApplyExternalChanges("default", "vms", "life", (ExternalChange(ExternalKind.NODE, "host-1", host),))
    )
    assert (out.facts, out.events, list(out.objects())) == ([], [], [])
    out = cluster.do(SetSourceState("default", "vms", "life", SourceState.LIVE))
    assert (out.facts, out.events) == ([], [])
