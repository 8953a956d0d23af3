"""The law of backfill, the slow way: what may use a reserved node, and until when.

A reservation must not start later because of it. So an allocation on a node that is kept for another ask must end, at
the latest, when all that runs there has made room for that ask by its declared ends; or (``easy``) the ask must fit
beside it at that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.books import BookedAllocation, BookedApp, BookedAsk, BookedNode, must

if TYPE_CHECKING:
    from simulation.partition_books import Books

MS_NS = 1_000_000


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
    here = [held for app in books.apps.values() for held in app.held.values() if held.node_id == node.node_id]
    moments = sorted({end for held in here if (end := end_of(held, now_ns)) is not None} | {now_ns})
    for due_ns in moments:
        gone = [held for held in here if (end := end_of(held, now_ns)) is not None and end <= due_ns]
        free = {name: node.free(name) + sum(held.wants.get(name, 0) for held in gone) for name in node.capacity}
        if any(value > free.get(name, 0) for name, value in kept.wants.items()):
            continue
        if ends is not None and ends <= due_ns:
            return "ends before the reservation is due"
        beside = all(value <= free.get(name, 0) - kept.wants.get(name, 0) for name, value in ask.wants.items())
        easy = books.backfill == "easy" and beside
        must(easy, "backfill", f"{ask} ends at {ends} on {node.node_id}, which {kept} may have at {due_ns}")
        return "beside the reservation"
    must(False, "backfill", f"{ask} went to {node.node_id}: when {kept} may have it nobody knows")
    return ""


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
    ends = []
    if held.words["timeout_ms"] > 0:
        ends.append(held.allocated_ns + held.words["timeout_ms"] * MS_NS)
    if held.app is not None and held.app.started_ns and _app_ms(held.app) > 0:
        ends.append(held.app.started_ns + _app_ms(held.app) * MS_NS)
    return max(min(ends), now_ns) if ends else None


def _app_ms(app: BookedApp) -> int:
    return app.timeout_ms if app.placeholder_ask is None else 0
