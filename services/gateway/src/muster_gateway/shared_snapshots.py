"""Snapshots that several watchers share. For each query, at most one is being taken; a new enough one is reused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from muster_bus.clock import Clock

from muster_gateway.errors import GatewayStopping
from muster_gateway.metrics_codec import MetricsQuery

Take = Callable[[MetricsQuery], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class CachedSnapshot:
    """A snapshot.

    :param began_s: start of the snapshot, by the monotonic clock; it shows the state of that moment or a little later.
    """

    made: bytes
    began_s: float
    took_s: float


@dataclass(slots=True)
class _WatchedQuery:
    """A query with watchers."""

    watchers: int = 0
    taken: CachedSnapshot | None = None
    taking: asyncio.Task[CachedSnapshot] | None = None


class SharedSnapshots:
    """See the module's docstring.

    :param take: takes a snapshot; all waiting callers get its exceptions.
    """

    def __init__(self, take: Take, clock: Clock) -> None:
        self._take, self._clock = take, clock
        self._watched: dict[MetricsQuery, _WatchedQuery] = {}
        self._closed = False

    @contextlib.contextmanager
    def watching(self, query: MetricsQuery) -> Iterator[None]:
        """Keeps a query open: :meth:`get` accepts it within the ``with`` block."""
        watched = self._watched.setdefault(query, _WatchedQuery())
        watched.watchers += 1
        try:
            yield
        finally:
            watched.watchers -= 1
            if not watched.watchers:
                del self._watched[query]
                if watched.taking is not None:
                    watched.taking.cancel()

    async def get(self, query: MetricsQuery, not_before_s: float) -> CachedSnapshot:
        """Returns a snapshot that began at ``not_before_s`` or later, or one that is being taken now."""
        watched = self._watched[query]
        if watched.taken is not None and watched.taken.began_s >= not_before_s:
            return watched.taken
        if watched.taking is None:
            watched.taking = asyncio.create_task(self._taken(watched, query), name="metrics snapshot")
        taking = watched.taking
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            if self._closed and taking.cancelled():
                raise GatewayStopping from None
            raise

    async def close(self) -> None:
        """Cancels the running snapshots. Their waiting callers get GatewayStopping."""
        self._closed = True
        tasks = [watched.taking for watched in self._watched.values() if watched.taking is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _taken(self, watched: _WatchedQuery, query: MetricsQuery) -> CachedSnapshot:
        began_s = self._clock.monotonic()
        try:
            snapshot = await self._take(query)
            watched.taken = CachedSnapshot(snapshot, began_s, self._clock.monotonic() - began_s)
            return watched.taken
        finally:
            watched.taking = None
