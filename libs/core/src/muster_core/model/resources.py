"""Resources: named types, the shapes of demands, and sums over them.

There are two forms:

* A *shape* has the amounts that an ask wants: sparse, immutable, interned. All asks of one shape share one object. So
  one check "does this shape fit here" serves all of them, and shapes are compared by identity.
* A *vector* is a changing sum (a queue's use, a node's free amounts): a plain list of integers, indexed by type number.
  Python's integers do not overflow; values that leave the core are saturated to int64 (:func:`saturated`).

A missing type is not always zero. A type that a node does not name is 0 there; a type that a queue's max does not name
is unlimited. A limit vector has :data:`UNLIMITED` for it, so that the hot path needs one comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)

# Larger than any sum of int64 quantities in a cluster, so `used + asked > UNLIMITED` is never true.
UNLIMITED = 1 << 120
# A larger value stands for UNLIMITED, even after subtractions.
_BOUNDLESS = UNLIMITED >> 1

# A cluster has a few types. A client that invents names must not make every vector grow without bound.
TYPES_MAX = 256

Vector = list[int]


class TooManyTypes(ValueError):
    """More resource type names than :data:`TYPES_MAX` in one partition."""


def saturated(value: int) -> int:
    """The int64 that is nearest to ``value``."""
    if value > INT64_MAX:
        return INT64_MAX
    return max(value, INT64_MIN)


class Shape:
    """The amounts that one ask wants.

    :ivar quantities: by type name, as asked, zeros included.
    :ivar items: (type number, quantity) of the non-zero ones, by type name, because numbers differ from one fold to the
        next.
    :ivar name: readable, unique, stable over restarts: ``memory=4096,vcore=1000``.
    :ivar wire: room for the shell's serialised form; the core does not use it.
    """

    __slots__ = ("__weakref__", "items", "name", "quantities", "wire")

    def __init__(self, quantities: Mapping[str, int], items: tuple[tuple[int, int], ...]) -> None:
        self.quantities = dict(quantities)
        self.items = items
        self.name = ",".join(f"{_escaped(name)}={quantities[name]}" for name in sorted(quantities))
        self.wire: Any = None

    def __repr__(self) -> str:
        return f"Shape({self.name})"

    def times(self, count: int) -> Shape | dict[str, int]:
        """``count`` times the shape, by type name."""
        return self if count == 1 else {name: value * count for name, value in self.quantities.items()}


class ResourceTypes:
    """The type names of one partition, numbered in the order of their first appearance, and its shapes.

    A new type lengthens every vector that was made here. New types are rare; no other operation touches all vectors.

    :ivar bounded: whether :data:`TYPES_MAX` holds. False: it takes recorded types without limit. A scheduler never
        knows more types at a time, but a follower that outlives schedulers may have seen more.
    :ivar pooled: the numbers of types that are in a pool (``pools.py``) and on no node. Each node has UNLIMITED of
        them.
    """

    __slots__ = ("_shapes", "_vectors_by_fill", "bounded", "names", "numbers", "pooled")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        # Weak references: an RM whose every ask has another size must not fill the memory with past shapes.
        self._shapes: WeakValueDictionary[tuple[tuple[str, int], ...], Shape] = WeakValueDictionary()
        self._vectors_by_fill: dict[int, dict[int, Vector]] = {0: {}, UNLIMITED: {}}
        self.bounded = True
        self.pooled: frozenset[int] = frozenset()

    def number(self, name: str) -> int:
        """The type's number. A new name gets the next number. Raises TooManyTypes."""
        existing = self.numbers.get(name)
        if existing is not None:
            return existing
        if self.bounded and len(self.names) >= TYPES_MAX:
            raise TooManyTypes(f"resource type {name!r}: the partition knows {TYPES_MAX} types already")
        self.numbers[name] = number = len(self.names)
        self.names.append(name)
        for fill, vectors in self._vectors_by_fill.items():
            for vector in vectors.values():
                vector.append(fill)
        return number

    def reserve(self, names: Iterable[str]) -> None:
        """Numbers all of the names, or none of them. Raises TooManyTypes."""
        new = [*dict.fromkeys([name for name in names if name not in self.numbers])]
        if not new:
            return
        room = max(TYPES_MAX - len(self.names), 0)
        if self.bounded and len(new) > room:
            raise TooManyTypes(
                f"resource type {new[room]!r}: the partition knows {len(self.names)} types already, "
                f"expected at most {TYPES_MAX}"
            )
        for name in new:
            self.number(name)

    def vector(self, fill: int = 0) -> Vector:
        """A new vector over all types, filled with 0 or UNLIMITED. It grows with the types until :meth:`release`."""
        vector = [fill] * len(self.names)
        self._vectors_by_fill[fill][id(vector)] = vector
        return vector

    def release(self, *vectors: Vector) -> None:
        """Forgets vectors whose owner is gone."""
        for vector in vectors:
            for kept in self._vectors_by_fill.values():
                kept.pop(id(vector), None)

    def dispose(self) -> None:
        """Forgets all vectors. They do not grow any more, see ``Partition.dispose``."""
        for vectors in self._vectors_by_fill.values():
            vectors.clear()

    def shape(self, quantities: Mapping[str, int]) -> Shape:
        """The one shape with these quantities."""
        key = tuple(sorted(quantities.items()))
        shape = self._shapes.get(key)
        if shape is None:
            self.reserve(name for name, value in key if value)
            items = tuple((self.number(name), value) for name, value in key if value)
            self._shapes[key] = shape = Shape(quantities, items)
        return shape

    def items(self, quantities: Mapping[str, int]) -> list[tuple[int, int]]:
        """(number, quantity) of each, zeros included."""
        numbers = self.numbers
        if quantities.keys() <= numbers.keys():  # the common case
            return [(numbers[name], value) for name, value in quantities.items()]
        return [(self.number(name), value) for name, value in quantities.items()]

    def quantities(self, vector: Vector) -> dict[str, int]:
        """The non-zero entries by name, saturated. UNLIMITED amounts of pooled types are left out."""
        if self.pooled:
            vector = [0 if value > _BOUNDLESS else value for value in vector]
        return {
            name: value if INT64_MIN <= value <= INT64_MAX else saturated(value)  # (a call would take longer)
            for name, value in zip(self.names, vector, strict=True)
            if value
        }


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace(",", "%2C").replace("=", "%3D")


def add(vector: Vector, items: Iterable[tuple[int, int]]) -> None:
    """Vector += items."""
    for number, value in items:
        vector[number] += value


def subtract(vector: Vector, items: Iterable[tuple[int, int]]) -> None:
    """Vector -= items."""
    for number, value in items:
        vector[number] -= value


def fits(items: Iterable[tuple[int, int]], free: Vector) -> bool:
    """Whether free has room for each item."""
    # On hot paths, all() with its generator takes three times as long.
    for number, value in items:  # noqa: SIM110
        if value > free[number]:
            return False
    return True
