"""PRIORITY: an ask takes from lower priorities of other applications in its own leaf."""

from __future__ import annotations

from collections.abc import Iterable

from muster_core.model.allocation import PreemptionRecord
from muster_core.model.application import Allocation, Ask
from muster_core.model.queue import Ledger
from muster_core.preemption.cover_search import VictimLeaf
from muster_core.preemption.rule import RuleGuards, VictimScope, asker_of
from muster_core.preemption.victims import PendingPreemptions, is_protected


class PriorityPreemption:
    """The rule PRIORITY."""

    name = "PRIORITY"
    promises = RuleGuards(opted_out_stay=True, daemons_stay=True, guarantees_kept=False)
    own_lower_only = True

    def reach(self, ask: Ask, underway: PendingPreemptions, over: Iterable[Ledger]) -> VictimScope:
        """Returns the ask's own leaf, unless the leaf forbids it."""
        leaf = ask.app.queue
        if not leaf.policy.preempts_by_priority or is_protected(leaf):
            return VictimScope([])
        return VictimScope([VictimLeaf(leaf, self.name, ask.priority - 1, spared=ask.app)])

    def sentence(self, beginning: str, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Names the victim's priority."""
        return (
            f"{beginning} for ask {why.key} of application {why.app_id}, whose priority is higher than its own "
            f"({held.priority}) in the same queue, {queue}."
        )

    def message(self, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Names the victim's priority."""
        return (
            f"{asker_of(why)}, whose priority is higher than its own ({held.priority}) in the same queue, {why.queue}."
        )


RULE: PriorityPreemption = PriorityPreemption()
