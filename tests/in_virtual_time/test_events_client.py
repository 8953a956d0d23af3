"""EventsClient and `muster events` at a real publisher: each event once, in order, over lost connections."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from in_virtual_time.test_events_grpc import PATIENCE_S, World, asked, world
from muster_bus.backends.memory import MemoryStore
from muster_client.errors import AdminFailed, AdminRefused
from muster_client.events_client import Event, EventFilter, EventsClient, Place
from muster_proto.si.v1.si_pb2 import EventRecord
from muster_replay.local_process import free_ports
from unit.publisher.feeding import INSTANCE, START_NS
from virtual.plugin import advance


def address(it: World) -> str:
    return f"127.0.0.1:{it.publisher.service.grpc_port}"


async def test_a_batch_in_the_client_s_words() -> None:
    async with world() as it, EventsClient(address(it)) as client:
        await it.events(0, 30)
        found = await client.batch(place=Place(id=5), count=2)
        assert [event.id for event in found.events] == [5, 6]
        assert (found.rm_id, found.instance, found.next_id, found.end_id) == ("rm", INSTANCE, 7, 30)
        assert (found.source, found.missing) == ("RING", ())
        event = found.events[0]
        assert event.names == ("APP", "ADD", "APP_ALLOC")
        assert event.resource == {"memory": 2**33, "vcore": 5}
        assert json.loads(json.dumps(event.as_json())) == {
            "id": 5,
            "type": "APP",
            "eventChangeType": "ADD",
            "eventChangeDetail": "APP_ALLOC",
            "timestampNano": START_NS + 5_000_000,
            "objectID": "app-5",
            "referenceID": "alloc-5",
            "resource": {"memory": 2**33, "vcore": 5},
        }
        newest = await client.batch("rm", place=Place(newest=3), wanted=EventFilter(types=("APP",)))
        assert [event.id for event in newest.events] == [27, 28, 29]
        none = await client.batch(wanted=EventFilter(change_types=("REMOVE",), queue="root.a"))
        assert (none.events, none.next_id) == ((), 30)


def test_an_event_of_a_newer_interface_and_one_of_an_ask() -> None:
    assert Event(None, EventRecord(type=1, objectID="k")).as_json() == {
        "type": "REQUEST",
        "eventChangeType": "NONE",
        "eventChangeDetail": "DETAILS_NONE",
        "timestampNano": 0,
        "objectID": "k",
    }
    newer = EventRecord.FromString(b"\x08\x63\x40\xe7\x07")
    assert Event(1, newer).names == ("99", "NONE", "999")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: EventFilter(types=("APPS",)), "types: 'APPS', expected some of UNKNOWN_EVENTRECORD_TYPE, REQUEST"),
        (lambda: EventFilter(change_details=("X",)), "change_details: 'X', expected some of DETAILS_NONE"),
        (lambda: Place(id=1, newest=1), "id and newest: expected one of them"),
    ],
)
def test_invalid_requests_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong()


async def test_refusals() -> None:
    async with world() as it, EventsClient(address(it)) as client:
        await it.events(0, 3)
        with pytest.raises(AdminRefused, match="no events of 'nope'"):
            await client.batch("nope")
        with pytest.raises(AdminRefused, match="not there yet"):
            async for _ in client.watch("rm", place=Place(id=9)):
                pass
    async with EventsClient(f"127.0.0.1:{free_ports(1)[0]}") as client:
        with pytest.raises(AdminFailed):
            async for _ in client.watch("rm"):
                pass


async def test_a_watch_goes_on_over_a_publisher_that_restarts() -> None:
    kept, (port,) = MemoryStore(), free_ports(1)
    ids: list[int] = []
    asks: list[str] = []
    batches = 0

    async def listen() -> None:
        nonlocal batches
        async with EventsClient(f"127.0.0.1:{port}") as client:
            watched = client.watch("rm", place=Place(id=0), request_events=True)
            async with aclosing(watched) as found:
                async for batch in found:
                    batches += 1
                    ids.extend(event.id for event in batch.events if event.id is not None)
                    asks.extend(event.record.objectID for event in batch.events if event.id is None)
                    if ids[-1:] == [299] and asks[-1:] == ["k2"]:
                        return

    listening: asyncio.Task[None] | None = None
    for turn in range(3):
        async with world(store=kept, grpc_address=f"127.0.0.1:{port}") as it:
            await it.events(turn * 100, 100)
            await asked(it, f"k{turn}")
            if listening is None:
                listening = asyncio.create_task(listen())
            await advance()
            assert (ids[-1:], asks[-1:]) == ([turn * 100 + 99], [f"k{turn}"])
    assert listening is not None
    async with asyncio.timeout(PATIENCE_S):
        await listening
    assert ids == list(range(300))
    assert asks == ["k0", "k1", "k2"]


async def test_a_watch_that_shall_not_resume_says_so() -> None:
    async with world() as it, EventsClient(address(it)) as client:
        await it.events(0, 3)
        watched = client.watch("rm", resume=False)
        await anext(watched)
        stopping = asyncio.create_task(it.publisher.service.stop())
        with pytest.raises(AdminFailed, match="the event publisher is stopping"):
            await anext(watched)
        await stopping
