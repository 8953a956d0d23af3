"""A gateway that serves muster.v1.Metrics and muster.v1.Health only, with the test's answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from muster_proto.muster.v1 import health_pb2
from muster_proto.muster.v1 import metrics_pb2 as pb
from muster_proto.muster.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server
from muster_proto.muster.v1.metrics_pb2_grpc import MetricsServicer, add_MetricsServicer_to_server
from unit.client.serving import serving

SECOND_NS = 1_000_000_000
AT_NS = 1_704_164_645 * SECOND_NS  # 2024-01-02 03:04:05 UTC
GIB = 1 << 30


def snapshot(second: int = 0, **tally: int) -> pb.MetricsSnapshot:
    """Return a snapshot; ``tally``: counts that differ from the ones below."""
    counts = {"allocated": 950, "reported": 50, "ended": 400, "released": 390, "dropped": 7, "preempted": 3}
    counts |= {"decisions": 500, "deciding_us": 1_000_000}
    return pb.MetricsSnapshot(
        taken_ns=AT_NS + second * SECOND_NS,
        rm_id="rm-1",
        scheduler=pb.SchedulerMetrics(
            applications={"Running": 12, "Accepted": 3},
            nodes=4,
            nodes_draining=1,
            asks_pending=7,
            allocations=600,
            reservations=2,
            pending_by_reason={"QUEUE_MAX": 5, "NO_NODE_HAS_ROOM": 2},
            tally=pb.Tally(**{**counts, "asks_rejected": 9, "events": 77, **tally}),
            capacity={"vcore": 64_000, "memory": 256 * GIB},
            allocated={"vcore": 16_000, "memory": 250 * GIB},
            pending={"vcore": 70_000},
            recent=pb.RecentAllocations(
                seconds=60, allocations=12_780, per_second=213, wait_p50_ms=4.2, wait_p99_ms=2_500
            ),
        ),
        queues=[
            pb.QueueMetrics(
                path="root",
                state="Active",
                max={"vcore": 64_000, "memory": 256 * GIB},
                allocated={"vcore": 16_000, "memory": 250 * GIB},
                pending={"vcore": 70_000},
                applications=15,
                applications_running=12,
            ),
            pb.QueueMetrics(
                path="root.a",
                state="Draining",
                leaf=True,
                guaranteed={"vcore": 1_000},
                max={"vcore": 20_000},
                allocated={"vcore": 16_000, "memory": 250 * GIB},
                pending={"vcore": 70_000},
                preempting={"vcore": 500},
                applications=15,
                applications_running=12,
                applications_max=20,
            ),
            pb.QueueMetrics(path="root.b", state="Active", leaf=True),
        ],
        nodes=[
            pb.NodeMetrics(
                node_id="n1",
                capacity={"vcore": 32_000, "memory": 128 * GIB},
                allocated={"vcore": 8_000, "memory": 126 * GIB},
                occupied={"vcore": 1_000},
                available={"vcore": 23_000, "memory": 2 * GIB},
                allocations=300,
                used_percent=98,
            ),
            pb.NodeMetrics(node_id="n2", schedulable=True, capacity={"vcore": 32_000}, available={"vcore": 32_000}),
        ],
        runtime=pb.RuntimeMetrics(
            processes=[
                pb.ProcessMetrics(
                    name="gateway",
                    cpu_seconds=10.0 + second / 2,
                    memory_bytes=200 << 20,
                    garbage_collections=5,
                    uptime_seconds=3_700 + second,
                    streams_open=3,
                )
            ],
            view_lag_records=12,
            view_lag_seconds=0.5,
        ),
    )


Answer = pb.MetricsSnapshot | tuple[grpc.StatusCode, str]


class MetricsGateway(MetricsServicer):
    """A server on a free port.

    :ivar asked: the requests, and their metadata.
    :ivar patience_s: for how long each call of Get would have waited.
    :ivar answers: the messages of Watch (Get returns the first), or a status and its details, with which the call ends.
    :ivar state: the state of the whole; None: an older gateway, which does not have it.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[Any, dict[str, str]]] = []
        self.patience_s: list[float] = []
        self.answers: list[Answer] = [snapshot()]
        self.state: health_pb2.SystemHealth | tuple[grpc.StatusCode, str] | None = None
        self.address = ""

    def Get(self, request: Any, context: Any) -> Any:
        self.patience_s.append(context.time_remaining())
        return next(self.Watch(request, context))

    def Watch(self, request: Any, context: Any) -> Any:
        self.asked.append((request, dict(context.invocation_metadata())))
        for answer in self.answers:
            if isinstance(answer, tuple):
                context.abort(*answer)
            yield answer


class _Health(HealthServicer):
    def __init__(self, gateway: MetricsGateway) -> None:
        self._gateway = gateway

    def Get(self, request: Any, context: Any) -> Any:
        state = self._gateway.state or (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if isinstance(state, tuple):
            context.abort(*state)
        return state


def _add(gateway: MetricsGateway, server: grpc.Server) -> None:
    add_MetricsServicer_to_server(gateway, server)
    add_HealthServicer_to_server(_Health(gateway), server)


@contextmanager
def running() -> Iterator[MetricsGateway]:
    """Served by threads: the caller may run an event loop of its own."""
    gateway = MetricsGateway()
    with serving(gateway, _add) as gateway.address:
        yield gateway
