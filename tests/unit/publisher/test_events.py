"""Records to runs: ids, RMs, shim events, and records that are no events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_bus.log import Record
from muster_event_publisher.event_runs import EventBatch, ShimEvent, batch_of
from unit.publisher.feeding import INSTANCE, event, headers, record, shim_headers


def flat(batch: EventBatch) -> list[tuple[str, str, int, int, bytes]]:
    return [
        (run.rm_id, run.instance, run.first_id + i, run.offsets[i], run.values[i])
        for run in batch.runs
        for i in range(len(run))
    ]


@given(st.data())
def test_runs_hold_exactly_the_tracking_events_in_order(data: st.DataObject) -> None:
    records: list[Record] = []
    expected: list[tuple[str, str, int, int, bytes]] = []
    next_ids = {"a": 0, "b": 7}
    offset = 0
    for _ in range(data.draw(st.integers(0, 40))):
        rm_id = data.draw(st.sampled_from(["a", "b"]))
        kind = data.draw(st.sampled_from(["event", "event", "event", "shim", "gap", "broken", "order"]))
        offset += data.draw(st.integers(1, 3))
        if kind == "shim":
            records.append(Record("t", 0, offset, 0, b"k", b"", shim_headers(rm_id)))
            continue
        if kind == "broken":
            records.append(Record("t", 0, offset, 0, b"k", b"", ()))
            continue
        if kind == "gap":
            next_ids[rm_id] += 3
        given_headers = headers(rm_id, next_ids[rm_id])
        if kind == "order":
            given_headers = given_headers[::-1]
        value = event(next_ids[rm_id])
        records.append(Record("t", 0, offset, 0, b"k", value, given_headers))
        expected.append((rm_id, dict(given_headers)["instance"].decode(), next_ids[rm_id], offset, value))
        next_ids[rm_id] += 1
    batch = batch_of(0, records, 0, offset + 1)
    assert flat(batch) == expected
    assert batch.records == len(expected)
    cut = data.draw(st.integers(0, offset + 2))
    assert flat(batch.since(cut)) == [item for item in expected if item[3] >= cut]


def test_consecutive_events_are_one_run() -> None:
    batch = batch_of(0, [record(n, "rm", n) for n in range(100)], 0, 100)
    assert len(batch.runs) == 1
    assert (batch.runs[0].first_id, batch.runs[0].last_id) == (0, 99)


@pytest.mark.parametrize(
    "bad",
    [
        (),
        headers("rm", 0)[1:],
        (("id", b"-1"), *headers("rm", 0)[1:]),
        (("id", b"1e3"), *headers("rm", 0)[1:]),
        (("id", b""), *headers("rm", 0)[1:]),
        (("id", b"9" * 19), *headers("rm", 0)[1:]),
        (("id", b"1" * 5000), *headers("rm", 0)[1:]),
        (("id", b"5"), ("rm", b"\xff"), *headers("rm", 0)[2:]),
        (headers("rm", 5)[0], headers("rm", 5)[1], ("tracking", b"1")),
    ],
)
def test_records_that_are_not_events_are_counted_and_skipped(bad: tuple[tuple[str, bytes], ...]) -> None:
    records = [record(0, "rm", 5), Record("t", 0, 1, 0, b"rm", b"", bad), record(2, "rm", 6)]
    batch = batch_of(0, records, 0, 3)
    assert [run.first_id for run in batch.runs] == [5]
    assert batch.records == 2
    assert batch.malformed == 1


def test_a_tombstone_is_no_event() -> None:
    batch = batch_of(0, [record(0, "rm", 0), record(1, "rm", 1)._replace(value=None)], 0, 2)
    assert (batch.records, batch.malformed) == (1, 1)


def test_shim_events_take_no_id_even_if_they_carry_one() -> None:
    shim = (*shim_headers("rm"), ("id", b"99"))
    batch = batch_of(0, [record(0, "rm", 0), Record("t", 0, 1, 0, b"", b"", shim), record(2, "rm", 1)], 0, 3)
    assert [(run.first_id, run.offsets) for run in batch.runs] == [(0, [0, 2])]
    assert batch.shim == [ShimEvent("rm", INSTANCE, 1, b"")]
    assert batch.since(1).shim == batch.shim
    assert not batch.since(2).shim
