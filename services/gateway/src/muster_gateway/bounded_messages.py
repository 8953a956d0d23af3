"""Parses a large message, or a large item of one, in steps. What is over a limit is counted, and not built.

Protobuf merges: the parse of two pieces, one after the other into the same message, is the parse of both together, if
the border is one between fields. So a large message is cut between its fields, and each piece is parsed. A field that
is large itself is cut likewise, at each level:

a nested message        each piece is sent as another occurrence of the field, which protobuf merges
an entry of a map       built by itself first: entries replace each other
an item of a list       likewise

A map of 300,000 entries takes a second to build, and all at once. So a map or a list that is over its limit is built no
further: its pieces are parsed (they may be no protobuf) and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from muster_gateway.wire_fields import FieldScanner, Malformed, framed

T = TypeVar("T")
Steps = Generator[None, None, T]

_BYTES = 2


@dataclass(frozen=True, slots=True)
class StepSizes:
    """How much one step does. Protobuf needs up to 40 ns for a byte, and the checks up to 1 ms for these.

    :param whole_bytes: a smaller message is parsed at once.
    :param fields: that one step finds.
    :param chunk_items: that one step parses and checks.
    :param chunk_bytes: the same in bytes.
    :param large_bytes: a larger item is cut itself.
    :param piece_bytes: of its pieces.
    """

    whole_bytes: int = 16 * 1024
    fields: int = 1_000
    chunk_items: int = 64
    chunk_bytes: int = 16 * 1024
    large_bytes: int = 32 * 1024
    piece_bytes: int = 8 * 1024


SIZES = StepSizes()


@dataclass(frozen=True, slots=True)
class Counted:
    """A map or a list of a message that is built up to a limit only.

    :param path: of its field, from the message on.
    :param limit: its entries.
    :param display_name: what an error calls it.
    :param error: what to raise where it is over its limit; None: it is counted on.
    """

    path: tuple[str, ...]
    limit: int
    display_name: str
    error: Exception | None = None

    def count(self, message: Any) -> int:
        """Returns the entries that a message has."""
        for name in self.path[:-1]:
            message = getattr(message, name)
        return len(getattr(message, self.path[-1]))

    def tags(self, descriptor: Descriptor) -> tuple[int, ...]:
        """Returns the tags of the fields on the path."""
        tags: list[int] = []
        level: Descriptor | None = descriptor
        for name in self.path:
            assert level is not None
            named = level.fields_by_name[name]
            tags.append(named.number << 3 | _BYTES)
            level = named.message_type
        return tuple(tags)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the message is that is to be parsed: protobuf judges a piece of it in the whole that it is a part of.

    :param root: the type of the whole.
    :param tags: of the fields that lead to the message, outermost first.
    :param inside: returns the message of a whole that has this one only.
    """

    root: type[Any]
    tags: tuple[int, ...] = ()
    inside: Callable[[Any], Any] = lambda whole: whole

    def parse(self, piece: bytes, deeper: Sequence[int] = ()) -> Any:
        """Returns the message that a piece of it is. Raises DecodeError."""
        for tag in reversed((*self.tags, *deeper)):
            piece = framed(tag, piece)
        return self.inside(self.root.FromString(piece))


@dataclass(slots=True)
class Bounded:
    """A message that was parsed in steps.

    :param message: it, without what is over a limit.
    :param over: the entries of each :class:`Counted` that is over its limit, by what errors call it. One that protobuf
        replaces counts once for each piece that has it.
    """

    message: Any
    over: dict[str, int] = field(default_factory=dict)


def bounded_steps(
    raw: bytes,
    begin: int,
    end: int,
    location: Place,
    counted: Sequence[Counted],
    sizes: StepSizes = SIZES,
    lists: Mapping[str, Sequence[Counted]] | None = None,
    into: Any = None,
) -> Steps[Bounded]:
    """Parses ``raw[begin:end]``. Raises DecodeError.

    :param lists: what is counted in the items of its lists, by the list's name.
    :param into: the message to add to; None: a new one.
    """
    message = location.parse(b"") if into is None else into
    parser = _Parser(raw, location, message, counted, sizes, lists or {})
    try:
        yield from parser.steps(begin, end, message.DESCRIPTOR, ())
    except Malformed as error:
        raise DecodeError(str(error)) from error
    return parser.result


class _Parser:
    def __init__(
        self,
        raw: bytes,
        location: Place,
        message: Any,
        counted: Sequence[Counted],
        sizes: StepSizes,
        lists: Mapping[str, Sequence[Counted]],
    ) -> None:
        self._raw, self._location, self._counted, self._sizes, self._lists = raw, location, counted, sizes, lists
        self.result = Bounded(message)

    def steps(self, begin: int, end: int, descriptor: Descriptor, tags: tuple[int, ...]) -> Steps[None]:
        """Parses the fields of the message, or of one of its nested messages."""
        piece_bytes = self._sizes.piece_bytes
        scanner = FieldScanner(self._raw, begin, end)
        begin_piece = begin
        if begin == end:
            self._add(b"", tags)
        while not scanner.is_done():
            for tag, begin_field, body, end_field in scanner.scan(self._sizes.fields):
                nested = descriptor.fields_by_number.get(tag >> 3) if end_field - body > piece_bytes else None
                if nested is not None and nested.message_type is not None and tag & 7 == _BYTES:
                    if begin_piece < begin_field:
                        self._add(self._raw[begin_piece:begin_field], tags)
                        yield
                    yield from self._nested(nested, body, end_field, tag, tags)
                    begin_piece = end_field
                elif end_field - begin_piece >= piece_bytes:
                    self._add(self._raw[begin_piece:end_field], tags)
                    begin_piece = end_field
                    yield
            yield
        if begin_piece < end:
            self._add(self._raw[begin_piece:end], tags)

    def _nested(self, nested: FieldDescriptor, begin: int, end: int, tag: int, tags: tuple[int, ...]) -> Steps[None]:
        descriptor = nested.message_type
        assert descriptor is not None
        if not nested.is_repeated:
            yield from self.steps(begin, end, descriptor, (*tags, tag))
            return
        if descriptor.GetOptions().map_entry:
            message = yield from self._entry(begin, end, descriptor, (*tags, tag))
        else:
            name = nested.name
            location = self._location
            inside = Place(
                location.root, (*location.tags, *tags, tag), lambda whole: getattr(location.inside(whole), name)[0]
            )
            counted = self._lists.get(name, ())
            bounded = yield from bounded_steps(self._raw, begin, end, inside, counted, self._sizes)
            message = bounded.message
            at = f"{name}[{len(getattr(self.result.message, name))}]"
            self.result.over.update((f"{at}.{shown}", count) for shown, count in bounded.over.items())
        self._add(framed(tag, message.SerializeToString()), tags)
        yield

    def _entry(self, begin: int, end: int, descriptor: Descriptor, tags: tuple[int, ...]) -> Steps[Any]:
        """Returns an entry of a map. Protobuf knows it by itself, but judges it in the whole."""
        entry = GetMessageClass(descriptor)()
        scanner = FieldScanner(self._raw, begin, end)
        begin_piece = begin
        while not scanner.is_done():
            for _, _, _, end_field in scanner.scan(self._sizes.fields):
                if end_field - begin_piece >= self._sizes.piece_bytes or end_field == end:
                    piece = self._raw[begin_piece:end_field]
                    self._location.parse(piece, tags)
                    entry.MergeFromString(piece)
                    begin_piece = end_field
                    yield
            yield
        return entry

    def _add(self, piece: bytes, tags: tuple[int, ...]) -> None:
        """Parses a piece, and adds it to the message. (A later value that is 0 or empty replaces an earlier one: only
        the bytes say that it is there.)
        """
        part, result, over = self._location.parse(piece, tags), self.result, False
        for counted in self._counted:
            if counted.display_name in result.over:
                result.over[counted.display_name] += counted.count(part)
                over = True
        if over:
            piece = self._without_counted(piece, tags)
        for tag in reversed(tags):
            piece = framed(tag, piece)
        result.message.MergeFromString(piece)
        for counted in self._counted:
            if counted.display_name not in result.over and (count := counted.count(result.message)) > counted.limit:
                if counted.error is not None:
                    raise counted.error
                result.over[counted.display_name] = count

    def _without_counted(self, piece: bytes, tags: tuple[int, ...]) -> bytes:
        """Returns the fields of a piece without those that are over their limit."""
        descriptor = self.result.message.DESCRIPTOR
        for counted in self._counted:
            if counted.display_name in self.result.over:
                path = counted.tags(descriptor)
                if path[: len(tags)] == tags:
                    piece = _without(piece, path[len(tags) :])
        return piece


def _without(piece: bytes, path: tuple[int, ...]) -> bytes:
    """Returns the fields of a message without those at a path of tags."""
    kept = bytearray()
    scanner = FieldScanner(piece, 0, len(piece))
    while not scanner.is_done():
        for tag, begin, body, end in scanner.scan(len(piece)):
            if tag != path[0]:
                kept += piece[begin:end]
            elif len(path) > 1:
                kept += framed(tag, _without(piece[body:end], path[1:]))
    return bytes(kept)
