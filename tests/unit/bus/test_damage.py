"""Readers that pass over damaged parts of the log, and what health has of these."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition, errors
from muster_bus.backends.kafka_reader import KafkaReader
from muster_bus.clock import SystemClock
from muster_bus.damage import DamagedParts, PassingReader
from muster_bus.errors import LogDamaged
from muster_bus.log import Record
from structlog.testing import capture_logs


class Holey:
    """A reader of 20 records, whose blocks of 5 are damaged at some places."""

    def __init__(self, *damaged: int) -> None:
        self.position, self._damaged = 0, damaged

    def seek(self, offset: int) -> None:
        self.position = offset

    def cached_end(self) -> int:
        return 20

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        block = self.position // 5
        if block in self._damaged:
            raise LogDamaged("t", 0, block * 5, block * 5 + 5, "bits flipped", "repair it")
        end = min(block * 5 + 5, 20)
        found = [Record("t", 0, offset, 0, b"", b"") for offset in range(self.position, end)]
        self.position = end
        return found

    async def first_offset(self) -> int:
        return 0

    async def end_offset(self, max_age_s: float = 0.0) -> int:
        return 20

    async def written_end(self) -> int:
        return 20

    async def close(self) -> None: ...


async def test_it_reads_what_is_around_damaged_parts_and_reports_each_once() -> None:
    damage = DamagedParts("they are not shown")
    with capture_logs() as lines:
        for _ in range(2):
            reader, found = PassingReader(Holey(1, 2), damage), list[int]()
            while reader.position < await reader.end_offset():
                found += [record.offset for record in await reader.read(100, 0)]
            assert found == [*range(5), *range(15, 20)]
    assert [line["event"] for line in lines] == ["log.damaged_part_passed"], "two parts that touch are one"
    assert damage.at("t", 0, 7) == damage.at("t", 0, 14) == 15
    assert damage.at("t", 0, 4) is damage.at("t", 0, 15) is damage.at("u", 0, 7) is None
    assert damage.problems() == ["the log is damaged: t[0] from 5 to 15 (bits flipped): they are not shown; repair it"]


async def test_health_names_some_parts_and_counts_the_others() -> None:
    damage = DamagedParts("they are not shown")
    assert damage.problems() == []
    for number in range(9):
        damage.note(LogDamaged("t", number, 5, 6, "bits flipped", "repair it"))
    (problem,) = damage.problems()
    assert problem.count("bits flipped") == 5
    assert " and 4 more: they are not shown; repair it" in problem


class Consumer:
    """Stands in for aiokafka's consumer: offsets 3 to 5 are a batch whose checksum does not fit."""

    def __init__(self) -> None:
        self.at = 0
        self._fetcher = SimpleNamespace(_records={}, _fetch_max_wait_ms=0)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.at = offset
        self._fetcher._records = {}

    async def position(self, place: TopicPartition) -> int:
        return self.at

    async def getmany(self, place: TopicPartition, *, timeout_ms: int, max_records: int) -> dict[TopicPartition, Any]:
        found = []
        while self.at + len(found) < 9 and len(found) < max_records:
            offset = self.at + len(found)
            if 3 <= offset < 6:
                parts = SimpleNamespace(next_fetch_offset=offset)
                self._fetcher._records = {place: SimpleNamespace(_partition_records=parts)}
                raise errors.CorruptRecordException(f"Invalid CRC - {place}")
            found.append(SimpleNamespace(offset=offset, timestamp=0, key=b"", value=b"", headers=()))
        self.at += len(found)
        return {place: found}


async def test_a_batch_that_kafkas_checksum_does_not_fit_is_damage_at_its_place() -> None:
    reader = KafkaReader.__new__(KafkaReader)
    reader._topic_partition, reader._consumer = TopicPartition("t", 0), Consumer()  # type: ignore[assignment]
    reader._link = SimpleNamespace(clock=SystemClock())  # type: ignore[assignment]
    reader._position, reader._closed, reader._damaged_at, reader._empty_since_s = 0, False, None, None
    reader._check = lambda: None  # type: ignore[method-assign]
    reader._check_silence = lambda: None  # type: ignore[method-assign]
    reader._busy_fetch_ms = reader._idle_fetch_ms = 0
    found: list[int] = []
    while len(found) < 3:
        found += [record.offset for record in await reader.read(100, 0)]
    with pytest.raises(LogDamaged) as raised:
        await reader.read(100, 0)
    assert found == [0, 1, 2], "what is before it"
    assert (raised.value.topic, raised.value.first_offset, raised.value.next_offset) == ("t", 3, 4)
    damage = DamagedParts("they are not shown")
    passing = PassingReader(reader, damage)
    while passing.position < 9:
        found += [record.offset for record in await passing.read(100, 0)]
    assert found == [0, 1, 2, 6, 7, 8]
    assert damage.at("t", 0, 3) == 6
