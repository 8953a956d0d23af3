"""States as tables (core-features §2.8). A change of state that a table does not name is a defect, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from muster_scheduler.core.external import OfferState

_State = TypeVar("_State", bound=StrEnum)
_Event = TypeVar("_Event", bound=StrEnum)


class AppState(StrEnum):
    """Life of an application."""

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


# What an RM of the previous generation is told right before Running, once for each application (seed 001,
# APP_STARTING). It is a word for the RM and in the story, not a state that anything is decided by.
STARTING = "Starting"


class AppEvent(StrEnum):
    """What moves an application from state to state."""

    RUN = "runApplication"
    REJECT = "rejectApplication"
    COMPLETE = "completeApplication"
    FAIL = "failApplication"
    RESUME = "resumeApplication"
    EXPIRE = "expireApplication"


class QueueState(StrEnum):
    """Life of a queue."""

    ACTIVE = "Active"
    DRAINING = "Draining"
    STOPPED = "Stopped"


class QueueEvent(StrEnum):
    """What moves a queue, or a partition, from state to state."""

    # The configuration has it (again).
    START = "Start"
    # The configuration has it no more.
    REMOVE = "Remove"
    # Nothing is decided in it.
    STOP = "Stop"


class OfferEvent(StrEnum):
    """What moves an offer from state to state (seed 004; ``offers.py``)."""

    # Its source wants it back, or says nothing of it any more.
    REVOKE = "Revoke"
    # Its source lends it on.
    KEEP = "Keep"
    # Nothing needs it: for so long that it is not kept, or any more since it was asked back.
    RETURN = "Return"


# (from, event) -> to. What was given back stays so: the source forgets it, or lends something else.
OFFER_TRANSITIONS: dict[tuple[OfferState, OfferEvent], OfferState] = {
    (OfferState.OFFERED, OfferEvent.REVOKE): OfferState.REVOKED,
    (OfferState.REVOKED, OfferEvent.KEEP): OfferState.OFFERED,
    (OfferState.OFFERED, OfferEvent.RETURN): OfferState.RETURNED,
    (OfferState.REVOKED, OfferEvent.RETURN): OfferState.RETURNED,
}

# (from, event) -> to. Partitions go the same ways.
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
    (AppState.FAILING, AppEvent.FAIL): AppState.FAILED,
    (AppState.NEW, AppEvent.RESUME): AppState.RESUMING,
    (AppState.ACCEPTED, AppEvent.RESUME): AppState.RESUMING,
    (AppState.COMPLETED, AppEvent.EXPIRE): AppState.EXPIRED,
    (AppState.FAILED, AppEvent.EXPIRE): AppState.EXPIRED,
    (AppState.REJECTED, AppEvent.EXPIRE): AppState.EXPIRED,
}


class GangPhase(StrEnum):
    """How far an application with placeholders is (seed 003)."""

    # No placeholder was allocated yet.
    WAITING = "WAITING"
    # Some were.
    FORMING = "FORMING"
    # As much as the application announced is held.
    FORMED = "FORMED"
    # It has had a real allocation: from here on placeholders are spare room.
    USED = "USED"
    # Its placeholders' time was up before a real allocation came.
    OVER = "OVER"


class GangEvent(StrEnum):
    """What moves a gang from phase to phase."""

    FIRST_PLACEHOLDER = "first placeholder"
    ALL_PLACED = "all placeholders"
    REAL_ALLOCATION = "real allocation"
    TIME_OUT = "time-out"
    # All of it was told to go for others (`gang.preemption: whole`).
    PREEMPTED = "preempted"


# (from, event) -> to
GANG_TRANSITIONS: dict[tuple[GangPhase, GangEvent], GangPhase] = {
    (GangPhase.WAITING, GangEvent.FIRST_PLACEHOLDER): GangPhase.FORMING,
    (GangPhase.FORMING, GangEvent.ALL_PLACED): GangPhase.FORMED,
    # (The RM reports what exists, in any order. `gang.start: incremental` does not wait for the whole.)
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
    """Life of one placeholder, from its ask on."""

    ASKED = "Asked"
    # It holds room.
    HELD = "Held"
    # It was told to go, and counts until the RM confirms: for a real ask, ...
    LEAVING = "Leaving"
    # ... because its time is up (or no ask of its group fits in it), ...
    TIMING_OUT = "TimingOut"
    # ... or for somebody else.
    PREEMPTED = "Preempted"
    GONE = "Gone"


class PlaceholderEvent(StrEnum):
    """What moves a placeholder from state to state."""

    ALLOCATE = "allocate"
    # A real ask of its task group takes its place.
    REPLACE = "replace"
    TIME_OUT = "time out"
    PREEMPT = "preempt"
    # The RM confirms, removes it, or loses its node; of an ask: it was taken back.
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

# Terminal: nothing of the application is scheduled any more, and its id may be used again.
APP_TERMINAL = frozenset({AppState.COMPLETED, AppState.FAILED, AppState.REJECTED, AppState.EXPIRED})

# How long a dynamic or draining queue stays when its last application is gone (the real core's cleaner's 10 s).
DYNAMIC_QUEUE_LINGER_NS = 10 * 1_000_000_000
# How long an application without asks and allocations stays Completing, in case more comes.
COMPLETING_TIMEOUT_NS = 30 * 1_000_000_000
# How long a finished application stays visible.
TERMINATED_TIMEOUT_NS = 72 * 3600 * 1_000_000_000
# How long placeholders may wait for real asks, when the application does not say (the real core's default).
PLACEHOLDER_TIMEOUT_NS = 15 * 60 * 1_000_000_000
# After how long an allocation that was told to go is told again. A confirmation that was lost would keep its resources
# for ever; a pod's graceful end (30 s by default, often a few minutes) must not be hurried.
REMINDER_NS = 5 * 60 * 1_000_000_000


class InvalidTransition(Exception):
    """A change of state that the table does not name.

    :param story: what the object went through before, oldest first.
    """

    def __init__(self, what: str, state: str, event: str, story: tuple[tuple[int, str], ...]) -> None:
        told = " → ".join(name for _, name in story) or "nothing"
        super().__init__(f"{what}: {event} is not possible in state {state} (so far: {told})")
        self.what, self.state, self.event, self.story = what, state, event, story


def next_app_state(what: str, state: AppState, event: AppEvent, story: tuple[tuple[int, str], ...]) -> AppState:
    """The state that the event leads to. Raises InvalidTransition."""
    return _next(APP_TRANSITIONS, what, state, event, story)


def next_gang_phase(what: str, phase: GangPhase, event: GangEvent) -> GangPhase:
    """The phase that the event leads a gang to. Raises InvalidTransition."""
    return _next(GANG_TRANSITIONS, what, phase, event)


def next_placeholder_state(what: str, state: PlaceholderState, event: PlaceholderEvent) -> PlaceholderState:
    """The state that the event leads a placeholder to. Raises InvalidTransition."""
    return _next(PLACEHOLDER_TRANSITIONS, what, state, event)


def next_offer_state(what: str, state: OfferState, event: OfferEvent) -> OfferState:
    """The state that the event leads an offer to. Raises InvalidTransition."""
    return _next(OFFER_TRANSITIONS, what, state, event)


def next_queue_state(path: str, state: QueueState, event: QueueEvent) -> QueueState:
    """The state that the event leads a queue to. Raises InvalidTransition."""
    return _next(QUEUE_TRANSITIONS, f"queue {path}", state, event)


def _next(
    table: Mapping[tuple[_State, _Event], _State],
    what: str,
    state: _State,
    event: _Event,
    story: tuple[tuple[int, str], ...] = (),
) -> _State:
    target = table.get((state, event))
    if target is None:
        raise InvalidTransition(what, state, event, story)
    return target
