"""States as tables. A transition that a table does not name is a defect, and raises an error."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from muster_core.external.model import OfferState

_State = TypeVar("_State", bound=StrEnum)
_Event = TypeVar("_Event", bound=StrEnum)


class AppState(StrEnum):
    """The life of an application."""

    NEW = "New"
    ACCEPTED = "Accepted"
    RUNNING = "Running"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    REJECTED = "Rejected"
    FAILING = "Failing"
    FAILED = "Failed"
    RESUMING = "Resuming"
    EXPIRED = "Expired"


# An RM of the previous generation hears of this state right before Running, once for each application (APP_STARTING).
# It is a message to the RM and an entry in the state_log; no decision depends on it.
STARTING = "Starting"


class AppEvent(StrEnum):
    """The events of an application's life."""

    RUN = "runApplication"
    REJECT = "rejectApplication"
    COMPLETE = "completeApplication"
    FAIL = "failApplication"
    RESUME = "resumeApplication"
    EXPIRE = "expireApplication"


class QueueState(StrEnum):
    """The life of a queue."""

    ACTIVE = "Active"
    DRAINING = "Draining"
    STOPPED = "Stopped"


class QueueEvent(StrEnum):
    """The events of a queue's or a partition's life."""

    # The configuration has the queue (again).
    START = "Start"
    # The configuration does not have the queue any more.
    REMOVE = "Remove"
    # The scheduler decides nothing in the queue.
    STOP = "Stop"


class OfferEvent(StrEnum):
    """The events of an offer's life (the event handler framework; ``external/offers.py``)."""

    # Its source wants it back, or does not name it any more.
    REVOKE = "Revoke"
    # Its source does not want it back any more.
    KEEP = "Keep"
    # No allocation needs it: it was idle for too long, or its source wants it back.
    RETURN = "Return"


# (from, event) -> to. A returned offer stays so: its source forgets it, or lends something else.
OFFER_TRANSITIONS: dict[tuple[OfferState, OfferEvent], OfferState] = {
    (OfferState.OFFERED, OfferEvent.REVOKE): OfferState.REVOKED,
    (OfferState.REVOKED, OfferEvent.KEEP): OfferState.OFFERED,
    (OfferState.OFFERED, OfferEvent.RETURN): OfferState.RETURNED,
    (OfferState.REVOKED, OfferEvent.RETURN): OfferState.RETURNED,
}

# (from, event) -> to. The table holds for partitions, too.
QUEUE_TRANSITIONS: dict[tuple[QueueState, QueueEvent], QueueState] = {
    (QueueState.ACTIVE, QueueEvent.START): QueueState.ACTIVE,
    (QueueState.DRAINING, QueueEvent.START): QueueState.ACTIVE,
    (QueueState.STOPPED, QueueEvent.START): QueueState.ACTIVE,
    (QueueState.ACTIVE, QueueEvent.REMOVE): QueueState.DRAINING,
    (QueueState.DRAINING, QueueEvent.REMOVE): QueueState.DRAINING,
    (QueueState.ACTIVE, QueueEvent.STOP): QueueState.STOPPED,
    (QueueState.STOPPED, QueueEvent.STOP): QueueState.STOPPED,
}

# (from, event) -> to
APP_TRANSITIONS: dict[tuple[AppState, AppEvent], AppState] = {
    (AppState.NEW, AppEvent.RUN): AppState.ACCEPTED,
    (AppState.RESUMING, AppEvent.RUN): AppState.ACCEPTED,
    (AppState.ACCEPTED, AppEvent.RUN): AppState.RUNNING,
    (AppState.RUNNING, AppEvent.RUN): AppState.RUNNING,
    (AppState.COMPLETING, AppEvent.RUN): AppState.RUNNING,
    (AppState.NEW, AppEvent.REJECT): AppState.REJECTED,
    (AppState.ACCEPTED, AppEvent.COMPLETE): AppState.COMPLETING,
    (AppState.RUNNING, AppEvent.COMPLETE): AppState.COMPLETING,
    (AppState.COMPLETING, AppEvent.COMPLETE): AppState.COMPLETED,
    (AppState.NEW, AppEvent.FAIL): AppState.FAILING,
    (AppState.ACCEPTED, AppEvent.FAIL): AppState.FAILING,
    (AppState.RUNNING, AppEvent.FAIL): AppState.FAILING,
    # (Of these two, YuniKorn has none: an operator ends the application.)
    (AppState.COMPLETING, AppEvent.FAIL): AppState.FAILING,
    (AppState.RESUMING, AppEvent.FAIL): AppState.FAILING,
    (AppState.FAILING, AppEvent.FAIL): AppState.FAILED,
    (AppState.NEW, AppEvent.RESUME): AppState.RESUMING,
    (AppState.ACCEPTED, AppEvent.RESUME): AppState.RESUMING,
    (AppState.COMPLETED, AppEvent.EXPIRE): AppState.EXPIRED,
    (AppState.FAILED, AppEvent.EXPIRE): AppState.EXPIRED,
    (AppState.REJECTED, AppEvent.EXPIRE): AppState.EXPIRED,
}


class GangPhase(StrEnum):
    """The phases of a gang (the gang design)."""

    # No placeholder is allocated yet.
    WAITING = "WAITING"
    # Some placeholders are allocated.
    FORMING = "FORMING"
    # Placeholders hold as much as the application announced.
    FORMED = "FORMED"
    # The gang has had a real allocation: from now on, placeholders are spare room.
    USED = "USED"
    # The placeholders timed out before a real allocation was made.
    OVER = "OVER"


class GangEvent(StrEnum):
    """The events of a gang's life."""

    FIRST_PLACEHOLDER = "first placeholder"
    ALL_PLACED = "all placeholders"
    REAL_ALLOCATION = "real allocation"
    TIME_OUT = "time-out"
    # Preemption released all of it (`gang.preemption: whole`).
    PREEMPTED = "preempted"


# (from, event) -> to
GANG_TRANSITIONS: dict[tuple[GangPhase, GangEvent], GangPhase] = {
    (GangPhase.WAITING, GangEvent.FIRST_PLACEHOLDER): GangPhase.FORMING,
    (GangPhase.FORMING, GangEvent.ALL_PLACED): GangPhase.FORMED,
    # (The RM reports existing allocations in any order. `gang.start: incremental` does not wait for the whole gang.)
    (GangPhase.WAITING, GangEvent.REAL_ALLOCATION): GangPhase.USED,
    (GangPhase.FORMING, GangEvent.REAL_ALLOCATION): GangPhase.USED,
    (GangPhase.FORMED, GangEvent.REAL_ALLOCATION): GangPhase.USED,
    (GangPhase.OVER, GangEvent.REAL_ALLOCATION): GangPhase.USED,
    (GangPhase.FORMING, GangEvent.PREEMPTED): GangPhase.WAITING,
    (GangPhase.FORMED, GangEvent.PREEMPTED): GangPhase.WAITING,
    (GangPhase.WAITING, GangEvent.TIME_OUT): GangPhase.OVER,
    (GangPhase.FORMING, GangEvent.TIME_OUT): GangPhase.OVER,
    (GangPhase.FORMED, GangEvent.TIME_OUT): GangPhase.OVER,
}


class PlaceholderState(StrEnum):
    """The life of one placeholder, from its ask on."""

    ASKED = "Asked"
    # It holds room.
    HELD = "Held"
    # Released, and counting until the RM confirms: for a real ask;
    LEAVING = "Leaving"
    # because its time is up (or no ask of its group fits in it);
    TIMING_OUT = "TimingOut"
    # or by preemption.
    PREEMPTED = "Preempted"
    GONE = "Gone"


class PlaceholderEvent(StrEnum):
    """The events of a placeholder's life."""

    ALLOCATE = "allocate"
    # A real ask of its task group takes its place.
    REPLACE = "replace"
    TIME_OUT = "time out"
    PREEMPT = "preempt"
    # The RM confirms its release, removes it, or loses its node; for an ask: the ask was taken back.
    REMOVE = "remove"
    # The RM could not start it: it is a pending ask again.
    FAIL_ON_RM = "fail on RM"


# (from, event) -> to
PLACEHOLDER_TRANSITIONS: dict[tuple[PlaceholderState, PlaceholderEvent], PlaceholderState] = {
    (PlaceholderState.ASKED, PlaceholderEvent.ALLOCATE): PlaceholderState.HELD,
    (PlaceholderState.ASKED, PlaceholderEvent.TIME_OUT): PlaceholderState.GONE,
    (PlaceholderState.ASKED, PlaceholderEvent.REMOVE): PlaceholderState.GONE,
    (PlaceholderState.HELD, PlaceholderEvent.REPLACE): PlaceholderState.LEAVING,
    (PlaceholderState.HELD, PlaceholderEvent.TIME_OUT): PlaceholderState.TIMING_OUT,
    (PlaceholderState.HELD, PlaceholderEvent.PREEMPT): PlaceholderState.PREEMPTED,
    (PlaceholderState.HELD, PlaceholderEvent.REMOVE): PlaceholderState.GONE,
    (PlaceholderState.HELD, PlaceholderEvent.FAIL_ON_RM): PlaceholderState.ASKED,
    (PlaceholderState.LEAVING, PlaceholderEvent.REMOVE): PlaceholderState.GONE,
    (PlaceholderState.TIMING_OUT, PlaceholderEvent.REMOVE): PlaceholderState.GONE,
    (PlaceholderState.PREEMPTED, PlaceholderEvent.REMOVE): PlaceholderState.GONE,
    (PlaceholderState.PREEMPTED, PlaceholderEvent.FAIL_ON_RM): PlaceholderState.ASKED,
}

# In these states, no ask of the application is scheduled any more, and its id may be used again.
APP_TERMINAL = frozenset({AppState.COMPLETED, AppState.FAILED, AppState.REJECTED, AppState.EXPIRED})
# In these, it also asks for nothing: a new ask makes a Completing one Running again.
APP_ENDING = APP_TERMINAL | {AppState.COMPLETING, AppState.FAILING}

# How long a dynamic or draining queue stays after its last application is gone (as YuniKorn's cleaner: 10 s).
DYNAMIC_QUEUE_LINGER_NS = 10 * 1_000_000_000
# How long an application without asks and allocations stays Completing, in case more asks come.
COMPLETING_TIMEOUT_NS = 30 * 1_000_000_000
# How long a finished application stays visible.
TERMINATED_TIMEOUT_NS = 72 * 3600 * 1_000_000_000
# How long placeholders may wait for real asks if the application does not say (YuniKorn's default).
PLACEHOLDER_TIMEOUT_NS = 15 * 60 * 1_000_000_000
# The interval between reminders of a release. Without them, a lost confirmation would hold resources forever. A shorter
# interval would disturb a pod's graceful end (30 s by default, often a few minutes).
REMINDER_NS = 5 * 60 * 1_000_000_000


class InvalidTransition(Exception):
    """A transition that the table does not name.

    :param state_log: the object's past states, oldest first.
    """

    def __init__(self, subject: str, state: str, event: str, state_log: tuple[tuple[int, str], ...]) -> None:
        so_far = " → ".join(name for _, name in state_log) or "nothing"
        super().__init__(f"{subject}: {event} is not possible in state {state} (so far: {so_far})")
        self.what, self.state, self.event, self.state_log = subject, state, event, state_log


def next_app_state(subject: str, state: AppState, event: AppEvent, state_log: tuple[tuple[int, str], ...]) -> AppState:
    """The state that the event leads to. Raises InvalidTransition."""
    return _next(APP_TRANSITIONS, subject, state, event, state_log)


def next_gang_phase(subject: str, phase: GangPhase, event: GangEvent) -> GangPhase:
    """The phase that the event leads a gang to. Raises InvalidTransition."""
    return _next(GANG_TRANSITIONS, subject, phase, event)


def next_placeholder_state(subject: str, state: PlaceholderState, event: PlaceholderEvent) -> PlaceholderState:
    """The state that the event leads a placeholder to. Raises InvalidTransition."""
    return _next(PLACEHOLDER_TRANSITIONS, subject, state, event)


def next_offer_state(subject: str, state: OfferState, event: OfferEvent) -> OfferState:
    """The state that the event leads an offer to. Raises InvalidTransition."""
    return _next(OFFER_TRANSITIONS, subject, state, event)


def next_queue_state(path: str, state: QueueState, event: QueueEvent) -> QueueState:
    """The state that the event leads a queue to. Raises InvalidTransition."""
    return _next(QUEUE_TRANSITIONS, f"queue {path}", state, event)


def _next(
    table: Mapping[tuple[_State, _Event], _State],
    subject: str,
    state: _State,
    event: _Event,
    state_log: tuple[tuple[int, str], ...] = (),
) -> _State:
    target = table.get((state, event))
    if target is None:
        raise InvalidTransition(subject, state, event, state_log)
    return target
