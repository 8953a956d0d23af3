"""Events as the publisher passes them on: bytes, ids and offsets, which stay unparsed here. The terms:

tracking event
    An event for history, REST and streams (header ``tracking`` is ``1``). Its headers are ``id``, ``rm`` and
    ``instance``. Ids are decimal, begin at 0 and have no gap *per RM*.

shim event
    A REQUEST event with change type NONE (the event history design, shim events), for the RM's shim only. Its header
    ``tracking`` is ``0``. It has no id in the order of tracking events, so leaving it out makes no gap. An ``id``
    header on it is ignored.

run
    Tracking events of one RM and one instance with consecutive ids, in log order.

batch
    The result of one read of a partition: its runs, and the positions before and after. The positions are the reader's:
    every record in ``[start, end)`` was read, even if the offsets have holes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from muster_bus.log import Headers, Record
from muster_bus.topics import HEADER_EVENT_ID, HEADER_INSTANCE, HEADER_RM_ID, HEADER_TRACKING, event_id_of

# Values in place of an id.
_MALFORMED, _SHIM = -1, -2


class ShimEvent(NamedTuple):
    """A shim event; ``offset`` is its place in the RM's partition."""

    rm_id: str
    instance: str
    offset: int
    value: bytes | None


@dataclass(slots=True)
class EventRun:
    """Consecutive tracking events of one RM; the id of ``values[i]`` is ``first_id + i``."""

    rm_id: str
    instance: str
    partition: int
    first_id: int
    offsets: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def last_id(self) -> int:
        return self.first_id + len(self.values) - 1

    def from_index(self, index: int) -> EventRun:
        """The run without its first ``index`` events."""
        if index == 0:
            return self
        return EventRun(
            self.rm_id, self.instance, self.partition, self.first_id + index, self.offsets[index:], self.values[index:]
        )


@dataclass(slots=True)
class EventBatch:
    """Runs in log order, and the positions that they cover: ``start`` (inclusive) to ``end`` (exclusive).

    :param shim: shim events, in log order.
    :param malformed: how many records were skipped because they are no events.
    """

    partition: int
    start: int
    end: int
    runs: list[EventRun]
    shim: list[ShimEvent] = field(default_factory=list)
    malformed: int = 0

    @property
    def records(self) -> int:
        return sum(len(run) for run in self.runs)

    @property
    def size_bytes(self) -> int:
        return sum(sum(map(len, run.values)) for run in self.runs)

    def since(self, position: int) -> EventBatch:
        """The part at or after ``position``."""
        if position <= self.start:
            return self
        runs = [run.from_index(bisect_left(run.offsets, position)) for run in self.runs]
        shim = [event for event in self.shim if event.offset >= position]
        return EventBatch(self.partition, max(position, self.start), self.end, [run for run in runs if run], shim)


def batch_of(partition: int, records: Sequence[Record], start: int, end: int) -> EventBatch:
    """Sorts the records of a read into runs. Never raises for a record's content: malformed records are counted."""
    runs: list[EventRun] = []
    offsets: list[int] = []
    values: list[bytes] = []
    next_id = -1
    last_tail: Headers | None = None
    shim: list[ShimEvent] = []
    malformed = 0
    for record in records:
        headers, value = record.headers, record.value
        # The scheduler writes id first; the other headers are the same from record to record.
        as_before = len(headers) == 4 and headers[1:] == last_tail and headers[0][0] == HEADER_EVENT_ID
        if as_before and value is not None and event_id_of(headers[0][1]) == next_id:
            offsets.append(record.offset)
            values.append(value)
            next_id += 1
            continue
        rm_id, instance, event_id = _event_of(record)
        if event_id == _SHIM:
            shim.append(ShimEvent(rm_id, instance, record.offset, value))
            continue
        if event_id < 0 or value is None:
            malformed += 1
            continue
        same = runs and runs[-1].rm_id == rm_id and runs[-1].instance == instance and event_id == next_id
        if not same:
            run = EventRun(rm_id, instance, partition, event_id)
            runs.append(run)
            offsets, values = run.offsets, run.values
        offsets.append(record.offset)
        values.append(value)
        next_id = event_id + 1
        last_tail = headers[1:]
    return EventBatch(partition, start, end, runs, shim, malformed)


def _event_of(record: Record) -> tuple[str, str, int]:
    """RM, instance and id; the id is _SHIM for a shim event, _MALFORMED for a record that is no event."""
    headers = dict(record.headers)
    try:
        rm_id, instance = headers[HEADER_RM_ID].decode(), headers[HEADER_INSTANCE].decode()
    except (KeyError, UnicodeDecodeError):
        return "", "", _MALFORMED
    if headers.get(HEADER_TRACKING) == b"0":
        return rm_id, instance, _SHIM
    event_id = event_id_of(headers.get(HEADER_EVENT_ID))
    return rm_id, instance, _MALFORMED if event_id is None else event_id
