"""Where a node stands in the order of its partition's policy, for one ask: the lowest value comes first.

Naively, one node at a time. Values of fair, binpacking and dotproduct are sums of quotients, and the core may sum in
another order: they are compared with :data:`NEARLY`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from simulation.books import Amounts, BookedAsk, BookedNode
from simulation.partition_books import Books

NEARLY = 1e-9
_GPU_MILLI = {"gpu": 1000, "gpu-milli": 1}

Value = Callable[[BookedNode], float]


def values(books: Books, ask: BookedAsk) -> Value:
    """The value of each node for the ask, as things are now."""
    if books.node_policy == "dotproduct":
        return lambda node: (
            -sum(
                (value / max(node.capacity.get(name, 0), 1)) * (node.free(name) / max(node.capacity.get(name, 0), 1))
                for name, value in ask.wants.items()
            )
        )
    if books.node_policy == "fragmentation":
        work = _workload(books)
        return lambda node: _fragmentation(work, _free(node, ask.wants)) - _fragmentation(work, _free(node, {}))
    sign = -1 if books.node_policy == "binpacking" else 1
    return lambda node: sign * _used_share(books, node)


def _used_share(books: Books, node: BookedNode) -> float:
    weights = {name: weight for name, weight in books.node_weights.items() if node.capacity.get(name, 0) > 0}
    used = sum(weight * (1 - node.free(name) / node.capacity[name]) for name, weight in weights.items())
    return used / sum(weights.values()) if weights else 0.0


def _free(node: BookedNode, without: Amounts) -> Counter[str]:
    names = {*node.capacity, *node.used, *node.occupied, *node.reported}
    found = Counter({name: node.free(name) for name in names})
    found.subtract(without)
    return found


def _workload(books: Books) -> list[tuple[Amounts, int]]:
    """The shapes that want GPUs, with their weights: how many there are, of which the two highest digits count."""
    counts: Counter[tuple[tuple[str, int], ...]] = Counter()
    for app in books.apps.values():
        for ask in app.asks.values():
            counts[tuple(sorted(ask.said.items()))] += ask.pending
        for held in app.held.values():
            counts[tuple(sorted(held.said.items()))] += 1
    found = []
    for shape, count in counts.items():
        wants = {name: value for name, value in shape if value}
        if any(_milli(name) for name in wants):
            digits = f"{count:b}"
            found.append((wants, int(digits[:2] + "0" * (len(digits) - 2), 2)))
    return found


def _fragmentation(work: list[tuple[Amounts, int]], free: Counter[str]) -> int:
    """The GPU (in thousandths) that the shapes could not use, each times its weight."""
    total = 0
    for wants, weight in work:
        room = all(value <= free[name] for name, value in wants.items())
        for name in free:
            unit = _milli(name)
            if not unit or not wants.get(name):
                continue
            pool = max(free[name], 0) * unit
            if not room:
                total += weight * pool
            elif pool % 1000 < min(wants[name] * unit, 1000):
                total += weight * (pool % 1000)
    return total


def _milli(name: str) -> int:
    return _GPU_MILLI.get(name.rpartition("/")[2], 0)
