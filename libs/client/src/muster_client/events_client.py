"""A client of muster.v1.Events (proto/muster/v1/events.proto): one batch, or a watch. docs/events-grpc.md has examples.

A watch continues over lost connections and restarts of gateways and publishers: it gives each event once, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc
import grpc.aio
import structlog
from muster_proto.muster.v1 import events_pb2 as pb
from muster_proto.si.v1.si_pb2 import EventRecord

from muster_client.backoff import Backoff
from muster_client.chance import SYSTEM
from muster_client.clock import Clock, SystemClock
from muster_client.errors import AdminFailed
from muster_client.gateway_client import GatewayClient, refusal

log = structlog.get_logger(__name__)

DEFAULT_TIMEOUT_S = 30.0
_SERVICE = "/muster.v1.Events/"
_BACKOFF_MIN_MS, _BACKOFF_MAX_MS = 50, 2_000
# After a watch was open, these statuses are temporary, too: the old call may still hold its place, or a proxy may have
# gone.
_PASSING = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})

_ENUMS = {
    "types": EventRecord.Type,
    "change_types": EventRecord.ChangeType,
    "change_details": EventRecord.ChangeDetail,
}


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events. All set fields must match; within one field, one value is enough. Names as in EventRecord:
    ``APP``, ``ADD`` …

    :param application_id: events of the application, and those that refer to it, also NODE_ALLOC of its allocations.
    :param queue: a full path; includes the queues below it, and their applications.

    Raises ValueError for a name that EventRecord does not have.
    """

    types: tuple[str, ...] = ()
    change_types: tuple[str, ...] = ()
    change_details: tuple[str, ...] = ()
    object_ids: tuple[str, ...] = ()
    application_id: str = ""
    queue: str = ""

    def __post_init__(self) -> None:
        for name, enum_type in _ENUMS.items():
            for member in getattr(self, name):
                if member not in enum_type.keys():  # noqa: SIM118 - a wrapper of protobuf, no mapping
                    raise ValueError(f"{name}: {member!r}, expected some of {', '.join(enum_type.keys())}")


@dataclass(frozen=True, slots=True)
class Place:
    """The first event: at most one field is set. None: a batch begins at the oldest event left, a watch at the present.

    :param id: the event with this id.
    :param time_ns: the first event of this time or later, ns since the epoch.
    :param newest: this many events before the end.
    """

    id: int | None = None
    time_ns: int | None = None
    newest: int | None = None

    def __post_init__(self) -> None:
        names = [name for name in ("id", "time_ns", "newest") if getattr(self, name) is not None]
        if len(names) > 1:
            raise ValueError(f"{' and '.join(names)}: expected one of them")


@dataclass(frozen=True, slots=True)
class Event:
    """An event; ``id`` is None for an event of an ask, which has no place in the tracked order."""

    id: int | None
    record: EventRecord

    @property
    def names(self) -> tuple[str, str, str]:
        """Type, change type and change detail; a value of a newer interface is a number."""
        record = self.record
        return (
            _name(EventRecord.Type, record.type),
            _name(EventRecord.ChangeType, record.eventChangeType),
            _name(EventRecord.ChangeDetail, record.eventChangeDetail),
        )

    @property
    def resource(self) -> dict[str, int]:
        """The quantities by type of resource."""
        resources = self.record.resource.resources
        return {name: resources[name].value for name in sorted(resources)}

    def as_json(self) -> dict[str, Any]:
        """Returns a form for ``json.dumps``: REST's field names, enumerations by name, no empty fields."""
        record = self.record
        document: dict[str, Any] = {} if self.id is None else {"id": self.id}
        document |= dict(zip(("type", "eventChangeType", "eventChangeDetail"), self.names, strict=True))
        document["timestampNano"] = record.timestampNano
        texts = {"objectID": record.objectID, "referenceID": record.referenceID, "message": record.message}
        document |= {name: text for name, text in texts.items() if text}
        return document | ({"resource": self.resource} if self.resource else {})


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Some events.

    :param next_id: the next event to read; all events with lower ids were examined.
    :param end_id: id of the RM's next event; equal to ``next_id``: there are no more now.
    :param missing: first and last ids that no store has any more.
    :param source: of the oldest event: RING, LOG or HISTORY; "" in a watch.
    :param request_position: where request events continue; None: none has come.
    :param requests_dropped: number of request events that their full store has dropped since the call began.
    """

    rm_id: str
    instance: str
    events: tuple[Event, ...]
    next_id: int
    end_id: int
    missing: tuple[tuple[int, int], ...] = ()
    source: str = ""
    request_position: int | None = None
    requests_dropped: int = 0


@dataclass(slots=True)
class _ResumePosition:
    """The place where a watch continues."""

    place: Place
    instance: str
    request_position: int | None = None
    opened: bool = field(default=False)


class EventsClient(GatewayClient):
    """Asks one gateway (or a publisher), or several in turn.

    ::

        async with EventsClient("127.0.0.1:9090") as events:
            async for batch in events.watch("my-cluster", wanted=EventFilter(application_id="app-1")):
                for event in batch.events:
                    print(event.id, event.record)

    Parameters as of :class:`GatewayClient`.

    Every method raises AdminRefused if the call is refused (unknown RM, an id that does not exist yet, an instance that
    is gone), and AdminFailed if there is no answer.
    """

    async def batch(
        self,
        rm_id: str = "",
        *,
        place: Place | None = None,
        wanted: EventFilter | None = None,
        count: int = 0,
        instance: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> EventBatch:
        """Returns the next events, at most ``count``. Fewer events do not mean the end; compare ``next_id`` with
        ``end_id``.

        :param rm_id: "": the only one.
        :param count: 0: 1,000.
        :param instance: the instance of the ids; "": the present one.
        """
        call = self._channel.unary_unary(
            f"{_SERVICE}Batch",
            request_serializer=pb.EventBatchRequest.SerializeToString,
            response_deserializer=pb.EventBatch.FromString,
        )
        request = pb.EventBatchRequest(rm_id=rm_id, instance=instance, filter=_filter(wanted), count=count)
        _put_place(request, place)
        try:
            answer = await call(request, timeout=timeout_s, metadata=self._sent())
        except grpc.aio.AioRpcError as error:
            raise refusal(error) from error
        return EventBatch(
            answer.rm_id,
            answer.instance,
            tuple(Event(event.id, event.record) for event in answer.events),
            answer.next_id,
            answer.end_id,
            tuple((gap.first_id, gap.last_id) for gap in answer.missing),
            pb.EventBatch.Source.Name(answer.source),
        )

    async def watch(
        self,
        rm_id: str = "",
        *,
        place: Place | None = None,
        wanted: EventFilter | None = None,
        instance: str = "",
        request_events: bool = False,
        request_position: int | None = None,
        tracked_events: bool = True,
        resume: bool = True,
        clock: Clock | None = None,
        chance: Random = SYSTEM,
    ) -> AsyncGenerator[EventBatch, None]:
        """Yields events as they come, history first, until the caller leaves the loop. An empty batch shows the
        progress.

        :param request_events: also events of asks.
        :param request_position: that of the last batch that was taken, to continue.
        :param tracked_events: False: only events of asks.
        :param resume: True: continues over lost connections, after the watch was open; a batch counts as taken when the
            caller asks for the next one. False: raises AdminFailed.
        """
        at = _ResumePosition(place or Place(), instance, request_position)
        backoff = Backoff(_BACKOFF_MIN_MS, _BACKOFF_MAX_MS, clock or SystemClock(), chance=chance)
        while True:
            request = pb.WatchEventsRequest(
                rm_id=rm_id,
                instance=at.instance,
                filter=_filter(wanted),
                request_events=request_events,
                request_events_after=at.request_position,
                no_tracked_events=not tracked_events,
            )
            _put_place(request, at.place)
            stream = self._open(request)
            backoff.started()
            try:
                async for answer in stream:
                    yield _watched(answer)
                    _note(at, answer, tracked=tracked_events)
                    backoff.succeeded()
                raise AdminFailed(grpc.StatusCode.UNAVAILABLE, "the watch ended without a word")
            except grpc.aio.AioRpcError as error:
                failed = refusal(error)
                if not (resume and at.opened and (isinstance(failed, AdminFailed) or error.code() in _PASSING)):
                    raise failed from error
                log.info("watching events again", status=error.code().name, reason=error.details())
            except AdminFailed:
                if not (resume and at.opened):
                    raise
            finally:
                stream.cancel()
            await asyncio.sleep(backoff.failed())

    def _open(self, request: pb.WatchEventsRequest) -> Any:
        call = self._channel.unary_stream(
            f"{_SERVICE}Watch",
            request_serializer=pb.WatchEventsRequest.SerializeToString,
            response_deserializer=pb.WatchedEvents.FromString,
        )
        return call(request, metadata=self._sent())


def _note(at: _ResumePosition, answer: pb.WatchedEvents, *, tracked: bool) -> None:
    at.opened = True
    if answer.instance and tracked:
        at.place, at.instance = Place(id=answer.next_id), answer.instance
    if answer.HasField("request_position"):
        at.request_position = answer.request_position


def _watched(answer: pb.WatchedEvents) -> EventBatch:
    tracked = (Event(event.id, event.record) for event in answer.events)
    return EventBatch(
        answer.rm_id,
        answer.instance,
        (*tracked, *(Event(None, record) for record in answer.request_events)),
        answer.next_id,
        answer.end_id,
        tuple((gap.first_id, gap.last_id) for gap in answer.missing),
        request_position=answer.request_position if answer.HasField("request_position") else None,
        requests_dropped=answer.request_events_dropped,
    )


def _filter(event_filter: EventFilter | None) -> pb.EventFilter | None:
    if event_filter is None:
        return None
    return pb.EventFilter(
        types=_numbers("types", event_filter.types),  # type: ignore[arg-type]
        change_types=_numbers("change_types", event_filter.change_types),  # type: ignore[arg-type]
        change_details=_numbers("change_details", event_filter.change_details),  # type: ignore[arg-type]
        object_ids=event_filter.object_ids,
        application_id=event_filter.application_id,
        queue=event_filter.queue,
    )


def _name(names: Any, number: int) -> str:
    try:
        return str(names.Name(number))
    except ValueError:
        return str(number)


def _numbers(name: str, members: Iterable[str]) -> list[int]:
    return [_ENUMS[name].Value(member) for member in members]


def _put_place(request: Any, position: Place | None) -> None:
    if position is None:
        return
    for name in ("id", "time_ns", "newest"):
        value = getattr(position, name)
        if value is not None:
            # `from` is a keyword of Python.
            setattr(getattr(request, "from"), name, value)
