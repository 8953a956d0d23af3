"""REVOKED: allocations that do not fit on their node any more go when a source wants its offer back.

The machine belongs to the source. So neither guarantees nor opting out count, and daemons go, too. The scheduler never
releases what sources run themselves.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from muster_core.model.allocation import PreemptionRecord
from muster_core.model.application import Allocation
from muster_core.model.node import Node
from muster_core.preemption.cover_search import age_of
from muster_core.preemption.plan import Victim
from muster_core.preemption.rule import RuleGuards
from muster_core.preemption.victims import is_evicted_whole, whole_gang

if TYPE_CHECKING:
    from muster_core.external.reports import ReportedObject


class RevokedOfferPreemption:
    """The rule REVOKED."""

    name = "REVOKED"
    promises = RuleGuards(opted_out_stay=False, daemons_stay=False, guarantees_kept=False)

    def evict(self, node: Node, lack: dict[int, int], entry: ReportedObject, now_ns: int) -> tuple[Victim, ...]:
        """Chooses the lowest priorities on the node. The rest of a chosen allocation's gang follows if its queue asks
        for whole gangs.
        """
        lack = dict(lack)
        allocations = list(node.allocations.values())
        for allocation in allocations:
            if allocation.releasing:
                _ease(lack, allocation, 1)
        if not any(value > 0 for value in lack.values()):
            return ()
        chosen: list[Allocation] = []
        for allocation in sorted(
            (allocation for allocation in allocations if not allocation.releasing and not allocation.source),
            key=_least_first,
        ):
            if any(lack.get(number, 0) > 0 for number, _ in allocation.shape.items):
                chosen.append(allocation)
                _ease(lack, allocation, 1)
        for allocation in reversed(list(chosen)):  # keeps those that need not go
            if all(lack[number] + value <= 0 for number, value in allocation.shape.items if number in lack):
                chosen.remove(allocation)
                _ease(lack, allocation, -1)
        record = PreemptionRecord(self.name, "", f"{entry.source}/{entry.object_id}", "", now_ns)
        ends = "is offered no more" if entry.withdrawn else "is wanted back"
        message = f"Preempted on node {node.node_id}: offer {entry.object_id} of source {entry.source} {ends}"
        going: dict[Allocation, None] = {}
        for allocation in chosen:
            if allocation not in going:
                going.update(dict.fromkeys(_together(allocation, going)))
        return tuple(Victim(member, record, message) for member in going)

    def sentence(self, beginning: str, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Names the source and its offer."""
        source, _, offer = why.key.partition("/")
        return (
            f"{beginning} because the node has no room for it without offer {offer}, which source {source} has revoked."
        )

    def message(self, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Names the node, the source and its offer."""
        source, _, offer = why.key.partition("/")
        revoked = f"offer {offer}, which source {source} has revoked"
        return f"It was preempted because node {held.node_id} has no room for it without {revoked}."


RULE: RevokedOfferPreemption = RevokedOfferPreemption()


def _ease(lack: dict[int, int], allocation: Allocation, sign: int) -> None:
    for number, value in allocation.shape.items:
        if number in lack:
            lack[number] -= sign * value


def _least_first(allocation: Allocation) -> tuple[bool, int, int, int, int, int]:
    """Originators last; the lowest priority first, then the youngest."""
    return (allocation.originator, allocation.priority, *age_of(allocation))


def _together(allocation: Allocation, going: Container[Allocation]) -> tuple[Allocation, ...]:
    """The allocations that go together with this one: its whole gang, if its queue asks for that and all members may
    go.
    """
    if allocation.app is None or not is_evicted_whole(allocation):
        return (allocation,)
    gang = whole_gang(allocation.app, opted_out=True, without=going)
    return (allocation,) if gang is None else gang.members
