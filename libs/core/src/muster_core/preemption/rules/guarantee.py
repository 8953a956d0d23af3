"""GUARANTEE: an ask within a guarantee takes from queues that keep their guarantees.

An allocation in leaf V may be a victim of an ask in leaf A under three conditions. V is inside A's fence and not
disabled. The ask is within a guarantee on the way from A up to the first queue that both share. The victim's priority
is not above the ask's, with the offsets and fences on the way up and down.

A queue's guarantee protects the content of the queue against the rest of the partition. It does not order the queues
inside. So only guarantees below the first shared queue count, on both sides. This also stops allocations from being
taken to and fro: a queue that gave up an allocation keeps its guarantee in each type of the allocation, and asking for
it again would exceed the guarantee.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from muster_core.config.properties import PreemptionPolicy
from muster_core.model.allocation import PreemptionRecord
from muster_core.model.application import Allocation, Ask
from muster_core.model.queue import Ledger, Queue
from muster_core.model.reasons import NoPreemptionReason
from muster_core.preemption.cover_search import GuaranteeGuard, VictimLeaf
from muster_core.preemption.rule import RuleGuards, VictimScope, asker_of, shares
from muster_core.preemption.victims import PendingPreemptions, is_protected

NAME = "GUARANTEE"


class GuaranteePreemption:
    """The rule GUARANTEE."""

    name = NAME
    promises = RuleGuards(opted_out_stay=True, daemons_stay=True, guarantees_kept=True)
    own_lower_only = True

    def reach(self, ask: Ask, underway: PendingPreemptions, over: Iterable[Ledger]) -> VictimScope:
        """Walks up to the fence, then down into every leaf with possible victims inside the fence.

        A queue among the exceeded limits is a fence, because only victims that count in the queue help.
        """
        leaf, items = ask.app.queue, ask.shape.items
        limits = set(over)
        # 1. Up: the worth of the ask's priority at each queue, and whether a guarantee below the queue entitles the
        #    ask.
        worth: dict[Queue, int] = {}
        entitled: dict[Queue, bool] = {}
        within: dict[int, bool] = {}
        priority = ask.priority
        for queue in leaf.ancestry:
            worth[queue] = priority
            entitled[queue] = bool(within) and all(within.values())
            if queue.parent is None or queue in limits or queue.policy.preemption is PreemptionPolicy.FENCE:
                break
            for number, value in items:
                least = (queue.guaranteed or {}).get(number)
                if least is not None and number not in within:
                    within[number] = underway.used(queue, number) + value <= least
            policy = queue.policy
            priority = policy.priority_offset if policy.priority_fence else priority + policy.priority_offset
        fence = queue
        if fence is leaf:
            return VictimScope([], NoPreemptionReason.LIMIT if leaf in limits else NoPreemptionReason.FENCED)
        if not any(entitled.values()):
            return VictimScope([], NoPreemptionReason.OVER_GUARANTEE if within else NoPreemptionReason.NO_GUARANTEE)
        # 2. Down into the other branches.
        branches: list[VictimLeaf] = []
        numbers = {number for number, _ in items}
        for queue, speaks in entitled.items():
            if speaks:
                for child in queue.children.values():
                    if child not in worth:
                        branches.extend(_below(child, worth[queue], numbers, ()))
        return VictimScope(branches, None if branches else NoPreemptionReason.NO_VICTIMS)

    def sentence(self, beginning: str, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Names the share of the asking queue, before and after."""
        missing = f"queue {why.queue} gets {why.asker_share_after:.0%} of its share instead of"
        for_whom = f"so that ask {why.key} of application {why.app_id} may run and {missing}"
        return f"{beginning}, {for_whom} {why.asker_share_before:.0%}."

    def message(self, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Names the shares of both queues."""
        asker = shares(why.queue, why.asker_share_before, why.asker_share_after)
        victim = shares(queue, why.victim_share_before, why.victim_share_after)
        return f"{asker_of(why)}, whose queue is below its guarantee: {asker}, {victim}."


RULE: GuaranteePreemption = GuaranteePreemption()


def _below(
    queue: Queue, priority: int | None, numbers: set[int], guards: tuple[GuaranteeGuard, ...]
) -> Iterator[VictimLeaf]:
    """Yields the leaves of a subtree with possible victims.

    :param priority: the highest priority of victims there; None: a fence above them admits all priorities.
    """
    allocated = queue.allocated
    if not any(allocated[number] > 0 for number in numbers):
        return
    policy = queue.policy
    if priority is not None:
        if not policy.priority_fence:
            priority -= policy.priority_offset
        elif policy.priority_offset > priority:
            return
        else:
            priority = None
    if queue.guaranteed:
        preempting = queue.preempting
        spare = {number: allocated[number] - preempting[number] - least for number, least in queue.guaranteed.items()}
        if all(spare.get(number, 1) <= 0 for number in numbers):
            return
        guards = (*guards, GuaranteeGuard(queue, spare))
    if not queue.leaf:
        for child in queue.children.values():
            yield from _below(child, priority, numbers, guards)
    elif not is_protected(queue):
        yield VictimLeaf(queue, NAME, priority, guards)
