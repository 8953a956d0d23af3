"""The newest events of a partition, read once for all callback streams that have caught up.

A stream begins with a reader of its own. Once it has caught up, it joins the tail and closes its reader. Offsets alone
connect the two: a stream joins at the position after its last record, which may be ahead of the tail's position but
never behind it. The tail waits for no stream: if a stream has no room, the tail leaves it behind at that record, and
the stream reads on by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple, Protocol

import structlog
from muster_bus.damage import Readers
from muster_bus.errors import BusError, LogUnavailable, OffsetOutOfRange
from muster_bus.log import LogReader, Record

log = structlog.get_logger(__name__)

_READ_RECORDS = 500
_READ_WAIT_S = 1.0
_RETRY_MIN_S, _RETRY_MAX_S = 0.05, 2.0


class EventSubscriber(Protocol):
    """A stream's feed. ``key`` is the key of its RM's records."""

    key: bytes

    def offer(self, record: Record) -> bool:
        """Takes a record of its key, in order. Returns False if there is no room."""
        ...

    def on_detached(self, offset: int) -> None:
        """The feed no longer takes part. It next needs the record at ``offset``."""
        ...


class _Subscription(NamedTuple):
    taker: EventSubscriber
    start: int


class EventTail:
    """See the module's docstring. The tail reads while it has members."""

    def __init__(self, bus: Readers, topic: str, partition: int) -> None:
        self._bus, self._topic, self._partition = bus, topic, partition
        self._position: int | None = None  # None: the tail does not read
        self._subscriptions: dict[bytes, list[_Subscription]] = {}
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, taker: EventSubscriber, position: int, *, at_end: bool) -> bool:
        """Joins a feed at ``position``. Returns False if the tail cannot give it the records from there on.

        :param at_end: the feed knows of no record after the position. (No feed starts the tail in the middle of
            history.)
        """
        if self._position is None:
            if not at_end:
                return False
            self._position = position
            self._task = asyncio.create_task(self._run(), name=f"event tail {self._partition}")
        elif position < self._position:
            return False
        self._subscriptions.setdefault(taker.key, []).append(_Subscription(taker, position))
        return True

    def unsubscribe(self, taker: EventSubscriber) -> None:
        """Removes a feed. Has no effect if the feed is no member."""
        remaining = [
            subscription for subscription in self._subscriptions.pop(taker.key, []) if subscription.taker is not taker
        ]
        if remaining:
            self._subscriptions[taker.key] = remaining
        if not self._subscriptions and self._task is not None:
            self._task.cancel()
            self._task, self._position = None, None

    async def _run(self) -> None:
        reader: LogReader | None = None
        retry_s = _RETRY_MIN_S
        own = asyncio.current_task()
        try:
            # The last member may leave while the tail gives it a record. A read that returns at once would not notice
            # that.
            while self._task is own:
                try:
                    if reader is None:
                        reader = await self._bus.reader(self._topic, self._partition, self._position)
                    records = await reader.read(_READ_RECORDS, _READ_WAIT_S)
                    # No await from here on: a feed that joins finds either all records given or none.
                    self._position = reader.position
                    for record in records:
                        self._dispatch(record)
                    retry_s = _RETRY_MIN_S
                except OffsetOutOfRange as error:
                    log.warning("events deleted before they were sent", partition=self._partition, error=str(error))
                    assert reader is not None, "it was read from"
                    reader.seek(error.first)
                except LogUnavailable as error:
                    log.warning("event log unavailable", partition=self._partition, error=str(error), retry_s=retry_s)
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, _RETRY_MAX_S)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Each feed finds the problem by itself and reports it to its RM.
            log.error("events are no longer read for all streams", partition=self._partition, exc_info=error)
            position, self._position, self._task = self._position or 0, None, None
            subscriptions, self._subscriptions = self._subscriptions, {}
            for subscription in [subscription for some in subscriptions.values() for subscription in some]:
                subscription.taker.on_detached(max(position, subscription.start))
        finally:
            if reader is not None:
                with contextlib.suppress(BusError):
                    await reader.close()

    def _dispatch(self, record: Record) -> None:
        for subscription in list(self._subscriptions.get(record.key or b"", ())):
            if record.offset < subscription.start:
                continue
            try:
                taken = subscription.taker.offer(record)
            except Exception as error:
                # The feed meets the record again by itself and reports the problem to its RM. The others lose nothing.
                log.error("an event was not taken", partition=self._partition, offset=record.offset, exc_info=error)
                taken = False
            if not taken:
                self.unsubscribe(subscription.taker)
                subscription.taker.on_detached(record.offset)
