"""The bytes of muster.v1.Events: reads and checks requests, and writes answers.

An answer is a sequence of parts, each a serialised message of the answer's type; protobuf merges adjacent ones. So each
event is encoded once for all callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from muster_proto.muster.v1 import events_pb2 as pb
from muster_proto.si.v1.si_pb2 import EventRecord

from muster_event_publisher.errors import BadRequest, quote
from muster_event_publisher.event_decoding import UNREADABLE_MESSAGE, decode
from muster_event_publisher.filters import EventFields, EventFilter

SERVICE = pb.DESCRIPTOR.services_by_name["Events"].full_name

# Found in the bytes of every event with the detail QUEUE_APP.
QUEUE_APP_MARK = EventRecord(eventChangeDetail=EventRecord.QUEUE_APP).SerializeToString()

COUNT_DEFAULT = 1_000
_ID_CHARACTERS_MAX, _QUEUE_CHARACTERS_MAX, _OBJECT_IDS_MAX = 1_024, 1_024, 100

_ENUMS: dict[str, dict[int, str]] = {
    "types": {number: name for name, number in EventRecord.Type.items() if number},
    "change_types": {number: name for name, number in EventRecord.ChangeType.items()},
    "change_details": {number: name for name, number in EventRecord.ChangeDetail.items()},
}


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where to begin: exactly one of them is set."""

    id: int | None = None
    time_ns: int | None = None
    newest: int | None = None


@dataclass(frozen=True, slots=True)
class EventQuery:
    """A request that may be answered.

    :param start: None: the method's default place.
    :param count: the most events of a batch; 0: not set.
    :param requests_after: position of the last request event that the caller took.
    """

    rm_id: str
    instance: str
    start: StartPosition | None
    event_filter: EventFilter
    count: int = 0
    tracked: bool = True
    requests: bool = False
    requests_after: int | None = None


def read_batch(raw: bytes) -> EventQuery:
    """An EventBatchRequest. Raises BadRequest."""
    request = _parsed(pb.EventBatchRequest(), raw)
    return EventQuery(request.rm_id, request.instance, _start_position(request), _filter(request), request.count)


def count_of(query: EventQuery, limit: int) -> int:
    """How many events a batch has at most. Raises BadRequest.

    :param limit: of the RM.
    """
    default = min(COUNT_DEFAULT, limit)
    if query.count > limit:
        raise BadRequest(f"count: {query.count}, expected at most {limit}, or 0 for {default}")
    return query.count or default


def read_watch(raw: bytes) -> EventQuery:
    """A WatchEventsRequest. Raises BadRequest."""
    request = _parsed(pb.WatchEventsRequest(), raw)
    after = request.request_events_after if request.HasField("request_events_after") else None
    if request.no_tracked_events and not request.request_events:
        raise BadRequest("no_tracked_events: true, expected with request_events only: nothing would be left")
    if after is not None and not request.request_events:
        raise BadRequest(f"request_events_after: {after}, expected with request_events only")
    return EventQuery(
        request.rm_id,
        request.instance,
        _start_position(request),
        _filter(request),
        tracked=not request.no_tracked_events,
        requests=request.request_events,
        requests_after=after,
    )


def _parsed(message: Any, raw: bytes) -> Any:
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise BadRequest(f"not a {message.DESCRIPTOR.full_name}: {len(raw)} bytes that do not decode") from error
    for name, limit in (("rm_id", _ID_CHARACTERS_MAX), ("instance", _ID_CHARACTERS_MAX)):
        _check_text(name, getattr(message, name), limit)
    return message


def _start_position(request: Any) -> StartPosition | None:
    if not request.HasField("from"):
        return None
    start = getattr(request, "from")
    kind = start.WhichOneof("place")
    if kind is None:
        raise BadRequest("from: empty, expected id, time_ns or newest")
    if kind == "time_ns" and start.time_ns < 0:
        raise BadRequest(f"from.time_ns: {start.time_ns}, expected nanoseconds since 1970")
    return StartPosition(**{kind: getattr(start, kind)})


def _filter(request: Any) -> EventFilter:
    message = request.filter
    numbers = {name: _numbers(name, getattr(message, name)) for name in _ENUMS}
    if len(message.object_ids) > _OBJECT_IDS_MAX:
        raise BadRequest(f"filter.object_ids: {len(message.object_ids)} of them, expected at most {_OBJECT_IDS_MAX}")
    for index, text in enumerate(message.object_ids):
        _check_text(f"filter.object_ids[{index}]", text, _ID_CHARACTERS_MAX)
        if not text:
            raise BadRequest(f"filter.object_ids[{index}]: empty, expected an object's id")
    _check_text("filter.application_id", message.application_id, _ID_CHARACTERS_MAX)
    _check_text("filter.queue", message.queue, _QUEUE_CHARACTERS_MAX)
    if message.queue and message.queue.split(".", 1)[0] != "root":
        raise BadRequest(f"filter.queue: {quote(message.queue)}, expected a full path, such as root.default")
    return EventFilter(
        numbers["types"],
        numbers["change_types"],
        numbers["change_details"],
        frozenset(message.object_ids),
        message.application_id,
        message.queue,
    )


def _numbers(name: str, numbers: Iterable[int]) -> frozenset[int]:
    names = _ENUMS[name]
    for index, number in enumerate(numbers):
        if number not in names:
            few = list(names.values())[:5]
            raise BadRequest(f"filter.{name}[{index}]: {number}, expected a number of {', '.join(few)} ...")
    return frozenset(numbers)


def _check_text(name: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise BadRequest(f"{name}: {quote(text)}, expected at most {limit} characters")


# ---- answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodedEvent:
    """An event as filters and answers need it.

    :param encoded: a part of an EventBatch, whose bytes are also a part of a WatchedEvents.
    """

    fields: EventFields
    encoded: bytes


def decoded(event_id: int, value: bytes) -> DecodedEvent:
    """The event; a stand-in with a message if the bytes do not decode."""
    record = decode(value)
    # (EventBatch and WatchedEvents have `events` under the same number.)
    part = pb.WatchedEvents(events=[pb.WatchedEvent(id=event_id, record=record)]).SerializeToString()
    return DecodedEvent(event_fields(record), part)


def event_fields(record: EventRecord) -> EventFields:
    """The fields for the filters."""
    return EventFields(
        record.type,
        record.eventChangeType,
        record.eventChangeDetail,
        record.objectID,
        record.referenceID,
        record.timestampNano,
    )


def request_event(value: bytes) -> DecodedEvent | None:
    """A request event as a part of a WatchedEvents; None when the bytes do not decode."""
    record = decode(value)
    if record.message == UNREADABLE_MESSAGE and not record.type:
        return None
    return DecodedEvent(event_fields(record), pb.WatchedEvents(request_events=[record]).SerializeToString())


def encode_batch(
    rm_id: str,
    instance: str,
    parts: Sequence[bytes],
    next_id: int,
    end_id: int,
    missing: Sequence[tuple[int, int]],
    source: str,
) -> bytes:
    """An EventBatch. ``source``: ring, log or history."""
    head = pb.EventBatch(
        rm_id=rm_id,
        instance=instance,
        next_id=next_id,
        end_id=end_id,
        missing=_missing(missing),
        source=pb.EventBatch.Source.Value(source.upper()),
    )
    return b"".join((head.SerializeToString(), *parts))


def encode_watched(
    rm_id: str,
    instance: str,
    parts: Sequence[bytes],
    next_id: int,
    end_id: int,
    missing: Sequence[tuple[int, int]] = (),
    request_position: int | None = None,
    requests_dropped: int = 0,
) -> bytes:
    """A WatchedEvents."""
    head = pb.WatchedEvents(
        rm_id=rm_id,
        instance=instance,
        next_id=next_id,
        end_id=end_id,
        missing=_missing(missing),
        request_position=request_position,
        request_events_dropped=requests_dropped,
    )
    return b"".join((head.SerializeToString(), *parts))


def _missing(ranges: Sequence[tuple[int, int]]) -> list[pb.MissingEvents]:
    return [pb.MissingEvents(first_id=first, last_id=last) for first, last in ranges]
