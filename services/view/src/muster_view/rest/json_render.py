"""Objects as JSON in pieces.

A rendering is an iterator of byte pieces, which together are the body. Each piece is a fraction of a millisecond of
work. The engine lets other tasks run between the pieces, so an answer of any size keeps no task waiting.

The guarantee: if nothing is folded between the pieces, the answer is the state of one moment. If folding continued (for
an answer larger or slower than the settings allow), the list of objects is that of the beginning, each object's own
figures are of one moment, and objects that were removed meanwhile are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.node import Node
from muster_core.model.queue import Queue
from muster_core.partition import Partition
from muster_runtime.go_json import go_json

from muster_view.rest import dao

Pieces = Iterator[bytes]
# A list in an object: the field's name, the listed objects, and the rendering of some of them, comma-separated.
Lists = tuple[tuple[bytes, list[Any], Callable[[list[Any]], bytes]], ...]
T = TypeVar("T")

# Objects of the small kinds in one piece: about 0.3 ms.
_PER_PIECE = 100
# Objects with lists of other objects, when these lists are short.
_SMALL = 50


def body(value: Any) -> Pieces:
    """One small value."""
    yield go_json(value)
    yield b"\n"


def listing(objects: Iterable[T], pieces_of: Callable[[T], Pieces]) -> Pieces:
    """A list of objects that are rendered in pieces, with the final line feed."""
    yield b"["
    separator = b""
    for obj in objects:
        if getattr(obj, "gone", False):
            continue
        # One object is mostly a few small pieces, which are joined.
        yield separator
        yield from pieces_of(obj)
        separator = b","
    yield b"]\n"


def line(pieces: Pieces) -> Pieces:
    """An object's pieces, with the final line feed."""
    yield from pieces
    yield b"\n"


def small(objects: Iterable[T], make: Callable[[T], Any]) -> Pieces:
    """Small objects, comma-separated, without brackets."""
    return _joined(objects, lambda batch: go_json([make(obj) for obj in batch])[1:-1])


def _joined(objects: Iterable[T], text_of: Callable[[list[T]], bytes]) -> Pieces:
    iterator = iter(objects)
    first = True
    while batch := list(islice(iterator, _PER_PIECE)):
        text = text_of(batch)
        yield text if first else b"," + text
        first = False


def _asks(asks: list[Ask]) -> bytes:
    return go_json([dao.ask(ask) for ask in asks])[1:-1]


def _allocations(allocations: list[Allocation]) -> bytes:
    """Allocations of the scheduler's own state, which change."""
    return go_json(
        [dao.foreign(allocation) if allocation.foreign else dao.allocation(allocation) for allocation in allocations]
    )[1:-1]


def _cached_allocations(allocations: list[Allocation]) -> bytes:
    """Allocations of a follower never change: another record makes another object. So their text is cached."""
    return b",".join([allocation.shown or _cache_rendered(allocation) for allocation in allocations])


def _cache_rendered(allocation: Allocation) -> bytes:
    allocation.shown = text = go_json(dao.foreign(allocation) if allocation.foreign else dao.allocation(allocation))
    return text


def node(partition: Partition, shown: Node) -> Pieces:
    """A node with its allocations."""
    allocations, foreign = list(shown.allocations.values()), list(shown.foreign.values())
    head, tail = go_json(dao.node_head(partition, shown)), go_json(dao.node_tail(shown))
    text_of = _texts_of(partition)
    lists = ((b"allocations", allocations, text_of), (b"foreignAllocations", foreign, text_of))
    return _with_lists(head, lists, tail)


def application(partition: Partition, shown: Application, only: Collection[str] | None = None) -> Pieces:
    """An application with its asks and allocations.

    :param only: for an application with many, only the asks and allocations with these keys.
    """
    if only is not None and len(shown.asks) + len(shown.allocations) > _SMALL:
        asks = [shown.asks[key] for key in only if key in shown.asks]
        allocations = [allocation for key in only for allocation in shown.allocations_of(key)]
    else:
        asks, allocations = list(shown.asks.values()), list(shown.allocations.values())
    head, tail = go_json(dao.application_head(partition, shown)), go_json(dao.application_tail(shown))
    lists: Lists = ((b"requests", asks, _asks), (b"allocations", allocations, _texts_of(partition)))
    return _with_lists(head, lists, tail)


def queue(
    partition: Partition, shown: Queue, *, tree: bool, shown_partition: str = ""
) -> Generator[bytes, None, tuple[int, dao.AllocatingApplications]]:
    """A queue; with ``tree`` all queues below it, too.

    Returns the values that its parent needs: its current priority, and see :func:`dao.allocating_applications`.
    """
    head = go_json(dao.queue_head(partition, shown, shown_partition))
    if shown.leaf or not tree:
        priority, allocating = dao.current_priority(partition, shown), dao.allocating_applications(partition, shown)
        yield b"%b,%b" % (head[:-1], go_json(dao.queue_tail(partition, shown, priority, allocating))[1:])
        return priority, allocating
    separator, highest = head[:-1] + b',"children":[', dao.INT32_MIN
    parts: list[dao.AllocatingApplications] = []
    for child in list(shown.children.values()):
        if child.gone:
            continue
        yield separator
        priority, below = yield from queue(partition, child, tree=True)
        highest = max(highest, priority)
        parts.append(below)
        separator = b","
    priority = dao.effective_priority(shown, highest)
    allocating = dao.joined(parts)
    tail = go_json(dao.queue_tail(partition, shown, priority, allocating))
    # Without children, or if all were removed meanwhile, nothing is written.
    yield b"%b,%b" % (b"]" if separator == b"," else head[:-1], tail[1:])
    return priority, allocating


def _texts_of(partition: Partition) -> Callable[[list[Allocation]], bytes]:
    return _allocations if partition.searching else _cached_allocations


def _with_lists(head: bytes, lists: Lists, tail: bytes) -> Pieces:
    filled = [field for field in lists if field[1]]
    if sum(len(objects) for _, objects, _ in filled) <= _SMALL:
        parts = [head[:-1]]
        for name, objects, text_of in filled:
            parts.append(b',"%b":[%b]' % (name, text_of(objects)))
        yield b"%b,%b" % (b"".join(parts), tail[1:])
        return
    yield head[:-1]
    for name, objects, text_of in filled:
        yield b',"%b":[' % name
        yield from _joined(objects, text_of)
        yield b"]"
    yield b"," + tail[1:]
