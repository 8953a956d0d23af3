"""Backfill: an ask that declares how long it runs may use a reserved node, if it surely ends before the reservation is
due.

A reservation is *due* when the declared ends of what runs on its node make enough room for its ask. If some of it
declares no end, and the rest is not enough, no one knows when, and nothing is backfilled there. An ask's declared
duration is its execution time-out, else its application's. Duration and ends are compared as declared: if others end
earlier, the reservation's ask may start earlier than due, but never because of backfill later than due.

The end for which an allocation was let in is a promise: its time-out is enforced then, whatever the RM says later. An
earlier end takes the promise's place. Sizes and nodes that the RM reports are facts: they are booked, and an ask whose
reservation becomes due later by one is told why.

* ``conservative``: the allocation ends before the reservation is due. So no other ask that waits for the node starts
  later either.
* ``easy``: it may also run on, if the reservation's ask still fits beside it when the reservation is due.

Nothing is backfilled on nodes that daemons reserved. No placeholder and no member of a gang is backfilled, and no ask
of an RM that answers predicates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from muster_core.config.properties import duration_text
from muster_core.config.queue_config import BACKFILL_EASY, BACKFILL_OFF
from muster_core.model.allocation import BackfillRecord
from muster_core.model.demand import DURATION_TAG, Demand
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.resources import INT64_MAX, Shape, add, fits
from muster_core.model.wait_points import DURATION_FROM
from muster_core.queues.rank import outranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from muster_core.model.application import Allocation, Application, Ask, AskGroup
    from muster_core.model.node import Node
    from muster_core.model.outcome import Outcome
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.queue import Waitlist

    # A reserved node, the ask of its reservation, and when that is due.
    Kept = tuple[Node, Ask, int]

_MS_NS = 1_000_000

NO_DURATION = "it declares no execution time-out, so it is not backfilled there"
NOT_DUE = "it is not known when these are due, so nothing is backfilled there"
OF_GANGS = "members of gangs are not backfilled there"
_TOO_LONG = "would last until after these are due"
_EVER_MS = (1 << 62) - 1


class Backfill:
    """Finds reserved nodes for asks of one partition that fit on no other node. Changes nothing."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    @property
    def on(self) -> bool:
        """Whether the partition backfills."""
        return self._state.config.backfill != BACKFILL_OFF

    def node_for(self, ask: Ask, now_ns: int) -> tuple[Node, BackfillRecord] | None:
        """The reserved node that the ask may use now, and for how long; None: there is none.

        Of several nodes, the one whose reservation is due first, because it leaves longer gaps to longer asks.
        """
        duration_ms = declared_ms(ask)
        if duration_ms <= 0 or ask.demand.required_node or ask.app.gang is not None or ask.refusals is not None:
            return None
        end_ns = min(now_ns + duration_ms * _MS_NS, INT64_MAX)
        easy = self._state.config.backfill == BACKFILL_EASY
        best: tuple[int, str] | None = None
        match: tuple[Node, BackfillRecord] | None = None
        for node, kept in self._open():
            if kept is ask or outranks(ask, kept) or not fits(ask.demand.shape.items, node.available):
                continue
            due = due_of(node, kept, now_ns)
            if due is None:
                continue
            due_ns, free = due
            if end_ns > due_ns and not (easy and fits(ask.demand.shape.items, free)):
                continue
            if best is None or (due_ns, node.node_id) < best:
                best = (due_ns, node.node_id)
                match = node, BackfillRecord(kept.app.app_id, kept.key, due_ns, end_ns)
        return match

    def refusal_clause(self, ask: Ask, now_ns: int) -> str:
        """Why an ask is not backfilled, although reserved nodes have room: a clause for people."""
        if declared_ms(ask) <= 0:
            return NO_DURATION
        if ask.app.gang is not None:
            return OF_GANGS
        for node, kept in self._open():
            if fits(ask.demand.shape.items, node.available) and due_of(node, kept, now_ns) is not None:
                return _too_long(ask)
        return NOT_DUE

    def longest_ms(self, shape: Shape, now_ns: int) -> int:
        """How long an ask of this shape may last at the most to be backfilled now; 0: none is."""
        easy = self._state.config.backfill == BACKFILL_EASY
        longest_ms = 0
        for node, kept in self._open():
            if fits(shape.items, node.available) and (due := due_of(node, kept, now_ns)) is not None:
                due_ns, free = due
                beside = easy and fits(shape.items, free)
                longest_ms = max(longest_ms, _EVER_MS if beside else (due_ns - now_ns) // _MS_NS)
        return longest_ms

    def explained(self, reason: Reason, ask: Ask | None, now_ns: int) -> Reason:
        """The reason with why the ask is not backfilled, if reserved nodes have room."""
        if not self.on or ask is None or reason.code is not ReasonCode.RESERVED_FOR_OTHERS:
            return reason
        return replace(reason, said=self.refusal_clause(ask, now_ns))

    def shared(self, reason: Reason, waitlist: Waitlist, now_ns: int) -> Reason:
        """The reason for which a list is refused together with another one, whose duration is another."""
        if waitlist.apart < DURATION_FROM or reason.code is not ReasonCode.RESERVED_FOR_OTHERS:
            return reason
        group: AskGroup = waitlist.groups[0][-1]
        ask = group.head()
        if ask is None or reason.said == NOT_DUE:
            return reason
        if ask.app.gang is not None or not reason.said.endswith(_TOO_LONG):
            return self.explained(reason, ask, now_ns)
        return replace(reason, said=_too_long(ask))

    def kept_there(self, node_id: str, now_ns: int) -> Kept | None:
        """The reservation of a node, before the RM's report changes what is there; None: nothing is promised."""
        node = self._state.nodes.get(node_id) if self.on else None
        if node is None or len(node.reservations) != 1:
            return None
        (kept,) = node.reservations
        due = None if kept.demand.required_node else due_of(node, kept, now_ns)
        return None if due is None else (node, kept, due[0])

    @staticmethod
    def tell_moved(before: Kept | None, changed: Allocation | None, out: Outcome, now_ns: int) -> None:
        """Tells people why a reservation is due later than before the RM's report of an allocation (None: of the node
        itself).
        """
        if before is None:
            return
        node, ask, was_ns = before
        due = due_of(node, ask, now_ns)
        if ask not in node.reservations or (due is not None and due[0] <= was_ns):
            return
        was, node_text = duration_text(was_ns - now_ns), f"{node.node_id}, reserved for it, is due"
        by = "its amounts were reported anew"
        if changed is not None:
            by = f"{changed.key} of {changed.app_id or 'another manager'} was reported there"
        if due is None:
            message = f"It is not known any more when node {node_text} (so far in {was}): {by}"
        else:
            message = f"Node {node_text} in {duration_text(due[0] - now_ns)}, not in {was}: {by}"
        out.add_user_event(ask.key, ask.app.app_id, ask.shape, message, now_ns)

    @staticmethod
    def is_uneven(waitlist: Waitlist, reason: Reason) -> bool:
        """A list was refused: whether lists of its bench, with other durations, may have another reason until now."""
        bench = waitlist.bench
        if bench is None or bench.durations is None:
            return False
        uneven = bench.uneven or (bench.last is not None and not _alike(bench.last, reason))
        bench.last, bench.uneven = reason, uneven and waitlist.relay is not waitlist.wait_point
        return uneven

    def _open(self) -> Iterator[tuple[Node, Ask]]:
        """The reserved nodes on which something may be backfilled, with the ask of the reservation."""
        for node in self._state.reserved:
            if len(node.reservations) == 1 and node.usable and node not in self._state.contested:
                (kept,) = node.reservations
                if not kept.demand.required_node:
                    yield node, kept


def _alike(first: Reason, second: Reason) -> bool:
    """Whether two reasons are the same, or would be for one duration."""
    if first.said.endswith(_TOO_LONG) and second.said.endswith(_TOO_LONG):
        return replace(first, said="").same_as(replace(second, said=""))
    return first.same_as(second)


def _too_long(ask: Ask) -> str:
    return f"its {duration_text(declared_ms(ask) * _MS_NS)} {_TOO_LONG}"


def due_of(node: Node, kept: Ask, now_ns: int) -> tuple[int, list[int]] | None:
    """When the node has room for the ask of its reservation, by declared ends; and what is free beside the ask then.
    None: it is not known.
    """
    items = kept.demand.shape.items
    free = list(node.available)
    ends = [
        (end, allocation) for allocation in node.allocations.values() if (end := end_of(allocation, now_ns)) is not None
    ]
    ends.sort(key=lambda entry: entry[0])
    due_ns, index = now_ns, 0
    while not fits(items, free):
        if index == len(ends):
            return None
        due_ns = ends[index][0]
        while index < len(ends) and ends[index][0] == due_ns:
            add(free, ends[index][1].demand.shape.items)
            index += 1
    for number, value in items:
        free[number] -= value
    return due_ns, free


def due_first(nodes: Iterable[Node], ask: Ask, now_ns: int) -> Node:
    """The node on which a reservation for the ask would be due first; of equal nodes, the first one."""
    best: Node | None = None
    best_ns: int | None = None
    for node in nodes:
        due = due_of(node, ask, now_ns)
        if best is None or (due is not None and (best_ns is None or due[0] < best_ns)):
            best, best_ns = node, None if due is None else due[0]
    assert best is not None, "no node to choose from"
    return best


def end_of(allocation: Allocation, now_ns: int) -> int | None:
    """When an allocation ends at the latest, as declared; None: it declares nothing. One that is releasing ends now."""
    if allocation.releasing:
        return now_ns
    own_ns, app_ns = allocation.end_ns, _app_end_ns(allocation.app)
    end_ns = min(own_ns, app_ns) if own_ns and app_ns else own_ns or app_ns
    return max(end_ns, now_ns) if end_ns else None


def is_reported(allocation: Allocation, since_ns: int) -> bool:
    """Whether the RM put an allocation on its node after this time, or gave it another size there. (Where a node is
    reserved, the scheduler only puts what it backfills, daemons, and what replaces placeholders.)
    """
    if allocation.demand.changed_ns > since_ns:
        return True
    decided = (
        allocation.backfilled is not None or allocation.replaces is not None or bool(allocation.demand.required_node)
    )
    return allocation.allocated_ns > since_ns and not decided


def in_force_ms(allocation: Allocation) -> int:
    """The execution time-out that is in force, from the time of allocation; 0: none."""
    return (allocation.end_ns - allocation.allocated_ns) // _MS_NS if allocation.end_ns else 0


def in_force(allocation: Allocation) -> Demand:
    """The allocation's demand as the RM is told it: with the time-out in force, if its own would last for longer."""
    demand = allocation.demand
    if allocation.backfilled is None or not outlives(allocation, demand.execution_timeout_ms):
        return demand
    return replace(demand, tags={**demand.tags, DURATION_TAG: str(in_force_ms(allocation))})


def outlives(allocation: Allocation, said_ms: int) -> bool:
    """Whether an allocation would last for longer than promised, if this were its execution time-out."""
    by = allocation.backfilled
    if by is None:
        return False
    app_ns = _app_end_ns(allocation.app)
    end_ns = allocation.allocated_ns + said_ms * _MS_NS if said_ms > 0 else app_ns
    return not end_ns or (min(end_ns, app_ns) if app_ns else end_ns) > by.end_ns


def promised(allocation: Allocation, demand: Demand) -> BackfillRecord | None:
    """What is promised of an allocation once this is its demand: an earlier end is the promised one from now on."""
    by, said_ms = allocation.backfilled, demand.execution_timeout_ms
    if by is None or said_ms <= 0:
        return by
    end_ns = allocation.allocated_ns + said_ms * _MS_NS
    return replace(by, end_ns=end_ns) if end_ns < by.end_ns else by


def declared_ms(ask: Ask) -> int:
    """How long an allocation of the ask runs at the most, as declared; 0: nothing is declared."""
    own_ms = ask.demand.execution_timeout_ms
    return own_ms if own_ms > 0 else max(_app_ms(ask.app), 0)


def _app_end_ns(app: Application | None) -> int:
    """When the application's execution time-out ends what runs; 0: never."""
    return app.started_ns + _app_ms(app) * _MS_NS if app is not None and app.started_ns and _app_ms(app) > 0 else 0


def _app_ms(app: Application) -> int:
    """The application's execution time-out. (Of a gang, it is the time-out of the placeholders.)"""
    return app.execution_timeout_ms if app.placeholder_ask is None else 0
