"""QUOTA: a queue that is above its max gives back the excess.

``queues/quota_enforcement.py`` decides when.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from muster_core.model.allocation import PreemptionRecord
from muster_core.model.application import Allocation
from muster_core.model.partition_state import PartitionState
from muster_core.model.queue import Queue
from muster_core.preemption.cover_search import Class, Items, age_of, rank_of
from muster_core.preemption.plan import Victim, used_without
from muster_core.preemption.rule import RuleGuards, shares
from muster_core.preemption.victims import is_evictable, is_evicted_whole, whole_gang
from muster_core.queues.ordering import queue_share, share_of

HOUR_NS = 3600 * 1_000_000_000
# A cut visits at most so many queues, counting repeated visits. With several types, a deep tree could be split in any
# number of ways.
VISITS_MAX = 100_000
# By type number.
Amount = dict[int, int]


class QuotaPreemption:
    """The rule QUOTA."""

    name = "QUOTA"
    promises = RuleGuards(opted_out_stay=True, daemons_stay=True, guarantees_kept=True)

    def cut(self, state: PartitionState, queue: Queue, now_ns: int, *, opted_out: bool) -> tuple[Victim, ...]:
        """Cuts the queue down to its max; see :func:`choose`."""
        going = choose(state, queue, opted_out=opted_out)
        message = f"Preempted by Quota change enforcement process in {queue.path}"
        over_before, over_after = queue_share(queue), share_of(queue, used_without(queue, going))
        victims = []
        after: dict[Queue, float] = {}
        for allocation in going:
            assert allocation.app is not None, f"{allocation} is foreign"
            leaf = allocation.app.queue
            if leaf not in after:
                after[leaf] = share_of(leaf, used_without(leaf, going))
            before_after = (queue_share(leaf), after[leaf], over_before, over_after)
            victims.append(
                Victim(allocation, PreemptionRecord(self.name, "", "", queue.path, now_ns, *before_after), message)
            )
        return tuple(victims)

    def sentence(self, beginning: str, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Names the queue that is cut."""
        return f"{beginning} because queue {why.queue} used {why.asker_share_before:.0%} of its lowered max."

    def message(self, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Names the queue that is cut."""
        asker = shares(why.queue, why.asker_share_before, why.asker_share_after)
        return f"It was preempted because queue {why.queue} is above its lowered max: {asker}."


RULE: QuotaPreemption = QuotaPreemption()


def excess(queue: Queue) -> Amount:
    """How far the queue is above its max, by type number, without released allocations. Never more than the ancestors
    have above their guarantees.
    """
    amounts = {}
    for number, most in (queue.maximum or {}).items():
        over = queue.allocated[number] - queue.preempting[number] - most
        for above in queue.ancestry[1:]:
            over = min(over, _above_guaranteed(above, number))
        if over > 0:
            amounts[number] = over
    return amounts


def choose(state: PartitionState, queue: Queue, *, opted_out: bool) -> list[Allocation]:
    """Chooses the allocations that are to go: together never more than the excess.

    :param opted_out: allocations that opted out may go too, last.
    """
    cut = _QuotaCut(state, opted_out=opted_out)
    cut.down(queue, excess(queue))
    return list(cut.chosen)


class _Candidate(NamedTuple):
    """An allocation that may go, or a gang that goes as a whole, with all that it holds.

    :ivar oldest: the allocation whose age counts; of a gang, its oldest member.
    """

    members: tuple[Allocation, ...]
    oldest: Allocation
    rank: Class
    items: Items


class _QuotaCut:
    """Cuts from the top down. A chosen allocation counts as gone at once."""

    def __init__(self, state: PartitionState, *, opted_out: bool) -> None:
        self._state = state
        self.chosen: dict[Allocation, None] = {}
        self._opted_out = opted_out
        self._freed: dict[Queue, Amount] = {}
        # By queue, the part of its last requested amount that the queue could not give.
        self._refused: dict[Queue, Amount] = {}
        self._visits = 0

    def down(self, queue: Queue, amount: Amount) -> Amount:
        """Takes up to this amount from the queue. Returns what is left of the amount."""
        remaining = dict(amount)
        refused = self._refused.get(queue)
        # (A queue that could not give an amount cannot give a smaller one either. Without this, n queues in a row would
        # take 2^n visits.)
        if not any(remaining.values()) or (
            refused is not None and all(value <= refused.get(number, 0) for number, value in remaining.items())
        ):
            return remaining
        self._visits += 1
        if self._visits > VISITS_MAX:
            return remaining
        if queue.leaf:
            self._cut_leaf(queue, remaining)
        else:
            self._cut_children(queue, amount, remaining)
        self._refused[queue] = dict(remaining)
        return remaining

    def _cut_children(self, queue: Queue, amount: Amount, remaining: Amount) -> None:
        # 1. Each child gives a part, in proportion to what it has above its guarantee.
        spare = {child: self._spare(child, amount) for child in queue.children.values()}
        total = {number: sum(child_spare[number] for child_spare in spare.values()) for number in amount}
        for child, own in spare.items():
            part = {
                number: min(own[number], value * own[number] // total[number] if total[number] else 0)
                for number, value in amount.items()
            }
            self._from_child(child, part, remaining)
        # 2. The rest, because parts are rounded down and allocations are indivisible: first from the child with most
        #    above its guarantee.
        by_spare = sorted(queue.children.values(), key=lambda child: self._rest_order(child, remaining))
        for child in by_spare:
            own = self._spare(child, remaining)
            self._from_child(child, {number: min(value, own[number]) for number, value in remaining.items()}, remaining)

    def _from_child(self, child: Queue, part: Amount, remaining: Amount) -> None:
        uncut = self.down(child, part)
        for number, value in part.items():
            remaining[number] -= value - uncut[number]

    def _rest_order(self, child: Queue, remaining: Amount) -> tuple[float, str]:
        own = self._spare(child, remaining)
        return (-max((own[number] / value for number, value in remaining.items() if value), default=0.0), child.path)

    def _spare(self, queue: Queue, amount: Amount) -> Amount:
        freed = self._freed.get(queue, {})
        return {number: max(_above_guaranteed(queue, number) - freed.get(number, 0), 0) for number in amount}

    def _cut_leaf(self, leaf: Queue, remaining: Amount) -> None:
        candidates = [
            candidate
            for candidate in self._candidates(leaf)
            if candidate.oldest not in self.chosen
            and any(remaining.get(number, 0) > 0 for number, _ in candidate.items)
        ]
        candidates.sort(key=lambda candidate: _order(candidate, leaf, remaining))
        for candidate in candidates:
            items = candidate.items
            if any(number in remaining for number, _ in items) and all(
                remaining.get(n, value) >= value for n, value in items
            ):
                self.chosen.update(dict.fromkeys(candidate.members))
                for number, value in items:
                    if number in remaining:
                        remaining[number] -= value
                    for queue in leaf.ancestry:
                        freed = self._freed.setdefault(queue, {})
                        freed[number] = freed.get(number, 0) + value

    def _candidates(self, leaf: Queue) -> Iterator[_Candidate]:
        whole = leaf.policy.gangs_preempted_whole
        for app in self._state.apps_in(leaf):
            gang = whole_gang(app, opted_out=self._opted_out) if whole else None
            if gang is not None:
                yield _Candidate(gang.members, gang.oldest, gang.rank, gang.items)
            for allocation in app.allocations.values():
                if whole and is_evicted_whole(allocation):
                    continue
                if is_evictable(allocation) and (self._opted_out or allocation.demand.allow_preempt_self):
                    yield _Candidate((allocation,), allocation, rank_of(allocation), allocation.shape.items)


def _above_guaranteed(queue: Queue, number: int) -> int:
    least = (queue.guaranteed or {}).get(number, 0)
    return queue.allocated[number] - queue.preempting[number] - least


def _order(candidate: _Candidate, leaf: Queue, remaining: Amount) -> tuple[Any, ...]:
    """The order of choice: plain candidates, then originators, then opted-out ones; then those that hold mostly types
    that are over; low priorities; single ones before gangs; the youngest (by the hour); the smallest.
    """
    items = candidate.items
    opted_out, originator, priority, together = candidate.rank
    match = sum(1 for number, _ in items if remaining.get(number, 0) > 0) / len(items)
    share = max(value / leaf.fair_max[number] if leaf.fair_max[number] else 1.0 for number, value in items)
    return (
        opted_out,
        originator,
        -match,
        priority,
        together,
        -(candidate.oldest.created_ns // HOUR_NS),
        share,
        *age_of(candidate.oldest),
    )
