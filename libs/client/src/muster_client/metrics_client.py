"""The state in figures: muster.v1.Metrics (proto/muster/v1/metrics.proto) for users and RMs. docs/metrics.md explains
every field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar, get_type_hints

import grpc.aio
from google.protobuf.message import Message
from muster_proto.muster.v1 import metrics_pb2 as pb

from muster_client.gateway_client import GatewayClient, refusal

# Above what a gateway waits for its view (GatewaySettings.view_timeout_s), so that its words arrive.
DEFAULT_TIMEOUT_S = 15.0
DEFAULT_INTERVAL_S = 1.0
_SERVICE = "/muster.v1.Metrics/"

Quantities = dict[str, int]


class Section(StrEnum):
    """What a snapshot may show."""

    SCHEDULER = "SCHEDULER"
    QUEUES = "QUEUES"
    NODES = "NODES"
    RUNTIME = "RUNTIME"


@dataclass(frozen=True, slots=True)
class Tally:
    """How often since the RM was first registered.

    :param released: at the RM's word; preempted, timed_out and replaced are those that were told to go.
    :param decisions: rounds in which something was decided, which took ``deciding_us`` in all.
    """

    allocated: int
    released: int
    preempted: int
    timed_out: int
    replaced: int
    asks_rejected: int
    applications_accepted: int
    applications_rejected: int
    nodes_accepted: int
    nodes_rejected: int
    questions: int
    questions_refused: int
    questions_unanswered: int
    events: int
    decisions: int
    deciding_us: int


@dataclass(frozen=True, slots=True)
class SchedulerMetrics:
    """One partition; the tally is the RM's.

    :param applications: by state.
    :param pending_by_reason: asks, by reason code.
    """

    applications: dict[str, int]
    nodes: int
    nodes_draining: int
    asks_pending: int
    allocations: int
    reservations: int
    pending_by_reason: dict[str, int]
    tally: Tally
    capacity: Quantities
    allocated: Quantities
    pending: Quantities


@dataclass(frozen=True, slots=True)
class QueueMetrics:
    """A queue.

    :param max: of root the cluster's capacity; a type that is not there is not limited here.
    :param applications: in it and below; ``applications_max`` 0: any number may run.
    """

    path: str
    state: str
    leaf: bool
    guaranteed: Quantities
    max: Quantities
    allocated: Quantities
    pending: Quantities
    preempting: Quantities
    applications: int
    applications_running: int
    applications_max: int


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """A node.

    :param used_percent: of the type that is used most, allocated and occupied.
    """

    node_id: str
    schedulable: bool
    capacity: Quantities
    allocated: Quantities
    occupied: Quantities
    available: Quantities
    allocations: int
    used_percent: int


@dataclass(frozen=True, slots=True)
class ProcessMetrics:
    """A process.

    :param memory_bytes: resident.
    :param streams_open: of a gateway.
    """

    name: str
    cpu_seconds: float
    memory_bytes: int
    garbage_collections: int
    uptime_seconds: float
    streams_open: int


@dataclass(frozen=True, slots=True)
class RuntimeMetrics:
    """The gateway that answers, and its view, which is so far behind the scheduler."""

    processes: tuple[ProcessMetrics, ...]
    view_lag_records: int
    view_lag_seconds: float


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """One moment's figures; a section that was not asked for is None or empty.

    :param queues: parents before their children; ``nodes``: fullest first.
    """

    taken_ns: int
    rm_id: str
    scheduler: SchedulerMetrics | None
    queues: tuple[QueueMetrics, ...]
    nodes: tuple[NodeMetrics, ...]
    runtime: RuntimeMetrics | None

    def as_json(self) -> dict[str, Any]:
        """For ``json.dumps``: by the names of the fields."""
        return dataclasses.asdict(self)


class MetricsClient(GatewayClient):
    """Asks one gateway, or several in turn.

    ::

        async with MetricsClient("127.0.0.1:9090") as metrics:
            async for snapshot in metrics.watch("my-cluster", sections=[Section.SCHEDULER]):
                print(snapshot.scheduler.pending_by_reason)

    Parameters as of :class:`GatewayClient`.

    Every method raises AdminRefused when the gateway says no (no such RM, queue or partition; too many watch), and
    AdminFailed when there is no answer, or no more: the same call may be made again.
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
        """A snapshot, now.

        :param rm_id: "": the only one that is registered.
        :param sections: none: all.
        :param partition: "": default. ``queue``: with what is below it; "": root.
        :param nodes_max: the fullest so many; 0: 1,000.
        """
        call = self._channel.unary_unary(
            f"{_SERVICE}Get",
            request_serializer=pb.MetricsRequest.SerializeToString,
            response_deserializer=pb.MetricsSnapshot.FromString,
        )
        request = _request(rm_id, sections, partition, queue, nodes_max)
        try:
            answer = await call(request, timeout=timeout_s, metadata=self._sent())
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from error
        return _snapshot(answer)

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
        """A snapshot at once, then one each interval (at least 0.1 s), until the caller leaves the loop.

        Parameters as of :meth:`get`. Who takes longer than the interval gets fewer, and always the newest.
        """
        call = self._channel.unary_stream(
            f"{_SERVICE}Watch",
            request_serializer=pb.WatchMetricsRequest.SerializeToString,
            response_deserializer=pb.MetricsSnapshot.FromString,
        )
        what = _request(rm_id, sections, partition, queue, nodes_max)
        request = pb.WatchMetricsRequest(what=what, interval_ms=max(1, round(interval_s * 1000)))
        stream = call(request, metadata=self._sent())
        try:
            async for answer in stream:
                yield _snapshot(answer)
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from error
        finally:
            stream.cancel()


def _request(rm_id: str, sections: Iterable[Section], partition: str, queue: str, nodes_max: int) -> pb.MetricsRequest:
    numbers = [pb.MetricsRequest.Section.Value(section.value) for section in sections]
    return pb.MetricsRequest(rm_id=rm_id, sections=numbers, partition=partition, queue=queue, nodes_max=nodes_max)


# ---- the wire's messages in the client's words: fields have the same names -------------------------------------------

D = TypeVar("D")


def _snapshot(message: pb.MetricsSnapshot) -> MetricsSnapshot:
    return MetricsSnapshot(
        message.taken_ns,
        message.rm_id,
        _scheduler(message.scheduler) if message.HasField("scheduler") else None,
        tuple(_taken(QueueMetrics, queue) for queue in message.queues),
        tuple(_taken(NodeMetrics, node) for node in message.nodes),
        _runtime(message.runtime) if message.HasField("runtime") else None,
    )


def _scheduler(message: pb.SchedulerMetrics) -> SchedulerMetrics:
    return _taken(SchedulerMetrics, message, tally=_taken(Tally, message.tally))


def _runtime(message: pb.RuntimeMetrics) -> RuntimeMetrics:
    return _taken(
        RuntimeMetrics, message, processes=tuple(_taken(ProcessMetrics, process) for process in message.processes)
    )


_PLAIN = (int, float, str, bool)


def _fields(kind: type[Any]) -> tuple[tuple[str, bool], ...]:
    """A dataclass's fields, and whether each is a map."""
    return tuple((name, hint not in _PLAIN) for name, hint in get_type_hints(kind).items())


_FIELDS: dict[type[Any], tuple[tuple[str, bool], ...]] = {
    kind: _fields(kind) for kind in (SchedulerMetrics, Tally, QueueMetrics, NodeMetrics, ProcessMetrics, RuntimeMetrics)
}


def _taken(kind: type[D], message: Message, **own: Any) -> D:
    values: Mapping[str, Any] = {
        name: dict(getattr(message, name)) if is_map else getattr(message, name)
        for name, is_map in _FIELDS[kind]
        if name not in own
    }
    return kind(**values, **own)
