"""How far a log partition's events are shown, for reads that name a position (docs/consistency.md).

The state says how far each stamp is in the events: an RM's object has its stamp, and the id of the next event. So the
events of a stamp are shown when the state is read up to it, and the rings have the ids that the state names.
"""

from __future__ import annotations

from typing import NamedTuple

from muster_bus.errors import LogError
from muster_si.positions import NO_STAMP, Stamp

from muster_event_publisher.feed import PartitionFeed
from muster_event_publisher.ring import Rings, Signal

# So long nothing comes before the log is asked whether anything is left. (Events in a damaged part never come.)
_QUIET_S = 0.25


class _Awaited(NamedTuple):
    """The id of an RM's next event, as the state has it."""

    instance: str
    next_id: int


class ShownEvents:
    """A log partition's events. See :class:`muster_runtime.positions.Shown`.

    :ivar wanted: notified when a read waits for the state.
    """

    def __init__(self, feed: PartitionFeed, rings: Rings) -> None:
        self._feed, self._rings = feed, rings
        self._stamp = NO_STAMP
        self._awaited: dict[str, _Awaited] = {}
        self.wanted, self._read = Signal(), Signal()

    @property
    def stamp(self) -> Stamp:
        """How far the state is read."""
        return self._stamp

    def note(self, rm_id: str, stamp: Stamp, instance: str, next_id: int) -> None:
        """Takes an RM's object from the state."""
        self._awaited[rm_id] = _Awaited(instance, next_id)
        self.note_stamp(stamp)

    def note_stamp(self, stamp: Stamp) -> None:
        """Takes a stamp from the state."""
        self._stamp = max(self._stamp, stamp)

    def drop(self, rm_id: str) -> None:
        """The RM is forgotten."""
        self._awaited.pop(rm_id, None)

    def was_read(self) -> None:
        """More of the state was read."""
        self._read.notify()

    def includes(self, stamp: Stamp) -> bool:
        """Whether all events up to a stamp are shown."""
        return self._stamp >= stamp and not self._is_missing()

    async def wait_included(self, stamp: Stamp) -> None:
        """Returns when all events up to a stamp are shown. Callers bound the wait."""
        while self._stamp < stamp:
            self.wanted.notify()
            await self._read.wait(_QUIET_S)
        while self._is_missing():
            if not await self._feed.changed.wait(_QUIET_S) and await self._is_at_end():
                self._awaited.clear()

    def _is_missing(self) -> bool:
        """Whether the state names events that the rings do not have yet."""
        for rm_id, (instance, next_id) in list(self._awaited.items()):
            ring = self._rings.get(rm_id)
            if not next_id or (ring is not None and ring.instance == instance and ring.next_id >= next_id):
                del self._awaited[rm_id]
        return bool(self._awaited)

    async def _is_at_end(self) -> bool:
        try:
            return await self._feed.has_all()
        except LogError:
            return False
