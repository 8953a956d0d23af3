"""muster.v1.Metrics in bytes: what is asked for, and the view's JSON as a MetricsSnapshot.

Admission is here too: a request that is refused never reaches the view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from muster_proto.muster.v1 import metrics_pb2 as pb
from muster_service.process import ProcessFigures

from muster_gateway.errors import InvalidRequest, ViewSilent, shown
from muster_gateway.settings import AdmissionLimits

INTERVAL_DEFAULT_MS, INTERVAL_MIN_MS = 1_000, 100
# As the view's own limit (docs/metrics.md): its answer stays a few megabytes.
NODES_MAX = 10_000

_SECTIONS = {
    pb.MetricsRequest.SCHEDULER: "scheduler",
    pb.MetricsRequest.QUEUES: "queues",
    pb.MetricsRequest.NODES: "nodes",
    pb.MetricsRequest.RUNTIME: "runtime",
}
# Queues or nodes that are encoded in one go: two milliseconds.
_PER_STEP = 200


@dataclass(frozen=True, slots=True)
class MetricsQuery:
    """What a snapshot shows; equal ones share it.

    :param sections: names; none: all. ``nodes_max`` 0: the view's default.
    """

    rm_id: str = ""
    sections: frozenset[str] = frozenset()
    partition: str = ""
    queue: str = ""
    nodes_max: int = 0

    def parameters(self) -> dict[str, str]:
        """For the view's query, beside the RM."""
        given = {
            "sections": ",".join(sorted(self.sections)),
            "partition": self.partition,
            "queue": self.queue,
            "nodes": str(self.nodes_max or ""),
        }
        return {name: value for name, value in given.items() if value}


def decode_request(raw: bytes, limits: AdmissionLimits) -> MetricsQuery:
    """A MetricsRequest. Raises InvalidRequest."""
    return _query(_parsed(pb.MetricsRequest(), raw), limits, "")


def decode_watch(raw: bytes, limits: AdmissionLimits) -> tuple[MetricsQuery, float]:
    """A WatchMetricsRequest: what, and its interval in seconds. Raises InvalidRequest."""
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
            raise InvalidRequest(f"{path}{name}: {shown(text)}, expected at most {limit} characters")
    for place, number in enumerate(request.sections):
        if number not in _SECTIONS:
            expected = ", ".join(name.upper() for name in _SECTIONS.values())
            raise InvalidRequest(f"{path}sections[{place}]: {number}, expected some of {expected}")
    if request.nodes_max > NODES_MAX:
        raise InvalidRequest(f"{path}nodes_max: {request.nodes_max}, expected at most {NODES_MAX}, or 0 for 1000")
    sections = frozenset(_SECTIONS[number] for number in request.sections)
    return MetricsQuery(request.rm_id, sections, request.partition, request.queue, request.nodes_max)


# ---- the view's answer -----------------------------------------------------------------------------------------------


class Encoder:
    """Makes one MetricsSnapshot of the view's JSON: first all of :meth:`steps`, with turns for others in between, then
    :meth:`message`.

    :param body: what /ws/v1/metrics/snapshot answered. Raises ViewSilent when it is something else.
    :param own: this process, added to the runtime's.
    """

    def __init__(self, body: bytes, own: ProcessFigures, streams_open: int) -> None:
        try:
            self._found: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ViewSilent("the view's answer is not what it should be: is it of another version?") from error
        self._own, self._streams_open = own, streams_open
        self._made = pb.MetricsSnapshot()

    def steps(self) -> Iterator[None]:
        """Fills the message."""
        found, made = self._found, self._made
        try:
            made.taken_ns, made.rm_id = found["takenNs"], found["rmId"]
            if "scheduler" in found:
                _scheduler(found["scheduler"], made.scheduler)
            yield
            for kind, items in (("queues", found.get("queues", ())), ("nodes", found.get("nodes", ()))):
                add = made.queues.add if kind == "queues" else made.nodes.add
                for number, item in enumerate(items, start=1):
                    add(**_snake(item))
                    if not number % _PER_STEP:
                        yield
            if "runtime" in found:
                self._runtime(found["runtime"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ViewSilent("the view's answer is not what it should be: is it of another version?") from error

    def message(self) -> bytes:
        """The finished message."""
        return self._made.SerializeToString()

    def _runtime(self, found: Mapping[str, Any]) -> None:
        runtime, own = self._made.runtime, self._own
        name = "gateway"
        for process in found["processes"]:
            if (process.pop("host"), process.pop("pid")) == (own.host, own.pid):
                name = f"gateway, {process['name']}"  # everything runs in one process
                continue
            runtime.processes.add(**_snake(process))
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
        runtime.view_lag_records = found["viewLagRecords"]
        runtime.view_lag_seconds = found["viewLagSeconds"]


def _scheduler(found: Mapping[str, Any], made: pb.SchedulerMetrics) -> None:
    rest = _snake(found)
    tally = _snake(rest.pop("tally"))
    made.MergeFrom(pb.SchedulerMetrics(tally=pb.Tally(**tally), **rest))


_NAMES = {
    field.json_name: field.name
    for message in (pb.SchedulerMetrics, pb.Tally, pb.QueueMetrics, pb.NodeMetrics, pb.ProcessMetrics)
    for field in message.DESCRIPTOR.fields
}


def _snake(item: Mapping[str, Any]) -> dict[str, Any]:
    """By the fields' own names. Raises KeyError for a name that no field has."""
    return {_NAMES[name]: value for name, value in item.items()}
