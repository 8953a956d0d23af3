"""Filters of ``muster.v1.Events``. Pure: each event is a :class:`Seen`.

An event names one object and at most one reference. These rules find the application that it belongs to:

=================================  ================================================================================
event                              belongs to the application
=================================  ================================================================================
APP                                its object
REQUEST                            its reference
QUEUE, QUEUE_APP                   its reference
USERGROUP, UG_APP_LINK             its reference
NODE, NODE_ALLOC                   the object of the APP event before it with the same reference (an allocation's key):
                                   the scheduler writes the two side by side
any other                          none
=================================  ================================================================================

An event belongs to a queue when its object (QUEUE) or reference (USERGROUP) is the queue or one below it, or when its
application is in such a queue. An application's first two events (ADD, and SET with APP_NEW) do not belong to a queue,
because they come before the application is in one. So a caller that resumes sees the same events as a caller that
never left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from muster_event_publisher.event_decoding import EventRecord

# The APP event of a NODE_ALLOC event is one of so many events before it.
LOOKBACK_EVENTS = 16
# Applications of an RM whose queue is remembered; beyond that, the oldest are forgotten.
APPLICATIONS_MAX = 100_000

_REQUEST, _APP, _NODE = int(EventRecord.REQUEST), int(EventRecord.APP), int(EventRecord.NODE)
_QUEUE, _USERGROUP = int(EventRecord.QUEUE), int(EventRecord.USERGROUP)
_ADD, _REMOVE = int(EventRecord.ADD), int(EventRecord.REMOVE)
_NODE_ALLOC, _QUEUE_APP = int(EventRecord.NODE_ALLOC), int(EventRecord.QUEUE_APP)
_UG_APP_LINK = int(EventRecord.UG_APP_LINK)
# Change and detail of an application's events before it is in a queue.
_BEFORE_QUEUE = frozenset({(_ADD, int(EventRecord.DETAILS_NONE)), (int(EventRecord.SET), int(EventRecord.APP_NEW))})


class EventFields(NamedTuple):
    """The fields of an event that filters compare. Numbers are the wire's."""

    type: int
    change: int
    detail: int
    object_id: str
    reference_id: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class EventFilter:
    """An event passes when it matches every field that is set; a set matches when it contains the event's value.

    :param application_id: "": any. ``queue``: a full path; "": any.
    """

    types: frozenset[int] = frozenset()
    changes: frozenset[int] = frozenset()
    details: frozenset[int] = frozenset()
    object_ids: frozenset[str] = frozenset()
    application_id: str = ""
    queue: str = ""

    @property
    def is_open(self) -> bool:
        """Whether every event passes."""
        return self == _OPEN

    @property
    def needs_lookback(self) -> bool:
        """Whether events before an event must be known, to judge it."""
        return bool(self.application_id or self.queue)

    def passes_plain(self, fields: EventFields) -> bool:
        """Whether the event passes, judged by its own fields."""
        return (
            (not self.types or fields.type in self.types)
            and (not self.changes or fields.change in self.changes)
            and (not self.details or fields.detail in self.details)
            and (not self.object_ids or fields.object_id in self.object_ids)
        )


_OPEN = EventFilter()


class QueueIndex:
    """The queue of each application at each event, learnt from QUEUE_APP events, which may come in any order.

    :param queue_of_object: gives an application's queue from its object on ``si.state``; "": not known. It serves
        applications whose QUEUE_APP event is older than all events seen here.
    """

    def __init__(
        self, applications_max: int = APPLICATIONS_MAX, queue_of_object: Callable[[str], str] = lambda _: ""
    ) -> None:
        self._max, self._queue_of_object = applications_max, queue_of_object
        # (event id, whether it entered, queue), ascending: an ended application's id may enter another queue later.
        self._marks: OrderedDict[str, list[tuple[int, bool, str]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._marks)

    def learn(self, event_id: int, fields: EventFields) -> None:
        """Learns from a QUEUE_APP event; ignores others."""
        if fields.detail != _QUEUE_APP or fields.type != _QUEUE or fields.change not in (_ADD, _REMOVE):
            return
        marks = self._marks.setdefault(fields.reference_id, [])
        mark = (event_id, fields.change == _ADD, fields.object_id)
        index = bisect_left(marks, mark)
        if marks[index : index + 1] != [mark]:
            marks.insert(index, mark)
        if len(self._marks) > self._max:
            self._marks.popitem(last=False)

    def queue_of(self, application_id: str, event_id: int) -> str:
        """The application's queue when the event happened, or the last one before; "": not known, or in none yet."""
        marks = self._marks.get(application_id)
        if marks is None:
            return self._queue_of_object(application_id)
        index = bisect_left(marks, (event_id + 1,))
        came, queue = marks[index - 1][1:] if index else (False, "")
        if not came and index < len(marks) and not marks[index][1]:
            return marks[index][2]  # the application leaves later, so it entered earlier, in an event that was not seen
        return queue


def passing(
    event_filter: EventFilter, events: Sequence[EventFields | None], start: int, first_id: int, queues: QueueIndex
) -> Iterator[int]:
    """Indices, from ``start`` on, of the events that pass.

    :param events: events with consecutive ids; ``events[0]`` has ``first_id``; None: missing. The filter looks back at
        the events before ``start``: LOOKBACK_EVENTS of them are enough.
    """
    if event_filter.is_open:
        yield from (index for index in range(start, len(events)) if events[index] is not None)
        return
    for index in range(start, len(events)):
        fields = events[index]
        if fields is None or not event_filter.passes_plain(fields):
            continue
        if event_filter.needs_lookback:
            owner = _application_of(events, index, fields)
            if event_filter.application_id and owner != event_filter.application_id:
                continue
            if event_filter.queue and not _in_queue(event_filter.queue, fields, owner, first_id + index, queues):
                continue
        yield index


def passes_request(event_filter: EventFilter, fields: EventFields, next_id: int, queues: QueueIndex) -> bool:
    """Whether an event of an ask passes, which has no id.

    :param next_id: the id of the RM's next tracked event.
    """
    return any(True for _ in passing(event_filter, (fields,), 0, next_id, queues))


def is_at_or_below(queue: str, path: str) -> bool:
    """Whether ``path`` is the queue or one below it."""
    return path == queue or path.startswith(f"{queue}.")


def _application_of(events: Sequence[EventFields | None], index: int, fields: EventFields) -> str:
    if fields.type == _APP:
        return fields.object_id
    if fields.type == _REQUEST or (fields.type, fields.detail) in ((_QUEUE, _QUEUE_APP), (_USERGROUP, _UG_APP_LINK)):
        return fields.reference_id
    if fields.type == _NODE and fields.detail == _NODE_ALLOC:
        for before in reversed(events[max(0, index - LOOKBACK_EVENTS) : index]):
            if before is not None and before.type == _APP and before.reference_id == fields.reference_id:
                return before.object_id
    return ""


def _in_queue(queue: str, fields: EventFields, owner: str, event_id: int, queues: QueueIndex) -> bool:
    if fields.type == _QUEUE:
        return is_at_or_below(queue, fields.object_id)
    if fields.type == _USERGROUP and fields.detail != _UG_APP_LINK:
        return is_at_or_below(queue, fields.reference_id)
    if fields.type == _APP and (fields.change, fields.detail) in _BEFORE_QUEUE:
        return False
    path = queues.queue_of(owner, event_id) if owner else ""
    return bool(path) and is_at_or_below(queue, path)
