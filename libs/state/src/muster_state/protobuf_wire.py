"""Protobuf's wire format by hand, for messages that are written thousands of times in a second.

Filling a map field from a dict goes through Python's ``MutableMapping.update``, entry by entry. This module keeps
recently written bytes, because most values return: thousands of nodes have the same types and sizes. The output is
deterministic: fields by number, entries by key. Tests compare it with the stubs' output.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache

from google.protobuf.message import Message

NONE = b""
# Entries kept in each cache: some hundred bytes each.
KEPT = 1 << 14
# A longer text of a map is not kept (a label may have thousands of characters).
_SHORT = 128
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def varint(value: int) -> bytes:
    """An integer of up to 64 bits; a negative one takes ten bytes."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    if 0 < value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(message: type[Message], name: str) -> int:
    """The number of a message's field."""
    return message.DESCRIPTOR.fields_by_name[name].number


@cache
def tag(number: int) -> bytes:
    """The bytes before a field that is a text, a message or a map's entry."""
    return varint(number << 3 | 2)


@cache
def number_tag(number: int) -> bytes:
    """The bytes before a field that is a number, a bool or an enumeration."""
    return varint(number << 3)


def number_field(number: int, value: int) -> bytes:
    """An integer, a bool or an enumeration; 0 is omitted."""
    return number_tag(number) + varint(value) if value else NONE


def sized(value: bytes) -> bytes:
    """The bytes after their length."""
    return varint(len(value)) + value


def bytes_field(number: int, value: bytes) -> bytes:
    """A text or a message, even if empty."""
    return tag(number) + varint(len(value)) + value


def text_field(number: int, text: str) -> bytes:
    """A text of one object, such as an id; empty: omitted. It is not kept, because a lookup would take as long."""
    return bytes_field(number, text.encode()) if text else NONE


@lru_cache(maxsize=KEPT // 4)
def kept_number(number: int, value: int) -> bytes:
    """An integer that occurs often, like :func:`number_field`: changes of one moment share its time."""
    return number_field(number, value)


@lru_cache(maxsize=KEPT // 4)
def kept_text(number: int, text: str) -> bytes:
    """A text that many objects share, like :func:`text_field`."""
    return text_field(number, text)


def amounts_field(number: int, amounts: Mapping[str, int]) -> bytes:
    """A field of type ``map<string, int64>``. Raises ValueError for values beyond int64."""
    return _amounts(number, tuple(amounts.items())) if amounts else NONE


@lru_cache(maxsize=KEPT // 4)  # (one key may have a hundred types)
def _amounts(number: int, amounts: tuple[tuple[str, int], ...]) -> bytes:
    before = tag(number)
    return before + before.join([_amount(name, value) for name, value in sorted(amounts)])


@lru_cache(maxsize=KEPT)
def _amount(name: str, value: int) -> bytes:
    if not -1 << 63 <= value < 1 << 63:
        raise ValueError(f"{name}: {value}, expected an int64")
    return sized(bytes_field(1, name.encode()) + number_tag(2) + varint(value))


def texts_field(number: int, texts: Mapping[str, str]) -> bytes:
    """A field of type ``map<string, string>``."""
    if not texts:
        return NONE
    before = tag(number)
    entries = [
        _kept_text_entry(name, text) if len(text := texts[name]) <= _SHORT else _text_entry(name, text)
        for name in sorted(texts)
    ]
    return before + before.join(entries)


def _text_entry(name: str, text: str) -> bytes:
    return sized(bytes_field(1, name.encode()) + bytes_field(2, text.encode()))


_kept_text_entry = lru_cache(maxsize=KEPT)(_text_entry)
