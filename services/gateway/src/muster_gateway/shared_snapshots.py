"""Snapshots that several watchers share: at most one is being taken of the same thing, and one that is new enough is
given again.
"""

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
class Taken:
    """A snapshot.

    :param began_s: when it was asked for, by the monotonic clock; it shows what was true then, or a little later.
    """

    made: bytes
    began_s: float
    took_s: float


@dataclass(slots=True)
class _Watched:
    """What is watched, while it is."""

    watchers: int = 0
    taken: Taken | None = None
    taking: asyncio.Task[Taken] | None = None


class SharedSnapshots:
    """See the module's words.

    :param take: takes a snapshot; what it raises all get who wait for it.
    """

    def __init__(self, take: Take, clock: Clock) -> None:
        self._take, self._clock = take, clock
        self._watched: dict[MetricsQuery, _Watched] = {}
        self._closed = False

    @contextlib.contextmanager
    def watching(self, query: MetricsQuery) -> Iterator[None]:
        """Within it, :meth:`get` may be asked for this."""
        watched = self._watched.setdefault(query, _Watched())
        watched.watchers += 1
        try:
            yield
        finally:
            watched.watchers -= 1
            if not watched.watchers:
                del self._watched[query]
                if watched.taking is not None:
                    watched.taking.cancel()

    async def get(self, query: MetricsQuery, not_before_s: float) -> Taken:
        """A snapshot that was begun no earlier than that, or is being taken now."""
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
        """Ends what is being taken; who waits for it gets GatewayStopping."""
        self._closed = True
        tasks = [watched.taking for watched in self._watched.values() if watched.taking is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _taken(self, watched: _Watched, query: MetricsQuery) -> Taken:
        began_s = self._clock.monotonic()
        try:
            made = await self._take(query)
            watched.taken = Taken(made, began_s, self._clock.monotonic() - began_s)
            return watched.taken
        finally:
            watched.taking = None
