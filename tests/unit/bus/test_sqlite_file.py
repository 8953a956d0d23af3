"""Reading the embedded log's file beside its owner, and after it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_file_reader import LogFile
from muster_bus.clock import SystemClock
from muster_bus.errors import InvalidRecord, LogIncompatible, LogUnavailable, OffsetOutOfRange
from muster_bus.log import OutRecord, Record
from muster_bus.settings import LogSettings

RECORDS = 40_000  # more than one read returns


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    settings = LogSettings(partitions=2, sqlite_path=tmp_path / "log #1?.db", sqlite_compaction_min_records=1)
    log = SqliteLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    yield log
    await log.close()


async def append(log: SqliteLog, topic: str, values: range, key: bytes | None = None) -> None:
    writer = await log.writer("test")
    done = [writer.append(OutRecord(topic, 1, key or b"%d" % n, b"%d" % n, (("id", b"%d" % n),))) for n in values]
    for one in done:
        await one
    await writer.close()


def read_all(file: LogFile, topic: str, start: int = 0) -> list[Record]:
    found: list[Record] = []
    while True:
        records, start = file.read(topic, 1, start)
        if not records:
            return found
        found += records


async def test_it_reads_what_is_committed_beside_the_owner_and_what_comes_later(log: SqliteLog) -> None:
    topic = log.settings.topics().events
    await append(log, topic, range(RECORDS))
    with LogFile(log.path) as file:
        assert file.partitions(topic) == [0, 1]
        assert file.partitions("si.nothing.v1") == []
        assert file.bounds(topic, 0) == (0, 0)
        assert file.bounds(topic, 1) == (0, RECORDS)
        reader = await log.reader(topic, 1)
        theirs = list(await reader.read(RECORDS, 0))
        assert read_all(file, topic) == theirs
        assert [record.offset for record in read_all(file, topic, 1_234)] == list(range(1_234, RECORDS))
        assert file.read(topic, 1, RECORDS) == ([], RECORDS)
        await append(log, topic, range(RECORDS, RECORDS + 3))
        assert [record.value for record in read_all(file, topic, RECORDS)] == [
            b"%d" % n for n in range(RECORDS, RECORDS + 3)
        ]
        backwards = [record.offset for part in file.newest_first(topic, 1) for record in reversed(part)]
        assert backwards == list(range(RECORDS + 2, -1, -1))


async def test_it_reads_a_file_that_no_process_has_open(log: SqliteLog) -> None:
    topic = log.settings.topics().events
    await append(log, topic, range(10))
    await log.close()
    before = log.path.read_bytes()
    with LogFile(log.path) as file:
        assert [record.value for record in read_all(file, topic)] == [b"%d" % n for n in range(10)]
    assert log.path.read_bytes() == before
    again = SqliteLog(log.settings.topics().specs(), log.settings, SystemClock())  # and it is whole for its owner
    await again.start()
    assert await (await again.reader(topic, 1)).end_offset() == 10
    await again.close()


async def test_holes_that_compaction_left_are_passed_over(log: SqliteLog) -> None:
    topic = log.settings.topics().state
    await append(log, topic, range(3_000), key=b"one")
    await append(log, topic, range(3_000, 3_010), key=b"two")
    await log.maintain()
    with LogFile(log.path) as file:
        found = {record.key: record.value for record in read_all(file, topic, 17)}
        assert len(read_all(file, topic)) < 3_010, "compaction removed some"
    assert found == {b"one": b"2999", b"two": b"3009"}


async def test_offsets_that_are_not_there(log: SqliteLog) -> None:
    topic = log.settings.topics().events
    await append(log, topic, range(10))
    with LogFile(log.path) as file:
        with pytest.raises(OffsetOutOfRange, match="has no offset 11"):
            file.read(topic, 1, 11)
        with pytest.raises(InvalidRecord, match=r"has no si.events.v1\[7\]"):
            file.bounds(topic, 7)


def test_a_file_that_is_no_log_is_refused_and_unchanged(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match="does not exist"):
        LogFile(tmp_path / "log.db")
    assert list(tmp_path.iterdir()) == [], "nothing is made"
    text = tmp_path / "text.db"
    text.write_text("no database at all, but long enough to be read as the header of one " * 10)
    with pytest.raises(LogUnavailable, match="cannot be read"):
        LogFile(text)
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE a (b)")
    with pytest.raises(LogIncompatible, match="is not a log of Muster"):
        LogFile(other)
