"""A client of muster.v1.Metrics for users and RMs: the state in figures (proto/muster/v1/metrics.proto).

docs/metrics.md explains every field.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from enum import StrEnum
from typing import Any

import grpc.aio
from google.protobuf.message import Message
from muster_proto.muster.v1 import metrics_pb2 as pb
from muster_proto.muster.v1.metrics_pb2 import (
    MetricsSnapshot,
    NodeMetrics,
    ProcessMetrics,
    QueueMetrics,
    RecentAllocations,
    RuntimeMetrics,
    SchedulerMetrics,
    Tally,
)

from muster_client.gateway_client import GatewayClient, refusal

__all__ = [
    "MetricsClient",
    "MetricsSnapshot",
    "NodeMetrics",
    "ProcessMetrics",
    "QueueMetrics",
    "RecentAllocations",
    "RuntimeMetrics",
    "SchedulerMetrics",
    "Section",
    "Tally",
    "as_json",
]

# Longer than a gateway waits for its view (GatewaySettings.view_timeout_s), so that its answer arrives.
DEFAULT_TIMEOUT_S = 15.0
DEFAULT_INTERVAL_S = 1.0
_SERVICE = "/muster.v1.Metrics/"


class Section(StrEnum):
    """A section of a snapshot."""

    SCHEDULER = "SCHEDULER"
    QUEUES = "QUEUES"
    NODES = "NODES"
    RUNTIME = "RUNTIME"


class MetricsClient(GatewayClient):
    """Asks one gateway, or several in turn.

    ::

        async with MetricsClient("127.0.0.1:9090") as metrics:
            async for snapshot in metrics.watch("my-cluster", sections=[Section.SCHEDULER]):
                print(snapshot.scheduler.pending_by_reason)

    Parameters as of :class:`GatewayClient`.

    Every method raises AdminRefused if the gateway refuses the call (unknown RM, queue or partition; too many
    watchers), and AdminFailed if there is no answer or the answers end; the call may be repeated.
    """

    async def get(
        self,
        rm_id: str = "",
        *,
        sections: Iterable[Section] = (),
        partition: str = "",
        queue: str = "",
        nodes_max: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> MetricsSnapshot:
        """Returns a snapshot of the present.

        :param rm_id: "": the only one that is registered.
        :param sections: empty: all.
        :param partition: "": default. ``queue``: includes the queues below it; "": root.
        :param nodes_max: number of the fullest nodes; 0: 1,000.
        """
        call = self._channel.unary_unary(
            f"{_SERVICE}Get",
            request_serializer=pb.MetricsRequest.SerializeToString,
            response_deserializer=pb.MetricsSnapshot.FromString,
        )
        request = _request(rm_id, sections, partition, queue, nodes_max)
        try:
            answer: MetricsSnapshot = await call(request, timeout=timeout_s, metadata=self._sent())
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from error
        return answer

    async def watch(
        self,
        rm_id: str = "",
        *,
        sections: Iterable[Section] = (),
        partition: str = "",
        queue: str = "",
        nodes_max: int = 0,
        interval_s: float = DEFAULT_INTERVAL_S,
    ) -> AsyncGenerator[MetricsSnapshot, None]:
        """Yields a snapshot at once, then one per interval (at least 0.1 s), until the caller leaves the loop.

        Parameters as of :meth:`get`. A caller that takes longer than the interval gets fewer, and always the newest.
        """
        call = self._channel.unary_stream(
            f"{_SERVICE}Watch",
            request_serializer=pb.WatchMetricsRequest.SerializeToString,
            response_deserializer=pb.MetricsSnapshot.FromString,
        )
        query = _request(rm_id, sections, partition, queue, nodes_max)
        request = pb.WatchMetricsRequest(what=query, interval_ms=max(1, round(interval_s * 1000)))
        stream = call(request, metadata=self._sent())
        try:
            async for answer in stream:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from error
        finally:
            stream.cancel()


def _request(rm_id: str, sections: Iterable[Section], partition: str, queue: str, nodes_max: int) -> pb.MetricsRequest:
    numbers = [pb.MetricsRequest.Section.Value(section.value) for section in sections]
    return pb.MetricsRequest(rm_id=rm_id, sections=numbers, partition=partition, queue=queue, nodes_max=nodes_max)


def as_json(message: Message) -> dict[str, Any]:
    """Returns a snapshot, or a part of one, for ``json.dumps``: every field by its name; None for an absent section."""
    return {field.name: _json_of(message, field) for field in message.DESCRIPTOR.fields}


def _json_of(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is None:
        return value
    if field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [as_json(item) for item in value]
    return as_json(value) if message.HasField(field.name) else None
