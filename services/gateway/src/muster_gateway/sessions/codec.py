"""Encodes a session as JSON text, for stores outside of this process.

During an upgrade, gateways of two versions share a store. An older gateway ignores fields that it does not know, and
loses them when it writes. A gateway ignores kinds of streams that it does not know.
"""

from __future__ import annotations

import json
from typing import Any

from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.sessions.contract import UNKNOWN, Cursor, Seat, Session
from muster_gateway.stream_kind import SI_KINDS, StreamKind

_KINDS = {str(int(kind)): kind for kind in StreamKind}


def to_json(session: Session) -> str:
    """Encodes all fields but the version, which the store keeps separately."""
    return json.dumps(
        {
            "rm": session.rm_id,
            "state": int(session.state),
            "since_ns": session.since_ns,
            "why": session.state_reason,
            "announced": int(session.announced),
            "registered_at": list(session.registered_at),
            "seats": {str(int(kind)): list(seat) for kind, seat in session.seats.items() if kind in SI_KINDS},
            "more_seats": {str(int(kind)): list(seat) for kind, seat in session.seats.items() if kind not in SI_KINDS},
            "callbacks_told": session.callbacks_announced,
            "requests_sent": session.requests_sent,
            "policy_group": [session.policy_group, session.config_checksum, session.config_at],
            "forgetting_ns": session.forgetting_ns,
            "identity": session.identity,
        },
        separators=(",", ":"),
    )


def from_json(text: str, version: int) -> Session:
    """Inverse of :func:`to_json`. Raises ValueError for a text that no gateway wrote."""
    try:
        return _session(json.loads(text), version)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"a stored session cannot be read ({type(error).__name__})") from error


def _session(content: Any, version: int) -> Session:
    group, checksum, config_at = content.get("policy_group", ("", "", UNKNOWN))
    seats = content["seats"] | content.get("more_seats", {})
    return Session(
        rm_id=content["rm"],
        version=version,
        state=RmLifecycleState(content["state"]),
        since_ns=content["since_ns"],
        state_reason=content["why"],
        announced=RmLifecycleState(content["announced"]),
        registered_at=Cursor(*content["registered_at"]),
        seats={_KINDS[kind]: Seat(*seat) for kind, seat in seats.items() if kind in _KINDS},
        callbacks_announced=content.get("callbacks_told", False),
        requests_sent=content.get("requests_sent", UNKNOWN),
        policy_group=group,
        config_checksum=checksum,
        config_at=config_at,
        forgetting_ns=content.get("forgetting_ns", 0),
        identity=content.get("identity", ""),
    )
