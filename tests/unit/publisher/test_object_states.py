"""The ``state`` of streamed events comes from a view, here a stand-in that can be slow, wrong and silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from manual_clock import ManualClock
from muster_event_publisher import metrics, object_states
from muster_event_publisher.event_json import event_json
from muster_event_publisher.object_states import EventSlice, ObjectStates
from muster_proto.si.v1.si_pb2 import EventRecord
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from unit.publisher.feeding import INSTANCE, event
from unit.publisher.running import running, until_next
from unit.publisher.test_stream import opened
from waiting import eventually

NOW_NS = 1_750_000_000_000_000_000


class View:
    """Has objects by kind and id, with their times and states, the latest first for each name.

    :ivar next_event_id: it has seen the events before this one.
    :ivar asked: the objects of each request.
    :ivar statuses: statuses of the next answers, instead of 200.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], tuple[int, str] | list[tuple[int, str]]] = {}
        self.next_event_id = 1_000_000
        self.asked: list[list[dict[str, Any]]] = []
        self.statuses: list[int] = []
        self.app = Starlette(routes=[Route("/ws/v1/object-states", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        wanted = await request.json()
        assert request.query_params["rm"] == "rm"
        self.asked.append(wanted)
        if self.statuses:
            return Response(status_code=self.statuses.pop(0))
        found = [self.known.get((each["kind"], each["id"]), []) for each in wanted]
        lists = [each if isinstance(each, list) else [each] for each in found]
        states = [[{"createdNano": created, "state": state} for created, state in each] for each in lists]
        return Response(json.dumps({"instanceUUID": INSTANCE, "nextEventID": self.next_event_id, "states": states}))


def record(
    kind: int, object_id: str, change: int = EventRecord.ADD, detail: int = 0, *, at: int = 0, ref: str = ""
) -> bytes:
    return EventRecord(
        type=kind,  # type: ignore[arg-type]
        objectID=object_id,
        timestampNano=NOW_NS + at,
        eventChangeType=change,  # type: ignore[arg-type]
        eventChangeDetail=detail,  # type: ignore[arg-type]
        referenceID=ref,
    ).SerializeToString()


async def added(states: ObjectStates, *values: bytes) -> list[str | None]:
    lines = await states.add(EventSlice("rm", INSTANCE, 100, [event_json(value) for value in values], values))
    for line, value in zip(lines, values, strict=True):
        shown = json.loads(line)
        shown.pop("state", None)
        assert shown == json.loads(event_json(value))
    return [json.loads(line).get("state") for line in lines]


@pytest.fixture
def view() -> View:
    return View()


async def test_each_event_says_what_its_object_is_like(view: View) -> None:
    view.known = {
        ("application", "x"): (NOW_NS, '{"id":"1","t":"\\u003c\\""}'),
        ("rejected", "x"): (NOW_NS, "refused"),
        ("node", "n"): (NOW_NS, "node"),
        ("queue", "root.a"): (NOW_NS, "queue"),
    }
    states = ObjectStates(view.app, ManualClock())
    found = await added(
        states,
        record(EventRecord.APP, "x", ref="k1"),
        record(EventRecord.APP, "x", EventRecord.REMOVE, EventRecord.APP_REJECT),
        record(EventRecord.NODE, "n", ref="k1"),
        record(EventRecord.QUEUE, "root.a"),
        record(EventRecord.USERGROUP, "ann"),
        record(EventRecord.APP, "x", ref="k2"),
    )
    assert found == ['{"id":"1","t":"\\u003c\\""}', "refused", "node", "queue", None, '{"id":"1","t":"\\u003c\\""}']
    # One question for each object, with the facts of its events.
    assert view.asked == [
        [
            {"kind": "application", "id": "x", "keys": ["k1", "k2"]},
            {"kind": "rejected", "id": "x", "keys": []},
            {"kind": "node", "id": "n", "keys": ["k1"]},
            {"kind": "queue", "id": "root.a", "keys": []},
        ]
    ]


async def test_a_removed_object_has_its_last_state_and_not_its_successors(view: View) -> None:
    states = ObjectStates(view.app, ManualClock())
    view.known[("application", "x")] = (NOW_NS, "first")
    assert await added(states, record(EventRecord.APP, "x")) == ["first"]
    view.known[("application", "x")] = (NOW_NS + 10, "second")
    gone = record(EventRecord.APP, "x", EventRecord.REMOVE, at=9)
    assert await added(states, gone, record(EventRecord.APP, "x", at=10)) == ["first", "second"]
    view.known.clear()
    assert await added(states, record(EventRecord.APP, "x", EventRecord.REMOVE, at=11)) == ["second"]
    before = metrics.STATES_MISSING._value.get()
    assert await added(states, record(EventRecord.APP, "never"), gone) == [None, None]
    assert metrics.STATES_MISSING._value.get() == before + 2


async def test_of_those_of_one_name_each_has_its_own(view: View) -> None:
    view.known[("application", "x")] = [(NOW_NS + 10, "second"), (NOW_NS, "first")]
    states = ObjectStates(view.app, ManualClock())
    times = [record(EventRecord.APP, "x", at=at) for at in (0, 9, 10, 11)]
    assert await added(states, *times) == ["first", "first", "second", "second"]


async def test_an_object_removed_when_its_namesake_was_created_is_the_older_one(view: View) -> None:
    view.known[("queue", "root")] = [(NOW_NS + 10, "new"), (NOW_NS, "old")]
    states = ObjectStates(view.app, ManualClock())
    went = record(EventRecord.QUEUE, "root", EventRecord.REMOVE, EventRecord.QUEUE_APP, at=10, ref="x")
    made = record(EventRecord.QUEUE, "root", at=10)
    gone = record(EventRecord.QUEUE, "root", EventRecord.REMOVE, at=10)
    assert await added(states, went, gone, made) == ["old", "old", "new"]
    # If only one is known, it is that one.
    view.known[("queue", "root.a")] = [(NOW_NS + 10, "only")]
    assert await added(states, record(EventRecord.QUEUE, "root.a", EventRecord.REMOVE, at=10)) == ["only"]


async def test_a_view_that_is_behind_is_asked_again(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_states, "_TRY_AGAIN_S", 0.001)
    view.known[("application", "x")] = (NOW_NS, "old")
    view.next_event_id = 101  # it has not seen the second of the two
    states = ObjectStates(view.app, ManualClock())
    asking = asyncio.create_task(added(states, record(EventRecord.APP, "x"), record(EventRecord.APP, "x")))
    await eventually(lambda: len(view.asked) > 1)
    assert not asking.done()
    view.known[("application", "x")] = (NOW_NS, "new")
    view.next_event_id = 102
    assert await asking == ["new", "new"]


async def test_a_silent_view_is_waited_for_and_then_not(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_states, "_PAUSE_S", 0.001)
    view.known[("application", "x")] = (NOW_NS, "there")
    view.statuses = [503, 500, 404]
    clock = ManualClock()
    states = ObjectStates(view.app, clock)
    assert await added(states, record(EventRecord.APP, "x")) == ["there"]
    # It takes too long: events go out without new states, and for a while no event waits for a state.
    monkeypatch.setattr(object_states, "_PATIENCE_S", 0.0)
    view.statuses = [503]
    assert await added(states, record(EventRecord.APP, "x"), record(EventRecord.APP, "y")) == ["there", None]
    view.asked.clear()
    assert await added(states, record(EventRecord.APP, "y")) == [None]
    assert view.asked == []
    clock.advance(object_states._AWAY_S)
    view.known[("application", "y")] = (NOW_NS, "back")
    assert await added(states, record(EventRecord.APP, "y")) == ["back"]


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"instanceUUID":"","nextEventID":"1","states":[]}', b"\xff"])
async def test_an_answer_that_cannot_be_read(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_states, "_PATIENCE_S", 0.0)

    async def answer(_request: Request) -> Response:
        return Response(content)

    app = Starlette(routes=[Route("/ws/v1/object-states", answer, methods=["POST"])])
    assert await added(ObjectStates(app, ManualClock()), record(EventRecord.APP, "x")) == [None]


async def test_at_the_end_the_publisher_does_not_wait_for_the_view(view: View) -> None:
    view.statuses = [503]
    states = ObjectStates(view.app, ManualClock(), lambda: True)
    async with asyncio.timeout(60):
        assert await added(states, record(EventRecord.APP, "x")) == [None]


async def test_little_memory_is_kept_of_those_seen(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_states, "_CACHE_BYTES_MAX", 1_000)
    states = ObjectStates(view.app, ManualClock())
    for number in range(20):
        view.known = {("node", f"n{number}"): (NOW_NS, "x" * 300)}
        await added(states, record(EventRecord.NODE, f"n{number}"))
    view.known = {}
    values = [record(EventRecord.NODE, f"n{number}", EventRecord.REMOVE) for number in range(20)]
    assert [bool(state) for state in await added(states, *values)] == [False] * 17 + [True] * 3


async def test_streams_have_states_where_there_is_a_view_unless_they_say_otherwise(view: View) -> None:
    for number in range(40):
        view.known[("application", f"app-{number}")] = (0, f"state {number}")

    async def taken(query: str, count: int) -> Sequence[Any]:
        async with opened(publisher, query) as lines:
            await lines.next()
            return [json.loads(line) for line in await lines.take(count)]

    async with running(listen=True, view=view.app, ring_capacity=20) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(40))
        await until_next(publisher, "rm", 40)
        # (Only the log has the first twenty.)
        for query in ("?start=0", "?start=0&state=true", "?start=0&state=TRUE"):
            found = await taken(query, 40)
            assert [each["state"] for each in found] == [f"state {number}" for number in range(40)]
        plain = [json.loads(event_json(event(number))) for number in range(40)]
        assert await taken("?start=0&state=false", 40) == plain
        # Streams at the same place share one question.
        assert await taken("?start=20", 20) == found[20:]
        asked = len(view.asked)
        assert await taken("?start=20", 20) == found[20:]
        assert len(view.asked) == asked
        batch = (await publisher.http.get("/ws/v1/events/batch?state=true")).json()["EventRecords"]
        assert [each["state"] for each in batch] == [f"state {number}" for number in range(40)]
        assert (await publisher.http.get("/ws/v1/events/batch")).json()["EventRecords"] == plain


async def test_without_a_view_there_are_none(view: View) -> None:
    async with running() as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(3))
        await until_next(publisher, "rm", 3)
        for path, words in (
            ("stream?state=true", "this publisher knows no view"),
            ("batch?state=true", "this publisher knows no view"),
            ("batch?state=1", "'1' is not valid, expected true or false"),
        ):
            answer: httpx.Response = await publisher.http.get(f"/ws/v1/events/{path}")
            assert (answer.status_code, words in answer.json()["message"]) == (400, True), answer.text
