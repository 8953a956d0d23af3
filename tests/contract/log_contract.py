"""The contract of every log. The test modules of the backends inherit these tests and open their own log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import pytest
from muster_bus.errors import Fenced, InvalidRecord, LogClosed, OffsetOutOfRange, RecordTooLarge, TopicMismatch
from muster_bus.log import Log, LogReader, OutRecord, Record, end_of
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics

DEADLINE_S = 60  # for what must happen at some time; nothing here measures speed
QUIET_S = 0.15  # long enough to see what must not happen, if it does


class Bench(Protocol):
    """The operations of a backend's tests on their log."""

    settings: LogSettings

    async def open(self, settings: LogSettings | None = None) -> Log:
        """Starts a log on the same store. The earlier one was closed, or is left open if the backend allows that."""
        ...

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Deletes the records before ``offset``, as retention does."""
        ...


async def drain(reader: LogReader, count: int) -> list[Record]:
    """Reads exactly ``count`` records."""
    records: list[Record] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(records) < count:
            records += await reader.read(count - len(records), 1.0)
    return records


async def all_of(log: Log, topic: str, partition: int = 0, *, at_least: int = 0) -> list[Record]:
    """All records that are visible now.

    :param at_least: so many were committed: Kafka says so a moment before everybody sees them.
    """
    reader = await log.reader(topic, partition)
    end = await reader.end_offset()
    records: list[Record] = []
    async with asyncio.timeout(DEADLINE_S):
        while reader.position < end or len(records) < at_least:
            records += await reader.read(10_000, 1.0)
    await reader.close()
    return records


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


class LogContract:
    """Needs a fixture ``bench``."""

    @pytest.fixture
    def topics(self, bench: Bench) -> Topics:
        return bench.settings.topics()

    @pytest.fixture
    async def bus(self, bench: Bench) -> Log:
        return await bench.open()

    # ---- single records -------------------------------------------------------------------------------------------

    async def test_records_come_back_as_written(self, bus: Log, topics: Topics) -> None:
        written = [
            OutRecord(topics.events, 1, b"key", b"value", (("id", b"17"), ("rm", b""), ("id", b"\x00\xff"))),
            OutRecord(topics.events, 1, None, b""),
            OutRecord(topics.events, 1, b"", bytes(range(256)) * 300),
            OutRecord(topics.events, 1, "ключ".encode(), b"x", (("näme", b"1"),)),
        ]
        writer = await bus.writer("test")
        offsets = [await writer.append(record) for record in written]
        assert offsets == sorted(set(offsets))
        read = await drain(await bus.reader(topics.events, 1), 4)
        assert [OutRecord(r.topic, r.partition, r.key, r.value, r.headers) for r in read] == written
        assert [record.offset for record in read] == offsets
        assert all(record.timestamp_ms > 1_600_000_000_000 for record in read)

    async def test_a_tombstone_comes_back_as_one(self, bus: Log, topics: Topics) -> None:
        writer = await bus.writer("test")
        await writer.append(OutRecord(topics.state, 0, b"key", b"value"))
        await writer.append(OutRecord(topics.state, 0, b"key", None))
        assert (await drain(await bus.reader(topics.state, 0), 2))[1].value is None

    async def test_appends_keep_their_order_without_being_awaited(self, bus: Log, topics: Topics) -> None:
        writer = await bus.writer("test")
        waiting = []
        for number in range(3000):
            await writer.wait_writable()
            waiting.append(writer.append(OutRecord(topics.requests, number % 2, b"k", b"%d" % number)))
        offsets = await asyncio.gather(*waiting)
        for partition in (0, 1):
            mine = offsets[partition::2]
            assert mine == sorted(set(mine))
            read = await all_of(bus, topics.requests, partition)
            assert values(read) == [b"%d" % number for number in range(partition, 3000, 2)]
            assert [record.offset for record in read] == mine

    async def test_many_writers_lose_and_double_nothing(self, bus: Log, topics: Topics) -> None:
        async def write(name: str) -> None:
            writer = await bus.writer(name)
            for number in range(100):
                await writer.wait_writable()
                await writer.append(OutRecord(topics.requests, 0, name.encode(), b"%d" % number))

        await asyncio.gather(*(write(f"writer-{number}") for number in range(4)))
        read = await all_of(bus, topics.requests)
        assert len(read) == 400
        for number in range(4):
            mine = [record.value for record in read if record.key == f"writer-{number}".encode()]
            assert mine == [b"%d" % index for index in range(100)]

    async def test_a_record_over_the_limit_is_refused_and_the_writer_goes_on(self, bus: Log, topics: Topics) -> None:
        writer = await bus.writer("test")
        limit = 1 << 20
        with pytest.raises(RecordTooLarge) as caught:
            await writer.append(OutRecord(topics.requests, 0, b"k", bytes(limit)))
        assert caught.value.limit_bytes == limit
        assert caught.value.size_bytes > limit
        await writer.append(OutRecord(topics.requests, 0, b"k", bytes(limit - 200)))  # just below
        await writer.append(OutRecord(topics.requests, 0, b"k", b"small"))
        assert [len(record.value or b"") for record in await all_of(bus, topics.requests)] == [limit - 200, 5]

    async def test_a_record_that_no_log_takes_is_refused(self, bus: Log, topics: Topics) -> None:
        writer = await bus.writer("test")
        good = OutRecord(topics.state, 0, b"k", b"v")
        bad = [
            good._replace(topic="unknown"),
            good._replace(partition=2),
            good._replace(partition=-1),
            good._replace(key=None),
            good._replace(value="text"),
            good._replace(headers=(("name", "text"),)),
            OutRecord(topics.events, 0, None, None),
        ]
        owner = await bus.take_over("group", topics.requests, 0)
        for record in bad:
            with pytest.raises(InvalidRecord):
                await writer.append(record)
            with pytest.raises(InvalidRecord):
                await owner.commit([good, record], 1)
        assert await all_of(bus, topics.state) == []
        await owner.commit([good], 1)  # a refused record does not end the owner

    async def test_back_pressure_holds_the_writer_and_lets_it_go(self, bench: Bench) -> None:
        bus = await bench.open(bench.settings.model_copy(update={"max_queued_bytes": 1 << 16}))
        topics = bench.settings.topics()
        writer = await bus.writer("test")
        waiting = []
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(400):
                await writer.wait_writable()
                waiting.append(writer.append(OutRecord(topics.requests, 0, b"k", bytes(4096))))
                if bench.settings.backend != "memory":  # memory is never behind
                    assert sum(not done.done() for done in waiting[-40:]) <= 17  # type: ignore[attr-defined]
            await asyncio.gather(*waiting)
        assert len(await all_of(bus, topics.requests)) == 400

    # ---- reading --------------------------------------------------------------------------------------------------

    async def test_reads_from_any_position_and_no_more_than_asked(self, bus: Log, topics: Topics) -> None:
        writer = await bus.writer("test")
        offsets = await asyncio.gather(
            *[writer.append(OutRecord(topics.events, 0, b"k", b"%d" % number)) for number in range(50)]
        )
        reader = await bus.reader(topics.events, 0, offsets[10])
        assert reader.position == offsets[10]
        records = await drain(reader, 7)
        assert values(records) == [b"%d" % number for number in range(10, 17)]
        assert reader.position == records[-1].offset + 1
        reader.seek(offsets[3])
        assert reader.position == offsets[3]
        assert values(await drain(reader, 2)) == [b"3", b"4"]
        assert len(await reader.read(5, 1.0)) <= 5

    async def test_a_reader_that_fetches_little_reads_everything(self, bus: Log, topics: Topics) -> None:
        sizes = [10, 200_000, 5_000, 70_000] + [3_000] * 20
        writer = await bus.writer("test")
        offsets = [await writer.append(OutRecord(topics.events, 0, b"k", bytes(size))) for size in sizes]
        reader = await bus.reader(topics.events, 0, fetch_max_bytes=50_000)
        assert [len(value or b"") for value in values(await drain(reader, len(sizes)))] == sizes
        for number in (1, 22, 3, 0):
            reader.seek(offsets[number])
            (record, *_) = await drain(reader, 1)
            assert (record.offset, len(record.value or b"")) == (offsets[number], sizes[number])

    async def test_an_empty_partition_has_equal_ends_and_reads_nothing(self, bus: Log, topics: Topics) -> None:
        reader = await bus.reader(topics.events, 1)
        assert await reader.first_offset() == await reader.end_offset() == reader.position
        assert list(await reader.read(10, 0)) == []
        assert list(await reader.read(10, 0.05)) == []

    async def test_the_end_offset_is_one_past_the_newest_record(self, bus: Log, topics: Topics) -> None:
        writer = await bus.writer("test")
        last = await writer.append(OutRecord(topics.events, 0, b"k", b"v"))
        reader = await bus.reader(topics.events, 0)
        assert await reader.end_offset() == last + 1
        assert await reader.first_offset() <= last

    async def test_the_written_end_is_behind_each_record_of_a_transaction_that_was_seen(
        self, bus: Log, topics: Topics
    ) -> None:
        owner = await bus.take_over("test", topics.requests, 0)
        await owner.commit([OutRecord(topic, 0, b"k", b"v") for topic in (topics.state, topics.events)], None)
        await drain(await bus.reader(topics.state, 0), 1)
        reader = await bus.reader(topics.events, 0)
        end = await reader.written_end()
        (record,) = await drain(reader, 1)
        assert end > record.offset

    async def test_a_waiting_reader_is_woken(self, bus: Log, topics: Topics) -> None:
        readers = [await bus.reader(topics.events, 0) for _ in range(3)]
        waiting = [asyncio.create_task(drain(reader, 1)) for reader in readers]
        await asyncio.sleep(QUIET_S)
        assert not any(task.done() for task in waiting)
        await (await bus.writer("test")).append(OutRecord(topics.events, 0, b"k", b"v"))
        for task in waiting:
            assert values(await task) == [b"v"]

    async def test_a_reader_that_is_cancelled_loses_nothing(self, bus: Log, topics: Topics) -> None:
        reader = await bus.reader(topics.events, 0)
        writer = await bus.writer("test")
        read: list[Record] = []
        for number in range(10):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(10, 30), 0.01)
            await writer.append(OutRecord(topics.events, 0, b"k", b"%d" % number))
            read += await drain(reader, 1)
        assert values(read) == [b"%d" % number for number in range(10)]

    async def test_a_deleted_offset_is_gone_and_the_error_says_what_is_left(
        self, bench: Bench, bus: Log, topics: Topics
    ) -> None:
        writer = await bus.writer("test")
        offsets = [await writer.append(OutRecord(topics.events, 0, b"k", b"%d" % number)) for number in range(6)]
        await bench.delete_before(topics.events, 0, offsets[4])
        slow = await bus.reader(topics.events, 0, offsets[1])  # only now: a reader may have fetched ahead
        with pytest.raises(OffsetOutOfRange) as caught:
            await drain(slow, 1)
        assert (caught.value.position, caught.value.first, caught.value.end) == (offsets[1], offsets[4], offsets[5] + 1)
        assert await slow.first_offset() == offsets[4]
        slow.seek(caught.value.first)
        assert values(await drain(slow, 2)) == [b"4", b"5"]
        fresh = await bus.reader(topics.events, 0)
        assert values(await drain(fresh, 2)) == [b"4", b"5"]

    async def test_an_offset_beyond_the_end_is_not_there_yet(self, bus: Log, topics: Topics) -> None:
        reader = await bus.reader(topics.events, 0, 1000)
        with pytest.raises(OffsetOutOfRange):
            await drain(reader, 1)

    # ---- transactions ---------------------------------------------------------------------------------------------

    async def test_a_transaction_carries_records_and_position(self, bus: Log, topics: Topics) -> None:
        owner = await bus.take_over("group", topics.requests, 1)
        assert await owner.committed() is None
        await owner.commit(
            [
                OutRecord(topics.responses, 1, b"k", b"r1"),
                OutRecord(topics.state, 1, b"k", b"s1"),
                OutRecord(topics.responses, 1, b"k", b"r2", (("h", b"1"),)),
            ],
            5,
        )
        assert await owner.committed() == 5
        await owner.commit([], 9)
        assert await owner.committed() == 9
        await owner.commit([OutRecord(topics.events, 1, b"k", b"e1")], None)
        assert await owner.committed() == 9
        assert values(await all_of(bus, topics.responses, 1, at_least=2)) == [b"r1", b"r2"]
        assert values(await all_of(bus, topics.state, 1, at_least=1)) == [b"s1"]
        assert values(await all_of(bus, topics.events, 1, at_least=1)) == [b"e1"]

    async def test_positions_are_per_group_and_partition(self, bus: Log, topics: Topics) -> None:
        for group, partition, position in (("a", 0, 3), ("a", 1, 4), ("b", 0, 5)):
            await (await bus.take_over(group, topics.requests, partition)).commit([], position)
        for group, partition, position in (("a", 0, 3), ("a", 1, 4), ("b", 0, 5), ("b", 1, None)):
            assert await (await bus.take_over(group, topics.requests, partition)).committed() == position

    async def test_a_refused_transaction_leaves_nothing(self, bus: Log, topics: Topics) -> None:
        owner = await bus.take_over("group", topics.requests, 0)
        records = [OutRecord(topics.responses, 0, b"k", b"v"), OutRecord(topics.events, 0, b"k", bytes(2 << 20))]
        with pytest.raises(RecordTooLarge):
            await owner.commit(records, 7)
        assert await all_of(bus, topics.responses) == []
        assert await owner.committed() is None
        await owner.commit(records[:1], 7)
        assert len(await all_of(bus, topics.responses, at_least=1)) == 1

    async def test_a_large_transaction_is_one_transaction(self, bus: Log, topics: Topics) -> None:
        owner = await bus.take_over("group", topics.requests, 0)
        records = [
            OutRecord((topics.responses, topics.events)[number % 2], 0, b"k", b"%06d" % number + bytes(900))
            for number in range(8000)
        ]
        await owner.commit(records, 1)
        for index, topic in enumerate((topics.responses, topics.events)):
            read = await all_of(bus, topic, at_least=4000)
            assert [int(record.value[:6]) for record in read if record.value] == list(range(index, 8000, 2))

    async def test_the_old_owner_is_fenced_and_what_it_staged_is_never_seen(self, bus: Log, topics: Topics) -> None:
        old = await bus.take_over("group", topics.requests, 0)
        await old.commit([OutRecord(topics.responses, 0, b"k", b"old-1")], 1)
        new = await bus.take_over("group", topics.requests, 0)
        assert await new.committed() == 1
        with pytest.raises(Fenced):
            await old.commit([OutRecord(topics.responses, 0, b"k", b"old-2")], 2)
        assert await new.committed() == 1
        await new.commit([OutRecord(topics.responses, 0, b"k", b"new-2")], 2)
        assert values(await all_of(bus, topics.responses, at_least=2)) == [b"old-1", b"new-2"]
        other = await bus.take_over("group", topics.requests, 1)  # another partition is another owner
        await other.commit([], 1)
        await new.commit([], 3)

    async def test_a_commit_under_way_is_finished_or_undone_before_take_over_returns(
        self, bus: Log, topics: Topics
    ) -> None:
        for round_ in range(5):
            old = await bus.take_over("group", topics.requests, 0)
            before = await old.committed() or 0
            seen = len(await all_of(bus, topics.responses, at_least=before))
            under_way = asyncio.create_task(
                old.commit([OutRecord(topics.responses, 0, b"k", b"%d" % round_)], before + 1)
            )
            await asyncio.sleep(0.002 * round_)
            new = await bus.take_over("group", topics.requests, 0)
            position, count = await new.committed() or 0, len(await all_of(bus, topics.responses))
            assert (position, count) in {(before, seen), (before + 1, seen + 1)}
            await asyncio.wait({under_way}, timeout=DEADLINE_S)
            if isinstance(under_way.exception(), Fenced):
                assert (position, count) == (before, seen)
            assert (await new.committed() or 0, len(await all_of(bus, topics.responses))) == (position, count)
            await new.close()

    async def test_readers_see_all_of_a_transaction_or_nothing(self, bus: Log, topics: Topics) -> None:
        """A reader that sees the record in the later topic also sees that in the earlier one."""
        owner = await bus.take_over("group", topics.requests, 0)
        events, responses = await bus.reader(topics.events, 0), await bus.reader(topics.responses, 0)

        async def write() -> None:
            for number in range(30):
                await owner.commit(
                    [OutRecord(topic, 0, b"k", b"%d" % number) for topic in (topics.responses, topics.events)] * 20,
                    number + 1,
                )

        writing = asyncio.create_task(write())
        seen: list[Record] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(seen) < 600:
                seen += await events.read(1000, 1.0)
                if bus_is_local(bus):
                    assert len(seen) % 20 == 0
        await writing
        assert len(await drain(responses, 600)) == 600

    async def test_all_is_there_after_reopening(self, bench: Bench, bus: Log, topics: Topics) -> None:
        owner = await bus.take_over("group", topics.requests, 0)
        await owner.commit([OutRecord(topics.responses, 0, b"k", b"%d" % number) for number in range(20)], 11)
        writer = await bus.writer("test")
        last = await writer.append(OutRecord(topics.requests, 0, b"k", b"v", (("h", b"1"),)))
        await bus.close()
        again = await bench.open()
        assert values(await all_of(again, topics.responses)) == [b"%d" % number for number in range(20)]
        (record,) = await all_of(again, topics.requests)
        assert (record.offset, record.headers) == (last, (("h", b"1"),))
        owner = await again.take_over("group", topics.requests, 0)
        assert await owner.committed() == 11
        await owner.commit([OutRecord(topics.responses, 0, b"k", b"20")], 12)
        assert len(await all_of(again, topics.responses)) == 21
        assert await (await again.writer("test")).append(OutRecord(topics.requests, 0, b"k", b"v")) > last

    # ---- life -----------------------------------------------------------------------------------------------------

    async def test_a_log_is_the_same_one_when_it_is_opened_again(self, bench: Bench, bus: Log, topics: Topics) -> None:
        identity = await bus.identity()
        assert identity
        await (await bus.writer("test")).append(OutRecord(topics.requests, 0, b"k", b"v"))
        assert await bus.identity() == identity
        await bus.close()
        with pytest.raises(LogClosed):
            await bus.identity()
        again = await bench.open()
        assert await again.identity() == identity
        assert await end_of(again, topics.requests, 0) > 0

    async def test_another_number_of_partitions_is_refused(self, bench: Bench, bus: Log) -> None:
        await bus.close()
        with pytest.raises(TopicMismatch, match="2 partitions"):
            await bench.open(bench.settings.model_copy(update={"partitions": 3}))

    async def test_closed_means_closed(self, bus: Log, topics: Topics) -> None:
        assert isinstance(bus, Log)
        assert await bus.healthy()
        writer, reader = await bus.writer("test"), await bus.reader(topics.events, 0)
        owner = await bus.take_over("group", topics.requests, 0)
        late = [await bus.reader(topics.events, 0), await bus.writer("late")]
        await reader.close()
        await writer.close()
        await owner.close()
        with pytest.raises(LogClosed):
            await reader.read(1, 0)
        with pytest.raises(LogClosed):
            await writer.append(OutRecord(topics.events, 0, b"k", b"v"))
        with pytest.raises(LogClosed):
            await owner.commit([], 1)
        await bus.close()
        assert not await bus.healthy()
        with pytest.raises(LogClosed):
            await late[0].read(1, 0)  # type: ignore[union-attr]
        with pytest.raises(LogClosed):
            await late[1].append(OutRecord(topics.events, 0, b"k", b"v"))  # type: ignore[union-attr]
        with pytest.raises(LogClosed):
            await bus.reader(topics.events, 0)
        with pytest.raises(LogClosed):
            await bus.take_over("group", topics.requests, 0)
        await bus.close()  # once more does no harm

    async def test_closing_wakes_a_waiting_reader(self, bus: Log, topics: Topics) -> None:
        reader = await bus.reader(topics.events, 0)
        waiting = asyncio.create_task(reader.read(1, DEADLINE_S))
        await asyncio.sleep(QUIET_S)
        await bus.close()
        with pytest.raises(LogClosed):
            await asyncio.wait_for(waiting, DEADLINE_S / 2)

    async def test_a_writer_that_is_closed_has_written_what_was_appended(self, bus: Log, topics: Topics) -> None:
        writer = await bus.writer("test")
        waiting = [writer.append(OutRecord(topics.events, 0, b"k", b"%d" % number)) for number in range(100)]
        await writer.close()
        assert len(await asyncio.gather(*waiting)) == 100
        assert len(await all_of(bus, topics.events)) == 100


def bus_is_local(bus: Log) -> bool:
    """Whether a transaction's records of one partition become visible to a read at once. On Kafka they are sent in
    batches that a read may split; the offsets behind the last stable one are hidden, which another test shows."""
    return type(bus).__name__ != "KafkaLog"
