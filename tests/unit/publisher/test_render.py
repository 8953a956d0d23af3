"""JSON byte for byte as Go's encoding/json writes it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from muster_event_publisher import render
from muster_event_publisher.codec import UNREADABLE_MESSAGE
from muster_proto.si.v1.si_pb2 import EventRecord, Quantity, Resource


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
    assert render.event_json(value.SerializeToString()) == (
        b'{"type":3,"objectID":"node-1","message":"m","timestampNano":1700000000000000001,"eventChangeType":3,'
        b'"eventChangeDetail":303,"referenceID":"alloc",'
        b'"resource":{"resources":{"gpu":{},"memory":{"value":-2},"vcore":{"value":1}}}}'
    )


def test_zero_and_empty_fields_are_left_out_but_the_resource() -> None:
    assert render.event_json(b"") == b'{"resource":{}}'


def test_numbers_of_a_newer_interface_stay_numbers() -> None:
    value = EventRecord.FromString(b"\x08\x63")  # type = 99
    assert render.event_json(value.SerializeToString()) == b'{"type":99,"resource":{}}'


def test_batch_bodies() -> None:
    assert render.batch_json("u", 3, 4, [b"{}", b"{}"]) == (
        b'{"InstanceUUID":"u","LowestID":3,"HighestID":4,"EventRecords":[{},{}]}\n'
    )
    nothing = b'{"InstanceUUID":"u","LowestID":3,"HighestID":4,"EventRecords":null}\n'
    assert render.batch_json("u", 3, 4, []) == nothing
    assert render.batch_json("u", 3, 4, None) == nothing


def test_lines_and_errors() -> None:
    assert render.instance_line("u") == b'{"InstanceUUID":"u"}\n'
    assert render.resync_line("u", 5, 8) == (
        b'{"InstanceUUID":"u","NextID":8,"message":"events 5 to 7 are missing from the log"}\n'
    )


def test_what_does_not_decode_says_so() -> None:
    assert json.loads(render.event_json(b"\xff\xff\xff")) == {"message": UNREADABLE_MESSAGE, "resource": {}}


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(0, 7))
def test_remembered_lines_are_the_right_ones(ids: list[int], slots: int) -> None:
    lines = render.EventLines(slots)
    for event_id in ids:
        value = EventRecord(objectID=str(event_id)).SerializeToString()
        assert json.loads(lines.get(event_id, value))["objectID"] == str(event_id)
    assert b"event 7 is missing" in lines.get(7, None)
