"""The schedulable nodes in the order in which they are tried, with a quick way to the first node that fits.

The node sort policy defines the order: by score, then by node id. For each ask, YuniKorn visits every full node before
the first node that fits. With binpacking, where full nodes come first, this costs the whole cluster each time. Here a
search skips full nodes:

* A *block* holds up to :data:`BLOCK_NODES_MAX` consecutive nodes. A block's range begins at its *low* key and ends
  before the next block's.
* Shapes that are searched for often are *watched*: each has a bit. Each node has a *mask*, the bits of the watched
  shapes for which it has room now. Each block, and each row of :data:`ROW_BLOCKS` blocks, has the union of its masks. A
  search for a watched shape looks at the rows, then at the blocks of the first row with the bit, then at the nodes of
  the first block with the bit. Unions only grow while nodes move; a union that wrongly promised a node is computed
  anew, once for all shapes.
* A node's mask does not need a comparison with each shape. For each type, the watched quantities are sorted, each with
  the mask of all shapes that need no more. The mask takes one bisection for each type, and an intersection.
* An unwatched shape fits only on nodes that fit every watched shape with no larger need of any type. The search looks
  at those nodes one by one. When such searches have passed as many nodes in vain as there are nodes, one more watched
  shape pays for itself. The searched shape then gets a bit, perhaps the bit of the shape watched for longest. The
  blocks that the search passed learn the bit at once, the others when a search comes to them. So shapes that return are
  soon watched; of shapes that never return, a sample is watched that leads the others past the full nodes.

So clusters whose first nodes have room (fair) pay little for masks, and searches skip full nodes. A search always finds
exactly the first node in order that fits; the watched shapes only affect speed.

The next search puts nodes that moved into their new places. So nothing is sorted while other managers report use
thousands of times in a second and no ask is pending.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from muster_core.model.resources import fits

if TYPE_CHECKING:
    from muster_core.model.node import Node
    from muster_core.model.resources import Shape

# Small enough to look through; large enough that 10,000 nodes make a few hundred blocks.
BLOCK_NODES_MAX = 64
# A row has as many blocks as a cluster of about 50,000 nodes has rows.
ROW_BLOCKS = 32
# Limit of bits. An intersection of so many bits costs no more than one of 30. In a cluster with more shapes at a time,
# most are covered by watched shapes that they exceed.
WATCHED_MAX = 256
# In a small cluster, a shape gets a bit after so many nodes examined in vain: about the cost of a bit, one check for
# each watched shape.
VAIN_LOOKS_MIN = 256
# Nodes examined in vain cost more than a bit if they are this part of all nodes: blocks learn a bit only when a search
# comes to them, and with it all others, once for neighbours that are alike.
VAIN_PART = 4

NodeKey = tuple[float, str]
Items = tuple[tuple[int, int], ...]
_LOWEST: NodeKey = (float("-inf"), "")
_HIGHEST: NodeKey = (float("inf"), "")


class _Block:
    """Consecutive nodes with their keys and masks.

    :ivar known: the bits for which the masks hold; the block learns others when a search comes to it.
    """

    __slots__ = ("keys", "known", "masks", "nodes")

    def __init__(self, keys: list[NodeKey], nodes: list[Node], masks: list[int], known_bits: int) -> None:
        self.keys = keys
        self.nodes = nodes
        self.masks = masks
        self.known = known_bits

    def union(self, everything: int) -> int:
        """The union of the nodes' masks, with all bits that the block does not know."""
        bits = everything & ~self.known
        for mask in self.masks:
            bits |= mask
        return bits

    def learn_all(self, watched: _TrackedShapes) -> None:
        """Computes all bits."""
        self.known = watched.everything
        masks, mask = self.masks, 0
        free: list[int] = []
        for spot, node in enumerate(self.nodes):
            if node.available != free or not spot:  # neighbours are often alike
                free = node.available
                mask = watched.mask(free)
            masks[spot] = mask

    def learn(self, items: Items, bit: int) -> None:
        """Computes the bit of a shape that became watched since the last search in this block."""
        self.known |= bit
        others, masks = ~bit, self.masks
        for spot, node in enumerate(self.nodes):
            free = node.available
            for number, value in items:  # as in `fits`, whose call would take longer than this loop
                if free[number] < value:
                    masks[spot] &= others
                    break
            else:
                masks[spot] |= bit


class _TrackedShapes:
    """The watched shapes, and which of them fit a vector of free amounts.

    :ivar bits: by items, the oldest first.
    :ivar everything: all bits.
    """

    __slots__ = ("_steps", "bits", "everything")

    def __init__(self) -> None:
        self.bits: dict[Items, int] = {}
        self.everything = 0
        # For each type: the quantities, ascending, and the masks of the shapes that need at most none, one, two … of
        # them.
        self._steps: list[tuple[int, list[int], list[int]]] = []

    def take(self, items: Items) -> int:
        """Watches one more shape. Returns its bit, which another shape may have had."""
        full = len(self.bits) >= WATCHED_MAX
        bit = self.bits.pop(next(iter(self.bits))) if full else 1 << len(self.bits)
        self.bits[items] = bit
        self.everything |= bit
        self._steps = [
            self._step(number) for number in sorted({number for shape_items in self.bits for number, _ in shape_items})
        ]
        return bit

    def teach(self, block: _Block) -> None:
        """Lets a block learn the bits that it does not know."""
        missing = self.everything & ~block.known
        if missing & (missing - 1):
            block.learn_all(self)
            return
        for items, bit in self.bits.items():
            if bit == missing:
                block.learn(items, bit)

    def _step(self, number: int) -> tuple[int, list[int], list[int]]:
        content, bits_by_quantity = 0, dict[int, int]()
        for items, bit in self.bits.items():
            quantity = dict(items).get(number, 0)
            if quantity:
                bits_by_quantity[quantity] = bits_by_quantity.get(quantity, 0) | bit
            else:
                content |= bit
        masks = [content]
        for quantity in sorted(bits_by_quantity):
            masks.append(masks[-1] | bits_by_quantity[quantity])
        return number, sorted(bits_by_quantity), masks

    def mask(self, free: list[int]) -> int:
        """The bits of the shapes that fit these free amounts."""
        mask = self.everything
        for number, quantities, masks in self._steps:
            mask &= masks[bisect_right(quantities, free[number])]
        return mask

    def within(self, items: Items) -> int:
        """The bits of the shapes that need no more of any type: a node with room for the items has room for
        these, too.
        """
        requested, mask = dict(items), self.everything
        for number, quantities, masks in self._steps:
            mask &= masks[bisect_right(quantities, requested.get(number, 0))]
        return mask


class NodeIndex:
    """Nodes by (score, id). The caller reports each change of a node's score or free amounts.

    :ivar version: grows with each change. A failed search fails again while the version is the same.
    :cvar counts_work: whether the order depends on the present asks and allocations, so that
        :meth:`count_shape` matters.
    """

    __slots__ = ("_blocks", "_lows", "_moved", "_rows", "_unions", "_vain", "_watched", "count", "version")

    counts_work = False

    def __init__(self) -> None:
        self._lows: list[NodeKey] = [_LOWEST]
        self._blocks: list[_Block] = [_Block([], [], [], 0)]
        self._unions: list[int] = [0]  # the union of each block's masks, or more bits
        self._rows: list[int] = [0]  # the union of ROW_BLOCKS consecutive unions, or more bits
        self._watched = _TrackedShapes()
        self._moved: dict[Node, NodeKey] = {}  # with the keys under which their blocks still have them
        self._vain = 0  # nodes passed in vain by searches for unwatched shapes, since the last shape was watched
        self.count = 0
        self.version = 0

    def __iter__(self) -> Iterator[Node]:
        self._put_moved()
        for block in self._blocks:
            yield from block.nodes

    # ---- changes ---------------------------------------------------------------------------------------------------

    def count_shape(self, shape: Shape, count: int) -> None:
        """Counts ``count`` more asks of the shape as pending or allocated (fewer, if negative). Does nothing here."""

    def add(self, node: Node, score: float) -> None:
        """Adds a node."""
        self.version += 1
        self.count += 1
        node.index_key = key = (score, node.node_id)
        self._insert(bisect_right(self._lows, key) - 1, key, node)

    def remove(self, node: Node) -> None:
        """Removes a node."""
        key = node.index_key
        assert key is not None, f"node {node.node_id} is not in the index"
        self.version += 1
        self.count -= 1
        key = self._moved.pop(node, key)
        node.index_key = None
        index = bisect_right(self._lows, key) - 1
        self._remove_from_block(index, key)
        self._mend(index)

    def move(self, node: Node, score: float) -> None:
        """The node's free amounts changed, and perhaps its score."""
        old = node.index_key
        assert old is not None, f"node {node.node_id} is not in the index"
        self.version += 1
        self._moved.setdefault(node, old)
        node.index_key = (score, node.node_id)

    def _put_moved(self) -> None:
        """Puts the nodes that moved into their places."""
        for node, old in self._moved.items():
            assert node.index_key is not None
            self._put(node, old, node.index_key)
        self._moved.clear()

    def _put(self, node: Node, old: NodeKey, key: NodeKey) -> None:
        lows = self._lows
        index = bisect_right(lows, old) - 1
        block = self._blocks[index]
        keys = block.keys
        spot = bisect_left(keys, old)
        within = lows[index] <= key and (index + 1 == len(lows) or key < lows[index + 1])
        if within and (not spot or keys[spot - 1] < key) and (spot + 1 == len(keys) or key < keys[spot + 1]):
            # The node stays between the same neighbours (its score may be the same): nothing is shifted.
            keys[spot] = key
            block.masks[spot] = mask = self._watched.mask(node.available)
            self._unions[index] |= mask
            self._rows[index // ROW_BLOCKS] |= mask
            return
        del keys[spot], block.nodes[spot], block.masks[spot]
        if not within:
            self._mend(index)
            index = bisect_right(lows, key) - 1
        self._insert(index, key, node)

    def _insert(self, index: int, key: NodeKey, node: Node) -> None:
        block = self._blocks[index]
        spot = bisect_left(block.keys, key)
        mask = self._watched.mask(node.available)
        block.keys.insert(spot, key)
        block.nodes.insert(spot, node)
        block.masks.insert(spot, mask)
        self._unions[index] |= mask
        self._rows[index // ROW_BLOCKS] |= mask
        if len(block.keys) > BLOCK_NODES_MAX:
            self._split(index)

    def _remove_from_block(self, index: int, key: NodeKey) -> None:
        block = self._blocks[index]
        spot = bisect_left(block.keys, key)
        del block.keys[spot], block.nodes[spot], block.masks[spot]

    def _split(self, index: int) -> None:
        block, everything = self._blocks[index], self._watched.everything
        half = len(block.keys) // 2
        right = _Block(block.keys[half:], block.nodes[half:], block.masks[half:], block.known)
        del block.keys[half:], block.nodes[half:], block.masks[half:]
        self._lows.insert(index + 1, right.keys[0])
        self._blocks.insert(index + 1, right)
        self._unions[index : index + 1] = (block.union(everything), right.union(everything))
        self._measure_rows(index)

    def _mend(self, index: int) -> None:
        """Joins a small block with a neighbour that has room for it. An empty block always joins."""
        blocks = self._blocks
        if len(blocks) == 1 or len(blocks[index].keys) > BLOCK_NODES_MAX // 4:
            return
        left_index = index if index + 1 < len(blocks) else index - 1
        into, right = blocks[left_index], blocks[left_index + 1]
        if blocks[index].keys and len(into.keys) + len(right.keys) > BLOCK_NODES_MAX // 4 * 3:
            return
        into.keys += right.keys
        into.nodes += right.nodes
        into.masks += right.masks
        into.known &= right.known
        self._unions[left_index] = into.union(self._watched.everything)
        del blocks[left_index + 1], self._lows[left_index + 1], self._unions[left_index + 1]
        self._measure_rows(left_index)

    def _measure_rows(self, index: int) -> None:
        """Computes the rows again, from that of a block on."""
        row = index // ROW_BLOCKS
        self._rows[row:] = [self._row(start) for start in range(row * ROW_BLOCKS, len(self._unions), ROW_BLOCKS)]

    def _row(self, start: int) -> int:
        union = 0
        for mask in islice(self._unions, start, start + ROW_BLOCKS):
            union |= mask
        return union

    # ---- searches --------------------------------------------------------------------------------------------------

    def first_fit(self, items: Items) -> Node | None:
        """The first node in order that has room for all items; None: there is none."""
        if self._moved:
            self._put_moved()
        bit = self._watched.bits.get(items)
        return self._search(items) if bit is None else self._search_watched(bit)

    def first_of(self, nodes: Iterable[Node], items: Items) -> Node | None:
        """Like :meth:`first_fit`, among a few nodes."""
        return min(
            (node for node in nodes if node.index_key is not None and fits(items, node.available)),
            key=lambda node: node.index_key or _HIGHEST,
            default=None,
        )

    def fitting(self, items: Items, but: Collection[str], count: int) -> list[Node]:
        """The first ``count`` nodes in order that have room for all items, without the nodes with these ids."""
        self._put_moved()
        nodes: list[Node] = []
        needed = self._watched.within(items)
        for block, union in zip(self._blocks, self._unions, strict=True):
            if union & needed != needed:
                continue
            if needed & ~block.known:
                self._watched.teach(block)
            for node, mask in zip(block.nodes, block.masks, strict=True):
                if mask & needed == needed and node.node_id not in but and fits(items, node.available):
                    nodes.append(node)
                    if len(nodes) == count:
                        return nodes
        return nodes

    def _search_watched(self, bit: int) -> Node | None:
        unions = self._unions
        for row, promise in enumerate(self._rows):
            if not promise & bit:
                continue
            start = row * ROW_BLOCKS
            for index, union in enumerate(unions[start : start + ROW_BLOCKS], start):
                if union & bit:
                    block = self._blocks[index]
                    if not block.known & bit:
                        self._watched.teach(block)
                    for spot, mask in enumerate(block.masks):
                        if mask & bit:
                            return block.nodes[spot]
                    unions[index] = block.union(self._watched.everything)
            self._rows[row] = self._row(start)
        return None

    def _search(self, items: Items) -> Node | None:
        needed, looks = self._watched.within(items), 0
        unions = self._unions
        for row, promise in enumerate(self._rows):
            if promise & needed != needed:
                continue
            start = row * ROW_BLOCKS
            for index, union in enumerate(unions[start : start + ROW_BLOCKS], start):
                if union & needed == needed:
                    block = self._blocks[index]
                    if needed & ~block.known:
                        self._watched.teach(block)
                    nodes = block.nodes
                    for spot, mask in enumerate(block.masks):
                        if mask & needed != needed:
                            continue
                        free = nodes[spot].available
                        for number, value in items:
                            if free[number] < value:
                                break
                        else:
                            self._count_vain(items, looks + spot, index)
                            return nodes[spot]
                    looks += len(block.masks)
                    unions[index] = block.union(self._watched.everything)
            self._rows[row] = self._row(start)
        self._count_vain(items, looks, len(unions))
        return None

    def _count_vain(self, items: Items, looks: int, walked: int) -> None:
        """Counts nodes that a search passed in vain. ``walked``: the number of blocks that the search passed."""
        self._vain += looks
        if self._vain >= max(VAIN_LOOKS_MIN, self.count // VAIN_PART):
            self._vain = 0
            self._watch(items, walked)

    def _watch(self, items: Items, walked: int) -> None:
        bit = self._watched.take(items)
        for index, block in enumerate(self._blocks):
            if index < walked:
                block.learn(items, bit)
                self._unions[index] = block.union(self._watched.everything)
            else:
                block.known &= ~bit
                self._unions[index] |= bit
        self._measure_rows(0)
