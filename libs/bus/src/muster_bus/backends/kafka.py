"""The log on Kafka, with aiokafka.

Measured on Kafka 3.9 and 4.1. This module avoids these traps:

- aiokafka has no KIP-447. So each owned input partition has a transactional producer of its own, with an id made of
  group, topic and partition. The start of this producer fences the previous owner.
- ``commit_transaction`` succeeds even if a batch inside the transaction failed. The owner checks each batch's answer
  first.
- aiokafka retries some failures without end. Every wait here has a deadline, and a producer is dropped after any
  failure.
- Offsets do not need a member of their group: commits are transactional, which Kafka takes with and without members.
  Kafka deletes the offsets of a group without members when nothing is committed for a week (broker's
  offsets.retention.minutes). So the partition worker also commits without input.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import structlog
from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from muster_runtime.store_credentials import StoreFileUnusable

from muster_bus.backends.kafka_connection import KafkaLink, stop
from muster_bus.backends.kafka_ends import topic_id_of
from muster_bus.backends.kafka_mark import KafkaMarks
from muster_bus.backends.kafka_membership import KafkaMembership
from muster_bus.backends.kafka_owner import TRANSACTION_BATCH_BYTES, KafkaOwner
from muster_bus.backends.kafka_reader import KafkaReader
from muster_bus.backends.kafka_writer import KafkaWriter
from muster_bus.backends.live_keys import LiveKeys
from muster_bus.clock import Clock
from muster_bus.errors import LogRefused, LogUnavailable, TopicMismatch
from muster_bus.log_mark import LogMark
from muster_bus.membership import GroupTerms
from muster_bus.settings import LogSettings
from muster_bus.topics import TopicSpec

log = structlog.get_logger(__name__)

_BATCH_MARGIN_BYTES = 1 << 16  # topics accept batches of max_record_bytes plus this much framing
_POLL_S = 0.05
_START_PAUSE_S = 0.2
# A broker that has just started may not know its users yet: so many refusals in a row are meant.
_REFUSALS = 3
# Errors of a broker that knows the user and denies it something.
_NOT_ALLOWED = (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError)


class _ReplicaWarningFilter(logging.Filter):
    """Drops aiokafka's warnings about NotEnoughReplicas.

    Brokers from 3.6 on answer NotEnoughReplicas while they verify that a partition is in the transaction. This is
    frequent, and aiokafka retries it. A real lack of replicas ends in TransactionTimeout.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(argument is errors.NotEnoughReplicasError for argument in record.args or ())


logging.getLogger("aiokafka.producer.sender").addFilter(_ReplicaWarningFilter())


def copying_topic(prefix: str) -> str:
    """Returns the name of a topic that exists while records are copied into the topics with this prefix."""
    return f"{prefix}muster.copying"


class KafkaLog(KafkaLink):
    """See :class:`muster_bus.log.Log`."""

    def __init__(self, specs: Sequence[TopicSpec], settings: LogSettings, clock: Clock) -> None:
        super().__init__(specs, settings, clock)
        self._specs = specs
        self._marks = KafkaMarks(self)
        self._identity = ""
        self.loss = ""

    # ---- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the log. Raises LogRefused, too: the brokers refuse this client, or a file of its credentials is
        unusable.
        """
        try:
            options = self.security.connection()
        except StoreFileUnusable as error:
            raise LogRefused(str(error)) from error
        admin = AIOKafkaAdminClient(**options, request_timeout_ms=self._request_timeout_ms())
        try:
            await self.bounded(self._start(admin), "start")
        except LogUnavailable as error:
            await stop(admin.close())
            refusal = await self.refusal_of_credentials()
            if refusal is None:
                raise
            raise LogUnavailable(f"{error}; {refusal.sentence}") from error
        except BaseException:
            await stop(admin.close())
            raise
        self.admin = admin
        log.info("log.opened", brokers=self.settings.kafka_bootstrap_servers, topics=len(self._specs))

    async def _start(self, admin: AIOKafkaAdminClient) -> None:
        refusals = 0
        while True:
            try:
                await admin.start()
                break
            except errors.KafkaConnectionError:  # the brokers may still be starting
                refusal = await self.refusal_of_credentials()
                refusals = refusals + 1 if refusal is not None and refusal.is_certain else 0
                if refusal is not None and refusals == _REFUSALS:
                    raise LogRefused(f"Kafka at {self.settings.kafka_bootstrap_servers}: {refusal.sentence}") from None
                await asyncio.sleep(_START_PAUSE_S)
        await self._create_absent(admin)
        await self._check_topics(admin)

    async def close(self) -> None:
        self.closed = True
        for child in list(self.children):
            await child.close()
        if self.admin is not None:
            await stop(self.admin.close())
            self.admin = None

    async def healthy(self) -> bool:
        if self.closed or self.admin is None:
            return False
        try:
            async with asyncio.timeout(self.settings.health_timeout_s):
                await self.check_replicas()
        except (TimeoutError, errors.KafkaError, OSError):
            return False
        return True

    def refusal(self) -> str:
        """See :class:`muster_bus.log.LogHealth`."""
        requests = self.settings.topics().requests
        return self.shortage.sentence if self.shortage.has_all(requests, self.settings.partitions) else ""

    def problems(self) -> list[str]:
        """See :class:`muster_bus.log.LogHealth`."""
        sentence = self.shortage.sentence
        return [sentence] if sentence and not self.refusal() else []

    @property
    def accepted_loss(self) -> str:
        """See :class:`muster_bus.log_mark.MarkedLog`."""
        return self.settings.accept_loss

    async def mark_loss_reported(self) -> None:
        """See :class:`muster_bus.log_mark.MarkedLog`."""
        self.loss = ""

    async def mark(self) -> LogMark:
        """See :class:`muster_bus.log_mark.MarkedLog`."""
        return await self._marks.mark()

    async def identity(self) -> str:
        """See :class:`muster_bus.log.Log`: the cluster, and the topic of the requests as it was created."""
        self.check_open()
        if self._identity:
            return self._identity
        assert self.admin is not None, "checked above"
        requests = self.settings.topics().requests
        cluster = await self.bounded(self.admin.describe_cluster(), "describing the cluster")
        topic_id = await self.bounded(topic_id_of(self.admin._client, requests), "the id of a topic")
        self._identity = f"kafka:{cluster.get('cluster_id') or ''}/{requests}/{topic_id}"
        return self._identity

    async def writer(self, name: str) -> KafkaWriter:
        self.check_open()
        writer = KafkaWriter(self, name)
        await writer.start()
        self.children.add(writer)
        return writer

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> KafkaReader:
        self.check_open()
        self.rules.spec(topic, partition)
        reader = KafkaReader(self, topic, partition, fetch_max_bytes)
        await reader.start(start)
        self.children.add(reader)
        return reader

    def membership(self, terms: GroupTerms, clock: Clock) -> KafkaMembership:
        """See :class:`muster_bus.membership.GroupLog`."""
        return KafkaMembership(self, terms, clock)

    async def take_over(self, group: str, topic: str, partition: int) -> KafkaOwner:
        self.check_open()
        self.rules.spec(topic, partition)
        owner = KafkaOwner(self, group, topic, partition)
        await owner.start()
        self.children.add(owner)
        return owner

    def live_keys(self) -> LiveKeys:
        """See :class:`muster_bus.backends.live_keys.NotedLog`."""
        return LiveKeys()

    def _request_timeout_ms(self) -> int:
        return round(self.settings.kafka_start_timeout_s * 1000)

    # ---- topics ---------------------------------------------------------------------------------------------------

    async def _create_absent(self, admin: AIOKafkaAdminClient) -> None:
        existing = set(await admin.list_topics())
        await self._check_whole(admin, existing)
        absent = [spec for spec in self._specs if spec.name not in existing]
        if not absent:
            return
        response = await admin.create_topics(
            [
                NewTopic(spec.name, spec.partitions, spec.replication, topic_configs=self._configs(spec))
                for spec in absent
            ]
        )
        for name, code, *details in response.topic_errors:
            if code not in (0, errors.TopicAlreadyExistsError.errno):
                detail = f": {details[0]}" if details and details[0] else ""
                if errors.for_code(code) in _NOT_ALLOWED:
                    raise self._not_allowed(f"topic {name} cannot be created", "Create on the topic")
                raise LogUnavailable(f"topic {name} cannot be created: {errors.for_code(code).__name__}{detail}")
        log.info("log.topics_created", topics=[spec.name for spec in absent])

    async def _check_whole(self, admin: AIOKafkaAdminClient, existing: set[str]) -> None:
        """Raises TopicMismatch if a copy into the topics is not finished."""
        if copying_topic(self.settings.topic_prefix) in existing:
            raise TopicMismatch(
                f"a copy into the topics {self.settings.topic_prefix}si.* was interrupted: run the same muster migrate "
                "or muster topics grow again (docs/growing.md)"
            )

    def _not_allowed(self, problem: str, right: str) -> LogRefused:
        return LogRefused(
            f"Kafka at {self.settings.kafka_bootstrap_servers}: {problem}: the user (log.kafka_sasl_username "
            f"{self.settings.kafka_sasl_username!r}) may not; expected an ACL with {right} (docs/security-stores.md)"
        )

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
            # Kafka never compacts the newest segment. With large segments, a fold would read every state ever written.
            configs["segment.bytes"] = str(64 << 20)
            configs["segment.ms"] = str(60 * 60 * 1000)
            configs["min.cleanable.dirty.ratio"] = "0.2"
        return configs

    def _least_message_bytes(self) -> int:
        return max(self.settings.max_record_bytes, TRANSACTION_BATCH_BYTES) + _BATCH_MARGIN_BYTES

    async def _check_topics(self, admin: AIOKafkaAdminClient) -> None:
        """Waits until every partition has a leader, then compares the topics with the configuration."""
        specs = {spec.name: spec for spec in self._specs}
        while True:
            topics = {topic["topic"]: topic for topic in await admin.describe_topics(list(specs))}
            for name, topic in topics.items():
                if errors.for_code(topic["error_code"]) in _NOT_ALLOWED:
                    raise self._not_allowed(f"topic {name} cannot be described", "Describe on the topic")
            ready = [
                topic["error_code"] == 0 and all(partition["leader"] >= 0 for partition in topic["partitions"])
                for topic in topics.values()
            ]
            if len(ready) == len(specs) and all(ready):
                break
            await asyncio.sleep(_POLL_S)
        for name, spec in specs.items():
            count = len(topics[name]["partitions"])
            if count != spec.partitions:
                raise TopicMismatch(f"topic {name} has {count} partitions, configured are {spec.partitions}")
        for name, config in (await self._configured(admin, list(specs))).items():
            cleanup, size = config["cleanup.policy"], int(config["max.message.bytes"])
            if not set(specs[name].cleanup.split(",")) <= set(cleanup.split(",")):
                raise TopicMismatch(f"topic {name} has cleanup.policy {cleanup}, needed is {specs[name].cleanup}")
            if size < self._least_message_bytes():
                raise TopicMismatch(
                    f"topic {name} has max.message.bytes {size}, needed is {self._least_message_bytes()} "
                    f"for max_record_bytes {self.settings.max_record_bytes}"
                )

    async def _configured(self, admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Returns each topic's configuration. A broker that does not know a new topic yet is asked again."""
        options = {"cleanup.policy": None, "max.message.bytes": None}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, options) for name in names]
        while True:
            configs: dict[str, dict[str, str]] = {}
            for response in await admin.describe_configs(resources):
                for _, _, _, name, entries in response.resources:
                    config = {entry[0]: entry[1] for entry in entries}
                    if config.keys() >= options.keys():
                        configs[name] = config
            if len(configs) == len(names):
                return configs
            await asyncio.sleep(_POLL_S)
