"""Reads committed records of a Kafka partition from any offset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition, errors
from aiokafka.protocol.offset import OffsetRequest

from muster_bus import metrics
from muster_bus.backends.kafka_connection import RETRY_MS, KafkaLink, stop, text_of
from muster_bus.errors import LogClosed, LogDamaged, LogUnavailable, OffsetOutOfRange
from muster_bus.log import Record

log = structlog.get_logger(__name__)

# Kafka's numbers, in a request for an offset.
_READ_UNCOMMITTED, _READ_COMMITTED, _LATEST, _EARLIEST = 0, 1, -1, -2
_READ_SLICE_S = 0.1  # aiokafka does not return for markers alone; the last read of a fold waits this long
# A reader that has found nothing for this long is idle. Muster has hundreds of them, so each must cost little: a broker
# holds an idle reader's fetch for longer (it still answers at once when a record comes), and nothing looks for markers
# ten times a second. A seek waits for the end of the fetch that is under way: an idle reader pays for that.
_IDLE_AFTER_S = 2.0
_IDLE_FETCH_S, _IDLE_SLICE_S = 2.0, 1.0
_FETCHES_OF_SILENCE = 4  # so many fetches, idle ones too, must fit into log.kafka_silence_s
# aiokafka looks whether there is something to fetch at this interval, beside whenever something has happened. Its
# default, 0.2 s, is most of what an idle reader costs.
_FETCH_TIMEOUT_S = 5.0
_REMEDY = (
    "let a broker with a whole copy lead the partition (docs/backup.md); what decides needs these records, what only "
    "follows goes on behind them"
)


class KafkaReader:
    """See :class:`muster_bus.log.LogReader`. A consumer with one assigned partition and no group."""

    def __init__(self, link: KafkaLink, topic: str, partition: int, fetch_max_bytes: int | None) -> None:
        self._link = link
        self._topic_partition = TopicPartition(topic, partition)
        self._position = 0
        self._closed = False
        self._damaged_at: int | None = None  # where a batch begins that is not as it was written
        settings = link.settings
        # The bounds do not stop large records: a broker always sends the first batch, whatever its size.
        most = fetch_max_bytes or settings.kafka_fetch_max_bytes
        most_of_partition = fetch_max_bytes or max(most, settings.max_record_bytes * 2)
        self._busy_fetch_ms = settings.kafka_fetch_max_wait_ms
        most_ms = round(min(_IDLE_FETCH_S, settings.kafka_silence_s / _FETCHES_OF_SILENCE) * 1000)
        self._idle_fetch_ms = max(self._busy_fetch_ms, most_ms)
        self._empty_since_s: float | None = None  # since when reads find nothing
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
            await self._link.bounded(self._consumer.start(), f"start of a reader of {self._topic_partition.topic}")
            self._consumer._fetcher._fetcher_timeout = _FETCH_TIMEOUT_S
            self._consumer.assign([self._topic_partition])
            self.seek(await self.first_offset() if start is None else start)
        except BaseException:
            await stop(self._consumer.stop())
            raise

    @property
    def position(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position, self._damaged_at = offset, None
        self._is_busy()
        self._consumer.seek(self._topic_partition, offset)
        self._silent_since_s = self._link.clock.monotonic()

    def cached_end(self) -> int:
        return self._position

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Reads as the contract says. May return an empty list before the time-out.

        This happens when the reader has only moved over markers and undone records of transactions. The position has
        then changed, and may have reached the end offset.
        """
        self._check()
        clock, (topic, partition) = self._link.clock, self._topic_partition
        until_s = clock.monotonic() + timeout_s
        while True:
            left_s = max(0.0, until_s - clock.monotonic())
            slice_s = _IDLE_SLICE_S if self._is_idle() else _READ_SLICE_S
            batches = await self._poll(max_records, min(left_s, slice_s))
            before, self._position = self._position, await self._consumer.position(self._topic_partition)
            if batches or self._position != before:
                self._is_busy()
            if batches:
                metrics.records_read.labels(topic).inc(len(batches))
                return [
                    Record(
                        topic, partition, fetched.offset, fetched.timestamp, fetched.key, fetched.value, fetched.headers
                    )
                    for fetched in batches
                ]
            if self._closed:
                raise LogClosed(f"the reader of {topic}[{partition}] is closed")
            if self._position != before or left_s <= slice_s:
                break
        if timeout_s > 0:
            self._check_silence()
        return ()

    def _is_busy(self) -> None:
        """Notes that there was something to read."""
        if self._empty_since_s is not None:
            self._empty_since_s = None
            self._consumer._fetcher._fetch_max_wait_ms = self._busy_fetch_ms

    def _is_idle(self) -> bool:
        """Tells whether there has been nothing to read for long."""
        now_s = self._link.clock.monotonic()
        if self._empty_since_s is None:
            self._empty_since_s = now_s
        if now_s - self._empty_since_s < _IDLE_AFTER_S:
            return False
        self._consumer._fetcher._fetch_max_wait_ms = self._idle_fetch_ms
        return True

    async def _poll(self, max_records: int, timeout_s: float) -> Sequence[ConsumerRecord]:
        partition = self._topic_partition
        if self._damaged_at is not None and self._position > self._damaged_at:  # another broker has it whole
            self._damaged_at = None
        if self._damaged_at is not None:
            max_records = 1  # aiokafka drops what it has read of an answer when it meets the batch
        try:
            batches = await self._consumer.getmany(
                partition, timeout_ms=round(timeout_s * 1000), max_records=max_records
            )
        except errors.OffsetOutOfRangeError as error:
            first, end = await self.first_offset(), await self.end_offset()
            raise OffsetOutOfRange(partition.topic, partition.partition, self._position, first, end) from error
        except errors.ConsumerStoppedError as error:
            raise LogClosed(f"the reader of {partition.topic}[{partition.partition}] is closed") from error
        except errors.CorruptRecordException as error:
            self._meet_damage(error)
            return ()
        except errors.KafkaError as error:
            raise LogUnavailable(
                f"{partition.topic}[{partition.partition}] cannot be read: {text_of(error)}"
            ) from error
        fetched: Sequence[ConsumerRecord] = batches.get(partition, ())
        return fetched

    def _meet_damage(self, error: Exception) -> None:
        """Goes back to read what is before a damaged batch. Raises LogDamaged if that is read already.

        (Only the batch itself could tell where it ends. A reader that goes on meets it again at each of its offsets.)
        """
        partition, fetched = self._topic_partition, self._consumer._fetcher._records.get(self._topic_partition)
        parts = getattr(fetched, "_partition_records", None)
        at = max(self._position, getattr(parts, "next_fetch_offset", self._position))
        again, self._damaged_at = self._damaged_at == at, at
        self._consumer.seek(partition, self._position)
        if again or at == self._position:
            reason = "Kafka's checksum of a batch there does not fit"
            raise LogDamaged(partition.topic, partition.partition, at, at + 1, reason, _REMEDY) from error

    async def first_offset(self) -> int:
        offset = await self._query_offset(_EARLIEST)
        if offset is not None:
            return offset
        offsets = await self._link.bounded(self._consumer.beginning_offsets([self._topic_partition]), "first offset")
        return int(offsets[self._topic_partition])

    async def end_offset(self, max_age_s: float = 0.0) -> int:
        """Returns the last stable offset. Records after it belong to open transactions.

        Each fetch tells it, too; and while a fetch is under way there is nothing newer.
        """
        recent = self._recent_stable_offset(max_age_s) if max_age_s else None
        if recent is not None:
            return recent
        offset = await self._query_offset(_LATEST)
        if offset is None:
            offsets = await self._link.bounded(self._consumer.end_offsets([self._topic_partition]), "end offset")
            offset = int(offsets[self._topic_partition])
        if offset > self._position:
            self._is_busy()  # whoever asked waits for what is there, which may be markers
        return offset

    async def written_end(self) -> int:
        """Returns the high watermark, behind which are only records that not all replicas have."""
        offset = await self._query_offset(_LATEST, _READ_UNCOMMITTED)
        if offset is None:
            raise LogUnavailable(
                f"{self._topic_partition.topic}[{self._topic_partition.partition}]: no broker says where it ends"
            )
        return offset

    def _recent_stable_offset(self, max_age_s: float) -> int | None:
        """Returns the last stable offset as a fetch of the last seconds told it; None: there was none."""
        fetched_ms, offset = (
            self._consumer.last_poll_timestamp(self._topic_partition),
            self._consumer.last_stable_offset(self._topic_partition),
        )
        if fetched_ms is None or offset is None or not 0 <= time.time() * 1000 - fetched_ms <= max_age_s * 1000:
            return None
        return max(int(offset), self._position)

    async def _query_offset(self, which: int, isolation: int = _READ_COMMITTED) -> int | None:
        """Returns an offset as the log's other connection finds it; None: it does not know it now.

        A broker answers a connection's requests in order. So the reader's own connection may answer after the end of
        the fetch that is under way: seconds later, if the reader is idle.
        """
        admin, (topic, partition) = self._link.admin, self._topic_partition
        node = self._consumer._client.cluster.leader_for_partition(self._topic_partition)
        if admin is None or node is None or node < 0:
            return None
        try:
            async with asyncio.timeout(self._link.settings.health_timeout_s):
                answer = await admin._client.send(node, OffsetRequest(-1, isolation, [(topic, [(partition, which)])]))
        except (TimeoutError, errors.KafkaError, OSError):
            return None
        for _, partitions in answer.topics:
            for _, code, _, offset in partitions:
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
            raise LogClosed(f"the reader of {self._topic_partition.topic}[{self._topic_partition.partition}] is closed")
        self._link.check_open()

    def _check_silence(self) -> None:
        """Raises LogUnavailable after a long silence. aiokafka retries a lost broker without an error, so reads would
        stay empty.
        """
        now_s = self._link.clock.monotonic()
        polled_ms = self._consumer.last_poll_timestamp(self._topic_partition) or 0
        if polled_ms != getattr(self, "_polled_ms", None):
            self._polled_ms, self._silent_since_s = polled_ms, now_s
        silence_s = now_s - self._silent_since_s
        if silence_s > self._link.settings.kafka_silence_s:
            self._silent_since_s = now_s
            raise LogUnavailable(
                f"{self._topic_partition.topic}[{self._topic_partition.partition}]: broker silent for {silence_s:.0f} s"
            )
