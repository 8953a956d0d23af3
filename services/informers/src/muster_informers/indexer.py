"""The local store of an informer, with indexers (the event handler framework: "SharedIndex").

It holds the last state of each object of the source, as the core's dataclasses. Only one event loop uses it. It returns
copies, so a caller may iterate while the store changes.

indexer
    A function from an object to the values under which it is found: ``by_index("node", "host-1")`` are the objects of
    that node. ``node`` is always there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from muster_core.external.model import (
    ExternalAllocation,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    id_of,
    kind_of,
)

IndexFunction = Callable[[ExternalObject], Iterable[str]]


class SourceKey(NamedTuple):
    """Identifies an object of a source."""

    kind: ExternalKind
    object_id: str


class StoredObject(NamedTuple):
    """The store's entry of an object.

    :ivar version: from its document; None: it had none.
    """

    obj: ExternalObject
    version: int | None


def key_of(obj: ExternalObject) -> SourceKey:
    """Returns the key of an object."""
    return SourceKey(kind_of(obj), id_of(obj))


def node_of(obj: ExternalObject) -> str:
    """Returns the node that an object belongs to; "": none."""
    match obj:
        case ExternalNode() | ExternalOffer() | ExternalAllocation():
            return obj.node_id
        case _:
            return ""


def _by_node(obj: ExternalObject) -> Iterable[str]:
    node_id = node_of(obj)
    return (node_id,) if node_id else ()


class ObjectIndexer:
    """The objects of a source.

    :param indexers: by name, beside ``node``.
    """

    def __init__(self, indexers: Mapping[str, IndexFunction] | None = None) -> None:
        self._indexers: dict[str, IndexFunction] = {"node": _by_node, **(indexers or {})}
        self._stored: dict[SourceKey, StoredObject] = {}
        # Index → value → keys. Dicts instead of sets: they keep the order.
        self._indices: dict[str, dict[str, dict[SourceKey, None]]] = {name: {} for name in self._indexers}
        self._counts = dict.fromkeys(ExternalKind, 0)

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[SourceKey]:
        return iter(self._stored)

    def get(self, kind: ExternalKind, object_id: str) -> ExternalObject | None:
        """Returns the object; None: the source has not reported it."""
        kept = self._stored.get(SourceKey(kind, object_id))
        return None if kept is None else kept.obj

    def get_stored(self, key: SourceKey) -> StoredObject | None:
        """Returns the object with its version."""
        return self._stored.get(key)

    def keys(self, kind: ExternalKind | None = None) -> Sequence[SourceKey]:
        """The keys of all objects, or of those of a kind, in the order in which they were added."""
        return [key for key in self._stored if kind is None or key.kind is kind]

    def count(self, kind: ExternalKind) -> int:
        """Returns the number of objects of a kind."""
        return self._counts[kind]

    def by_index(self, name: str, value: str) -> Sequence[ExternalObject]:
        """The objects for which an indexer gives this value. Raises KeyError: there is no such indexer."""
        return [self._stored[key].obj for key in self._indices[name].get(value, ())]

    def put(self, key: SourceKey, obj: ExternalObject, version: int | None = None) -> None:
        """Stores an object and replaces an earlier state."""
        kept = self._stored.get(key)
        if kept is None or kept.obj is not obj:
            if kept is None:
                self._counts[key.kind] += 1
            else:
                self._unindex(key, kept.obj)
            for name, function in self._indexers.items():
                index = self._indices[name]
                for value in function(obj):
                    index.setdefault(value, {})[key] = None
        self._stored[key] = StoredObject(obj, version)

    def remove(self, key: SourceKey) -> None:
        """Removes a stored object."""
        self._unindex(key, self._stored.pop(key).obj)
        self._counts[key.kind] -= 1

    def list(self, kind: ExternalKind | None = None) -> Sequence[ExternalObject]:
        """All objects, or those of a kind, in the order in which they were added."""
        return [kept.obj for key, kept in self._stored.items() if kind is None or key.kind is kind]

    def _unindex(self, key: SourceKey, obj: ExternalObject) -> None:
        for name, function in self._indexers.items():
            index = self._indices[name]
            for value in function(obj):
                keys = index.get(value)
                if keys is not None:
                    keys.pop(key, None)
                    if not keys:
                        del index[value]
