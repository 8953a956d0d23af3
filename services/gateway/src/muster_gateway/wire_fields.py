"""Finds the fields of a serialised protobuf message without parsing them, some at a time.

Protobuf parses a message as a whole. A scanner finds the borders between its fields first, so that it can be counted
and parsed in parts. It agrees with protobuf (upb) on where a field begins and ends, and refuses what protobuf refuses
there: varints and lengths out of range, truncated fields, groups that do not match. What is inside of a
field (texts that are no UTF-8, nested messages) is judged by whoever parses the parts.

Source of the format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = 0, 1, 2, 3, 4, 5
# A field's number and its type of wire.
_TAG_BITS = 32
_TAG_BYTES_MAX = 5
_VARINT_BYTES_MAX = 10
_LENGTH_MAX = 2**31 - 1
_CONTINUES = 128
# As protobuf: messages and groups that may be inside of each other.
_DEPTH_MAX = 100

# Of a field: its tag (the number and the type of wire), and where it, its content and the next one begin.
Field = tuple[int, int, int, int]


class Malformed(ValueError):
    """The bytes are no message."""


class FieldScanner:
    """See the module's docstring.

    :param begin: of the message in ``raw``.
    :param end: after its last byte.
    """

    def __init__(self, raw: bytes, begin: int, end: int) -> None:
        self._raw = raw
        self._end = end
        self._position = begin
        self._outer = begin  # of the outermost group that is open
        self._groups: list[int] = []

    def is_done(self) -> bool:
        """Tells whether all fields were returned."""
        return self._position >= self._end and not self._groups

    def scan(self, most: int) -> list[Field]:  # noqa: PLR0912 (a case for each type of wire; a call in it is felt)
        """Returns the next fields. Looks at so many at most, those inside of groups included: fewer are returned then.

        Raises Malformed.
        """
        raw, end, position, groups = self._raw, self._end, self._position, self._groups
        fields: list[Field] = []
        if position >= end and groups:
            raise Malformed("a group does not end")
        while position < end and most > 0:
            most -= 1
            begin = position
            tag = raw[position]
            position += 1
            if tag >= _CONTINUES:
                tag, position = self._varint(begin, _TAG_BYTES_MAX)
                if tag >> _TAG_BITS:
                    raise Malformed("a field's number is out of range")
            wire = tag & 7
            body = position
            if wire == _BYTES:
                if position >= end:
                    raise Malformed("a length is missing")
                size = raw[position]
                position += 1
                if size >= _CONTINUES:
                    size, position = self._varint(body, _TAG_BYTES_MAX)
                    if size > _LENGTH_MAX:
                        raise Malformed("a length is out of range")
                body = position
                position += size
            elif wire == _VARINT:
                if position < end and raw[position] < _CONTINUES:
                    position += 1
                else:
                    _, position = self._varint(position, _VARINT_BYTES_MAX)
            elif wire == _FIXED64:
                position += 8
            elif wire == _FIXED32:
                position += 4
            elif wire == _GROUP:
                if not groups:
                    self._outer = begin
                if len(groups) >= _DEPTH_MAX:
                    raise Malformed("groups are too deep")
                groups.append(tag >> 3)
                continue
            elif wire == _END_GROUP:
                if not groups or groups.pop() != tag >> 3:
                    raise Malformed("a group ends that did not begin")
                begin = body = self._outer
            else:
                raise Malformed("a type of wire that does not exist")
            if position > end:
                raise Malformed("a field is truncated")
            if not groups:
                fields.append((tag, begin, body, position))
        self._position = position
        return fields

    def _varint(self, position: int, bytes_max: int) -> tuple[int, int]:
        """Returns the number at a position, and the position after it."""
        raw, end = self._raw, self._end
        value = shift = 0
        while position < end and bytes_max > 0:
            byte = raw[position]
            position += 1
            bytes_max -= 1
            value |= (byte & 127) << shift
            if byte < _CONTINUES:
                return value, position
            shift += 7
        raise Malformed("a number does not end")


def framed(tag: int, body: bytes) -> bytes:
    """Returns a field with this content. ``tag`` is that of a text, bytes or a message."""
    return varint(tag) + varint(len(body)) + body


def varint(value: int) -> bytes:
    """Returns a number of 0 or more in protobuf's form."""
    encoded = bytearray()
    while value >= _CONTINUES:
        encoded.append(value & 127 | _CONTINUES)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
