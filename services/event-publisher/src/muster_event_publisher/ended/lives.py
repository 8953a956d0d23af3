"""Lives of objects, folded from their events, newest first: plain data. Times are ns since the epoch; 0: not known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from muster_event_publisher.ended import events
from muster_event_publisher.ended.events import Kind, Mark, PastEvent, Selection
from muster_event_publisher.event_decoding import EventRecord

# How an allocation ended, by the detail of its event; the words are those of `muster history`.
ENDED = {500: "released", 501: "preempted", 502: "timed out", 503: "replaced", 504: "node removed"}
DROPPED = "dropped"
_STATES = {
    events.NEW: "New", 204: "Accepted", 205: "Starting", 206: "Running", 207: "Completing",
    events.COMPLETED: "Completed", 209: "Failing", events.FAILED: "Failed", events.RESUMING: "Resuming",
}  # fmt: skip
_FINISHED = ("Completed", "Failed")
REMOVED, REJECTED = "Removed", "Rejected"


@dataclass(slots=True)
class Held:
    """An allocation of an application, or on a node."""

    key: str
    begin_ns: int = 0
    end_ns: int = 0
    ended: str = ""
    requested_ns: int = 0
    node: str = ""
    message: str = ""
    resource: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Life:
    """One life of an object.

    :ivar end: the place of the event of its end; None: there is none, though a later life of the name began.
    :ivar first: the place of its oldest event.
    :ivar is_whole: its beginning is among the events.
    :ivar states: (time, state), newest first.
    :ivar events: its own events, newest first; of one object only.
    """

    kind: Kind
    name: str
    instance: str
    end: Mark | None
    first: Mark
    state: str = ""
    message: str = ""
    begin_ns: int = 0
    is_whole: bool = False
    queue: str = ""
    user: str = ""
    group: str = ""
    asks: int = 0
    allocations: int = 0
    applications: int = 0
    resource: dict[str, int] = field(default_factory=dict)
    guaranteed: dict[str, int] = field(default_factory=dict)
    states: list[tuple[int, str]] = field(default_factory=list)
    events: list[PastEvent] = field(default_factory=list)

    @property
    def end_ns(self) -> int:
        return self.end.at_ns if self.end is not None else 0


class _Beside(NamedTuple):
    """The user of an allocation, and the node; they come before its event here."""

    at_ns: int
    id: int
    user: str


class Lives:
    """Folds events, newest first, into lives.

    Of objects that live it has nothing, unless the selection names one: then also the life without an end, because
    what asks knows that the object is not there.

    :ivar ended: the lives, the one that ended last first.
    """

    def __init__(self, selection: Selection) -> None:
        self.ended: list[Life] = []
        self._selection = selection
        self._open: dict[str, Life] = {}
        self._rejected: dict[str, Life] = {}
        self._events_after_end: dict[tuple[str, int], PastEvent] = {}  # what an application left, right behind its end
        self._user: _Beside | None = None

    def add(self, past_events: Iterable[PastEvent]) -> None:
        """Folds the next events, which are older than those before."""
        for event in past_events:
            record = event.record
            if record.type == events.USERGROUP and record.eventChangeDetail == events.USER_RESOURCE:
                self._user = _Beside(record.timestampNano, event.id, record.objectID)
                self._append(self._selection.name, event)
                continue
            if self._selection.kind is Kind.APPLICATION and record.type == events.NODE:
                self._append(self._selection.name, event)
                continue
            name = events.name_in(self._selection, record)
            if name is not None:
                self._fold(name, event)

    def is_whole(self, count: int) -> bool:
        """Whether there are ``count`` lives, each with its beginning."""
        return len(self.ended) >= count and all(life.is_whole for life in self.ended[:count])

    def _append(self, name: str, event: PastEvent) -> None:
        life = self._open.get(name)
        if life is not None and self._selection.name:
            life.events.append(event)

    def _fold(self, name: str, event: PastEvent) -> None:
        if self._ends(event.record):
            self._end(name, event)
        elif event.record.type == events.APP and event.record.eventChangeDetail == events.REJECTED:
            self._reject(name, event)
            return
        elif name in self._rejected and event.record.type == events.APP:
            self._unreject(name)
        life = self._open.get(name)
        if life is None and self._selection.name and self._is_alive(event.record):
            life = self._opened(name, event, None)
        if life is None:
            if event.record.eventChangeType == events.REMOVE and event.record.type != events.APP:
                self._events_after_end[name, event.record.type] = event
            return
        life.first = event.mark
        if self._selection.name:
            life.events.append(event)
        _FOLDS[life.kind](life, event, self._user)
        if self._begins(event.record):
            life.begin_ns, life.is_whole = event.record.timestampNano, True
            del self._open[name]

    def _is_alive(self, record: EventRecord) -> bool:
        """Whether an event shows that the object was there at its time. (What expires has ended long before.)"""
        if record.type != events.TYPES[self._selection.kind] or record.eventChangeDetail == events.EXPIRED:
            return False
        return record.eventChangeType in (events.SET, events.ADD)

    def _ends(self, record: EventRecord) -> bool:
        if record.eventChangeType != events.REMOVE or record.type != events.TYPES[self._selection.kind]:
            return False
        return record.eventChangeDetail in _ENDS[self._selection.kind]

    def _begins(self, record: EventRecord) -> bool:
        if record.eventChangeType != events.ADD or record.type != events.TYPES[self._selection.kind]:
            return False
        return record.eventChangeDetail in _BEGINS[self._selection.kind]

    def _end(self, name: str, event: PastEvent) -> None:
        self._rejected.pop(name, None)  # what was rejected after this end is a life of its own
        self._opened(name, event, event.mark).message = event.record.message

    def _opened(self, name: str, event: PastEvent, end: Mark | None) -> Life:
        life = self._open[name] = Life(self._selection.kind, name, event.instance, end, event.mark)
        if end is not None:
            life.state = REMOVED
        for kind in (events.QUEUE, events.USERGROUP):
            past_event = self._events_after_end.pop((name, kind), None)
            if past_event is not None and life.kind is Kind.APPLICATION:
                _fold_application(life, past_event, None)
        self.ended.append(life)
        return life

    def _reject(self, name: str, event: PastEvent) -> None:
        """A rejected submission: a life of its own, unless the application was there at the time."""
        if name in self._open:
            self._append(name, event)
            return
        at_ns = event.record.timestampNano
        kind, mark = self._selection.kind, event.mark
        life = Life(kind, name, event.instance, mark, mark, REJECTED, event.record.message, at_ns, is_whole=True)
        life.states.append((at_ns, REJECTED))
        if self._selection.name:
            life.events.append(event)
        self._unreject(name)
        self._rejected[name] = life
        self.ended.append(life)

    def _unreject(self, name: str) -> None:
        life = self._rejected.pop(name, None)
        if life is not None:
            self.ended.remove(life)


def _fold_application(life: Life, event: PastEvent, user: _Beside | None) -> None:
    record = event.record
    change, detail, at_ns = record.eventChangeType, record.eventChangeDetail, record.timestampNano
    if record.type == events.QUEUE:
        life.queue = life.queue or record.objectID
    elif record.type == events.USERGROUP:
        life.group = life.group or record.objectID
    elif change == events.SET and detail in _STATES:
        if not life.states or life.state == REMOVED:
            life.state = _STATES[detail] if life.end is None or _STATES[detail] in _FINISHED else REMOVED
        life.states.append((at_ns, _STATES[detail]))
        life.message = life.message or record.message
    elif change == events.ADD and detail == events.ALLOCATED:
        life.allocations += 1
        if user is not None and user.at_ns == at_ns and event.id < user.id <= event.id + events.COMPANION_EVENTS_MAX:
            life.user = life.user or user.user
    elif change == events.ADD and detail == events.REQUESTED:
        life.asks += 1


def _fold_node(life: Life, event: PastEvent, _user: _Beside | None) -> None:
    record = event.record
    change, detail = record.eventChangeType, record.eventChangeDetail
    if (change == events.ADD and detail == 0) or detail == events.NODE_CAPACITY:
        life.resource = life.resource or quantities(record)
    elif change == events.ADD and detail == events.NODE_ALLOCATED:
        life.allocations += 1


def _fold_queue(life: Life, event: PastEvent, _user: _Beside | None) -> None:
    record = event.record
    if record.eventChangeDetail == events.QUEUE_MAX:
        life.resource = life.resource or quantities(record)
    elif record.eventChangeDetail == events.QUEUE_GUARANTEED:
        life.guaranteed = life.guaranteed or quantities(record)
    elif record.eventChangeType == events.ADD and record.eventChangeDetail == events.QUEUE_APP:
        life.applications += 1


_FOLDS = {Kind.APPLICATION: _fold_application, Kind.NODE: _fold_node, Kind.QUEUE: _fold_queue}
_ENDS = {Kind.APPLICATION: {0}, Kind.NODE: {events.NODE_REMOVED}, Kind.QUEUE: {0, events.QUEUE_DYNAMIC}}
_BEGINS = {Kind.APPLICATION: {0, events.NEW}, Kind.NODE: {0}, Kind.QUEUE: {0, events.QUEUE_DYNAMIC}}


def allocations_of(life: Life) -> list[Held]:
    """The allocations of one application's or node's life, in the order of their beginnings."""
    allocations: list[Held] = []
    running: dict[str, Held] = {}
    ask_times_ns: dict[str, int] = {}
    for event in reversed(life.events):
        record = event.record
        change, detail, at_ns, key = (
            record.eventChangeType, record.eventChangeDetail, record.timestampNano, record.referenceID,
        )  # fmt: skip
        if record.type == events.NODE and detail == events.NODE_ALLOCATED:
            if life.kind is Kind.APPLICATION:
                if change == events.ADD and key in running:
                    running[key].node = record.objectID
            elif change == events.ADD:
                running[key] = Held(key, at_ns, node=record.objectID, resource=quantities(record))
                allocations.append(running[key])
            elif key in running:
                running.pop(key).end_ns = at_ns
        elif record.type != events.APP or not key:
            continue
        elif change == events.ADD and detail == events.REQUESTED:
            ask_times_ns[key] = at_ns
        elif change == events.ADD and detail == events.ALLOCATED:
            running[key] = Held(key, at_ns, requested_ns=ask_times_ns.get(key, 0), resource=quantities(record))
            allocations.append(running[key])
        elif change == events.REMOVE and detail in ENDED and key in running:
            allocation = running.pop(key)
            allocation.end_ns, allocation.ended, allocation.message = at_ns, ENDED[detail], record.message
    for allocation in running.values():
        allocation.end_ns, allocation.ended = life.end_ns, DROPPED if life.end is not None else ""
    return allocations


def quantities(record: EventRecord) -> dict[str, int]:
    """An event's resource."""
    amounts = record.resource.resources
    return {name: amounts[name].value for name in sorted(amounts)}
