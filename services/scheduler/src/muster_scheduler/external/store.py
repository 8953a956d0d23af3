"""The local store of an informer, with indexers (seed 004: what "SharedIndex" says).

It holds what the source said last of each object, as the core's dataclasses. Used from one event loop only; what it
gives are lists of their own, so they may be looked through while it changes.

indexer
    A function from an object to the values under which it is found: ``by_index("node", "host-1")`` are the objects of
    that node. ``node`` is always there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from muster_scheduler.core.external import (
    ExternalAllocation,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    id_of,
    kind_of,
)

IndexFunction = Callable[[ExternalObject], Iterable[str]]


class Key(NamedTuple):
    """Which object of a source."""

    kind: ExternalKind
    object_id: str


class Kept(NamedTuple):
    """What the store has of an object.

    :ivar version: as its document said; None: it said none.
    """

    what: ExternalObject
    version: int | None


def key_of(what: ExternalObject) -> Key:
    """Under which key an object is kept."""
    return Key(kind_of(what), id_of(what))


def node_of(what: ExternalObject) -> str:
    """The node that an object belongs to; "": to none."""
    match what:
        case ExternalNode() | ExternalOffer() | ExternalAllocation():
            return what.node_id
        case _:
            return ""


def _by_node(what: ExternalObject) -> Iterable[str]:
    node_id = node_of(what)
    return (node_id,) if node_id else ()


class Store:
    """What a source said.

    :param indexers: by name, beside ``node``.
    """

    def __init__(self, indexers: Mapping[str, IndexFunction] | None = None) -> None:
        self._indexers: dict[str, IndexFunction] = {"node": _by_node, **(indexers or {})}
        self._kept: dict[Key, Kept] = {}
        # Index → value → keys. Dicts for sets: they keep the order in which things came.
        self._indices: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._indexers}
        self._counts = dict.fromkeys(ExternalKind, 0)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._kept)

    def get(self, kind: ExternalKind, object_id: str) -> ExternalObject | None:
        """The object; None: the source said nothing of it."""
        kept = self._kept.get(Key(kind, object_id))
        return None if kept is None else kept.what

    def kept(self, key: Key) -> Kept | None:
        """The object with its version."""
        return self._kept.get(key)

    def keys(self, kind: ExternalKind | None = None) -> Sequence[Key]:
        """Of every object, or of those of a kind, in the order in which they came."""
        return [key for key in self._kept if kind is None or key.kind is kind]

    def count(self, kind: ExternalKind) -> int:
        """How many objects of a kind there are."""
        return self._counts[kind]

    def by_index(self, name: str, value: str) -> Sequence[ExternalObject]:
        """The objects that an indexer gives this value for. Raises KeyError: there is no such indexer."""
        return [self._kept[key].what for key in self._indices[name].get(value, ())]

    def put(self, key: Key, what: ExternalObject, version: int | None = None) -> None:
        """Keeps an object in the place of what was there."""
        kept = self._kept.get(key)
        if kept is None or kept.what is not what:
            if kept is None:
                self._counts[key.kind] += 1
            else:
                self._unindex(key, kept.what)
            for name, function in self._indexers.items():
                index = self._indices[name]
                for value in function(what):
                    index.setdefault(value, {})[key] = None
        self._kept[key] = Kept(what, version)

    def remove(self, key: Key) -> None:
        """Forgets an object that it has."""
        self._unindex(key, self._kept.pop(key).what)
        self._counts[key.kind] -= 1

    def list(self, kind: ExternalKind | None = None) -> Sequence[ExternalObject]:
        """Every object, or those of a kind, in the order in which they came."""
        return [kept.what for key, kept in self._kept.items() if kind is None or key.kind is kind]

    def _unindex(self, key: Key, what: ExternalObject) -> None:
        for name, function in self._indexers.items():
            index = self._indices[name]
            for value in function(what):
                keys = index.get(value)
                if keys is not None:
                    keys.pop(key, None)
                    if not keys:
                        del index[value]
