"""The owner of a partition of the embedded log reads appends before they are durable: one commit for both."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from contract.test_log_sqlite import always_in_the_loop
from muster_bus.backends import sqlite
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_handles import EarlyReader, SqliteOwner
from muster_bus.clock import SystemClock
from muster_bus.errors import Fenced, LogUnavailable, TransactionFailed
from muster_bus.log import OutRecord, Record
from muster_bus.partition_worker import PartitionWorker
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from unit.bus.test_partition_worker import FAST
from unit.bus.toy import CountingMachine, FaultyLog, expected_responses, read_all
from waiting import eventually

FOR_EVER_S = 600.0


@pytest.fixture(params=[0, 1], ids=["by-the-thread", "by-the-loop"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> LogSettings:
    return LogSettings(
        backend="sqlite",
        partitions=1,
        sqlite_path=tmp_path / "log.db",
        sqlite_loop_share=request.param,
        sqlite_maintenance_interval_s=600.0,
    )


async def _open(settings: LogSettings) -> SqliteLog:
    log = SqliteLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    if settings.sqlite_loop_share:
        always_in_the_loop(log)
    return log


@pytest.fixture
async def log(settings: LogSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteLog]:
    monkeypatch.setattr(sqlite, "_STAGED_S", FOR_EVER_S)
    log = await _open(settings)
    yield log
    await log.close()


@pytest.fixture
def topics(settings: LogSettings) -> Topics:
    return settings.topics()


class Staged:
    """An append that the owner has read before it is durable."""

    def __init__(self, owner: SqliteOwner, reader: EarlyReader, append: asyncio.Future[int], got: Sequence[Record]):
        self.owner, self.reader, self.append, self.got = owner, reader, append, got

    @classmethod
    async def on(cls, log: SqliteLog, value: bytes = b"v") -> Staged:
        topics = log.settings.topics()
        owner = await log.take_over("group", topics.requests, 0)
        reader = owner.early_reader()
        reader.seek(await reader.end_offset())
        writer = await log.writer("test")
        reading = asyncio.create_task(reader.read(10, 60))
        await asyncio.sleep(0)  # the reader waits
        append = asyncio.ensure_future(writer.append(OutRecord(topics.requests, 0, b"k", value)))
        got = await reading
        assert [record.value for record in got] == [value]
        assert not append.done()
        return cls(owner, reader, append, got)

    async def commit(self, topic: str) -> None:
        await self.owner.commit([OutRecord(topic, 0, b"k", b"answer")], self.got[-1].offset + 1)


def _fail_commits(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(log._committer, "_execute", fail)


async def test_only_the_owner_reads_what_is_staged_and_one_commit_takes_both(log: SqliteLog, topics: Topics) -> None:
    statements: list[str] = []
    log._writing.set_trace_callback(statements.append)

    async def inserts() -> int:
        staged = await Staged.on(log)
        other = await log.reader(topics.requests, 0)
        end = await other.end_offset()
        assert await staged.reader.end_offset() == end + 1 == staged.reader.position == staged.got[0].offset + 1
        other.seek(end)
        assert not await other.read(10, 0)
        statements.clear()
        await staged.commit(topics.responses)
        assert await staged.append == end
        assert await staged.owner.committed() == end + 1 == await other.end_offset() == await staged.reader.end_offset()
        assert [record.value for record in await other.read(10, 60)] == [b"v"]
        return len({each for each in statements if each.startswith("INSERT INTO blocks")})  # a trigger repeats its text

    assert [await inserts() for _ in range(3)] == [1, 1, 1]
    answers = await read_all(log, topics.responses)
    assert {record.value for record in answers} == {b"answer"}


async def test_without_an_outcome_an_append_is_durable_after_a_moment(
    log: SqliteLog, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_STAGED_S", 0.01)
    staged = await Staged.on(log)
    assert await asyncio.wait_for(staged.append, 60) == 0
    assert [record.value for record in await read_all(log, topics.requests)] == [b"v"]
    await staged.commit(topics.responses)
    assert await staged.owner.committed() == 1


async def test_a_second_append_does_not_wait(log: SqliteLog, topics: Topics) -> None:
    staged = await Staged.on(log)
    writer = await log.writer("second")
    assert await writer.append(OutRecord(topics.requests, 0, b"k", b"2")) == 1
    assert await staged.append == 0
    assert [record.value for record in await staged.reader.read(10, 60)] == [b"2"]


async def test_appends_of_one_moment_are_staged_together(log: SqliteLog, topics: Topics) -> None:
    statements: list[str] = []
    owner = await log.take_over("group", topics.requests, 0)
    reader = owner.early_reader()
    reading = asyncio.create_task(reader.read(10, 60))
    await asyncio.sleep(0)  # the reader waits
    writers = [await log.writer(name) for name in ("one", "two", "one again")]
    log._writing.set_trace_callback(statements.append)
    values = [b"%d" % number for number in range(6)]
    appends = [
        asyncio.ensure_future(writers[number % 3].append(OutRecord(topics.requests, 0, b"k", value)))
        for number, value in enumerate(values)
    ]
    got = await reading
    assert [record.value for record in got] == values
    assert not any(append.done() for append in appends)
    assert not [each for each in statements if each.startswith("INSERT INTO blocks")]
    await owner.commit([OutRecord(topics.responses, 0, b"k", b"answer")], got[-1].offset + 1)
    assert len({each for each in statements if each.startswith("INSERT INTO blocks")}) == 1
    assert await asyncio.gather(*appends) == list(range(6))
    assert [record.value for record in await read_all(log, topics.requests)] == values


async def _let_go_of_the_file(log: SqliteLog) -> None:
    """Waits for the writer's thread, which tells that its work is done a moment before it lets go of the file."""
    await eventually(lambda: not log._committer._using.locked())


async def test_a_small_commit_is_done_at_once_by_the_loop(
    log: SqliteLog, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, in_the_loop = OutRecord(topics.responses, 0, b"k", b"answer"), bool(log.settings.sqlite_loop_share)
    owner = await log.take_over("group", topics.requests, 0)
    await _let_go_of_the_file(log)
    waiting = owner.commit_at_once([answer], 1)
    assert (waiting is None) is in_the_loop
    if waiting is not None:
        await waiting
    assert await owner.committed() == 1
    await _let_go_of_the_file(log)
    _fail_commits(log, monkeypatch)

    async def commit() -> None:
        waiting = owner.commit_at_once([answer], 2)
        assert waiting is not None
        assert not in_the_loop
        await waiting

    with pytest.raises(TransactionFailed):
        await commit()
    assert [record.value for record in await read_all(log, topics.responses)] == [b"answer"]


async def test_a_failed_commit_loses_both_and_ends_the_owner(
    log: SqliteLog, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = await Staged.on(log)
    with monkeypatch.context() as failing:
        _fail_commits(log, failing)
        with pytest.raises(TransactionFailed):
            await staged.commit(topics.responses)
        with pytest.raises(LogUnavailable):
            await staged.append
    for topic in (topics.requests, topics.responses):
        assert not await read_all(log, topic)
    following = await Staged.on(log, b"other")
    assert following.got[0].offset == 0
    await following.commit(topics.responses)
    assert await following.append == 0


async def test_an_owner_that_has_read_what_is_lost_commits_nothing_more(
    log: SqliteLog, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = await Staged.on(log)
    with monkeypatch.context() as failing:
        _fail_commits(log, failing)
        log._release()  # as after a moment without an outcome
        with pytest.raises(LogUnavailable):
            await staged.append
    writer = await log.writer("second")
    assert await writer.append(OutRecord(topics.requests, 0, b"k", b"another")) == 0  # the lost one's offset
    with pytest.raises(LogUnavailable, match="has read what was not written"):
        await staged.reader.read(10, 0)
    with pytest.raises(TransactionFailed, match="has read what was not written"):
        await staged.commit(topics.responses)
    assert not await read_all(log, topics.responses)
    assert await (await log.take_over("group", topics.requests, 0)).committed() is None


async def test_a_take_over_finds_what_was_staged(log: SqliteLog, topics: Topics) -> None:
    staged = await Staged.on(log)
    following = await log.take_over("group", topics.requests, 0)
    with pytest.raises(Fenced):
        await staged.commit(topics.responses)
    assert await staged.append == 0
    assert await following.committed() is None
    assert [record.value for record in await following.early_reader().read(10, 0)] == [b"v"]


async def test_another_owner_does_not_read_what_is_staged_for_the_one_before(log: SqliteLog, topics: Topics) -> None:
    """Only the mark of the owner that has read a lost append ends it."""
    fenced = await log.take_over("group", topics.requests, 0)
    following = (await log.take_over("group", topics.requests, 0)).early_reader()
    reader = fenced.early_reader()
    reading = asyncio.create_task(reader.read(10, 60))
    await asyncio.sleep(0)
    writer = await log.writer("test")
    append = asyncio.ensure_future(writer.append(OutRecord(topics.requests, 0, b"k", b"v")))
    assert [record.value for record in await reading] == [b"v"]
    assert not await following.read(10, 0)
    assert following.cached_end() == 0
    log._release()
    assert await append == 0
    assert [record.value for record in await following.read(10, 60)] == [b"v"]


async def test_closing_writes_what_is_staged(log: SqliteLog, settings: LogSettings, topics: Topics) -> None:
    staged = await Staged.on(log)
    await log.close()
    assert await staged.append == 0
    again = await _open(settings)
    assert [record.value for record in await read_all(again, topics.requests)] == [b"v"]
    await again.close()


async def test_a_worker_that_asks_others_gets_no_staged_input(log: SqliteLog, topics: Topics) -> None:
    async def consult(_machine: object, _records: Sequence[Record]) -> None: ...

    owner = await log.take_over("group", topics.requests, 0)
    for asks, early in ((None, True), (consult, False)):
        worker = PartitionWorker(log, topics, "group", 0, lambda: CountingMachine(topics), SystemClock(), consult=asks)
        assert isinstance(await worker._reader_of(owner), EarlyReader) is early


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_fails_each_durable_input_is_answered_once(
    log: SqliteLog, topics: Topics, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Inputs come one by one. Commits fail at the disk, before the log and after it; a lost input has no answer."""
    monkeypatch.setattr(sqlite, "_STAGED_S", 0.002)
    chance = random.Random(seed)
    execute: Callable[..., None] = log._committer._execute

    def fail_sometimes(*arguments: object) -> None:
        if chance.random() < 0.1:
            raise sqlite3.OperationalError("disk I/O error")
        execute(*arguments)

    faulty = FaultyLog(log, lambda: chance.choices(["", "before", "after"], [12, 1, 1])[0])
    worker = PartitionWorker(faulty, topics, "group", 0, lambda: CountingMachine(topics), SystemClock(), FAST)
    running = asyncio.create_task(worker.run())
    writer = await log.writer("test")
    durable: list[tuple[bytes, bytes]] = []
    with monkeypatch.context() as failing:
        failing.setattr(log._committer, "_execute", fail_sometimes)
        for number in range(120):
            key = b"key-%d" % (number % 5)
            try:
                await writer.append(OutRecord(topics.requests, 0, key, b"%d" % number))
            except LogUnavailable:
                continue
            durable.append((key, b"%d" % number))
            if chance.random() < 0.7:  # alone, or while the worker is at an earlier one
                await eventually(lambda: worker.committed >= len(durable))
    await eventually(lambda: worker.committed >= len(durable))
    worker.stop()
    await running
    assert [record.value for record in await read_all(log, topics.requests)] == [value for _, value in durable]
    assert [record.value for record in await read_all(log, topics.responses)] == expected_responses(durable)
    assert len(durable) < 120


async def test_a_writer_that_closes_waits_for_all_though_nobody_waits_for_the_last(
    log: SqliteLog, topics: Topics
) -> None:
    writer = await log.writer("test")
    appends = [
        asyncio.ensure_future(writer.append(OutRecord(topics.requests, 0, b"k", b"%d" % each))) for each in (1, 2)
    ]
    appends[-1].cancel()
    await writer.close()
    assert appends[0].done()
    assert not appends[0].cancelled()
