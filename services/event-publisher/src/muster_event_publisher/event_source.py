"""Reads events by id: from the rings, then from the log, then from the exported history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import structlog
from muster_bus.errors import LogError
from muster_bus.topics import Topics
from muster_runtime.default_rm import resolve_rm
from muster_runtime.event_settings import DEFAULT, EventSettings
from muster_runtime.read_scope import EVERYTHING, ReadScope

from muster_event_publisher.errors import (
    HttpError,
    OldEventsUnavailable,
    SearchLimitExceeded,
    SinkError,
    quote,
    rm_list_clause,
)
from muster_event_publisher.event_json import EventLines
from muster_event_publisher.history.reader import HistoryReader
from muster_event_publisher.log_search import Former, LogSearch, OldEvents
from muster_event_publisher.old_read_limiter import OldReadLimiter, ReadSlots
from muster_event_publisher.ring import EventRing, Rings

log = structlog.get_logger(__name__)

# Rendered events kept per RM: about as many as streams and pollers ask for again within a second or two.
_LINES_MAX = 10_000
# Events of one read older than the ring, whatever size of answer an RM allows: they are all in memory at once.
_OLD_EVENTS_MAX = 10_000
_DISABLED = "Event tracking is disabled"


class RmSettingsSource(Protocol):
    """The RMs' event settings (``rm_settings.RmSettings``)."""

    def settings_for(self, rm_id: str) -> EventSettings: ...
    def tracks(self, rm_id: str) -> bool: ...
    def registered(self) -> list[str]: ...
    def stopped_by_rm(self, rm_ids: Iterable[str]) -> Mapping[str, bool]: ...


class _DefaultSettings:
    """The defaults, for a source without RM settings."""

    def settings_for(self, rm_id: str) -> EventSettings:
        return DEFAULT

    def tracks(self, rm_id: str) -> bool:
        return True

    def registered(self) -> list[str]:
        return []

    def stopped_by_rm(self, rm_ids: Iterable[str]) -> Mapping[str, bool]:
        return dict.fromkeys(rm_ids, False)


class EventSource:
    """The events of all RMs, by id.

    :param searches: one per partition; empty: the log is not searched for events older than the ring.
    :param history: the stores, in the order in which they are asked for events that the log does not have.
    :ivar old_reads: bounds how many reads of events older than the ring run at once.
    """

    def __init__(
        self,
        rings: Rings,
        searches: list[LogSearch],
        topics: Topics,
        history: Sequence[HistoryReader] = (),
        settings: RmSettingsSource | None = None,
        old_reads: OldReadLimiter | None = None,
    ) -> None:
        self.rings = rings
        self.old_reads = old_reads if old_reads is not None else OldReadLimiter()
        self.settings: RmSettingsSource = settings if settings is not None else _DefaultSettings()
        self._searches, self._topics, self._history = searches, topics, history
        self._lines: dict[str, tuple[str, EventLines]] = {}

    def choose(self, rm_id: str | None, default_rm: str = "", reach: ReadScope = EVERYTHING) -> EventRing | None:
        """The ring that a request means; None when no RM has events yet.

        :param default_rm: the RM that is meant when there are several and the request names none.
        :param reach: what the caller may read; other RMs do not exist for it. Events need the whole RM.

        Raises RequestRefused: 500 when events are not tracked; 404 for an RM without events; 400 when several RMs have
        events, the request names none and no default decides.
        """
        tracks = self.settings.tracks
        sees = reach.can_read_all_of
        visible = [known_id for known_id in self.rings.rm_ids() if tracks(known_id) and sees(known_id)]
        if rm_id is None and default_rm:
            # (The default counts even if only another RM has events: the caller would mistake those for its own.)
            everybody = self.settings.stopped_by_rm({*self.rings.rm_ids(), *self.settings.registered()})
            if default_rm in everybody and len(everybody) > 1 and sees(default_rm):
                rm_id = default_rm
        if rm_id is not None:
            ring = self.rings.get(rm_id)
            if not sees(rm_id):
                raise HttpError(404, f'parameter "rm": no events of {quote(rm_id)}{rm_list_clause(visible)}')
            if not tracks(rm_id):
                raise HttpError(500, _DISABLED)
            if ring is None:
                raise HttpError(404, f'parameter "rm": no events of {quote(rm_id)}{rm_list_clause(visible)}')
            return ring
        is_stopped_by_rm = self.settings.stopped_by_rm(visible)
        meant = resolve_rm(is_stopped_by_rm, default_rm)
        if meant is not None:
            return self.rings.get(meant)
        if is_stopped_by_rm:
            raise HttpError(400, f'parameter "rm" is needed{rm_list_clause(list(is_stopped_by_rm))}')
        if not reach.is_all:  # an RM that has events later may be another's
            raise HttpError(404, f'parameter "rm": no events{rm_list_clause(visible)}')
        # No RM has events: an error, unless some RM is tracked and may have events later.
        others = {*self.rings.rm_ids(), *self.settings.registered()} or {""}
        if not any(map(tracks, others)):
            raise HttpError(500, _DISABLED)
        return None

    def first(self) -> EventRing | None:
        """The ring of the first RM with events that is not forgotten, for a request that came before any had some."""
        tracks = self.settings.tracks
        candidates = self.settings.stopped_by_rm([rm_id for rm_id in self.rings.rm_ids() if tracks(rm_id)])
        return self.rings.get(next(iter(candidates), ""))

    def lines(self, ring: EventRing) -> EventLines:
        """The renderer of the RM's events; it belongs to the RM's present instance."""
        cached = self._lines.get(ring.rm_id)
        if cached is None or cached[0] != ring.instance:
            cached = self._lines[ring.rm_id] = (ring.instance, EventLines(min(_LINES_MAX, ring.capacity)))
        return cached[1]

    async def old(self, ring: EventRing, start: int, count: int, turns: ReadSlots | None = None) -> OldEvents | None:
        """Events from ``start`` on, or from the next id that exists; None: there are none. At most 10,000.

        The log is read first, then the history; after a restore also for ids from before it. Raises
        OldEventsUnavailable when one of them does not answer and none has the event ``start`` itself. (To continue with
        a later event would then hide events.)

        :param turns: the caller's right to read; None: the read waits for its turn. See :mod:`old_reads`.
        """
        async with (turns or self.old_reads).slot():
            return await self._old(ring, start, min(count, _OLD_EVENTS_MAX))

    async def _old(self, ring: EventRing, start: int, count: int) -> OldEvents | None:
        # 1. events of the present instance
        best, error = await self._of_instance(ring.rm_id, ring.instance, start, count)
        # 2. those from before it, where the ids went on: after a restore, or a loss that was accepted
        if error is None and (best is None or best.first_id > start):
            former = await self._former(ring)
            if former is not None and start < former.end:
                earlier, error = await self._of_former(ring, former, start, count)
                best = earlier or best
        if error is not None and (best is None or best.first_id != start):
            raise error
        return best

    async def _of_former(
        self, ring: EventRing, former: Former, start: int, count: int
    ) -> tuple[OldEvents | None, OldEventsUnavailable | None]:
        """Events of the instance before, and behind its last one those of the present instance."""
        events, error = await self._of_instance(ring.rm_id, former.instance, start, min(count, former.end - start))
        if events is None or events.first_id >= former.end:
            return None, error
        remaining = count - len(events.values)
        if remaining and events.first_id + len(events.values) == former.end:
            behind, _ = await self._of_instance(ring.rm_id, ring.instance, former.end, remaining)
            if behind is not None and behind.first_id == former.end:
                events.values.extend(behind.values)
        return events, error

    async def _former(self, ring: EventRing) -> Former | None:
        """The instance whose ids the ring's one goes on from; None: there is none on the log."""
        for before in self.rings.of(ring.rm_id)[1:]:
            if 0 < before.next_id == ring.first_id:
                return Former(before.instance, before.next_id)
        if not self._searches:
            return None
        try:
            return await self._searches[self._topics.partition_of(ring.rm_id)].former(ring.rm_id, ring.instance)
        except (LogError, SearchLimitExceeded) as problem:
            log.warning("the instance before cannot be found now", rm_id=ring.rm_id, error=str(problem))
            return None

    async def _of_instance(
        self, rm_id: str, instance: str, start: int, count: int
    ) -> tuple[OldEvents | None, OldEventsUnavailable | None]:
        """Events of one instance, and why some place could not be read."""
        candidates: list[OldEvents] = []
        error: OldEventsUnavailable | None = None
        # 1. the log
        if self._searches:
            search = self._searches[self._topics.partition_of(rm_id)]
            try:
                events = await search.read(rm_id, instance, start, count)
            except SearchLimitExceeded as problem:
                error = OldEventsUnavailable(str(problem))
            except LogError as problem:
                error = OldEventsUnavailable("the log does not answer")
                log.warning("old events cannot be read now", error=str(problem))
            else:
                if events is not None:
                    candidates.append(events)
        # 2. the stores, until one has the event itself
        for reader in self._history:
            if any(events.first_id == start for events in candidates):
                break
            try:
                events = await reader.read(rm_id, instance, start, count)
            except SinkError as problem:
                error = error or OldEventsUnavailable(f"the store {reader.name!r} does not answer")
                log.warning("exported events cannot be read now", store=reader.name, error=str(problem))
                continue
            if events is not None and events.values:
                candidates.append(events._replace(source="history"))
        return min(candidates, key=lambda events: events.first_id, default=None), error
