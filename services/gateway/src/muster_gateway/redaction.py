"""Makes messages safe to print: masks the fields marked with ``si_secret`` (extension 1059).

Code that prints a message (a log line, a dead letter, an error) must use this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from muster_proto.si.v1 import si_pb2

MASK = "***"


def redacted(message: Message) -> Message:
    """Returns a copy without secrets: text and bytes become ``***``, other secret values their type's default."""
    copy = type(message)()
    copy.CopyFrom(message)
    if _holds_secrets(message.DESCRIPTOR):
        _mask(copy)
    return copy


def printable(message: Message, limit_chars: int = 2_000) -> str:
    """Returns one line of text without secrets, cut to ``limit_chars``."""
    text = text_format.MessageToString(redacted(message), as_one_line=True)
    return text if len(text) <= limit_chars else f"{text[:limit_chars]}… ({len(text)} characters)"


def _mask(message: Message) -> None:
    for field, value in message.ListFields():
        if _is_secret(field):
            _mask_field(message, field)
        elif field.message_type is not None and _holds_secrets(field.message_type):
            for inner in _inner_messages(field.message_type, value, repeated=field.is_repeated):
                _mask(inner)


def _mask_field(message: Message, field: FieldDescriptor) -> None:
    if field.is_repeated or field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        message.ClearField(field.name)
        return
    setattr(message, field.name, MASK.encode() if field.type == FieldDescriptor.TYPE_BYTES else MASK)


def _inner_messages(message_type: Descriptor, value: Any, *, repeated: bool) -> Iterable[Message]:
    if not repeated:
        return [value]
    if message_type.GetOptions().map_entry:
        values: Iterable[Message] = value.values()
        return values if message_type.fields_by_name["value"].message_type is not None else ()
    elements: Iterable[Message] = value
    return elements


def _is_secret(field: FieldDescriptor) -> bool:
    return bool(field.GetOptions().Extensions[si_pb2.si_secret])


@lru_cache(maxsize=512)
def _holds_secrets(descriptor: Descriptor) -> bool:
    """Tells whether a message or its inner messages hold a secret. Remembers seen types, because messages may contain
    themselves.
    """
    seen: set[str] = set()
    todo = [descriptor]
    while todo:
        current = todo.pop()
        if current.full_name in seen:
            continue
        seen.add(current.full_name)
        for field in current.fields:
            if _is_secret(field):
                return True
            if field.message_type is not None:
                todo.append(field.message_type)
    return False
