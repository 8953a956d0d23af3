"""Events of one RM, read backwards from a place: the contract between the search of ended objects and its sources.

A source is the ring or a store. It returns events in pieces, newest first, and how far back it looked. A piece is
bounded, so an answer is: the caller goes on from the mark of the piece before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from muster_event_publisher.event_decoding import EventRecord

# Numbers of si.v1.EventRecord (docs/events.md).
APP, NODE, QUEUE, USERGROUP = 2, 3, 4, 5
NONE, SET, ADD, REMOVE = 0, 1, 2, 3
ALLOCATED, REQUESTED, REJECTED, NEW, COMPLETED, FAILED, RESUMING, EXPIRED = (
    200, 201, 202, 203, 208, 210, 211, 212,
)  # fmt: skip
NODE_REMOVED, NODE_ALLOCATED, NODE_CAPACITY = 300, 303, 304
QUEUE_DYNAMIC, QUEUE_MAX, QUEUE_GUARANTEED, QUEUE_APP = 401, 403, 404, 405
APP_LINK, USER_RESOURCE = 602, 603
# Right behind the event of an allocation come those of its node and of its user.
COMPANION_EVENTS_MAX = 3


class Kind(StrEnum):
    """The kinds of objects that end; the values are those of the parameter ``kind``."""

    APPLICATION = "application"
    NODE = "node"
    QUEUE = "queue"


TYPES = {Kind.APPLICATION: APP, Kind.NODE: NODE, Kind.QUEUE: QUEUE}
# The details that make a life, by kind: events of allocations are many more, and only one object's are read.
DETAILS = {
    Kind.APPLICATION: frozenset({0, *range(REJECTED, RESUMING + 1)}),
    Kind.NODE: frozenset({0, NODE_REMOVED, NODE_CAPACITY}),
    Kind.QUEUE: frozenset({0, QUEUE_DYNAMIC, QUEUE_MAX, QUEUE_GUARANTEED}),
}


class Mark(NamedTuple):
    """A place in an RM's events: those with an earlier time, or the same and a smaller id, are before it."""

    at_ns: int
    id: int

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Reads :meth:`text`. Raises ValueError."""
        at_ns, _, event_id = text.partition("-")
        if not (at_ns.isascii() and at_ns.isdigit() and event_id.isascii() and event_id.isdigit()):
            raise ValueError(text)
        mark = cls(int(at_ns), int(event_id))
        if max(mark) >= 1 << 63:
            raise ValueError(text)
        return mark

    @property
    def text(self) -> str:
        return f"{self.at_ns}-{self.id}"


class Selection(NamedTuple):
    """The events to read.

    :param name: all events of the object of this name, with those beside its allocations.
    :param text: otherwise: the events that make lives, of objects whose name has this text in any letter case.
    """

    kind: Kind
    name: str = ""
    text: str = ""


class PastEvent(NamedTuple):
    """An event with its identity."""

    instance: str
    id: int
    record: EventRecord

    @property
    def mark(self) -> Mark:
        return Mark(self.record.timestampNano, self.id)


class Stretch(NamedTuple):
    """The result of one read.

    :param events: those that the selection chose, newest first; those beside an allocation come before its own.
    :param down_to: everything from this mark on was read; None: the source has no older events of the RM.
    :param looked_at: how many events that took.
    """

    events: Sequence[PastEvent]
    down_to: Mark | None
    looked_at: int = 0


@runtime_checkable
class PastReader(Protocol):
    """A store that can be read backwards (a :class:`~muster_event_publisher.history.reader.HistoryReader`, too)."""

    async def past(self, rm_id: str, below: Mark | None, selection: Selection, most: int) -> Stretch:
        """Events of the RM from before ``below`` (None: from its newest one) on backwards.

        :param most: of events that are looked at. A piece may be shorter.

        Does not block the event loop. Raises SinkError: the store cannot be read now.
        """
        ...


def name_in(selection: Selection, record: EventRecord) -> str | None:
    """The name of the selection's object that an event is about; None: it is about none."""
    kind, detail = record.type, record.eventChangeDetail
    if selection.kind is Kind.APPLICATION:
        if kind == APP:
            return record.objectID
        if (kind == QUEUE and detail == QUEUE_APP) or (kind == USERGROUP and detail == APP_LINK):
            return record.referenceID
        return None
    if kind != TYPES[selection.kind]:
        return None
    return None if kind == QUEUE and record.eventChangeType == NONE else record.objectID


def chosen(selection: Selection, record: EventRecord) -> bool:
    """Whether a selection has an event."""
    name = name_in(selection, record)
    if name is None:
        return False
    if selection.name:
        return name == selection.name
    detail, change = record.eventChangeDetail, record.eventChangeType
    makes_life = detail in DETAILS[selection.kind] and record.type == TYPES[selection.kind]
    joins = selection.kind is Kind.APPLICATION and (detail == QUEUE_APP or (detail == ALLOCATED and change == ADD))
    return (makes_life or joins) and selection.text.lower() in name.lower()


def companion_indices(values: Sequence[EventRecord | None], index: int, *, nodes: bool) -> Iterator[int]:
    """Indices of the events of the node (if ``nodes``) and of the user that belong to an allocation's event."""
    of = values[index]
    if of is None or of.type != APP or of.eventChangeDetail != ALLOCATED or of.eventChangeType != ADD:
        return
    for candidate in range(index + 1, min(index + 1 + COMPANION_EVENTS_MAX, len(values))):
        record = values[candidate]
        if record is None or record.timestampNano != of.timestampNano or record.type == APP:
            return
        if (nodes and record.type == NODE) or (record.type == USERGROUP and record.eventChangeDetail == USER_RESOURCE):
            yield candidate
