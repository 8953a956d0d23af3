"""REQUIRED_NODE: a daemon's ask takes what it needs on its node.

Guarantees and ``preemption.policy`` do not count, because the ask can run nowhere else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster_core.model.allocation import PreemptionRecord
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.node import Node
from muster_core.model.reasons import NoPreemptionReason
from muster_core.preemption.cover_search import (
    STEPS_MAX,
    SearchBudget,
    VictimLeaf,
    VictimUnit,
    age_of,
    cover,
    rank_of,
    relief_of,
)
from muster_core.preemption.plan import FURTHER_MAX, Plan, gains_of, gains_of_gang, limits_over, plan_of
from muster_core.preemption.rule import RuleGuards, asker_of
from muster_core.preemption.victims import VictimCache, is_evictable, is_evicted_whole


class RequiredNodePreemption:
    """The rule REQUIRED_NODE."""

    name = "REQUIRED_NODE"
    promises = RuleGuards(opted_out_stay=True, daemons_stay=True, guarantees_kept=False)

    def plan(self, ask: Ask, node: Node, known: VictimCache, now_ns: int) -> Plan | NoPreemptionReason:
        """Chooses among the allocations on the node with priorities up to the ask's."""
        if limits_over(ask, known.underway):
            return NoPreemptionReason.LIMIT
        # 1. The amounts that are short on the node.
        room = known.underway.room(node, ask)
        short = [(number, value - room[number]) for number, value in ask.shape.items if value > room[number]]
        if not short:
            return NoPreemptionReason.NOT_NEEDED
        numbers, needs = [number for number, _ in short], [need for _, need in short]
        # 2. The victims that would help, in the order in which they go.
        branch = VictimLeaf(ask.app.queue, self.name, ask.priority)
        opted_out = known.opted_out
        entries = []
        gangs: dict[Application, None] = {}
        for allocation in node.allocations.values():
            demand = allocation.demand
            if allocation.app is not None and is_evicted_whole(allocation):
                gangs[allocation.app] = None
                continue
            if (
                not is_evictable(allocation)
                or demand.priority > ask.priority
                or not (demand.allow_preempt_self or opted_out)
            ):
                continue
            gains = gains_of(allocation, numbers, ())
            if any(gains):
                entries.append(VictimUnit(allocation, branch, rank_of(allocation), gains, relief_of(gains, needs)))
        for app in gangs:
            gang = known.gang(app)
            if gang is not None and gang.rank[2] <= ask.priority:
                gains = gains_of_gang(gang, app, node, numbers, ())
                if any(gains):
                    entries.append(VictimUnit(gang.oldest, branch, gang.rank, gains, relief_of(gains, needs), gang))
        if not entries:
            return NoPreemptionReason.NO_VICTIMS
        entries.sort(key=lambda entry: _order(entry, node))
        # 3. As many as needed.
        chosen = cover(entries, numbers, needs, SearchBudget(STEPS_MAX), STEPS_MAX)
        if not chosen:
            return NoPreemptionReason.NOT_ENOUGH_VICTIMS
        others = [entry for entry in entries if entry not in chosen and entry.gang is None]
        return replace(plan_of(ask, node, chosen, now_ns), further=tuple(others[:FURTHER_MAX]))

    def sentence(self, beginning: str, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Names the ask."""
        return f"{beginning} for ask {why.key} of application {why.app_id}, which requires that node."

    def message(self, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Names the ask and the node."""
        return f"{asker_of(why)}, which requires node {held.node_id}."


RULE: RequiredNodePreemption = RequiredNodePreemption()


def _order(entry: VictimUnit, node: Node) -> tuple[Any, ...]:
    """The order of choice: plain entries, then opted-out ones, then originators; of these low priorities, then the
    youngest, then the smallest.
    """
    allocation = entry.allocation
    opted_out, originator, priority, together = entry.rank
    size = max(value / node.capacity[number] if node.capacity[number] else 1.0 for number, value in entry.items)
    return (
        originator,
        opted_out,
        priority,
        together,
        -allocation.created_ns,
        size,
        *age_of(allocation),
    )
