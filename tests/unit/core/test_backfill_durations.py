"""Asks of one size that declare many different durations: who reserves, in which order, and how many are tried."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from builders import Cluster, allocations, ask
from muster_core.allocation import escalation
from muster_core.allocation.allocator import Allocator
from muster_core.allocation.backfill import Backfill
from muster_core.allocation.escalation import Escalation
from muster_core.model import wait_points
from muster_core.model.application import Ask, AskGroup
from muster_core.model.commands import AskItem, Termination, UpdateAllocations
from muster_core.model.node import Node
from muster_core.model.outcome import ReleasedAllocation
from muster_core.model.queue import Waitlist
from muster_core.model.reasons import Reason, ReasonCode

MODES = ("conservative", "easy")
QUEUES = "{name: root, submitacl: '*', queues: [{name: a}, {name: b}]}"


def _for(app_id: str, key: str, seconds: float, *, priority: int = 0, **quantities: int) -> AskItem:
    return replace(ask(app_id, key, priority=priority, **quantities), execution_timeout_ms=round(seconds * 1000))


def _kept(cluster: Cluster, *app_ids: str) -> dict[str, str]:
    """The reserved nodes, by ask."""
    found = (each for app_id in app_ids or ("x",) for each in cluster.application(app_id).asks.values())
    return {each.key: each.reserved_node for each in found if each.reserved_node}


# ---- who reserves, and where -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["off", *MODES])
def test_asks_of_one_size_reserve_one_node_whatever_they_declare(mode: str) -> None:
    cluster = Cluster(QUEUES, partition=f"backfill: '{mode}', ")
    cluster.app("x", "root.a")
    for number in range(6):
        cluster.node(f"n{number}", vcore=10)
    cluster.do(UpdateAllocations([_for("x", f"full{number}", 1_000, vcore=9) for number in range(6)]))
    cluster.do(UpdateAllocations([_for("x", f"k{number}", 100 + number, vcore=8) for number in range(5)]))
    cluster.ask("x", "undeclared", vcore=8)
    cluster.wait(100)
    assert list(_kept(cluster)) == ["k0"]


@pytest.mark.parametrize("mode", ["off", *MODES])
def test_no_ask_reserves_before_an_older_one_of_its_size(mode: str) -> None:
    """A node is free again: the oldest ask without a node gets it, not the first of another duration."""
    cluster = Cluster(QUEUES, partition=f"backfill: '{mode}', ")
    cluster.app("x", "root.a")
    cluster.node("n0", vcore=10)
    cluster.node("n1", vcore=10)
    cluster.do(UpdateAllocations([_for("x", f"full{number}", 1_000, vcore=10) for number in range(2)]))
    for key, seconds in (("first", 3_600), ("second", 3_600), ("third", 7_200), ("fourth", 3_600)):
        cluster.do(UpdateAllocations([_for("x", key, seconds, vcore=10)]))
        cluster.wait(10)
    started = []
    for held in ("full0", "full1", "first", "second"):
        started += [key for _, key, _ in allocations(cluster.release("x", held))]
        cluster.wait(60)
    assert started == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize("mode", MODES)
def test_the_next_ask_of_another_duration_reserves_at_once(mode: str) -> None:
    cluster = Cluster(QUEUES, partition=f"backfill: {mode}, ")
    cluster.app("x", "root.a")
    cluster.node("n0", vcore=10)
    cluster.node("n1", vcore=10)
    cluster.do(UpdateAllocations([_for("x", "full0", 1_000, vcore=10), _for("x", "full1", 1_000, vcore=10)]))
    cluster.do(UpdateAllocations([_for("x", "first", 3_600, vcore=8)]))
    cluster.wait(1)
    cluster.do(UpdateAllocations([_for("x", "second", 7_200, vcore=8)]))
    cluster.wait(13)
    (node,) = _kept(cluster).values()
    assert list(_kept(cluster)) == ["first"]
    cluster.release("x", next(key for key, its in cluster.placed("x").items() if its == node))
    assert cluster.placed("x")["first"] == node
    assert list(_kept(cluster)) == ["second"]


@pytest.mark.parametrize(("mode", "node"), [("off", "n0"), ("conservative", "n1"), ("easy", "n1")])
def test_the_node_where_the_reservation_is_due_first_is_reserved(mode: str, node: str) -> None:
    cluster = Cluster(QUEUES, partition=f"backfill: '{mode}', ")
    cluster.app("x", "root.a")
    for number, seconds in enumerate([900, 100, 500, 0]):
        cluster.node(f"n{number}", vcore=10)
        cluster.do(UpdateAllocations([_for("x", f"k{number}", seconds, vcore=9)]))
    cluster.ask("x", "large", vcore=8)
    cluster.wait(5)
    assert _kept(cluster) == {"large": node}


@pytest.mark.source  # it replaces a limit
def test_of_many_nodes_only_the_best_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escalation, "NODES_COMPARED", 2)
    cluster = Cluster(QUEUES, partition="backfill: conservative, ")
    cluster.app("x", "root.a")
    for number, seconds in enumerate([900, 300, 100]):
        cluster.node(f"n{number}", vcore=10)
        cluster.do(UpdateAllocations([_for("x", f"k{number}", seconds, vcore=9)]))
    cluster.ask("x", "large", vcore=5)
    cluster.wait(5)
    assert _kept(cluster) == {"large": "n1"}  # (n2 is the third best)


# ---- how many are tried ----------------------------------------------------------------------------------------------


def _counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the asks for which a node is looked for."""
    tried: Counter[str] = Counter()
    node_for = Allocator.find_node

    def counting(self: Allocator, each: Ask, group: AskGroup) -> Node | None:
        tried[each.key] += 1
        return node_for(self, each, group)

    monkeypatch.setattr(Allocator, "find_node", counting)
    return tried


def _waiting(mode: str, durations: int, asks: int = 400) -> Cluster:
    """A reserved node with 1 free until its reservation is due after 10,000 s, a full one, and asks of 1 that wait."""
    cluster = Cluster(QUEUES, partition=f"backfill: {mode}, ")
    cluster.app("x", "root.a")
    cluster.node("kept", vcore=10)
    cluster.do(UpdateAllocations([_for("x", "long", 10_000, vcore=8), _for("x", "gap", 20_000, vcore=1)]))
    cluster.ask("x", "large", vcore=10)
    cluster.wait(5)
    assert _kept(cluster) == {"large": "kept"}
    cluster.node("full", vcore=1)
    cluster.do(UpdateAllocations([_for("x", "fills", 10_000, vcore=1)]))
    # (The oldest are the longest: the worst case for a search that goes from ask to ask.)
    items = [_for("x", f"w{n:03}", 50_000 - n * durations // asks, vcore=1) for n in range(asks)]
    cluster.do(UpdateAllocations(items))
    assert len(cluster.pending("x")) == asks + 1
    return cluster


@pytest.mark.source
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("durations", [1, 20, 400])
def test_a_release_tries_no_more_asks_however_many_durations_wait(
    monkeypatch: pytest.MonkeyPatch, mode: str, durations: int
) -> None:
    cluster = _waiting(mode, durations)
    tried = _counted(monkeypatch)
    assert len(allocations(cluster.release("x", "fills"))) == 1
    assert sum(tried.values()) <= 4, "one is placed, and the next finds nothing"
    tried.clear()
    assert allocations(cluster.release("x", "gap")) == []
    assert sum(tried.values()) <= 2, "all last for too long for the reserved node"


@pytest.mark.source
@pytest.mark.parametrize("mode", MODES)
def test_short_asks_are_found_behind_many_long_ones(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    cluster = _waiting(mode, 400)
    out = cluster.do(UpdateAllocations([_for("x", f"s{n}", 100 + n, vcore=1) for n in range(20)]))
    assert [key for _, key, _ in allocations(out)] == ["s0"]
    tried = _counted(monkeypatch)
    assert [key for _, key, _ in allocations(cluster.release("x", "gap"))] == ["s1"]
    assert sum(tried.values()) <= 3


# ---- the same decisions as if each duration waited for itself --------------------------------------------------------


def _life(mode: str, sort: str, seed: int) -> tuple[list[object], Counter[str]]:
    """Everything that is decided in a random life, and a tally of its reasons."""
    dice = random.Random(seed)
    properties = f"properties: {{application.sort.policy: {sort}}}"
    leaves = f"{{name: a, {properties}}}, {{name: b, {properties}, resources: {{max: {{vcore: 14}}}}}}"
    queues = f"{{name: root, submitacl: '*', queues: [{leaves}]}}"
    cluster = Cluster(queues, partition=f"backfill: {mode}, preemption: {{enabled: false}},")
    for node in range(4):
        cluster.node(f"n{node}", vcore=dice.randint(8, 12))
    apps = [f"{leaf}{number}" for leaf in "ab" for number in range(2)]
    for app_id in apps:
        cluster.app(app_id, f"root.{app_id[0]}", user=f"u{app_id[1]}")
    log: list[object] = []
    tally: Counter[str] = Counter()
    for step in range(80):
        items = []
        for number in range(dice.choice([0, 1, 4, 8]) if step < 60 else 0):
            size, seconds = dice.choice([1, 1, 2, 7]), dice.choice([3, 5, 10, 20, 21, 22, 60, 100, 200])
            seconds = 0 if dice.random() < 0.02 else seconds
            key, priority = f"k{step}-{number}", dice.choice([0, 0, 1])
            items.append(_for(dice.choice(apps), key, seconds, priority=priority, vcore=size))
        outcomes = [cluster.do(UpdateAllocations(items))]
        running = [(app_id, key) for app_id in apps for key in cluster.placed(app_id)]
        for app_id, key in dice.sample(running, min(len(running), dice.choice([0, 0, 0, 1, 2]))):
            outcomes.append(cluster.release(app_id, key))
        outcomes.append(cluster.wait(dice.choice([1, 3, 10])))
        over = [fact for out in outcomes for fact in out.facts if isinstance(fact, ReleasedAllocation)]
        timed_out = [(fact.app_id, fact.key) for fact in over if fact.termination is Termination.TIMEOUT]
        outcomes += [cluster.release(app_id, key, Termination.TIMEOUT) for app_id, key in timed_out]
        log += [[allocations(out) for out in outcomes], _kept(cluster, *apps)]
        for app_id in apps:
            for waiting in cluster.application(app_id).asks.values():
                reason = cluster.reason(app_id, waiting.key)
                assert isinstance(reason, Reason)
                tally["too long"] += reason.said.startswith("its ")
                tally["stale"] += not reason.same_as(_truth(cluster, waiting)) and reason.code in NODES
            tally["backfilled"] += sum(
                held.backfilled is not None for held in cluster.application(app_id).allocations.values()
            )
    return log, tally


NODES = (ReasonCode.NO_NODE_HAS_ROOM, ReasonCode.RESERVED_FOR_OTHERS, ReasonCode.FREE_RESOURCES_SCATTERED)


def _truth(cluster: Cluster, waiting: Ask) -> Reason:
    """Why no node takes the first ask of the ask's list now."""
    partition = cluster.partition
    assert waiting.group is not None
    head = waiting.app.queue.waitlists[waiting.group.wait_key].groups[0][-1].head()
    return Backfill(partition).explained(partition.figures.reason(waiting.shape), head, cluster.now_ns)


@pytest.mark.source
@pytest.mark.parametrize("sort", ["fifo", "fair", "fairshare"])
@pytest.mark.parametrize("mode", MODES)
def test_lists_that_are_refused_together_lead_to_the_same_as_each_for_itself(
    monkeypatch: pytest.MonkeyPatch, mode: str, sort: str
) -> None:
    """(An ask that may reserve asks for it whenever something has changed. Otherwise it depends on whether its list was
    being tried at that moment, and so on how lists are woken.)
    """
    request = Escalation._ask

    def at_once(self: Escalation, waitlist: Waitlist, rights_since: Iterable[int], now_ns: int) -> None:
        tried, waitlist.tried = waitlist.tried, False
        request(self, waitlist, rights_since, now_ns)
        waitlist.tried = tried

    monkeypatch.setattr(Escalation, "_ask", at_once)
    together = [_life(mode, sort, seed) for seed in range(LIVES)]
    monkeypatch.setattr(
        wait_points, "_bench_key", lambda waitlist: (waitlist.leaf, waitlist.required_node, waitlist.apart)
    )
    alone = [_life(mode, sort, seed) for seed in range(LIVES)]
    for seed, ((log, _), (expected, _)) in enumerate(zip(together, alone, strict=True)):
        assert log == expected, f"life {seed}"
    whole, apart = (sum((tally for _, tally in lives), Counter[str]()) for lives in (together, alone))
    assert whole["backfilled"] > 40
    assert whole["too long"] > 40
    assert whole["stale"] <= apart["stale"], "reasons are as fresh"


LIVES = 3


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_is_as_urgent_as_the_ask_of_another_duration_that_waits_behind(mode: str) -> None:
    queues = "{name: a}, {name: b, properties: {application.sort.priority: disabled}}"
    cluster = Cluster(f"{{name: root, submitacl: '*', queues: [{queues}]}}", partition=f"backfill: '{mode}', ")
    cluster.node("n0", vcore=10)
    for app_id, queue in (("x", "a"), ("large", "a"), ("y", "b"), ("w", "b"), ("z", "b")):
        cluster.app(app_id, f"root.{queue}")
    cluster.do(UpdateAllocations([_for("x", "f0", 1_000, vcore=9), _for("x", "f1", 1_000, vcore=1)]))
    cluster.ask("large", "k", priority=99, vcore=10)
    cluster.wait(10)
    assert _kept(cluster, "large") == {"k": "n0"}
    cluster.do(UpdateAllocations([_for("y", "k", 40, priority=1, vcore=1), _for("w", "k", 30, priority=2, vcore=1)]))
    cluster.do(UpdateAllocations([_for("z", "k", 20, priority=9, vcore=1), _for("x", "k", 10, priority=4, vcore=1)]))
    out = cluster.release("x", "f1")
    assert [app_id for app_id, _, _ in allocations(out)] == ["y"]
