"""Checks a log on Kafka against what its owners noted (``kafka_notes.py``), and notes it as it is after an acceptance.

Muster may work meanwhile. A commit under way makes a partition shorter than its note for a moment, so a break counts
when it is still there after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, NamedTuple

from muster_bus.backends.breaks import Break, BreakKind, RecordNumbers
from muster_bus.backends.kafka import KafkaLog
from muster_bus.backends.kafka_notes import NotedPlaces, PartitionFound
from muster_bus.backends.kafka_reader import KafkaReader
from muster_bus.backends.live_keys import LiveKeys
from muster_bus.errors import LogDamaged, LogUnavailable, OffsetOutOfRange
from muster_bus.log import OutRecord, Record
from muster_bus.topics import is_rm_state_key, parse_state_key

_LOOKS, _PAUSE_S = 10, 0.2  # at a partition that is shorter than its note
_READ_RECORDS, _READ_S, _SILENT_READS = 1000, 0.5, 20


# What a check reads: nothing but offsets; the state, too, as a start does; all records, for checksums and numbers.
Extent = Literal["ends", "start", "all"]


class KafkaChecked(NamedTuple):
    """A check's result.

    :param records: number of the records that were read.
    :param gaps: what an operator has accepted, one sentence each.
    :param unnoted: number of the partitions of the requests without a note.
    """

    breaks: list[Break]
    records: int
    gaps: list[str]
    unnoted: int


class KafkaCheck:
    """A check of a started log.

    :param group: of the scheduler.
    """

    def __init__(self, log: KafkaLog, group: str) -> None:
        self._log, self._topics = log, log.settings.topics()
        self._group = f"{self._topics.prefix}{group}"
        self._breaks: list[Break] = []
        self._gaps: list[str] = []
        self._records = self._unnoted = 0

    async def run(self, extent: Extent) -> KafkaChecked:
        """Checks all partitions. Raises LogUnavailable."""
        for partition in range(self._topics.partitions):
            places = NotedPlaces(self._topics, self._log.topic_names, self._group, partition)
            current = await self._check_ends(places)
            if extent != "ends":
                await self._check_state(places)
            for topic_partition in places.all if extent == "all" else ():
                if topic_partition != places.state:
                    part = (
                        None if current.note is None else current.note.partitions.get(places.name_of(topic_partition))
                    )
                    await self._check_records(topic_partition.topic, partition, 0 if part is None else part.whole_from)
        return KafkaChecked(self._breaks, self._records, self._gaps, self._unnoted)

    async def _query_partition(self, places: NotedPlaces) -> PartitionFound:
        assert self._log.admin is not None, "the log is open"
        looking = places.query(self._log.admin._client)
        return await self._log.bounded(looking, f"looking up partition {places.partition}")

    async def _check_ends(self, places: NotedPlaces) -> PartitionFound:
        for look in range(_LOOKS):
            current = await self._query_partition(places)
            breaks = places.check(current)
            if all(break_.kind is not BreakKind.END for break_ in breaks):
                break
            if look < _LOOKS - 1:
                await asyncio.sleep(_PAUSE_S)
        self._breaks += breaks
        self._unnoted += current.note is None
        return current

    async def _check_state(self, places: NotedPlaces) -> None:
        """Folds the state exactly to the end of a note."""
        live = LiveKeys()
        reader = await self._log.reader(*places.state)
        try:
            async for records in self._to(reader, await reader.end_offset()):
                live.fold(records)
            current = await self._query_partition(places)
            part = None if current.note is None else current.note.partitions.get(places.name_of(places.state))
            if part is not None and current.present[places.state].end >= part.end:
                async for records in self._to(reader, part.end):
                    live.fold([record for record in records if record.offset < part.end])
        except LogDamaged as error:
            self._add_damage(error)
            return
        finally:
            await reader.close()
        if not any(break_[1:3] == places.state for break_ in self._breaks):
            self._breaks += places.check_state(current, live)

    async def _check_records(self, topic: str, partition: int, whole_from: int) -> None:
        numbers = RecordNumbers()
        reader = await self._log.reader(topic, partition)
        try:
            async for records in self._to(reader, await reader.end_offset()):
                for record in records:
                    gap = numbers.check(record)
                    if gap is None:
                        continue
                    break_ = Break(BreakKind.NUMBERS, topic, partition, gap.first_offset, gap.next_offset, gap.reason)
                    if gap.first_offset < whole_from:
                        self._gaps.append(f"accepted: {break_}")
                    else:
                        self._breaks.append(break_)
        except LogDamaged as error:
            self._add_damage(error)
        finally:
            await reader.close()

    def _add_damage(self, error: LogDamaged) -> None:
        location = error.topic, error.partition, error.first_offset, error.next_offset
        self._breaks.append(Break(BreakKind.BLOCK, *location, error.reason))

    async def _to(self, reader: KafkaReader, end: int) -> AsyncIterator[Sequence[Record]]:
        """Yields what is before an end, or a little more."""
        silent = 0
        while (before := reader.position) < end:
            try:
                records = await reader.read(_READ_RECORDS, _READ_S)
            except OffsetOutOfRange as gone:  # retention
                reader.seek(max(gone.first, before + 1))
                continue
            self._records += len(records)
            silent = silent + 1 if reader.position == before else 0
            if silent == _SILENT_READS:
                raise LogUnavailable(f"a partition gives no records from offset {before} on; its end is {end}")
            yield records


class Noticed(NamedTuple):
    """What an acceptance did.

    :param rms: ids of the RMs that get a notice.
    """

    partition: int
    position: int | None
    rms: tuple[str, ...]


async def accept_breaks(
    log: KafkaLog, group: str, breaks: Sequence[Break], notice: Callable[[str], OutRecord]
) -> list[Noticed]:
    """Goes on without what is missing: notes each partition with breaks as it is. Fences a scheduler that still runs.

    :param notice: makes the request that tells an RM of the loss.

    Raises LogError.
    """
    topics, done = log.settings.topics(), list[Noticed]()
    for partition in sorted({break_.partition for break_ in breaks}):
        owner = await log.take_over(group, topics.requests, partition)
        try:
            notes = owner.notes
            assert notes is not None, "the input is the requests"
            live = LiveKeys()
            check = KafkaCheck(log, group)
            reader = await log.reader(topics.state, partition)
            async for records in check._to(reader, await reader.end_offset()):
                live.fold(records)
            await reader.close()
            notes.track_live_keys(live)
            position = notes.partitions.position_after(notes.at_takeover)
            notes.accept([break_ for break_ in breaks if break_.partition == partition], position)
            rms = tuple(sorted(parse_state_key(key)[0] for key in live if is_rm_state_key(key)))
            await owner.commit([notice(rm_id) for rm_id in rms], position)
        finally:
            await owner.close()
        done.append(Noticed(partition, position, rms))
    return done
