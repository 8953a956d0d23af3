"""The embedded log, followed from a child process: single reads, notices, and the file's content at a notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract.test_log_followed import Followed
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_file_reader import LogFile
from muster_bus.clock import SystemClock
from muster_bus.errors import Fenced, InvalidRecord, LogClosed, TransactionFailed, TransactionTimeout
from muster_bus.log import Log, LogReader, OutRecord, Record
from muster_bus.pipe import log_server
from muster_bus.pipe.child_log import ChildLog
from muster_bus.pipe.log_server import LogServer
from muster_bus.pipe.messages import (
    Append,
    AppendResults,
    EndsChanged,
    FromLog,
    PipeRecord,
    SyncDone,
    SyncRequest,
    error_of,
    failure_of,
)
from muster_bus.settings import LogSettings

WITHIN_S = 60.0


@pytest.fixture
async def owned(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    settings = LogSettings(partitions=2, sqlite_path=tmp_path / "log.db", sqlite_compaction_min_records=1)
    log = SqliteLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    yield log
    await log.close()


@pytest.fixture
async def followed(owned: SqliteLog) -> AsyncIterator[ChildLog]:
    both = Followed(owned)
    yield await both.start()
    await both.stop()


async def append(log: Log, topic: str, values: range) -> None:
    writer = await log.writer("test")
    for done in [writer.append(OutRecord(topic, 1, b"%d" % n, b"%d" % n)) for n in values]:
        await done
    await writer.close()


async def read_to(reader: LogReader, end: int, most: int = 300) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(WITHIN_S):
        while reader.position < end:
            records = await reader.read(most, 1.0)
            assert len(records) <= most
            found += records
    return found


async def test_holes_of_compaction_are_passed_by_slow_and_by_current_readers(
    owned: SqliteLog, followed: ChildLog
) -> None:
    topic = owned.settings.topics().state
    behind, ahead = await followed.reader(topic, 1), await followed.reader(topic, 1)
    for turn in range(3):
        await append(owned, topic, range(1_000))
        if turn == 1:
            await read_to(ahead, 2_000)
    # The records after the chain are compacted before anybody has read them.
    await owned.maintain()
    for reader in (behind, ahead):
        found = await read_to(reader, 3_000)
        assert [record.value for record in found][-1_000:] == [b"%d" % n for n in range(1_000)]
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        assert reader.position == reader.cached_end() == 3_000 == await reader.end_offset()
    other = Followed(owned)  # with no chain yet
    found = await read_to(await (await other.start()).reader(topic, 1), 3_000)
    await other.stop()
    assert len(found) < 3_000, "it was compacted"
    assert [record.value for record in found][-1_000:] == [b"%d" % n for n in range(1_000)]


async def test_a_look_at_the_file_finds_what_the_pipe_has_not_said(owned: SqliteLog) -> None:
    topic = owned.settings.topics().state
    alone = ChildLog(owned.settings, lambda _message: None)  # no parent answers
    alone.refresh()  # before the start it knows nothing
    await alone.start()
    reader, unread = await alone.reader(topic, 1), owned.settings.topics().events
    await append(owned, topic, range(10))
    await append(owned, unread, range(10))
    assert reader.cached_end() == 0
    alone.refresh()
    assert reader.cached_end() == 10
    assert len(await read_to(reader, 10)) == 10
    asked = []
    real = LogFile.bounds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogFile, "bounds", lambda *given: (asked.append(given[1:]), real(*given))[1])
        alone.refresh()
        assert asked == [], "nothing was committed meanwhile"
        await append(owned, topic, range(1))
        alone.refresh()
        assert asked == [(topic, 1)], "of the partitions that are read"
    assert reader.cached_end() == 11
    await alone.close()
    alone.refresh()


async def test_a_block_that_many_follow_is_read_once(
    owned: SqliteLog, followed: ChildLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = owned.settings.topics().events
    reads = []
    real = LogFile.blocks_from

    def counted(self: LogFile, topic: str, partition: int, start: int):  # type: ignore[no-untyped-def]
        reads.append(start)
        return real(self, topic, partition, start)

    monkeypatch.setattr(LogFile, "blocks_from", counted)
    readers = [await followed.reader(topic, 1) for _ in range(3)]
    for turn in range(5):
        await append(owned, topic, range(turn * 100, turn * 100 + 100))
        found = await asyncio.gather(*(read_to(reader, turn * 100 + 100) for reader in readers))
        assert found[0] == found[1] == found[2]
        assert [record.offset for record in found[0]] == list(range(turn * 100, turn * 100 + 100))
    assert len(reads) <= 10, "the three followers share reads"
    # Another follower reads the same from the beginning and disturbs no other.
    late = await followed.reader(topic, 1, 0)
    assert len(await read_to(late, 500)) == 500
    await append(owned, topic, range(500, 510))
    for reader in (late, *readers):
        assert [record.offset for record in await read_to(reader, 510)] == list(range(500, 510))


async def test_a_slow_child_gets_the_newest_movement_once_and_before_any_answer(owned: SqliteLog) -> None:
    topic = owned.settings.topics().events
    sent: list[FromLog] = []
    defects: list[BaseException] = []
    unsent_bytes = 1 << 30
    server = LogServer(owned, await owned.writer("child"), sent.append, lambda: unsent_bytes, defects.append)
    for number in range(50):
        await append(owned, topic, range(number, number + 1))
    assert sent == []
    # 1. an answer brings the records that are visible then, also without a listener
    server.handle(Append((PipeRecord(7, topic, 1, b"k", b"v"),)))
    async with asyncio.timeout(WITHIN_S):
        while len(sent) < 2:  # noqa: ASYNC110 - a list of a test
            await asyncio.sleep(0)
        moved, settled = sent
        assert isinstance(moved, EndsChanged)
        assert isinstance(settled, AppendResults)
        assert (moved.places[0][1:], settled.durable) == ((0, 51), ((7, 50),))
        # 2. a listener gets the newest records
        await append(owned, topic, range(20))
        assert len(sent) == 2
        unsent_bytes = 0
        while len(sent) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
    last = sent[2]
    assert isinstance(last, EndsChanged)
    assert last.places[0][1:] == (0, 71)
    await server.close()
    await append(owned, topic, range(1))
    await asyncio.sleep(0.05)
    assert (len(sent), defects) == (3, []), "a closed follower gets no notices"


async def test_frames_have_a_distance_and_a_question_gets_the_rest_before(
    owned: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_server, "_PAUSE_S", 600.0)
    topic = owned.settings.topics().events
    both = Followed(owned)
    log = await both.start()
    reader = await log.reader(topic, 1)
    await append(owned, topic, range(1))
    assert len(await read_to(reader, 1)) == 1, "the first frame is sent at once"
    for known in (1, 6, 11):
        for number in range(known, known + 5):
            await append(owned, topic, range(number, number + 1))
            assert reader.cached_end() == known
        await both.server.wait_synced()
        assert reader.cached_end() == known + 5
        assert len(await read_to(reader, known + 5)) == 5
    await both.stop()


async def test_a_question_does_not_wait_for_ever_for_a_busy_child(
    owned: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_server, "_PAUSE_S", 600.0)
    monkeypatch.setattr(log_server, "_SYNC_TIMEOUT_S", 0.01)
    topic = owned.settings.topics().events
    sent: list[FromLog] = []
    server = LogServer(owned, await owned.writer("child"), sent.append, lambda: 0, lambda _: None)
    await server.wait_synced()
    assert sent == []
    await append(owned, topic, range(1))
    async with asyncio.timeout(WITHIN_S):
        await server.wait_synced()  # the child says nothing
        await server.wait_synced()
        kinds = [type(message) for message in sent]
        assert kinds == [EndsChanged, SyncRequest, SyncRequest]
        monkeypatch.setattr(log_server, "_SYNC_TIMEOUT_S", 600.0)
        asking = [asyncio.create_task(server.wait_synced()) for _ in range(3)]
        await asyncio.sleep(0)
        question = sent[-1]
        assert isinstance(question, SyncRequest)
        assert len(sent) == 4, "one question for all who wait"
        server.handle(SyncDone(question.number))
        await asyncio.gather(*asking)
        await server.wait_synced()
    assert len(sent) == 4, "the child knows all"
    await server.close()


async def test_a_child_that_is_gone_owns_nothing(owned: SqliteLog) -> None:
    topics = owned.settings.topics()
    first = Followed(owned)
    log = await first.start()
    owner = await log.take_over("derive", topics.events, 0)
    await owner.commit([OutRecord(topics.usage, 0, b"k", b"v")], 5)
    second = Followed(owned)  # while the first one's last messages are on their way
    other = await (await second.start()).take_over("derive", topics.events, 0)
    with pytest.raises(Fenced, match="taken over"):
        await owner.commit([OutRecord(topics.usage, 0, b"k", b"again")], 6)
    assert await other.committed() == 5
    await first.stop()
    with pytest.raises(LogClosed):
        await owner.committed()
    await other.commit([], 7)
    assert await other.committed() == 7
    await second.stop()


@pytest.mark.parametrize(
    "error", [Fenced("taken"), TransactionFailed("away"), TransactionTimeout("late"), InvalidRecord("no topic")]
)
def test_an_error_of_an_owner_is_the_same_at_the_other_end(error: Exception) -> None:
    there = error_of(failure_of(error))
    assert (type(there), str(there)) == (type(error), str(error))


async def test_both_ends_of_a_log_have_its_identity_and_another_log_has_another(
    owned: SqliteLog, followed: ChildLog, tmp_path: Path
) -> None:
    assert await followed.identity() == await owned.identity()
    settings = owned.settings.model_copy(update={"sqlite_path": tmp_path / "another.db"})
    other = SqliteLog(settings.topics().specs(), settings, SystemClock())
    await other.start()
    try:
        assert await other.identity() != await owned.identity()
    finally:
        await other.close()
