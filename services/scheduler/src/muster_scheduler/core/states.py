"""States as tables (core-features §2.8). A change of state that a table does not name is a defect, and says so."""

from __future__ import annotations

from enum import StrEnum


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

# Terminal: nothing of the application is scheduled any more, and its id may be used again.
APP_TERMINAL = frozenset({AppState.COMPLETED, AppState.FAILED, AppState.REJECTED, AppState.EXPIRED})

# How long a dynamic or draining queue stays when its last application is gone (the real core's cleaner's 10 s).
DYNAMIC_QUEUE_LINGER_NS = 10 * 1_000_000_000
# How long an application without asks and allocations stays Completing, in case more comes.
COMPLETING_TIMEOUT_NS = 30 * 1_000_000_000
# How long a finished application stays visible.
TERMINATED_TIMEOUT_NS = 72 * 3600 * 1_000_000_000


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
    target = APP_TRANSITIONS.get((state, event))
    if target is None:
        raise InvalidTransition(what, state, event, story)
    return target


def next_queue_state(path: str, state: QueueState, event: QueueEvent) -> QueueState:
    """The state that the event leads a queue to. Raises InvalidTransition."""
    target = QUEUE_TRANSITIONS.get((state, event))
    if target is None:
        raise InvalidTransition(f"queue {path}", state, event, ())
    return target
