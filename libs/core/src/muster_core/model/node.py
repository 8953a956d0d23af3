"""A node: its capacity, its allocations, and the causes that close it for new allocations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster_si.constants import NODE_READY_ATTRIBUTE

from muster_core.model.cordons import Cordon, CordonKind
from muster_core.model.resources import ResourceTypes, Vector, saturated
from muster_core.model.steps import Steps, clear_in_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster_core.model.application import Allocation, Ask


@dataclass(slots=True)
class NodeReport:
    """The RM's own report of a node that sources describe, too.

    :ivar capacity: by type name, zeros included; None: the RM did not create the node, it only drains it.
    :ivar by_operator: an operator drains it.
    """

    attributes: dict[str, str]
    capacity: dict[str, int] | None
    occupied: dict[str, int]
    schedulable: bool = True
    by_operator: bool = False


class Node:
    """A node. ``available = capacity - allocated - occupied``, which is negative while its RM over-commits the node.

    :ivar schedulable: nothing drains it; ``ready``: its attributes do not say that it is not ready.
    :ivar by_operator: an operator drains it, not the RM.
    :ivar closed_by: the closer of the node, or of a revoked offer on it; None: there is none, but the node may not be
        ready. It is not recorded for nodes that sources describe (``ExternalReconciler.cordon_of``).
    :ivar reported_occupied: NodeInfo.occupiedResource, absolute (plus what external sources say); foreign allocations
        add to it in ``occupied``.
    :ivar sources: the external sources that describe it, sorted. The other fields have the merged values.
    :ivar reported: what the RM itself says, if it differs from the merged values. None: it does not differ; or, with
        ``sources``, they brought the node and the RM says nothing.
    :ivar pooled: by type number, the node's own amounts of pooled types, which do not count (``pools.py``).
    :ivar has_offers: a source offers parts of it, or did: changes of its use lead to a review in ``offers.py``.
    :ivar disputed: the differences of the statements about it, as a text; "": there are none.
    :ivar index_key: its key in the node index; None: it is not in the index (draining, or reserved).
    :ivar reservations: the asks for which it is reserved, in order.
    :ivar refused_by: the asks for which the RM refused it.
    :ivar taken: no further proposal is made there until the RM has answered (``exclusivity.py``): it is not in the
        index.
    """

    __slots__ = (
        "allocated",
        "allocations",
        "attributes",
        "available",
        "by_operator",
        "capacity",
        "closed_by",
        "created_ns",
        "disputed",
        "foreign",
        "gone",
        "has_offers",
        "index_key",
        "node_id",
        "occupied",
        "pooled",
        "published",
        "ready",
        "refused_by",
        "reported",
        "reported_occupied",
        "reservations",
        "schedulable",
        "sources",
        "submission",
        "taken",
        "types",
    )

    def __init__(self, types: ResourceTypes, node_id: str) -> None:
        self.types = types
        self.node_id = node_id
        self.attributes: dict[str, str] = {}
        self.capacity: Vector = types.vector()
        self.occupied: Vector = types.vector()
        self.allocated: Vector = types.vector()
        self.available: Vector = types.vector()
        self.pooled: dict[int, int] = {}
        self.reported_occupied: dict[str, int] = {}
        self.sources: tuple[str, ...] = ()
        self.reported: NodeReport | None = None
        self.disputed = ""
        self.has_offers = False
        self.schedulable = self.ready = True
        self.by_operator = False
        self.closed_by: Cordon | None = None
        self.submission = 0
        self.created_ns = 0
        self.allocations: dict[tuple[str, str], Allocation] = {}
        self.foreign: dict[str, Allocation] = {}
        self.index_key: tuple[float, str] | None = None
        self.reservations: dict[Ask, None] = {}
        self.refused_by: dict[Ask, None] = {}
        self.taken = False
        self.gone = False
        self.published = False

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Sets the attributes, and whether the node is ready (previous generation, NodeReadyAttribute)."""
        self.attributes = dict(attributes)
        self.ready = is_ready(attributes) is not False

    def named_capacity(self) -> dict[str, int]:
        """Its stated capacity by type name, including pooled types, which do not count."""
        types = self.types
        quantities = types.quantities(self.capacity)
        if self.pooled:
            quantities.update((types.names[number], saturated(value)) for number, value in self.pooled.items())
        return quantities

    @property
    def of_rm(self) -> bool:
        """Whether the RM created it; False: sources brought it."""
        return not self.sources if self.reported is None else self.reported.capacity is not None

    @property
    def usable(self) -> bool:
        """Whether new allocations may go there. (A daemon's may in any case.)"""
        return self.schedulable and self.ready

    @property
    def closer(self) -> Cordon | None:
        """The node's closer, as far as the node knows."""
        if self.schedulable and not self.ready:
            return _NOT_READY
        return self.closed_by

    def take_apart(self) -> Steps:
        """Forgets its allocations and reservations. It is no longer used, see ``Partition.dispose``."""
        yield from clear_in_steps(self.allocations)
        yield from clear_in_steps(self.foreign)
        self.reservations.clear()
        self.refused_by.clear()

    def __repr__(self) -> str:
        return f"Node({self.node_id})"


_NOT_READY = Cordon(CordonKind.NOT_READY)
# The values that Go's strconv.ParseBool accepts, which RMs and YuniKorn use.
_READY = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)


def is_ready(attributes: Mapping[str, str]) -> bool | None:
    """Whether a node's attributes say that it is ready; None: they do not say so, or unreadably."""
    return _READY.get(attributes.get(NODE_READY_ATTRIBUTE, ""))
