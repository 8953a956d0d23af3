"""docs/state-topic.md is true: every kind, every field; keys, order and tombstones as a scheduler writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.unknown_fields import UnknownFieldSet
from muster_bus.log import OutRecord
from muster_bus.topics import is_rm_state_key, parse_state_key, state_key
from muster_core.external.model import ExternalChange, ExternalKind, ExternalNode, SourceState
from muster_proto.muster.bus.v1 import envelope_pb2 as envelope
from muster_proto.muster.bus.v1 import state_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_si.constants import FOREIGN
from muster_state import state_codec
from muster_state.external_codec import SourceStateNote, encode
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import Rig

PAGE = Path(__file__).parents[2] / "docs" / "state-topic.md"
_SCALARS = {
    FieldDescriptor.TYPE_STRING: "string", FieldDescriptor.TYPE_BOOL: "bool", FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64", FieldDescriptor.TYPE_UINT32: "uint32", FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_DOUBLE: "double", FieldDescriptor.TYPE_BYTES: "bytes",
}  # fmt: skip


class Kind(NamedTuple):
    parts: int  # at least, with the partition
    message: str


@cache
def kinds() -> dict[str, Kind]:
    above = PAGE.read_text().split("\n## Fields")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| `(\w+)` \| [^|]+ \|$", above, re.MULTILINE)
    found = {name: Kind(len(parts.split("[")[0].split(",")), message) for name, parts, message in rows}
    assert len(found) == len(rows) > 0
    return found


@cache
def fields() -> dict[str, set[tuple[str, int, str]]]:
    """The page's tables of fields: message → (name, number, type)."""
    found: dict[str, set[tuple[str, int, str]]] = {}
    for section in PAGE.read_text().split("\n### ")[1:]:
        message, _, rest = section.partition("\n")
        rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ([^|]+) \| [^|]*\|$", rest, re.MULTILINE)
        found[message.strip()] = {(name, int(number), kind.strip()) for name, number, kind in rows}
    return found


def messages() -> Iterator[Descriptor]:
    def below(message: Descriptor) -> Iterator[Descriptor]:
        yield message
        for nested in message.nested_types:
            if not nested.GetOptions().map_entry:
                yield from below(nested)

    for message in pb.DESCRIPTOR.message_types_by_name.values():
        yield from below(message)


def _name(full: str) -> str:
    return full.removeprefix("muster.bus.v1.")


def _type(field: FieldDescriptor) -> str:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return f"map of {_type(message.fields_by_name['key'])} to {_type(message.fields_by_name['value'])}"
    named = message if message is not None else field.enum_type
    scalar = _SCALARS[field.type] if named is None else f"`{_name(named.full_name)}`"
    return f"{scalar} …" if field.is_repeated else scalar


# ---- the page and the sources ---------------------------------------------------------------------------------------


def test_the_page_has_every_kind_that_the_scheduler_knows() -> None:
    known = {value for name, value in vars(state_codec).items() if name.isupper() and isinstance(value, str)}
    assert set(kinds()) == known


def test_the_page_has_every_message_of_state_proto() -> None:
    assert set(fields()) == {_name(message.full_name) for message in messages()}


@pytest.mark.parametrize("message", [pytest.param(each, id=_name(each.full_name)) for each in messages()])
def test_the_page_has_every_field_with_its_number_and_type(message: Descriptor) -> None:
    assert fields()[_name(message.full_name)] == {(each.name, each.number, _type(each)) for each in message.fields}


def test_a_kinds_value_is_a_message_of_the_page() -> None:
    assert {kind.message for kind in kinds().values()} <= set(fields())


# ---- the page and what a scheduler writes ---------------------------------------------------------------------------

RM = "rm/with %2F signs"


class Written(NamedTuple):
    """What a scheduler wrote to the topic, a list for each transaction, and the rig that it ran in."""

    transactions: list[list[OutRecord]]
    rig: Rig

    @property
    def records(self) -> list[OutRecord]:
        return [record for records in self.transactions for record in records]


@pytest.fixture(scope="module")
def written() -> Written:
    """Of everything something, until the RM registers again."""
    rig = Rig()
    transactions: list[list[OutRecord]] = []

    def send(*bodies: object) -> None:
        transactions.append([record for record in rig.send(*bodies) if record.topic == rig.topics.state])

    shared = "- {name: c, properties: {application.sort.policy: fairshare}}"
    send(make.registration(make.CONFIG.replace("- {name: c}", shared)))
    send(make.node("n1", vcore=10, memory=100), make.node("n2", vcore=4))
    send(make.application("app/1", "root.c"), make.application("lost", "root.nowhere"))
    send(make.application("gang", "root.a", placeholderAsk=make.resource(vcore=2)))
    send(make.asks(*(make.allocation("app/1", f"k{number}", vcore=2) for number in range(3))))
    send(make.old_ask("app/1", "many#", 3, vcore=1))
    send(make.asks(make.allocation("app/1", "huge", vcore=50)))
    send(make.asks(make.allocation("", "daemon", "n2", tags={FOREIGN: "static"}, vcore=1)))
    send(make.release("app/1", "k0"))
    host = ExternalChange(ExternalKind.NODE, "host/1", ExternalNode("host/1", {"vcore": 8}, brings=False))
    send(encode(make.RM, "default", "vmm", "life-1", (host,), SourceStateNote(SourceState.LIVE)))
    send(make.release("app/1", "k1"), make.asks(make.allocation("app/1", "k3", vcore=1)), make.removal("gang"))
    send(make.node("n2", si.NodeInfo.DECOMISSION))
    send(make.registration())
    return Written(transactions, rig)


def test_every_kind_is_written_and_each_value_is_the_message_of_its_kind(written: Written) -> None:
    met = set()
    for record in written.records:
        assert record.key is not None
        rm_id, kind, parts = parse_state_key(record.key)
        assert rm_id == make.RM
        assert len(parts) >= kinds()[kind].parts, record.key
        if record.value is None:
            continue
        met.add(kind)
        value = getattr(pb, kinds()[kind].message).FromString(record.value)
        assert not len(UnknownFieldSet(value)), record.key
        if kind not in ("rm", "reg"):
            held = value.demand if kind in ("ask", "alloc") else value
            assert held.partition == parts[0]
        if kind in ("ask", "alloc"):
            assert value.demand.application_id == parts[1]
            ordinal = value.ordinal if kind == "alloc" else 0
            key = value.demand.allocation_key if kind == "ask" else value.demand.allocation_key.replace("#", "##")
            assert parts[2] == (f"{key}#{ordinal}" if ordinal else key)
    assert met == set(kinds()) - {"forgotten"}, "a kind has no record in this test"


def test_of_a_forgotten_rm_all_is_a_tombstone_but_its_numbers() -> None:
    rig = Rig()
    rig.send(make.registration())
    rig.send(make.node("n1", vcore=10, memory=100), make.application("app", "root.c"))
    rig.send(make.asks(make.allocation("app", "k", vcore=2)), make.life(envelope.RmLifecycle.STOPPED))
    there = set(rig.state)
    command = envelope.AdminCommand(forget=envelope.AdminCommand.Forget())
    records = [record for record in rig.send(command) if record.topic == rig.topics.state]
    assert [_kind(record) for record in records[:2]] == ["rm", "reg"]
    assert {record.key for record in records if record.value is None} == there
    kept = pb.ForgottenObject.FromString(records[-1].value or b"")
    assert (_kind(records[-1]), kept.rm_id, kept.registrations) == ("forgotten", make.RM, 1)
    again = [record for record in rig.send(make.registration()) if record.topic == rig.topics.state]
    assert [_kind(record) for record in again if record.value is None] == ["forgotten"]


def test_a_transaction_begins_with_the_rm_then_what_is_gone_then_what_is_there(written: Written) -> None:
    parents_first = ["source", "ext", "queue", "use", "node", "app", "rejected", "ask", "alloc", "why"]
    for records in written.transactions:
        found = [(_kind(record), record.value is None) for record in records]
        assert found[0] == ("rm", False)
        begins = [place for place, (kind, _) in enumerate(found) if kind == "rm"]
        for begin, end in pairwise([*begins, len(found)]):
            run = [each for each in found[begin + 1 : end] if each[0] != "reg"]
            assert [gone for _, gone in run] == sorted((gone for _, gone in run), reverse=True)
            alive = [parents_first.index(kind) for kind, gone in run if not gone]
            assert alive == sorted(alive)


def test_no_child_is_ever_without_its_parents(written: Written) -> None:
    there: dict[tuple[str, tuple[str, ...]], Any] = {}
    for record in written.records:
        _, kind, parts = parse_state_key(record.key or b"")
        if record.value is None:
            del there[kind, parts]  # a tombstone is of something
            for child, value in there.items():
                assert (kind, parts) not in parents(*child, value), f"{child} outlives its {kind} {parts}"
        else:
            there[kind, parts] = value = getattr(pb, kinds()[kind].message).FromString(record.value)
            for parent in parents(kind, parts, value):
                assert parent in there, f"{kind} {parts} comes before its {parent}"
    assert {kind for kind, _ in there} == {"rm", "reg", "queue", "source", "ext"}, "the rest after a new registration"


def parents(kind: str, parts: tuple[str, ...], value: Any) -> list[tuple[str, tuple[str, ...]]]:
    match kind:
        case "alloc":
            node = ("node", (parts[0], value.node_id))
            return [node] if value.foreign else [node, ("app", parts[:2])]
        case "ask":
            return [("app", parts[:2])]
        case "app":
            return [("queue", (parts[0], value.queue))]
        case "why" | "use":
            return [("queue", parts[:2])]
        case "ext":
            return [("source", parts[:2])]
        case "queue" if "." in parts[1]:
            return [("queue", (parts[0], parts[1].rpartition(".")[0]))]
    return []


def test_keeping_the_newest_value_of_each_key_gives_the_objects(written: Written) -> None:
    kept: dict[bytes, bytes] = {}
    for record in (record for records in written.transactions[:-1] for record in records):
        assert record.key is not None
        if record.value is None:
            del kept[record.key]
        else:
            kept[record.key] = record.value
    names = {parse_state_key(key)[1:] for key in kept}
    allocations = {parts[1:] for kind, parts in names if kind == "alloc"}
    assert allocations == {("app/1", "k2"), ("app/1", "k3"), *(("app/1", f"many##{n}") for n in ("", "#1", "#2"))}
    assert {parts for kind, parts in names if kind == "ask"} == {("default", "app/1", "huge")}
    assert {parts for kind, parts in names if kind == "node"} == {("default", "n1")}
    assert {parts for kind, parts in names if kind == "app"} == {("default", "app/1")}
    assert {parts for kind, parts in names if kind == "rejected"} == {("default", "lost")}


def test_a_registration_anew_goes_on_counting(written: Written) -> None:
    (own,) = [value for key, value in written.rig.state.items() if is_rm_state_key(key)]
    found = pb.RmObject.FromString(own)
    assert (found.registrations, found.state) == (2, envelope.RmLifecycle.RUNNING)
    assert found.next_event_id == len(written.rig.events)
    assert [_kind(record) for record in written.transactions[-1][:2]] == ["rm", "reg"]


def _kind(record: OutRecord) -> str:
    return parse_state_key(record.key or b"")[1]


def test_keys_are_encoded_as_the_page_says() -> None:
    key = state_key(RM, "alloc", "default", "a/b", "k%#1")
    assert key == b"rm%2Fwith %252F signs/alloc/default/a%2Fb/k%25#1"
    assert parse_state_key(key) == (RM, "alloc", ("default", "a/b", "k%#1"))
