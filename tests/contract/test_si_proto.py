"""The superset in proto/si/v1/si.proto reads and writes both generations of the interface, field by field.

A peer of each generation is made of that generation's own tables (si_generations/), so nothing here is proven with the
superset's own idea of a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from contract.si_generations.build import Generation, filled
from contract.si_generations.current import CURRENT, SERVICE, SI_SECRET
from contract.si_generations.previous import PREVIOUS
from google.protobuf import descriptor_pb2, unknown_fields
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from muster_proto.si.v1 import si_pb2 as si

GENERATIONS = (PREVIOUS, CURRENT)
EVERY_MESSAGE = [pytest.param(g, name, id=f"{g.name}-{name}") for g in GENERATIONS for name in g.messages]
EVERY_ENUM = [pytest.param(g, name, id=f"{g.name}-{name}") for g in GENERATIONS for name in g.enums]

# The one field that the generations call differently; on the wire it is the same.
RENAMED = {("previous", "UpdateContainerSchedulingStateRequest", "applicartionID"): "applicationID"}
# Muster's own fields, from here up, which a peer of either generation skips.
OWN_FIELDS_FROM = 50_001
# Values that are in neither seed (in the interface since 2026).
NEWER_VALUES = {"TerminationType": {5}, "EventRecord.ChangeDetail": {407}}


def superset(name: str) -> type[Message]:
    made: type[Message] = getattr(si, name)
    return made


def superset_enum(name: str) -> EnumDescriptor:
    owner, _, short = name.rpartition(".")
    if not owner:
        return si.DESCRIPTOR.enum_types_by_name[short]
    return superset(owner).DESCRIPTOR.enum_types_by_name[short]


def leaves(
    message: Message, path: tuple[Any, ...] = (), *, numbers: bool = False
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value with its path: field names, places in lists, keys of maps. Enum values as names, or as numbers."""
    for one, value in message.ListFields():
        here = (*path, one.name)
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            items: Any = ((("key", key), value[key]) for key in value)
        elif one.is_repeated:
            items = enumerate(value)
        else:
            items = (((), value),)
        for place, item in items:
            at = (*here, place) if place != () else here
            if isinstance(item, Message):
                yield at, "(message)"
                yield from leaves(item, at, numbers=numbers)
            elif one.enum_type is not None and not numbers:
                yield at, one.enum_type.values_by_number[item].name
            else:
                yield at, item


def renamed(generation: Generation, message: str, values: dict[Any, Any]) -> dict[Any, Any]:
    """The generation's values under the superset's names."""
    names = {old: new for (g, m, old), new in RENAMED.items() if (g, m) == (generation.name, message)}
    return {tuple(names.get(part, part) for part in path): value for path, value in values.items()}


def unknown_in(message: Message) -> list[int]:
    """Numbers of unknown fields, in the message and everything in it."""
    found = [one.field_number for one in unknown_fields.UnknownFieldSet(message)]
    for one, value in message.ListFields():
        if one.message_type is None:
            continue
        if one.message_type.GetOptions().map_entry:
            items = [value[key] for key in value if isinstance(value[key], Message)]
        else:
            items = list(value) if one.is_repeated else [value]
        for item in items:
            found += unknown_in(item)
    return found


def kind_of(one: FieldDescriptor) -> tuple[Any, ...]:
    """What the wire makes of a field: type, repetition, and the name of the message or enum."""
    if one.message_type is not None:
        if one.message_type.GetOptions().map_entry:
            return ("map", kind_of(one.message_type.fields_by_name["value"]))
        return (one.type, one.is_repeated, one.message_type.full_name)
    return (one.type, one.is_repeated, one.enum_type.full_name if one.enum_type is not None else "")


@pytest.mark.parametrize(("generation", "name"), EVERY_MESSAGE)
def test_a_peers_message_is_read_completely_by_the_same_names(generation: Generation, name: str) -> None:
    sent = filled(generation.classes()[name])
    received = superset(name).FromString(sent.SerializeToString())
    assert unknown_in(received) == []
    assert dict(leaves(received)) == renamed(generation, name, dict(leaves(sent)))


@pytest.mark.parametrize(("generation", "name"), EVERY_MESSAGE)
def test_and_written_back_it_is_what_the_peer_wrote(generation: Generation, name: str) -> None:
    peer = generation.classes()[name]
    sent = filled(peer)
    returned = peer.FromString(superset(name).FromString(sent.SerializeToString()).SerializeToString())
    assert returned == sent
    assert unknown_in(returned) == []


@pytest.mark.parametrize(("generation", "name"), EVERY_MESSAGE)
def test_a_peer_reads_its_own_fields_of_a_full_message_and_skips_the_rest(generation: Generation, name: str) -> None:
    sent = filled(superset(name))
    received = generation.classes()[name].FromString(sent.SerializeToString())
    known = renamed(generation, name, dict(leaves(received, numbers=True)))  # newer enum values keep their number
    everything = dict(leaves(sent, numbers=True))
    for path, value in known.items():
        assert everything[path] == value
    expected = {path for path in everything if not_newer(generation, name, path)}
    assert set(known) == expected


def not_newer(generation: Generation, name: str, path: tuple[Any, ...]) -> bool:
    """Whether the generation has the field at this path of the superset."""
    fields = generation.messages[name]
    back = {new: old for (g, m, old), new in RENAMED.items() if (g, m) == (generation.name, name)}
    for part in path:
        if not isinstance(part, str):
            continue
        types = dict(fields.values())
        part = back.get(part, part)
        if part not in types:
            return False
        fields = generation.messages.get(types[part].strip("[]{}"), {})
    return True


@pytest.mark.parametrize(("generation", "name"), EVERY_MESSAGE)
def test_every_number_means_the_same(generation: Generation, name: str) -> None:
    peer, ours = generation.classes()[name].DESCRIPTOR, superset(name).DESCRIPTOR
    for one in peer.fields:
        mine = ours.fields_by_number[one.number]
        assert mine.name == RENAMED.get((generation.name, name, one.name), one.name)
        assert kind_of(mine) == kind_of(one)


def all_messages(descriptors: Any) -> Iterator[Descriptor]:
    for one in descriptors:
        if not one.GetOptions().map_entry:
            yield one
            yield from all_messages(one.nested_types)


def test_the_superset_has_nothing_that_is_in_neither_generation() -> None:
    assert {one.name for one in all_messages(si.DESCRIPTOR.message_types_by_name.values())} == {
        *PREVIOUS.messages,
        *CURRENT.messages,
    }
    for name in {*PREVIOUS.messages, *CURRENT.messages}:
        known = {*PREVIOUS.messages.get(name, {}), *CURRENT.messages.get(name, {})}
        ours = {one.number for one in superset(name).DESCRIPTOR.fields if one.number < OWN_FIELDS_FROM}
        assert ours == known, name


def test_musters_own_fields_are_the_responses_numbers_and_positions_only() -> None:
    own = {
        (message.name, one.name, one.number)
        for message in all_messages(si.DESCRIPTOR.message_types_by_name.values())
        for one in message.fields
        if one.number >= OWN_FIELDS_FROM
    }
    assert own == {
        (name, *field)
        for name in ("AllocationResponse", "ApplicationResponse", "NodeResponse")
        for field in (("responseSequence", 50_001), ("position", 50_002))
    }


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda g: g.name)
@pytest.mark.parametrize("name", ["AllocationResponse", "ApplicationResponse", "NodeResponse"])
def test_peers_skip_the_response_number_and_read_the_rest(generation: Generation, name: str) -> None:
    peer = generation.classes()[name]
    sent = filled(peer)
    response = superset(name).FromString(sent.SerializeToString())
    response.responseSequence = 2**63 + 5  # type: ignore[attr-defined]
    received = peer.FromString(response.SerializeToString())
    assert unknown_in(received) == [50_001]
    assert dict(leaves(received)) == dict(leaves(sent))


@pytest.mark.parametrize(("generation", "name"), EVERY_ENUM)
def test_every_enum_value_has_the_same_name(generation: Generation, name: str) -> None:
    ours = {value.number: value.name for value in superset_enum(name).values}
    assert generation.enums[name].items() <= ours.items()


@pytest.mark.parametrize("name", sorted({*PREVIOUS.enums, *CURRENT.enums}))
def test_enum_values_of_neither_generation_are_the_newer_ones(name: str) -> None:
    known = {**PREVIOUS.enums[name], **CURRENT.enums[name]}
    ours = {value.number for value in superset_enum(name).values}
    assert ours - known.keys() == NEWER_VALUES.get(name, set())


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda g: g.name)
def test_a_reserved_number_is_free_or_the_other_generations_field(generation: Generation) -> None:
    other = PREVIOUS if generation is CURRENT else CURRENT
    for message, numbers in generation.reserved.items():
        ours = superset(message).DESCRIPTOR
        for number, name in numbers.items():
            if number in other.messages[message]:
                assert ours.fields_by_number[number].name == name == other.messages[message][number][0]
            else:
                assert number not in ours.fields_by_number, (message, number)
                assert name not in ours.fields_by_name, (message, name)
    for enum, values in generation.reserved_values.items():
        ours_values = {value.number: value.name for value in superset_enum(enum).values}
        for number, name in values.items():
            assert ours_values[number] == name == other.enums[enum][number]


def test_numbers_that_both_reserve_stay_reserved_in_the_superset() -> None:
    proto = descriptor_pb2.FileDescriptorProto()
    si.DESCRIPTOR.CopyToProto(proto)
    for message in proto.message_type:
        reserved = {n for span in message.reserved_range for n in range(span.start, span.end)}
        used = {one.number for one in message.field}
        wanted = {
            number
            for generation in GENERATIONS
            for number in generation.reserved.get(message.name, {})
            if number not in used
        }
        assert reserved == wanted, message.name


def test_the_secret_option_is_number_1059_of_field_options() -> None:
    option = si.DESCRIPTOR.extensions_by_name["si_secret"]
    assert option.number == SI_SECRET
    assert option.containing_type.full_name == "google.protobuf.FieldOptions"
    assert option.type == FieldDescriptor.TYPE_BOOL


def test_no_field_is_marked_as_secret() -> None:
    """(If one ever is, docs/si-coverage.md has to say what masks it.)"""
    open_messages, marked = list(si.DESCRIPTOR.message_types_by_name.values()), []
    while open_messages:
        message = open_messages.pop()
        open_messages += message.nested_types
        marked += [each.full_name for each in message.fields if each.GetOptions().Extensions[si.si_secret]]
    assert not marked


def test_package_and_service_are_those_of_both_generations() -> None:
    assert si.DESCRIPTOR.package == "si.v1"
    proto = descriptor_pb2.FileDescriptorProto()
    si.DESCRIPTOR.CopyToProto(proto)
    assert [service.name for service in proto.service] == ["Scheduler"]
    methods = {
        method.name: (
            method.input_type.removeprefix(".si.v1."),
            method.output_type.removeprefix(".si.v1."),
            (method.client_streaming, method.server_streaming),
        )
        for method in proto.service[0].method
    }
    assert methods == SERVICE


def test_the_tables_agree_with_each_other_where_both_use_a_number() -> None:
    """A guard for this test's own data: the generations never mean two things by one number."""
    for name in PREVIOUS.messages.keys() & CURRENT.messages.keys():
        before, now = PREVIOUS.messages[name], CURRENT.messages[name]
        for number in before.keys() & now.keys():
            if ("previous", name, before[number][0]) in RENAMED:
                continue
            assert before[number] == now[number], (name, number)
