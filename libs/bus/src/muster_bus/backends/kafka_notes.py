"""What an owner notes with each commit on Kafka, so that a lost part of the log is not silent.

Kafka stores a text with each offset that a group commits. The owner's text is the *note*: for each partition that it
writes, the topic's id and where the partition ends after this very transaction; for the state, which is compacted, also
number and sum of its live keys (``live_keys.py``). It is in the transaction, and in another topic than all that it is
about. A commit knows the ends before the brokers tell them: an owner is the only one who writes transactions there, so
the next batch begins where the last one ended, behind one marker. If it begins earlier, records are lost.

The group commits the note twice, with its position in the requests and with a place in the state: Kafka deletes the
offsets of a deleted topic, and an older version of Muster commits its position without a note. The first commit of each
owner has a position, in all versions. So a position with a note was committed last, whatever came meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import OffsetAndMetadata

from muster_bus.backends.breaks import Break, BreakKind
from muster_bus.backends.kafka_ends import Present, present_ends
from muster_bus.backends.kafka_stable_offset import Committed, stable_offsets
from muster_bus.backends.live_keys import LiveKeys, LiveSum, names_of
from muster_bus.errors import LogDamaged
from muster_bus.topics import Topics

_VERSION = 1
# Kafka's limit is 4,096 (offset.metadata.max.bytes); a note has some 300.
_BYTES_MAX = 4000
REMEDY = (
    "nothing was changed; let a broker with a whole copy lead the partition, or run muster repair, which lists all "
    "such parts and goes on without those that you accept (docs/backup.md)"
)


class NotedPart(NamedTuple):
    """What a note says of one partition.

    :param topic_id: "": unknown.
    :param live: of the state; None: unknown.
    :param whole_from: a gap in the numbers of records before this offset is accepted.
    """

    topic_id: str
    end: int
    live: LiveSum | None = None
    whole_from: int = 0


class Note(NamedTuple):
    """See the module.

    :param position: of the group in its input.
    :param partitions: by "topic/partition", without the topics' prefix.
    """

    position: int
    partitions: Mapping[str, NotedPart]

    def to_text(self) -> str:
        """Returns the text that Kafka stores; "": it would be too long."""
        parts: dict[str, list[object]] = {}
        for name, part in self.partitions.items():
            live = [] if part.live is None else [part.live.keys, f"{part.live.total:x}"]
            parts[name] = [part.topic_id, part.end, part.whole_from, *live]
        text = json.dumps({"muster": _VERSION, "at": self.position, "parts": parts}, separators=(",", ":"))
        return text if len(text.encode()) <= _BYTES_MAX else ""

    @classmethod
    def from_text(cls, text: str) -> Note | None:
        """Inverse of :meth:`to_text`; None if the text is no note, or of a later version."""
        try:
            content: dict[str, Any] = json.loads(text)
            if content["muster"] != _VERSION:
                return None
            parts = {}
            for name, (topic_id, end, whole_from, *live) in content["parts"].items():
                live_sum = LiveSum(int(live[0]), int(live[1], 16)) if live else None
                parts[str(name)] = NotedPart(str(topic_id), int(end), live_sum, int(whole_from))
            return cls(int(content["at"]), parts)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return None


class PartitionFound(NamedTuple):
    """What is noted of a partition of the requests and those that answer it, and what is there.

    :param position: of the group; None: it has none.
    :param note: of its last commit; None: an older version was here, or the log is new.
    :param is_newest: the note is of the last commit; otherwise its ends hold, but an older version may have written.
    :param present: each partition as it is.
    """

    position: int | None
    note: Note | None
    is_newest: bool
    present: Mapping[TopicPartition, Present]


class NotedPlaces:
    """The partitions that an owner of one partition of the requests writes.

    :param names: of the log's topics.
    """

    def __init__(self, topics: Topics, names: Sequence[str], group: str, partition: int) -> None:
        self.group, self.partition, self._prefix = group, partition, topics.prefix
        self.requests = TopicPartition(topics.requests, partition)
        self.state = TopicPartition(topics.state, partition)
        written = (topics.responses, topics.events, topics.dead_letters, topics.audit)
        self.all = [self.requests, self.state, *(TopicPartition(name, partition) for name in written if name in names)]

    def name_of(self, partition: TopicPartition) -> str:
        """Returns a partition's name in notes."""
        return f"{partition.topic.removeprefix(self._prefix)}/{partition.partition}"

    async def query(self, client: AIOKafkaClient) -> PartitionFound:
        """Asks Kafka. The caller sets the deadline. Raises aiokafka's errors."""
        # (In this order: ends only grow.)
        committed = await stable_offsets(client, self.group, [self.requests, self.state])
        present = await present_ends(client, self.all)
        first, second = committed.get(self.requests), committed.get(self.state)
        newest = _note_in(first)
        note = newest or _note_in(second)
        position = None if first is None else first.offset
        is_newest = newest is not None or (note is not None and position is None)
        return PartitionFound(position, note, is_newest, present)

    def check(self, current: PartitionFound) -> list[Break]:
        """Compares what is there with the last commit, but for the content of the state. Returns the breaks."""
        breaks: list[Break] = []
        note, end = current.note, current.present[self.requests].end
        parts = {} if note is None else note.partitions
        for partition in self.all:
            part, present = parts.get(self.name_of(partition)), current.present[partition]
            if part is None:
                continue
            if part.topic_id and present.topic_id and part.topic_id != present.topic_id:
                reason = f"the topic was deleted and created again; it had ended at {part.end}"
                breaks.append(_break(BreakKind.TOPIC, partition, 0, part.end, reason))
            elif present.end < part.end:
                breaks.append(_break(BreakKind.END, partition, present.end, part.end, "its newest records are missing"))
        if any(break_.topic == self.requests.topic for break_ in breaks):
            return breaks
        if current.position is not None and current.position > end:
            reason = f"group {self.group} is at {current.position}, but the partition ends at {end}"
            breaks.append(_break(BreakKind.POSITION, self.requests, end, current.position, reason))
        elif note is not None and current.position is not None and current.position < note.position:
            reason = f"group {self.group} is at {current.position}, but its last commit was at {note.position}"
            breaks.append(_break(BreakKind.POSITION, self.requests, current.position, note.position, reason))
        return breaks

    def check_state(self, current: PartitionFound, live: LiveKeys) -> list[Break]:
        """Compares the state, folded to its end, with the last commit. Returns the breaks."""
        part = None if current.note is None else current.note.partitions.get(self.name_of(self.state))
        if not current.is_newest or part is None or part.live is None:
            return []
        noted, actual = part.live, live.sum()
        if live.last >= part.end:
            reason = "the last commit of Muster ended before these records"
            return [_break(BreakKind.COUNT, self.state, part.end, live.last + 1, reason, names_of(live))]
        if noted == actual:
            return []
        reason = (
            f"it has {actual.keys} keys instead of {noted.keys}"
            if noted.keys != actual.keys
            else f"the content of its {actual.keys} keys is another one than noted"
        )
        return [_break(BreakKind.COUNT, self.state, 0, part.end, reason, names_of(live))]

    def position_after(self, current: PartitionFound) -> int | None:
        """Returns where the group goes on in spite of all breaks; None: at the first request."""
        note, present = current.note, current.present[self.requests]
        part = None if note is None else note.partitions.get(self.name_of(self.requests))
        if part is not None and part.topic_id and present.topic_id and part.topic_id != present.topic_id:
            return 0
        positions = [
            position for position in (current.position, None if note is None else note.position) if position is not None
        ]
        return min(max(positions), present.end) if positions else None


def _break(
    kind: BreakKind, partition: TopicPartition, first: int, end: int, reason: str, rms: tuple[str, ...] = ()
) -> Break:
    return Break(kind, partition.topic, partition.partition, first, end, reason, rms=rms)


def _note_in(committed: Committed | None) -> Note | None:
    return None if committed is None else Note.from_text(committed.metadata)


def refuse(breaks: Sequence[Break], name: str) -> None:
    """Raises LogDamaged for breaks, if there are any.

    :param name: the log in messages.
    """
    if not breaks:
        return
    first = breaks[0]
    more = f" (and {len(breaks) - 1} more)" if len(breaks) > 1 else ""
    error = LogDamaged(first.topic, first.partition, first.first_offset, first.next_offset, first.reason, REMEDY)
    error.args = (f"{name} is damaged: {first}{more}; {REMEDY}",)
    raise error


class OwnerNotes:
    """The notes of one owner. A failed commit makes them useless, as it does the owner.

    :param is_stored: whether the brokers take the text.
    """

    def __init__(self, places: NotedPlaces, current: PartitionFound, *, is_stored: bool = True) -> None:
        self.partitions, self.at_takeover, self._is_stored = places, current, is_stored
        self._live: LiveKeys | None = None
        self._position = current.position
        if self._position is None and current.note is not None:
            self._position = current.note.position
        noted = {} if current.note is None else current.note.partitions
        self._ends = {partition: present.end for partition, present in current.present.items()}
        self._whole_from = {
            partition: part.whole_from
            for partition in places.all
            if (part := noted.get(places.name_of(partition))) is not None
            and part.topic_id == current.present[partition].topic_id
        }

    @property
    def position(self) -> int | None:
        """The group's position before the present commit."""
        return self._position

    def track_live_keys(self, live: LiveKeys) -> None:
        """From now on the notes have the sum of the state, whose present content this is."""
        self._live = live

    def accept(self, breaks: Iterable[Break], position: int | None) -> None:
        """The next note is of the log as it is.

        :param breaks: whose numbers may have a gap.
        """
        self._position = position
        for break_ in breaks:
            partition = TopicPartition(break_.topic, break_.partition)
            self._whole_from[partition] = self._ends.get(partition, 0)

    def add(self, key: bytes, value: bytes | None) -> None:
        """Adds a record that the present commit writes into the state."""
        if self._live is not None:
            self._live.add(key, value)

    def offsets(
        self, position: int | None, counts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns what the group commits.

        :param position: the new one; None: as before.
        :param counts: numbers of the records that the commit writes.
        """
        self._position = self._position if position is None else position
        if self._position is None:
            return {}
        if not self._is_stored:
            return {self.partitions.requests: OffsetAndMetadata(self._position, "")}
        parts = {}
        for partition in self.partitions.all:
            count = counts.get(partition, 0)
            end = self._ends[partition] + count + 1 if count else self._ends[partition]
            if partition == self.partitions.requests:
                end = self._position
            live = self._live.sum() if partition == self.partitions.state and self._live is not None else None
            topic_id = self.at_takeover.present[partition].topic_id
            parts[self.partitions.name_of(partition)] = NotedPart(
                topic_id, end, live, self._whole_from.get(partition, 0)
            )
        text = Note(self._position, parts).to_text()
        return {
            self.partitions.requests: OffsetAndMetadata(self._position, text),
            self.partitions.state: OffsetAndMetadata(self._ends[self.partitions.state], text),
        }

    def is_as_noted(self, bases: Mapping[TopicPartition, int], name: str) -> bool:
        """Compares where the present commit's records are with what its note expects. Returns whether the note is
        right; otherwise it must be committed again, in the same transaction.

        (A coordinator that moves may write a marker twice.)

        :param bases: first offsets; -1: unknown.

        Raises LogDamaged if a partition has lost its end meanwhile.
        """
        right = True
        for partition, base in bases.items():
            end = self._ends.get(partition)
            if end is None or base < 0:
                continue
            if base < end:
                reason = "its newest records are missing: a commit was written in their place, and is undone"
                refuse([_break(BreakKind.END, partition, base, end, reason)], name)
            # (Others may write the rest, too: there a note is a lower limit.)
            right = right and (base == end or partition != self.partitions.state)
            self._ends[partition] = base
        return right

    def committed(self, counts: Mapping[TopicPartition, int]) -> None:
        """The present commit is done."""
        for partition, count in counts.items():
            if partition in self._ends:
                self._ends[partition] += count + 1
