"""Backfill: asks that declare how long they run use reserved nodes, and no reservation starts later for it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from builders import SECOND_NS, Cluster, allocations, ask
from muster_core.allocation import backfill
from muster_core.allocation.backfill import NO_DURATION, NOT_DUE
from muster_core.model.application import Allocation
from muster_core.model.commands import AppItem, AskItem, Termination, UpdateAllocations, UpdateApplications
from muster_core.model.outcome import NewAllocation, ReleasedAllocation
from muster_core.model.reasons import Reason

MODES = ("conservative", "easy")
QUEUES = "{name: root, submitacl: '*', queues: [{name: a}]}"


def _for(app_id: str, key: str, seconds: float, **quantities: int) -> AskItem:
    return replace(ask(app_id, key, **quantities), execution_timeout_ms=round(seconds * 1000))


def _cluster(mode: str = "conservative", more: str = "") -> Cluster:
    """A node of 10 with two allocations of 4 that end after 100 s and after 200 s, reserved for an ask of 6."""
    cluster = Cluster(QUEUES, partition=f"backfill: {mode}, {more}" if mode else more)
    cluster.node("n", vcore=10)
    cluster.app("x", "root.a")
    cluster.do(UpdateAllocations([_for("x", "one", 100, vcore=4), _for("x", "two", 200, vcore=4)]))
    cluster.ask("x", "large", vcore=6)
    cluster.wait(5)
    assert cluster.application("x").asks["large"].reserved_node == "n"
    return cluster


def _placed(cluster: Cluster, *asks: AskItem) -> list[str]:
    return [key for _, key, _ in allocations(cluster.do(UpdateAllocations(list(asks))))]


def _held(cluster: Cluster, key: str) -> Allocation:
    return cluster.application("x").allocations[key]


def _said(cluster: Cluster, key: str) -> str:
    reason = cluster.reason("x", key)
    assert isinstance(reason, Reason)
    return reason.said


@pytest.mark.parametrize("mode", MODES)
def test_an_ask_that_ends_before_the_reservation_is_due_uses_its_node(mode: str) -> None:
    cluster = _cluster(mode)
    assert _placed(cluster, _for("x", "short", 90, vcore=2)) == ["short"]
    by = _held(cluster, "short").backfilled
    assert by is not None
    # (The one of 100 s makes room for the ask of 6: 2 are free.)
    assert (by.app_id, by.key) == ("x", "large")
    assert by.due_ns == _held(cluster, "one").allocated_ns + 100 * SECOND_NS
    assert by.end_ns == cluster.now_ns + 90 * SECOND_NS


def test_off_is_the_default_and_then_nobody_uses_a_reserved_node() -> None:
    for mode in ("", "off"):
        cluster = _cluster(mode)
        assert _placed(cluster, _for("x", "short", 1, vcore=2)) == []
        assert _said(cluster, "short") == ""
        assert not any(group.apart for group in cluster.application("x").groups.values())


@pytest.mark.parametrize("mode", MODES)
def test_an_ask_that_ends_later_waits_and_says_why(mode: str) -> None:
    cluster = _cluster(mode)
    assert _placed(cluster, _for("x", "long", 100, vcore=2)) == []
    assert _said(cluster, "long") == "its 1m40s would last until after these are due"
    reason = cluster.reason("x", "long")
    assert isinstance(reason, Reason)
    assert reason.sentence() == (
        "The nodes with room for it are reserved for asks that come before it; its 1m40s would last until after "
        "these are due. 1 node with room is reserved for other asks."
    )


@pytest.mark.parametrize("mode", MODES)
def test_an_ask_without_a_declared_duration_waits_and_says_why(mode: str) -> None:
    cluster = _cluster(mode)
    assert _placed(cluster, ask("x", "some", vcore=2)) == []
    assert _said(cluster, "some") == NO_DURATION


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_backfilled_where_it_is_not_known_when_the_reservation_is_due(mode: str) -> None:
    cluster = Cluster(QUEUES, partition=f"backfill: {mode},")
    cluster.node("n", vcore=10)
    cluster.app("x", "root.a")
    cluster.do(UpdateAllocations([ask("x", "endless", vcore=8)]))
    cluster.ask("x", "large", vcore=6)
    cluster.wait(5)
    assert _placed(cluster, _for("x", "short", 1, vcore=2)) == []
    assert _said(cluster, "short") == NOT_DUE


def test_easy_also_fills_what_is_left_beside_the_reservation() -> None:
    """Due after 100 s: then 6 are free for the ask of 6; after 200 s, 4 more. With a node of 11, 1 is left."""
    for mode, expected in (("conservative", []), ("easy", ["long"])):
        cluster = Cluster(QUEUES, partition=f"backfill: {mode},")
        cluster.node("n", vcore=11)
        cluster.app("x", "root.a")
        cluster.do(UpdateAllocations([_for("x", "one", 100, vcore=4), _for("x", "two", 200, vcore=4)]))
        cluster.ask("x", "large", vcore=6)
        cluster.wait(5)
        assert _placed(cluster, _for("x", "long", 5000, vcore=1)) == expected
        assert _placed(cluster, _for("x", "longer", 5000, vcore=2)) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_reservation_starts_when_it_was_due(mode: str) -> None:
    """Each allocation runs as long as it declared; the time-out ends it, and the RM confirms at once."""
    starts = {}
    for given in ("off", mode):
        cluster = _cluster(given)
        cluster.do(UpdateAllocations([_for("x", f"s{n}", 30, vcore=1) for n in range(8)]))
        while "large" not in cluster.placed("x"):
            out = cluster.wait(1)
            for fact in out.facts:
                if isinstance(fact, ReleasedAllocation):
                    cluster.release("x", fact.key, Termination.TIMEOUT)
            assert cluster.now_ns < 2_000 * SECOND_NS
        starts[given] = cluster.now_ns
        if given == mode:
            gone = [n for n in range(8) if f"s{n}" not in cluster.application("x").asks]
            assert len(gone) == 6, "two at a time, three times before 100 s"
    assert starts["off"] == starts[mode]


@pytest.mark.parametrize("mode", MODES)
def test_an_allocation_that_runs_for_longer_than_declared_is_ended(mode: str) -> None:
    cluster = _cluster(mode)
    _placed(cluster, _for("x", "short", 90, vcore=2))
    out = cluster.wait(90)
    assert [(fact.key, fact.termination) for fact in out.facts if isinstance(fact, ReleasedAllocation)] == [
        ("short", Termination.TIMEOUT)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_parked_short_ask_is_tried_when_a_reserved_node_gains_room(mode: str) -> None:
    cluster = _cluster(mode)
    assert _placed(cluster, _for("x", "short", 20, vcore=3), ask("x", "same", vcore=3)) == []
    cluster.ask("x", "huge", vcore=9)
    cluster.do(UpdateAllocations([_for("x", "s2", 20, vcore=2)]))
    assert "s2" in cluster.placed("x")
    out = cluster.release("x", "s2")
    assert allocations(out) == []
    out = cluster.release("x", "two")
    assert [key for _, key, _ in allocations(out)] == ["large"]


@pytest.mark.parametrize("mode", MODES)
def test_the_time_out_of_the_application_is_a_declaration_too(mode: str) -> None:
    cluster = _cluster(mode)
    item = AppItem("y", "root.a", "default", "bob", execution_timeout_ms=60_000)
    cluster.do(UpdateApplications((item,)), UpdateAllocations([ask("y", "k", vcore=2)]))
    assert cluster.placed("y") == {"k": "n"}


@pytest.mark.parametrize("mode", MODES)
def test_daemons_reservations_are_not_backfilled(mode: str) -> None:
    cluster = Cluster(QUEUES, partition=f"backfill: {mode}, preemption: {{enabled: false}},")
    cluster.node("n", vcore=10)
    cluster.app("x", "root.a")
    cluster.do(UpdateAllocations([_for("x", "one", 100, vcore=8)]))
    daemon = replace(ask("x", "daemon", vcore=6), tags={"yunikorn.apache.org/requiredNode": "n"})
    cluster.do(UpdateAllocations([daemon]))
    assert cluster.application("x").asks["daemon"].reserved_node == "n"
    assert _placed(cluster, _for("x", "short", 1, vcore=2)) == []


def test_a_reload_turns_it_on_and_off_for_asks_that_wait() -> None:
    cluster = _cluster("off")
    assert _placed(cluster, _for("x", "short", 60, vcore=2), _for("x", "long", 600, vcore=2)) == []
    assert cluster.reload(QUEUES, partition="backfill: conservative,") == ()
    assert cluster.placed("x").get("short") == "n"
    assert "long" not in cluster.placed("x")
    assert cluster.reload(QUEUES, partition="backfill: 'off',") == ()
    assert not any(group.apart for group in cluster.application("x").groups.values())
    assert cluster.pending("x")["long"]


def test_asks_of_other_durations_do_not_hold_each_other_back() -> None:
    cluster = _cluster()
    assert _placed(cluster, _for("x", "long", 600, vcore=2)) == []
    assert _placed(cluster, _for("x", "short", 60, vcore=2)) == ["short"]


# ---- the law ---------------------------------------------------------------------------------------------------------


def _naive_due(cluster: Cluster, node_id: str, wants: int) -> int | None:
    """When so many vcores are free on a node, if everything runs exactly as long as it declared."""
    node = cluster.the_node(node_id)
    free = node.available[cluster.partition.types.number("vcore")]
    ends = sorted(
        (held.allocated_ns + held.execution_timeout_ms * 1_000_000, held.shape.quantities["vcore"])
        for held in node.allocations.values()
        if held.execution_timeout_ms > 0
    )
    due_ns = cluster.now_ns
    for end_ns, amount in ends:
        if free >= wants:
            break
        due_ns, free = max(end_ns, due_ns), free + amount
    return due_ns if free >= wants else None


def _live(mode: str, seed: int) -> int:
    """A random life in which all that runs ends exactly when it declared. Returns the number of backfilled asks.

    Fails if any reservation is ever due later than it was before, unless an older ask, which ranks above it, was placed
    on its node.
    """
    dice = random.Random(seed)
    cluster = Cluster(QUEUES, partition=f"backfill: {mode}, preemption: {{enabled: false}},")
    for node in range(3):
        cluster.node(f"n{node}", vcore=dice.randint(8, 14))
    cluster.app("x", "root.a")
    promised: dict[tuple[str, str], int] = {}
    for step in range(60):
        sizes = [dice.choice([1, 1, 2, 3, 7, 8]) for _ in range(dice.randint(0, 3))]
        asks = [_for("x", f"k{step}-{n}", dice.choice([5, 20, 60, 200]), vcore=size) for n, size in enumerate(sizes)]
        cluster.do(UpdateAllocations(asks))
        # Time goes on to the next end, or for some seconds; the RM confirms ends at once.
        ends = [held.allocated_ns + held.execution_timeout_ms * 1_000_000 for held in _all(cluster)]
        cluster.now_ns = min([*ends, cluster.now_ns + dice.choice([1, 3, 10]) * SECOND_NS])
        while over := [fact.key for fact in cluster.do().facts if isinstance(fact, ReleasedAllocation)]:
            for key in over:
                cluster.release("x", key, Termination.TIMEOUT)
        found: dict[tuple[str, str], int] = {}
        older = {
            (held.node_id, held.created_ns, held.submission)
            for held in _all(cluster)
            if held.allocated_ns == cluster.now_ns and held.backfilled is None
        }
        for key, waiting in cluster.application("x").asks.items():
            if waiting.reserved_node:
                due_ns = _naive_due(cluster, waiting.reserved_node, waiting.shape.quantities["vcore"])
                known = promised.get((key, waiting.reserved_node), due_ns)
                if any(node == waiting.reserved_node and tuple(age) < waiting.age for node, *age in older):
                    known = due_ns
                assert due_ns is not None
                assert known is not None
                assert due_ns <= known, f"{key} was due at {known}, and is due at {due_ns}"
                assert due_ns > cluster.now_ns, f"{key} was due at {known}, and waits"
                found[key, waiting.reserved_node] = due_ns
        promised = found
    made = (fact for out in cluster.outcomes for fact in out.facts if isinstance(fact, NewAllocation))
    return sum(fact.allocation.backfilled is not None for fact in made)


def _all(cluster: Cluster) -> list[Allocation]:
    return list(cluster.application("x").allocations.values())


@pytest.mark.parametrize("mode", MODES)
def test_no_reservation_is_ever_due_later_because_of_backfill(mode: str) -> None:
    assert sum(_live(mode, seed) for seed in range(4)) > 20


@pytest.mark.source  # it replaces what an ask declares
def test_the_law_notices_what_runs_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core believes that asks run for a tenth of what they declare."""
    monkeypatch.setattr(backfill, "declared_ms", lambda ask: ask.demand.execution_timeout_ms // 10)
    with pytest.raises(AssertionError, match="was due at"):
        [_live("conservative", seed) for seed in range(8)]
