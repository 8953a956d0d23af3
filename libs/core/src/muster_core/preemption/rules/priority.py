"""PRIORITY: an ask takes from lower priorities of other applications in its own leaf."""

from __future__ import annotations

from collections.abc import Iterable

from muster_core.model.allocation import Preempted
from muster_core.model.application import Allocation, Ask
from muster_core.model.queue import Ledger
from muster_core.preemption.cover_search import Branch
from muster_core.preemption.rule import Promises, Reach, asker_of
from muster_core.preemption.victims import Underway, is_protected


class Priority:
    """The rule PRIORITY."""

    name = "PRIORITY"
    promises = Promises(opted_out_stay=True, daemons_stay=True, guarantees_kept=False)
    own_lower_only = True

    def reach(self, ask: Ask, underway: Underway, over: Iterable[Ledger]) -> Reach:
        """Returns the ask's own leaf, unless the leaf forbids it."""
        leaf = ask.app.queue
        if not leaf.policy.preempts_by_priority or is_protected(leaf):
            return Reach([])
        return Reach([Branch(leaf, self.name, ask.priority - 1, spared=ask.app)])

    def sentence(self, beginning: str, queue: str, held: Allocation, why: Preempted) -> str:
        """Names the victim's priority."""
        return (
            f"{beginning} for ask {why.key} of application {why.app_id}, whose priority is higher than its own "
            f"({held.priority}) in the same queue, {queue}."
        )

    def message(self, queue: str, held: Allocation, why: Preempted) -> str:
        """Names the victim's priority."""
        return (
            f"{asker_of(why)}, whose priority is higher than its own ({held.priority}) in the same queue, {why.queue}."
        )


RULE: Priority = Priority()
