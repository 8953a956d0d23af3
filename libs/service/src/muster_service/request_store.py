"""The store of an RM's request events (seed 002, "SHIM events"): bounded, emptied by sending.

These events have no id and stand in no history: they wait here until whoever sends them to the RM has taken them. The
publisher has one store for each RM, a gateway one for each callback stream; both hold the same few rules:

full
    The newest events stay. What is pushed out before it was sent is counted.
sent
    An event goes when every reader has sent it. Without a reader it waits; one that leaves before it has sent what it
    took leaves it to the next.
nothing
    An event that is nil or empty is counted and passed over.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from muster_service.event_settings import DEFAULT

# Whatever an RM sets: so much memory at most for one store.
BYTES_MAX = 16 * 1024 * 1024
_DIGITS_MAX = 10


class RequestEvent(NamedTuple):
    """A serialised si.v1.EventRecord; ``position`` is its offset in the RM's partition: it only grows."""

    position: int
    value: bytes


class RequestStore:
    """See the module's words.

    :param capacity: events held at most; 0: none.

    ``dropped`` counts events that were pushed out unsent, ``empty`` those that were nil or empty.
    """

    def __init__(self, capacity: int = DEFAULT.request_store_capacity) -> None:
        self.capacity = capacity
        self.dropped = self.empty = 0
        self.last_position = -1
        self._events: deque[RequestEvent] = deque()
        self._bytes = 0
        self._first = 0  # the number of the oldest event; numbers count everything that ever was in the store
        self._readers: list[RequestReader] = []

    def __len__(self) -> int:
        return len(self._events)

    def add(self, position: int, value: bytes | None) -> None:
        """Takes the newest event. One whose position was there before is passed over."""
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
        """Sets how many events are held; the newest stay."""
        self.capacity = capacity
        self._make_room()

    def reader(self, after: int | None = None) -> RequestReader:
        """A new reader of what is in the store, and of what comes.

        :param after: events up to this position are not given.
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

    ``dropped`` counts those that were pushed out before it took them; events with numbers below ``sent_before`` are
    those that it needs no more.
    """

    def __init__(self, store: RequestStore, number: int) -> None:
        self.sent_before, self.dropped = number, 0
        self._store, self._next = store, number

    def __bool__(self) -> bool:
        """Whether there is something to take."""
        return self._next < self._store._first + len(self._store)

    def take(self, count_max: int, bytes_max: int) -> list[RequestEvent]:
        """The next events: as many as there are, at most ``count_max``, and one or ``bytes_max`` bytes of them."""
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
        """What was taken was sent."""
        self.sent_before = self._next
        self._store._remove_sent()

    def has_taken(self, number: int) -> bool:
        return number < self._next

    def passed_over(self, number: int) -> None:
        """The store has pushed an event out."""
        if number >= self._next:
            self._next = number + 1
            self.dropped += 1
        self.sent_before = max(self.sent_before, number + 1)

    def close(self) -> None:
        """Takes no more: what it has not sent is no longer kept for it."""
        self._store._leave(self)


def capacity_of(header: bytes | None) -> int | None:
    """What an untracked event's header says about its store; None: nothing that can be read."""
    if header is None or not header.isdigit() or len(header) > _DIGITS_MAX:
        return None
    return int(header)
