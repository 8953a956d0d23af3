"""Writes events that a store refuses for ever to ``si.dead-letters``, so that later events do not wait for them."""

from __future__ import annotations

import asyncio

import structlog
from muster_bus.errors import LogUnavailable, RecordTooLarge
from muster_bus.log import Log, LogWriter, OutRecord
from muster_bus.topics import (
    HEADER_ERROR,
    HEADER_EVENT_ID,
    HEADER_INSTANCE,
    HEADER_ORIGIN,
    HEADER_RM_ID,
    HEADER_TRACKING,
    Topics,
)

from muster_event_publisher import metrics
from muster_event_publisher.event_runs import EventRun

log = structlog.get_logger(__name__)


class DeadLetters:
    """Writes dead letters for all exporters. At least once: after a crash an event may be written again."""

    def __init__(self, bus: Log, topics: Topics) -> None:
        self._bus, self._topics = bus, topics
        self._writer: LogWriter | None = None
        self._lock = asyncio.Lock()

    async def write(self, run: EventRun, sink: str, reason: str) -> None:
        """Writes the first event of a run as it is on the log; it is durable on return. Raises LogUnavailable.

        :param reason: one sentence, without the event's content.
        """
        origin = f"{self._topics.events}/{run.partition}/{run.offsets[0]}"
        headers = (
            (HEADER_EVENT_ID, str(run.first_id).encode()),
            (HEADER_RM_ID, run.rm_id.encode()),
            (HEADER_INSTANCE, run.instance.encode()),
            (HEADER_TRACKING, b"1"),
            (HEADER_ERROR, f"store {sink}: {reason}".encode()),
            (HEADER_ORIGIN, origin.encode()),
        )
        letter = OutRecord(self._topics.dead_letters, run.partition, run.rm_id.encode(), run.values[0], headers)
        try:
            async with self._lock:
                if self._writer is None:
                    self._writer = await self._bus.writer("dead-letters")
                await self._writer.wait_writable()
                await self._writer.append(letter)
        except LogUnavailable:
            await self.close()  # the next attempt makes a new one
            raise
        except RecordTooLarge:
            # The event came from the log, so only the added headers make it too large: without the event, its place
            # remains.
            log.error("too large for the dead letters", sink=sink, origin=origin)
        metrics.EXPORT_DEAD_LETTERS.labels(sink).inc()
        log.error("event put to the dead letters", sink=sink, origin=origin, rm=run.rm_id, id=run.first_id, why=reason)

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                await writer.close()
            except LogUnavailable as error:
                log.warning("could not close the dead letters", error=str(error))
