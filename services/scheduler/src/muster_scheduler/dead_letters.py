"""Moves requests that cannot be read to the dead letters, with the reason and without possible secrets."""

from __future__ import annotations

import structlog
from google.protobuf.message import DecodeError, Message
from muster_bus.log import OutRecord, Record
from muster_bus.topics import HEADER_ERROR, HEADER_ORIGIN
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_runtime.secrets import masked_text, may_hold_secrets, redacted

log = structlog.get_logger(__name__)

_MAY_HOLD_SECRETS = frozenset({"register", "configuration", "admin", "callback_answers"})
# Items have tags, attributes and messages, in which secrets are masked.
_ITEMS: dict[str, type[Message]] = {
    "allocation": si.AllocationRequest,
    "application": si.ApplicationRequest,
    "node": si.NodeRequest,
}


class UnreadableRequest(Exception):
    """A record that the scheduler cannot read. The text gives the reason, without the record's content."""


def dead_letter(topic: str, record: Record, reason: str) -> OutRecord:
    """Returns the record for the dead letters: the request, the reason, and its origin."""
    origin = f"{record.topic}/{record.partition}/{record.offset}"
    log.warning("request to the dead letters", origin=origin, why=reason)
    value, left_out = without_secrets(record.value or b"")
    headers = (
        *record.headers,
        (HEADER_ERROR, f"{masked_text(reason)}{left_out}".encode()),
        (HEADER_ORIGIN, origin.encode()),
    )
    return OutRecord(topic, record.partition, record.key, value, headers)


def without_secrets(value: bytes) -> tuple[bytes, str]:
    """Removes an RM's configuration and state from a record, because they may hold secrets. Masks the secrets in items.

    Returns the value, and a text about what was removed; "" if it has everything. What cannot be read is removed, too,
    if a word in it stands beside secrets.
    """
    try:
        envelope = pb.RequestEnvelope.FromString(value)
    except DecodeError:
        # Not written by a gateway, which writes envelopes.
        return (b"", _left_out("content", len(value))) if may_hold_secrets(value) else (value, "")
    body = envelope.WhichOneof("body")
    if body in _ITEMS and may_hold_secrets(value):
        try:
            item = redacted(_ITEMS[body].FromString(getattr(envelope, body)))
        except DecodeError:
            pass
        else:
            setattr(envelope, body, item.SerializeToString())
            return envelope.SerializeToString(), ""
    elif body not in _MAY_HOLD_SECRETS or (body == "admin" and envelope.admin.WhichOneof("command") != "validate"):
        return (redacted(envelope).SerializeToString() if may_hold_secrets(value) else value), ""
    size = len(value)
    envelope.ClearField(body)
    return envelope.SerializeToString(), _left_out(str(body), size)


def _left_out(content: str, size_bytes: int) -> str:
    return f" (its {content} is left out, as it may hold secrets: {size_bytes} bytes in all)"
