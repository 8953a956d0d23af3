"""Searches what ended: first in the rings, then in the stores, newest first, a bounded piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from muster_event_publisher.ended.events import Mark, PastEvent, PastReader, Selection
from muster_event_publisher.ended.lives import Life, Lives
from muster_event_publisher.ended.ring_past import lowest_mark, ring_past
from muster_event_publisher.errors import OldEventsUnavailable, SinkError
from muster_event_publisher.history.reader import HistoryReader
from muster_event_publisher.old_read_limiter import ReadSlots
from muster_event_publisher.ring import Rings

log = structlog.get_logger(__name__)

# Events that one answer looks at in the stores, and most events of one object in it.
LOOKED_AT_MAX, OF_ONE_MAX = 1_000_000, 5_000
# Events of one read of a store. So many more are looked at for the beginnings of the last lives of an answer.
_STRETCH = 100_000
# Events that are folded between two pauses for other tasks: about two milliseconds.
_SLICE = 256
_STORES = "Name a store of the kind parquet or postgres in publisher.sinks (docs/history-stores.md)."


class Ended(NamedTuple):
    """An answer.

    :ivar incarnations: the one that ended last first.
    :ivar next: where the next answer begins; None: there is nothing further back.
    :ivar note: what could not be searched, and the remedy; "": everything was.
    :ivar is_of_rm: rings or stores have an event of the RM that was chosen, or any at all in memory.
    """

    incarnations: Sequence[Life]
    next: Mark | None
    note: str
    is_of_rm: bool


class EndedSearch:
    """Searches the rings and the settings' stores."""

    def __init__(self, rings: Rings, stores: Sequence[HistoryReader]) -> None:
        self._rings = rings
        self._stores = [(store.name, store) for store in stores if isinstance(store, PastReader)]
        self._others = [store.name for store in stores if not isinstance(store, PastReader)]

    @property
    def stores(self) -> list[str]:
        """The names of the stores that are searched."""
        return [name for name, _ in self._stores]

    async def search(self, rm_id: str, selection: Selection, below: Mark | None, count: int, turns: ReadSlots) -> Ended:
        """Up to ``count`` lives of the RM from before ``below``. Raises OldEventsUnavailable.

        :param turns: the caller's right to read old events.
        """
        work = _Work(selection, below, count)
        # 1. what is in memory
        in_memory = await self._in_rings(rm_id, work)
        # 2. what is older
        if not work.is_enough():
            await self._in_stores(rm_id, work, turns)
        return Ended(work.incarnation_fold.ended[:count], work.next(), self._note(), in_memory or work.events > 0)

    async def _in_rings(self, rm_id: str, work: _Work) -> bool:
        has_events = False
        for ring in self._rings.of(rm_id):
            lowest = lowest_mark(ring)
            if lowest is None:
                continue
            has_events = True
            if work.below is not None and work.below <= lowest:
                continue
            async for events in ring_past(ring, work.below, work.selection):
                await work.add(events)
                if work.is_enough():
                    return True
            work.below = lowest
        return has_events

    async def _in_stores(self, rm_id: str, work: _Work, turns: ReadSlots) -> None:
        """Reads the first store; where it fails, the next one goes on."""
        failed = ""
        work.is_over = not self._stores
        for name, store in self._stores:
            try:
                while work.looked_at < work.looked_at_max() and not work.is_enough():
                    async with turns.slot():
                        stretch = await store.past(rm_id, work.below, work.selection, _STRETCH)
                    await work.add(stretch.events)
                    work.looked_at += stretch.looked_at
                    if stretch.down_to is None:
                        work.is_over = True
                        return
                    work.below = stretch.down_to
                return
            except SinkError as problem:
                log.warning("ended objects cannot be searched now", store=name, error=str(problem))
                failed = name
        if failed:
            raise OldEventsUnavailable(f"the store {failed!r} does not answer")

    def _note(self) -> str:
        if self._stores:
            return ""
        if self._others:
            stores = ", ".join(self._others)
            return f"The history stores {stores} cannot be searched, so only the events in memory were. {_STORES}"
        return f"No history store is configured, so only the events in memory were searched. {_STORES}"


class _Work:
    """One search: its lives, and how far back it is.

    :ivar below: what is before this mark is not read yet.
    :ivar looked_at: events in stores.
    :ivar is_over: there is nothing older.
    """

    def __init__(self, selection: Selection, below: Mark | None, count: int) -> None:
        self.selection, self.below = selection, below
        self.incarnation_fold = Lives(selection)
        self.events = self.looked_at = 0
        self.is_over = False
        self._count, self._full_at = count, -1

    async def add(self, events: Sequence[PastEvent]) -> None:
        for start in range(0, len(events), _SLICE):
            self.incarnation_fold.add(events[start : start + _SLICE])
            await asyncio.sleep(0)
        self.events += len(events)

    def is_enough(self) -> bool:
        """Whether the answer is complete. Many events of one object are enough, too."""
        return self.incarnation_fold.is_whole(self._count) or (bool(self.selection.name) and self.events >= OF_ONE_MAX)

    def looked_at_max(self) -> int:
        """Less once all lives of the answer are there and only a beginning is missing: it may be very old."""
        if self._full_at < 0 and len(self.incarnation_fold.ended) >= self._count:
            self._full_at = self.looked_at
        return LOOKED_AT_MAX if self._full_at < 0 else min(LOOKED_AT_MAX, self._full_at + _STRETCH)

    def next(self) -> Mark | None:
        """Where the next answer begins: behind the last life of this one, or where the search stopped."""
        ended = self.incarnation_fold.ended
        if self.selection.name:
            if len(ended) >= self._count and ended[self._count - 1].is_whole:
                return ended[self._count - 1].first
            return None if self.is_over else self.below
        if len(ended) >= self._count:
            return ended[self._count - 1].end
        return None if self.is_over else self.below
