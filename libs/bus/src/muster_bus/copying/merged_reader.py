"""Reads all partitions of a topic as one sequence, by time.

Records of one partition keep their order, also where their times go backwards.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

from muster_bus.log import Log, LogReader, Record

_READ_RECORDS = 1_000
_READ_WAIT_S = 1.0
_BATCH_RECORDS = 5_000
_BATCH_BYTES = 4 << 20  # memory of a batch, and of the target's transaction


class MergedBatch(NamedTuple):
    """Records in the order to write, and how far each partition of the source is then read."""

    records: list[Record]
    positions: dict[int, int]


class _PartitionStream:
    """One partition: a reader, and the records that it has read ahead."""

    def __init__(self, reader: LogReader, end: int) -> None:
        self.reader, self.end = reader, end
        self._read: list[Record] = []
        self._next = 0
        self._time_ms = 0
        self.position = reader.position

    async def head(self) -> Record | None:
        """Returns the next record before the end; None: there is none."""
        while self._next == len(self._read):
            if self.reader.position >= self.end:
                self.position = max(self.position, self.end)
                return None
            self._read, self._next = list(await self.reader.read(_READ_RECORDS, _READ_WAIT_S)), 0
        record = self._read[self._next]
        if record.offset >= self.end:
            self.position = max(self.position, self.end)
            return None
        return record

    def add(self, record: Record) -> None:
        self._next += 1
        self.position = record.offset + 1  # a hole there is passed over by the next read
        self._time_ms = max(self._time_ms, record.timestamp_ms)

    def time_ms(self, record: Record) -> int:
        """Returns the record's time; never less than that of an earlier record of the partition."""
        return max(self._time_ms, record.timestamp_ms)


class MergedPartitions:
    """A topic's partitions from some positions up to some ends. Close it when done."""

    def __init__(self, lanes: dict[int, _PartitionStream]) -> None:
        self._lanes = lanes
        self._order: list[tuple[int, int, Record]] = []

    @classmethod
    async def open(cls, log: Log, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> MergedPartitions:
        """Opens a reader for each partition in ``ends``.

        :param starts: first position to read; a partition that is absent, or whose position retention has deleted, is
            read from its first offset.
        """
        lanes: dict[int, _PartitionStream] = {}
        for partition, end in ends.items():
            reader = await log.reader(topic, partition)
            reader.seek(max(starts.get(partition, 0), reader.position))
            lanes[partition] = _PartitionStream(reader, end)
        merged = cls(lanes)
        for partition in lanes:
            await merged._queue(partition)
        return merged

    async def next_batch(self) -> MergedBatch:
        """Returns the next records; none at the ends of all partitions."""
        records: list[Record] = []
        size = 0
        while self._order and len(records) < _BATCH_RECORDS and size < _BATCH_BYTES:
            _, partition, record = heapq.heappop(self._order)
            self._lanes[partition].add(record)
            records.append(record)
            size += len(record.key or b"") + len(record.value or b"")
            await self._queue(partition)
        return MergedBatch(records, self.positions())

    def positions(self) -> dict[int, int]:
        """Returns how far each partition is read."""
        return {partition: lane.position for partition, lane in self._lanes.items()}

    async def _queue(self, partition: int) -> None:
        lane = self._lanes[partition]
        record = await lane.head()
        if record is not None:
            heapq.heappush(self._order, (lane.time_ms(record), partition, record))

    async def close(self) -> None:
        for lane in self._lanes.values():
            await lane.reader.close()
