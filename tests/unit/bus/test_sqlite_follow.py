"""The embedded log's file as a log that is only read, beside its owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from muster_bus.backends import sqlite_follow
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_follow import FileReader, FollowedFile
from muster_bus.clock import SystemClock
from muster_bus.errors import LogClosed, LogUnavailable, OffsetGone
from muster_bus.log import OutRecord, Record
from muster_bus.settings import LogSettings

MANY = 5_000


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    settings = LogSettings(partitions=2, sqlite_path=tmp_path / "log.db", sqlite_compaction_min_records=1)
    log = SqliteLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    yield log
    await log.close()


@pytest.fixture
async def file(log: SqliteLog) -> AsyncIterator[FollowedFile]:
    file = FollowedFile(log.path)
    await file.start()
    yield file
    await file.close()


async def append(log: SqliteLog, topic: str, values: range) -> None:
    writer = await log.writer("test")
    done = [writer.append(OutRecord(topic, 1, b"%d" % n, b"%d" % n)) for n in values]
    for one in done:
        await one
    await writer.close()


async def read_all(reader: FileReader, most: int) -> list[Record]:
    found: list[Record] = []
    while records := await reader.read(most, 0.0):
        assert len(records) <= most
        assert reader.position >= records[-1].offset + 1
        found += records
    return found


async def test_it_reads_what_the_owner_reads_in_any_portions(log: SqliteLog, file: FollowedFile) -> None:
    topic = log.settings.topics().state
    await append(log, topic, range(MANY))
    reader = await file.reader(topic, 1)
    assert (await reader.first_offset(), await reader.end_offset()) == (0, MANY)
    assert await reader.read(7, 0.0) == await (await log.reader(topic, 1)).read(7, 0.0)
    assert reader.position == 7
    assert [record.offset for record in await read_all(reader, 999)] == list(range(7, MANY))
    reader.seek(10)
    assert [record.offset for record in await reader.read(2, 0.0)] == [10, 11]
    assert await read_all(await file.reader(topic, 0), 10) == []
    assert await file.healthy()


async def test_who_waits_is_woken_by_what_is_written(log: SqliteLog, file: FollowedFile) -> None:
    topic = log.settings.topics().state
    reader = await file.reader(topic, 1)
    waiting = asyncio.create_task(reader.read(10, 60.0))
    await append(log, topic, range(1))
    assert [record.value for record in await asyncio.wait_for(waiting, 20)] == [b"0"]
    assert await reader.read(10, 0.001) == []


async def test_a_look_has_new_records_read_in_the_next_turn(
    log: SqliteLog, file: FollowedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_follow, "_LOOK_S", 3_600.0)
    topic = log.settings.topics().state
    reader = await file.reader(topic, 1)
    await asyncio.sleep(0.05)  # the look that was under way is over
    for number in range(50):
        waiting = asyncio.create_task(reader.read(10, 60.0))
        await append(log, topic, range(number, number + 1))
        file.look()
        await asyncio.sleep(0)
        assert waiting.done(), number
        assert [record.value for record in waiting.result()] == [b"%d" % number]


async def test_compaction_and_its_holes_are_passed(log: SqliteLog, file: FollowedFile) -> None:
    topic = log.settings.topics().state
    reader = await file.reader(topic, 1)
    for _ in range(3):
        await append(log, topic, range(1_000))
    await log.maintain()
    found = await read_all(reader, 300)
    assert [record.value for record in found][-1_000:] == [b"%d" % n for n in range(1_000)]
    assert reader.position == 3_000 == await reader.end_offset()


async def test_what_it_cannot_do_is_refused(log: SqliteLog, file: FollowedFile, tmp_path: Path) -> None:
    topic = log.settings.topics().state
    with pytest.raises(LogUnavailable, match="only read here"):
        await file.writer("test")
    with pytest.raises(LogUnavailable, match="only read here"):
        await file.take_over("group", topic, 0)
    with pytest.raises(OffsetGone):
        await (await file.reader(topic, 1, 5)).read(1, 0.0)
    with pytest.raises(LogUnavailable, match="does not exist"):
        await FollowedFile(tmp_path / "none.db").start()
    reader = await file.reader(topic, 1)
    waiting = asyncio.create_task(reader.read(10, 60.0))
    await asyncio.sleep(0)
    await file.close()
    with pytest.raises(LogClosed):
        await asyncio.wait_for(waiting, 20)
    assert not await file.healthy()
