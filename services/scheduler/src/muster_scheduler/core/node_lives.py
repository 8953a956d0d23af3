"""How nodes come, change and go, as the RM and sources outside of it say (``external_merge.py`` has the rules).

Whoever says something else of a node ends in :meth:`NodeLives.settle`: what counts then is made so, with its events. A
node of which only the RM speaks is the same case, with nobody beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from muster_scheduler.core.commands import Termination
from muster_scheduler.core.external_merge import Merged, Part, merge, parts_of, taken_back, wanted_back
from muster_scheduler.core.objects import Allocation, Node, NodeReport, in_order
from muster_scheduler.core.outcome import Change, Detail, EventType, Outcome
from muster_scheduler.core.resources import fits

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


class NodeLives:
    """What becomes of the nodes of one partition; they are in ``Partition.nodes``, by id.

    :ivar number: gives the next number of submission.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.number: Callable[[], int] = _no_number

    def report_of(self, node: Node, capacity: dict[str, int] | None = None) -> NodeReport | None:
        """What the RM says of a node now; None: nothing. Not to be changed.

        :param capacity: what is to count instead of a node's own that only the RM speaks of: that is not named then.
        """
        if node.reported is not None or node.sources:
            return node.reported
        named = node.named_capacity() if capacity is None else capacity
        return NodeReport(node.attributes, named, node.reported_occupied, node.schedulable, node.by_operator)

    def settle(self, node_id: str, report: NodeReport | None, out: Outcome, now_ns: int) -> None:
        """Makes a node what it is by all that is said of it, which may be that it is there, or gone.

        Raises TooManyTypes, before anything changed, for what the RM says; what a source says is left out then.

        :param report: what the RM says of it now; None: nothing.
        """
        partition = self._partition
        if report is not None:
            partition.types.reserve([*(report.capacity or ()), *report.occupied])
        on = partition.external.heard_of(node_id, out)
        parts = parts_of(on) if on is not None else []
        node = partition.nodes.get(node_id)
        # (Also by offers that do not count: their states are looked at, too.)
        lent = on is not None and bool(partition.external.books.nodes[node_id].offers)
        if lent:
            partition.offers.moved[node_id] = None
        if (report is None or report.capacity is None) and not _brought(parts):
            if node is not None:
                self.remove(node, out, now_ns)
            if on is not None:
                partition.external.node_is_gone(node_id, on, out, went=node is not None)
            partition.figures.taken_back(node_id, taken_back(on) if lent and on is not None else None)
            return
        merged = merge(report, parts)
        came = node is None
        if node is None:
            node = self._add(node_id, merged, out, now_ns)
        else:
            self._change(node, merged, out, now_ns)
        closer = merged.closer
        if lent and closer is None and on is not None:
            closer = wanted_back(on)
        if closer != node.closed_by:
            node.closed_by = closer
            if partition.searching:
                partition.figures.changed(node)
        by_operator = report is not None and report.by_operator
        if by_operator != node.by_operator:
            node.by_operator = by_operator
            out.touch(node, partition.name)
        kept = report if report is not None and (parts or _needs_report(report)) else None
        if merged.sources != node.sources or (kept is not node.reported and kept != node.reported):
            out.touch(node, partition.name)
        node.sources, node.disputed, node.reported = merged.sources, merged.disputed, kept
        node.lent = lent
        if on is not None:
            partition.external.node_is_there(on, out, now_ns, came=came)
            if node.inquiries:  # (a source may have taken the room meanwhile)
                partition.questions.node_shrank(node, out)

    def _add(self, node_id: str, merged: Merged, out: Outcome, now_ns: int) -> Node:
        partition = self._partition
        node = Node(partition.types, node_id)
        node.set_attributes(merged.attributes)
        node.schedulable = not merged.closed
        node.submission = self.number()
        node.created_ns = now_ns
        partition.node_books.add_node(node, merged.capacity, merged.occupied)
        out.touch(node, partition.name)
        capacity = node.named_capacity()
        by = f" (sources: {', '.join(merged.sources)})" if merged.sources else ""
        message = f"Node added to the scheduler{by}{'; ' if merged.disputed else ''}{merged.disputed}"
        out.track(EventType.NODE, Change.ADD, Detail.NONE, node_id, "", capacity, message, now_ns=now_ns)
        if merged.occupied:
            occupied = dict(merged.occupied)
            out.track(EventType.NODE, Change.SET, Detail.NODE_OCCUPIED, node_id, resource=occupied, now_ns=now_ns)
        if not node.schedulable:
            _schedulable_event(node, merged, out, now_ns)
        if not node.ready:
            _flag_event(node, Detail.NODE_READY, "ready: false", out, now_ns)
        return node

    def _change(self, node: Node, merged: Merged, out: Outcome, now_ns: int) -> None:
        """(Attributes and state first, then capacity, then use: the order in which it is told.)"""
        partition, node_id = self._partition, node.node_id
        changed = False
        schedulable, ready = not merged.closed, node.ready
        opened = schedulable != node.schedulable
        if opened or merged.attributes != node.attributes:
            changed = True
            self._set_state(node, merged.attributes, schedulable, out, now_ns)
            if opened:
                _schedulable_event(node, merged, out, now_ns)
            if node.ready != ready:
                _flag_event(node, Detail.NODE_READY, f"ready: {'true' if node.ready else 'false'}", out, now_ns)
        resized, used = partition.node_books.set_node(node, merged.capacity, merged.occupied)
        changed = changed or resized or used
        if resized and node.reservations:
            for ask in [ask for ask in node.reservations if not fits(ask.shape.items, node.capacity)]:
                partition.unreserve(ask, out, now_ns)  # not even the empty node would do for it
        if resized or (merged.disputed and merged.disputed != node.disputed):
            detail, message = Detail.NODE_CAPACITY, merged.disputed
            capacity = {name: value for name, value in merged.capacity.items() if value}
            out.track(EventType.NODE, Change.SET, detail, node_id, "", capacity, message, now_ns=now_ns)
        if used:
            partition.node_books.occupied_event(node_id, out, now_ns)
        if changed:
            out.touch(node, partition.name)
            if node.refused_by:
                partition.questions.node_changed(node, out)

    def _set_state(
        self, node: Node, attributes: Mapping[str, str], schedulable: bool, out: Outcome, now_ns: int
    ) -> None:
        partition = self._partition
        partition.node_books.set_node_state(node, attributes, schedulable=schedulable)
        partition.questions.node_changed(node, out)
        if not node.usable:
            for ask in [ask for ask in node.reservations if not ask.demand.required_node]:
                partition.unreserve(ask, out, now_ns)  # nothing but daemons goes there

    # ---- going -----------------------------------------------------------------------------------------------------

    def decommission(self, node: Node, out: Outcome, now_ns: int) -> None:
        """The RM takes its part away: all that is the RM's there ends; the node stays where a source brings it."""
        partition = self._partition
        on = partition.external.heard_of(node.node_id, out)
        if on is not None and _brought(parts_of(on)):
            self._end(node, out, now_ns, everybodys=False)
        self.settle(node.node_id, None, out, now_ns)

    def remove(self, node: Node, out: Outcome, now_ns: int) -> None:
        """Takes a node away, whoever speaks of it, with all that is on it."""
        partition = self._partition
        ended = self._end(node, out, now_ns, everybodys=True)
        partition.node_books.remove_node(node)
        out.touch(node, partition.name)
        out.track(
            EventType.NODE,
            Change.REMOVE,
            Detail.NODE_DECOMISSION,
            node.node_id,
            message="Node removed from the scheduler",
            now_ns=now_ns,
        )
        self._after(ended, out, now_ns)

    def _end(self, node: Node, out: Outcome, now_ns: int, *, everybodys: bool) -> list[Allocation]:
        """Ends what is on the node: the RM's, or everybody's; and what the RM is asked about it.

        Without ``everybodys`` the node stays, and what follows for the applications is done here.
        """
        partition = self._partition
        ended = in_order(held for held in node.allocations.values() if everybodys or not held.source)
        for allocation in ended:
            partition.releases.release(
                allocation,
                Termination.STOPPED_BY_RM,
                f"Node {node.node_id} Removed",
                Detail.ALLOC_NODEREMOVED,
                out,
                now_ns,
                tell=not allocation.source,
                completing=False,
            )
        for ask in list(node.reservations):
            partition.unreserve(ask, out, now_ns)
        foreign = [held for held in node.foreign.values() if everybodys or not held.source]
        for held in foreign:
            partition.unhold(held)
            out.touch(held, partition.name)
        partition.questions.node_gone(node, out, now_ns)
        if not everybodys:
            if foreign:
                partition.node_books.occupied_event(node.node_id, out, now_ns)
            self._after(ended, out, now_ns)
        return ended

    def _after(self, ended: list[Allocation], out: Outcome, now_ns: int) -> None:
        partition = self._partition
        for allocation in ended:
            if allocation.replaced_by is not None:
                # Whose place is on another node takes it; who was to run here looks for another placeholder.
                partition.gangs.swap(allocation, out, now_ns, elsewhere=False)
        for app in dict.fromkeys(allocation.app for allocation in ended):
            if app is not None:
                partition.lifecycle.complete_if_idle(app, out, now_ns)


def _brought(parts: Iterable[Part]) -> bool:
    """Whether a node is there for the sake of some source."""
    # (any() with its generator takes three times as long.)
    for part in parts:  # noqa: SIM110
        if part.brings:
            return True
    return False


def _needs_report(report: NodeReport) -> bool:
    """Whether the RM says more than what then counts: it only drains the node, or names types of which there is none.

    (Of those nobody else may bring any, though a vector does not tell 0 from a type that is not named.)
    """
    return report.capacity is None or not all(report.capacity.values())


def _schedulable_event(node: Node, merged: Merged, out: Outcome, now_ns: int) -> None:
    why = f": {merged.closed}" if merged.closed and merged.sources else ""
    message = f"schedulable: {'true' if node.schedulable else 'false'}{why}"
    _flag_event(node, Detail.NODE_SCHEDULABLE, message, out, now_ns)


def _flag_event(node: Node, detail: Detail, message: str, out: Outcome, now_ns: int) -> None:
    out.track(EventType.NODE, Change.SET, detail, node.node_id, message=message, now_ns=now_ns)


def _no_number() -> int:
    raise AssertionError("nobody numbers what comes")
