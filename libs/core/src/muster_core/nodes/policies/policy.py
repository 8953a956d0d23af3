"""The contract of a node sort policy: its name, the score of a node, and the index that keeps the nodes in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster_core.nodes.node_index import NodeIndex

if TYPE_CHECKING:
    from muster_core.model.node import Node
    from muster_core.model.resources import ResourceTypes

# Type number and weight, from ``nodesortpolicy.resourceweights``, without types of weight 0.
Weights = list[tuple[int, float]]


def one_order(_: ResourceTypes) -> NodeIndex:
    """The index of a policy with one order for all asks: by score, then by node id."""
    return NodeIndex()


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """The order in which the scheduler tries the nodes for an ask. A policy is one module and one entry in
    ``registry.py``.

    The contract, which ``tests/unit/core/test_node_policy_contract.py`` runs over every policy:

    * The score is a function of the node and the weights as they are now: a score uses no clock, no chance and no
      memory, and is never NaN. So a scheduler that recovers, and each follower, finds the same order.
    * The order of the index is total: by the policy's value, then by score (lowest first), then by node id.
    * ``first_fit`` returns the first node in that order with room for all items, or None; ``first_of`` does so among a
      few nodes; ``fitting`` returns the first few, without nodes with some ids.
    * An index after any ``add``, ``remove`` and ``move`` finds the same nodes as a new index.

    The node books call ``score`` when a node's capacity or use changed, and pass the score to the index (``add``,
    ``move``). Each new configuration makes a new index. An index whose order depends on asks and allocations sets
    ``counts_work``: the books then report each of them to a new index (``count_shape``).

    :param name: ``nodesortpolicy.type`` of the configuration; lower case.
    :param score: the score of a node with the weights; the lowest comes first.
    :param new_index: makes an empty index for the partition's resource types.
    """

    name: str
    score: Callable[[Node, Weights], float]
    new_index: Callable[[ResourceTypes], NodeIndex] = one_order


def used_share(node: Node, weights: Weights) -> float:
    """The weighted used share of the node, 0.0 to 1.0. Types that the node does not have do not count."""
    total = score = 0.0
    capacity, available = node.capacity, node.available
    for number, weight in weights:
        full = capacity[number]
        if full > 0:
            total += weight
            score += weight * (1.0 - available[number] / full)
    return score / total if total else 0.0


def minus_used_share(node: Node, weights: Weights) -> float:
    """Minus :func:`used_share`: the fullest node comes first."""
    return -used_share(node, weights)
