"""Damaged parts of the log that a follower passes over.

What decides needs every record, so a damaged part of the requests or the state ends it with LogDamaged. What only shows
or exports goes on behind the part: it reports the part once in the log of the process and as long as it lives in
health, and its answers name what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from muster_bus import metrics
from muster_bus.errors import LogDamaged
from muster_bus.log import LogReader, Record

log = structlog.get_logger(__name__)

# Health names so many parts of a follower.
_NAMED_MAX = 5


class DamagedParts:
    """The damaged parts that one follower met.

    :param lost: what is missing because of them, for people: ``these events are not shown``.
    """

    def __init__(self, lost: str) -> None:
        self._lost = lost
        self._ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._reasons: dict[tuple[str, int, int], str] = {}
        self._remedy = ""

    def note(self, error: LogDamaged) -> None:
        """Reports a part, once. Parts of a partition that touch each other are one."""
        partition, first, end = (error.topic, error.partition), error.first_offset, error.next_offset
        parts = self._ranges.setdefault(partition, [])
        if any(start <= first and end <= stop for start, stop in parts):
            return
        touching = [part for part in parts if part[0] <= end and first <= part[1]]
        merged = min([first, *(part[0] for part in touching)]), max([end, *(part[1] for part in touching)])
        parts[:] = sorted([*(part for part in parts if part not in touching), merged])
        self._remedy = error.remedy
        self._reasons[error.topic, error.partition, merged[0]] = error.reason
        metrics.damaged_parts.labels(error.topic).set(
            sum(len(spans) for (topic, _), spans in self._ranges.items() if topic == error.topic)
        )
        if not touching:
            log.error("log.damaged_part_passed", story=f"{error}; {self._lost}")

    def at(self, topic: str, partition: int, offset: int) -> int | None:
        """Returns the offset behind the known damaged part that holds an offset; None: none does."""
        parts = self._ranges.get((topic, partition), ())
        return next((end for first, end in parts if first <= offset < end), None)

    def problems(self) -> list[str]:
        """Returns the parts for health: one sentence, or none."""
        places = [
            f"{topic}[{partition}] from {first} to {end} ({self._reasons[topic, partition, first]})"
            for (topic, partition), parts in sorted(self._ranges.items())
            for first, end in parts
        ]
        if not places:
            return []
        more = f" and {len(places) - _NAMED_MAX} more" if len(places) > _NAMED_MAX else ""
        return [f"the log is damaged: {', '.join(places[:_NAMED_MAX])}{more}: {self._lost}; {self._remedy}"]


class PassingReader:
    """A reader that goes on behind damaged parts: there it returns no records, and its position moves.

    See :class:`muster_bus.log.LogReader`.
    """

    def __init__(self, reader: LogReader, damage: DamagedParts) -> None:
        self._reader, self._damage = reader, damage

    @property
    def position(self) -> int:
        return self._reader.position

    def seek(self, offset: int) -> None:
        self._reader.seek(offset)

    def cached_end(self) -> int:
        return self._reader.cached_end()

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        try:
            return await self._reader.read(max_records, timeout_s)
        except LogDamaged as error:
            self._damage.note(error)
            self._reader.seek(max(error.next_offset, self._reader.position + 1))
            return ()

    async def first_offset(self) -> int:
        return await self._reader.first_offset()

    async def end_offset(self, max_age_s: float = 0.0) -> int:
        return await self._reader.end_offset(max_age_s)

    async def written_end(self) -> int:
        return await self._reader.written_end()

    async def close(self) -> None:
        await self._reader.close()


class Readers(Protocol):
    """What gives readers of the log: a :class:`muster_bus.log.Log`, or one that passes over damaged parts."""

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> LogReader: ...


class PassingReaders:
    """Gives readers of a log that go on behind damaged parts."""

    def __init__(self, bus: Readers, damage: DamagedParts) -> None:
        self._bus, self._damage = bus, damage

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> LogReader:
        bound = {} if fetch_max_bytes is None else {"fetch_max_bytes": fetch_max_bytes}
        return PassingReader(await self._bus.reader(topic, partition, start, **bound), self._damage)
