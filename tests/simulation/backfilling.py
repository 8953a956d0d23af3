"""The law of backfill, the slow way: what may use a reserved node, and until when.

A reservation must not start later because of it. So an allocation on a node that is kept for another ask must end, at
the latest, when all that runs there has made room for that ask by its declared ends; or (``easy``) the ask must fit
beside it at that time.

And what was let in so keeps its end. No decision makes a reservation due later; only what the RM reports does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.books import Amounts, AuditFailure, BookedAllocation, BookedApp, BookedAsk, BookedNode, must

if TYPE_CHECKING:
    from simulation.partition_books import Books

MS_NS = 1_000_000
# Application, key, node, since when, and how many allocations its ask has had.
Reserved = tuple[str, str, str, int, int]


def check(books: Books, ask: BookedAsk, node: BookedNode, now_ns: int) -> str:
    """Fails unless the ask may be placed on the node although it is kept for another. Returns how, for the tally."""
    must(books.backfill != "off", "reserved node", f"{ask} went to {node.node_id}, kept for {node.reservations}")
    must(len(node.reservations) == 1, "reserved node", f"{ask} went to {node.node_id}, kept for {node.reservations}")
    (kept,) = node.reservations
    must(not kept.required, "backfill", f"{ask} went to {node.node_id}, which is kept for the daemon {kept}")
    must(not ask.placeholder, "backfill", f"{ask} is a placeholder, and was backfilled")
    ends = ends_after(now_ns, ask)
    if ends is None:
        must(False, "backfill", f"{ask} went to {node.node_id}, and does not say how long it runs")
    due = due_of(books, node, kept, now_ns)
    if due is None:
        raise AuditFailure("backfill", f"{ask} went to {node.node_id}: when {kept} may have it nobody knows")
    due_ns, free = due
    if ends is not None and ends <= due_ns:
        return "ends before the reservation is due"
    beside = all(value <= free.get(name, 0) - kept.wants.get(name, 0) for name, value in ask.wants.items())
    easy = books.backfill == "easy" and beside
    must(easy, "backfill", f"{ask} ends at {ends} on {node.node_id}, which {kept} may have at {due_ns}")
    return "beside the reservation"


def due_of(books: Books, node: BookedNode, kept: BookedAsk, now_ns: int) -> tuple[int, Amounts] | None:
    """When the ask may have its node by what is declared there, and all that is free then; None: nobody knows."""
    here = [held for app in books.apps.values() for held in app.held.values() if held.node_id == node.node_id]
    moments = sorted({end for held in here if (end := end_of(held, now_ns)) is not None} | {now_ns})
    for due_ns in moments:
        gone = [held for held in here if (end := end_of(held, now_ns)) is not None and end <= due_ns]
        free = {name: node.free(name) + sum(held.wants.get(name, 0) for held in gone) for name in node.capacity}
        if all(value <= free.get(name, 0) for name, value in kept.wants.items()):
            return due_ns, free
    return None


def dues(books: Books, now_ns: int) -> dict[Reserved, int]:
    """When each reservation is due of which that is known."""
    found: dict[Reserved, int] = {}
    for node in books.nodes.values() if books.backfill != "off" else ():
        if len(node.reservations) == 1 and not node.reservations[0].required:
            due = due_of(books, node, node.reservations[0], now_ns)
            if due is not None:
                found[reserved(node)] = due[0]
    return found


def reserved(node: BookedNode) -> Reserved:
    """A node's reservation: of an ask with repeats, each one is another."""
    (kept,) = node.reservations
    return kept.app.app_id, kept.key, node.node_id, kept.reserved_ns, kept.made


def moved(books: Books, before: dict[Reserved, int], now_ns: int) -> list[Reserved]:
    """The reservations that are due later than before, or nobody knows when."""
    after = dues(books, now_ns)
    there = {reserved(node) for node in books.nodes.values() if len(node.reservations) == 1}
    return [each for each, due_ns in before.items() if each in there and after.get(each, due_ns + 1) > due_ns]


def outlives(held: BookedAllocation, said_ms: int) -> bool:
    """Whether the RM says that what was backfilled lasts for longer than promised. (0: it says nothing of an end.)"""
    if not held.promised_ns or held.app is None:
        return False
    app, ends = held.app, []
    if said_ms > 0:
        ends.append(held.allocated_ns + said_ms * MS_NS)
    if app.started_ns and _app_ms(app) > 0:
        ends.append(app.started_ns + _app_ms(app) * MS_NS)
    return min(ends, default=held.promised_ns + 1) > held.promised_ns


def ends_after(now_ns: int, ask: BookedAsk) -> int | None:
    """When the ask's allocation would end at the latest, if it began now."""
    own_ms = int(ask.words["timeout_ms"])
    if own_ms > 0:
        return now_ns + own_ms * MS_NS
    return now_ns + _app_ms(ask.app) * MS_NS if _app_ms(ask.app) > 0 else None


def end_of(held: BookedAllocation, now_ns: int) -> int | None:
    """When an allocation ends at the latest, as declared; one that was told to go, now."""
    if held.told:
        return now_ns
    ends = [held.end_ns] if held.end_ns else []
    if held.app is not None and held.app.started_ns and _app_ms(held.app) > 0:
        ends.append(held.app.started_ns + _app_ms(held.app) * MS_NS)
    return max(min(ends), now_ns) if ends else None


def _app_ms(app: BookedApp) -> int:
    return app.timeout_ms if app.placeholder_ask is None else 0
