"""The schedulable nodes in the order in which they are tried, with a quick way to the first one that fits.

The order is the node sort policy's: by score, then by node id (core-features §2.11). Nodes sit in blocks of up to
:data:`BLOCK_NODES_MAX` consecutive ones; each block knows a *peak*, for every type an amount that none of its nodes
exceeds. A search skips every block whose peak is too small and looks into the others: about √n steps in place of n,
which is what keeps binpacking fast in a full cluster (the real core visits every full node, core-features §4.2).

A block's range begins at its *low* key and ends before the next block's: removing a node never moves a border.
Peaks only grow between two searches that found nothing in the block; such a search makes the peak exact again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster_scheduler.core.objects import Node

# Small enough to look through, large enough that 10,000 nodes are about a hundred blocks.
BLOCK_NODES_MAX = 128

NodeKey = tuple[float, str]
_LOWEST: NodeKey = (float("-inf"), "")


class _Block:
    __slots__ = ("exact", "keys", "nodes", "peak")

    def __init__(self, keys: list[NodeKey], nodes: list[Node]) -> None:
        self.keys = keys
        self.nodes = nodes
        self.peak: list[int] = []
        self.exact = False
        self.measure()

    def measure(self) -> None:
        """Makes the peak exact."""
        nodes = self.nodes
        self.peak = [max(column) for column in zip(*(node.available for node in nodes), strict=True)] if nodes else []
        self.exact = True

    def insert(self, key: NodeKey, node: Node) -> None:
        place = bisect_left(self.keys, key)
        self.keys.insert(place, key)
        self.nodes.insert(place, node)
        peak, available = self.peak, node.available
        if len(peak) < len(available):
            # A type that came up after the last measure: no node of the block can exceed the new one unmeasured.
            self.measure()
            return
        for number, value in enumerate(available):
            if value > peak[number]:
                peak[number] = value

    def remove(self, key: NodeKey) -> None:
        place = bisect_left(self.keys, key)
        del self.keys[place]
        del self.nodes[place]
        self.exact = False


class NodeIndex:
    """Nodes by (score, id). The owner says when a node's score or free resources changed."""

    __slots__ = ("_blocks", "_lows", "count", "version")

    def __init__(self) -> None:
        self._lows: list[NodeKey] = [_LOWEST]
        self._blocks: list[_Block] = [_Block([], [])]
        self.count = 0
        #: Grows with each change: a search that failed fails again while the version is the same.
        self.version = 0

    def __iter__(self) -> Iterator[Node]:
        for block in self._blocks:
            yield from block.nodes

    def add(self, node: Node, score: float) -> None:
        """Takes a node in."""
        self.version += 1
        self.count += 1
        node.index_key = key = (score, node.node_id)
        self._insert(key, node)

    def remove(self, node: Node) -> None:
        """Takes a node out."""
        key = node.index_key
        assert key is not None, f"node {node.node_id} is not in the index"
        self.version += 1
        self.count -= 1
        node.index_key = None
        self._delete(key)

    def move(self, node: Node, score: float) -> None:
        """The node's free resources, and with them perhaps its score, changed."""
        old = node.index_key
        assert old is not None, f"node {node.node_id} is not in the index"
        self.version += 1
        node.index_key = key = (score, node.node_id)
        place = bisect_right(self._lows, old) - 1
        block = self._blocks[place]
        block.remove(old)
        if self._lows[place] <= key and (place + 1 == len(self._lows) or key < self._lows[place + 1]):
            block.insert(key, node)
            return
        if not block.nodes:
            self._drop(place)
        self._insert(key, node)

    def first_fit(self, items: tuple[tuple[int, int], ...]) -> Node | None:
        """The first node in order that has room for all items."""
        for block in self._blocks:
            peak = block.peak
            if not peak:
                continue
            for number, value in items:
                if number >= len(peak) or peak[number] < value:
                    break
            else:
                for node in block.nodes:
                    available = node.available
                    for number, value in items:
                        if available[number] < value:
                            break
                    else:
                        return node
                if not block.exact:
                    block.measure()
        return None

    def largest_free(self, size: int) -> list[int]:
        """Of each of ``size`` types the most that any one node has free (0 or less: none)."""
        largest = [0] * size
        for block in self._blocks:
            if not block.exact or len(block.peak) < size:
                block.measure()
            for number, value in enumerate(block.peak):
                if value > largest[number]:
                    largest[number] = value
        return largest

    def _insert(self, key: NodeKey, node: Node) -> None:
        place = bisect_right(self._lows, key) - 1
        block = self._blocks[place]
        block.insert(key, node)
        if len(block.nodes) > BLOCK_NODES_MAX:
            half = len(block.nodes) // 2
            right = _Block(block.keys[half:], block.nodes[half:])
            del block.keys[half:], block.nodes[half:]
            block.measure()
            self._lows.insert(place + 1, right.keys[0])
            self._blocks.insert(place + 1, right)

    def _delete(self, key: NodeKey) -> None:
        place = bisect_right(self._lows, key) - 1
        block = self._blocks[place]
        block.remove(key)
        if not block.nodes:
            self._drop(place)

    def _drop(self, place: int) -> None:
        """Gives an empty block's range to its neighbour (the last block stays, even empty)."""
        if len(self._blocks) == 1:
            self._blocks[0].measure()
            return
        del self._blocks[place], self._lows[place]
        self._lows[0] = _LOWEST
