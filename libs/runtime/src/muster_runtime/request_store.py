"""The store of an RM's request events (the event history design, "SHIM events").

The store is bounded. These events have no id and are in no history: they wait here until they are sent to the RM. The
event publisher has one store per RM; a gateway has one per callback stream. The same rules hold in both:

full
    The newest events stay. The store counts events that it drops unsent.
sent
    An event is removed when every reader has sent it. Without a reader it waits. If a reader closes before it has sent
    the events that it took, they stay for the next reader.
nothing
    A nil or empty event is counted and skipped.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from muster_runtime.event_settings import DEFAULT

# Memory limit of one store, whatever capacity an RM sets.
BYTES_MAX = 16 * 1024 * 1024
_DIGITS_MAX = 10


class RequestEvent(NamedTuple):
    """A serialised si.v1.EventRecord. ``position`` is its offset in the RM's partition, which only grows."""

    position: int
    value: bytes


class RequestStore:
    """See the module's docstring.

    :param capacity: greatest number of events; 0: none.

    ``dropped`` counts events that were dropped unsent, ``empty`` those that were nil or empty.
    """

    def __init__(self, capacity: int = DEFAULT.request_store_capacity) -> None:
        self.capacity = capacity
        self.dropped = self.empty = 0
        self.last_position = -1
        self._events: deque[RequestEvent] = deque()
        self._bytes = 0
        self._first = 0  # number of the oldest event; numbers count all events that ever were in the store
        self._readers: list[RequestReader] = []

    def __len__(self) -> int:
        return len(self._events)

    @property
    def first_position(self) -> int | None:
        """Position of the oldest event; None: the store is empty."""
        return self._events[0].position if self._events else None

    def add(self, position: int, value: bytes | None) -> None:
        """Adds the newest event. Ignores a position that is not above the last one."""
        if position <= self.last_position:
            return
        self.last_position = position
        if not value:
            self.empty += 1
            return
        self._events.append(RequestEvent(position, value))
        self._bytes += len(value)
        self._make_room()

    def resize(self, capacity: int) -> None:
        """Sets the greatest number of events. The newest stay."""
        self.capacity = capacity
        self._make_room()

    def reader(self, after: int | None = None) -> RequestReader:
        """Returns a new reader of the store's events and of later ones.

        :param after: the reader skips events up to this position.
        """
        skipped = sum(event.position <= after for event in self._events) if after is not None else 0
        reader = RequestReader(self, self._first + skipped)
        self._readers.append(reader)
        return reader

    def _make_room(self) -> None:
        while len(self._events) > self.capacity or self._bytes > BYTES_MAX:
            number = self._first
            self._pop()
            self.dropped += not self._readers or not all(reader.has_taken(number) for reader in self._readers)
            for reader in self._readers:
                reader.passed_over(number)

    def _pop(self) -> None:
        self._bytes -= len(self._events.popleft().value)
        self._first += 1

    def _between(self, number: int) -> islice[RequestEvent]:
        return islice(self._events, number - self._first, None)

    def _leave(self, reader: RequestReader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        self._remove_sent()

    def _remove_sent(self) -> None:
        if self._readers:
            sent = min(reader.sent_before for reader in self._readers)
            while self._events and self._first < sent:
                self._pop()


class RequestReader:
    """Takes the events of a store, each once, in order.

    ``dropped`` counts events that were dropped before the reader took them. The reader no longer needs events with
    numbers below ``sent_before``.
    """

    def __init__(self, store: RequestStore, number: int) -> None:
        self.sent_before, self.dropped = number, 0
        self._store, self._next = store, number

    def __bool__(self) -> bool:
        """Tells whether there is an event to take."""
        return self._next < self._store._first + len(self._store)

    def take(self, count_max: int, bytes_max: int) -> list[RequestEvent]:
        """Returns the next events: at most ``count_max``, and at most ``bytes_max`` bytes unless the first alone is
        larger.
        """
        taken: list[RequestEvent] = []
        size = 0
        for event in self._store._between(self._next):
            if len(taken) == count_max or (taken and size + len(event.value) > bytes_max):
                break
            taken.append(event)
            size += len(event.value)
        self._next += len(taken)
        return taken

    def sent(self) -> None:
        """Records that all taken events were sent."""
        self.sent_before = self._next
        self._store._remove_sent()

    def skip_to(self, position: int) -> None:
        """Passes over the events up to this position. Only for a reader that has sent all events that it took."""
        self._next += sum(event.position <= position for event in self._store._between(self._next))
        self.sent()

    def has_taken(self, number: int) -> bool:
        return number < self._next

    def passed_over(self, number: int) -> None:
        """Records that the store dropped an event."""
        if number >= self._next:
            self._next = number + 1
            self.dropped += 1
        self.sent_before = max(self.sent_before, number + 1)

    def close(self) -> None:
        """Ends the reader. The store no longer keeps events for it."""
        self._store._leave(self)


def capacity_of(header: bytes | None) -> int | None:
    """Returns the capacity in an untracked event's header; None: it cannot be read."""
    if header is None or not header.isdigit() or len(header) > _DIGITS_MAX:
        return None
    return int(header)
