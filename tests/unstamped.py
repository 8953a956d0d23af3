"""Records without their stamps, which depend on how many requests brought the same content."""

from __future__ import annotations

from muster_bus.log import OutRecord
from muster_bus.topics import HEADER_STAMP, is_rm_state_key
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2

STAMP = ("stamp_before", "stamp_step", "stamp_records")


def unstamped(record: OutRecord) -> OutRecord:
    if any(name == HEADER_STAMP for name, _ in record.headers):
        return record._replace(headers=tuple(each for each in record.headers if each[0] != HEADER_STAMP))
    message: state_pb2.RmObject | envelope_pb2.ResponseEnvelope
    if record.value is not None and is_rm_state_key(record.key):
        message = state_pb2.RmObject.FromString(record.value)
    elif record.value is not None and "responses" in record.topic:
        message = envelope_pb2.ResponseEnvelope.FromString(record.value)
    else:
        return record
    for name in STAMP[:2]:
        message.ClearField(name)  # type: ignore[arg-type]
    return record._replace(value=message.SerializeToString(deterministic=True))
