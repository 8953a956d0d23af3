"""The ids of topics and the ends of partitions on Kafka, as they are now.

aiokafka knows no topic ids: the request for them (Metadata from version 10 on) is here. Names and types are those of
Kafka's protocol guide. Brokers before 3.1 do not answer it; then ids are unknown.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka import TopicPartition, errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

_READ_UNCOMMITTED, _LATEST = 0, -1  # Kafka's numbers
_RETRY_S = 0.05
_ID_BYTES = 16
_NO_ID = bytes(_ID_BYTES)


class Present(NamedTuple):
    """A partition as it is.

    :param topic_id: of its topic; "": unknown. A topic that is deleted and created again gets another one.
    :param end: one past the highest offset that all copies in sync have, markers of transactions included.
    """

    topic_id: str
    end: int


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(_ID_BYTES)


class _TopicsResponse(Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _TopicsRequestStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _TopicsResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _TopicsRequest(Request[_TopicsRequestStruct]):  # type: ignore[misc]
    API_KEY = 3

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def build(self, request_struct_class: type[_TopicsRequestStruct]) -> _TopicsRequestStruct:
        return request_struct_class([(_NO_ID, name, {}) for name in self._names], False, False, {})


async def present_ends(client: AIOKafkaClient, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, Present]:
    """Returns what partitions are now. They exist.

    Retries without a limit until the brokers answer; the caller sets the deadline. Raises aiokafka's errors that no
    retry cures.
    """
    while True:
        try:
            return await _ask(client, places)
        except errors.KafkaError as error:
            if not error.retriable and not error.invalid_metadata:
                raise
        await asyncio.sleep(_RETRY_S)


async def topic_id_of(client: AIOKafkaClient, name: str) -> str:
    """Returns the id of a topic; "": unknown. Retries as :func:`present_ends`."""
    while True:
        try:
            ids, _ = await _topics(client, [name])
            return ids.get(name, "")
        except errors.KafkaError as error:
            if not error.retriable and not error.invalid_metadata:
                raise
        await asyncio.sleep(_RETRY_S)


async def _ask(client: AIOKafkaClient, topic_partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Present]:
    ids, leaders = await _topics(client, sorted({topic_partition.topic for topic_partition in topic_partitions}))
    queries: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for topic_partition in topic_partitions:
        node = leaders.get(topic_partition, -1)
        if node < 0:
            raise errors.LeaderNotAvailableError
        queries.setdefault(node, {}).setdefault(topic_partition.topic, []).append((topic_partition.partition, _LATEST))
    answers = await asyncio.gather(
        *(client.send(node, OffsetRequest(-1, _READ_UNCOMMITTED, list(of.items()))) for node, of in queries.items())
    )
    ends: dict[TopicPartition, Present] = {}
    for answer in answers:
        for topic, partitions in answer.topics:
            for partition, code, _, offset in partitions:
                if code:
                    raise errors.for_code(code)
                ends[TopicPartition(topic, partition)] = Present(ids[topic], int(offset))
    return ends


async def _topics(client: AIOKafkaClient, names: Sequence[str]) -> tuple[dict[str, str], dict[TopicPartition, int]]:
    """Returns the ids of topics, and the leaders of their partitions."""
    node = client.get_random_node()
    if node is None:
        raise errors.NodeNotReadyError
    try:
        answer = await client.send(node, _TopicsRequest(names))
    except (NotImplementedError, errors.IncompatibleBrokerVersion):
        return await _topics_without_ids(client, names)
    ids: dict[str, str] = {}
    leaders: dict[TopicPartition, int] = {}
    for code, name, topic_id, _, partitions, _, _ in answer.topics:
        if code:
            raise errors.for_code(code)
        # Eight letters are enough to see that an id is another one.
        ids[name] = base64.urlsafe_b64encode(topic_id).decode()[:8] if topic_id != _NO_ID else ""
        for _, partition, leader, *_ in partitions:
            leaders[TopicPartition(name, partition)] = leader
    return ids, leaders


async def _topics_without_ids(
    client: AIOKafkaClient, names: Sequence[str]
) -> tuple[dict[str, str], dict[TopicPartition, int]]:
    for name in names:
        client.add_topic(name)
    await client.force_metadata_update()
    cluster: Any = client.cluster
    partitions = [TopicPartition(name, number) for name in names for number in cluster.partitions_for_topic(name) or ()]
    return dict.fromkeys(names, ""), {partition: cluster.leader_for_partition(partition) for partition in partitions}
