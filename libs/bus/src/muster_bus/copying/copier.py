"""Copies a log: all records of the main topics, and how far the scheduler is.

What stays behind, because it is made again or means nothing in another log:

- the derived topics: a derive process makes them from ``si.events`` again;
- the notes in ``si.responses`` about decided offsets, which are offsets of the source.

Sessions do not belong to the log. They are cleared with it, and gateways fill them from the new log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from muster_bus.copying.merged_reader import MergedPartitions
from muster_bus.copying.target import CopyTarget
from muster_bus.errors import SourceChanged, TargetTooSmall
from muster_bus.log import Log, Record
from muster_bus.topics import Topics, TopicSpec, parse_state_key

# Called after each batch: topic of the source, records copied now, records to copy now (holes of offsets included).
Progress = Callable[[str, int, int], None]


async def copy(source: Log, topics: Topics, target: CopyTarget, group: str, progress: Progress) -> int:
    """Copies a log into a target, or continues an interrupted copy. Returns the number of records that this call wrote.

    :param source: started; no process writes to it.
    :param topics: of the source.
    :param target: started; the caller finishes it.
    :param group: of the scheduler: its position in the requests is copied, too.

    Raises: SourceChanged if records came meanwhile (the next call copies them); TargetTooSmall; LogUnavailable.
    """
    if target.topics.partitions < topics.partitions:
        raise TargetTooSmall(target.name, target.topics.partitions, topics.partitions)
    before = await _ends(source, topics)
    written = 0
    for source_spec, target_spec in zip(main_topics(topics), main_topics(target.topics), strict=True):
        ends = before[source_spec.name]
        work = _TopicCopy(source, topics, source_spec.name, target, target_spec.name, progress)
        if source_spec.name == topics.requests:
            written += await _copy_requests(work, group, ends)
        else:
            written += await work.copy(ends)
    after = await _ends(source, topics)
    if moved := [name for name, ends in before.items() if after[name] != ends]:
        raise SourceChanged(moved)
    return written


def main_topics(topics: Topics) -> tuple[TopicSpec, ...]:
    """Returns the topics whose records are copied."""
    return replace(topics, derived=False).specs()


async def _copy_requests(work: _TopicCopy, group: str, ends: Mapping[int, int]) -> int:
    """Copies first the requests that the scheduler has answered, of all partitions, then the others.

    So each partition of the target has one position between them, wherever its RMs come from.
    """
    written, target = 0, work.target
    if None in await target.positions(group):
        written += await work.copy(await _answered(work.source, work.topics, group, ends))
        await target.set_positions(group, await target.ends(work.there))
    return written + await work.copy(ends)


async def _answered(source: Log, topics: Topics, group: str, ends: Mapping[int, int]) -> dict[int, int]:
    """Returns the scheduler's position in each partition. Fences a scheduler that still runs."""
    positions: dict[int, int] = {}
    for partition in ends:
        owner = await source.take_over(group, topics.requests, partition)
        positions[partition] = await owner.committed() or 0
        await owner.close()
    return positions


class _TopicCopy:
    """The copy of one topic."""

    def __init__(
        self, source: Log, topics: Topics, source_topic: str, target: CopyTarget, target_topic: str, progress: Progress
    ) -> None:
        self.source, self.topics, self.here = source, topics, source_topic
        self.target, self.there = target, target_topic
        self._progress = progress

    async def copy(self, ends: Mapping[int, int]) -> int:
        """Copies the records before these ends. Returns their number."""
        starts = await self.target.copied(self.there, len(ends))
        merged = await MergedPartitions.open(self.source, self.here, starts, ends)
        written = 0
        try:
            total = sum(ends.values()) - sum(merged.positions().values())
            while True:
                batch = await merged.next_batch()
                if not batch.records:
                    return written
                homes: dict[int, list[Record]] = {}
                for record in batch.records:
                    home = home_of(record, self.topics, self.target.topics)
                    if home is not None:
                        homes.setdefault(home, []).append(record)
                await self.target.write(self.there, homes, batch.positions)
                written += sum(map(len, homes.values()))
                self._progress(self.here, total - sum(ends.values()) + sum(batch.positions.values()), total)
        finally:
            await merged.close()


def home_of(record: Record, source: Topics, target: Topics) -> int | None:
    """Returns the partition of a record in the target; None: the record stays behind."""
    if not record.key:
        # A record without a key belongs to its partition: a note about decided offsets, or an unreadable request.
        return None if record.topic == source.responses else record.partition % target.partitions
    if record.topic == source.state:
        return target.partition_of(parse_state_key(record.key)[0])
    return target.partition_of_key(record.key)


async def _ends(source: Log, topics: Topics) -> dict[str, dict[int, int]]:
    ends_by_topic: dict[str, dict[int, int]] = {}
    for spec in main_topics(topics):
        ends = ends_by_topic[spec.name] = {}
        for partition in range(spec.partitions):
            reader = await source.reader(spec.name, partition)
            ends[partition] = await reader.end_offset()
            await reader.close()
    return ends_by_topic
