"""A scheduler's signs of life, so that gateways notice its end also while nothing is asked of it.

A heartbeat is one small record for all partitions that the scheduler owns. It is in ``si.responses``, which each
gateway reads in any case, and outside of transactions, so that it costs no owner a commit. Each is in another of these
partitions: one that takes no record costs a heartbeat, not all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog
from muster_bus.errors import BusError, LogClosed
from muster_bus.log import Log, LogWriter
from muster_bus.topics import Topics
from muster_rest.system_health import HEARTBEAT_S, OwnerState, SchedulerFacts
from muster_runtime.backoff import aligned_s

from muster_scheduler.emit import heartbeat

log = structlog.get_logger(__name__)

_LAST_S = 1.0  # for the last heartbeat, which says that nothing is owned any more


class Heartbeats:
    """Writes the heartbeats of one scheduler.

    :param facts: returns what it says of itself now.
    :param session_timeout_s: silence after which others take its partitions over.
    :param instance: an id of this life of it.
    """

    def __init__(
        self, bus: Log, topics: Topics, facts: Callable[[], SchedulerFacts], session_timeout_s: float, instance: str
    ) -> None:
        self._bus, self._topics, self._facts, self._session_timeout_s = bus, topics, facts, session_timeout_s
        self._instance = instance
        self._writer: LogWriter | None = None
        self._partitions: list[int] = []  # in the last heartbeat
        self._under_way: dict[int, asyncio.Future[int]] = {}
        self._count = 0

    async def run(self) -> None:
        """Writes one about each second, until cancelled."""
        while True:
            try:
                if self._writer is None:
                    self._writer = await self._bus.writer("heartbeats")
                self._beat(self._facts())
            except LogClosed:
                raise
            except BusError as error:
                log.debug("heartbeat not written", error=str(error))
            await asyncio.sleep(aligned_s(HEARTBEAT_S))

    async def close(self) -> None:
        """Says that nothing is owned any more. Bounded in time."""
        if self._writer is None:
            return
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(_LAST_S):
                last = self._beat(SchedulerFacts([]))
                if last is not None:
                    await last
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await self._writer.close()
        self._writer = None

    def _beat(self, facts: SchedulerFacts) -> asyncio.Future[int] | None:
        """Writes one, if there is something to say and a partition takes it."""
        assert self._writer is not None
        owned = [owner for owner in facts.owners if owner.state is not OwnerState.NONE]
        places = [owner.partition for owner in owned] or self._partitions
        self._partitions = [owner.partition for owner in owned]
        free = [partition for partition in places if partition not in self._under_way]
        if not free:
            return None
        self._count += 1
        partition = free[self._count % len(free)]
        record = heartbeat(self._topics, partition, self._instance, self._session_timeout_s, facts)
        written = asyncio.ensure_future(self._writer.append(record))
        self._under_way[partition] = written
        written.add_done_callback(lambda done: self._written(partition, done))
        return written

    def _written(self, partition: int, done: asyncio.Future[int]) -> None:
        del self._under_way[partition]
        if not done.cancelled() and (error := done.exception()) is not None:
            log.debug("heartbeat not written", error=str(error))
