"""The mark of a log on Kafka (``log_mark.py``): the cluster's id, and the last stable offsets of the main topics.

Kafka keeps no identity for Muster. Topics that were deleted and created again begin at offset 0, so they end before
what a witness knows. Another cluster has another id.
"""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from muster_bus.backends.kafka_connection import RETRY_MS, KafkaLink, stop
from muster_bus.log_mark import LogMark


class KafkaMarks:
    """Asks for marks, on one consumer for all topics. Close it with the log."""

    def __init__(self, link: KafkaLink) -> None:
        self._link = link
        topics = link.settings.topics()
        names = (topics.requests, topics.responses, topics.state, topics.events)
        self._topic_partitions = [TopicPartition(name, number) for name in names for number in range(topics.partitions)]
        self._consumer: AIOKafkaConsumer | None = None
        self._one_at_a_time = asyncio.Lock()

    async def mark(self) -> LogMark:
        """Returns the present mark. Raises LogUnavailable, LogClosed."""
        self._link.check_open()
        assert self._link.admin is not None, "the log is open"
        async with self._one_at_a_time:
            if self._consumer is None:
                self._consumer = await self._started()
            cluster = await self._link.bounded(self._link.admin.describe_cluster(), "describing the cluster")
            offsets = await self._link.bounded(self._consumer.end_offsets(self._topic_partitions), "end offsets")
        ends = {f"{partition.topic}/{partition.partition}": int(offset) for partition, offset in offsets.items()}
        return LogMark(f"kafka:{cluster.get('cluster_id') or ''}", ends)

    async def _started(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            **self._link.connection(),
            group_id=None,
            enable_auto_commit=False,
            isolation_level="read_committed",
            request_timeout_ms=round(self._link.settings.kafka_start_timeout_s * 1000),
            retry_backoff_ms=RETRY_MS,
        )
        try:
            await self._link.bounded(consumer.start(), "start of the marks' consumer")
        except BaseException:
            await stop(consumer.stop())
            raise
        self._link.children.add(self)
        return consumer

    async def close(self) -> None:
        self._link.forget(self)
        if self._consumer is not None:
            await stop(self._consumer.stop())
            self._consumer = None
