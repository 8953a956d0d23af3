"""Cuts a message into parts for the log, between its items. Most items stay as received."""

from __future__ import annotations

from muster_gateway.wire_fields import framed, varint

# Upper bound of the framing of the nested message that has items.
_NESTED_BYTES = 6


class RecordParts:
    """The parts of one message, of at most so many bytes and items. A larger item is a part of its own.

    Items are added in the order in which the scheduler takes them. A part is written in the order of its fields' tags,
    as protobuf does.

    :param raw: the message.
    :param name_tag: of the field with the RM's id.
    """

    def __init__(self, raw: bytes, name_tag: int, rm_id: str, max_bytes: int, max_items: int) -> None:
        self._raw, self._name_tag, self._max_bytes = raw, name_tag, max_bytes
        self._name = framed(name_tag, rm_id.encode()) if rm_id else b""
        self._empty_bytes = len(self._name) + _NESTED_BYTES
        self._least_bytes = (max_bytes - self._empty_bytes) // max_items  # so many items of this size fit into a part
        self._size = self._empty_bytes
        self._records: list[bytes] = []
        # Of the part that is being filled: fields by the tag that they are, or are nested in; ranges of the message.
        self._fields: dict[int, list[bytes]] = {}
        self._nested: set[int] = set()
        self._tag, self._begin, self._end = 0, 0, 0

    def add(self, tag: int, parent: int, begin: int, end: int) -> None:
        """Adds an item as received.

        :param parent: tag of the nested message that has it; 0: none.
        :param begin: of its field in the message.
        """
        self._reserve(end - begin)
        at = parent or tag
        if begin != self._end or at != self._tag:
            self._close_range()
            self._tag, self._begin = at, begin
            if parent:
                self._nested.add(parent)
        self._end = end

    def add_item(self, tag: int, parent: int, item: bytes) -> None:
        """Adds an item that was written anew."""
        piece = framed(tag, item)
        self._reserve(len(piece))
        self._close_range()
        self._fields.setdefault(parent or tag, []).append(piece)
        if parent:
            self._nested.add(parent)

    def all(self) -> list[bytes]:
        """Returns the parts."""
        if self._size > self._empty_bytes:
            self._cut()
        return self._records

    def _reserve(self, size: int) -> None:
        size = max(self._least_bytes, size)
        if self._size + size > self._max_bytes and self._size > self._empty_bytes:
            self._cut()
        self._size += size

    def _close_range(self) -> None:
        if self._end > self._begin:
            self._fields.setdefault(self._tag, []).append(self._raw[self._begin : self._end])
        self._tag = self._begin = self._end = 0

    def _cut(self) -> None:
        self._close_range()
        pieces: list[bytes] = []
        fields = self._fields
        if self._name:
            fields[self._name_tag] = [self._name]
        for tag in sorted(fields):
            field_pieces = fields[tag]
            if tag in self._nested:
                pieces += (varint(tag), varint(sum(len(piece) for piece in field_pieces)))
            pieces += field_pieces
        self._records.append(b"".join(pieces))
        self._fields, self._nested, self._size = {}, set(), self._empty_bytes
