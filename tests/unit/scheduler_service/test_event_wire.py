"""The hand-written encoder of events gives the same bytes as the stubs."""

from __future__ import annotations

import random

import pytest
from muster_core.model.outcome import Event, EventChange, EventDetail, EventType
from muster_core.model.resources import ResourceTypes
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.event_wire import MESSAGE_CHARACTERS_MAX, encode_event, resource_of

TEXTS = ("", "a", "root.b.c", "x" * 127, "y" * 128, "z" * 70_000, "größe-日本", "\x00", "\U0001f600" * 40)
TIMES = (0, 1, 127, 128, 1_763_780_000_000_000_000, 2**63 - 1, -1)
AMOUNTS = (0, 1, 127, 128, 10**12, 2**63 - 1, 2**70, -(2**70), -5)


def by_the_stubs(event: Event) -> bytes:
    resource = event.resource
    quantities = resource.quantities if resource is not None and not isinstance(resource, dict) else resource
    return si.EventRecord(
        type=si.EventRecord.Type.Name(event.type),
        objectID=event.object_id,
        message=event.message[:MESSAGE_CHARACTERS_MAX],
        timestampNano=event.now_ns,
        eventChangeType=si.EventRecord.ChangeType.Name(event.change),
        eventChangeDetail=si.EventRecord.ChangeDetail.Name(event.detail),
        referenceID=event.reference_id,
        resource=None if quantities is None else resource_of(quantities),
    ).SerializeToString(deterministic=True)


@pytest.mark.parametrize("detail", EventDetail, ids=lambda detail: detail.name)
def test_every_detail_in_every_form(detail: EventDetail) -> None:
    dice = random.Random(int(detail))
    types = ResourceTypes()
    for kind in EventType:
        for change in EventChange:
            for _ in range(4):
                amounts = {name: dice.choice(AMOUNTS) for name in dice.sample(["vcore", "memory", "gpu", "größe"], 2)}
                positive = {name: abs(value) for name, value in amounts.items()}
                resource = dice.choice([None, {}, amounts, types.shape(positive)])
                event = Event(
                    kind, change, detail, *dice.choices(TEXTS, k=2), resource, dice.choice(TEXTS), dice.choice(TIMES)
                )
                assert encode_event(event) == by_the_stubs(event)


def test_the_details_are_those_of_the_interface() -> None:
    """They have the same numbers. DETAILS_NONE is NONE here, and two of them are never used (docs/events.md)."""
    there = {name: number for name, number in si.EventRecord.ChangeDetail.items() if number}
    here = {detail.name: int(detail) for detail in EventDetail if detail}
    never = {"REQUEST_ALLOC": 101, "QUEUE_ALLOC": 406}
    assert {**here, **never} == there
    assert {kind.name: int(kind) for kind in EventType} == {
        name: number for name, number in si.EventRecord.Type.items() if number
    }
    assert {change.name: int(change) for change in EventChange} == dict(si.EventRecord.ChangeType.items())


def test_a_message_is_cut_by_characters_never_within_one() -> None:
    event = Event(EventType.REQUEST, EventChange.NONE, EventDetail.NONE, "k", "x", None, "ü" * 2_000)
    assert si.EventRecord.FromString(encode_event(event)).message == "ü" * MESSAGE_CHARACTERS_MAX
