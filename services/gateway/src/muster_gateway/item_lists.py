"""Finds and counts the items of a serialised message before it is parsed, and parses them some at a time.

An *item* is one element of a repeated field: an ask, a node, an answer of a callback stream. What is beside the items
(the RM's id, fields that this version does not know) is parsed too, so that a message is refused where protobuf refuses
it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from muster_gateway.bounded_messages import Place, StepSizes, bounded_steps
from muster_gateway.errors import InvalidRequest, OverLimit
from muster_gateway.wire_fields import FieldScanner, Malformed, framed

T = TypeVar("T")
Steps = Generator[None, None, T]
# Of an item: where its field begins, its content, and its end.
Span = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ItemList:
    """One list of a kind of message.

    :param name: its path.
    :param tag: of the field of each item.
    :param items: returns it of a message.
    :param parent: tag of the nested message that has the list; 0: the message itself has it.
    """

    name: str
    tag: int
    items: Callable[[Any], Any]
    parent: int = 0

    def location(self, message_type: type[Any]) -> Place:
        """Returns the place of one item."""
        items = self.items
        tags = (self.parent, self.tag) if self.parent else (self.tag,)
        return Place(message_type, tags, lambda whole: items(whole)[0])

    def parse(self, message_type: type[Any], piece: bytes, count: int) -> Any:
        """Returns the list of the items whose fields are in ``piece``. Raises DecodeError."""
        message = message_type.FromString(framed(self.parent, piece) if self.parent else piece)
        items = self.items(message)
        if len(items) != count:
            raise DecodeError(f"{self.name}: {len(items)} items where {count} were counted")
        return items


@dataclass(slots=True)
class Layout:
    """Where the parts of a message are.

    :param spans: the items of each list.
    :param remainder: a message with everything else in it that may be of use.
    :param left_out: of each list, the number of items beyond the limit, if that is one of each list.
    """

    spans: list[list[Span]]
    remainder: Any
    left_out: list[int]


def no_message(message_type: type[Any], size: int) -> InvalidRequest:
    """Returns the error that so many bytes are no message of the type."""
    name = message_type.DESCRIPTOR.full_name
    return InvalidRequest(f"{size} bytes that are no {name} (protobuf, UTF-8 texts)")


def layout_steps(
    message_type: type[Any],
    raw: bytes,
    lists: Sequence[ItemList],
    max_items: int,
    sizes: StepSizes,
    *,
    leaves_out: bool = False,
) -> Steps[Layout]:
    """Finds all items, in steps. Raises InvalidRequest, OverLimit.

    :param leaves_out: each list may have ``max_items``, and further ones are left out; otherwise the message may have
        so many, and more are an error.
    """
    search = _Search(message_type, raw, lists, max_items, sizes, leaves_out=leaves_out)
    try:
        yield from search.steps()
    except (DecodeError, Malformed) as error:
        raise no_message(message_type, len(raw)) from error
    return search.layout


class _Search:
    def __init__(
        self,
        message_type: type[Any],
        raw: bytes,
        lists: Sequence[ItemList],
        max_items: int,
        sizes: StepSizes,
        *,
        leaves_out: bool,
    ) -> None:
        self._type, self._raw, self._max_items, self._sizes = message_type, raw, max_items, sizes
        self._leaves_out = leaves_out
        self.layout = Layout([[] for _ in lists], message_type(), [0] * len(lists))
        self._lists = lists
        self._of: dict[int, list[Span]] = {}
        self._nested: dict[int, dict[int, list[Span]]] = {}
        for item_list, spans in zip(lists, self.layout.spans, strict=True):
            if item_list.parent:
                self._nested.setdefault(item_list.parent, {})[item_list.tag] = spans
            else:
                self._of[item_list.tag] = spans

    def steps(self) -> Steps[None]:
        yield from self._fields(0, len(self._raw), 0, self._of)

    def _fields(self, begin: int, end: int, parent: int, of: dict[int, list[Span]]) -> Steps[None]:
        """Finds the items in the message, or in a nested one, whose tag is then ``parent``."""
        raw, nested = self._raw, {} if parent else self._nested
        large_bytes, beside = self._sizes.large_bytes, bytearray()
        scanner = FieldScanner(raw, begin, end)
        while not scanner.is_done():
            for tag, begin_field, body, end_field in scanner.scan(self._sizes.fields):
                spans = of.get(tag)
                if spans is not None and not (self._leaves_out and len(spans) >= self._max_items):
                    spans.append((begin_field, body, end_field))
                elif tag in nested:
                    if body < end_field:
                        yield from self._fields(body, end_field, tag, nested[tag])
                elif end_field - begin_field > large_bytes and not parent:
                    self._parse(beside, parent)
                    beside.clear()
                    yield from self._large(begin_field, end_field)
                else:
                    beside += raw[begin_field:end_field]
                    if len(beside) >= large_bytes:
                        self._parse(beside, parent)
                        beside.clear()
                        yield
            self._check_count(exact=scanner.is_done() and not parent)
            if not scanner.is_done():
                yield
        if beside:
            self._parse(beside, parent)

    def _large(self, begin: int, end: int) -> Steps[None]:
        beside = self.layout.remainder
        yield from bounded_steps(self._raw, begin, end, Place(self._type), (), self._sizes, into=beside)
        self._forget()

    def _parse(self, fields: bytearray, parent: int) -> None:
        """Parses fields beside the items. Only those of the message itself are of use."""
        if parent:
            self._type.FromString(framed(parent, bytes(fields)))
        else:
            self.layout.remainder.MergeFromString(bytes(fields))
            self._forget()

    def _forget(self) -> None:
        """Clears what is of no use: it was parsed to be judged."""
        beside = self.layout.remainder
        beside.DiscardUnknownFields()
        if self._leaves_out:
            for index, item_list in enumerate(self._lists):
                self.layout.left_out[index] += len(item_list.items(beside))
                beside.ClearField(item_list.name)

    def _check_count(self, *, exact: bool) -> None:
        count = 0
        for spans in self.layout.spans:
            count += len(spans)
        if count > self._max_items and not self._leaves_out:
            raise too_many(self._type, count, self._max_items, exact=exact)


def too_many(message_type: type[Any], count: int, max_items: int, *, exact: bool) -> OverLimit:
    """Returns the error that a message has more items than the limit.

    :param exact: all were counted.
    """
    least = "" if exact else "at least "
    return OverLimit(f"{message_type.DESCRIPTOR.name}: {least}{count} items, expected at most {max_items}")


def chunks(spans: Sequence[Span], sizes: StepSizes) -> Generator[tuple[int, int], None, None]:
    """Yields the first and the end of the items that are parsed together. An item that is large itself is alone."""
    first, count = 0, len(spans)
    while first < count:
        begin, _, end = spans[first]
        size, after = end - begin, first + 1
        most = after if size > sizes.large_bytes else min(count, first + sizes.chunk_items)
        while after < most and size < sizes.chunk_bytes:
            begin, _, end = spans[after]
            if end - begin > sizes.large_bytes:
                break
            size += end - begin
            after += 1
        yield first, after
        first = after


def joined(raw: bytes, spans: Sequence[Span], first: int, after: int) -> bytes:
    """Returns the fields of these items, one after the other."""
    begin, end = spans[first][0], spans[after - 1][2]
    size = 0
    for index in range(first, after):
        size += spans[index][2] - spans[index][0]
    if size == end - begin:
        return raw[begin:end]
    return b"".join([raw[spans[index][0] : spans[index][2]] for index in range(first, after)])
