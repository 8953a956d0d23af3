"""Snapshots that several watchers share. For each query, at most one is being taken; a new enough one is reused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from muster_bus.clock import Clock

from muster_gateway.errors import GatewayStopping
from muster_gateway.metrics_codec import MetricsQuery

FetchSnapshot = Callable[[MetricsQuery], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class CachedSnapshot:
    """A snapshot.

    :param began_s: start of the snapshot, by the monotonic clock; it shows the state of that moment or a little later.
    """

    payload: bytes
    began_s: float
    took_s: float


@dataclass(slots=True)
class _WatchedQuery:
    """A query with watchers."""

    watchers: int = 0
    snapshot: CachedSnapshot | None = None
    pending: asyncio.Task[CachedSnapshot] | None = None


class SharedSnapshots:
    """See the module's docstring.

    :param fetch_snapshot: takes a snapshot; all waiting callers get its exceptions.
    """

    def __init__(self, fetch_snapshot: FetchSnapshot, clock: Clock) -> None:
        self._fetch_snapshot, self._clock = fetch_snapshot, clock
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
                if watched.pending is not None:
                    watched.pending.cancel()

    async def get(self, query: MetricsQuery, not_before_s: float) -> CachedSnapshot:
        """Returns a snapshot that began at ``not_before_s`` or later, or one that is being taken now."""
        watched = self._watched[query]
        if watched.snapshot is not None and watched.snapshot.began_s >= not_before_s:
            return watched.snapshot
        if watched.pending is None:
            watched.pending = asyncio.create_task(self._fetch(watched, query), name="metrics snapshot")
        pending = watched.pending
        try:
            return await asyncio.shield(pending)
        except asyncio.CancelledError:
            if self._closed and pending.cancelled():
                raise GatewayStopping from None
            raise

    async def close(self) -> None:
        """Cancels the running snapshots. Their waiting callers get GatewayStopping."""
        self._closed = True
        tasks = [watched.pending for watched in self._watched.values() if watched.pending is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, watched: _WatchedQuery, query: MetricsQuery) -> CachedSnapshot:
        began_s = self._clock.monotonic()
        try:
            snapshot = await self._fetch_snapshot(query)
            watched.snapshot = CachedSnapshot(snapshot, began_s, self._clock.monotonic() - began_s)
            return watched.snapshot
        finally:
            watched.pending = None
