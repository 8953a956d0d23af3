"""The state of the whole as a message of muster.v1.Health."""

from __future__ import annotations

from muster_proto.muster.v1 import health_pb2 as pb
from muster_rest.shapes.health import Grade, SystemHealthDao

_GRADES = {Grade.OK: pb.OK, Grade.DEGRADED: pb.DEGRADED, Grade.FAILED: pb.FAILED}


def encode(state: SystemHealthDao) -> bytes:
    """Encodes a muster.v1.SystemHealth."""
    return pb.SystemHealth(
        grade=_GRADES[state.grade],
        part=state.part,
        since_ns=state.since,
        sentence=state.sentence,
        remedy=state.remedy,
        checked_ns=state.checked,
        parts=[
            pb.PartHealth(
                part=each.part,
                grade=_GRADES[each.grade],
                since_ns=each.since,
                sentence=each.sentence,
                remedy=each.remedy,
                others=each.others,
            )
            for each in state.parts
        ],
    ).SerializeToString()
