"""Asks, allocations and releases, as the scheduler interface describes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import Cluster, allocations, ask
from muster_core.model.commands import AskItem, ReleaseItem, SetEvents, Termination, UpdateAllocations
from muster_core.model.outcome import (
    EventChange,
    EventDetail,
    EventType,
    NewAllocation,
    Outcome,
    RejectedAsk,
    ReleasedAllocation,
    ReleasedAsk,
)
from muster_core.model.states import AppState


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("{name: root, submitacl: '*', queues: [{name: a}]}").having(
        {"n": {"vcore": 10, "memory": 10}}, {"x": "root.a"}
    )


def _rejected(out: Outcome) -> list[tuple[str, str]]:
    return [(fact.key, fact.reason) for fact in out.facts if isinstance(fact, RejectedAsk)]


def _released(out: Outcome) -> list[tuple[str, Termination]]:
    return [(fact.key, fact.termination) for fact in out.facts if isinstance(fact, ReleasedAllocation)]


def _send(cluster: Cluster, *items: AskItem) -> Outcome:
    return cluster.do(UpdateAllocations(list(items)))


# ---- asks ----------------------------------------------------------------------------------------------------------


def test_an_allocation_says_everything_that_the_ask_said(cluster: Cluster) -> None:
    item = replace(
        ask("x", "k", priority=7, vcore=1),
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
        (EventType.APP, EventChange.ADD, EventDetail.APP_REQUEST, "x", "k"),
        (EventType.APP, EventChange.ADD, EventDetail.APP_ALLOC, "x", "k"),
        (EventType.NODE, EventChange.ADD, EventDetail.NODE_ALLOC, "n", "k"),
        (EventType.USERGROUP, EventChange.ADD, EventDetail.UG_USER_RESOURCE, "alice", "root.a"),
    ]


def test_a_placeholder_without_task_group_is_an_ordinary_ask(cluster: Cluster) -> None:
    _send(cluster, replace(ask("x", "k", vcore=1), placeholder=True))
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
    assert [(e.change, dict(e.resource.quantities)) for e in out.events if e.detail is EventDetail.APP_REQUEST] == [
        (EventChange.REMOVE, {"vcore": 30, "gpu": 1}),
        (EventChange.ADD, {"vcore": 3}),
    ]


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
    item = replace(ask("x", "k", vcore=20), **change)  # type: ignore[arg-type]
    assert _send(cluster, item)
    waiting = cluster.application("x").asks["k"]
    assert {name: getattr(waiting, name) for name in change} == change
    assert not _send(cluster, item)


def test_a_changed_priority_changes_the_next_ask(cluster: Cluster) -> None:
    cluster.ask("x", "a", vcore=20)
    cluster.ask("x", "b", vcore=20)
    cluster.ask("x", "b", priority=1, vcore=20)
    assert allocations(cluster.node("big", vcore=20)) == [("x", "b", "big")]


def test_an_allocated_ask_sent_again_changes_what_runs(cluster: Cluster) -> None:
    """Resources, priority and tags change in place, without a check of limits and without a new allocation."""
    cluster.ask("x", "k", vcore=1)
    assert not cluster.ask("x", "k", vcore=1)  # word for word
    began_ns = cluster.application("x").allocations["k"].allocated_ns
    cluster.do(SetEvents(requests=True))
    cluster.wait(5)
    out = _send(cluster, replace(ask("x", "k", priority=9, vcore=12), tags={"a": "b"}, execution_timeout_ms=7_000))
    assert out.facts == []
    tracked = [(e.type, e.change, e.detail, e.resource) for e in out.events if e.type is not EventType.REQUEST]
    assert [(kind, change, detail) for kind, change, detail, _ in tracked] == [
        (EventType.APP, EventChange.REMOVE, EventDetail.ALLOC_REPLACED),
        (EventType.NODE, EventChange.REMOVE, EventDetail.NODE_ALLOC),
        (EventType.USERGROUP, EventChange.REMOVE, EventDetail.UG_USER_RESOURCE),
        (EventType.APP, EventChange.ADD, EventDetail.APP_REQUEST),
        (EventType.APP, EventChange.ADD, EventDetail.APP_ALLOC),
        (EventType.NODE, EventChange.ADD, EventDetail.NODE_ALLOC),
        (EventType.USERGROUP, EventChange.ADD, EventDetail.UG_USER_RESOURCE),
    ]
    (excess,) = [e.message for e in out.events if e.type is EventType.REQUEST]
    assert excess == "adopted as the resource manager reports it: node n has 2 vcore less than it holds"
    held = cluster.application("x").allocations["k"]
    assert (held.shape.quantities, held.priority, held.tags) == ({"vcore": 12}, 9, {"a": "b"})
    assert held.allocated_ns == began_ns
    assert (cluster.the_node("n").available, cluster.queue("root.a").allocated) == ([-2, 10], [12, 0])
    usage = cluster.application("x").usage["resourceUsage"]["UNKNOWN"]
    assert usage == {"vcore": 5}  # five seconds of the old size
    out = cluster.wait(2)  # seven seconds after it was allocated
    assert _released(out) == [("k", Termination.TIMEOUT)]
    cluster.release("x", "k", Termination.TIMEOUT)
    assert usage == {"vcore": 5 + 2 * 12}


def test_another_priority_alone_is_no_event(cluster: Cluster) -> None:
    cluster.ask("x", "k", vcore=1)
    out = cluster.ask("x", "k", vcore=1, priority=4)
    assert (out.facts, out.events) == ([], [])
    assert [what.priority for _, what, _ in out.objects()] == [4]  # type: ignore[union-attr]


def test_an_ask_of_repeats_changes_all_that_runs_and_what_is_pending(cluster: Cluster) -> None:
    cluster.ask("x", "k", vcore=4, wanted=4)
    assert len(cluster.placed("x")) == 2
    cluster.ask("x", "k", vcore=2, wanted=4)
    assert [held.shape.quantities for held in cluster.application("x").allocations_of("k")] == [{"vcore": 2}] * 4
    assert cluster.the_node("n").available == [2, 10]


def test_a_released_allocation_stays_released_when_its_ask_is_repeated(cluster: Cluster) -> None:
    _send(cluster, replace(ask("x", "k", vcore=1), execution_timeout_ms=1_000))
    cluster.wait(1)
    cluster.wait(1)
    cluster.ask("x", "k", vcore=2)
    assert cluster.application("x").allocations["k"].timed_out
    assert _released(cluster.wait(298)) == []
    assert _released(cluster.wait(1)) == [("k", Termination.TIMEOUT)]  # five minutes after it was told
    assert _released(cluster.release("x", "k", Termination.TIMEOUT)) == []


# ---- releases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Termination.UNKNOWN, [("k", Termination.STOPPED_BY_RM)]),
        (Termination.STOPPED_BY_RM, [("k", Termination.STOPPED_BY_RM)]),
        (Termination.TIMEOUT, [("k", Termination.STOPPED_BY_RM)]),
        (Termination.PREEMPTED_BY_SCHEDULER, [("k", Termination.STOPPED_BY_RM)]),
        (Termination.PLACEHOLDER_REPLACED, [("k", Termination.STOPPED_BY_RM)]),
    ],
)
def test_each_kind_of_release(cluster: Cluster, kind: Termination, told: list[tuple[str, Termination]]) -> None:
    """Each release by the RM is acknowledged, whatever its termination type."""
    cluster.ask("x", "k", vcore=1)
    out = cluster.release("x", "k", kind)
    assert _released(out) == told
    assert cluster.placed("x") == {}
    assert cluster.the_node("n").allocated == [0, 0]
    details = {
        Termination.TIMEOUT: EventDetail.ALLOC_TIMEOUT,
        Termination.PREEMPTED_BY_SCHEDULER: EventDetail.ALLOC_PREEMPT,
        Termination.PLACEHOLDER_REPLACED: EventDetail.ALLOC_REPLACED,
    }
    removed = [e.detail for e in out.events if e.change is EventChange.REMOVE]
    assert removed == [
        details.get(kind, EventDetail.ALLOC_CANCEL),
        EventDetail.NODE_ALLOC,
        EventDetail.UG_USER_RESOURCE,
    ]
    assert _released(cluster.release("x", "k", kind)) == [("k", Termination.STOPPED_BY_RM)]  # nothing was there


def test_the_release_of_an_ask_is_acknowledged(cluster: Cluster) -> None:
    cluster.ask("x", "k", vcore=99)
    out = cluster.release("x", "k")
    assert out.facts[0] == ReleasedAsk("default", "x", "k", Termination.STOPPED_BY_RM, "", False)
    assert (out.events[0].change, out.events[0].detail) == (EventChange.REMOVE, EventDetail.APP_REQUEST)
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


def test_releases_of_what_is_not_there_are_acknowledged_and_change_nothing(cluster: Cluster) -> None:
    items = [
        ReleaseItem("default", "ghost", "k", Termination.STOPPED_BY_RM),
        ReleaseItem("default", "x", "ghost", Termination.STOPPED_BY_RM),
        ReleaseItem("nowhere", "x", "k", Termination.STOPPED_BY_RM),
        ReleaseItem("default", "", "ghost", Termination.STOPPED_BY_RM),
        ReleaseItem("default", "", "", Termination.STOPPED_BY_RM),
        ReleaseItem("default", "x", "", Termination.STOPPED_BY_RM, uuid="ghost"),
    ]
    out = cluster.do(UpdateAllocations((), items))
    assert [(fact.app_id, fact.key, fact.uuid, fact.message) for fact in out.facts] == [  # type: ignore[union-attr]
        ("ghost", "k", "", "application ghost does not exist: there is nothing to release"),
        ("x", "ghost", "", "application x has no allocation with key ghost: there is nothing to release"),
        ("x", "k", "", "partition 'nowhere' does not exist"),
        ("", "ghost", "", "there is no foreign allocation with key ghost: there is nothing to release"),
        ("", "", "", "there is no foreign allocation with an empty key: there is nothing to release"),
        ("x", "", "ghost", "application x has no allocation with UUID ghost: there is nothing to release"),
    ]
    assert out.events == []
    assert not list(out.objects())


def test_a_swap_in_one_message_finds_its_room(cluster: Cluster) -> None:
    cluster.ask("x", "old", vcore=10)
    release = ReleaseItem("default", "x", "old", Termination.STOPPED_BY_RM)
    out = cluster.do(UpdateAllocations([ask("x", "new", vcore=10)], [release]))
    assert _released(out) == [("old", Termination.STOPPED_BY_RM)]
    assert allocations(out) == [("x", "new", "n")]
    assert cluster.application("x").state is AppState.RUNNING


def test_an_allocation_that_the_rm_could_not_start_is_a_pending_ask_again(cluster: Cluster) -> None:
    """TerminationType 5 (the newest SI): same key, same age, the application stays what it is."""
    _send(cluster, replace(ask("x", "k", priority=3, vcore=6), tags={"a": "b"}))
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
        EventDetail.ALLOC_CANCEL,
        EventDetail.NODE_ALLOC,
        EventDetail.UG_USER_RESOURCE,
        EventDetail.APP_REQUEST,
        EventDetail.APP_ALLOC,
        EventDetail.NODE_ALLOC,
        EventDetail.UG_USER_RESOURCE,
    ]


# ---- existing allocations, foreign allocations ---------------------------------------------------------------------


def test_an_existing_allocation_is_taken_whatever_the_limits(cluster: Cluster) -> None:
    tight = Cluster("{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 1}}}]}").having(
        {"n": {"vcore": 500}}, {"x": "root.a"}
    )
    out = _send(tight, replace(ask("x", "k", vcore=2000), node_id="n"))
    assert allocations(out) == [("x", "k", "n")]
    assert tight.queue("root.a").allocated == [2000, 0]
    assert tight.the_node("n").available == [-1500, 0]
    tight.ask("x", "k2", vcore=1)
    assert tight.pending("x") == {"k2": "QUEUE_MAX"}


def test_an_existing_allocation_takes_the_place_of_its_ask(cluster: Cluster) -> None:
    cluster.ask("x", "k", vcore=20)
    _send(cluster, replace(ask("x", "k", vcore=2), node_id="n"))
    assert cluster.application("x").asks == {}
    assert cluster.placed("x") == {"k": "n"}


def test_an_existing_allocation_reported_again_is_the_same_or_moves(cluster: Cluster) -> None:
    cluster.node("m", vcore=10)
    item = replace(ask("x", "k", vcore=2), node_id="n")
    _send(cluster, item)
    out = _send(cluster, item)
    assert (allocations(out), out.events, list(out.objects())) == ([("x", "k", "n")], [], [])
    _send(cluster, replace(item, node_id="m", quantities={"vcore": 3}))
    assert cluster.placed("x") == {"k": "m"}
    assert (cluster.the_node("n").allocated, cluster.the_node("m").allocated) == ([0, 0], [3, 0])


def test_foreign_allocations_take_room_and_give_it_back(cluster: Cluster) -> None:
    foreign = AskItem("f", "", "default", {"vcore": 8}, tags={"foreign": "default"}, node_id="n")
    out = _send(cluster, foreign)
    assert allocations(out) == [("", "f", "n")]
    assert [(e.detail, e.resource) for e in out.events] == [(EventDetail.NODE_OCCUPIED, {"vcore": 8})]
    cluster.ask("x", "k", vcore=3)
    assert cluster.pending("x") == {"k": "NO_NODE_HAS_ROOM"}
    _send(cluster, replace(foreign, quantities={"vcore": 7}))
    assert cluster.placed("x") == {"k": "n"}
    out = cluster.do(UpdateAllocations((), [ReleaseItem("", "", "f", Termination.STOPPED_BY_RM)]))
    assert _released(out) == [("f", Termination.STOPPED_BY_RM)]
    assert cluster.the_node("n").available == [7, 10]
    assert cluster.queue("root").allocated == [3, 0]


def test_a_foreign_allocation_may_have_the_key_of_an_own_one(cluster: Cluster) -> None:
    for key in ("k", "a#1"):
        cluster.ask("x", key, vcore=1)
        _send(cluster, AskItem(key, "", "default", {"vcore": 1}, tags={"foreign": "x"}, node_id="n"))
    cluster.release("x")
    assert list(cluster.partition.foreign) == ["k", "a#1"]
    assert cluster.the_node("n").available == [8, 10]
