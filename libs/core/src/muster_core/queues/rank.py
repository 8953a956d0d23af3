"""The rank of asks: which of two waiting asks has the better right to the room of a node.

A reservation by age holds a node against asks that rank below its own, and gives way to those that rank above
(``docs/concepts/reservation.md``, decision 258). The rank of an ask does not depend on how much its queue uses in
proportion to others, because that changes with every placement. Between two asks, in this order:

1. An ask within the unmet guarantee of its queue ranks above one whose queue has its guarantee, or has none. Only
   guarantees below the first queue that both share count: a guarantee orders queues, not what is inside of one.
2. The higher priority as the first shared queue sees it, with the offsets and fences below that queue. (Whether queues
   sort by priority does not matter: that orders what is tried first, not what may be kept from whom.)
3. The older ask; of equal ones, the one that was submitted first.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from muster_core.config.properties import INT32_MAX, INT32_MIN

if TYPE_CHECKING:
    from muster_core.model.application import Ask
    from muster_core.model.node import Node
    from muster_core.model.queue import Queue


def outranks(ask: Ask, rival: Ask) -> bool:
    """Whether the ask has the better right to a node than the other one."""
    own, rival_queue = ask.app.queue, rival.app.queue
    priority, rival_priority = ask.demand.priority, rival.demand.priority
    if own is not rival_queue:
        below, rival_below = _apart(own, rival_queue)
        if _is_within_guarantee(ask, below):
            if not _is_below_guarantee(rival, rival_below):
                return True
        elif _is_within_guarantee(rival, rival_below) and not _is_below_guarantee(ask, below):
            return False
        priority = _lifted(priority, below)
        rival_priority = _lifted(rival_priority, rival_below)
    if priority != rival_priority:
        return priority > rival_priority
    return ask.age < rival.age


def may_take_over(ask: Ask, holder: Ask) -> bool:
    """Whether the ask may take over the reservation by age of the other one.

    It must outrank it, and come first in an order of all asks, too: of some asks, each may outrank the next one, and
    they would take a node from each other for ever.
    """
    return holder.yields and outranks(ask, holder) and _place(ask) < _place(holder)


def _place(ask: Ask) -> tuple[bool, int, int, int]:
    queues = list(ask.app.queue.line)
    return (not _is_within_guarantee(ask, queues), -_lifted(ask.demand.priority, queues), *ask.age)


def highest(asks: list[Ask]) -> Ask | None:
    """An ask that no other one outranks; None if there are none.

    Guarantees and fences hold between queues only, so it is possible that each of some asks outranks the next one. Of
    these, the oldest is taken.
    """
    if not asks:
        return None
    asks.sort(key=attrgetter("age"))
    best = asks[0]
    for ask in asks:
        if outranks(ask, best):
            best = ask
    for first in (best, *asks):
        if not any(outranks(ask, first) for ask in asks):
            return first
    return asks[0]


def may_use(ask: Ask, node: Node) -> bool:
    """Whether each reservation of the node is the ask's own, or gives way to the ask."""
    for holder in node.reservations:
        if holder is not ask and not (holder.yields and outranks(ask, holder)):
            return False
    return True


def _apart(first: Queue, second: Queue) -> tuple[list[Queue], list[Queue]]:
    """The queues from each of two leaves up to, but without, the first queue that they share."""
    ancestry, others = list(first.ancestry), list(second.ancestry)
    while ancestry[-1] is others[-1]:
        ancestry.pop()
        others.pop()
    return ancestry, others


def _lifted(priority: int, queues: list[Queue]) -> int:
    """The priority as the queue above these queues sees it (``ordering.queue_key``)."""
    for queue in queues:
        policy = queue.policy
        if policy.priority_fence:
            priority = policy.priority_offset
        elif policy.priority_offset:
            priority = max(INT32_MIN, min(INT32_MAX, priority + policy.priority_offset))
    return priority


def _is_within_guarantee(ask: Ask, queues: list[Queue]) -> bool:
    """Whether, of each type of the ask that has a guarantee, the nearest queue with one keeps to it with the ask."""
    has_guarantee = False
    for number, value in ask.demand.shape.items:
        for queue in queues:
            if queue.guaranteed is not None and (least := queue.guaranteed.get(number)) is not None:
                if queue.allocated[number] + value > least:
                    return False
                has_guarantee = True
                break
    return has_guarantee


def _is_below_guarantee(ask: Ask, queues: list[Queue]) -> bool:
    """Whether, of some type of the ask, the nearest queue with a guarantee has less than that."""
    for number, _ in ask.demand.shape.items:
        for queue in queues:
            if queue.guaranteed is not None and (least := queue.guaranteed.get(number)) is not None:
                if queue.allocated[number] < least:
                    return True
                break
    return False
