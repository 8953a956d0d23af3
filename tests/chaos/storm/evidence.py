"""What the auditor looks at: what the RMs heard, and what stands on the topics, in PostgreSQL and in the view."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from event_books import Shown
from muster_bus.log import Record
from muster_bus.topics import HEADER_EVENT_ID, HEADER_RM_ID, HEADER_TRACKING, parse_state_key
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2
from muster_proto.si.v1 import si_pb2 as si


@dataclass(frozen=True, slots=True)
class Heard:
    """One item of a message to an RM.

    :param at_s: from the begin of the run.
    :param what: new, released, rejected; accepted, refused, state (of an application).
    :param more: the node; the termination's type; the reason; the state.
    """

    at_s: float
    what: str
    key: str
    app: str
    more: str = ""


@dataclass(slots=True)
class Asked:
    """An ask, when it was sent, and whether the RM asked to end it later."""

    key: str
    app: str
    at_s: float
    is_placeholder: bool = False
    released: bool = False
    dropped: bool = False  # the RM registered again without it


@dataclass(frozen=True, slots=True)
class Event:
    """A tracked event of one RM, with its place on the topic."""

    id: int
    offset: int
    instance: str
    record: si.EventRecord


# As they stand in PostgreSQL: type, change, detail, object, reference, message, time.
Row = tuple[int, int, int, str, str, str, int]


@dataclass(slots=True)
class Evidence:
    """All that concerns one RM.

    :param removed: applications that the RM removed.
    :param nodes: cores of the RM's nodes, as it reported them last.
    :param drained: those that it drains.
    :param vms: host by VM of its external source, as the source has them last; None: it has no source.
    :param config: the configuration in force; None: not known.
    :param is_asked: it answers predicates: nothing is placed where it does not allow that.
    :param events: in the topic's order.
    :param responses: in the topic's order.
    :param state: the newest value of each key.
    :param history: rows by event id, in any order; the same id may be there twice.
    :param shown: the view's figures; None: not looked at.
    :param shown_pending: (application, key) of the asks that the view shows as pending.
    :param dead_letters: errors of the records that could not be read, in the RM's partition.
    """

    rm_id: str
    heard: list[Heard] = field(default_factory=list)
    asked: dict[str, Asked] = field(default_factory=dict)
    running: dict[str, tuple[str, str]] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    nodes: dict[str, int] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    vms: dict[str, str] | None = None
    config: str | None = None
    is_asked: bool = False
    events: list[Event] = field(default_factory=list)
    responses: list[envelope_pb2.ResponseEnvelope] = field(default_factory=list)
    state: dict[bytes, bytes] = field(default_factory=dict)
    history: list[tuple[int, Row]] = field(default_factory=list)
    shown: Shown | None = None
    shown_pending: set[tuple[str, str]] | None = None
    dead_letters: list[str] = field(default_factory=list)

    # ---- from the topics -------------------------------------------------------------------------------------------

    def take_events(self, records: Iterable[Record]) -> None:
        for record in records:
            headers = dict(record.headers)
            if headers.get(HEADER_RM_ID) == self.rm_id.encode() and headers.get(HEADER_TRACKING) != b"0":
                event = si.EventRecord.FromString(record.value or b"")
                instance = headers.get("instance", b"").decode()
                self.events.append(Event(int(headers[HEADER_EVENT_ID]), record.offset, instance, event))

    def take_responses(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.key == self.rm_id.encode():
                self.responses.append(envelope_pb2.ResponseEnvelope.FromString(record.value or b""))

    def take_state(self, records: Iterable[Record]) -> None:
        for record in records:
            assert record.key is not None
            if parse_state_key(record.key)[0] != self.rm_id:
                continue
            if record.value is None:
                self.state.pop(record.key, None)
            else:
                self.state[record.key] = record.value

    # ---- objects of the state --------------------------------------------------------------------------------------

    def nodes_in_state(self) -> dict[str, state_pb2.NodeObject]:
        return {parts[-1]: state_pb2.NodeObject.FromString(value) for parts, value in self._of("node")}

    def applications_in_state(self) -> dict[str, state_pb2.ApplicationObject]:
        return {parts[-1]: state_pb2.ApplicationObject.FromString(value) for parts, value in self._of("app")}

    def asks_in_state(self) -> dict[tuple[str, str], state_pb2.AskObject]:
        found = (state_pb2.AskObject.FromString(value) for _, value in self._of("ask"))
        return {(each.demand.application_id, each.demand.allocation_key): each for each in found}

    def allocations_in_state(self) -> list[state_pb2.AllocationObject]:
        return [state_pb2.AllocationObject.FromString(value) for _, value in self._of("alloc")]

    def configuration_in_state(self) -> str:
        return "".join(state_pb2.RegistrationObject.FromString(value).config for _, value in self._of("reg"))

    def _of(self, wanted: str) -> Iterable[tuple[tuple[str, ...], bytes]]:
        for key, value in self.state.items():
            _, kind, parts = parse_state_key(key)
            if kind == wanted:
                yield parts, value


def row_of(record: si.EventRecord) -> Row:
    """An event as PostgreSQL has it."""
    return (
        record.type,
        record.eventChangeType,
        record.eventChangeDetail,
        record.objectID,
        record.referenceID,
        record.message,
        record.timestampNano,
    )


def write_topic(file: Path, records: Iterable[Record]) -> None:
    """Writes records as JSON lines: offset, key, headers, value (base64)."""
    with file.open("w") as out:
        for record in records:
            line: Mapping[str, object] = {
                "offset": record.offset,
                "ms": record.timestamp_ms,
                "key": (record.key or b"").decode(errors="replace"),
                "headers": {name: value.decode(errors="replace") for name, value in record.headers},
                "value": None if record.value is None else base64.b64encode(record.value).decode(),
            }
            out.write(json.dumps(line) + "\n")


def write_heard(file: Path, evidence: Evidence) -> None:
    """Writes what an RM asked for and heard, as JSON lines."""
    with file.open("w") as out:
        for asked in evidence.asked.values():
            out.write(json.dumps({"asked": asdict(asked)}) + "\n")
        for heard in evidence.heard:
            out.write(json.dumps(asdict(heard)) + "\n")
