"""A plan: the allocations that the scheduler releases for an ask, and the amounts from which a plan is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from muster_core.model.allocation import PreemptionRecord
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.node import Node
from muster_core.model.queue import Ledger, Queue
from muster_core.model.resources import add, subtract
from muster_core.preemption.cover_search import VictimUnit, WholeGang
from muster_core.preemption.victims import PendingPreemptions
from muster_core.queues.ordering import queue_share, share_of

# Limit of further victims: they are not needed to make room, but the RM may want them released, too.
FURTHER_MAX = 16


@dataclass(frozen=True, slots=True)
class Victim:
    """One allocation that is to be released, and why.

    :param message: the text for the RM and the events.
    """

    allocation: Allocation
    why: PreemptionRecord
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The victims that make room for an ask.

    :param node: the node for the ask, which is reserved for it.
    :param victims: in the order of their release.
    :param entries: the same victims as entries of the search.
    :param further: other allocations on the node that may be released if the RM wants more than the necessary ones (the
        scheduler interface, PreemptionPredicates). The RM takes as many as it wants, from the first one on.
    """

    node: Node
    victims: tuple[Victim, ...]
    entries: tuple[VictimUnit, ...] = field(default=(), compare=False, repr=False)
    further: tuple[VictimUnit, ...] = field(default=(), compare=False, repr=False)


def plan_of(ask: Ask, node: Node, entries: list[VictimUnit], now_ns: int) -> Plan:
    """Makes the plan that releases these entries and places the ask on the node."""
    asker = ask.app.queue
    message = f"Preempted by {ask.key} from application {ask.app.app_id} in {asker.path}"
    going = [(member, entry.branch.rule) for entry in entries for member in entry.members]
    freed = [member for member, _ in going]
    after: dict[Queue, float] = {}
    for member in freed:
        leaf = member.app.queue if member.app is not None else asker
        if leaf not in after:
            after[leaf] = share_of(leaf, used_without(leaf, freed, ask if leaf is asker else None))
    asker_after = share_of(asker, used_without(asker, freed, ask))
    victims = []
    for member, rule in going:
        leaf = member.app.queue if member.app is not None else asker
        record = PreemptionRecord(
            rule,
            ask.app.app_id,
            ask.key,
            asker.path,
            now_ns,
            queue_share(leaf),
            after[leaf],
            queue_share(asker),
            asker_after,
        )
        victims.append(Victim(member, record, message))
    return Plan(node, tuple(victims), tuple(entries))


def used_without(queue: Queue, going: Iterable[Allocation], coming: Ask | None = None) -> list[int]:
    """The amounts that the queue would use without some allocations, and with one more ask."""
    used = list(queue.allocated)
    for allocation in going:
        if allocation.app is not None and queue in allocation.app.ledgers:
            subtract(used, allocation.shape.items)
    if coming is not None:
        add(used, coming.shape.items)
    return used


# ---- amounts -------------------------------------------------------------------------------------------------------


def limits_over(ask: Ask, underway: PendingPreemptions) -> dict[tuple[Ledger, int], int]:
    """The limits that the ask would exceed: by (ledger, type number), by how much."""
    excess = {}
    for ledger in ask.app.bounds:
        for number, value in ask.shape.items:
            over = underway.used(ledger, number) + value - ledger.limit[number]
            if over > 0:
                excess[ledger, number] = over
    return excess


def gains_of(allocation: Allocation, numbers: Iterable[int], limits: tuple[tuple[Ledger, int], ...]) -> tuple[int, ...]:
    """The amounts that the release would free: of these types on the allocation's node, then at each of these
    limits.
    """
    items = dict(allocation.shape.items)
    gains = [items.get(number, 0) for number in numbers]
    if limits and allocation.app is not None:
        gains += _below_limits(items, allocation.app, limits)
    return tuple(gains)


def gains_of_gang(
    gang: WholeGang,
    app: Application,
    node: Node | None,
    numbers: Iterable[int],
    limits: tuple[tuple[Ledger, int], ...],
) -> tuple[int, ...]:
    """The amounts that a whole gang would free: of these types on one node, then at each limit all that the gang
    holds.
    """
    on_node = gang.on_nodes.get(node.node_id, {}) if node is not None else {}
    gains = [on_node.get(number, 0) for number in numbers]
    if limits:
        gains += _below_limits(dict(gang.items), app, limits)
    return tuple(gains)


def _below_limits(items: dict[int, int], app: Application, limits: tuple[tuple[Ledger, int], ...]) -> list[int]:
    return [items.get(number, 0) if ledger in app.ledgers else 0 for ledger, number in limits]
