"""An RM's life as a table (the scheduler interface, "Lifecycle of RM-Scheduler communication"). Pure.

    INIT ──register──▶ RUNNING ──all streams lost──▶ DISCONNECTED ──for too long──▶ STOPPED
                          │  ◀──a stream opens──────────┘                              ▲
                          └────────────────── shutdown ───────────────────────────────┘

A registration leads to RUNNING from every state: it starts the RM's life afresh. When an operator has an RM forgotten,
the RM goes to INIT from every state. (DISCONNECTED has the number that the scheduler interface calls PAUSED.)
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from muster_gateway.errors import IllegalTransition, shown


class RmState(IntEnum):
    """The numbers are those of ``muster.bus.v1.RmLifecycle.State``."""

    INIT = 1
    RUNNING = 2
    DISCONNECTED = 3
    STOPPED = 4


class RmEvent(StrEnum):
    """An event in an RM's life."""

    REGISTERED = "registered"
    STREAM_OPENED = "stream opened"
    ALL_STREAMS_CLOSED = "all streams closed"
    LEASE_EXPIRED = "no living gateway holds a stream"
    PAUSE_TIMEOUT = "disconnected for too long"
    SHUTDOWN = "the RM shut down"
    FORGOTTEN = "forgotten by an operator"


TRANSITIONS: dict[tuple[RmState, RmEvent], RmState] = {
    (RmState.INIT, RmEvent.REGISTERED): RmState.RUNNING,
    (RmState.RUNNING, RmEvent.REGISTERED): RmState.RUNNING,
    (RmState.DISCONNECTED, RmEvent.REGISTERED): RmState.RUNNING,
    (RmState.STOPPED, RmEvent.REGISTERED): RmState.RUNNING,
    (RmState.RUNNING, RmEvent.STREAM_OPENED): RmState.RUNNING,
    (RmState.DISCONNECTED, RmEvent.STREAM_OPENED): RmState.RUNNING,
    (RmState.RUNNING, RmEvent.ALL_STREAMS_CLOSED): RmState.DISCONNECTED,
    (RmState.DISCONNECTED, RmEvent.ALL_STREAMS_CLOSED): RmState.DISCONNECTED,
    (RmState.STOPPED, RmEvent.ALL_STREAMS_CLOSED): RmState.STOPPED,  # the stop itself ends the streams
    (RmState.RUNNING, RmEvent.LEASE_EXPIRED): RmState.DISCONNECTED,
    (RmState.DISCONNECTED, RmEvent.PAUSE_TIMEOUT): RmState.STOPPED,
    (RmState.RUNNING, RmEvent.SHUTDOWN): RmState.STOPPED,
    (RmState.DISCONNECTED, RmEvent.SHUTDOWN): RmState.STOPPED,
    (RmState.STOPPED, RmEvent.SHUTDOWN): RmState.STOPPED,
    (RmState.RUNNING, RmEvent.FORGOTTEN): RmState.INIT,
    (RmState.DISCONNECTED, RmEvent.FORGOTTEN): RmState.INIT,
    (RmState.STOPPED, RmEvent.FORGOTTEN): RmState.INIT,
}


def next_state(rm_id: str, state: RmState, event: RmEvent) -> RmState:
    """Returns the state after the event. Raises IllegalTransition, with the legal events, for a step not in the
    table.
    """
    try:
        return TRANSITIONS[(state, event)]
    except KeyError:
        legal = sorted(e.value for s, e in TRANSITIONS if s is state)
        raise IllegalTransition(
            f"rmID {shown(rm_id)} is {state.name}; '{event.value}' cannot happen there, only: {', '.join(legal)}"
        ) from None
