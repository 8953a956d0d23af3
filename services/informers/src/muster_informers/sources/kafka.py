"""An informer for a compacted topic of inventories: key ``kind/id`` or a node's id, value a JSON document.

The newest record of a key counts; a record without a value (a tombstone) means that the object is gone. The order is
that of a partition; timestamps decide nothing. A listing reads all partitions to their ends (without uncommitted
records), and the watch continues there, so no change is lost between the two.

==================================================  ============================================================
what happens                                        what becomes of it
==================================================  ============================================================
no broker, no topic, no right, no answer in time    SourceUnavailable: nothing counts as gone
a topic into which nothing was ever written         the same, unless ``empty_is_valid``: it was just made anew
no record of the key ``marker``, if that is set     the same: whoever fills the topic has not finished
the place is gone (trimmed, topic made anew)        CursorExpired: listed again
more partitions, longer away than tombstones live   the same
a value that cannot be read                         that one object is distrusted, no other
==================================================  ============================================================

A topic that is deleted, created again and filled beyond the old position between two reads looks unchanged; the next
listing sees the difference.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition, errors
from muster_bus.backends.kafka_connection import stop
from muster_bus.backends.kafka_security import KafkaSecurity
from muster_bus.clock import Clock
from muster_core.external.errors import CursorExpired, InformerSettingsWrong, SourceUnavailable
from muster_runtime.store_credentials import Password, StoreFileUnusable, check_pairs
from pydantic import Field, SecretStr, model_validator

from muster_informers.contract import ChangeType, Delta, Document, InformerContext, Listing, Options
from muster_informers.documents import UNREADABLE
from muster_informers.sources.document_parsing import keyed_document, kind_and_id, unreadable
from muster_informers.sources.error_text import text_of
from muster_informers.sources.options import (
    HEARTBEAT_S,
    Bytes,
    InformerOptions,
    Seconds,
    files_of,
    names_of,
    options_as,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Brokers keep tombstones for a day by default (delete.retention.ms); after a longer absence the informer lists again.
_TOMBSTONES_S = 3600.0
_RECORDS_MAX = 500
_READ_SLICE_MS = 100  # the client does not return for transactions' markers alone
_FETCH_WAIT_MS = 250
_RETRY_MS = 100
_METADATA_AGE_MS = 30_000


class KafkaOptions(InformerOptions):
    """The options of an informer of the kind ``kafka``."""

    bootstrap_servers: str = Field(min_length=1, description="host:port[,host:port…] of brokers")
    topic: str = Field(min_length=1, max_length=249, description="the compacted topic")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="protocol of the brokers"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="with a SASL protocol"
    )
    sasl_username: str = Field("", description="user, with a SASL protocol")
    sasl_password: SecretStr | None = Field(None, description="password of that user")
    sasl_password_file: str = Field("", description="or a file with it, read for each client")
    ca_file: str = Field("", description="PEM file of trusted CAs; default: the system's")
    client_cert_file: str = Field("", description="PEM file of the client's certificate")
    client_key_file: str = Field("", description="PEM file of the client's key")
    timeout_s: Seconds = Field(10.0, description="longest wait for an answer or for progress of a listing")
    max_document_bytes: Bytes = Field(1 << 20, description="largest document; larger ones are not read")
    marker: str = Field("", description="a key whose record marks the topic as complete; default: it always is")
    empty_is_valid: bool = Field(False, description="whether a topic without any record ever is an empty inventory")
    give_back_topic: str = Field("", max_length=249, description="the topic for returned offers")

    @model_validator(mode="after")
    def _is_consistent(self) -> KafkaOptions:
        has_password, tls = bool(self.sasl_password or self.sasl_password_file), files_of(self, ".")
        password_file = Path(self.sasl_password_file) if self.sasl_password_file else None
        check_pairs(self.sasl_password, password_file, tls, "sasl_password", "")
        if self.security_protocol.startswith("SASL"):
            if not (self.sasl_username and has_password):
                raise ValueError(
                    f"security_protocol {self.security_protocol!r} without sasl_username or sasl_password; "
                    "expected both (or sasl_password_file)"
                )
        elif self.sasl_username or has_password:
            raise ValueError(
                f"sasl_username or its password with security_protocol {self.security_protocol!r}; expected SASL_SSL"
            )
        if tls and not self.security_protocol.endswith("SSL"):
            raise ValueError(
                f"ca_file or client_cert_file with security_protocol {self.security_protocol!r}; "
                "expected SSL or SASL_SSL"
            )
        if self.give_back_topic == self.topic:
            raise ValueError(f"give_back_topic {self.topic!r}: expected another topic than topic")
        return self


def make_informer(options: Options, context: InformerContext) -> KafkaSource:
    """The factory of ``muster.informers``."""
    source_options = options_as(KafkaOptions, options, context)
    security = _security(source_options, context)
    try:
        security.connection()
    except StoreFileUnusable as error:
        raise InformerSettingsWrong(str(error)) from None
    kind = OfferKafkaSource if source_options.give_back_topic else KafkaSource
    return kind(source_options, context, security)


class _NewestRecord(NamedTuple):
    """The newest record of a key in a partition that has a value."""

    value: bytes
    offset: int


class KafkaSource:
    """See :class:`muster_informers.contract.ListWatch`."""

    def __init__(self, options: KafkaOptions, context: InformerContext, security: KafkaSecurity) -> None:
        self._options = options
        self._security = security
        self._clock: Clock = context.clock
        self._consumer: AIOKafkaConsumer | None = None
        self._topic_partitions: Sequence[TopicPartition] = ()
        self._marker = options.marker.encode()
        self._heard_s = 0.0
        self._was_away = True  # the topic was missing at some time since the last listing

    async def list(self) -> Listing:
        try:
            return await self._list()
        except BaseException:
            await self._drop()
            raise

    async def _list(self) -> Listing:
        """Lists: 1 find the partitions' ends, 2 read up to there, 3 check the inventory, 4 read documents."""
        consumer = await self._start()
        ends = await self._offsets(consumer.end_offsets)  # 1
        firsts = await self._offsets(consumer.beginning_offsets)
        for topic_partition in self._topic_partitions:
            consumer.seek(topic_partition, firsts[topic_partition])
        newest = await self._newest(consumer, ends)  # 2
        if self._marker and newest.pop((-1, self._marker), None) is None:  # 3
            raise SourceUnavailable(
                f"topic {self._options.topic}: no record of the key {self._options.marker!r} (marker)"
            )
        if not (any(ends.values()) or self._options.empty_is_valid):
            raise SourceUnavailable(
                f"topic {self._options.topic}: it has never had a record; expected records (or set empty_is_valid)"
            )
        documents = await asyncio.to_thread(
            lambda: [self._document(partition, key, *record) for (partition, key), record in newest.items()]
        )  # 4
        self._was_away = False
        self._heard_s = self._clock.monotonic()
        return Listing(documents, _cursor(await self._positions(consumer)))

    async def _newest(
        self, consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]
    ) -> dict[tuple[int, bytes | None], _NewestRecord]:
        """The newest records by partition (-1: the marker's) and key. Invisible records count as read."""
        newest: dict[tuple[int, bytes | None], _NewestRecord] = {}
        moved_s, before = self._clock.monotonic(), dict[TopicPartition, int]()
        while True:
            positions = await self._positions(consumer)
            if all(positions[topic_partition] >= end for topic_partition, end in ends.items()):
                return newest
            if positions != before:
                moved_s, before = self._clock.monotonic(), positions
            elif self._clock.monotonic() - moved_s > self._options.timeout_s:
                raise SourceUnavailable(
                    f"topic {self._options.topic}: no records for {self._options.timeout_s:g} s, before its end"
                )
            for record in await self._poll(consumer, _READ_SLICE_MS):
                key = (-1 if record.key == self._marker and self._marker else record.partition, record.key)
                if record.value is None:
                    newest.pop(key, None)
                else:
                    newest[key] = _NewestRecord(record.value, record.offset)

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        positions = _positions_of(cursor)
        if self._was_away or self._clock.monotonic() - self._heard_s > _TOMBSTONES_S:
            raise CursorExpired(f"topic {self._options.topic}: it was away, or not heard for {_TOMBSTONES_S:g} s")
        try:
            consumer = await self._start()
            if {topic_partition.partition for topic_partition in self._topic_partitions} != positions.keys():
                raise CursorExpired(f"topic {self._options.topic}: has {len(self._topic_partitions)} partitions now")
            for topic_partition in self._topic_partitions:
                consumer.seek(topic_partition, positions[topic_partition.partition])
            await self._check(consumer)
            while True:
                self._heard_s = self._clock.monotonic()
                yield ()
                while records := await self._poll(consumer, round(HEARTBEAT_S * 1000)):
                    self._heard_s = self._clock.monotonic()
                    before, cursor = cursor, _cursor(await self._positions(consumer))
                    yield self._deltas(records, before, cursor)
                await self._check(consumer)
        finally:
            await self._drop()

    async def close(self) -> None:
        await self._drop()

    # ---- records ----------------------------------------------------------------------------------------------------

    def _deltas(self, records: Sequence[ConsumerRecord], before: str, after: str) -> Sequence[Delta]:
        """All deltas but the last have the earlier cursor: a repetition in the same order does no harm."""
        deltas = []
        for record in records:
            if self._marker and record.key == self._marker:
                if record.value is None:
                    raise CursorExpired(f"topic {self._options.topic}: the marker was removed")
                continue
            change_type, document = (
                ChangeType.MODIFIED,
                self._document(record.partition, record.key, record.value, record.offset),
            )
            if record.value is None and UNREADABLE not in document:
                change_type = ChangeType.DELETED
            deltas.append(Delta(change_type, document, before))
        if deltas:
            deltas[-1] = deltas[-1]._replace(cursor=after)
        return deltas

    def _document(self, partition: int, key: bytes | None, value: bytes | None, offset: int) -> Document:
        """Returns a record's document; of a tombstone kind and id."""
        where = f"{self._options.topic}[{partition}]@{offset}"
        try:
            text = (key or b"").decode()
        except UnicodeDecodeError:
            return unreadable(f"{where}: the key is not UTF-8")
        if not text:
            return unreadable(f"{where}: no key, expected kind/id or a node's id")
        if value is None:
            kind, object_id = kind_and_id(text)
            return {"kind": kind, "id": object_id}
        return keyed_document(text, value, where, self._options.max_document_bytes)

    # ---- the client -------------------------------------------------------------------------------------------------

    async def _start(self) -> AIOKafkaConsumer:
        """Returns a consumer of all partitions. Raises SourceUnavailable."""
        if self._consumer is not None:
            return self._consumer
        options = self._options
        consumer = AIOKafkaConsumer(
            **self._connection(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            request_timeout_ms=round(options.timeout_s * 1000),
            retry_backoff_ms=_RETRY_MS,
            metadata_max_age_ms=_METADATA_AGE_MS,
        )
        self._consumer = consumer  # close() stops it at any stage of the start
        await self._bounded(consumer.start(), "start")
        # Requests the metadata of all topics: a request for a missing topic can create it.
        if options.topic not in await self._bounded(consumer.topics(), "topics"):
            self._was_away = True
            raise SourceUnavailable(f"topic {options.topic}: there is no such topic")
        first = TopicPartition(options.topic, 0)
        consumer.assign([first])
        await self._bounded(consumer.end_offsets([first]), "partitions")  # makes the client load the partitions
        partitions = consumer.partitions_for_topic(options.topic) or {0}
        self._topic_partitions = [TopicPartition(options.topic, partition) for partition in sorted(partitions)]
        consumer.assign(self._topic_partitions)
        return consumer

    async def _check(self, consumer: AIOKafkaConsumer) -> None:
        """Checks that the brokers answer and still have the positions. Raises SourceUnavailable, CursorExpired."""
        partitions = consumer.partitions_for_topic(self._options.topic)
        if partitions is not None and len(partitions) != len(self._topic_partitions):
            raise CursorExpired(f"topic {self._options.topic}: has {len(partitions)} partitions now")
        ends = await self._offsets(consumer.end_offsets)
        firsts = await self._offsets(consumer.beginning_offsets)
        for topic_partition, position in (await self._positions(consumer)).items():
            if not firsts[topic_partition] <= position <= ends[topic_partition]:
                raise CursorExpired(
                    f"topic {topic_partition.topic}[{topic_partition.partition}]: at {position}, there are "
                    f"{firsts[topic_partition]} to {ends[topic_partition]}"
                )

    async def _poll(self, consumer: AIOKafkaConsumer, timeout_ms: int) -> Sequence[ConsumerRecord]:
        try:
            batches = await consumer.getmany(timeout_ms=timeout_ms, max_records=_RECORDS_MAX)
        except errors.OffsetOutOfRangeError as error:
            raise CursorExpired(f"topic {self._options.topic}: {text_of(error)}") from None
        except (errors.KafkaError, OSError) as error:
            raise SourceUnavailable(f"topic {self._options.topic}: {text_of(error)}") from None
        return [record for records in batches.values() for record in records]

    async def _positions(self, consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
        return {
            topic_partition: await self._bounded(consumer.position(topic_partition), "position")
            for topic_partition in self._topic_partitions
        }

    async def _offsets(self, ask: Any) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = await self._bounded(ask(list(self._topic_partitions)), "offsets")
        return offsets

    async def _bounded(self, work: Awaitable[T], subject: str) -> T:
        """Awaits work in bounded time. Raises SourceUnavailable if it fails or takes too long."""
        where = f"Kafka at {self._options.bootstrap_servers}, topic {self._options.topic}"
        try:
            async with asyncio.timeout(self._options.timeout_s):
                return await work
        except TimeoutError:
            raise SourceUnavailable(f"{where}: {subject}: no answer in {self._options.timeout_s:g} s") from None
        except (errors.KafkaError, OSError) as error:
            refusal = await self._security.refusal() if isinstance(error, errors.KafkaConnectionError) else None
            reason = refusal.sentence if refusal is not None else text_of(error)
            raise SourceUnavailable(f"{where}: {subject}: {reason}") from None

    def _connection(self) -> dict[str, Any]:
        """The settings of a new client. Raises SourceUnavailable: a file cannot be used any more."""
        try:
            return {"client_id": "muster-informer", **self._security.connection()}
        except StoreFileUnusable as error:
            raise SourceUnavailable(str(error)) from None

    async def _drop(self) -> None:
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await stop(consumer.stop())


class OfferKafkaSource(KafkaSource):
    """Also an :class:`muster_informers.contract.OfferTaker`."""

    _producer: AIOKafkaProducer | None = None
    _is_closed = False

    async def give_back(self, offer_ids: Sequence[str]) -> None:
        try:
            await self._bounded(self._write(offer_ids), f"giving back to {self._options.give_back_topic}")
        except BaseException:
            await self._drop_producer()
            raise

    async def _write(self, offer_ids: Sequence[str]) -> None:
        if self._is_closed:
            raise SourceUnavailable("it is closed")
        if self._producer is None:
            self._producer = AIOKafkaProducer(
                **self._connection(), acks="all", request_timeout_ms=round(self._options.timeout_s * 1000)
            )
            await self._producer.start()
        sent = [
            await self._producer.send(
                self._options.give_back_topic,
                key=offer_id.encode(),
                value=json.dumps({"kind": "offer", "op": "give_back", "id": offer_id}).encode(),
            )
            for offer_id in offer_ids
        ]
        for result in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        self._is_closed = True
        await super().close()
        await self._drop_producer()

    async def _drop_producer(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await stop(producer.stop())


def _security(options: KafkaOptions, context: InformerContext) -> KafkaSecurity:
    """The credentials of each client."""
    names = names_of(
        context,
        "Kafka",
        account="sasl_username sasl_password",
        protocol="security_protocol",
        tls="SSL or SASL_SSL",
        address="bootstrap_servers",
    )
    base = Path(context.base)
    password_file = base / options.sasl_password_file if options.sasl_password_file else None
    return KafkaSecurity(
        options.bootstrap_servers,
        options.security_protocol,
        names,
        mechanism=options.sasl_mechanism,
        username=options.sasl_username,
        password=Password(options.sasl_password, password_file, names.password_file),
        tls=files_of(options, base),
    )


def _cursor(positions: Mapping[TopicPartition, int]) -> str:
    return ",".join(f"{topic_partition.partition}:{position}" for topic_partition, position in positions.items())


def _positions_of(cursor: str) -> dict[int, int]:
    """Parses a cursor. Raises CursorExpired if it is invalid."""
    try:
        return {
            int(partition): int(position) for partition, position in (pair.split(":") for pair in cursor.split(","))
        }
    except ValueError:
        raise CursorExpired(f"the cursor {cursor!r} names no places in partitions") from None
