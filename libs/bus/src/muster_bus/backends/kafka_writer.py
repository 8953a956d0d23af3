"""Plain appends to Kafka. Each partition has a lane, which sends one batch at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer, errors

from muster_bus import metrics
from muster_bus.backends.kafka_connection import RETRY_MS, KafkaLink, stop_producer, text_of
from muster_bus.errors import BusError, LogClosed, LogError, LogUnavailable, NotEnoughReplicas, RecordTooLarge
from muster_bus.log import OutRecord, Record

log = structlog.get_logger(__name__)

_WRITER_BATCH_BYTES = 1 << 18  # per partition and request; a larger record is a batch of its own


class _PartitionQueue:
    """A writer's queue for one partition. It sends one batch after the other; records that arrive meanwhile form the
    next.
    """

    def __init__(self, writer: KafkaWriter, topic: str, partition: int) -> None:
        self.writer, self.topic, self.partition = writer, topic, partition
        self.queue: deque[tuple[OutRecord, int, asyncio.Future[int]]] = deque()
        self.wake = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """1 wait for records, 2 wait for the linger time, 3 fill a batch, 4 send it and wait for its offset."""
        clock, linger_s = self.writer.link.clock, self.writer.link.settings.kafka_linger_ms / 1000
        sent_s = clock.monotonic() - linger_s
        while True:
            await self.wake.wait()  # 1
            left_s = sent_s + linger_s - clock.monotonic()
            if left_s > 0:  # 2 under load one batch per linger time; the first record after a pause is sent at once
                await asyncio.sleep(left_s)
            sent_s = clock.monotonic()
            taken: list[tuple[OutRecord, int, asyncio.Future[int]]] = []
            try:
                producer = await self.writer.producer()
                batch = producer.create_batch()
                while self.queue and add_to_batch(batch, self.queue[0][0]):  # 3
                    taken.append(self.queue.popleft())
                if not self.queue:
                    self.wake.clear()
                batch.close()
                async with asyncio.timeout(self.writer.link.settings.transaction_deadline_s):  # 4
                    sent = await producer.send_batch(batch, self.topic, partition=self.partition)
                    first = (await sent).offset
            except (errors.KafkaError, OSError, TimeoutError, LogError) as error:
                silent = isinstance(error, TimeoutError | errors.KafkaTimeoutError | errors.NotEnoughReplicasError)
                shortage = await self.writer.link.silence_reason() if silent else ""
                await self.writer.fail(_append_error(error, self.topic, taken, shortage), self, taken)
            else:
                self._resolve_futures(taken, first)

    def _resolve_futures(self, taken: Sequence[tuple[OutRecord, int, asyncio.Future[int]]], first: int) -> None:
        size = 0
        for index, (_, record_size, done) in enumerate(taken):
            size += record_size
            if not done.done():
                done.set_result(first + index)
        metrics.records_written.labels(self.topic).inc(len(taken))
        self.writer.released(size)


class KafkaWriter:
    """See :class:`muster_bus.log.LogWriter`.

    After a failure, or if Kafka does not answer within the transaction deadline, all queued records fail with
    LogUnavailable and the producer is dropped. The next record gets a new producer. A record that failed in this way
    may nevertheless have been written.
    """

    def __init__(self, link: KafkaLink, name: str) -> None:
        self.link = link
        self.name = name
        self._lanes: dict[tuple[str, int], _PartitionQueue] = {}
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._queued_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._drained = asyncio.Event()
        self._drained.set()
        self._closed = False

    async def start(self) -> None:
        await self.producer()

    async def producer(self) -> AIOKafkaProducer:
        """Returns the producer; makes a new one after a failure. Raises LogUnavailable."""
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **self.link.connection(),
                    enable_idempotence=True,
                    acks="all",
                    max_batch_size=_WRITER_BATCH_BYTES,
                    linger_ms=0,  # the lanes do the lingering
                    retry_backoff_ms=RETRY_MS,
                    request_timeout_ms=round(self.link.settings.transaction_deadline_s * 1000),
                )
                try:
                    await self.link.bounded(producer.start(), f"start of writer {self.name}")
                except BaseException:
                    await stop_producer(producer)
                    raise
                self._producer = producer
            return self._producer

    def append(self, record: OutRecord) -> Awaitable[int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            if self._closed:
                raise LogClosed(f"writer {self.name} is closed")
            self.link.check_open()
            size = self.link.rules.check(record)
        except LogError as error:  # the contract raises errors when the result is awaited
            done.set_exception(error)
            return done
        partition = (record.topic, record.partition)
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = _PartitionQueue(self, *partition)
        lane.queue.append((record, size, done))
        lane.wake.set()
        self._queued_bytes += size
        self._drained.clear()
        if self._queued_bytes >= self.link.settings.max_queued_bytes:
            self._writable.clear()
        return done

    async def wait_writable(self) -> None:
        """Also raises LogUnavailable if there is no room within the transaction deadline."""
        if not self._writable.is_set():
            deadline_s = self.link.settings.transaction_deadline_s
            try:
                async with asyncio.timeout(deadline_s):
                    await self._writable.wait()
            except TimeoutError as error:
                raise LogUnavailable(f"writer {self.name}: no room for {deadline_s} s") from error
        if self._closed:
            raise LogClosed(f"writer {self.name} is closed")

    def released(self, size: int) -> None:
        """Frees the room of queued bytes that were written or have failed."""
        self._queued_bytes -= size
        metrics.append_queue_bytes.set(self._queued_bytes)
        if self._queued_bytes < self.link.settings.max_queued_bytes:
            self._writable.set()
        if self._queued_bytes == 0:
            self._drained.set()

    async def fail(
        self, error: BusError, lane: _PartitionQueue, taken: list[tuple[OutRecord, int, asyncio.Future[int]]]
    ) -> None:
        """Fails a lane's batch and all records queued behind it. Drops the producer."""
        log.warning("writer.failed", writer=self.name, topic=lane.topic, partition=lane.partition, error=str(error))
        lane.wake.clear()
        taken += lane.queue
        lane.queue.clear()
        size = 0
        for _, record_size, done in taken:
            size += record_size
            if not done.done():
                done.set_exception(error)
        self.released(size)
        if self._producer is not None and not isinstance(error, RecordTooLarge):
            producer, self._producer = self._producer, None
            await stop_producer(producer)

    async def close(self) -> None:
        """Waits, in bounded time, until the appended records are written."""
        if self._closed:
            return
        self._closed = True
        self._writable.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.link.settings.transaction_deadline_s):
                await self._drained.wait()
        waiting = [done for lane in self._lanes.values() for _, _, done in lane.queue]
        for lane in self._lanes.values():
            lane.task.cancel()
        await asyncio.gather(*(lane.task for lane in self._lanes.values()), return_exceptions=True)
        for done in waiting:
            if not done.done():
                done.set_exception(LogClosed(f"writer {self.name} is closed"))
        if self._producer is not None:
            await stop_producer(self._producer)
            self._producer = None
        self.link.forget(self)


def add_to_batch(batch: Any, record: OutRecord | Record, timestamp_ms: int | None = None) -> bool:
    """Adds a record to a batch. Returns False if the batch is full.

    :param timestamp_ms: counts only on topics that keep the writer's time; None: now.
    """
    headers = list(record.headers)
    return batch.append(timestamp=timestamp_ms, key=record.key, value=record.value, headers=headers) is not None


def filled_batch(
    producer: AIOKafkaProducer, records: Sequence[OutRecord] | Sequence[Record], *, keeps_times: bool = False
) -> tuple[Any, int]:
    """Returns a closed batch of as many of the first records as fit, and their number.

    :param keeps_times: the records' own times; else now.
    """
    batch, count = producer.create_batch(), 0
    for record in records:
        timestamp_ms = record.timestamp_ms if keeps_times and isinstance(record, Record) else None
        if not add_to_batch(batch, record, timestamp_ms):
            break
        count += 1
    batch.close()
    return batch, count


def _append_error(
    error: BaseException, topic: str, taken: Sequence[tuple[OutRecord, int, asyncio.Future[int]]], shortage: str
) -> BusError:
    """:param shortage: a shortage of copies in a sentence; "": there is none."""
    if isinstance(error, LogError):
        return error
    if isinstance(error, errors.MessageSizeTooLargeError):
        return RecordTooLarge(topic, max(size for _, size, _ in taken), 0)
    if shortage:
        return NotEnoughReplicas(f"{topic} cannot be written: {shortage}")
    if isinstance(error, TimeoutError):
        return LogUnavailable(f"{topic}: no answer from Kafka before the deadline")
    return LogUnavailable(f"{topic}: {text_of(error)}")
