"""A block restores its records: any bytes, and records in the scheduler's form."""

from __future__ import annotations

import uuid
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from muster_event_publisher.ring_blocks import pack, unpack
from muster_proto.si.v1.si_pb2 import EventRecord
from unit.publisher.event_strategies import event_records

references = st.one_of(
    st.uuids().map(str),
    st.uuids().map(lambda value: str(value).upper()),
    st.uuids().map(lambda value: value.hex + "abcd"),
    st.text(max_size=40),
)
records = event_records(
    kinds=st.integers(-1, 200),
    names=st.text(max_size=200),
    messages=st.one_of(st.just(""), st.text(max_size=300)),
    times_ns=st.one_of(st.integers(1_700_000_000 * 10**9, 1_800_000_000 * 10**9), st.integers(-(2**63), 2**63 - 1)),
    changes=st.integers(-1, 200),
    details=st.integers(-1, 20_000),
    references=references,
    quantities=st.one_of(
        st.none(), st.dictionaries(st.text(max_size=70), st.integers(-(2**63), 2**63 - 1), max_size=3)
    ),
).map(EventRecord.SerializeToString)
spoilt = st.builds(
    lambda record, cut, more: record[: len(record) - cut] + more, records, st.integers(0, 60), st.binary(max_size=4)
)


@given(st.lists(st.one_of(records, spoilt, st.binary(max_size=60), st.none()), min_size=1, max_size=40), st.data())
@example([b""], None)
@example([None], None)
@example([b"\x30" + b"\xff" * 8 + b"\x7f"], None)
@example([b"\x30" + b"\x80" * 8 + b"\x00", b"\x30" + b"\xff" * 8 + b"\x7f", b"\x4a", b"\x12\xff"], None)
def test_packed_records_are_restored(values: list[bytes | None], data: st.DataObject | None) -> None:
    if data is not None:
        # Repeated records, so that compression has an effect.
        values = [values[i] for i in data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=80))]
    assert unpack(pack(values)) == values


@pytest.mark.parametrize("count", [1, 2048, 65_535])
def test_full_blocks(count: int) -> None:
    random = Random(count)
    names = [f"app-{number}" for number in range(50)]
    values: list[bytes | None] = [
        EventRecord(
            type=EventRecord.APP,
            objectID=random.choice(names),
            timestampNano=1_750_000_000 * 10**9 + number * 10**6 + random.randrange(10**6),
            eventChangeType=EventRecord.ADD,
            eventChangeDetail=EventRecord.APP_ALLOC,
            referenceID=str(uuid.UUID(int=random.getrandbits(128))),
        ).SerializeToString()
        for number in range(count)
    ]
    packed = pack(values)
    assert unpack(packed) == values
    if count > 1:
        # The UUID takes 16 bytes, the time about 4, the rest almost nothing.
        assert len(packed) < 23 * count
