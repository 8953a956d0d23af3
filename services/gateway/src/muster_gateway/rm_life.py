"""An RM's life as a table (seed 000, "Lifecycle of RM-Scheduler communication"). Pure.

    INIT ──register──▶ RUNNING ──all streams lost──▶ PAUSED ──paused too long──▶ STOPPED
                          │  ◀──a stream opens──────────┘                            ▲
                          └────────────────── shutdown ──────────────────────────────┘

A registration leads to RUNNING from everywhere: it starts the RM's life afresh.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from muster_gateway.errors import IllegalTransition, shown


class RmState(IntEnum):
    """Same numbers as ``muster.bus.v1.RmLifecycle.State``."""

    INIT = 1
    RUNNING = 2
    PAUSED = 3
    STOPPED = 4


class RmEvent(StrEnum):
    """What can happen to an RM."""

    REGISTERED = "registered"
    STREAM_OPENED = "stream opened"
    ALL_STREAMS_CLOSED = "all streams closed"
    LEASE_EXPIRED = "no living gateway holds a stream"
    PAUSE_TIMEOUT = "paused for too long"
    SHUTDOWN = "the RM shut down"


TRANSITIONS: dict[tuple[RmState, RmEvent], RmState] = {
    (RmState.INIT, RmEvent.REGISTERED): RmState.RUNNING,
    (RmState.RUNNING, RmEvent.REGISTERED): RmState.RUNNING,
    (RmState.PAUSED, RmEvent.REGISTERED): RmState.RUNNING,
    (RmState.STOPPED, RmEvent.REGISTERED): RmState.RUNNING,
    (RmState.RUNNING, RmEvent.STREAM_OPENED): RmState.RUNNING,
    (RmState.PAUSED, RmEvent.STREAM_OPENED): RmState.RUNNING,
    (RmState.RUNNING, RmEvent.ALL_STREAMS_CLOSED): RmState.PAUSED,
    (RmState.PAUSED, RmEvent.ALL_STREAMS_CLOSED): RmState.PAUSED,
    (RmState.STOPPED, RmEvent.ALL_STREAMS_CLOSED): RmState.STOPPED,  # the stop itself ends the streams
    (RmState.RUNNING, RmEvent.LEASE_EXPIRED): RmState.PAUSED,
    (RmState.PAUSED, RmEvent.PAUSE_TIMEOUT): RmState.STOPPED,
    (RmState.RUNNING, RmEvent.SHUTDOWN): RmState.STOPPED,
    (RmState.PAUSED, RmEvent.SHUTDOWN): RmState.STOPPED,
    (RmState.STOPPED, RmEvent.SHUTDOWN): RmState.STOPPED,
}


def next_state(rm_id: str, state: RmState, event: RmEvent) -> RmState:
    """The state after the event. Raises IllegalTransition, which tells the story, for a step not in the table."""
    try:
        return TRANSITIONS[(state, event)]
    except KeyError:
        legal = sorted(e.value for s, e in TRANSITIONS if s is state)
        raise IllegalTransition(
            f"rmID {shown(rm_id)} is {state.name}; '{event.value}' cannot happen there, only: {', '.join(legal)}"
        ) from None
