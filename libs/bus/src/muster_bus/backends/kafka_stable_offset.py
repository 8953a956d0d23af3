"""The request that aiokafka 0.14 lacks: a group's committed offsets, read when they are stable.

After a transaction ends, the group's coordinator needs a moment to apply the transaction's offsets (Kafka 3.9 does this
in another thread). Until then a plain request returns the older offset. With ``require_stable`` (OffsetFetch from
version 7 on, KIP-447) the coordinator answers UNSTABLE_OFFSET_COMMIT instead. Names and types are those of the request
in Kafka's protocol guide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiokafka import TopicPartition, errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

# Error codes that Kafka calls retriable and that aiokafka does not know.
_RETRIED = {
    13: "NETWORK_EXCEPTION",
    72: "LISTENER_NOT_FOUND",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    88: "UNSTABLE_OFFSET_COMMIT",
    89: "THROTTLING_QUOTA_EXCEEDED",
}
# The end of a transaction takes milliseconds. A coordinator that loads its groups takes seconds.
_RETRY_MIN_S = 0.01
_RETRY_MAX_S = 0.2


class RetriableOffsetError(errors.KafkaError):  # type: ignore[misc]
    """An error that a retry may cure."""

    retriable = True


class _StableOffsetsResponse(Response):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _StableOffsetsRequestStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 7
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _StableOffsetsResponse
    SCHEMA = Schema(
        ("consumer_group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class _StableOffsetsRequest(Request[_StableOffsetsRequestStruct]):  # type: ignore[misc]
    API_KEY = 9

    def __init__(self, group: str, places: Sequence[TopicPartition]) -> None:
        self._group, self._topic_partitions = group, places

    def build(self, request_struct_class: type[_StableOffsetsRequestStruct]) -> _StableOffsetsRequestStruct:
        topics: list[tuple[str, list[int], dict[int, bytes]]] = [
            (topic, [partition], {}) for topic, partition in self._topic_partitions
        ]
        return request_struct_class(self._group, topics, True, {})


class Committed(NamedTuple):
    """A group's offset, and the text that was committed with it."""

    offset: int
    metadata: str


def offsets_in(
    response: _StableOffsetsResponse, requested: Sequence[TopicPartition]
) -> Mapping[TopicPartition, Committed]:
    """Returns the offsets in an answer, without those that it has none of. Raises the answer's error as aiokafka's
    error.

    An answer with an error of its own has no topics, for example while the coordinator is loading.
    """
    _check(response.error_code)
    offsets: dict[TopicPartition, Committed | None] = {}
    for topic, partitions, _ in response.topics:
        for number, offset, _, metadata, code, _ in partitions:
            partition = TopicPartition(topic, number)
            if partition in requested:
                _check(code)
                offsets[partition] = Committed(int(offset), metadata or "") if offset >= 0 else None
    for partition in requested:
        if partition not in offsets:
            raise errors.KafkaError(f"the answer holds no offset of {partition.topic}[{partition.partition}]")
    return {partition: committed for partition, committed in offsets.items() if committed is not None}


def _check(code: int) -> None:
    if code == 0:
        return
    if code in _RETRIED:
        raise RetriableOffsetError(_RETRIED[code])
    kind = errors.for_code(code)
    failure: errors.KafkaError = kind() if kind is not errors.UnknownError else kind(f"error code {code}")
    raise failure


async def stable_offset(client: AIOKafkaClient, group: str, topic: str, partition: int) -> int | None:
    """Returns the group's committed offset; None if there is none. See :func:`stable_offsets`."""
    topic_partition = TopicPartition(topic, partition)
    committed = (await stable_offsets(client, group, [topic_partition])).get(topic_partition)
    return None if committed is None else committed.offset


async def stable_offsets(
    client: AIOKafkaClient, group: str, places: Sequence[TopicPartition]
) -> Mapping[TopicPartition, Committed]:
    """Returns the group's committed offsets, without the partitions that have none.

    Retries without a limit until the coordinator answers; the caller sets the deadline. Raises aiokafka's errors that
    no retry cures.
    """
    pause_s = _RETRY_MIN_S
    while True:
        try:
            node = await client.coordinator_lookup(CoordinationType.GROUP, group)
            if await client.ready(node, group=ConnectionGroup.COORDINATION):
                request = _StableOffsetsRequest(group, places)
                response = await client.send(node, request, group=ConnectionGroup.COORDINATION)
                return offsets_in(response, places)
        except errors.KafkaError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _RETRY_MAX_S)
