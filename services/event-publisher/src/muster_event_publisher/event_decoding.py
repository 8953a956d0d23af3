"""Reads ``si.v1.EventRecord``: the one module of the publisher that imports the stubs."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError
from muster_proto.muster.bus.v1.envelope_pb2 import RmLifecycle
from muster_proto.muster.bus.v1.state_pb2 import (
    ApplicationObject,
    ForgottenObject,
    RegistrationObject,
    RmObject,
)
from muster_proto.si.v1.si_pb2 import EventRecord, Resource
from muster_si.positions import NO_STAMP, Stamp

from muster_event_publisher import metrics

__all__ = [
    "CHANGE_DETAIL_NAMES",
    "CHANGE_TYPE_NAMES",
    "TYPE_NAMES",
    "UNREADABLE_MESSAGE",
    "EventRecord",
    "RecordedRm",
    "Resource",
    "decode",
    "decodes",
    "enum_name",
    "forgotten_stamp",
    "queue_of_application",
    "recorded_rm",
    "registered_extra_config",
]  # fmt: skip

# Stands for a record whose bytes do not decode, so that no event is left out silently.
UNREADABLE_MESSAGE = "the event record cannot be read"
_UNREADABLE = EventRecord(message=UNREADABLE_MESSAGE)

TYPE_NAMES: dict[int, str] = {number: name for name, number in EventRecord.Type.items()}
CHANGE_TYPE_NAMES: dict[int, str] = {number: name for name, number in EventRecord.ChangeType.items()}
CHANGE_DETAIL_NAMES: dict[int, str] = {number: name for name, number in EventRecord.ChangeDetail.items()}


def decode(value: bytes) -> EventRecord:
    """The record. Bytes that do not decode give a record with UNREADABLE_MESSAGE."""
    try:
        return EventRecord.FromString(value)
    except DecodeError:
        metrics.UNREADABLE.inc()
        return _UNREADABLE


def decodes(value: bytes) -> bool:
    """Whether the bytes decode."""
    try:
        EventRecord.FromString(value)
    except DecodeError:
        return False
    return True


def registered_extra_config(value: bytes) -> dict[str, str] | None:
    """The ``extraConfig`` of a registration on ``si.state``; None when the bytes do not decode."""
    try:
        return dict(RegistrationObject.FromString(value).extra_config)
    except DecodeError:
        return None


class RecordedRm(NamedTuple):
    """An RM on ``si.state``.

    :ivar next_event_id: of its instance.
    :ivar stamp: of the transaction that wrote it.
    """

    is_stopped: bool
    instance: str
    next_event_id: int
    stamp: Stamp


def recorded_rm(value: bytes) -> RecordedRm | None:
    """The RM's object; None when the bytes do not decode."""
    try:
        rm = RmObject.FromString(value)
    except DecodeError:
        return None
    stamp = Stamp(rm.stamp_before, rm.stamp_step)
    return RecordedRm(rm.state == RmLifecycle.STOPPED, rm.instance_uuid, rm.next_event_id, stamp)


def forgotten_stamp(value: bytes) -> Stamp:
    """The stamp of an RM that an operator forgot; none when the bytes do not decode."""
    try:
        rm = ForgottenObject.FromString(value)
    except DecodeError:
        return NO_STAMP
    return Stamp(rm.stamp_before, rm.stamp_step)


def queue_of_application(value: bytes) -> str:
    """The queue of an application on ``si.state``; "" when it has none, or the bytes do not decode."""
    try:
        return ApplicationObject.FromString(value).queue
    except DecodeError:
        return ""


def enum_name(names: dict[int, str], number: int) -> str:
    """The name of an enum's number; ``UNKNOWN_n`` for a number of a newer interface."""
    return names.get(number) or f"UNKNOWN_{number}"
