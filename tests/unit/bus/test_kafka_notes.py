"""What an owner on Kafka notes with its commits: the sum of the state, the text, and the breaks that it shows."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from aiokafka import TopicPartition
from muster_bus.backends.breaks import BreakKind, RecordNumbers
from muster_bus.backends.kafka_ends import Present
from muster_bus.backends.kafka_notes import Note, NotedPart, NotedPlaces, OwnerNotes, PartitionFound
from muster_bus.backends.live_keys import LiveKeys, LiveSum, names_of
from muster_bus.errors import LogDamaged
from muster_bus.log import Record
from muster_bus.topics import Topics, response_number_of, state_key
from muster_proto.muster.bus.v1 import envelope_pb2

TOPICS = Topics(partitions=2)
NAMES = [spec.name for spec in TOPICS.specs()]
PLACES = NotedPlaces(TOPICS, NAMES, "scheduler", 0)


def record(topic: str, offset: int, key: bytes = b"k", value: bytes | None = b"v", **headers: bytes) -> Record:
    return Record(topic, 0, offset, 0, key, value, tuple(headers.items()))


def ends(end: int = 10, topic_id: str = "id", **others: int) -> dict[TopicPartition, Present]:
    found = {place: Present(topic_id, end) for place in PLACES.all}
    for name, its_end in others.items():
        found[getattr(PLACES, name)] = Present(topic_id, its_end)
    return found


def found_after(notes: OwnerNotes, present: dict[TopicPartition, Present]) -> PartitionFound:
    text = notes.offsets(None, {})[PLACES.requests].metadata
    return PartitionFound(notes.position, Note.from_text(text), is_newest=True, present=present)


@pytest.mark.parametrize("seed", range(20))
def test_the_sum_of_the_state_is_the_same_after_each_compaction(seed: int) -> None:
    rng = random.Random(seed)
    keys = [state_key(f"rm-{number % 3}", "node", "default", f"n{number}") for number in range(30)]
    written = [
        record(TOPICS.state, offset, rng.choice(keys), rng.choice([None, b"a", b"b", b"%d" % offset]))
        for offset in range(400)
    ]
    whole = LiveKeys()
    whole.fold(written)
    newest = {each.key: each for each in written}
    assert whole.sum().keys == len(set(whole)) == sum(each.value is not None for each in newest.values())
    for _ in range(5):  # a broker keeps the newest record of each key; of the others, and of tombstones, what it likes
        left = [
            each
            for each in written
            if (newest[each.key] is each and each.value is not None)
            or (newest[each.key] is not each and rng.random() < 0.3)
        ]
        # (It never removes a tombstone before the records that it deletes.)
        left += [each for each in newest.values() if each.value is None]
        left.sort(key=lambda each: each.offset)
        compacted = LiveKeys()
        compacted.fold(left)
        assert compacted.sum() == whole.sum()
    live = [each for each in newest.values() if each.value is not None]
    for changed in (live[1:], [*live[1:], live[0]._replace(value=b"other")]):
        other = LiveKeys()
        other.fold(changed)
        assert other.sum() != whole.sum()
    assert names_of([*whole, b"strange"]) == names_of(whole)


def test_a_note_is_a_short_text() -> None:
    part = NotedPart("AbCdEfGh", 2**60, LiveSum(2_000_000, 2**62 - 1), 2**59)
    note = Note(2**60, {PLACES.name_of(place): part for place in PLACES.all})
    assert Note.from_text(note.to_text()) == note
    assert len(note.to_text()) < 700
    long = NotedPlaces(replace(TOPICS, prefix="p" * 100), NAMES, "scheduler", 4095)
    assert {long.name_of(place).partition("/")[0] for place in long.all} <= set(NAMES)
    for text in ("", "another tool", "[]", "{}", '{"muster":2,"at":1,"parts":{}}', '{"muster":1,"at":1,"parts":[1]}'):
        assert Note.from_text(text) is None


def test_a_note_knows_where_the_present_commit_ends() -> None:
    notes = OwnerNotes(PLACES, PartitionFound(5, None, is_newest=False, present=ends(state=20)))
    notes.track_live_keys(LiveKeys())
    notes.add(b"k", b"v")
    counts = {PLACES.state: 3}
    note = Note.from_text(notes.offsets(7, counts)[PLACES.state].metadata)
    assert note is not None
    assert note.position == 7
    assert note.partitions["si.state.v1/0"].end == 24  # with the marker of the transaction
    assert note.partitions["si.state.v1/0"].live is not None
    assert note.partitions["si.events.v1/0"].end == 10
    assert notes.is_as_noted({PLACES.state: 20}, "the log")
    notes.committed(counts)
    # a coordinator that moved has written a marker twice: the note is committed again, of the place that it is
    assert not notes.is_as_noted({PLACES.state: 25}, "the log")
    note = Note.from_text(notes.offsets(7, counts)[PLACES.state].metadata)
    assert note is not None
    assert note.partitions["si.state.v1/0"].end == 29
    notes.committed(counts)
    assert notes.is_as_noted({PLACES.state: -1}, "the log")  # the broker did not say
    with pytest.raises(LogDamaged, match=r"si\.state\.v1\[0\] from 28 to 29: its newest records are missing"):
        notes.is_as_noted({PLACES.state: 28}, "the log")


def test_what_is_there_is_compared_with_the_note() -> None:
    notes = OwnerNotes(PLACES, PartitionFound(10, None, is_newest=False, present=ends()))
    live = LiveKeys()
    live.fold([record(TOPICS.state, 3)])
    notes.track_live_keys(live)
    found = found_after(notes, ends())
    assert PLACES.check(found) == []
    assert PLACES.check_state(found, live) == []

    def kinds(found: PartitionFound) -> list[tuple[BreakKind, str, int, int]]:
        return [(each.kind, each.topic, each.first_offset, each.next_offset) for each in PLACES.check(found)]

    assert kinds(found_after(notes, ends(state=9))) == [(BreakKind.END, TOPICS.state, 9, 10)]
    assert kinds(found_after(notes, ends(requests=4))) == [(BreakKind.END, TOPICS.requests, 4, 10)]
    assert {kind for kind, *_ in kinds(found_after(notes, ends(100, "other")))} == {BreakKind.TOPIC}
    assert kinds(found_after(notes, ends(100, ""))) == []  # a broker that knows no ids
    assert kinds(found._replace(position=4)) == [(BreakKind.POSITION, TOPICS.requests, 4, 10)]
    assert kinds(found._replace(position=14)) == [(BreakKind.POSITION, TOPICS.requests, 10, 14)]
    assert kinds(found._replace(position=14, note=None)) == [(BreakKind.POSITION, TOPICS.requests, 10, 14)]
    assert PLACES.position_after(found._replace(position=14)) == 10
    assert PLACES.position_after(found._replace(position=4)) == 10
    assert PLACES.position_after(found_after(notes, ends(7, "other"))) == 0
    other = LiveKeys()
    assert [each.kind for each in PLACES.check_state(found, other)] == [BreakKind.COUNT]
    assert PLACES.check_state(found._replace(is_newest=False), other) == []  # an older version came after it
    other.fold([record(TOPICS.state, 3), record(TOPICS.state, 12, b"k2")])
    assert "ended before these records" in PLACES.check_state(found, other)[0].reason


def test_numbers_of_responses_have_no_gap() -> None:
    def response(rm_id: str, number: int, offset: int) -> Record:
        envelope = envelope_pb2.ResponseEnvelope(rm_id=rm_id, sequence=number, stream=1, response=b"r" * 300)
        return record(TOPICS.responses, offset, value=envelope.SerializeToString())

    assert response_number_of(response("é" * 100, 2**63, 0).value) == (("é" * 100).encode(), 2**63)
    decided = envelope_pb2.ResponseEnvelope(decided=9).SerializeToString()
    admin = envelope_pb2.ResponseEnvelope(rm_id="one", admin=envelope_pb2.AdminResult(json="j")).SerializeToString()
    for value in (None, b"", b"\x0a", b"\x0a\xff", b"\x0a\x01", b"m0:1", decided, admin):
        assert response_number_of(value)[1] == 0
    numbers = RecordNumbers()
    for offset, (rm_id, number) in enumerate([("one", 7), ("two", 1), ("one", 8), ("two", 2), ("one", 1), ("one", 2)]):
        assert numbers.check(response(rm_id, number, offset)) is None
    assert numbers.check(record(TOPICS.responses, 6, value=decided)) is None
    gap = numbers.check(response("two", 4, 9))
    assert gap == (4, 9, "a response to 'two' has the number 4 after 2")
    assert numbers.check(response("two", 5, 10)) is None
