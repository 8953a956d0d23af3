"""Where REST reads events: the rings, and behind them the log."""

from __future__ import annotations

from muster_bus.topics import Topics

from muster_event_publisher.errors import RequestRefused
from muster_event_publisher.log_search import LogSearch, OldEvents
from muster_event_publisher.render import EventLines
from muster_event_publisher.ring import EventRing, Rings

# Rendered events kept per RM: about what streams and pollers ask for again within a second or two.
_LINES_KEPT = 10_000


class EventSource:
    """The events of all RMs, by id.

    :param searches: per partition; empty: events older than the ring are not looked up.
    """

    def __init__(self, rings: Rings, searches: list[LogSearch], topics: Topics) -> None:
        self.rings = rings
        self._searches, self._topics = searches, topics
        self._lines: dict[str, tuple[str, EventLines]] = {}

    def choose(self, rm_id: str | None) -> EventRing | None:
        """The ring that a request means; None when no RM has events yet.

        Raises RequestRefused: 404 for an RM without events; 400 when several have some and none is named.
        """
        known = self.rings.rm_ids()
        if rm_id is not None:
            ring = self.rings.get(rm_id)
            if ring is None:
                raise RequestRefused(404, f'parameter "rm": no events of {rm_id}{_listed(known)}')
            return ring
        if len(known) > 1:
            raise RequestRefused(400, f'parameter "rm" is needed{_listed(known)}')
        return self.rings.get(known[0]) if known else None

    def lines(self, ring: EventRing) -> EventLines:
        """The renderer of the RM's events; it belongs to the RM's present instance."""
        known = self._lines.get(ring.rm_id)
        if known is None or known[0] != ring.instance:
            known = self._lines[ring.rm_id] = (ring.instance, EventLines(min(_LINES_KEPT, ring.capacity)))
        return known[1]

    async def old(self, ring: EventRing, start: int, count: int) -> OldEvents | None:
        """Events from ``start`` on out of the log; None when it has none. Raises SearchTooLong, LogError."""
        if not self._searches:
            return None
        search = self._searches[self._topics.partition_of(ring.rm_id)]
        return await search.read(ring.rm_id, ring.instance, start, count)


def _listed(rm_ids: list[str]) -> str:
    return f"; known RMs: {', '.join(rm_ids)}" if rm_ids else "; no RM has events yet"
