"""What an embedded log that has lived for hours does on its event loop, and in its write-ahead log."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.tail import PartitionTail
from muster_bus.clock import SystemClock
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings

TAIL_BYTES = 1 << 20


async def opened(tmp_path: Path) -> SqliteLog:
    settings = LogSettings(
        backend="sqlite", partitions=1, sqlite_path=tmp_path / "log.db", sqlite_tail_bytes=TAIL_BYTES
    )
    log = SqliteLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    return log


def drops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each drop frees, from now on."""
    found: list[int] = []
    drop = PartitionTail.drop_oldest

    def noted(tail: PartitionTail) -> int:
        before = tail.base
        size = drop(tail)
        found.append(tail.base - before)
        return size

    monkeypatch.setattr(PartitionTail, "drop_oldest", noted)
    return found


async def test_each_append_to_a_full_tail_frees_about_as_many_records_as_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await opened(tmp_path)
    topics = log.settings.topics()
    reader = await log.reader(topics.responses, 0, 0)
    owner = await log.take_over("group", topics.requests, 0)
    many = [OutRecord(topics.responses, 0, b"k", b"v" * 100)] * 5_000
    await owner.commit(many, 1)
    freed, came = drops(monkeypatch), 0
    for number, count in enumerate([1, 1, 1, 40, 40, 1_000, 1_000, 1, 40, 3_000, 1], 2):
        freed.clear()
        await owner.commit(many[:count], number)
        came += count
        assert sum(freed) <= 2 * count + 3 * 256, f"{count} came"
        assert max(freed, default=0) <= 256
    place = log.partition(topics.responses, 0)
    kept = place.tail.end - place.tail.base
    assert kept * 350 <= TAIL_BYTES, "the tail is not over its limit"
    assert kept * 350 > TAIL_BYTES / 2
    assert reader.cached_end() == 5_000 + came
    await log.close()


async def test_what_nobody_reads_here_is_not_kept_in_memory_and_a_later_reader_has_it_all(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    topics = log.settings.topics()
    owner = await log.take_over("group", topics.requests, 0)
    place = log.partition(topics.state, 0)
    await owner.commit([OutRecord(topics.state, 0, b"%d" % n, b"v") for n in range(100)], 1)
    assert (place.tail.base, place.tail.end) == (100, 100)
    reader = await log.reader(topics.state, 0)
    await owner.commit([OutRecord(topics.state, 0, b"%d" % n, b"v") for n in range(100, 150)], 2)
    assert (place.tail.base, place.tail.end) == (100, 150)
    found: list[bytes | None] = []
    while len(found) < 150:
        found += [record.key for record in await reader.read(40, 5.0)]
    assert found == [b"%d" % n for n in range(150)]
    await reader.close()
    await reader.close()  # (twice is once)
    await owner.commit([OutRecord(topics.state, 0, b"150", b"v")], 3)
    assert place.tail.base == place.tail.end == 151
    again = await log.reader(topics.state, 0, 149)
    assert [record.key for record in await again.read(10, 5.0)] == [b"149", b"150"]
    await log.close()


async def test_a_full_write_ahead_log_begins_anew_in_the_room_that_its_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2 << 20
    for name, value in {"_WAL_BYTES": 1 << 19, "_WAL_LIMIT_BYTES": limit, "_READERS_PAUSE_S": 0.0}.items():
        monkeypatch.setattr(f"muster_bus.backends.sqlite_commits.{name}", value)
    log = await opened(tmp_path)
    # (Maintenance does not help: as on a machine on which it falls behind.)
    monkeypatch.setattr(log._maintenance, "_checkpoint_concurrently", log._committer.checkpoint_requested.clear)
    topics, wal = log.settings.topics(), tmp_path / "log.db-wal"
    owner = await log.take_over("group", topics.requests, 0)
    sizes: list[int] = []

    async def commit(count: int) -> None:
        for _ in range(count):
            await owner.commit([OutRecord(topics.events, 0, b"k", os.urandom(20_000))], len(sizes))
            sizes.append(wal.stat().st_size)

    with contextlib.closing(sqlite3.connect(log.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")  # while it reads, commits go on at the log's end
        reader.execute("SELECT count(*) FROM topics").fetchone()
        while not sizes or sizes[-1] < 1.5 * limit:
            await commit(1)
        reader.execute("ROLLBACK")
        await commit(600)
    assert sizes == sorted(sizes), "the file keeps its room: it is not cut and grown again"
    assert sizes[-1] < 3 * limit, "12 MB more did not make it larger: it began anew"
    await log.close()
