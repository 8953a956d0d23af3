"""Decodes muster.v1.Metrics's requests, and encodes the view's JSON as a MetricsSnapshot.

This module also does admission: a refused request never reaches the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from msgspec.structs import asdict
from muster_proto.muster.v1 import metrics_pb2 as pb
from muster_rest.shapes.figures import RuntimeDao, SnapshotDao
from muster_runtime.process_stats import ProcessStats
from muster_runtime.read_scope import EVERYTHING, ReadScope

from muster_gateway.errors import InvalidRequest, ViewUnavailable, quote
from muster_gateway.settings import AdmissionLimits

INTERVAL_DEFAULT_MS, INTERVAL_MIN_MS = 1_000, 100
# The view's own limit (docs/metrics.md): its answer stays at a few megabytes.
NODES_MAX = 10_000

_SECTIONS = {
    pb.MetricsRequest.SCHEDULER: "scheduler",
    pb.MetricsRequest.QUEUES: "queues",
    pb.MetricsRequest.NODES: "nodes",
    pb.MetricsRequest.RUNTIME: "runtime",
}
_SNAPSHOTS = msgspec.json.Decoder(SnapshotDao)
# Number of queues or nodes that one step encodes: two milliseconds.
_PER_STEP = 200


@dataclass(frozen=True, slots=True)
class MetricsQuery:
    """The content of a snapshot. Equal queries share snapshots.

    :param sections: names; empty: all. ``nodes_max`` 0: the view's default.
    :param reach: what the caller may read.
    """

    rm_id: str = ""
    sections: frozenset[str] = frozenset()
    partition: str = ""
    queue: str = ""
    nodes_max: int = 0
    read_scope: ReadScope = EVERYTHING

    def parameters(self) -> dict[str, str]:
        """Returns the parameters of the view's query, without the RM."""
        parameters = {
            "sections": ",".join(sorted(self.sections)),
            "partition": self.partition,
            "queue": self.queue,
            "nodes": str(self.nodes_max or ""),
        }
        return {name: value for name, value in parameters.items() if value}


def decode_request(raw: bytes, limits: AdmissionLimits) -> MetricsQuery:
    """Decodes a MetricsRequest. Raises InvalidRequest."""
    return _query(_parsed(pb.MetricsRequest(), raw), limits, "")


def decode_watch(raw: bytes, limits: AdmissionLimits) -> tuple[MetricsQuery, float]:
    """Decodes a WatchMetricsRequest. Returns the query and its interval in seconds. Raises InvalidRequest."""
    request = _parsed(pb.WatchMetricsRequest(), raw)
    interval_ms = request.interval_ms or INTERVAL_DEFAULT_MS
    if interval_ms < INTERVAL_MIN_MS:
        raise InvalidRequest(f"interval_ms: {interval_ms}, expected at least {INTERVAL_MIN_MS}, or 0 for a second")
    return _query(request.what, limits, "what."), interval_ms / 1000


def _parsed(message: Any, raw: bytes) -> Any:
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise InvalidRequest(f"not a {message.DESCRIPTOR.full_name}: {len(raw)} bytes that do not decode") from error
    return message


def _query(request: pb.MetricsRequest, limits: AdmissionLimits, path: str) -> MetricsQuery:
    texts = {
        "rm_id": (request.rm_id, limits.max_id_chars),
        "partition": (request.partition, limits.max_id_chars),
        "queue": (request.queue, limits.max_queue_chars),
    }
    for name, (text, limit) in texts.items():
        if len(text) > limit:
            raise InvalidRequest(f"{path}{name}: {quote(text)}, expected at most {limit} characters")
    for index, number in enumerate(request.sections):
        if number not in _SECTIONS:
            expected = ", ".join(name.upper() for name in _SECTIONS.values())
            raise InvalidRequest(f"{path}sections[{index}]: {number}, expected some of {expected}")
    if request.nodes_max > NODES_MAX:
        raise InvalidRequest(f"{path}nodes_max: {request.nodes_max}, expected at most {NODES_MAX}, or 0 for 1000")
    sections = frozenset(_SECTIONS[number] for number in request.sections)
    return MetricsQuery(request.rm_id, sections, request.partition, request.queue, request.nodes_max)


class RmStatus(NamedTuple):
    """The state of an RM, since when, and its description."""

    state: str
    since_ns: int
    description: str


# ---- the view's answer -----------------------------------------------------------------------------------------------


class SnapshotEncoder:
    """Makes one MetricsSnapshot of the view's JSON.

    Call :meth:`steps` to its end, with turns for other tasks in between, then :meth:`message`.

    :param body: the answer of /ws/v1/metrics/snapshot. The constructor raises ViewUnavailable if it is something else.
    :param own: figures of this process, added to the runtime's.
    """

    def __init__(self, body: bytes, own: ProcessStats, streams_open: int) -> None:
        try:
            self._dao = _SNAPSHOTS.decode(body)
        except msgspec.MsgspecError as error:
            raise ViewUnavailable("the view's answer has an unexpected form: is it of another version?") from error
        self._own, self._streams_open = own, streams_open
        self._snapshot = pb.MetricsSnapshot()

    def steps(self) -> Iterator[None]:
        """Fills the message."""
        dao, snapshot = self._dao, self._snapshot
        snapshot.taken_ns, snapshot.rm_id = dao.taken_ns, dao.rm_id
        snapshot.state, snapshot.state_since_ns = dao.state, dao.state_since_ns
        snapshot.paused, snapshot.description = dao.paused, dao.description
        if dao.scheduler is not None:
            figures = asdict(dao.scheduler)
            tally, recent = pb.Tally(**asdict(figures.pop("tally"))), figures.pop("recent")
            snapshot.scheduler.MergeFrom(pb.SchedulerMetrics(tally=tally, **figures))
            if recent is not None:
                snapshot.scheduler.recent.MergeFrom(pb.RecentAllocations(**asdict(recent)))
        yield
        lists: list[tuple[Callable[..., Any], Sequence[Any]]]
        lists = [(snapshot.queues.add, dao.queues), (snapshot.nodes.add, dao.nodes)]
        for add, items in lists:
            for number, item in enumerate(items, start=1):
                add(**asdict(item))
                if not number % _PER_STEP:
                    yield
        if dao.runtime is not None:
            self._runtime(dao.runtime)

    @property
    def rm_id(self) -> str:
        """The RM of the snapshot."""
        return self._dao.rm_id

    @property
    def is_paused(self) -> bool:
        """Whether an operator paused the RM."""
        return self._dao.paused

    def set_status(self, status: RmStatus | None) -> None:
        """Replaces the RM's state by another one; None: the view's remains."""
        snapshot = self._snapshot
        if status is not None and status.state != snapshot.state:
            snapshot.state, snapshot.state_since_ns, snapshot.description = status

    def message(self) -> bytes:
        """The finished message."""
        return self._snapshot.SerializeToString()

    def _runtime(self, dao: RuntimeDao) -> None:
        runtime, own = self._snapshot.runtime, self._own
        name = "gateway"
        for process in dao.processes:
            figures = asdict(process)
            if (figures.pop("host"), figures.pop("pid")) == (own.host, own.pid):
                name = f"gateway, {process.name}"  # everything runs in one process
                continue
            runtime.processes.add(**figures)
        runtime.processes.insert(
            0,
            pb.ProcessMetrics(
                name=name,
                cpu_seconds=own.cpu_seconds,
                memory_bytes=own.memory_bytes,
                garbage_collections=own.garbage_collections,
                uptime_seconds=own.uptime_seconds,
                streams_open=self._streams_open,
            ),
        )
        runtime.view_lag_records = dao.view_lag_records
        runtime.view_lag_seconds = dao.view_lag_seconds
