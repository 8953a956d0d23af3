"""A damaged block of the embedded log has one error with its place, whoever reads it. Readers can go on after it."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sqlite3
from pathlib import Path

import pytest
from contract.test_log_followed import Followed
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_file_reader import LogFile
from muster_bus.clock import SystemClock
from muster_bus.errors import LogDamaged
from muster_bus.log import Log, OutRecord
from muster_bus.settings import LogSettings

BLOCKS, PER_BLOCK = 12, 5
DAMAGED = 7


async def _opened(path: Path) -> SqliteLog:
    settings = LogSettings(partitions=1, sqlite_path=path, sqlite_tail_bytes=0)
    log = SqliteLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    return log


async def _written(path: Path) -> str:
    """A log of some blocks. Returns their topic."""
    log = await _opened(path)
    topic = log.settings.topics().events
    owner = await log.take_over("group", log.settings.topics().requests, 0)
    for number in range(BLOCKS):
        values = range(number * PER_BLOCK, (number + 1) * PER_BLOCK)
        await owner.commit([OutRecord(topic, 0, b"k", b"%d" % value) for value in values], number)
    await log.close()
    return topic


def _change(path: Path, topic: str, statement: str) -> None:
    """Changes the block DAMAGED of the topic in the file."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (place,) = connection.execute("SELECT id FROM partitions WHERE topic = ?", (topic,)).fetchone()
        row = place << 40 | DAMAGED * PER_BLOCK
        assert connection.execute(statement, (row,)).rowcount == 1


CHANGES = {
    "body": "UPDATE blocks SET body = CAST(substr(body, 1, 20) || x'00' || substr(body, 22) AS BLOB) WHERE id = ?",
    "no blob": "UPDATE blocks SET body = 17 WHERE id = ?",
    "empty": "UPDATE blocks SET body = x'' WHERE id = ?",
    "timestamp": "UPDATE blocks SET timestamp_ms = timestamp_ms - 1 WHERE id = ?",
    "position": "UPDATE blocks SET position = position + 1 WHERE id = ?",
    "hole": "DELETE FROM blocks WHERE id = ?",
    "codec": "UPDATE blocks SET codec = 1 - codec WHERE id = ?",
}


async def _read(log: Log, topic: str) -> tuple[list[int], list[LogDamaged]]:
    """What can be read, and the errors between."""
    reader = await log.reader(topic, 0)
    values, errors = [], []
    async with asyncio.timeout(60):
        while reader.position < BLOCKS * PER_BLOCK:
            try:
                values += [int(record.value or b"") for record in await reader.read(1_000, 1.0)]
            except LogDamaged as error:
                errors.append(error)
                reader.seek(error.next_offset)
    return values, errors


def _assert_named(topic: str, values: list[int], errors: list[LogDamaged]) -> None:
    first = DAMAGED * PER_BLOCK
    assert values == [*range(first), *range(first + PER_BLOCK, BLOCKS * PER_BLOCK)]
    (error,) = errors
    assert (error.topic, error.partition, error.first_offset, error.next_offset) == (topic, 0, first, first + PER_BLOCK)
    assert f"{topic}[0] from {first} to {first + PER_BLOCK}" in str(error)
    assert "muster repair" in str(error)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_each_reader_names_the_block_and_reads_the_others(tmp_path: Path, change: str) -> None:
    topic = await _written(tmp_path / "log.db")
    _change(tmp_path / "log.db", topic, change)
    log = await _opened(tmp_path / "log.db")
    try:
        _assert_named(topic, *await _read(log, topic))
        followed = Followed(log)
        _assert_named(topic, *await _read(await followed.start(), topic))
        await followed.stop()
    finally:
        await log.close()
    with LogFile(tmp_path / "log.db") as file:
        records, after = file.read(topic, 0, 0)
        assert [record.offset for record in records] == list(range(DAMAGED * PER_BLOCK)) == list(range(after))
        with pytest.raises(LogDamaged) as caught:
            file.read(topic, 0, after)
    assert caught.value.first_offset == DAMAGED * PER_BLOCK


def test_the_error_passes_from_process_to_process() -> None:
    error = LogDamaged("si.events.v1", 3, 10, 20, "its bytes changed")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.topic, again.partition, again.first_offset, again.next_offset) == ("si.events.v1", 3, 10, 20)
