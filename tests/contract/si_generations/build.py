"""From a generation's tables to protobuf descriptors, and messages with a distinct value in every field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_F = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _F.TYPE_STRING, "int32": _F.TYPE_INT32, "int64": _F.TYPE_INT64, "bool": _F.TYPE_BOOL}

Fields = dict[int, tuple[str, str]]


@dataclass(frozen=True)
class Generation:
    """Tables of one generation; see the README.md here for how a type is written."""

    name: str
    messages: dict[str, Fields]
    enums: dict[str, dict[int, str]]
    reserved: dict[str, dict[int, str]] = field(default_factory=dict)
    reserved_values: dict[str, dict[int, str]] = field(default_factory=dict)

    def classes(self) -> dict[str, type[Message]]:
        """Message classes of a pool of its own: a peer that knows nothing but this generation."""
        pool = descriptor_pool.DescriptorPool()
        pool.Add(self.file())
        return {
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"si.v1.{name}")) for name in self.messages
        }

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        """The generation as a .proto file's descriptor."""
        file = descriptor_pb2.FileDescriptorProto(name=f"{self.name}.proto", package="si.v1", syntax="proto3")
        for name, fields in self.messages.items():
            message = file.message_type.add(name=name)
            for number, (field_name, type_name) in fields.items():
                self._add_field(message, number, field_name, type_name)
            for number, reserved in self.reserved.get(name, {}).items():
                message.reserved_range.add(start=number, end=number + 1)
                message.reserved_name.append(reserved)
        for name, values in self.enums.items():
            owner, _, short = name.rpartition(".")
            place = next(m for m in file.message_type if m.name == owner) if owner else file
            enum = place.enum_type.add(name=short)
            for number, value in values.items():
                enum.value.add(name=value, number=number)
            for number, value in self.reserved_values.get(name, {}).items():
                enum.reserved_range.add(start=number, end=number)
                enum.reserved_name.append(value)
        return file

    def _add_field(self, message: descriptor_pb2.DescriptorProto, number: int, name: str, type_name: str) -> None:
        label = _F.LABEL_OPTIONAL
        if type_name.startswith("["):
            label, type_name = _F.LABEL_REPEATED, type_name[1:-1]
        elif type_name.startswith("{"):
            entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
            entry.options.map_entry = True
            self._add_field(entry, 1, "key", "string")
            self._add_field(entry, 2, "value", type_name[1:-1])
            label, type_name = _F.LABEL_REPEATED, f"{message.name}.{entry.name}"
        added = message.field.add(name=name, number=number, label=label)
        if type_name in _SCALARS:
            added.type = _SCALARS[type_name]
            return
        added.type = _F.TYPE_ENUM if type_name in self.enums else _F.TYPE_MESSAGE
        added.type_name = f".si.v1.{type_name}"


def filled(kind: type[Message]) -> Message:
    """A message with a value in every field, recursively; no two strings or integers are alike."""
    return _fill(kind(), count(1))


def _fill(message: Message, numbers: Iterator[int]) -> Message:
    for one in message.DESCRIPTOR.fields:
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, one.name), one.message_type.fields_by_name["value"], numbers)
        elif one.is_repeated:
            values = getattr(message, one.name)
            for _ in range(2):
                if one.message_type is not None:
                    _fill(values.add(), numbers)
                else:
                    values.append(_scalar(one, numbers))
        elif one.message_type is not None:
            getattr(message, one.name).SetInParent()
            _fill(getattr(message, one.name), numbers)
        else:
            setattr(message, one.name, _scalar(one, numbers))
    return message


def _fill_map(values: Any, value: FieldDescriptor, numbers: Iterator[int]) -> None:
    for _ in range(2):
        key = f"key-{next(numbers)}"
        if value.message_type is not None:
            _fill(values[key], numbers)
        else:
            values[key] = _scalar(value, numbers)


def _scalar(one: FieldDescriptor, numbers: Iterator[int]) -> Any:
    number = next(numbers)
    if one.enum_type is not None:
        values = [value.number for value in one.enum_type.values if value.number]
        return values[number % len(values)]
    if one.type == _F.TYPE_STRING:
        return f"text-{number}"
    if one.type == _F.TYPE_BOOL:
        return True
    return number * (2**40 + 1 if one.type == _F.TYPE_INT64 else 2**20 + 1)
