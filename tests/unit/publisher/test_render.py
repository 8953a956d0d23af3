"""JSON byte for byte as Go's encoding/json writes it."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from muster_event_publisher import event_json
from muster_event_publisher.event_decoding import UNREADABLE_MESSAGE
from muster_event_publisher.history import columns
from muster_proto.si.v1.si_pb2 import EventRecord, Quantity, Resource
from unit.publisher.event_strategies import event_records
from unit.publisher.feeding import event


def test_a_full_event() -> None:
    value = EventRecord(
        type=EventRecord.NODE,
        objectID="node-1",
        message="m",
        timestampNano=1700000000000000001,
        eventChangeType=EventRecord.REMOVE,
        eventChangeDetail=EventRecord.NODE_ALLOC,
        referenceID="alloc",
        resource=Resource(resources={"vcore": Quantity(value=1), "memory": Quantity(value=-2), "gpu": Quantity()}),
    )
    assert event_json.event_json(value.SerializeToString()) == (
        b'{"type":3,"objectID":"node-1","message":"m","timestampNano":1700000000000000001,"eventChangeType":3,'
        b'"eventChangeDetail":303,"referenceID":"alloc",'
        b'"resource":{"resources":{"gpu":{},"memory":{"value":-2},"vcore":{"value":1}}}}'
    )


def test_zero_and_empty_fields_are_left_out_but_the_resource() -> None:
    assert event_json.event_json(b"") == b'{"resource":{}}'


def test_numbers_of_a_newer_interface_stay_numbers() -> None:
    value = EventRecord.FromString(b"\x08\x63")  # type = 99
    assert event_json.event_json(value.SerializeToString()) == b'{"type":99,"resource":{}}'


def test_batch_bodies() -> None:
    assert event_json.batch_json("u", 3, 4, [b"{}", b"{}"]) == (
        b'{"InstanceUUID":"u","LowestID":3,"HighestID":4,"EventRecords":[{},{}]}\n'
    )
    nothing = b'{"InstanceUUID":"u","LowestID":3,"HighestID":4,"EventRecords":null}\n'
    assert event_json.batch_json("u", 3, 4, []) == nothing
    assert event_json.batch_json("u", 3, 4, None) == nothing


def test_lines_and_errors() -> None:
    assert event_json.instance_line("u") == b'{"InstanceUUID":"u"}\n'
    assert event_json.resync_line("u", 5, 8) == (
        b'{"InstanceUUID":"u","NextID":8,"message":"events 5 to 7 are missing from the log"}\n'
    )


def test_an_undecodable_record_has_a_message() -> None:
    assert json.loads(event_json.event_json(b"\xff\xff\xff")) == {"message": UNREADABLE_MESSAGE, "resource": {}}


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(0, 7))
def test_remembered_lines_are_the_right_ones(ids: list[int], slots: int) -> None:
    lines = event_json.EventLines(slots)
    for event_id in ids:
        value = EventRecord(objectID=str(event_id)).SerializeToString()
        assert json.loads(lines.get(event_id, value))["objectID"] == str(event_id)
    assert b"event 7 is missing" in lines.get(7, None)


strings = st.one_of(
    st.sampled_from(
        ["", "app-1", "3f1d2c8e-0000-4000-8000-000000000001", 'a"b', "<&>", "\u2028", "ä", "x" * 127, "x" * 128]
    ),
    st.text(max_size=20),
)
numbers = st.one_of(
    st.sampled_from([0, 1, -1, 127, 128, 2**56 - 1, 2**56, 2**63 - 1, -(2**63)]),
    st.integers(1_700_000_000 * 10**9, 1_800_000_000 * 10**9),
)
records = event_records(
    kinds=st.sampled_from([0, 2, 3, 127, 128, -1]),
    names=strings,
    messages=st.one_of(st.just(""), strings),
    times_ns=numbers,
    changes=st.sampled_from([0, 1, 2, 3, 127, 128, -1]),
    details=st.sampled_from([0, 1, 127, 128, 200, 503, 16_383, 16_384, -1]),
    references=strings,
    quantities=st.one_of(st.none(), st.dictionaries(strings, numbers, max_size=3)),
)


def pieces_of(record: EventRecord) -> list[bytes]:
    return [EventRecord(**{field.name: value}).SerializeToString() for field, value in record.ListFields()]


@settings(max_examples=400)
@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_the_quick_way_writes_what_the_slow_one_writes(of: list[EventRecord], data: st.DataObject) -> None:
    # Fields of one or more records in any order, some twice, some not at all; then bytes changed, cut, or put in.
    fields = [piece for record in of for piece in pieces_of(record)]
    how = data.draw(st.sampled_from(["as it is", "shuffled", "spoilt"]))
    value = of[0].SerializeToString()
    if how == "shuffled" and fields:
        value = b"".join(data.draw(st.lists(st.sampled_from(fields), max_size=8)))
    if how == "spoilt" and value:
        at = data.draw(st.integers(0, len(value) - 1))
        value = value[:at] + data.draw(st.binary(max_size=3)) + value[data.draw(st.integers(at, len(value))) :]
    assert event_json.event_json(value) == event_json.event_json_by_field(value)


def test_every_byte_of_a_usual_record_matters() -> None:
    value = event(7)
    assert event_json._quick(value) is not None
    for at in range(len(value)):
        assert event_json.event_json(value[:at]) == event_json.event_json_by_field(value[:at])
        for byte in range(256):
            other = value[:at] + bytes([byte]) + value[at + 1 :]
            assert event_json.event_json(other) == event_json.event_json_by_field(other), (at, byte)


def test_a_reference_whose_length_takes_two_bytes_and_which_is_cut() -> None:
    value = event(7)
    begin = value.index(b"\x4a")
    cut = value[:begin] + b"\x4a\xc8\x21" + b"x" * 199
    assert event_json.event_json(cut) == event_json.event_json_by_field(cut)


def test_large_resources_are_rendered_and_not_remembered() -> None:
    before = sum(map(len, event_json._BACKS)), sum(map(len, columns._CACHE))
    large = Resource(resources={f"{'x' * 50}{n}": Quantity(value=1) for n in range(1_000)})
    value = EventRecord(
        type=EventRecord.APP, objectID="a", timestampNano=1_750_000_000_000_000_000, eventChangeType=EventRecord.ADD,
        eventChangeDetail=EventRecord.APP_ALLOC, resource=large,
    ).SerializeToString()  # fmt: skip
    assert len(json.loads(event_json.event_json(value))["resource"]["resources"]) == 1_000
    assert len(columns.columns_of([value]).resource[0]) == 1_000
    assert (sum(map(len, event_json._BACKS)), sum(map(len, columns._CACHE))) == before
