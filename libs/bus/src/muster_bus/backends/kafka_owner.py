"""An owned input partition on Kafka. The next owner fences its transactions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import aiokafka.producer.sender
import structlog
from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.client import AIOKafkaClient

from muster_bus import metrics
from muster_bus.backends.kafka_connection import RETRY_MS, KafkaLink, retrieve, stop_producer, text_of
from muster_bus.backends.kafka_notes import NotedPlaces, OwnerNotes, refuse
from muster_bus.backends.kafka_stable_offset import stable_offset
from muster_bus.backends.kafka_writer import filled_batch
from muster_bus.backends.live_keys import LiveKeys
from muster_bus.errors import Fenced, LogClosed, LogDamaged, TransactionFailed, TransactionTimeout
from muster_bus.log import OutRecord

log = structlog.get_logger(__name__)

# aiokafka waits this long (seconds) when a transaction begins while Kafka still writes the previous one's markers. Its
# default is 20 ms. Each transaction waits at least once, so this value is the lower limit of the commit time:
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
# Brokers from 3.6 on refuse some first sends while they verify the transaction. A short wait before the next try keeps
# commits fast. (The name that it is set by is private, too.)
_TRANSACTION_RETRY_S = 0.005
# Until it has a coordinator, an owner waits longer. aiokafka asks the brokers for metadata beside each such try, and
# all owners of a process try at once while a broker makes its internal topics or a coordinator moves. With 5 ms, 32
# owners could keep a core and the broker so busy that it took 20 s.
_COORDINATOR_RETRY_S = RETRY_MS / 1000
TRANSACTION_BATCH_BYTES = 1 << 20  # most transactions are one batch per partition
_ABORT_TIMEOUT_S = 1.0
_FENCING = (errors.ProducerFenced, errors.InvalidProducerEpoch)
_LOOKED_AT_ONCE = 4096  # records: some milliseconds


class _Sent(NamedTuple):
    """A batch of the present transaction. ``written`` gives its metadata."""

    topic_partition: TopicPartition
    written: asyncio.Future[Any]


class KafkaOwner:
    """See :class:`muster_bus.log.PartitionOwner`. Uses one transactional producer, and never after a failure.

    :ivar notes: what each commit notes of the log (``kafka_notes.py``); None: the input is not the requests.
    """

    def __init__(self, link: KafkaLink, group: str, topic: str, partition: int) -> None:
        self._link = link
        self._topic_partition = TopicPartition(topic, partition)
        settings = link.settings
        self._group = f"{settings.topic_prefix}{group}"
        self._story = f"{self._group} on {topic}[{partition}]"
        self._ended = ""
        self._closed = False
        self.notes: OwnerNotes | None = None
        self._producer = AIOKafkaProducer(
            **link.connection(),
            transactional_id=transactional_id(settings.topic_prefix, group, topic, partition),
            transaction_timeout_ms=round(settings.kafka_transaction_timeout_s * 1000),
            acks="all",
            max_batch_size=TRANSACTION_BATCH_BYTES,
            linger_ms=0,
            retry_backoff_ms=RETRY_MS,
            request_timeout_ms=round(settings.transaction_deadline_s * 1000),
        )
        _throttle_coordinator_lookup(self._producer.client)

    async def start(self) -> None:
        """Fences the previous owner, and waits until its open transactions are finished or undone."""
        try:
            await self._link.bounded(self._take_over(), f"take-over of {self._story}")
        except BaseException:
            await stop_producer(self._producer)
            raise

    async def _take_over(self) -> None:
        """Returns when both coordinators have answered.

        A commit has less time than a new broker may need to create its internal topics. The transaction coordinator
        creates its topic for the producer's id; the request for the group's offset makes the group coordinator create
        its own.

        (A commit on a new broker can lack an answer for other reasons: a broker in a container that could not reach
        itself under its advertised address never ended a transaction. Waiting does not cure that.)
        """
        self._producer.client.add_topic(
            self._topic_partition.topic
        )  # without a topic, the metadata would be that of all topics
        await self._producer.start()
        self._producer._sender._retry_backoff = _TRANSACTION_RETRY_S
        topics, names = self._link.settings.topics(), self._link.topic_names
        if self._topic_partition.topic != topics.requests or topics.state not in names:
            await self._stable_offset()
            return
        places = NotedPlaces(topics, names, self._group, self._topic_partition.partition)
        current = await places.query(self._producer.client)
        self.notes = OwnerNotes(places, current, is_stored=self._link.stores_notes)
        if current.position is None and current.note is not None:
            log.warning(
                "owner.position_from_note",
                group=self._group,
                topic=self._topic_partition.topic,
                position=current.note.position,
            )

    def check_ends(self) -> None:
        """See :class:`muster_bus.backends.live_keys.NotingOwner`."""
        if self.notes is not None:
            refuse(self.notes.partitions.check(self.notes.at_takeover), self._link.name)

    def check_state(self, live: LiveKeys) -> None:
        """See :class:`muster_bus.backends.live_keys.NotingOwner`."""
        if self.notes is not None:
            refuse(self.notes.partitions.check_state(self.notes.at_takeover, live), self._link.name)
            self.notes.track_live_keys(live)

    async def committed(self) -> int | None:
        self._check()
        position = await self._link.bounded(self._stable_offset(), f"committed position of {self._story}")
        return position if position is not None or self.notes is None else self.notes.position

    async def _stable_offset(self) -> int | None:
        return await stable_offset(self._producer.client, self._group, *self._topic_partition)

    async def commit(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        self._check()
        by_partition: dict[tuple[str, int], list[OutRecord]] = {}
        state = self.notes.partitions.state.topic if self.notes is not None else ""
        for count, record in enumerate(records, 1):
            self._link.rules.check(record)
            by_partition.setdefault((record.topic, record.partition), []).append(record)
            if record.topic == state and self.notes is not None:
                self.notes.add(record.key or b"", record.value)
            if not count % _LOOKED_AT_ONCE:
                await asyncio.sleep(0)  # a transaction may have hundreds of thousands
        if not by_partition and input_position is None:
            return
        started_s = self._link.clock.monotonic()
        self._ended = "a commit was not completed"  # cleared when the commit succeeds
        try:
            async with asyncio.timeout(self._link.settings.transaction_deadline_s):
                await self._transact(by_partition, input_position)
        except TimeoutError as error:
            self._count_failure("timeout")
            deadline_s = self._link.settings.transaction_deadline_s
            reason = await self._link.silence_reason()
            raise TransactionTimeout(f"{self._story}: no answer in {deadline_s} s{reason and f': {reason}'}") from error
        except LogDamaged:
            await self._abort()
            raise
        except (errors.KafkaError, errors.IllegalOperation, OSError, AssertionError) as error:
            if self._has_failed_for(error, errors.OffsetMetadataTooLargeError):
                self._link.stores_notes = False  # for the next owner
                log.warning(
                    "owner.without_notes", owner=self._story, remedy="offset.metadata.max.bytes=4096 at the brokers"
                )
            if self._has_failed_for(error, *_FENCING):
                self._ended = "it was fenced"
                self._count_failure("fenced")
                raise Fenced(f"{self._story}: taken over") from error
            self._count_failure("failed")
            await self._abort()
            raise TransactionFailed(f"{self._story}: {text_of(error)}") from error
        self._ended = ""
        metrics.transaction_seconds.labels("kafka").observe(self._link.clock.monotonic() - started_s)
        metrics.transaction_records.labels("kafka").observe(len(records))
        for (topic, _), some in by_partition.items():
            metrics.records_written.labels(topic).inc(len(some))

    async def _transact(self, by_partition: dict[tuple[str, int], list[OutRecord]], input_position: int | None) -> None:
        """1 begin, 2 send the batches of all partitions, 3 send the input position, 4 check each answer, 5 commit."""
        producer = self._producer
        await producer.begin_transaction()  # 1
        # 2 Send the first batch of each partition without a pause, so that one request adds all partitions to the
        # transaction.
        sending: list[_Sent] = []
        remaining: list[tuple[tuple[str, int], list[OutRecord]]] = []
        for partition, some in by_partition.items():
            sent = await self._send(partition, some, sending)
            if sent < len(some):
                remaining.append((partition, some[sent:]))
        pending: list[Coroutine[Any, Any, None]] = [
            self._send_all(partition, some, sending) for partition, some in remaining
        ]
        counts = {TopicPartition(*partition): len(some) for partition, some in by_partition.items()}
        offsets = self._offsets(input_position, counts)
        if offsets:  # 3
            pending.append(producer.send_offsets_to_transaction(offsets, self._group))
        try:
            await _gather(pending)
            await _gather([batch.written for batch in sending])  # 4
        finally:
            for batch in sending:
                batch.written.add_done_callback(retrieve)
        if self.notes is not None and not self.notes.is_as_noted(_bases(sending), self._link.name):
            await producer.send_offsets_to_transaction(self._offsets(input_position, counts), self._group)
        await producer.commit_transaction()  # 5
        if self.notes is not None:
            self.notes.committed(counts)

    def _offsets(self, position: int | None, counts: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        """Returns what the group commits, with the note: it must be as new as each transaction, also without input."""
        if self.notes is not None:
            return self.notes.offsets(position, counts)
        return {} if position is None else {self._topic_partition: position}

    async def _send(self, partition: tuple[str, int], records: list[OutRecord], sending: list[_Sent]) -> int:
        """Sends one batch with as many of the first records as fit. Returns their number."""
        batch, count = filled_batch(self._producer, records)
        written = await self._producer.send_batch(batch, partition[0], partition=partition[1])
        sending.append(_Sent(TopicPartition(*partition), written))
        for waiting in self._producer._message_accumulator._batches.get(TopicPartition(*partition), ()):
            # aiokafka gives a second future the error of a fencing, and lets nobody have it.
            waiting._drain_waiter.add_done_callback(retrieve)
        return count

    async def _send_all(self, partition: tuple[str, int], records: list[OutRecord], sending: list[_Sent]) -> None:
        while records:
            records = records[await self._send(partition, records, sending) :]

    async def _abort(self) -> None:
        """Aborts the transaction, so that readers need not wait for its time-out."""
        with contextlib.suppress(Exception):  # if the abort fails, the next owner's start undoes the transaction
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                await self._producer.abort_transaction()

    def _has_failed_for(self, error: BaseException, *kinds: type[BaseException]) -> bool:
        """Tells whether an error of these kinds ended the producer. aiokafka raises it for one waiter only; others get
        later errors.
        """
        task = self._producer._sender.sender_task
        ended = task.exception() if task is not None and task.done() and not task.cancelled() else None
        return _is_of(error, kinds) or _is_of(ended, kinds)

    def _count_failure(self, reason: str) -> None:
        metrics.transactions_failed.labels("kafka", reason).inc()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._ended = self._ended or "it was closed"
        await stop_producer(self._producer)
        self._link.forget(self)

    def _check(self) -> None:
        self._link.check_open()
        if self._ended:
            raise LogClosed(f"owner {self._story} is of no further use: {self._ended}")


def transactional_id(prefix: str, group: str, topic: str, partition: int) -> str:
    """Returns one id per group and input partition. With one id per process, Kafka would not fence a zombie's
    commit.
    """
    return f"{prefix}{group}.{topic}.{partition}"


def _throttle_coordinator_lookup(client: AIOKafkaClient) -> None:
    """Makes a client wait after each vain look for a coordinator, however short its producer's retries are."""
    look_up = client.coordinator_lookup

    async def paced(kind: int, key: str) -> int:
        try:
            return int(await look_up(kind, key))
        except errors.KafkaError:
            await asyncio.sleep(_COORDINATOR_RETRY_S)
            raise

    client.coordinator_lookup = paced


def _bases(sent: Sequence[_Sent]) -> dict[TopicPartition, int]:
    """Returns the offset of each partition's first record; -1: the broker did not say."""
    bases: dict[TopicPartition, int] = {}
    for partition, written in sent:
        metadata = written.result()
        bases.setdefault(partition, -1 if metadata is None or metadata.offset is None else int(metadata.offset))
    return bases


async def _gather(work: Sequence[Awaitable[Any]]) -> None:
    if work:
        await asyncio.gather(*work)


def _is_of(error: BaseException | None, kinds: tuple[type[BaseException], ...]) -> bool:
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__
    return False
