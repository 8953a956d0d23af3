"""A session as JSON text, for the stores that keep it outside of this process.

Gateways of two versions may share a store while they are replaced one by one. What an older one does not know stands
beside what it reads, and is lost when it writes; kinds of streams that are not known here are passed over.
"""

from __future__ import annotations

import json

from muster_gateway.rm_life import RmState
from muster_gateway.sessions.contract import Cursor, Seat, Session
from muster_gateway.stream_kind import SI_KINDS, StreamKind

_KINDS = {str(int(kind)): kind for kind in StreamKind}


def to_json(session: Session) -> str:
    """All but the version, which the store keeps beside it."""
    return json.dumps(
        {
            "rm": session.rm_id,
            "state": int(session.state),
            "since_ns": session.since_ns,
            "why": session.why,
            "announced": int(session.announced),
            "registered_at": list(session.registered_at),
            "seats": {str(int(kind)): list(seat) for kind, seat in session.seats.items() if kind in SI_KINDS},
            "more_seats": {str(int(kind)): list(seat) for kind, seat in session.seats.items() if kind not in SI_KINDS},
            "callbacks_told": session.callbacks_told,
        },
        separators=(",", ":"),
    )


def from_json(text: str, version: int) -> Session:
    """Inverse of :func:`to_json`."""
    content = json.loads(text)
    seats = content["seats"] | content.get("more_seats", {})
    return Session(
        rm_id=content["rm"],
        version=version,
        state=RmState(content["state"]),
        since_ns=content["since_ns"],
        why=content["why"],
        announced=RmState(content["announced"]),
        registered_at=Cursor(*content["registered_at"]),
        seats={_KINDS[kind]: Seat(*seat) for kind, seat in seats.items() if kind in _KINDS},
        callbacks_told=content.get("callbacks_told", False),
    )
