"""Follows asks through a Muster on Kafka by the clock: what waits for what.

``profile_bench --backend kafka --path`` starts the gateway and the scheduler with this. Both note times by offsets of
si.requests, and all processes of a machine share one monotonic clock. So no ask is marked.
"""

from __future__ import annotations

import atexit
import bisect
import importlib
import itertools
import json
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster_bus.topics import Topics

# Kinds of notes. Each note has a partition, an offset (the last one, for all but appends) and times in seconds.
APPENDED, READ, COMMITTED, SEEN = "appended", "read", "committed", "seen"
# Each step with the two of the six times that it lies between.
STEPS = (
    ("gateway: append, until the broker has the request", 0, 1),
    ("until the scheduler has read it", 1, 2),
    ("decision, and the wait for the transaction before", 2, 3),
    ("its own transaction", 3, 4),
    ("until the gateway has the answer", 4, 5),
    ("all of it", 0, 5),
)
_REQUESTS = Topics().requests

Notes = Mapping[str, Sequence[Sequence[float]]]


def be_noted(out: Path) -> None:
    """Notes the times in this process from now on, and writes them to ``out`` at its end. SIGUSR1 begins anew."""
    notes: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    _note_appends(notes)
    _note_reads(notes)
    _note_commits(notes)
    _note_answers(notes)
    signal.signal(signal.SIGUSR1, lambda *_: notes.clear())
    atexit.register(lambda: out.write_text(json.dumps(notes)))


def _note_appends(notes: dict[str, list[tuple[float, ...]]]) -> None:
    writer: Any = importlib.import_module("muster_bus.backends.kafka_writer").KafkaWriter
    append = writer.append

    def noted(self_: Any, record: Any) -> Any:
        began_s = time.monotonic()
        done = append(self_, record)
        if record.topic.endswith(_REQUESTS):

            def note(future: Any) -> None:
                if future.exception() is None:
                    notes[APPENDED].append((record.partition, future.result(), began_s, time.monotonic()))

            done.add_done_callback(note)
        return done

    writer.append = noted


def _note_reads(notes: dict[str, list[tuple[float, ...]]]) -> None:
    reader: Any = importlib.import_module("muster_bus.backends.kafka_reader").KafkaReader
    read = reader.read

    async def noted(self_: Any, max_records: int, timeout_s: float) -> Any:
        records = await read(self_, max_records, timeout_s)
        if records and records[0].topic.endswith(_REQUESTS):
            notes[READ].append((records[0].partition, records[-1].offset, time.monotonic()))
        return records

    reader.read = noted


def _note_commits(notes: dict[str, list[tuple[float, ...]]]) -> None:
    owner: Any = importlib.import_module("muster_bus.backends.kafka_owner").KafkaOwner
    commit = owner.commit

    async def noted(self_: Any, records: Any, input_position: int | None) -> None:
        began_s = time.monotonic()
        await commit(self_, records, input_position)
        if input_position is not None:
            notes[COMMITTED].append((self_._topic_partition.partition, input_position - 1, began_s, time.monotonic()))

    owner.commit = noted


def _note_answers(notes: dict[str, list[tuple[float, ...]]]) -> None:
    tail: Any = importlib.import_module("muster_gateway.response_delivery").ResponseTail
    report = tail._report

    def noted(self_: Any, record: Any) -> None:
        report(self_, record)
        notes[SEEN].append((self_.partition, self_.decided - 1, time.monotonic()))

    tail._report = noted


def times_of_asks(gateway: Notes, scheduler: Notes) -> list[tuple[float, ...]]:
    """Returns six times of each request, in the log's order: append, appended, read, commit begins, committed, seen.

    A request that lacks one is left out: it came before the notes began.
    """
    after = {READ: _by_partition(scheduler.get(READ, ())), COMMITTED: _by_partition(scheduler.get(COMMITTED, ()))}
    seen = _by_partition(gateway.get(SEEN, ()))
    found = []
    for partition, offset, began_s, appended_s in sorted(gateway.get(APPENDED, ())):
        rest = [_first_from(some.get(partition, []), offset) for some in (after[READ], after[COMMITTED], seen)]
        if all(rest):
            found.append((began_s, appended_s, *itertools.chain.from_iterable(rest)))
    return found


def _by_partition(notes: Sequence[Sequence[float]]) -> dict[float, list[tuple[float, ...]]]:
    found: dict[float, list[tuple[float, ...]]] = defaultdict(list)
    for partition, *rest in sorted(notes):
        found[partition].append(tuple(rest))
    return found


def _first_from(notes: list[tuple[float, ...]], offset: float) -> tuple[float, ...]:
    """Returns the times of the first note up to this offset or a later one; (): there is none."""
    place = bisect.bisect_left(notes, (offset,))
    return notes[place][1:] if place < len(notes) else ()


def steps_of(asks: Sequence[tuple[float, ...]]) -> list[tuple[str, float, float]]:
    """Returns each step with its median and its mean (ms)."""
    rows = []
    for step, begin, end in STEPS:
        spans = [(ask[end] - ask[begin]) * 1e3 for ask in asks]
        rows.append((step, statistics.median(spans), statistics.fmean(spans)))
    return rows


def transactions_of(scheduler: Notes) -> tuple[float, float]:
    """Returns the median length of a transaction (ms), and the median pause between two of a partition (ms)."""
    lengths, pauses = [], []
    for some in _by_partition(scheduler.get(COMMITTED, ())).values():
        lengths += [(end - begin) * 1e3 for _, begin, end in some]
        pauses += [(after[1] - before[2]) * 1e3 for before, after in itertools.pairwise(some)]
    return statistics.median(lengths), statistics.median(pauses)
