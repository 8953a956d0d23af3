"""Converts between a callback stream's messages and plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from muster_proto.muster.bus.v1 import envelope_pb2
from muster_proto.muster.v1 import admin_pb2, callbacks_pb2
from muster_proto.si.v1 import si_pb2

from muster_gateway.codec import ConfigurationAnswer, encode_configuration_answer


@dataclass(frozen=True, slots=True)
class CallbackSubscription:
    """The questions and messages that an RM wants.

    :param events_after: send events with a higher id; None: only new ones.
    :param request_events_only: send only events of asks.
    :param request_events_after: send request events after this position.
    :param open_proposals: which proposals may be open at the same time: a number of ``OpenProposals``, from the hello.
    """

    predicates: bool
    preemption_predicates: bool
    scheduling_states: bool
    state_dump: bool
    events: bool
    events_after: int | None
    request_events_only: bool = False
    request_events_after: int | None = None
    open_proposals: int = 0


def decode_subscription(hello: callbacks_pb2.Hello) -> CallbackSubscription:
    """Reads the wishes from a hello."""
    return CallbackSubscription(
        hello.predicates,
        hello.preemption_predicates,
        hello.scheduling_states,
        hello.state_dump,
        hello.events or hello.request_events_only,
        hello.events_after if hello.HasField("events_after") else None,
        hello.request_events_only,
        hello.request_events_after if hello.HasField("request_events_after") else None,
        hello.open_proposals,
    )


def connected_note(wishes: CallbackSubscription, epoch: int) -> envelope_pb2.CallbackStream:
    """Returns the note to the scheduler that the stream has its seat."""
    return envelope_pb2.CallbackStream(
        connected=True,
        predicates=wishes.predicates,
        preemption_predicates=wishes.preemption_predicates,
        scheduling_states=wishes.scheduling_states,
        state_dump=wishes.state_dump,
        events=wishes.events,
        epoch=epoch,
        open_proposals=wishes.open_proposals,
    )


def disconnected_note(epoch: int) -> envelope_pb2.CallbackStream:
    """Returns the note to the scheduler that the stream is gone; ``epoch`` is that of the empty seat."""
    return envelope_pb2.CallbackStream(connected=False, epoch=epoch)


def encode_welcome(gateway_id: str) -> bytes:
    """Encodes the message that the stream is open."""
    welcome = callbacks_pb2.Welcome(gateway_id=gateway_id)
    return callbacks_pb2.ToResourceManager(welcome=welcome).SerializeToString()


def encode_result(number: str, answer: ConfigurationAnswer | None, error: str = "") -> bytes:
    """Encodes the outcome of a ConfigurationUpdate."""
    result = callbacks_pb2.ConfigurationResult(id=number, error=error)
    if answer is not None:
        encoded = encode_configuration_answer(answer)
        result.response.CopyFrom(admin_pb2.UpdateConfigurationResponse.FromString(encoded))
    return callbacks_pb2.ToResourceManager(configurations=[result]).SerializeToString()


def encode_events(events: Iterable[tuple[bytes, int | None]]) -> tuple[bytes | None, int]:
    """Encodes events in order, each with its id if it has one; None without events. Also returns the number of
    unreadable ones.
    """
    message = callbacks_pb2.ToResourceManager()
    unreadable = _add_events(message, events)
    return (message.SerializeToString() if message.events.events else None), unreadable


def encode_requests(
    events: Iterable[tuple[bytes, int | None]], position: int, dropped: int
) -> tuple[bytes | None, int]:
    """Encodes request events as :func:`encode_events` does.

    :param position: of the last one.
    :param dropped: number of events that the store has dropped unsent so far.
    """
    message = callbacks_pb2.ToResourceManager()
    message.events.request_position = position
    message.events.request_events_dropped = dropped
    unreadable = _add_events(message, events)
    return (message.SerializeToString() if message.events.events else None), unreadable


def _add_events(message: callbacks_pb2.ToResourceManager, events: Iterable[tuple[bytes, int | None]]) -> int:
    unreadable = 0
    for value, number in events:
        try:
            record = si_pb2.EventRecord.FromString(value)
        except DecodeError:
            unreadable += 1
        else:
            message.events.events.add(record=record, id=number)
    return unreadable
