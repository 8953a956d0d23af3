"""Moves requests that cannot be read to the dead letters, with the reason and without possible secrets."""

from __future__ import annotations

import structlog
from google.protobuf.message import DecodeError
from muster_bus.log import OutRecord, Record
from muster_bus.topics import HEADER_ERROR, HEADER_ORIGIN
from muster_proto.muster.bus.v1 import envelope_pb2 as pb

log = structlog.get_logger(__name__)

_MAY_HOLD_SECRETS = frozenset({"register", "configuration", "admin", "callback_answers"})


class Unreadable(Exception):
    """A record that the scheduler cannot read. The text gives the reason, without the record's content."""


def dead_letter(topic: str, record: Record, why: str) -> OutRecord:
    """Returns the record for the dead letters: the request, the reason, and its origin."""
    origin = f"{record.topic}/{record.partition}/{record.offset}"
    log.warning("request to the dead letters", origin=origin, why=why)
    value, left_out = _without_secrets(record.value or b"")
    headers = (*record.headers, (HEADER_ERROR, f"{why}{left_out}".encode()), (HEADER_ORIGIN, origin.encode()))
    return OutRecord(topic, record.partition, record.key, value, headers)


def _without_secrets(value: bytes) -> tuple[bytes, str]:
    """Removes an RM's configuration and state from a record, because they may hold secrets.

    Returns the value, and a text about what was removed.
    """
    try:
        envelope = pb.RequestEnvelope.FromString(value)
    except DecodeError:
        return value, ""  # not written by a gateway, which writes envelopes
    body = envelope.WhichOneof("body")
    if body not in _MAY_HOLD_SECRETS or (body == "admin" and envelope.admin.WhichOneof("command") != "validate"):
        return value, ""
    size = len(value)
    envelope.ClearField(body)
    return envelope.SerializeToString(), f" (its {body} is left out, as it may hold secrets: {size} bytes in all)"
