"""Resources: named types, the shapes of demands, and sums over them.

Two forms, each for its use:

* A *shape* is what an ask wants: sparse, immutable, interned. All asks of one shape share one object, so "does this
  shape fit here" is asked once for all of them, and comparing shapes is comparing identities.
* A *vector* is a sum that changes (what a queue uses, what a node has free): a plain list of integers, indexed by the
  type's number. Python's integers do not overflow; what leaves the core is saturated to int64 (:func:`saturated`).

Missing is not zero everywhere (core-features §2.4): a type that a node does not name is 0 there; a type that a queue's
max does not name is unlimited. The second is written as :data:`UNLIMITED` in a limit vector, so that the hot path
needs one comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)

# Larger than any sum of int64 quantities that a cluster can hold, so `used + asked > UNLIMITED` is never true.
UNLIMITED = 1 << 120
# What is left of that, however much was taken off.
_BOUNDLESS = UNLIMITED >> 1

# A cluster has a handful of types; a client that invents names must not grow every vector for ever.
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
    """What one ask wants.

    :ivar quantities: by type name, as asked, zeros included.
    :ivar items: (type number, quantity) of the non-zero ones, by type name (numbers differ from one fold to the next).
    :ivar name: readable, unique, stable over restarts: ``memory=4096,vcore=1000``.
    :ivar wire: room for the shell's serialised form; the core never looks at it.
    """

    __slots__ = ("__weakref__", "items", "name", "quantities", "wire")

    def __init__(self, quantities: Mapping[str, int], items: tuple[tuple[int, int], ...]) -> None:
        self.quantities = dict(quantities)
        self.items = items
        self.name = ",".join(f"{_escaped(name)}={quantities[name]}" for name in sorted(quantities))
        self.wire: Any = None

    def __repr__(self) -> str:
        return f"Shape({self.name})"


class Types:
    """The type names of one partition, numbered in the order of their first appearance, and its shapes.

    A new type lengthens every vector that was made here: rare, and the only place where all of them are touched.

    :ivar bounded: no more than :data:`TYPES_MAX`; False: it takes what was recorded, of which a scheduler has known no
        more at any time, but a follower that outlives schedulers may have seen more.
    :ivar pooled: the numbers of types that are in a pool (``pools.py``) and on no node: each has UNLIMITED of them.
    """

    __slots__ = ("_shapes", "_vectors_by_fill", "bounded", "names", "numbers", "pooled")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        # Weak: an RM whose every ask has another size must not fill the memory with shapes of the past.
        self._shapes: WeakValueDictionary[tuple[tuple[str, int], ...], Shape] = WeakValueDictionary()
        self._vectors_by_fill: dict[int, dict[int, Vector]] = {0: {}, UNLIMITED: {}}
        self.bounded = True
        self.pooled: frozenset[int] = frozenset()

    def number(self, name: str) -> int:
        """The type's number; a new name gets the next one. Raises TooManyTypes."""
        found = self.numbers.get(name)
        if found is not None:
            return found
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
        """A new vector over all types, filled with 0 or UNLIMITED; it grows with the types until :meth:`release`."""
        vector = [fill] * len(self.names)
        self._vectors_by_fill[fill][id(vector)] = vector
        return vector

    def release(self, *vectors: Vector) -> None:
        """Forgets vectors whose owner is gone."""
        for vector in vectors:
            for kept in self._vectors_by_fill.values():
                kept.pop(id(vector), None)

    def shape(self, quantities: Mapping[str, int]) -> Shape:
        """The one shape with these quantities."""
        key = tuple(sorted(quantities.items()))
        found = self._shapes.get(key)
        if found is None:
            self.reserve(name for name, value in key if value)
            items = tuple((self.number(name), value) for name, value in key if value)
            self._shapes[key] = found = Shape(quantities, items)
        return found

    def items(self, quantities: Mapping[str, int]) -> list[tuple[int, int]]:
        """(number, quantity) of each, zeros included."""
        known = self.numbers
        if quantities.keys() <= known.keys():  # as nearly always
            return [(known[name], value) for name, value in quantities.items()]
        return [(self.number(name), value) for name, value in quantities.items()]

    def quantities(self, vector: Vector) -> dict[str, int]:
        """The non-zero entries by name, saturated; what a node has of pooled types is no amount, and is left out."""
        if self.pooled:
            vector = [0 if value > _BOUNDLESS else value for value in vector]
        return {
            name: value if INT64_MIN <= value <= INT64_MAX else saturated(value)  # (a call takes longer)
            for name, value in zip(self.names, vector, strict=True)
            if value
        }


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace(",", "%2C").replace("=", "%3D")


def add(vector: Vector, items: Iterable[tuple[int, int]]) -> None:
    """vector += items."""
    for number, value in items:
        vector[number] += value


def subtract(vector: Vector, items: Iterable[tuple[int, int]]) -> None:
    """vector -= items."""
    for number, value in items:
        vector[number] -= value


def fits(items: Iterable[tuple[int, int]], free: Vector) -> bool:
    """Whether free has room for each item."""
    # On hot paths all() with its generator takes three times as long.
    for number, value in items:  # noqa: SIM110
        if value > free[number]:
            return False
    return True
