"""Breaks of a log: what is not as it was written, or missing. Both logs have them, with the same words."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from muster_bus.log import Record
from muster_bus.topics import HEADER_EVENT_ID, HEADER_INSTANCE, HEADER_RM_ID, event_id_of, response_number_of

_RMS_NAMED_MAX = 5


class BreakKind(StrEnum):
    """What is broken, and so what a repair does."""

    BLOCK = "block"  # a block's bytes or place: it is removed
    GAP = "gap"  # blocks are missing before a block: the gap is noted
    END = "end"  # the newest blocks are missing: the partition ends earlier
    COUNT = "count"  # blocks or keys are missing, or there are others, at an unknown place: they are counted again
    NUMBERS = "numbers"  # the ids of an RM's events, or the numbers of its responses, have a gap: it is noted
    TABLE = "table"  # the small tables contradict each other: they are derived again
    WAL = "wal"  # the write-ahead log has commits that are not read: it goes on without them
    FILE = "file"  # the structure of the file: nothing can be read there
    TOPIC = "topic"  # a topic on Kafka was deleted and created again: it begins anew
    POSITION = "position"  # the group's position on Kafka is not that of its last commit: it is set again


class Break(NamedTuple):
    """A part of the log that is not as it was written.

    :param topic: "": the part belongs to no topic.
    :param first_offset: lowest offset of the part; ``next_offset`` is one past the highest.
    :param from_ms: the part's records are from between these times; 0: unknown.
    :param rms: ids of the RMs whose records are in the partition, as far as they are known.
    """

    kind: BreakKind
    topic: str
    partition: int
    first_offset: int
    next_offset: int
    reason: str
    from_ms: int = 0
    to_ms: int = 0
    rms: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.topic:
            return self.reason
        times = [time_text(ms) for ms in (self.from_ms, self.to_ms) if ms]
        when = f", written {' to '.join(dict.fromkeys(times))}" if times else ""
        more = f" and {len(self.rms) - _RMS_NAMED_MAX} more" if len(self.rms) > _RMS_NAMED_MAX else ""
        whose = f", with records of {', '.join(map(repr, self.rms[:_RMS_NAMED_MAX]))}{more}" if self.rms else ""
        return (
            f"{self.topic}[{self.partition}] from {self.first_offset} to {self.next_offset}{when}{whose}: {self.reason}"
        )

    @property
    def word(self) -> str:
        """The word that accepts the break; another break has another one."""
        return hashlib.sha256(repr(tuple(self)).encode()).hexdigest()[:8]


class NumberGap(NamedTuple):
    """Records of an RM are missing: their numbers have a gap.

    :param first_offset: one past the last record before the gap.
    :param next_offset: offset of the record behind it.
    """

    first_offset: int
    next_offset: int
    reason: str


class RecordNumbers:
    """Finds gaps in the ids of events and the numbers of responses, which have none. Each topic's partition is read in
    order; which partitions come first does not matter.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[bytes, ...], tuple[int, int]] = {}  # number and offset of an RM's last record

    def check(self, record: Record) -> NumberGap | None:
        """Returns the gap before a record, if there is one."""
        if record.topic.endswith("si.events.v1"):
            return self._check_event(record)
        if record.topic.endswith("si.responses.v1"):
            return self._check_response(record)
        return None

    def _check_event(self, record: Record) -> NumberGap | None:
        # (Records that name no RM are not Muster's events.)
        headers = dict(record.headers)
        id_ = event_id_of(headers.get(HEADER_EVENT_ID))
        rm_id = headers.get(HEADER_RM_ID, b"")
        if id_ is None or not rm_id:
            return None
        whose = (b"event", rm_id, headers.get(HEADER_INSTANCE, b""))
        return self._follow(whose, id_, record.offset, f"an event of {_name(rm_id)} has the id")

    def _check_response(self, record: Record) -> NumberGap | None:
        rm_id, number = response_number_of(record.value)
        if not number:
            return None
        whose = (b"response", rm_id)
        # Numbers are used again by an RM that was removed and has registered again, and after an accepted loss.
        if number <= self._last.get(whose, (0, 0))[0]:
            del self._last[whose]
        return self._follow(whose, number, record.offset, f"a response to {_name(rm_id)} has the number")

    def _follow(self, whose: tuple[bytes, ...], number: int, offset: int, subject: str) -> NumberGap | None:
        last, at = self._last.get(whose, (number - 1, offset))
        self._last[whose] = number, offset
        return None if number == last + 1 else NumberGap(at + 1, offset, f"{subject} {number} after {last}")


def time_text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _name(rm_id: bytes) -> str:
    return repr(rm_id.decode(errors="replace"))
