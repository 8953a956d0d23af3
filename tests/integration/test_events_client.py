"""EventsClient and `muster events` at a real publisher: each event once, in order, over lost connections."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc
import pytest
import structlog
from integration.test_events_grpc import PATIENCE_S, World, asked, world
from muster_bus.backends.memory import MemoryStore
from muster_cli.main import run
from muster_client.errors import AdminFailed, AdminRefused
from muster_client.events_client import Event, EventFilter, EventsClient, Place
from muster_proto.si.v1.si_pb2 import EventRecord
from muster_replay.local import free_ports, muster_command
from muster_runtime import logs
from unit.publisher.feeding import INSTANCE, START_NS
from unit.publisher.running import until_next
from waiting import eventually

Printed = Callable[[], tuple[str, str]]
Code = grpc.StatusCode


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
            await eventually(lambda: (ids[-1:], asks[-1:]) == ([turn * 100 + 99], [f"k{turn}"]))  # noqa: B023 - now
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


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], tuple[str, str]]]:
    """Read the command's output since the last call. Restores the logging setup at the end."""
    root = logging.getLogger()
    before = structlog.get_config(), root.handlers[:], root.level
    logs.configure("critical", "auto")

    def both() -> tuple[str, str]:
        found = capsys.readouterr()
        return found.out, found.err

    yield both
    structlog.configure(**before[0])
    root.handlers[:], root.level = before[1], before[2]


async def muster(*arguments: str) -> int:
    return await asyncio.to_thread(run, ["events", *arguments])


async def test_the_command_prints_batches(printed: Printed) -> None:
    async with world() as it:
        await it.events(0, 2_500)
        at = ("--gateway", address(it))
        assert await muster("batch", *at, "--json", "--count", "2200") == 0
        lines = [json.loads(line) for line in printed()[0].splitlines()]
        assert [line["id"] for line in lines] == list(range(2_200))
        assert await muster("batch", *at, "--start", "7", "--count", "1", "--type", "app", "--object", "app-8") == 0
        header, line = printed()[0].splitlines()
        assert header.split() == ["time", "(UTC)", "id", "what", "object", "reference", "resource,", "message"]
        assert line.split() == [
            "2025-06-15", "15:06:40.008", "8", "APP", "ADD", "APP_ALLOC", "app-8", "alloc-8", "memory=8589934592",
            "vcore=8",
        ]  # fmt: skip
        assert await muster("batch", *at, "--since", "2025-06-15T15:06:42.499Z", "--json") == 0
        assert json.loads(printed()[0])["id"] == 2_499
        await it.publisher.feeder.events("rm", range(2_600, 2_601))
        await until_next(it.publisher, "rm", 2_601)
        assert await muster("batch", *at, "--newest", "2") == 0
        out, err = printed()
        assert "2600" in out
        assert err.splitlines()[-1] == "muster: events 2599 to 2599 no longer exist"


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--type", "APPS"), 2, "--type 'APPS', expected some of"),
        (("--start", "1", "--newest", "2"), 2, "--start, --since, --newest: expected one of them"),
        (("--since", "yesterday"), 2, "--since: must be a time as 2026-01-31T12:00:00Z, or at most 100 years"),
        (("--newest", "-1"), 2, "--newest: must be a whole number from 0 to 1,000,000,000, got '-1'"),
        (("--count", "0"), 2, "--count: must be a whole number from 1 to 1,000,000,000, got '0'"),
        (("--queue", "default"), 2, "filter.queue: 'default', expected a full path"),
        (("--rm", "nope"), 2, "rm_id: no events of 'nope'; known RMs: 'rm' (NOT_FOUND)"),
    ],
)
async def test_a_wrong_command_is_one_clear_line(
    printed: Printed, flags: tuple[str, ...], code: int, said: str
) -> None:
    async with world() as it:
        await it.events(0, 3)
        assert await muster("batch", "--gateway", address(it), *flags) == code
        out, err = printed()
        assert said in err
        assert (len(err.splitlines()), out) == (1, "")


@contextmanager
def interruptible() -> Iterator[None]:
    """Give processes that start meanwhile SIGINT's default action, even if the tests run in a shell's background.

    (`preexec_fn` would fork this process, with gRPC's threads and handlers in it: such a child may die.)
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def test_the_command_watches_until_it_is_ended() -> None:
    async with world() as it:
        await it.events(0, 3)
        command = muster_command(
            "events", "watch", "--gateway", address(it), "--start", "1", "--json", "--requests"
        )  # fmt: skip
        with interruptible():
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            found = [json.loads(await process.stdout.readline())["id"] for _ in range(2)]
            await it.events(3, 1)
            found.append(json.loads(await process.stdout.readline())["id"])
            await asked(it, "k")
            ask = json.loads(await process.stdout.readline())
        assert found == [1, 2, 3]
        assert (ask["type"], ask["objectID"], "id" in ask) == ("REQUEST", "k", False)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 130


def test_an_rms_text_does_not_control_a_terminal() -> None:
    from muster_cli.events import as_line

    line = as_line(Event(1, EventRecord(type=2, objectID="a\x1b[31m", message="x\ny")))
    assert line.isprintable()
    assert "a\\x1b[31m" in line
