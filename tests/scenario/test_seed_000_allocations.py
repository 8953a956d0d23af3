"""Asks, allocations and releases in the words of seed 000."""

from __future__ import annotations

import pytest
from builders import Cluster, allocations, ask
from muster_scheduler.core.commands import AskItem, ReleaseItem, Termination, UpdateAllocations
from muster_scheduler.core.outcome import (
    Change,
    Detail,
    EventType,
    NewAllocation,
    Outcome,
    RejectedAsk,
    ReleasedAllocation,
)
from muster_scheduler.core.states import AppState


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
    made.node("n", vcore=10, memory=10)
    made.app("x", "root.a")
    return made


def _rejected(out: Outcome) -> list[tuple[str, str]]:
    return [(fact.key, fact.reason) for fact in out.facts if isinstance(fact, RejectedAsk)]


def _released(out: Outcome) -> list[tuple[str, Termination]]:
    return [(fact.key, fact.termination) for fact in out.facts if isinstance(fact, ReleasedAllocation)]


def _send(cluster: Cluster, *items: AskItem) -> Outcome:
    return cluster.do(UpdateAllocations(list(items)))


# ---- asks ----------------------------------------------------------------------------------------------------------


def test_an_allocation_says_everything_that_the_ask_said(cluster: Cluster) -> None:
    item = ask("x", "k", priority=7, vcore=1)._replace(
        tags={"a": "b"},
        task_group="tg",
        placeholder=True,
        originator=True,
        allow_preempt_self=True,
        allow_preempt_other=True,
        has_preemption_policy=True,
    )
    out = _send(cluster, item)
    (fact,) = [fact for fact in out.facts if isinstance(fact, NewAllocation)]
    made = fact.allocation
    assert (fact.partition, made.key, made.app_id, made.node_id) == ("default", "k", "x", "n")
    assert (made.shape.quantities, made.priority, made.tags, made.task_group) == ({"vcore": 1}, 7, {"a": "b"}, "tg")
    assert (made.placeholder, made.originator, made.allow_preempt_self, made.allow_preempt_other) == (True,) * 4
    assert made.uuid == ""
    assert [(e.type, e.change, e.detail, e.object_id, e.reference_id) for e in out.events if e.reference_id] == [
        (EventType.APP, Change.ADD, Detail.APP_REQUEST, "x", "k"),
        (EventType.APP, Change.ADD, Detail.APP_ALLOC, "x", "k"),
        (EventType.NODE, Change.ADD, Detail.NODE_ALLOC, "n", "k"),
    ]


def test_a_placeholder_without_task_group_is_an_ordinary_ask(cluster: Cluster) -> None:
    _send(cluster, ask("x", "k", vcore=1)._replace(placeholder=True))
    assert not cluster.application("x").allocations["k"].placeholder


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (AskItem("k", "x", "nowhere", {"vcore": 1}), "partition 'nowhere' does not exist"),
        (AskItem("k", "ghost", "default", {"vcore": 1}), "failed to find application ghost"),
        (AskItem("k", "x", "default", {}), "contains no resources"),
        (AskItem("k", "x", "default", {"vcore": 0}), "contains no resources"),
        (AskItem("k", "x", "default", {"vcore": 1, "memory": -1}), "negative resources: memory -1"),
        (AskItem("k", "x", "default", {"vcore": 1}, wanted=0), "expected at least 1"),
        (AskItem("k", "x", "default", {"vcore": 1}, node_id="ghost"), "failed to find node ghost"),
        (AskItem("k", "ghost", "default", {"vcore": 1}, node_id="n"), "failed to find application ghost"),
        (AskItem("k", "x", "default", {}, node_id="n"), "contains no resources"),
        (AskItem("k", "", "default", {"vcore": 1}, tags={"foreign": "x"}), "foreign request"),
        (AskItem("k", "", "default", {"vcore": -1}, tags={"foreign": "x"}, node_id="n"), "negative"),
    ],
)
def test_a_bad_ask_is_rejected_and_changes_nothing(cluster: Cluster, item: AskItem, why: str) -> None:
    before = list(cluster.partition.types.names)
    out = _send(cluster, item)
    ((key, reason),) = _rejected(out)
    assert key == "k"
    assert why in reason
    assert out.events == []
    assert cluster.application("x").state is AppState.NEW
    assert cluster.partition.types.names == before


def test_an_ask_of_an_application_that_is_finished_is_rejected(cluster: Cluster) -> None:
    cluster.ask("x", "k", vcore=1)
    cluster.release("x", "k")
    cluster.wait(31)
    assert _rejected(cluster.ask("x", "k2", vcore=1)) == [("k2", "failed to find application x")]


def test_a_good_ask_beside_bad_ones_is_taken(cluster: Cluster) -> None:
    out = _send(cluster, ask("ghost", "a", vcore=1), ask("x", "b", vcore=1), ask("x", "c"))
    assert [key for key, _ in _rejected(out)] == ["a", "c"]
    assert allocations(out) == [("x", "b", "n")]


def test_an_ask_sent_again_is_no_second_ask(cluster: Cluster) -> None:
    for _ in range(3):
        out = cluster.ask("x", "k", vcore=20)
    assert list(cluster.application("x").asks) == ["k"]
    assert not out
    cluster.node("big", vcore=100)
    for _ in range(3):
        cluster.ask("x", "k", vcore=20)
    assert cluster.placed("x") == {"k": "big"}


def test_an_ask_sent_again_may_change_everything(cluster: Cluster) -> None:
    cluster.ask("x", "first", vcore=50)
    cluster.ask("x", "k", vcore=20)
    submission = cluster.application("x").asks["k"].submission
    cluster.ask("x", "k", priority=5, vcore=30, gpu=1)
    waiting = cluster.application("x").asks["k"]
    assert (waiting.priority, waiting.shape.quantities, waiting.submission) == (5, {"vcore": 30, "gpu": 1}, submission)
    out = cluster.ask("x", "k", vcore=3)
    assert allocations(out) == [("x", "k", "n")]
    assert [e for e in out.events if e.detail is Detail.APP_REQUEST] == []


@pytest.mark.parametrize(
    "change",
    [
        {"tags": {"a": "b"}},
        {"originator": True},
        {"allow_preempt_self": True},
        {"allow_preempt_other": True},
        {"has_preemption_policy": True},
        {"task_group": "tg"},
        {"task_group": "tg", "placeholder": True},
        {"execution_timeout_ms": 5},
        {"priority": -3},
    ],
    ids=str,
)
def test_each_change_of_an_ask_counts(cluster: Cluster, change: dict[str, object]) -> None:
    cluster.ask("x", "k", vcore=20)
    item = ask("x", "k", vcore=20)._replace(**change)  # type: ignore[arg-type]
    assert _send(cluster, item)
    waiting = cluster.application("x").asks["k"]
    assert {name: getattr(waiting, name) for name in change} == change
    assert not _send(cluster, item)


def test_a_changed_priority_changes_who_is_next(cluster: Cluster) -> None:
    cluster.ask("x", "a", vcore=20)
    cluster.ask("x", "b", vcore=20)
    cluster.ask("x", "b", priority=1, vcore=20)
    assert allocations(cluster.node("big", vcore=20)) == [("x", "b", "big")]


def test_an_allocated_ask_sent_again_stays_as_it_is(cluster: Cluster) -> None:
    cluster.ask("x", "k", vcore=1)
    out = cluster.ask("x", "k", vcore=9)
    assert not out
    assert cluster.application("x").allocations["k"].shape.quantities == {"vcore": 1}


# ---- releases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Termination.UNKNOWN, [("k", Termination.STOPPED_BY_RM)]),
        (Termination.STOPPED_BY_RM, [("k", Termination.STOPPED_BY_RM)]),
        (Termination.TIMEOUT, []),
        (Termination.PREEMPTED_BY_SCHEDULER, []),
        (Termination.PLACEHOLDER_REPLACED, []),
    ],
)
def test_each_kind_of_release(cluster: Cluster, kind: Termination, told: list[tuple[str, Termination]]) -> None:
    """What the RM stops is acknowledged; what the scheduler began and the RM confirms is not told again."""
    cluster.ask("x", "k", vcore=1)
    out = cluster.release("x", "k", kind)
    assert _released(out) == told
    assert cluster.placed("x") == {}
    assert cluster.the_node("n").allocated == [0, 0]
    details = {
        Termination.TIMEOUT: Detail.ALLOC_TIMEOUT,
        Termination.PREEMPTED_BY_SCHEDULER: Detail.ALLOC_PREEMPT,
        Termination.PLACEHOLDER_REPLACED: Detail.ALLOC_REPLACED,
    }
    removed = [e.detail for e in out.events if e.change is Change.REMOVE]
    assert removed == [details.get(kind, Detail.ALLOC_CANCEL), Detail.NODE_ALLOC]
    assert _released(cluster.release("x", "k", kind)) == []


def test_the_release_of_an_ask_is_no_allocation_released(cluster: Cluster) -> None:
    cluster.ask("x", "k", vcore=99)
    out = cluster.release("x", "k")
    assert _released(out) == []
    assert (out.events[0].change, out.events[0].detail) == (Change.REMOVE, Detail.APP_REQUEST)
    assert cluster.application("x").asks == {}


def test_a_timeout_keeps_the_ask(cluster: Cluster) -> None:
    cluster.ask("x", "k", vcore=99)
    cluster.release("x", "k", Termination.TIMEOUT)
    assert list(cluster.application("x").asks) == ["k"]


def test_a_release_without_key_is_of_everything(cluster: Cluster) -> None:
    _send(cluster, *(ask("x", f"k{n}", vcore=4) for n in range(5)))
    out = cluster.release("x")
    assert _released(out) == [("k0", Termination.STOPPED_BY_RM), ("k1", Termination.STOPPED_BY_RM)]
    app = cluster.application("x")
    assert (app.asks, app.allocations, app.state) == ({}, {}, AppState.COMPLETING)


def test_releases_of_what_is_not_there_are_nothing(cluster: Cluster) -> None:
    items = [
        ReleaseItem("default", "ghost", "k", Termination.STOPPED_BY_RM),
        ReleaseItem("default", "x", "ghost", Termination.STOPPED_BY_RM),
        ReleaseItem("nowhere", "x", "k", Termination.STOPPED_BY_RM),
        ReleaseItem("default", "", "ghost", Termination.STOPPED_BY_RM),
        ReleaseItem("default", "", "", Termination.STOPPED_BY_RM),
        ReleaseItem("default", "x", "", Termination.STOPPED_BY_RM, uuid="ghost"),
    ]
    assert not cluster.do(UpdateAllocations((), items))


def test_a_swap_in_one_message_finds_its_room(cluster: Cluster) -> None:
    cluster.ask("x", "old", vcore=10)
    release = ReleaseItem("default", "x", "old", Termination.STOPPED_BY_RM)
    out = cluster.do(UpdateAllocations([ask("x", "new", vcore=10)], [release]))
    assert _released(out) == [("old", Termination.STOPPED_BY_RM)]
    assert allocations(out) == [("x", "new", "n")]
    assert cluster.application("x").state is AppState.RUNNING


def test_what_the_rm_could_not_start_is_a_pending_ask_again(cluster: Cluster) -> None:
    """TerminationType 5 (the newest SI): same key, same age, the application stays what it is."""
    _send(cluster, ask("x", "k", priority=3, vcore=6)._replace(tags={"a": "b"}))
    created_ns = cluster.application("x").allocations["k"].created_ns
    cluster.ask("x", "waits", vcore=5)
    cluster.wait(1)
    item = ReleaseItem("default", "x", "k", Termination.SCHEDULING_FAILED_ON_RM, message="no volume")
    out = cluster.do(UpdateAllocations((), [item]))
    assert _released(out) == []
    assert allocations(out) == [("x", "k", "n")]
    again = cluster.application("x").allocations["k"]
    assert (again.created_ns, again.tags, again.priority) == (created_ns, {"a": "b"}, 3)
    assert cluster.application("x").state is AppState.RUNNING
    assert [e.detail for e in out.events] == [
        Detail.ALLOC_CANCEL,
        Detail.NODE_ALLOC,
        Detail.APP_REQUEST,
        Detail.APP_ALLOC,
        Detail.NODE_ALLOC,
    ]


# ---- existing allocations, foreign allocations ---------------------------------------------------------------------


def test_an_existing_allocation_is_taken_whatever_the_limits(cluster: Cluster) -> None:
    tight = Cluster("{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 1}}}]}")
    tight.node("n", vcore=500)
    tight.app("x", "root.a")
    out = _send(tight, ask("x", "k", vcore=2000)._replace(node_id="n"))
    assert allocations(out) == [("x", "k", "n")]
    assert tight.queue("root.a").allocated == [2000, 0]
    assert tight.the_node("n").available == [-1500, 0]
    tight.ask("x", "k2", vcore=1)
    assert tight.pending("x") == {"k2": "QUEUE_MAX"}


def test_an_existing_allocation_takes_the_place_of_its_ask(cluster: Cluster) -> None:
    cluster.ask("x", "k", vcore=20)
    _send(cluster, ask("x", "k", vcore=2)._replace(node_id="n"))
    assert cluster.application("x").asks == {}
    assert cluster.placed("x") == {"k": "n"}


def test_an_existing_allocation_reported_again_is_the_same_or_moves(cluster: Cluster) -> None:
    cluster.node("m", vcore=10)
    item = ask("x", "k", vcore=2)._replace(node_id="n")
    _send(cluster, item)
    assert not _send(cluster, item)
    _send(cluster, item._replace(node_id="m", quantities={"vcore": 3}))
    assert cluster.placed("x") == {"k": "m"}
    assert (cluster.the_node("n").allocated, cluster.the_node("m").allocated) == ([0, 0], [3, 0])


def test_foreign_allocations_take_room_and_give_it_back(cluster: Cluster) -> None:
    foreign = AskItem("f", "", "default", {"vcore": 8}, tags={"foreign": "default"}, node_id="n")
    out = _send(cluster, foreign)
    assert out.facts == []
    assert [(e.detail, e.resource) for e in out.events] == [(Detail.NODE_OCCUPIED, {"vcore": 8})]
    cluster.ask("x", "k", vcore=3)
    assert cluster.pending("x") == {"k": "NO_NODE_HAS_ROOM"}
    _send(cluster, foreign._replace(quantities={"vcore": 7}))
    assert cluster.placed("x") == {"k": "n"}
    out = cluster.do(UpdateAllocations((), [ReleaseItem("", "", "f", Termination.STOPPED_BY_RM)]))
    assert out.facts == []
    assert cluster.the_node("n").available == [7, 10]
    assert cluster.queue("root").allocated == [3, 0]


def test_a_foreign_allocation_may_have_the_key_of_an_own_one(cluster: Cluster) -> None:
    for key in ("k", "a#1"):
        cluster.ask("x", key, vcore=1)
        _send(cluster, AskItem(key, "", "default", {"vcore": 1}, tags={"foreign": "x"}, node_id="n"))
    cluster.release("x")
    assert list(cluster.partition.foreign) == ["k", "a#1"]
    assert cluster.the_node("n").available == [8, 10]
