"""The tail of responses on the embedded log: it dispatches at once what becomes visible, in order, and each once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from contract.test_log_sqlite import always_in_the_loop
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.clock import SystemClock
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_gateway.response_delivery import _AT_ONCE, ResponseFeed, ResponseTail
from muster_gateway.sessions.contract import Cursor
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from waiting import eventually

RM = "rm-1"


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    settings = LogSettings(backend="sqlite", partitions=1, sqlite_path=tmp_path / "log.db", sqlite_loop_share=1)
    log = SqliteLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    always_in_the_loop(log)
    yield log
    await log.close()


@pytest.fixture
def topics(log: SqliteLog) -> Topics:
    return log.settings.topics()


@pytest.fixture
async def tail(log: SqliteLog, topics: Topics) -> AsyncIterator[ResponseTail]:
    tail = ResponseTail(log, topics, 0, 100)
    await tail.start()
    yield tail
    await tail.close()


@pytest.fixture
async def running(tail: ResponseTail) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(tail.run())
    await eventually(lambda: tail._waits)
    yield task
    task.cancel()
    with suppress(asyncio.CancelledError, ArithmeticError):
        await task


def response(topics: Topics, sequence: int) -> OutRecord:
    envelope = pb.ResponseEnvelope(rm_id=RM, sequence=sequence, stream=pb.STREAM_ALLOCATION, response=b"%d" % sequence)
    return OutRecord(topics.responses, 0, RM.encode(), envelope.SerializeToString())


def attached(tail: ResponseTail) -> ResponseFeed:
    feed = ResponseFeed(RM, StreamKind.ALLOCATION, Cursor(0, 0, 0), 0, 10_000, 1 << 20, lambda: None, lambda: 0.0)
    assert tail.attach(feed)
    return feed


def taken(feed: ResponseFeed) -> list[int]:
    found = []
    while (due := feed.next_due()) is not None:
        found.append(int(due.payload))
        feed.mark_written(due)
    return found


async def test_a_response_is_dispatched_within_the_commit(
    log: SqliteLog, topics: Topics, tail: ResponseTail, running: asyncio.Task[None]
) -> None:
    feed = attached(tail)
    owner = await log.take_over("group", topics.requests, 0)
    await eventually(lambda: tail._waits)
    for sequence in range(1, 6):
        # (The writer's thread makes the commit if it has not let go of the file yet.)
        waiting = owner.commit_at_once([response(topics, sequence)], sequence)
        if waiting is not None:
            await waiting
        assert taken(feed) == [sequence]
    assert not running.done()


async def test_many_responses_come_in_order_and_each_once(
    log: SqliteLog, topics: Topics, tail: ResponseTail, running: asyncio.Task[None]
) -> None:
    feed = attached(tail)
    owner = await log.take_over("group", topics.requests, 0)
    sequence, found = 1, []
    for count in (3, _AT_ONCE - 1, _AT_ONCE, _AT_ONCE + 1, 5 * _AT_ONCE, 1, 1):
        await owner.commit([response(topics, each) for each in range(sequence, sequence + count)], None)
        sequence += count
    await eventually(lambda: found.extend(taken(feed)) or len(found) >= sequence - 1)
    assert found == list(range(1, sequence))
    assert not running.done()


async def test_a_defect_ends_the_tail_and_not_the_log(
    log: SqliteLog, topics: Topics, tail: ResponseTail, running: asyncio.Task[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError

    attached(tail)
    owner = await log.take_over("group", topics.requests, 0)
    await eventually(lambda: tail._waits)
    monkeypatch.setattr(tail, "_dispatch", fail)
    await owner.commit([response(topics, 1)], 1)
    with pytest.raises(ArithmeticError):
        await asyncio.wait_for(running, 60)
    await owner.commit([response(topics, 2)], 2)
    assert await owner.committed() == 2
