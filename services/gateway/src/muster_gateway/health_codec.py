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
                part=part.part,
                grade=_GRADES[part.grade],
                since_ns=part.since,
                sentence=part.sentence,
                remedy=part.remedy,
                others=part.others,
            )
            for part in state.parts
        ],
    ).SerializeToString()
