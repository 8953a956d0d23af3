"""New topics on Kafka as the target of a copy.

Each batch is one transaction: the records of all partitions of a topic, and how far the source was copied. The latter
are the offsets of a group (``muster-copy``), one for each partition of the source.

While records are copied, the topics keep the writer's time, so that retention and searches by time see the records' own
times; afterwards they have the broker's time, like all of Muster's topics. A topic ``muster.copying`` exists meanwhile:
no process starts on half a copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from muster_bus.backends.kafka import KafkaLog, copying_topic
from muster_bus.backends.kafka_connection import KafkaLink, stop, stop_producer, text_of
from muster_bus.backends.kafka_owner import TRANSACTION_BATCH_BYTES
from muster_bus.backends.kafka_stable_offset import stable_offset
from muster_bus.backends.kafka_writer import filled_batch
from muster_bus.clock import Clock
from muster_bus.errors import LogUnavailable, TargetNotEmpty
from muster_bus.log import Record
from muster_bus.settings import LogSettings
from muster_bus.topics import TopicSpec

_GROUP = "muster-copy"
_TRANSACTION_TIMEOUT_MS = 60_000
_DELETION_POLL_S = 0.2
_MARKERS_PAUSE_S = 0.01  # markers come within milliseconds


class _NewTopics(KafkaLog):
    """The log whose topics the copy fills. Its start creates the topic ``muster.copying`` first."""

    def __init__(self, settings: LogSettings, clock: Clock) -> None:
        super().__init__(settings.topics().specs(), settings, clock)
        self._marker = copying_topic(settings.topic_prefix)

    async def _check_whole(self, admin: AIOKafkaAdminClient, existing: set[str]) -> None:
        """Begins a copy, or continues the one that was interrupted. Raises TargetNotEmpty."""
        if self._marker in existing:
            return
        if names := [spec.name for spec in self._specs if spec.name in existing]:
            raise TargetNotEmpty(
                f"topics {', '.join(names[:3])} exist at Kafka {self.settings.kafka_bootstrap_servers}: expected none; "
                "another log.topic_prefix gives others"
            )
        await create_topic(admin, self._marker, self.settings.replication)

    def _configs(self, spec: TopicSpec) -> dict[str, str]:
        return {**super()._configs(spec), "message.timestamp.type": "CreateTime"}

    async def set_final_configs(self) -> None:
        """Gives the topics their lasting configuration."""
        assert self.admin is not None, "the log is open"
        lasting = super()._configs
        changed = [ConfigResource(ConfigResourceType.TOPIC, spec.name, configs=lasting(spec)) for spec in self._specs]
        for response in await self.bounded(self.admin.alter_configs(changed), "configuring topics"):
            for code, message, _, name in response.resources:
                if code:
                    raise LogUnavailable(f"topic {name} cannot be configured: {message or errors.for_code(code)}")

    async def whole(self) -> None:
        """Deletes the topic that keeps Muster from starting."""
        assert self.admin is not None, "the log is open"
        await self.bounded(delete_topics(self.admin, [self._marker]), f"deleting {self._marker}")


class KafkaTarget:
    """See :class:`muster_bus.copying.target.CopyTarget`."""

    def __init__(self, settings: LogSettings, clock: Clock) -> None:
        self.topics = settings.topics()
        self.name = f"the log at Kafka {settings.kafka_bootstrap_servers}"
        self._settings = settings
        self._log = _NewTopics(settings, clock)
        self._group = f"{settings.topic_prefix}{_GROUP}"
        self._producer: AIOKafkaProducer | None = None
        self._stable: AIOKafkaConsumer | None = None
        self._all: AIOKafkaConsumer | None = None  # sees records of open transactions, too

    async def start(self) -> None:
        await self._log.start()
        self._stable = AIOKafkaConsumer(**self._log.connection(), isolation_level="read_committed")
        self._all = AIOKafkaConsumer(**self._log.connection(), isolation_level="read_uncommitted")
        for consumer in (self._stable, self._all):
            await self._log.bounded(consumer.start(), "start of the copy's consumer")
        self._producer = producer = AIOKafkaProducer(
            **self._log.connection(),
            transactional_id=self._group,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            acks="all",
            max_batch_size=TRANSACTION_BATCH_BYTES,
            linger_ms=0,
            compression_type=None,
        )
        await self._log.bounded(producer.start(), "start of the copy's producer")

    async def copied(self, topic: str, sources: int) -> dict[int, int]:
        positions: dict[int, int] = {}
        if not sum(await self.ends(topic)):
            return positions  # (offsets of topics that were deleted count for nothing)
        for partition in range(sources):
            lookup = stable_offset(self._open.client, self._group, topic, partition)
            position = await self._log.bounded(lookup, "reading how far the copy is")
            if position is not None:
                positions[partition] = position
        return positions

    async def write(self, topic: str, records: Mapping[int, Sequence[Record]], copied: Mapping[int, int]) -> None:
        producer = self._open
        try:
            async with asyncio.timeout(_TRANSACTION_TIMEOUT_MS / 1000), producer.transaction():
                sent: list[asyncio.Future[Any]] = []
                for partition, some in records.items():
                    unsent = list(some)
                    while unsent:
                        unsent = unsent[await self._send(topic, partition, unsent, sent) :]
                offsets = {TopicPartition(topic, partition): position for partition, position in copied.items()}
                await producer.send_offsets_to_transaction(offsets, self._group)
                await asyncio.gather(*sent)
        except TimeoutError as error:
            raise LogUnavailable(f"{topic}: no answer from Kafka in {_TRANSACTION_TIMEOUT_MS / 1000:g} s") from error
        except errors.KafkaError as error:
            raise LogUnavailable(f"{topic} cannot be written: {text_of(error)}") from error

    async def _send(self, topic: str, partition: int, records: list[Record], sent: list[asyncio.Future[Any]]) -> int:
        """Sends one batch with as many of the first records as fit. Returns their number."""
        batch, count = filled_batch(self._open, records, keeps_times=True)
        sent.append(await self._open.send_batch(batch, topic, partition=partition))
        return count

    async def ends(self, topic: str) -> list[int]:
        """See the contract. Waits until no transaction is open: Kafka acknowledges the end of a transaction before its
        markers are in all partitions, and until then the last stable offset is that before the transaction.
        """
        assert self._stable is not None, "the target is started"
        assert self._all is not None, "the target is started"
        topic_partitions = [TopicPartition(topic, partition) for partition in range(self.topics.partitions)]
        try:
            async with asyncio.timeout(_TRANSACTION_TIMEOUT_MS / 1000):
                while True:
                    # (In this order: a marker that comes in between makes the first ones smaller.)
                    stable = await self._log.bounded(self._stable.end_offsets(topic_partitions), f"the ends of {topic}")
                    if stable == await self._log.bounded(
                        self._all.end_offsets(topic_partitions), f"the ends of {topic}"
                    ):
                        return [int(stable[topic_partition]) for topic_partition in topic_partitions]
                    await asyncio.sleep(_MARKERS_PAUSE_S)
        except TimeoutError as error:
            raise LogUnavailable(f"{topic}: a transaction is open for {_TRANSACTION_TIMEOUT_MS / 1000:g} s") from error

    async def positions(self, group: str) -> list[int | None]:
        name, topic = f"{self._settings.topic_prefix}{group}", self.topics.requests
        ends = await self.ends(topic)
        positions: list[int | None] = []
        for partition in range(self.topics.partitions):
            lookup = stable_offset(self._open.client, name, topic, partition)
            position = await self._log.bounded(lookup, f"reading the position of {name}")
            # (The position of a topic that was deleted counts for nothing.)
            positions.append(position if position is not None and position <= ends[partition] else None)
        return positions

    async def set_positions(self, group: str, positions: Sequence[int]) -> None:
        for partition, position in enumerate(positions):
            owner = await self._log.take_over(group, self.topics.requests, partition)
            await owner.commit([], position)
            await owner.close()

    async def finish(self) -> None:
        for spec in self.topics.specs():  # whoever reads the log next sees all of it
            await self.ends(spec.name)
        await self._log.set_final_configs()
        await self._log.whole()

    async def close(self) -> None:
        if self._producer is not None:
            await stop_producer(self._producer)
            self._producer = None
        for consumer in (self._stable, self._all):
            if consumer is not None:
                await stop(consumer.stop())
        self._stable = self._all = None
        await self._log.close()

    @property
    def _open(self) -> AIOKafkaProducer:
        assert self._producer is not None, "the target is started"
        return self._producer


async def create_topic(admin: AIOKafkaAdminClient, name: str, replication: int) -> None:
    """Creates a topic that only says something by its existence. Raises LogUnavailable."""
    response = await admin.create_topics([NewTopic(name, 1, replication)])
    for _, code, *_ in response.topic_errors:
        if code not in (0, errors.TopicAlreadyExistsError.errno):
            raise LogUnavailable(f"topic {name} cannot be created: {errors.for_code(code).__name__}")


async def delete_topics(admin: AIOKafkaAdminClient, names: Sequence[str]) -> None:
    """Deletes topics. Returns when they are gone. Raises LogUnavailable."""
    present = [name for name in names if name in set(await admin.list_topics())]
    if present:
        response = await admin.delete_topics(present)
        for name, code, *_ in response.topic_error_codes:
            if code not in (0, errors.UnknownTopicOrPartitionError.errno):
                raise LogUnavailable(f"topic {name} cannot be deleted: {errors.for_code(code).__name__}")
    while set(await admin.list_topics()) & set(names):  # noqa: ASYNC110 - another process deletes them
        await asyncio.sleep(_DELETION_POLL_S)


class KafkaTopics:
    """The topics of one Muster as they are on Kafka, for a command that deletes them and looks at them."""

    def __init__(self, settings: LogSettings, clock: Clock) -> None:
        self._settings = settings
        self._link = KafkaLink((), settings, clock)
        self._admin = AIOKafkaAdminClient(
            **self._link.connection(), request_timeout_ms=round(settings.kafka_start_timeout_s * 1000)
        )

    async def start(self) -> None:
        """Raises LogUnavailable."""
        await self._link.bounded(self._admin.start(), "start")

    async def is_refused(self) -> bool:
        """Tells whether the brokers answer, and refuse this client."""
        return await self._link.refusal_of_credentials() is not None

    async def partitions(self) -> dict[str, int]:
        """Returns the number of partitions of each topic with this prefix that exists."""
        names = [*self._names(), copying_topic(self._settings.topic_prefix)]
        return await self._link.bounded(self._partitions(names), "describing topics")

    async def _partitions(self, names: list[str]) -> dict[str, int]:
        present = [name for name in names if name in set(await self._admin.list_topics())]
        topics = await self._admin.describe_topics(present) if present else []
        return {topic["topic"]: len(topic["partitions"]) for topic in topics}

    async def begin_copy(self) -> None:
        """Keeps Muster from starting on these topics."""
        name = copying_topic(self._settings.topic_prefix)
        await self._link.bounded(create_topic(self._admin, name, self._settings.replication), f"creating {name}")

    async def delete(self, names: Sequence[str] | None = None) -> None:
        """Deletes these topics; None: all that may exist, the derived ones included."""
        chosen = self._names() if names is None else names
        await self._link.bounded(delete_topics(self._admin, chosen), "deleting topics")

    def _names(self) -> list[str]:
        topics = self._settings.model_copy(update={"derived_topics": True}).topics()
        return [spec.name for spec in topics.specs()]

    async def close(self) -> None:
        await stop(self._admin.close())
