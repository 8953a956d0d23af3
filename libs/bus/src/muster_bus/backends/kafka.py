"""The log on Kafka, with aiokafka. Measured on Kafka 3.9 and 4.1; the traps that this module steers round:

- aiokafka has no KIP-447, so each owned input partition has a transactional producer of its own, with an id made of
  group, topic and partition. Starting it is what fences the previous owner.
- A batch that fails inside a transaction does not stop ``commit_transaction``: every batch's answer is looked at first.
- Some failures are retried without end. Every wait here has a deadline, and a producer is dropped after any failure.
- Groups are names for offsets only; nobody ever joins one. Offsets of such a group expire when nothing is committed for
  a week (broker's offsets.retention.minutes), so the partition worker commits now and then even without input.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import aiokafka.producer.sender
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.helpers import create_ssl_context

from muster_bus import metrics
from muster_bus.backends.kafka_offsets import stable_offset
from muster_bus.backends.rules import RecordRules
from muster_bus.clock import Clock
from muster_bus.errors import (
    BusError,
    Fenced,
    LogClosed,
    LogError,
    LogUnavailable,
    OffsetGone,
    RecordTooLarge,
    TopicMismatch,
    TransactionFailed,
    TransactionTimeout,
)
from muster_bus.log import OutRecord, Record
from muster_bus.topics import TopicSpec

if TYPE_CHECKING:
    from muster_bus.settings import LogSettings

log = structlog.get_logger(__name__)

# How long aiokafka waits when a transaction begins while the markers of the previous one are still being written (its
# own value is 20 ms). Each transaction pays it at least once, so it is the floor of the commit time:
#
#   300-byte records, one partition, with offsets            batch 1 p50 / p99   100 records    1,000 records
#   20 ms, retry_backoff_ms 100 (aiokafka's defaults)        31 / 141 ms         2,300 rec/s    16,700 rec/s
#   20 ms, retry_backoff_ms 10                               29 / 45 ms          2,900          16,300
#   1 ms,  retry_backoff_ms 10                               7.9 / 32 ms         11,600         40,900
#   1 ms,  retry_backoff_ms 5, one batch built by hand       3.2 / 16 ms         24,000        163,000
#     for each partition (as here; the same records)
#
# The name is private: a test checks that it still exists and is used.
aiokafka.producer.sender.BACKOFF_OVERRIDE = 0.001
_TRANSACTION_RETRY_MS = (
    5  # half the time: brokers from 3.6 on refuse some first sends while they verify the transaction
)
_WRITER_RETRY_MS = 50

_WRITER_BATCH_BYTES = 1 << 18  # per partition and request; a larger record goes alone
_TRANSACTION_BATCH_BYTES = 1 << 20  # most transactions are one batch per partition
_BATCH_MARGIN_BYTES = 1 << 16  # topics take batches of max_record_bytes and this much framing
_STOP_TIMEOUT_S = 3.0
_ABORT_TIMEOUT_S = 1.0
_POLL_S = 0.05
_READ_SLICE_S = 0.1  # aiokafka does not wake for markers alone; a fold's last read waits this long for them

T = TypeVar("T")


class _Expected(logging.Filter):
    """Brokers from 3.6 on answer NotEnoughReplicas while they verify that a partition is in the transaction. It is
    retried and happens all the time; aiokafka warns of each. A real lack of replicas ends in TransactionTimeout."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(argument is errors.NotEnoughReplicasError for argument in record.args or ())


logging.getLogger("aiokafka.producer.sender").addFilter(_Expected())


class KafkaLog:
    """See :class:`muster_bus.log.Log`."""

    def __init__(self, specs: Sequence[TopicSpec], settings: LogSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.rules = RecordRules(specs, settings.max_record_bytes)
        self._specs = specs
        self._admin: AIOKafkaAdminClient | None = None
        self._closed = False
        self._children: set[KafkaWriter | KafkaReader | KafkaOwner] = set()

    # ---- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        admin = AIOKafkaAdminClient(**self.connection(), request_timeout_ms=self._request_timeout_ms())
        try:
            await self.bounded(self._start(admin), "start")
        except BaseException:
            await _stop(admin.close())
            raise
        self._admin = admin
        log.info("log.opened", brokers=self.settings.kafka_bootstrap_servers, topics=len(self._specs))

    async def _start(self, admin: AIOKafkaAdminClient) -> None:
        while True:
            try:
                await admin.start()
                break
            except errors.KafkaConnectionError:  # brokers may come up together with us
                await asyncio.sleep(_POLL_S * 4)
        await self._create_absent(admin)
        await self._check_topics(admin)

    async def close(self) -> None:
        self._closed = True
        for child in list(self._children):
            await child.close()
        if self._admin is not None:
            await _stop(self._admin.close())
            self._admin = None

    async def healthy(self) -> bool:
        if self._closed or self._admin is None:
            return False
        try:
            async with asyncio.timeout(self.settings.health_timeout_s):
                await self._admin.describe_cluster()
        except (TimeoutError, errors.KafkaError, OSError):
            return False
        return True

    async def writer(self, name: str) -> KafkaWriter:
        self.check_open()
        writer = KafkaWriter(self, name)
        await writer.start()
        self._children.add(writer)
        return writer

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> KafkaReader:
        self.check_open()
        self.rules.spec(topic, partition)
        reader = KafkaReader(self, topic, partition, fetch_max_bytes)
        await reader.start(start)
        self._children.add(reader)
        return reader

    async def take_over(self, group: str, topic: str, partition: int) -> KafkaOwner:
        self.check_open()
        self.rules.spec(topic, partition)
        owner = KafkaOwner(self, group, topic, partition)
        await owner.start()
        self._children.add(owner)
        return owner

    # ---- for the parts --------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises LogClosed."""
        if self._closed or self._admin is None:
            raise LogClosed("the log is not started" if not self._closed else "the log is closed")

    def forget(self, child: KafkaWriter | KafkaReader | KafkaOwner) -> None:
        self._children.discard(child)

    def connection(self) -> dict[str, Any]:
        """What every client of aiokafka needs to connect."""
        settings = self.settings
        protocol = settings.kafka_security_protocol
        options: dict[str, Any] = {
            "bootstrap_servers": settings.kafka_bootstrap_servers,
            "security_protocol": protocol,
        }
        if protocol.endswith("SSL"):
            options["ssl_context"] = create_ssl_context(
                cafile=_text(settings.kafka_ca_file),
                certfile=_text(settings.kafka_client_cert_file),
                keyfile=_text(settings.kafka_client_key_file),
            )
        if protocol.startswith("SASL"):
            options["sasl_mechanism"] = settings.kafka_sasl_mechanism
            options["sasl_plain_username"] = settings.kafka_sasl_username
            options["sasl_plain_password"] = settings.kafka_sasl_password.get_secret_value()
        return options

    async def bounded(self, work: Awaitable[T], what: str) -> T:
        """Awaits ``work`` for at most the start time-out; Kafka's errors become LogUnavailable."""
        timeout_s = self.settings.kafka_start_timeout_s
        where = f"Kafka at {self.settings.kafka_bootstrap_servers}"
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except TimeoutError as error:
            raise LogUnavailable(f"{where}: {what} not done in {timeout_s} s") from error
        except (errors.KafkaError, OSError) as error:
            raise LogUnavailable(f"{where}: {what} failed: {_story(error)}") from error

    def _request_timeout_ms(self) -> int:
        return round(self.settings.kafka_start_timeout_s * 1000)

    # ---- topics ---------------------------------------------------------------------------------------------------

    async def _create_absent(self, admin: AIOKafkaAdminClient) -> None:
        known = set(await admin.list_topics())
        absent = [spec for spec in self._specs if spec.name not in known]
        if not absent:
            return
        response = await admin.create_topics(
            [
                NewTopic(spec.name, spec.partitions, spec.replication, topic_configs=self._configs(spec))
                for spec in absent
            ]
        )
        for name, code, *rest in response.topic_errors:
            if code not in (0, errors.TopicAlreadyExistsError.errno):
                detail = f": {rest[0]}" if rest and rest[0] else ""
                raise LogUnavailable(f"topic {name} cannot be created: {errors.for_code(code).__name__}{detail}")
        log.info("log.topics_created", topics=[spec.name for spec in absent])

    def _configs(self, spec: TopicSpec) -> dict[str, str]:
        configs = {
            "cleanup.policy": spec.cleanup,
            "max.message.bytes": str(self._least_message_bytes()),
            "min.insync.replicas": str(self.settings.kafka_min_insync_replicas),
            "message.timestamp.type": "LogAppendTime",  # retention must not depend on the writers' clocks
        }
        if "delete" in spec.cleanup:
            configs["retention.ms"] = str(spec.retention_ms)
        if "compact" in spec.cleanup:
            # The newest segment is never compacted: small segments, or a fold reads every state ever written.
            configs["segment.bytes"] = str(64 << 20)
            configs["segment.ms"] = str(60 * 60 * 1000)
            configs["min.cleanable.dirty.ratio"] = "0.2"
        return configs

    def _least_message_bytes(self) -> int:
        return max(self.settings.max_record_bytes, _TRANSACTION_BATCH_BYTES) + _BATCH_MARGIN_BYTES

    async def _check_topics(self, admin: AIOKafkaAdminClient) -> None:
        """Waits until every partition has a leader, then compares with what is configured."""
        specs = {spec.name: spec for spec in self._specs}
        while True:
            found = {topic["topic"]: topic for topic in await admin.describe_topics(list(specs))}
            ready = [
                topic["error_code"] == 0 and all(partition["leader"] >= 0 for partition in topic["partitions"])
                for topic in found.values()
            ]
            if len(ready) == len(specs) and all(ready):
                break
            await asyncio.sleep(_POLL_S)
        for name, spec in specs.items():
            count = len(found[name]["partitions"])
            if count != spec.partitions:
                raise TopicMismatch(f"topic {name} has {count} partitions, configured are {spec.partitions}")
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, name, {"cleanup.policy": None, "max.message.bytes": None})
            for name in specs
        ]
        for response in await admin.describe_configs(resources):
            for _, _, _, name, entries in response.resources:
                config = {entry[0]: entry[1] for entry in entries}
                cleanup, size = config.get("cleanup.policy", ""), int(config.get("max.message.bytes", "0"))
                if not set(specs[name].cleanup.split(",")) <= set(cleanup.split(",")):
                    raise TopicMismatch(f"topic {name} has cleanup.policy {cleanup}, needed is {specs[name].cleanup}")
                if size < self._least_message_bytes():
                    raise TopicMismatch(
                        f"topic {name} has max.message.bytes {size}, needed is {self._least_message_bytes()} "
                        f"for max_record_bytes {self.settings.max_record_bytes}"
                    )


class _Lane:
    """A writer's way to one partition: batches one after the other; what comes meanwhile makes the next one."""

    def __init__(self, writer: KafkaWriter, topic: str, partition: int) -> None:
        self.writer, self.topic, self.partition = writer, topic, partition
        self.queue: deque[tuple[OutRecord, int, asyncio.Future[int]]] = deque()
        self.wake = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """1 wait for records, 2 keep the pace, 3 fill a batch, 4 send it and wait for its offset."""
        clock, linger_s = self.writer.log.clock, self.writer.log.settings.kafka_linger_ms / 1000
        sent_s = clock.monotonic() - linger_s
        while True:
            await self.wake.wait()  # 1
            left_s = sent_s + linger_s - clock.monotonic()
            if left_s > 0:  # 2 under load a batch per linger time; the first record after a pause goes at once
                await asyncio.sleep(left_s)
            sent_s = clock.monotonic()
            taken: list[tuple[OutRecord, int, asyncio.Future[int]]] = []
            try:
                producer = await self.writer.producer()
                batch = producer.create_batch()
                while self.queue and _add(batch, self.queue[0][0]):  # 3
                    taken.append(self.queue.popleft())
                if not self.queue:
                    self.wake.clear()
                batch.close()
                async with asyncio.timeout(self.writer.log.settings.transaction_deadline_s):  # 4
                    sent = await producer.send_batch(batch, self.topic, partition=self.partition)
                    first = (await sent).offset
            except (errors.KafkaError, OSError, TimeoutError, LogError) as error:
                await self.writer.fail(_append_error(error, self.topic, taken), self, taken)
            else:
                self._settle(taken, first)

    def _settle(self, taken: Sequence[tuple[OutRecord, int, asyncio.Future[int]]], first: int) -> None:
        size = 0
        for index, (_, record_size, done) in enumerate(taken):
            size += record_size
            if not done.done():
                done.set_result(first + index)
        metrics.records_written.labels(self.topic).inc(len(taken))
        self.writer.released(size)


class KafkaWriter:
    """See :class:`muster_bus.log.LogWriter`.

    After a failure, or without an answer for the transaction deadline, what is queued fails with LogUnavailable and the
    producer is dropped; the next record gets a new one. A record that failed so may nevertheless have been written.
    """

    def __init__(self, owner_log: KafkaLog, name: str) -> None:
        self.log = owner_log
        self.name = name
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._queued_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._drained = asyncio.Event()
        self._drained.set()
        self._closed = False

    async def start(self) -> None:
        await self.producer()

    async def producer(self) -> AIOKafkaProducer:
        """The producer; a new one after a failure. Raises LogUnavailable."""
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **self.log.connection(),
                    enable_idempotence=True,
                    acks="all",
                    max_batch_size=_WRITER_BATCH_BYTES,
                    linger_ms=0,  # lanes keep the pace
                    retry_backoff_ms=_WRITER_RETRY_MS,
                    request_timeout_ms=round(self.log.settings.transaction_deadline_s * 1000),
                )
                try:
                    await self.log.bounded(producer.start(), f"start of writer {self.name}")
                except BaseException:
                    await _stop_producer(producer)
                    raise
                self._producer = producer
            return self._producer

    def append(self, record: OutRecord) -> Awaitable[int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            if self._closed:
                raise LogClosed(f"writer {self.name} is closed")
            self.log.check_open()
            size = self.log.rules.check(record)
        except LogError as error:  # the contract gives errors to whoever awaits
            done.set_exception(error)
            return done
        place = (record.topic, record.partition)
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = _Lane(self, *place)
        lane.queue.append((record, size, done))
        lane.wake.set()
        self._queued_bytes += size
        self._drained.clear()
        if self._queued_bytes >= self.log.settings.max_queued_bytes:
            self._room.clear()
        return done

    async def ready(self) -> None:
        """Raises, beside what is usual, LogUnavailable when there is no room for the transaction deadline."""
        if not self._room.is_set():
            deadline_s = self.log.settings.transaction_deadline_s
            try:
                async with asyncio.timeout(deadline_s):
                    await self._room.wait()
            except TimeoutError as error:
                raise LogUnavailable(f"writer {self.name}: no room for {deadline_s} s") from error
        if self._closed:
            raise LogClosed(f"writer {self.name} is closed")

    def released(self, size: int) -> None:
        """Queued bytes were written, or given up."""
        self._queued_bytes -= size
        metrics.append_queue_bytes.set(self._queued_bytes)
        if self._queued_bytes < self.log.settings.max_queued_bytes:
            self._room.set()
        if self._queued_bytes == 0:
            self._drained.set()

    async def fail(self, error: BusError, lane: _Lane, taken: list[tuple[OutRecord, int, asyncio.Future[int]]]) -> None:
        """Fails a lane's batch and all that waits behind it, and drops the producer."""
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
            await _stop_producer(producer)

    async def close(self) -> None:
        """Waits, in bounded time, for what was appended."""
        if self._closed:
            return
        self._closed = True
        self._room.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.log.settings.transaction_deadline_s):
                await self._drained.wait()
        waiting = [done for lane in self._lanes.values() for _, _, done in lane.queue]
        for lane in self._lanes.values():
            lane.task.cancel()
        await asyncio.gather(*(lane.task for lane in self._lanes.values()), return_exceptions=True)
        for done in waiting:
            if not done.done():
                done.set_exception(LogClosed(f"writer {self.name} is closed"))
        if self._producer is not None:
            await _stop_producer(self._producer)
            self._producer = None
        self.log.forget(self)


class KafkaReader:
    """See :class:`muster_bus.log.LogReader`. A consumer of its own, assigned by hand, in no group."""

    def __init__(self, owner_log: KafkaLog, topic: str, partition: int, fetch_max_bytes: int | None) -> None:
        self._log = owner_log
        self._place = TopicPartition(topic, partition)
        self._position = 0
        self._closed = False
        settings = owner_log.settings
        # (A broker sends the first batch whatever its size: no bound keeps a record from coming.)
        most = fetch_max_bytes or settings.kafka_fetch_max_bytes
        most_of_partition = fetch_max_bytes or max(most, settings.max_record_bytes * 2)
        self._consumer = AIOKafkaConsumer(
            **owner_log.connection(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=settings.kafka_fetch_max_wait_ms,
            fetch_min_bytes=1,
            fetch_max_bytes=most,
            max_partition_fetch_bytes=most_of_partition,
            request_timeout_ms=round(settings.kafka_start_timeout_s * 1000),
            retry_backoff_ms=_WRITER_RETRY_MS,
        )

    async def start(self, start: int | None) -> None:
        try:
            await self._log.bounded(self._consumer.start(), f"start of a reader of {self._place.topic}")
            self._consumer.assign([self._place])
            self.seek(await self.first_offset() if start is None else start)
        except BaseException:
            await _stop(self._consumer.stop())
            raise

    @property
    def position(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position = offset
        self._consumer.seek(self._place, offset)
        self._silent_since_s = self._log.clock.monotonic()

    def known_end(self) -> int:
        return self._position

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Comes back empty before the time-out when it has only moved over what transactions left (markers, undone
        records): the position has changed then, and may have reached the end offset."""
        self._check()
        clock, (topic, partition) = self._log.clock, self._place
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
            raise LogUnavailable(f"{place.topic}[{place.partition}] cannot be read: {_story(error)}") from error
        found: Sequence[ConsumerRecord] = batches.get(place, ())
        return found

    async def first_offset(self) -> int:
        offsets = await self._log.bounded(self._consumer.beginning_offsets([self._place]), "first offset")
        return int(offsets[self._place])

    async def end_offset(self) -> int:
        """The last stable offset: what lies behind it belongs to open transactions."""
        offsets = await self._log.bounded(self._consumer.end_offsets([self._place]), "end offset")
        return int(offsets[self._place])

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await _stop(self._consumer.stop())
        self._log.forget(self)

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"the reader of {self._place.topic}[{self._place.partition}] is closed")
        self._log.check_open()

    def _check_silence(self) -> None:
        """aiokafka retries a lost broker without a word: an empty read must not hide that for ever."""
        now_s = self._log.clock.monotonic()
        polled_ms = self._consumer.last_poll_timestamp(self._place) or 0
        if polled_ms != getattr(self, "_polled_ms", None):
            self._polled_ms, self._silent_since_s = polled_ms, now_s
        silence_s = now_s - self._silent_since_s
        if silence_s > self._log.settings.kafka_silence_s:
            self._silent_since_s = now_s
            raise LogUnavailable(f"{self._place.topic}[{self._place.partition}]: broker silent for {silence_s:.0f} s")


class KafkaOwner:
    """See :class:`muster_bus.log.PartitionOwner`. One transactional producer, never used after a failure."""

    def __init__(self, owner_log: KafkaLog, group: str, topic: str, partition: int) -> None:
        self._log = owner_log
        self._place = TopicPartition(topic, partition)
        settings = owner_log.settings
        self._group = f"{settings.topic_prefix}{group}"
        self._story = f"{self._group} on {topic}[{partition}]"
        self._ended = ""
        self._closed = False
        self._producer = AIOKafkaProducer(
            **owner_log.connection(),
            transactional_id=transactional_id(settings.topic_prefix, group, topic, partition),
            transaction_timeout_ms=round(settings.kafka_transaction_timeout_s * 1000),
            acks="all",
            max_batch_size=_TRANSACTION_BATCH_BYTES,
            linger_ms=0,
            retry_backoff_ms=_TRANSACTION_RETRY_MS,
            request_timeout_ms=round(settings.transaction_deadline_s * 1000),
        )

    async def start(self) -> None:
        """Fences the previous owner, and waits until what it had under way is finished or undone."""
        try:
            await self._log.bounded(self._take_over(), f"take-over of {self._story}")
        except BaseException:
            await _stop_producer(self._producer)
            raise

    async def _take_over(self) -> None:
        """Both coordinators have answered when it returns: a commit has less time than a fresh broker may need to
        make its internal topics. The transactions' does so for the producer's id; the group's is asked here.

        (A commit on a fresh broker that has no answer for other reasons was seen once: a broker in a container that
        could not reach itself under its advertised address never ended a transaction. No waiting cures that.)
        """
        await self._producer.start()
        await self._stable_offset()

    async def committed(self) -> int | None:
        self._check()
        return await self._log.bounded(self._stable_offset(), f"committed position of {self._story}")

    async def _stable_offset(self) -> int | None:
        return await stable_offset(self._producer.client, self._group, *self._place)

    async def commit(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        self._check()
        places: dict[tuple[str, int], list[OutRecord]] = {}
        for record in records:
            self._log.rules.check(record)
            places.setdefault((record.topic, record.partition), []).append(record)
        if not places and input_position is None:
            return
        started_s = self._log.clock.monotonic()
        self._ended = "a commit did not come to its end"  # unless it does
        try:
            async with asyncio.timeout(self._log.settings.transaction_deadline_s):
                await self._transact(places, input_position)
        except TimeoutError as error:
            self._count_failure("timeout")
            deadline_s = self._log.settings.transaction_deadline_s
            raise TransactionTimeout(f"{self._story}: no answer in {deadline_s} s") from error
        except (errors.KafkaError, errors.IllegalOperation, OSError, AssertionError) as error:
            if _is_fencing(error) or self._was_fenced():
                self._ended = "it was fenced"
                self._count_failure("fenced")
                raise Fenced(f"{self._story}: taken over") from error
            self._count_failure("failed")
            await self._abort()
            raise TransactionFailed(f"{self._story}: {_story(error)}") from error
        self._ended = ""
        metrics.transaction_seconds.labels("kafka").observe(self._log.clock.monotonic() - started_s)
        metrics.transaction_records.labels("kafka").observe(len(records))
        for (topic, _), some in places.items():
            metrics.records_written.labels(topic).inc(len(some))

    async def _transact(self, places: dict[tuple[str, int], list[OutRecord]], input_position: int | None) -> None:
        """1 begin, 2 send what all partitions get, 3 send the input position, 4 look at each answer, 5 commit."""
        producer = self._producer
        await producer.begin_transaction()  # 1
        # 2 First one batch for each partition without a pause, so that one request adds them all to the transaction.
        sending: list[asyncio.Future[Any]] = []
        rest: list[tuple[tuple[str, int], list[OutRecord]]] = []
        for place, some in places.items():
            sent = await self._send(place, some, sending)
            if sent < len(some):
                rest.append((place, some[sent:]))
        pending: list[Coroutine[Any, Any, None]] = [self._send_all(place, some, sending) for place, some in rest]
        if input_position is not None:  # 3
            pending.append(producer.send_offsets_to_transaction({self._place: input_position}, self._group))
        try:
            await _gather(pending)
            await _gather(sending)  # 4
        finally:
            for future in sending:
                future.add_done_callback(_retrieve)
        await producer.commit_transaction()  # 5

    async def _send(self, place: tuple[str, int], records: list[OutRecord], sending: list[asyncio.Future[Any]]) -> int:
        """Sends one batch of the first records, as many as fit; returns how many."""
        batch = self._producer.create_batch()
        count = 0
        for record in records:
            if not _add(batch, record):
                break
            count += 1
        batch.close()
        sending.append(await self._producer.send_batch(batch, place[0], partition=place[1]))
        return count

    async def _send_all(
        self, place: tuple[str, int], records: list[OutRecord], sending: list[asyncio.Future[Any]]
    ) -> None:
        while records:
            records = records[await self._send(place, records, sending) :]

    async def _abort(self) -> None:
        """So that readers need not wait for the transaction's time-out behind what will never be committed."""
        with contextlib.suppress(Exception):  # the next owner's start undoes it otherwise
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                await self._producer.abort_transaction()

    def _was_fenced(self) -> bool:
        """aiokafka tells it to one waiter only, and others get what follows from it."""
        task = self._producer._sender.sender_task
        return task is not None and task.done() and not task.cancelled() and _is_fencing(task.exception())

    def _count_failure(self, reason: str) -> None:
        metrics.transactions_failed.labels("kafka", reason).inc()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._ended = self._ended or "it was closed"
        await _stop_producer(self._producer)
        self._log.forget(self)

    def _check(self) -> None:
        self._log.check_open()
        if self._ended:
            raise LogClosed(f"owner {self._story} is of no further use: {self._ended}")


def transactional_id(prefix: str, group: str, topic: str, partition: int) -> str:
    """One per group and input partition: with one per process, a zombie's commit would not be fenced."""
    return f"{prefix}{group}.{topic}.{partition}"


def _add(batch: Any, record: OutRecord) -> bool:
    """Puts a record into a batch; False when it is full."""
    return batch.append(timestamp=None, key=record.key, value=record.value, headers=list(record.headers)) is not None


async def _gather(work: Sequence[Awaitable[Any]]) -> None:
    if work:
        await asyncio.gather(*work)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Takes note of an exception that somebody else is told, or nobody needs."""
    if not future.cancelled():
        future.exception()


def _is_fencing(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, (errors.ProducerFenced, errors.InvalidProducerEpoch)):
            return True
        error = error.__cause__
    return False


def _append_error(
    error: BaseException, topic: str, taken: Sequence[tuple[OutRecord, int, asyncio.Future[int]]]
) -> BusError:
    if isinstance(error, LogError):
        return error
    if isinstance(error, errors.MessageSizeTooLargeError):
        return RecordTooLarge(topic, max(size for _, size, _ in taken), 0)
    if isinstance(error, TimeoutError):
        return LogUnavailable(f"{topic}: no answer from Kafka before the deadline")
    return LogUnavailable(f"{topic}: {_story(error)}")


def _story(error: BaseException) -> str:
    text = str(error)
    name = type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}" if text else name


def _text(path: object) -> str | None:
    return None if path is None else str(path)


async def _stop(stopping: Awaitable[None]) -> None:
    """Stops a client, in bounded time; what goes wrong then concerns nobody."""
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await stopping
    except asyncio.CancelledError as error:
        # aiokafka cancels its own fetches, waits for them, and may hand their end on as if it were ours.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        log.debug("client.stop_failed", error=_story(error))
    except Exception as error:
        log.debug("client.stop_failed", error=_story(error))


async def _stop_producer(producer: AIOKafkaProducer) -> None:
    """Stops a producer in whatever state it is; a dead sender makes ``stop`` raise or wait for ever."""
    await _stop(producer.stop())
    sender = producer._sender.sender_task
    if sender is not None:
        if not sender.done():
            sender.cancel()
            await asyncio.wait({sender}, timeout=_STOP_TIMEOUT_S)
        if sender.done():
            _retrieve(sender)
    waiter = producer._txn_manager.wait_for_transaction_end() if producer._txn_manager is not None else None
    if waiter is not None and waiter.done():
        _retrieve(waiter)
    await _stop(producer.client.close())
