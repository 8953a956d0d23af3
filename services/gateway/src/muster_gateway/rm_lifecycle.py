"""An RM's life as a table (the scheduler interface, "Lifecycle of RM-Scheduler communication"). Pure.

    INIT ──register──▶ RUNNING ──all streams lost──▶ DISCONNECTED ──for too long──▶ STOPPED
                          │  ◀──a stream opens──────────┘                              ▲
                          └────────────────── shutdown ───────────────────────────────┘

A registration leads to RUNNING from every state: it starts the RM's life afresh. When an operator has an RM forgotten,
the RM goes to INIT from every state. (DISCONNECTED has the number that the scheduler interface calls PAUSED.)
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from muster_gateway.errors import IllegalTransition, quote


class RmLifecycleState(IntEnum):
    """The numbers are those of ``muster.bus.v1.RmLifecycle.State``."""

    INIT = 1
    RUNNING = 2
    DISCONNECTED = 3
    STOPPED = 4


class RmLifecycleEvent(StrEnum):
    """An event in an RM's life."""

    REGISTERED = "registered"
    STREAM_OPENED = "stream opened"
    ALL_STREAMS_CLOSED = "all streams closed"
    LEASE_EXPIRED = "no living gateway holds a stream"
    PAUSE_TIMEOUT = "disconnected for too long"
    SHUTDOWN = "the RM shut down"
    FORGOTTEN = "forgotten by an operator"


TRANSITIONS: dict[tuple[RmLifecycleState, RmLifecycleEvent], RmLifecycleState] = {
    (RmLifecycleState.INIT, RmLifecycleEvent.REGISTERED): RmLifecycleState.RUNNING,
    (RmLifecycleState.RUNNING, RmLifecycleEvent.REGISTERED): RmLifecycleState.RUNNING,
    (RmLifecycleState.DISCONNECTED, RmLifecycleEvent.REGISTERED): RmLifecycleState.RUNNING,
    (RmLifecycleState.STOPPED, RmLifecycleEvent.REGISTERED): RmLifecycleState.RUNNING,
    (RmLifecycleState.RUNNING, RmLifecycleEvent.STREAM_OPENED): RmLifecycleState.RUNNING,
    (RmLifecycleState.DISCONNECTED, RmLifecycleEvent.STREAM_OPENED): RmLifecycleState.RUNNING,
    (RmLifecycleState.RUNNING, RmLifecycleEvent.ALL_STREAMS_CLOSED): RmLifecycleState.DISCONNECTED,
    (RmLifecycleState.DISCONNECTED, RmLifecycleEvent.ALL_STREAMS_CLOSED): RmLifecycleState.DISCONNECTED,
    (
        RmLifecycleState.STOPPED,
        RmLifecycleEvent.ALL_STREAMS_CLOSED,
    ): RmLifecycleState.STOPPED,  # the stop itself ends the streams
    (RmLifecycleState.RUNNING, RmLifecycleEvent.LEASE_EXPIRED): RmLifecycleState.DISCONNECTED,
    (RmLifecycleState.DISCONNECTED, RmLifecycleEvent.PAUSE_TIMEOUT): RmLifecycleState.STOPPED,
    (RmLifecycleState.RUNNING, RmLifecycleEvent.SHUTDOWN): RmLifecycleState.STOPPED,
    (RmLifecycleState.DISCONNECTED, RmLifecycleEvent.SHUTDOWN): RmLifecycleState.STOPPED,
    (RmLifecycleState.STOPPED, RmLifecycleEvent.SHUTDOWN): RmLifecycleState.STOPPED,
    (RmLifecycleState.RUNNING, RmLifecycleEvent.FORGOTTEN): RmLifecycleState.INIT,
    (RmLifecycleState.DISCONNECTED, RmLifecycleEvent.FORGOTTEN): RmLifecycleState.INIT,
    (RmLifecycleState.STOPPED, RmLifecycleEvent.FORGOTTEN): RmLifecycleState.INIT,
}


def next_state(rm_id: str, state: RmLifecycleState, event: RmLifecycleEvent) -> RmLifecycleState:
    """Returns the state after the event. Raises IllegalTransition, with the legal events, for a step not in the
    table.
    """
    try:
        return TRANSITIONS[(state, event)]
    except KeyError:
        legal = sorted(e.value for s, e in TRANSITIONS if s is state)
        raise IllegalTransition(
            f"rmID {quote(rm_id)} is {state.name}; '{event.value}' cannot happen there, only: {', '.join(legal)}"
        ) from None
