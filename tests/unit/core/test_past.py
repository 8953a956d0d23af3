"""The past reasons of pending asks: the last few that lasted, at the list or the application."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from asking import Asking
from builders import SECOND_NS, Cluster, nodes
from muster_core.model.commands import AskItem, NodeAction, UpdateAllocations, UpdateApplications
from muster_core.model.reason_history import PAST_KEPT, Past, PastReason, with_begun, with_ended, with_replaced
from muster_core.model.reasons import Reason, ReasonCode

LEAF = "{name: root, submitacl: '*', queues: [{name: a}]}"
ONE_RUNS = "{name: root, submitacl: '*', queues: [{name: a, maxapplications: 1}]}"
AT_MAX = Reason(ReasonCode.QUEUE_MAX, "root.a", "vcore", 2, 3, 4)
NO_ROOM = Reason(ReasonCode.NO_NODE_HAS_ROOM, "", "vcore", 2, free=1)


class Was(NamedTuple):
    """A past reason, its times in seconds after the cluster's first."""

    code: str
    since_s: float
    until_s: float


def told(past: Past, start_ns: int) -> list[Was]:
    return [
        Was(each.reason.code, (each.reason.since_ns - start_ns) / SECOND_NS, (each.until_ns - start_ns) / SECOND_NS)
        for each in past
    ]


def the_list(cluster: Cluster, path: str = "root.a") -> Past:
    (waitlist,) = cluster.queue(path).waitlists.values()
    return waitlist.past


# ---- the rules -----------------------------------------------------------------------------------------------------


def at(reason: Reason, since_s: float) -> Reason:
    return with_begun((), reason, round(since_s * SECOND_NS))[1]


def test_a_reason_that_lasted_is_past_when_another_one_follows() -> None:
    past, reason = with_replaced((), at(NO_ROOM, 1), AT_MAX, 5 * SECOND_NS)
    assert past == (PastReason(at(NO_ROOM, 1), 5 * SECOND_NS),)
    assert (reason.code, reason.since_ns, reason.as_of_ns) == (ReasonCode.QUEUE_MAX, 5 * SECOND_NS, 0)


def test_a_momentary_reason_is_not_kept() -> None:
    assert with_ended((), at(NO_ROOM, 1), 2 * SECOND_NS - 1) == ()
    assert len(with_ended((), at(NO_ROOM, 1), 2 * SECOND_NS)) == 1
    assert with_ended((), None, 2 * SECOND_NS) == ()


def test_one_that_is_back_after_a_moment_began_when_it_did_at_first_and_its_figures_are_of_now() -> None:
    past, moved = with_replaced((), at(NO_ROOM, 1), AT_MAX, 5 * SECOND_NS)
    now_ns = 5 * SECOND_NS + SECOND_NS // 2
    past, back = with_replaced(past, moved, NO_ROOM, now_ns)
    assert (past, back.since_ns, back.as_of_ns) == ((), 1 * SECOND_NS, now_ns)
    past, moved = with_replaced((), at(NO_ROOM, 1), AT_MAX, 5 * SECOND_NS)
    past, back = with_replaced(past, moved, NO_ROOM, 6 * SECOND_NS)
    assert (len(past), back.since_ns) == (2, 6 * SECOND_NS), "after a second it is another time"


def test_the_last_ones_are_kept() -> None:
    past: Past = ()
    for number in range(PAST_KEPT + 3):
        past = with_ended(past, at(NO_ROOM, number), (number + 1) * SECOND_NS)
    assert [each.until_ns // SECOND_NS for each in past] == list(range(4, PAST_KEPT + 4))


# ---- at a list -----------------------------------------------------------------------------------------------------


def moved(cluster: Cluster) -> Cluster:
    """x/k waits 10 s for a node, 20 s for one large enough, and then for room on it."""
    cluster.app("x", "root.a")
    cluster.ask("x", "k", vcore=4)
    cluster.wait(10)
    cluster.node("small", vcore=1)
    cluster.wait(20)
    cluster.app("y", "root.a")
    cluster.do(nodes(NodeAction.CREATE_DRAIN, {"large": {"vcore": 5}}))
    cluster.do(UpdateAllocations([AskItem("held", "y", "default", {"vcore": 3}, node_id="large")]))
    cluster.do(nodes(NodeAction.DRAIN_TO_SCHEDULABLE, {"large": None}))
    return cluster


def test_each_reason_has_its_time() -> None:
    cluster = Cluster(LEAF)
    start_ns = cluster.now_ns
    moved(cluster)
    reason = cluster.reason("x", "k")
    assert isinstance(reason, Reason)
    assert (reason.code, (reason.since_ns - start_ns) / SECOND_NS) == (ReasonCode.NO_NODE_HAS_ROOM, 30)
    assert told(the_list(cluster), start_ns) == [Was("NO_NODES", 0, 10), Was("LARGER_THAN_ANY_NODE", 10, 30)]


def test_an_unchanged_wait_is_not_written() -> None:
    cluster = moved(Cluster(LEAF))
    waitlist = next(iter(cluster.queue("root.a").waitlists.values()))
    out = cluster.wait(1_000)
    assert waitlist not in [what for _, what, _ in out.objects()]
    assert len(the_list(cluster)) == 2


def test_an_ask_that_is_placed_at_once_leaves_no_reason() -> None:
    cluster = Cluster(LEAF).having({"n": {"vcore": 8}}, {"x": "root.a"})
    cluster.ask("x", "k", vcore=4)
    assert not cluster.queue("root.a").waitlists
    assert cluster.application("x").past == ()


# ---- at an application, and from one list to another ---------------------------------------------------------------


def test_an_application_that_waits_as_a_whole_keeps_what_its_asks_waited_for() -> None:
    cluster = Cluster(ONE_RUNS)
    start_ns = cluster.now_ns
    for app in ("x", "y"):
        cluster.app(app, "root.a")
        cluster.ask(app, "k", vcore=4)
    cluster.wait(10)
    cluster.node("n", vcore=4)
    app = cluster.application("y")
    assert app.reason is not None
    assert app.reason.code is ReasonCode.QUEUE_MAX_APPLICATIONS
    assert told(app.past, start_ns) == [Was("NO_NODES", 0, 10)]
    assert [each.shape for each in app.past] == [app.asks["k"].shape]
    cluster.wait(20)
    cluster.do(UpdateApplications((), (("default", "x"),)))
    assert "k" in app.allocations
    assert told(app.past, start_ns) == [Was("NO_NODES", 0, 10), Was("QUEUE_MAX_APPLICATIONS", 10, 30)]
    assert app.past[-1].shape is None


def test_a_change_of_the_rules_keeps_what_was_waited_for() -> None:
    cluster = Cluster(LEAF)
    start_ns = cluster.now_ns
    moved(cluster)
    cluster.wait(10)
    cluster.reload("{name: root, submitacl: '*', queues: [{name: a, properties: {preemption.delay: 5s}}]}")
    reason = cluster.reason("x", "k")
    assert isinstance(reason, Reason)
    assert (reason.since_ns - start_ns) / SECOND_NS == 30, "it is the same all the time"
    assert (reason.as_of_ns - start_ns) / SECOND_NS == 40, "and was looked at anew"
    assert told(the_list(cluster), start_ns) == [Was("NO_NODES", 0, 10), Was("LARGER_THAN_ANY_NODE", 10, 30)]
    cluster.reload("{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 5m}}}]}")
    assert [each.code for each in told(the_list(cluster), start_ns)] == [
        "NO_NODES", "LARGER_THAN_ANY_NODE", "NO_NODE_HAS_ROOM",
    ]  # fmt: skip


@pytest.mark.parametrize("others", [0, 1])
def test_an_ask_that_stands_apart_keeps_what_it_waited_for(others: int) -> None:
    rm = Asking()
    start_ns = rm.now_ns
    rm.app("x", "root.a")
    for number in range(1 + others):
        rm.ask("x", f"k{number}", vcore=4)
    rm.wait(10)
    rm.node("n", vcore=4)
    rm.wait(0.5)
    rm.no()
    apart = [each for each in rm.queue("root.a").waitlists.values() if each.apart]
    assert [each.reason.code for each in apart if each.reason] == [ReasonCode.REFUSED_BY_RM]
    assert [told(each.past, start_ns) for each in apart] == [[Was("NO_NODES", 0, 10)]]
