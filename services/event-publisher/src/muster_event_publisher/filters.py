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
LOOK_BACK = 16
# Applications of an RM whose queue is remembered; beyond that, the oldest are forgotten.
APPLICATIONS_KEPT = 100_000

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
    def looks_back(self) -> bool:
        """Whether events before an event must be known, to judge it."""
        return bool(self.application_id or self.queue)

    def passes_plain(self, seen: EventFields) -> bool:
        """Whether the event passes, judged by its own fields."""
        return (
            (not self.types or seen.type in self.types)
            and (not self.changes or seen.change in self.changes)
            and (not self.details or seen.detail in self.details)
            and (not self.object_ids or seen.object_id in self.object_ids)
        )


_OPEN = EventFilter()


class QueueIndex:
    """The queue of each application at each event, learnt from QUEUE_APP events, which may come in any order.

    :param queue_of_object: gives an application's queue from its object on ``si.state``; "": not known. It serves
        applications whose QUEUE_APP event is older than all events seen here.
    """

    def __init__(
        self, applications_max: int = APPLICATIONS_KEPT, queue_of_object: Callable[[str], str] = lambda _: ""
    ) -> None:
        self._max, self._queue_of_object = applications_max, queue_of_object
        # (event id, whether it entered, queue), ascending: an ended application's id may enter another queue later.
        self._marks: OrderedDict[str, list[tuple[int, bool, str]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._marks)

    def learn(self, event_id: int, seen: EventFields) -> None:
        """Learns from a QUEUE_APP event; ignores others."""
        if seen.detail != _QUEUE_APP or seen.type != _QUEUE or seen.change not in (_ADD, _REMOVE):
            return
        marks = self._marks.setdefault(seen.reference_id, [])
        mark = (event_id, seen.change == _ADD, seen.object_id)
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
    wanted: EventFilter, seen: Sequence[EventFields | None], start: int, first_id: int, queues: QueueIndex
) -> Iterator[int]:
    """Indices, from ``start`` on, of the events that pass.

    :param seen: events with consecutive ids; ``seen[0]`` has ``first_id``; None: missing. The filter looks back at the
        events before ``start``: LOOK_BACK of them are enough.
    """
    if wanted.is_open:
        yield from (index for index in range(start, len(seen)) if seen[index] is not None)
        return
    for index in range(start, len(seen)):
        each = seen[index]
        if each is None or not wanted.passes_plain(each):
            continue
        if wanted.looks_back:
            owner = _application_of(seen, index, each)
            if wanted.application_id and owner != wanted.application_id:
                continue
            if wanted.queue and not _in_queue(wanted.queue, each, owner, first_id + index, queues):
                continue
        yield index


def passes_request(wanted: EventFilter, seen: EventFields, next_id: int, queues: QueueIndex) -> bool:
    """Whether an event of an ask passes, which has no id.

    :param next_id: the id of the RM's next tracked event.
    """
    return any(True for _ in passing(wanted, (seen,), 0, next_id, queues))


def is_at_or_below(queue: str, path: str) -> bool:
    """Whether ``path`` is the queue or one below it."""
    return path == queue or path.startswith(f"{queue}.")


def _application_of(seen: Sequence[EventFields | None], index: int, each: EventFields) -> str:
    if each.type == _APP:
        return each.object_id
    if each.type == _REQUEST or (each.type, each.detail) in ((_QUEUE, _QUEUE_APP), (_USERGROUP, _UG_APP_LINK)):
        return each.reference_id
    if each.type == _NODE and each.detail == _NODE_ALLOC:
        for before in reversed(seen[max(0, index - LOOK_BACK) : index]):
            if before is not None and before.type == _APP and before.reference_id == each.reference_id:
                return before.object_id
    return ""


def _in_queue(queue: str, each: EventFields, owner: str, event_id: int, queues: QueueIndex) -> bool:
    if each.type == _QUEUE:
        return is_at_or_below(queue, each.object_id)
    if each.type == _USERGROUP and each.detail != _UG_APP_LINK:
        return is_at_or_below(queue, each.reference_id)
    if each.type == _APP and (each.change, each.detail) in _BEFORE_QUEUE:
        return False
    path = queues.queue_of(owner, event_id) if owner else ""
    return bool(path) and is_at_or_below(queue, path)
