"""Applications in the words of the scheduler interface: added, accepted or rejected, their states and timers,
removed."""

from __future__ import annotations

import pytest
from builders import Cluster, allocations, ask, nodes
from muster_core.model.commands import AppItem, NodeAction, Termination, UpdateAllocations, UpdateApplications
from muster_core.model.outcome import (
    AcceptedApplication,
    EventChange,
    EventDetail,
    EventType,
    Outcome,
    RejectedApplication,
    ReleasedAllocation,
    UpdatedApplication,
)
from muster_core.model.states import COMPLETING_TIMEOUT_NS, TERMINATED_TIMEOUT_NS, AppState

LEAF = "{name: root, submitacl: '*', queues: [{name: a}, {name: closed, submitacl: ' nobody'}]}"
DAY_S = 24 * 3600


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(LEAF)
    made.node("n", vcore=10)
    return made


def _states(cluster: Cluster, app_id: str) -> list[str]:
    return [
        fact.state
        for out in cluster.outcomes
        for fact in out.facts
        if isinstance(fact, UpdatedApplication) and fact.app_id == app_id
    ]


def _app_events(out: Outcome) -> list[tuple[EventChange, EventDetail]]:
    return [(event.change, event.detail) for event in out.events if event.type is EventType.APP]


def test_a_whole_life(cluster: Cluster) -> None:
    out = cluster.app("x", "root.a")
    assert out.facts == [AcceptedApplication("x")]
    assert _app_events(out) == [(EventChange.ADD, EventDetail.NONE), (EventChange.SET, EventDetail.APP_NEW)]
    assert cluster.application("x").state is AppState.NEW

    out = cluster.ask("x", "k", vcore=1)
    assert _app_events(out) == [
        (EventChange.ADD, EventDetail.APP_REQUEST),
        (EventChange.SET, EventDetail.APP_ACCEPTED),
        (EventChange.SET, EventDetail.APP_RUNNING),
        (EventChange.ADD, EventDetail.APP_ALLOC),
    ]
    out = cluster.release("x", "k")
    assert _app_events(out) == [
        (EventChange.REMOVE, EventDetail.ALLOC_CANCEL),
        (EventChange.SET, EventDetail.APP_COMPLETING),
    ]

    cluster.wait(COMPLETING_TIMEOUT_NS / 1e9 - 0.001)
    assert cluster.application("x").state is AppState.COMPLETING
    out = cluster.wait(0.001)
    assert cluster.application("x").state is AppState.COMPLETED
    assert _app_events(out) == [(EventChange.REMOVE, EventDetail.NONE), (EventChange.SET, EventDetail.APP_COMPLETED)]
    assert cluster.queue("root.a").applications == {}

    cluster.wait(TERMINATED_TIMEOUT_NS / 1e9 - 1)
    assert "x" in cluster.partition.apps
    cluster.wait(1)
    assert cluster.partition.apps == {}
    assert _states(cluster, "x") == ["Accepted", "Running", "Completing", "Completed", "Expired"]
    assert cluster.core.next_deadline_ns() is None


def test_the_times_of_the_states_are_reported(cluster: Cluster) -> None:
    cluster.app("x", "root.a")
    cluster.wait(3)
    cluster.ask("x", "k", vcore=1)
    app = cluster.application("x")
    assert [(at_ns // 10**9, state) for at_ns, state in app.state_log] == [
        (1000, "New"),
        (1003, "Accepted"),
        (1003, "Running"),
    ]
    assert app.started_ns == 1003 * 10**9
    told = [fact for fact in cluster.outcomes[-1].facts if isinstance(fact, UpdatedApplication)]
    assert [(fact.now_ns, fact.message) for fact in told] == [(1003 * 10**9, "runApplication")] * 2


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (AppItem("x", "root.ghost", "default", "ann"), "no placement rule matched"),
        (AppItem("x", "root", "default", "ann"), "no placement rule matched"),
        (AppItem("x", "", "default", "ann"), "no placement rule matched"),
        (AppItem("x", "root.a b", "default", "ann"), "invalid queue name"),
        (AppItem("x", "root.a", "other", "ann"), "partition 'other' does not exist"),
        (AppItem("x", "root.a", "default", ""), "empty user cannot resolve"),
        (AppItem("x", "root.a", "default", "", tags={"application.create.force": "no"}), "empty user"),
        (AppItem("there", "root.a", "default", "ann"), "application already existed"),
    ],
)
def test_a_rejection_says_why_and_changes_nothing(cluster: Cluster, item: AppItem, why: str) -> None:
    cluster.app("there", "root.a")
    before = set(cluster.partition.apps), set(cluster.partition.queues)
    out = cluster.do(UpdateApplications((item,)))
    (fact,) = out.facts
    assert isinstance(fact, RejectedApplication)
    assert fact.app_id == item.app_id
    assert why in fact.reason
    assert _app_events(out) == [(EventChange.REMOVE, EventDetail.APP_REJECT)]
    assert (set(cluster.partition.apps), set(cluster.partition.queues)) == before


def test_access_is_checked(cluster: Cluster) -> None:
    open_root = Cluster("{name: root, queues: [{name: a, submitacl: 'ann team'}]}")
    assert isinstance(open_root.app("x", "root.a", user="bob").facts[0], RejectedApplication)
    assert isinstance(open_root.app("x", "root.a", user="ann").facts[0], AcceptedApplication)
    item = AppItem("y", "root.a", "default", "bob", ("team",))
    assert isinstance(open_root.do(UpdateApplications((item,))).facts[0], AcceptedApplication)


def test_a_forced_application_needs_no_user(cluster: Cluster) -> None:
    item = AppItem("x", "root.a", "DEFAULT", "", tags={"application.create.force": "True"})
    cluster.do(UpdateApplications((item,)))
    assert (cluster.application("x").user, cluster.application("x").groups_of_user) == ("nobody", ("nogroup",))


def test_an_id_may_be_used_again_once_the_first_is_finished(cluster: Cluster) -> None:
    cluster.app("x", "root.a")
    cluster.ask("x", "k", vcore=1)
    cluster.release("x", "k")
    out = cluster.app("x", "root.a")
    assert isinstance(out.facts[0], RejectedApplication)
    cluster.wait(30)
    finished = cluster.application("x")
    out = cluster.app("x", "root.a")
    assert isinstance(out.facts[0], AcceptedApplication)
    assert cluster.application("x") is not finished
    assert cluster.partition.apps["x-1030"].state_log == finished.state_log
    cluster.wait(4 * DAY_S)
    assert list(cluster.partition.apps) == ["x"]
    cluster.ask("x", "k", vcore=1)
    assert cluster.placed("x") == {"k": "n"}


def test_removal_takes_everything_under_it(cluster: Cluster) -> None:
    cluster.app("x", "root.a")
    cluster.do(UpdateAllocations([ask("x", f"k{n}", vcore=4) for n in range(4)]))
    assert len(cluster.placed("x")) == 2
    out = cluster.do(UpdateApplications((), (("default", "x"),)))
    released = [fact for fact in out.facts if isinstance(fact, ReleasedAllocation)]
    assert [(fact.key, fact.termination, fact.message) for fact in released] == [
        (f"k{n}", Termination.STOPPED_BY_RM, "Application x Removed") for n in range(2)
    ]
    assert [each for each in _app_events(out) if each[1] is EventDetail.REQUEST_CANCEL] == [
        (EventChange.REMOVE, EventDetail.REQUEST_CANCEL)
    ] * 2
    assert "x" not in cluster.partition.apps
    assert cluster.the_node("n").allocations == {}
    assert cluster.queue("root").running_applications == 0
    assert cluster.do(UpdateApplications((), (("default", "x"), ("nowhere", "x")))).facts == []


def test_a_removal_makes_room_at_once(cluster: Cluster) -> None:
    for name in ("x", "y"):
        cluster.app(name, "root.a")
        cluster.ask(name, "k", vcore=7)
    out = cluster.do(UpdateApplications((), (("default", "x"),)))
    assert allocations(out) == [("y", "k", "n")]


def test_a_node_that_goes_leaves_the_application_completing_or_pending(cluster: Cluster) -> None:
    for name in ("x", "y"):
        cluster.app(name, "root.a")
        cluster.ask(name, "k", vcore=1)
    cluster.ask("y", "more", vcore=99)
    cluster.do(nodes(NodeAction.DECOMISSION, {"n": None}))
    assert cluster.application("x").state is AppState.COMPLETING
    assert cluster.application("y").state is AppState.RUNNING
