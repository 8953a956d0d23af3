"""The laws of claims on nodes (decision 258), the slow way.

* A claim has one owner, which still wants it, and an end: victims that still run, a daemon that waits for its node, or
  a reservation by age where there are reservations.
* No ask waits for a reservation of one that ranks below it.
* Room on a node that is reserved by age goes to the ask of the highest rank of those that fit there.
* A claim by preemption is lost only when no victim is left on its node and the ask is not placed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.books import BookedAsk, BookedNode, BookedQueue, must

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from simulation.partition_books import Books

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1


def yields(ask: BookedAsk) -> bool:
    """Whether its reservation stands by age alone."""
    return not ask.preempts and not ask.required and not ask.leaving


def outranks(books: Books, ask: BookedAsk, other: BookedAsk) -> bool:
    """Whether the ask has the better right to a node: by an unmet guarantee, by priority, by age."""
    own, others = books.queues[ask.app.queue].parents(), books.queues[other.app.queue].parents()
    shared = next(path for path in own if path in others)
    below = [books.queues[path] for path in own[: own.index(shared)]]
    others_below = [books.queues[path] for path in others[: others.index(shared)]]
    first = (_within(books, ask, below), _unmet(books, ask, below))
    second = (_within(books, other, others_below), _unmet(books, other, others_below))
    if first[0] and not second[1]:
        return True
    if second[0] and not first[1]:
        return False
    priorities = _seen(ask.priority, below), _seen(other.priority, others_below)
    if priorities[0] != priorities[1]:
        return priorities[0] > priorities[1]
    return (ask.created_ns, ask.order) < (other.created_ns, other.order)


def _nearest(name: str, queues: list[BookedQueue]) -> BookedQueue | None:
    return next((queue for queue in queues if queue.guaranteed is not None and name in queue.guaranteed), None)


def _guaranteed(books: Books, ask: BookedAsk, queues: list[BookedQueue]) -> list[tuple[int, int, int]]:
    """For each type with a guarantee on the way: what the ask wants, what is used, and what is guaranteed."""
    found = []
    for name, value in ask.wants.items():
        queue = _nearest(name, queues)
        if queue is not None and queue.guaranteed is not None:
            used = books.queue_used[queue.path][name] if queue.path in books.queue_used else 0
            found.append((value, used, queue.guaranteed[name]))
    return found


def _within(books: Books, ask: BookedAsk, queues: list[BookedQueue]) -> bool:
    found = _guaranteed(books, ask, queues)
    return bool(found) and all(used + value <= least for value, used, least in found)


def _unmet(books: Books, ask: BookedAsk, queues: list[BookedQueue]) -> bool:
    return any(used < least for _, used, least in _guaranteed(books, ask, queues))


def _seen(priority: int, queues: list[BookedQueue]) -> int:
    for queue in queues:
        priority = queue.offset if queue.fence else max(INT32_MIN, min(INT32_MAX, priority + queue.offset))
    return priority


def may_use(books: Books, ask: BookedAsk, node: BookedNode) -> bool:
    """Whether each claim on the node is the ask's own, or gives way to it."""
    return all(other is ask or (yields(other) and outranks(books, ask, other)) for other in node.reservations)


def rooms_by_rank(books: Books, ask: BookedAsk) -> list[BookedNode]:
    """The nodes with room that are reserved for asks of lower rank."""
    if ask.required:
        return []
    return [
        node
        for node in books.nodes.values()
        if node.usable and node.has_room(ask.wants) and node.reservations and may_use(books, ask, node)
    ]


def rivals(
    books: Books, node: BookedNode, holder: BookedAsk, tried: set[str], *, limited: bool = False
) -> list[BookedAsk]:
    """The pending asks that fit on a node that is reserved by age, and outrank the ask of the reservation.

    :param tried: ids of applications that wait as a whole: others may go before they are tried.
    :param limited: also those that a limit stops.
    """
    found = []
    for app in books.apps.values():
        if not limited and (app.app_id in tried or app.state == "Failing" or books.full(app)):
            continue
        for ask in app.asks.values():
            fits = ask is not holder and ask.open > 0 and not ask.required and node.has_room(ask.wants)
            if fits and (limited or not books.over(app, ask.wants)) and outranks(books, ask, holder):
                found.append(ask)
    return found


def check_placed(books: Books, ask: BookedAsk, node: BookedNode, tried: set[str]) -> None:
    """An ask is being placed on a node with a reservation by age, by its rank: no other ask comes first there."""
    holders = [other for other in node.reservations if yields(other)]
    for holder in holders:
        all_rivals = rivals(books, node, holder, tried, limited=True)
        first = [other for other in rivals(books, node, holder, tried) if other is not ask]
        # (Guarantees hold between queues only: each of some asks may outrank the next one.)
        best = [
            other
            for other in first
            if outranks(books, other, ask) and not any(outranks(books, third, other) for third in all_rivals)
        ]
        must(not best, "rank", f"{ask} was placed on {node.node_id}, and {best} rank above it")


def check_claims(books: Books, records: Mapping[str, Mapping[tuple[str, ...], Any]]) -> None:
    """At rest: each claim has an end."""
    heirs = {
        (record.preempted.application_id, record.preempted.allocation_key)
        for key, record in records["alloc"].items()
        if key[0] == books.name and record.HasField("preempted")
    }
    for node in books.nodes.values():
        for ask in node.reservations:
            must(ask.app.asks.get(ask.key) is ask, "claim", f"{node.node_id} is kept for {ask}, which is gone")
            if yields(ask):
                must(books.reservation_enabled, "claim", f"{node.node_id} is reserved for {ask}, where nothing is")
            elif ask.preempts and (ask.app.app_id, ask.key) not in heirs:
                must(node.has_room(ask.wants), "claim", f"{node.node_id} is claimed for {ask}, which waits for nobody")


def check_lost(books: Books, ask: BookedAsk, node: BookedNode) -> None:
    """A claim by preemption is given up: no victim is left there that would help."""
    for app in books.apps.values():
        for held in app.held.values():
            left = (
                held.node_id == node.node_id
                and held.told == "preempted"
                and held.preempted_for == (ask.app.app_id, ask.key)
            )
            must(not left, "claim", f"{ask} lost {node.node_id}, and {held} still goes for it")
    room = node.has_room(ask.wants) and not books.over(ask.app, ask.wants) and not books.full(ask.app)
    must(not room, "claim", f"{ask} lost {node.node_id}, where it fits")
