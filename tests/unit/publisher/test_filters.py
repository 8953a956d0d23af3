"""The events that pass each filter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_event_publisher.app_queues import AppQueues
from muster_event_publisher.filters import (
    LOOKBACK_EVENTS,
    EventFields,
    EventFilter,
    QueueIndex,
    is_at_or_below,
    passes_request,
    passing,
)
from muster_proto.muster.bus.v1.state_pb2 import ApplicationObject
from muster_proto.si.v1.si_pb2 import EventRecord as E

SET, ADD, REMOVE, NONE = int(E.SET), int(E.ADD), int(E.REMOVE), int(E.NONE)


def seen(kind: str, change: int, detail: str, object_id: str, reference_id: str = "", at: int = 0) -> EventFields:
    return EventFields(E.Type.Value(kind), change, E.ChangeDetail.Value(detail), object_id, reference_id, at)


# An application's life as the scheduler writes it, mixed with another one's.
LIFE: list[EventFields | None] = [
    seen("QUEUE", ADD, "DETAILS_NONE", "root"),  # 0
    seen("QUEUE", ADD, "DETAILS_NONE", "root.a"),  # 1
    seen("QUEUE", ADD, "DETAILS_NONE", "root.ab"),  # 2
    seen("NODE", ADD, "DETAILS_NONE", "node-1"),  # 3
    seen("APP", ADD, "DETAILS_NONE", "app-1"),  # 4
    seen("APP", SET, "APP_NEW", "app-1"),  # 5
    seen("QUEUE", ADD, "QUEUE_APP", "root.a", "app-1"),  # 6
    seen("APP", ADD, "DETAILS_NONE", "app-2"),  # 7
    seen("QUEUE", ADD, "QUEUE_APP", "root.ab", "app-2"),  # 8
    seen("APP", ADD, "APP_REQUEST", "app-1", "k"),  # 9
    seen("APP", ADD, "APP_REQUEST", "app-2", "k"),  # 10: the same key
    seen("APP", ADD, "APP_ALLOC", "app-1", "k"),  # 11
    seen("NODE", ADD, "NODE_ALLOC", "node-1", "k"),  # 12: app-1's
    seen("APP", ADD, "APP_ALLOC", "app-2", "k"),  # 13
    seen("USERGROUP", ADD, "UG_USER_RESOURCE", "joe", "root.a"),  # 14
    seen("NODE", ADD, "NODE_ALLOC", "node-1", "k"),  # 15: app-2's
    seen("USERGROUP", SET, "UG_APP_LINK", "joe", "app-2"),  # 16
    seen("NODE", ADD, "NODE_RESERVATION", "node-1", "k"),  # 17: nobody's
    None,  # 18
    seen("APP", REMOVE, "ALLOC_CANCEL", "app-1", "k"),  # 19
    seen("NODE", REMOVE, "NODE_ALLOC", "node-1", "k"),  # 20
    seen("APP", REMOVE, "DETAILS_NONE", "app-1"),  # 21
    seen("QUEUE", REMOVE, "QUEUE_APP", "root.a", "app-1"),  # 22
]
APP_1 = [4, 5, 6, 9, 11, 12, 19, 20, 21, 22]
APP_2 = [7, 8, 10, 13, 15, 16]


def index_of(events: list[EventFields | None], first_id: int = 0) -> QueueIndex:
    index = QueueIndex()
    for event_id, each in enumerate(events, first_id):
        if each is not None:
            index.learn(event_id, each)
    return index


def passed(wanted: EventFilter, start: int = 0) -> list[int]:
    return list(passing(wanted, LIFE, start, 0, index_of(LIFE)))


def test_every_present_event_passes_an_open_filter() -> None:
    assert EventFilter().is_open
    assert passed(EventFilter()) == [n for n in range(len(LIFE)) if n != 18]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (EventFilter(types=frozenset({int(E.NODE)})), [3, 12, 15, 17, 20]),
        (EventFilter(types=frozenset({int(E.NODE)}), changes=frozenset({REMOVE})), [20]),
        (EventFilter(details=frozenset({int(E.QUEUE_APP), int(E.APP_NEW)})), [5, 6, 8, 22]),
        (EventFilter(object_ids=frozenset({"app-1", "root.ab"})), [2, 4, 5, 8, 9, 11, 19, 21]),
        (EventFilter(application_id="app-1"), APP_1),
        (EventFilter(application_id="app-2"), APP_2),
        (EventFilter(application_id="k"), []),
        (EventFilter(application_id="app-1", types=frozenset({int(E.NODE)})), [12, 20]),
        # not the first two of app-1, which come before it is in the queue
        (EventFilter(queue="root.a"), [1, 6, 9, 11, 12, 14, 19, 20, 21, 22]),
        (EventFilter(queue="root.ab"), [2, 8, 10, 13, 15, 16]),
        (EventFilter(queue="root"), [0, 1, 2, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20, 21, 22]),
        (EventFilter(queue="root.a", application_id="app-2"), []),
        (EventFilter(queue="root.none"), []),
    ],
)
def test_events_that_pass(wanted: EventFilter, expected: list[int]) -> None:
    assert passed(wanted) == expected


@given(
    st.integers(0, len(LIFE)),
    st.sampled_from(
        [EventFilter(application_id="app-1"), EventFilter(queue="root.a"), EventFilter(queue="root"), EventFilter()]
    ),
)
def test_going_on_in_the_middle_gives_the_rest(start: int, wanted: EventFilter) -> None:
    first = max(0, start - LOOKBACK_EVENTS)
    got = passing(wanted, LIFE[first:], start - first, first, index_of(LIFE))
    assert [first + index for index in got] == [n for n in passed(wanted) if n >= start]


def test_a_node_s_allocation_is_looked_for_only_so_far() -> None:
    far = [LIFE[11], *[LIFE[3]] * LOOKBACK_EVENTS, LIFE[12]]
    assert list(passing(EventFilter(application_id="app-1"), far, 0, 0, QueueIndex())) == [0]
    near = [LIFE[11], *[LIFE[3]] * (LOOKBACK_EVENTS - 1), LIFE[12]]
    assert list(passing(EventFilter(application_id="app-1"), near, 0, 0, QueueIndex())) == [0, LOOKBACK_EVENTS]


def test_an_ask_s_event() -> None:
    ask = seen("REQUEST", NONE, "DETAILS_NONE", "k", "app-1")
    index = index_of(LIFE)
    assert passes_request(EventFilter(), ask, 99, index)
    assert passes_request(EventFilter(application_id="app-1"), ask, 99, index)
    assert passes_request(EventFilter(queue="root.a"), ask, 99, index)
    assert not passes_request(EventFilter(queue="root.ab"), ask, 99, index)
    assert not passes_request(EventFilter(application_id="app-2"), ask, 99, index)
    assert not passes_request(EventFilter(types=frozenset({int(E.APP)})), ask, 99, index)


def test_an_application_that_comes_again_elsewhere() -> None:
    index = QueueIndex()
    for event_id, queue in [(50, "root.b"), (10, "root.a"), (10, "root.a"), (90, "root.a")]:  # in any order, again
        index.learn(event_id, seen("QUEUE", ADD, "QUEUE_APP", queue, "app"))
    assert [index.queue_of("app", n) for n in (9, 10, 49, 50, 89, 90)] == [
        "", "root.a", "root.a", "root.b", "root.b", "root.a",
    ]  # fmt: skip


def test_an_application_whose_coming_was_not_seen() -> None:
    index = QueueIndex(queue_of_object=lambda app: {"app": "root.now", "other": "root.other"}[app])
    index.learn(20, seen("QUEUE", REMOVE, "QUEUE_APP", "root.a", "app"))  # it left, so it was there
    index.learn(60, seen("QUEUE", ADD, "QUEUE_APP", "root.c", "app"))
    index.learn(40, seen("QUEUE", REMOVE, "QUEUE_APP", "root.b", "app"))  # it came again in between, unseen
    assert [index.queue_of("app", n) for n in (0, 19, 20, 39, 40, 59, 60, 99)] == [
        "root.a", "root.a", "root.b", "root.b", "root.b", "root.b", "root.c", "root.c",
    ]  # fmt: skip
    assert index.queue_of("other", 5) == "root.other"  # no event names the queue; the object does


def test_an_application_s_first_two_events_are_in_no_queue_however_it_is_known() -> None:
    index = QueueIndex(queue_of_object=lambda _: "root.a")
    assert list(passing(EventFilter(queue="root"), LIFE[4:7], 0, 4, index)) == [2]


def test_queues_by_objects() -> None:
    queues = AppQueues(3)
    for app, queue in [("a", "root.a"), ("b", "root.b"), ("none", ""), ("c", "root.c")]:
        queues.fold("rm", app, ApplicationObject(queue=queue).SerializeToString())
    queues.fold("rm", "bad", b"\xff")
    queues.fold("rm", "unknown", None)
    queues.fold("rm", "b", None)
    assert [queues.queue_of("rm", app) for app in ("a", "b", "none", "c", "bad", "unknown")] == [
        "root.a", "root.b", "", "root.c", "", "",
    ]  # fmt: skip
    assert queues.queue_of("another", "a") == ""
    # removed ones make room first
    queues.fold("rm", "d", ApplicationObject(queue="root.d").SerializeToString())
    assert [queues.queue_of("rm", app) for app in "abcd"] == ["root.a", "", "root.c", "root.d"]
    # and may come again in another queue
    queues.fold("rm", "a", None)
    queues.fold("rm", "a", ApplicationObject(queue="root.e").SerializeToString())
    assert queues.queue_of("rm", "a") == "root.e"


def test_events_without_a_queue_teach_nothing() -> None:
    index = QueueIndex()
    for each in (
        seen("QUEUE", SET, "QUEUE_APP", "root.a", "app"),
        seen("APP", ADD, "QUEUE_APP", "root.a", "app"),
        seen("QUEUE", ADD, "DETAILS_NONE", "root.a", "app"),
    ):
        index.learn(1, each)
    assert len(index) == 0


def test_the_index_is_bounded() -> None:
    index = QueueIndex(3)
    for number in range(10):
        index.learn(number, seen("QUEUE", ADD, "QUEUE_APP", "root.a", f"app-{number}"))
    assert len(index) == 3
    assert index.queue_of("app-9", 100) == "root.a"
    assert index.queue_of("app-0", 100) == ""


@pytest.mark.parametrize(
    ("path", "below"), [("root.a", True), ("root.a.b", True), ("root.ab", False), ("root", False), ("", False)]
)
def test_at_or_below(path: str, below: bool) -> None:
    assert is_at_or_below("root.a", path) is below
