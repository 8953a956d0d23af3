"""The lives of nodes: how the RM and external sources add, change and remove them (``external_merge.py`` has the
rules).

Every statement about a node leads to :meth:`NodeLifecycle.settle_in_steps`, which gives the node its merged values, and
adds the events. A node that only the RM describes is the case without sources.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from muster_core.external.external_merge import (
    MergedNode,
    SourceNodeReport,
    merge,
    reports_by_source,
    revoking_source,
    withdrawn_by,
)
from muster_core.model.allocation_order import ordered_in_steps
from muster_core.model.application import Allocation, Application
from muster_core.model.commands import Termination
from muster_core.model.node import Node, NodeReport
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome
from muster_core.model.resources import fits
from muster_core.model.steps import LIGHT_STEP, STEP, Steps, emptied

if TYPE_CHECKING:
    from muster_core.allocation.accounting import Accounting
    from muster_core.allocation.backfill import Backfill
    from muster_core.allocation.releases import Releases
    from muster_core.allocation.reservations import Reservations
    from muster_core.applications.lifecycle import ApplicationLifecycle
    from muster_core.external.reports import NodeReports, PartitionReports
    from muster_core.gangs.gangs import Gangs
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_accounting import NodeAccounting
    from muster_core.nodes.node_stats import NodeStats
    from muster_core.predicates.predicate_calls import PredicateCalls


class NodeReportSource(Protocol):
    """The statements of external sources about nodes."""

    def reports_for(self, node_id: str, out: Outcome) -> NodeReports | None:
        """The sources' statements about the node; None: there are none."""

    def on_node_added(self, on: NodeReports, out: Outcome, now_ns: int, *, came: bool) -> Steps:
        """Marks the entries about the node as valid now, in steps."""

    def on_node_removed(self, node_id: str, on: NodeReports, out: Outcome, *, went: bool) -> Steps:
        """Marks the entries about a node that does not exist as dormant, in steps."""


class NodeLifecycle:
    """Adds, changes and removes the nodes of one partition. They are in ``PartitionState.nodes``, by id.

    :ivar number: makes the next submission number.
    """

    _external: NodeReportSource

    def __init__(
        self,
        state: PartitionState,
        *,
        figures: NodeStats,
        node_books: NodeAccounting,
        books: Accounting,
        reservations: Reservations,
        releases: Releases,
        lifecycle: ApplicationLifecycle,
        gangs: Gangs,
        questions: PredicateCalls,
        external_books: PartitionReports,
        backfill: Backfill,
    ) -> None:
        self._state = state
        self._figures = figures
        self._node_books = node_books
        self._books = books
        self._reservations = reservations
        self._releases = releases
        self._lifecycle = lifecycle
        self._gangs = gangs
        self._questions = questions
        self._external_books = external_books
        self._backfill = backfill
        self.number: Callable[[], int] = _no_number

    def connect(self, *, external: NodeReportSource) -> None:
        """Takes the part that is built after this one."""
        self._external = external

    def report_of(self, node: Node, capacity: dict[str, int] | None = None) -> NodeReport | None:
        """The RM's report of a node now; None: there is none. Callers must not change the report.

        :param capacity: for a node that only the RM describes, the capacity to report instead of the node's own.
        """
        if node.reported is not None or node.sources:
            return node.reported
        named = node.named_capacity() if capacity is None else capacity
        return NodeReport(node.attributes, named, node.reported_occupied, node.schedulable, node.by_operator)

    def settle_in_steps(self, node_id: str, report: NodeReport | None, out: Outcome, now_ns: int) -> Steps:
        """Gives a node the merged values of all statements about it: the node may be added, changed, or removed. In
        steps: very many allocations may be there.

        Raises TooManyTypes for the RM's report, before anything changes. A source's statement with too many types is
        left out.

        :param report: the RM's present report of the node; None: there is none.
        """
        state = self._state
        if report is not None:
            state.types.reserve([*(report.capacity or ()), *report.occupied])
        on = self._external.reports_for(node_id, out)
        parts = reports_by_source(on) if on is not None else []
        node = state.nodes.get(node_id)
        # (Offers that do not count matter, too: their states are reviewed.)
        has_offers = on is not None and bool(self._external_books.nodes[node_id].offers)
        if has_offers:
            state.moved_offers[node_id] = None
        if (report is None or report.capacity is None) and not _brought(parts):
            yield from self._remove_unbrought(node_id, on, out, now_ns, has_offers=has_offers)
            return
        merged = merge(report, parts)
        came = node is None
        if node is None:
            node = self._add(node_id, merged, out, now_ns)
        else:
            self._change(node, merged, out, now_ns)
        closer = merged.closer
        if has_offers and closer is None and on is not None:
            closer = revoking_source(on)
        if closer != node.closed_by:
            node.closed_by = closer
            if state.searching:
                self._figures.on_node_changed(node)
        by_operator = report is not None and report.by_operator
        if by_operator != node.by_operator:
            node.by_operator = by_operator
            out.mark_changed(node, state.name)
        kept = report if report is not None and (parts or _needs_report(report)) else None
        if merged.sources != node.sources or (kept is not node.reported and kept != node.reported):
            out.mark_changed(node, state.name)
        node.sources, node.disputed, node.reported = merged.sources, merged.disputed, kept
        node.has_offers = has_offers
        if on is not None:
            yield from self._external.on_node_added(on, out, now_ns, came=came)
        self._questions.on_node_shrunk(node, out)  # (the RM or a source may have taken the room meanwhile)
        if on is not None and came:  # (allocations on the node count in queues)
            self._questions.on_limits_lowered(out)

    def _add(self, node_id: str, merged: MergedNode, out: Outcome, now_ns: int) -> Node:
        state = self._state
        node = Node(state.types, node_id)
        node.set_attributes(merged.attributes)
        node.schedulable = not merged.closed
        node.submission = self.number()
        node.created_ns = now_ns
        self._node_books.add_node(node, merged.capacity, merged.occupied)
        out.mark_changed(node, state.name)
        capacity = node.named_capacity()
        by = f" (sources: {', '.join(merged.sources)})" if merged.sources else ""
        message = f"Node added to the scheduler{by}{'; ' if merged.disputed else ''}{merged.disputed}"
        out.add_event(EventType.NODE, EventChange.ADD, EventDetail.NONE, node_id, "", capacity, message, now_ns=now_ns)
        if merged.occupied:
            occupied = dict(merged.occupied)
            out.add_event(
                EventType.NODE, EventChange.SET, EventDetail.NODE_OCCUPIED, node_id, resource=occupied, now_ns=now_ns
            )
        if not node.schedulable:
            _schedulable_event(node, merged, out, now_ns)
        if not node.ready:
            _flag_event(node, EventDetail.NODE_READY, "ready: false", out, now_ns)
        return node

    def _change(self, node: Node, merged: MergedNode, out: Outcome, now_ns: int) -> None:
        """(First attributes and state, then capacity, then use: this is the order of the events.)"""
        state, node_id = self._state, node.node_id
        changed = False
        schedulable, ready = not merged.closed, node.ready
        opened = schedulable != node.schedulable
        if opened or merged.attributes != node.attributes:
            changed = True
            self._set_state(node, merged.attributes, schedulable, out, now_ns)
            if opened:
                _schedulable_event(node, merged, out, now_ns)
            if node.ready != ready:
                _flag_event(node, EventDetail.NODE_READY, f"ready: {'true' if node.ready else 'false'}", out, now_ns)
        kept = self._backfill.kept_there(node_id, now_ns)
        resized, used = self._node_books.set_node(node, merged.capacity, merged.occupied)
        changed = changed or resized or used
        if resized and node.reservations:
            for ask in [ask for ask in node.reservations if not fits(ask.shape.items, node.capacity)]:
                # (Not even the empty node would have room for the ask.)
                self._reservations.unreserve(ask, out, now_ns, "the node became too small for the ask")
        if resized or (merged.disputed and merged.disputed != node.disputed):
            detail, message = EventDetail.NODE_CAPACITY, merged.disputed
            capacity = {name: value for name, value in merged.capacity.items() if value}
            out.add_event(EventType.NODE, EventChange.SET, detail, node_id, "", capacity, message, now_ns=now_ns)
        if used:
            self._node_books.occupied_event(node_id, out, now_ns)
        if resized or used:
            self._backfill.tell_moved(kept, None, out, now_ns)
        if changed:
            out.mark_changed(node, state.name)
            if node.refused_by:
                self._questions.node_changed(node, out)

    def _set_state(
        self, node: Node, attributes: Mapping[str, str], schedulable: bool, out: Outcome, now_ns: int
    ) -> None:
        self._node_books.set_node_state(node, attributes, schedulable=schedulable)
        self._questions.node_changed(node, out)
        if not node.usable:
            for ask in [ask for ask in node.reservations if not ask.demand.required_node]:
                self._reservations.unreserve(ask, out, now_ns, "the node was closed")  # only daemons may go there

    # ---- removal ---------------------------------------------------------------------------------------------------

    def decommission(self, node: Node, out: Outcome, now_ns: int) -> Steps:
        """Removes the RM's node, and ends everything of the RM on it. The node stays if a source brings it."""
        on = self._external.reports_for(node.node_id, out)
        if on is not None and _brought(reports_by_source(on)):
            self._questions.node_changed(node, out)  # (the node stays: asks that were refused there may try again)
            yield from self._end(node, out, now_ns, everybodys=False)
        yield from self.settle_in_steps(node.node_id, None, out, now_ns)

    def _remove_unbrought(
        self, node_id: str, on: NodeReports | None, out: Outcome, now_ns: int, *, has_offers: bool
    ) -> Steps:
        node = self._state.nodes.get(node_id)
        if node is not None:
            yield from self.remove(node, out, now_ns)
        if on is not None:
            yield from self._external.on_node_removed(node_id, on, out, went=node is not None)
        self._figures.on_node_withdrawn(node_id, withdrawn_by(on) if has_offers and on is not None else None)

    def remove(self, node: Node, out: Outcome, now_ns: int) -> Steps:
        """Removes a node with everything on it, whether the RM or a source describes it; in steps."""
        state = self._state
        ended = yield from self._end(node, out, now_ns, everybodys=True)
        self._node_books.remove_node(node)
        out.mark_changed(node, state.name)
        out.add_event(
            EventType.NODE,
            EventChange.REMOVE,
            EventDetail.NODE_DECOMISSION,
            node.node_id,
            resource=node.named_capacity(),
            message="Node removed from the scheduler",
            now_ns=now_ns,
        )
        yield from self._after(ended, out, now_ns)

    def _end(
        self, node: Node, out: Outcome, now_ns: int, *, everybodys: bool
    ) -> Generator[None, None, list[Allocation]]:
        """Ends the allocations on the node: the RM's, or all (``everybodys``); and withdraws questions to the RM about
        the node.

        Without ``everybodys`` the node stays, and the consequences for applications are handled here.
        """
        state = self._state
        ended = yield from ordered_in_steps(
            allocation for allocation in node.allocations.values() if everybodys or not allocation.source
        )
        for count, allocation in enumerate(ended, 1):
            self._releases.release(
                allocation,
                Termination.STOPPED_BY_RM,
                f"Node {node.node_id} Removed",
                EventDetail.ALLOC_NODEREMOVED,
                out,
                now_ns,
                tell=not allocation.source,
                completing=False,
            )
            if not count % STEP:
                yield
        for ask in list(node.reservations):
            self._reservations.unreserve(ask, out, now_ns, "the node was removed")
        foreign: list[Allocation] = []
        for count, allocation in enumerate(node.foreign.values(), 1):
            if everybodys or not allocation.source:
                foreign.append(allocation)
            if not count % LIGHT_STEP:
                yield
        has_foreign = bool(foreign)
        for count, allocation in enumerate(emptied(foreign), 1):
            self._books.uncharge(allocation)
            out.mark_changed(allocation, state.name)
            if not count % STEP:
                yield
        self._questions.on_node_removed(node, out, now_ns)
        if not everybodys:
            if has_foreign:
                self._node_books.occupied_event(node.node_id, out, now_ns)
            yield from self._after(ended, out, now_ns)
        return ended

    def _after(self, ended: list[Allocation], out: Outcome, now_ns: int) -> Steps:
        """Handles the consequences for gangs and applications."""
        apps: dict[Application, None] = {}
        for count, allocation in enumerate(emptied(ended), 1):
            if allocation.app is not None:
                apps[allocation.app] = None
            if not count % STEP:
                yield
            if allocation.replaced_by is not None:
                # A real ask whose placeholder is on another node takes that place. An ask that was to run here looks
                # for another placeholder.
                self._gangs.complete_replacement(allocation, out, now_ns, elsewhere=False)
        for count, app in enumerate(apps, 1):
            self._lifecycle.complete_if_idle(app, out, now_ns)
            if not count % STEP:
                yield


def _brought(parts: Iterable[SourceNodeReport]) -> bool:
    """Whether some source brings the node."""
    # (any() with its generator takes three times as long.)
    for part in parts:  # noqa: SIM110
        if part.brings:
            return True
    return False


def _needs_report(report: NodeReport) -> bool:
    """Whether the RM's report has more than the node's own values: it only drains the node, or it names types with
    amount 0.

    (No source may bring any of those, although a vector does not distinguish 0 from a type that is not named.)
    """
    return report.capacity is None or not all(report.capacity.values())


def _schedulable_event(node: Node, merged: MergedNode, out: Outcome, now_ns: int) -> None:
    reason = f": {merged.closed}" if merged.closed and merged.sources else ""
    message = f"schedulable: {'true' if node.schedulable else 'false'}{reason}"
    _flag_event(node, EventDetail.NODE_SCHEDULABLE, message, out, now_ns)


def _flag_event(node: Node, detail: EventDetail, message: str, out: Outcome, now_ns: int) -> None:
    out.add_event(EventType.NODE, EventChange.SET, detail, node.node_id, message=message, now_ns=now_ns)


def _no_number() -> int:
    raise AssertionError("no submission numbers are set")
