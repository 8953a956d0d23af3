"""How far a log partition's events, and its usage, are shown, for reads that name a position (docs/consistency.md).

The state says how far each stamp is in the events: an RM's object has its stamp, and the id of the next event. So the
events of a stamp are shown when the state is read up to it, and the rings have the ids that the state names. Its usage
is shown when that of these events is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from muster_bus.errors import LogError
from muster_si.positions import NO_STAMP, Stamp

from muster_event_publisher.feed import PartitionFeed
from muster_event_publisher.ring import EventRing, Rings, Signal

# So long nothing comes before the log is asked whether anything is left. (Events in a damaged part never come.)
_QUIET_S = 0.25


class _NextEvent(NamedTuple):
    """The id of an RM's next event, as the state has it."""

    instance: str
    next_id: int


class ShownEvents:
    """A log partition's events. See :class:`muster_runtime.positions.Shown`.

    :ivar needed: notified when a read waits for the state.
    """

    def __init__(self, feed: PartitionFeed, rings: Rings) -> None:
        self._feed, self._rings = feed, rings
        self._stamp = self._included_stamp = NO_STAMP
        self._missing: dict[str, _NextEvent] = {}  # by RM: the state is ahead of the rings
        self.needed, self._read = Signal(), Signal()

    @property
    def stamp(self) -> Stamp:
        """How far the state is read."""
        return self._stamp

    def note(self, rm_id: str, stamp: Stamp, instance: str, next_id: int) -> None:
        """Notes an RM's object on the state."""
        self._missing[rm_id] = _NextEvent(instance, next_id)
        self.note_stamp(stamp)

    def note_stamp(self, stamp: Stamp) -> None:
        """Notes a stamp on the state."""
        self._stamp = max(self._stamp, stamp)

    def drop(self, rm_id: str) -> None:
        """The RM is forgotten."""
        self._missing.pop(rm_id, None)

    def was_read(self) -> None:
        """More of the state was read."""
        self._read.notify()

    def includes(self, stamp: Stamp) -> bool:
        """Whether all events up to a stamp are shown."""
        return self._included_stamp >= stamp or (self._stamp >= stamp and not self._has_missing(self._missing))

    async def wait_included(self, stamp: Stamp) -> None:
        """Returns when all events up to a stamp are shown. Callers bound the wait."""
        while self._stamp < stamp:
            self.needed.notify()
            await self._read.wait(_QUIET_S)
        # The state goes on meanwhile. What it names from now on is not waited for.
        reached, missing = self._stamp, dict(self._missing)
        while self._has_missing(missing):
            if not await self._feed.changed.wait(_QUIET_S) and await self._is_at_end():
                for rm_id, next_event in missing.items():
                    if self._missing.get(rm_id) == next_event:
                        del self._missing[rm_id]
                break
        self._included_stamp = max(self._included_stamp, reached)

    def _has_missing(self, missing: dict[str, _NextEvent]) -> bool:
        """Whether the rings lack events. Drops those that they have."""
        for rm_id, (instance, next_id) in list(missing.items()):
            ring = self._rings.get(rm_id)
            is_dropped = rm_id not in self._missing
            if is_dropped or not next_id or (ring and ring.instance == instance and ring.next_id >= next_id):
                del missing[rm_id]
        return bool(missing)

    async def _is_at_end(self) -> bool:
        try:
            return await self._feed.has_all()
        except LogError:
            return False


class Derived(Protocol):
    """What is derived from events, as a service shows it.

    :ivar changed: notified when more is shown.
    """

    changed: Signal

    def includes(self, ring: EventRing, instance: str, event_id: int) -> bool:
        """Whether an RM's events up to an id are in it.

        :param ring: the RM's.
        """
        ...


class ShownUsage:
    """A log partition's usage. See :class:`muster_runtime.positions.Shown`.

    :param rings: returns the rings of the partition's RMs.
    """

    def __init__(self, events: ShownEvents, rings: Callable[[], Iterable[EventRing]], derived: Derived) -> None:
        self._events, self._rings, self._derived = events, rings, derived
        self._included_stamp = NO_STAMP

    @property
    def stamp(self) -> Stamp:
        """How far the state is read."""
        return self._events.stamp

    def includes(self, stamp: Stamp) -> bool:
        """Whether the usage of all events up to a stamp is known to be shown."""
        return self._included_stamp >= stamp

    async def wait_included(self, stamp: Stamp) -> None:
        """Returns when the usage of all events up to a stamp is shown. Callers bound the wait."""
        await self._events.wait_included(stamp)
        for ring, instance, last_id in [(ring, ring.instance, ring.next_id - 1) for ring in self._rings()]:
            while last_id >= 0 and not self._derived.includes(ring, instance, last_id):
                await self._derived.changed.wait(None)
        self._included_stamp = max(self._included_stamp, stamp)
