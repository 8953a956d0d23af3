"""The pipe between the scheduler and its informers' process: messages, order, limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.errors import InvalidRecord, LogClosed, LogError, LogUnavailable, OffsetOutOfRange, RecordTooLarge
from muster_bus.log import LogWriter, OutRecord
from muster_bus.pipe.messages import Append, AppendResults, PipeRecord, error_of, failure_of
from muster_bus.pipe.pipe_appends import PipeWriter
from muster_bus.topics import Topics, state_key
from muster_informers.child import PipeLog
from muster_informers.pipe_log_server import PipeLogServer
from muster_informers.pipe_messages import (
    InformersEnded,
    InformersStatus,
    LogReply,
    LogRequest,
    Message,
    MetricFamily,
    MetricSamples,
    ReadRecord,
    StartInformers,
    StopInformers,
)
from muster_runtime.message_channel import FRAME_BYTES_MAX, Channel

WITHIN_S = 20.0
TOPICS = Topics(partitions=1)
OFFERS = (state_key("rm", "ext", "default", "mesos", "offer") + b"/",)

ERRORS: list[LogError] = [
    LogUnavailable("away"),
    LogClosed("closed"),
    InvalidRecord("unknown topic"),
    RecordTooLarge("t", 2, 1),
    OffsetOutOfRange("t", 0, 1, 5, 9),
]


async def channels() -> tuple[Channel[Message], Channel[Message]]:
    one, other = socket.socketpair()
    return await Channel.over(one, Message), await Channel.over(other, Message)


MESSAGES: list[Message] = [
    StartInformers({"a": [1, "s3cret", None, 0.5]}, {"partitions": 4}, (0, 2), "life", "info", "json", ("/x",)),
    Append((PipeRecord(1, "t", 0, b"k", b"v" * 3_000_000, (("h", b"x"),)), PipeRecord(2, "t", 1, None, None))),
    AppendResults(((1, 7),), tuple((number, failure_of(error)) for number, error in enumerate(ERRORS))),
    LogRequest(1, 2, "open", topic="t", partition=3, offset=None),
    LogReply(1, 9, (ReadRecord(8, 5, b"k", None),)),
    InformersStatus(True, ("vms",), ("informer vms (http): it is away",)),
    MetricSamples((MetricFamily("m", "What it is.", "gauge", (("m", {"source": "vms"}, 1.5),)),)),
    InformersEnded({"vms": "away"}),
    StopInformers(),
]


async def test_everything_goes_over_as_it_is_and_in_its_order() -> None:
    for here, there in [(channel := await channels()), tuple(reversed(channel))]:
        for message in MESSAGES:
            here.send(message)
        async with asyncio.timeout(WITHIN_S):
            assert [await there.receive() for _ in MESSAGES] == MESSAGES


async def test_a_closed_end_is_detected_and_half_a_frame_is_no_message() -> None:
    one, other = socket.socketpair()
    channel: Channel[Message] = await Channel.over(one, Message)
    other.sendall((100).to_bytes(4, "big") + b"half")
    other.close()
    assert await channel.receive() is None
    channel.close()
    channel.send(StopInformers())  # nobody minds


@pytest.mark.parametrize("said", [b"\x00\x00\x00\x02no", (FRAME_BYTES_MAX + 1).to_bytes(4, "big")])
async def test_a_nonsensical_message_is_an_error(said: bytes) -> None:
    one, other = socket.socketpair()
    channel: Channel[Message] = await Channel.over(one, Message)
    other.sendall(said)
    with pytest.raises(ValueError, match=r".+"):
        await channel.receive()
    other.close()


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_the_log_is_the_same_at_the_other_end(error: LogError) -> None:
    there = error_of(failure_of(error))
    assert (type(there), str(there)) == (type(error), str(error))


# ---- to the log -----------------------------------------------------------------------------------------------------


class Log(MemoryLog):
    """A log. ``refuses``: errors of the next records; ``away``: an event before which no append is settled."""

    def __init__(self) -> None:
        super().__init__(TOPICS.specs(), SystemClock())
        self.refuses: list[LogError] = []
        self.here = asyncio.Event()
        self.here.set()

    async def writer(self, name: str) -> LogWriter:
        return _Writer(self, await super().writer(name))


class _Writer:
    def __init__(self, log: Log, real: LogWriter) -> None:
        self._log, self._real = log, real

    def append(self, record: OutRecord) -> Awaitable[int]:
        return self._append(record)

    async def _append(self, record: OutRecord) -> int:
        if self._log.refuses:
            raise self._log.refuses.pop(0)
        await self._log.here.wait()
        return await self._real.append(record)

    async def wait_writable(self) -> None:
        await self._real.wait_writable()

    async def close(self) -> None:
        await self._real.close()


@asynccontextmanager
async def both(before: Callable[[], None] = lambda: None) -> AsyncIterator[tuple[Log, PipeLog]]:
    """Yield a log, and the same log at the other end of a pipe."""
    log = Log()
    await log.start()
    here, there = await channels()
    defects: list[BaseException] = []
    end = PipeLogServer(here, await log.writer("external"), log, OFFERS, SystemClock(), defects.append)
    bus = PipeLog(there, before)

    async def serve() -> None:
        while (message := await here.receive()) is not None:
            assert isinstance(message, Append | LogRequest)
            end.handle(message)

    async def listen() -> None:
        while (message := await there.receive()) is not None:
            assert isinstance(message, AppendResults | LogReply)
            bus.handle_reply(message)

    tasks = [asyncio.create_task(serve()), asyncio.create_task(listen())]
    try:
        async with asyncio.timeout(WITHIN_S):
            yield log, bus
    finally:
        there.close()
        await end.close()
        here.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await log.close()
    assert defects == []


def record(number: int, size: int = 1) -> OutRecord:
    return OutRecord(TOPICS.requests, 0, str(number).encode(), b"x" * size)


async def test_appended_records_are_on_the_log_in_order() -> None:
    async with both() as (log, bus):
        writer = await bus.writer("w")
        appended = [writer.append(record(number, 30_000)) for number in range(100)]  # (three frames)
        assert [await each for each in appended] == list(range(100))
        reader = await log.reader(TOPICS.requests, 0)
        keys = [each.key for each in await reader.read(1000, 0)]
        assert keys == [str(number).encode() for number in range(100)]
        await writer.close()
        with pytest.raises(LogClosed):
            await writer.append(record(1))


async def test_only_records_that_the_log_refuses_are_refused() -> None:
    async with both() as (log, bus):
        writer = await bus.writer("w")
        log.refuses = list(ERRORS)
        appended = [writer.append(record(number)) for number in range(len(ERRORS) + 1)]
        found = await asyncio.gather(*appended, return_exceptions=True)
        assert [type(each) for each in found[:-1]] == [type(each) for each in ERRORS]
        assert found[-1] == 0


async def test_while_nothing_is_settled_only_so_much_is_under_way() -> None:
    here, there = await channels()
    writer = PipeWriter(there.send, unsettled_bytes_max=1_000)
    appended = []
    while True:
        waits = asyncio.ensure_future(writer.wait_writable())
        await asyncio.sleep(0)
        if not waits.done():
            break
        appended.append(writer.append(record(len(appended), 100)))
    assert 5 <= len(appended) <= 10
    # The first settled record makes room again.
    first = await here.receive()
    assert isinstance(first, Append)
    writer.resolve(AppendResults(((first.records[0].number, 7),)))
    await waits
    assert await appended[0] == 7
    here.close()
    there.close()


async def test_an_unreachable_log_does_not_delay_other_messages() -> None:
    async with both() as (log, bus):
        writer = await bus.writer("w")
        log.here.clear()
        appended = asyncio.ensure_future(writer.append(record(1)))
        reader = await bus.reader(TOPICS.state, 0)
        assert await reader.end_offset() == 0
        assert not appended.done()
        log.here.set()
        assert await appended == 0


async def test_a_writer_that_closes_waits_for_what_was_appended() -> None:
    async with both() as (log, bus):
        writer = await bus.writer("w")
        log.here.clear()
        appended = asyncio.ensure_future(writer.append(record(1)))
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        log.here.set()
        await closing
        assert await appended == 0


async def test_the_state_is_reported_before_records_are_sent() -> None:
    told: list[int] = []
    async with both(lambda: told.append(1)) as (_, bus):
        writer = await bus.writer("w")
        await asyncio.gather(writer.append(record(1)), writer.append(record(2)))
        assert told == [1]


# ---- from the log ---------------------------------------------------------------------------------------------------


async def test_of_the_states_only_the_offers_of_the_sources_go_over() -> None:
    async with both() as (log, bus):
        writer = await log.writer("states")
        others = [
            state_key("rm", "node", "default", "h1"),
            state_key("rm", "ext", "default", "mesos", "node", "offer"),
            state_key("rm", "ext", "default", "other", "offer", "o1"),
            state_key("rm2", "ext", "default", "mesos", "offer", "o1"),
        ]
        offer = OFFERS[0] + b"o1"
        for key in (*others, offer, *others, None):
            await writer.append(OutRecord(TOPICS.state, 0, key or offer, None if key is None else b"v"))
        reader = await bus.reader(TOPICS.state, 0)
        assert (await reader.first_offset(), await reader.end_offset()) == (0, 10)
        found = []
        while reader.position < 10:
            found += await reader.read(3, 0.05)
        assert [(each.offset, each.key, each.value) for each in found] == [(4, offer, b"v"), (9, offer, None)]
        # Without new records the read returns in time, and continues with the next record.
        assert await reader.read(3, 0.01) == []
        waiting = asyncio.ensure_future(reader.read(3, 5.0))
        await writer.append(OutRecord(TOPICS.state, 0, offer, b"w"))
        assert [each.value for each in await waiting] == [b"w"]
        reader.seek(4)
        assert [each.offset for each in await reader.read(1, 1.0)] == [4]
        reader.seek(99)
        with pytest.raises(OffsetOutOfRange):
            await reader.read(1, 0.05)
        await reader.close()
