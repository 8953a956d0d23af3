"""The one request that aiokafka 0.14 does not have: a group's offset, waited for until it is stable.

Between a transaction's end and the moment when the group's coordinator has taken its offsets in there is a gap, in
which the older offset would be answered (Kafka 3.9 does the second step in another thread). ``require_stable``
(OffsetFetch from version 7 on, KIP-447) answers UNSTABLE_OFFSET_COMMIT instead. Names and types are those of the
request in Kafka's protocol guide.
"""

from __future__ import annotations

import asyncio

from aiokafka import errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

_UNSTABLE_OFFSET_COMMIT = 88  # not among aiokafka's errors
_RETRY_S = 0.01


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
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class _StableOffsetsRequest(Request[_StableOffsetsRequestStruct]):  # type: ignore[misc]
    API_KEY = 9

    def __init__(self, group: str, topic: str, partition: int) -> None:
        self._group, self._topic, self._partition = group, topic, partition

    def build(self, request_struct_class: type[_StableOffsetsRequestStruct]) -> _StableOffsetsRequestStruct:
        return request_struct_class(self._group, [(self._topic, [self._partition], {})], True, {})


async def stable_offset(client: AIOKafkaClient, group: str, topic: str, partition: int) -> int | None:
    """The group's committed offset, None when there is none. Without end until the coordinator answers: the caller
    bounds it in time. Raises aiokafka's errors that no retry cures."""
    while True:
        try:
            node = await client.coordinator_lookup(CoordinationType.GROUP, group)
            if await client.ready(node, group=ConnectionGroup.COORDINATION):
                request = _StableOffsetsRequest(group, topic, partition)
                response = await client.send(node, request, group=ConnectionGroup.COORDINATION)
                ((_, ((_, offset, _, _, partition_error, _),), _),) = response.topics
                code = response.error_code or partition_error
                if code == 0:
                    return int(offset) if offset >= 0 else None
                if code != _UNSTABLE_OFFSET_COMMIT:
                    failure: errors.KafkaError = errors.for_code(code)()
                    raise failure
        except errors.KafkaError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(_RETRY_S)
