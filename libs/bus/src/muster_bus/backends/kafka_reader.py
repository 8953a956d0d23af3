"""Reads committed records of a Kafka partition from any offset."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition, errors
from aiokafka.protocol.offset import OffsetRequest

from muster_bus import metrics
from muster_bus.backends.kafka_link import RETRY_MS, KafkaLink, stop, text_of
from muster_bus.errors import LogClosed, LogUnavailable, OffsetGone
from muster_bus.log import Record

log = structlog.get_logger(__name__)

_POLL_S = 0.05
_READ_COMMITTED, _LATEST = 1, -1  # Kafka's numbers, in a request for an offset
_READ_SLICE_S = 0.1  # aiokafka does not return for markers alone; the last read of a fold waits this long


class KafkaReader:
    """See :class:`muster_bus.log.LogReader`. A consumer with one assigned partition and no group."""

    def __init__(self, link: KafkaLink, topic: str, partition: int, fetch_max_bytes: int | None) -> None:
        self._link = link
        self._place = TopicPartition(topic, partition)
        self._position = 0
        self._closed = False
        settings = link.settings
        # The bounds do not stop large records: a broker always sends the first batch, whatever its size.
        most = fetch_max_bytes or settings.kafka_fetch_max_bytes
        most_of_partition = fetch_max_bytes or max(most, settings.max_record_bytes * 2)
        self._consumer = AIOKafkaConsumer(
            **link.connection(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=settings.kafka_fetch_max_wait_ms,
            fetch_min_bytes=1,
            fetch_max_bytes=most,
            max_partition_fetch_bytes=most_of_partition,
            request_timeout_ms=round(settings.kafka_start_timeout_s * 1000),
            retry_backoff_ms=RETRY_MS,
        )

    async def start(self, start: int | None) -> None:
        try:
            await self._link.bounded(self._consumer.start(), f"start of a reader of {self._place.topic}")
            self._consumer.assign([self._place])
            self.seek(await self.first_offset() if start is None else start)
        except BaseException:
            await stop(self._consumer.stop())
            raise

    @property
    def position(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position = offset
        self._consumer.seek(self._place, offset)
        self._silent_since_s = self._link.clock.monotonic()

    def known_end(self) -> int:
        return self._position

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Reads as the contract says. May return an empty list before the time-out.

        This happens when the reader has only moved over markers and undone records of transactions. The position has
        then changed, and may have reached the end offset.
        """
        self._check()
        clock, (topic, partition) = self._link.clock, self._place
        until_s = clock.monotonic() + timeout_s
        while True:
            left_s = max(0.0, until_s - clock.monotonic())
            batches = await self._poll(max_records, min(left_s, _READ_SLICE_S))
            before, self._position = self._position, await self._consumer.position(self._place)
            if batches:
                metrics.records_read.labels(topic).inc(len(batches))
                return [
                    Record(topic, partition, found.offset, found.timestamp, found.key, found.value, found.headers)
                    for found in batches
                ]
            if self._closed:
                raise LogClosed(f"the reader of {topic}[{partition}] is closed")
            if self._position != before or left_s <= _READ_SLICE_S:
                break
        if timeout_s > 0:
            self._check_silence()
        return ()

    async def _poll(self, max_records: int, timeout_s: float) -> Sequence[ConsumerRecord]:
        place = self._place
        try:
            batches = await self._consumer.getmany(place, timeout_ms=round(timeout_s * 1000), max_records=max_records)
        except errors.OffsetOutOfRangeError as error:
            first, end = await self.first_offset(), await self.end_offset()
            raise OffsetGone(place.topic, place.partition, self._position, first, end) from error
        except errors.ConsumerStoppedError as error:
            raise LogClosed(f"the reader of {place.topic}[{place.partition}] is closed") from error
        except errors.KafkaError as error:
            raise LogUnavailable(f"{place.topic}[{place.partition}] cannot be read: {text_of(error)}") from error
        found: Sequence[ConsumerRecord] = batches.get(place, ())
        return found

    async def first_offset(self) -> int:
        offsets = await self._link.bounded(self._consumer.beginning_offsets([self._place]), "first offset")
        return int(offsets[self._place])

    async def end_offset(self) -> int:
        """Returns the last stable offset. Records after it belong to open transactions."""
        found = await self._asked_beside()
        if found is not None:
            return found
        offsets = await self._link.bounded(self._consumer.end_offsets([self._place]), "end offset")
        return int(offsets[self._place])

    async def _asked_beside(self) -> int | None:
        """Returns the last stable offset as the log's other connection finds it; None: it does not know it now.

        A broker answers a connection's requests in order. So the reader's own connection may answer after the end of
        the fetch that is under way: up to ``kafka_fetch_max_wait_ms`` later.
        """
        admin, (topic, partition) = self._link.admin, self._place
        node = self._consumer._client.cluster.leader_for_partition(self._place)
        if admin is None or node is None or node < 0:
            return None
        try:
            async with asyncio.timeout(self._link.settings.health_timeout_s):
                answer = await admin._client.send(
                    node, OffsetRequest(-1, _READ_COMMITTED, [(topic, [(partition, _LATEST)])])
                )
        except (TimeoutError, errors.KafkaError, OSError):
            return None
        for _, found in answer.topics:
            for _, code, _, offset in found:
                return int(offset) if code == 0 else None
        return None

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await stop(self._consumer.stop())
        self._link.forget(self)

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"the reader of {self._place.topic}[{self._place.partition}] is closed")
        self._link.check_open()

    def _check_silence(self) -> None:
        """Raises LogUnavailable after a long silence. aiokafka retries a lost broker without an error, so reads would
        stay empty.
        """
        now_s = self._link.clock.monotonic()
        polled_ms = self._consumer.last_poll_timestamp(self._place) or 0
        if polled_ms != getattr(self, "_polled_ms", None):
            self._polled_ms, self._silent_since_s = polled_ms, now_s
        silence_s = now_s - self._silent_since_s
        if silence_s > self._link.settings.kafka_silence_s:
            self._silent_since_s = now_s
            raise LogUnavailable(f"{self._place.topic}[{self._place.partition}]: broker silent for {silence_s:.0f} s")
