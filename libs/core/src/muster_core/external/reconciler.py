"""Applies the statements of external sources to one partition (docs/external-rules.md).

A change leads to a review of its subject only. An entry that cannot count now, because its node, queue or application
does not exist, is *dormant*: the entry has the reason, and is reviewed when its subject appears. The RM gets messages
only about its own allocations that end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from muster_core.allocation import item_conversion
from muster_core.config.queue_config import INDEPENDENT
from muster_core.external.external_merge import (
    merge,
    quota_dispute,
    reports_by_source,
    revoking_source,
    smallest_maximum,
    withdrawn_by,
)
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
)
from muster_core.external.problems import no_partition, set_problem, without
from muster_core.external.reports import (
    EntryChange,
    NodeReports,
    PartitionReports,
    ReportedObject,
    SourceEntry,
    order_of,
)
from muster_core.model.allocation import foreign_id, unique_key
from muster_core.model.application import Allocation, Application
from muster_core.model.commands import AskItem, Termination
from muster_core.model.cordons import Cordon
from muster_core.model.node import Node
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome
from muster_core.model.queue import Queue
from muster_core.model.resources import TooManyTypes
from muster_core.model.states import AppState
from muster_core.model.steps import FEW, LIGHT_STEP, STEP, Pace, Steps, emptied, sorted_in_steps
from muster_core.queues import placement_rules, quota_enforcement
from muster_core.queues.limits import link_event

if TYPE_CHECKING:
    from muster_core.allocation.recovery import Recovery
    from muster_core.allocation.releases import Releases
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.applications.lifecycle import ApplicationLifecycle
    from muster_core.external.offers import Offers
    from muster_core.gangs.gangs import Gangs
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_lifecycle import NodeLifecycle
    from muster_core.nodes.node_stats import NodeStats
    from muster_core.nodes.pools import Pools
    from muster_core.queues.queue_tree import QueueTree


class ExternalReconciler:
    """The external sources of one partition. The books hold the entries; the partition's objects hold the merged
    values.

    A source's allocation belongs to its application. Without one, it is a foreign allocation with the key
    ``<source>/<key>``.

    :ivar books: the sources' statements.
    :ivar vacant: ids of applications that ended and that sources bring, too: to be reviewed.
    """

    def __init__(
        self,
        state: PartitionState,
        *,
        figures: NodeStats,
        waiting: SchedulingQueue,
        gangs: Gangs,
        lifecycle: ApplicationLifecycle,
        releases: Releases,
        recovery: Recovery,
        queue_tree: QueueTree,
        node_lives: NodeLifecycle,
        pools: Pools,
        offers: Offers,
        books: PartitionReports,
    ) -> None:
        self._state = state
        self._figures = figures
        self._waiting = waiting
        self._gangs = gangs
        self._lifecycle = lifecycle
        self._releases = releases
        self._recovery = recovery
        self._queue_tree = queue_tree
        self._node_lives = node_lives
        self._pools = pools
        self._offers = offers
        self.books = books
        self.vacant: dict[str, None] = {}

    # ---- the whole partition ---------------------------------------------------------------------------------------

    def begin(self, out: Outcome, now_ns: int) -> Steps:
        """Applies all entries of the books to a new partition, in steps."""
        self._pools.reconcile(out, now_ns)
        yield from self._offers.begin(out, now_ns)
        yield from self._settle_all(self.books.queues, self.books.nodes, self.books.applications, out, now_ns)
        entries = yield from sorted_in_steps(self.books.entries(ExternalKind.ALLOCATION), order_of)
        for count, entry in enumerate(emptied(entries), 1):
            self._settle_allocation(entry, out, now_ns)
            if not count % STEP:
                yield

    def end(self, out: Outcome, now_ns: int) -> Steps:
        """Takes all objects of the sources out of a partition that is removed, in steps."""
        state = self._state
        for count, app in enumerate(list(state.apps.values()), 1):
            if app.source:
                yield from self._lifecycle.remove_in_steps(app, out, now_ns)
            if not count % FEW:
                yield
        for count, node in enumerate(list(state.nodes.values()), 1):
            yield from self._node_lives.remove(node, out, now_ns)
            if not count % FEW:
                yield
        entries: list[ReportedObject] = []
        for count, entry in enumerate(self.books.entries(), 1):
            entries.append(entry)
            if not count % LIGHT_STEP:
                yield
        for count, entry in enumerate(emptied(entries), 1):
            if entry.withdrawn:  # no allocation needs it any more
                self.books.forget(entry)
                out.mark_changed(entry, entry.partition)
            else:
                no_partition(entry, out)
            if not count % STEP:
                yield

    def activate(self) -> None:
        """Prepares for later changes after a fold, which merges nothing."""
        state = self._state
        for path, entries in self.books.queues.items():
            queue = state.queues.get(path)
            if queue is not None and queue.parent is not None:
                queue.external_maximum = self._maximum(entries)[1]
        for node_id, on in self.books.nodes.items():
            node = state.nodes.get(node_id)
            if node is not None:
                merged = merge(self._node_lives.report_of(node), reports_by_source(on))
                node.disputed, node.closed_by = merged.disputed, merged.closer or revoking_source(on)
            else:
                self._figures.on_node_withdrawn(node_id, withdrawn_by(on))

    def apply(self, changes: list[EntryChange], out: Outcome, now_ns: int) -> Steps:
        """Applies a set of changes that the books have taken, in steps. Empties the list.

        The order keeps objects alive that exist before and after: first removals, then changes of nodes and queues,
        then new objects on them.
        """
        pools = False
        queues: dict[str, None] = {}
        nodes: dict[str, None] = {}
        apps: dict[str, None] = {}
        gone: list[tuple[ReportedObject, str]] = []
        allocations: dict[ReportedObject, None] = {}
        name = self.books.name
        for count, (entry, before, counts) in enumerate(emptied(changes), 1):
            if not count % STEP:
                yield
            out.mark_changed(entry, name)
            if not counts:
                continue
            if isinstance(entry, SourceEntry):
                for number, node_id in enumerate(_nodes_of(entry), 1):
                    nodes[node_id] = None
                    if not number % LIGHT_STEP:
                        yield
                pools = pools or bool(self.books.pools)
                continue
            match entry.said:
                case ExternalNode(node_id=node_id):
                    nodes[node_id] = None
                case ExternalOffer(node_id=node_id):
                    self._offers.on_change(entry, before, out, now_ns)
                    nodes[node_id] = None
                    if isinstance(before, ExternalOffer):
                        nodes[before.node_id] = None
                case ExternalPool():
                    pools = True
                case ExternalQueue(path=path):
                    queues[path.lower()] = None
                case ExternalApplication(app_id=app_id):
                    apps[app_id] = None
                case ExternalAllocation(node_id=node_id, app_id=app_id):
                    if not self._stays(node_id, entry):
                        nodes[node_id] = None
                    if isinstance(before, ExternalAllocation):
                        if before.node_id != node_id and not self._stays(before.node_id, entry):
                            nodes[before.node_id] = None
                        if entry.gone or before.app_id != app_id:
                            gone.append((entry, before.app_id))
                    if not entry.gone:
                        allocations[entry] = None
        if pools:
            self._pools.reconcile(out, now_ns)
        yield from self._settle_all(queues, (), (), out, now_ns)
        for count, (ended, of_app) in enumerate(emptied(gone), 1):
            self._end_allocation(ended, of_app, out, now_ns)
            if not count % STEP:
                yield
        yield from self._settle_all((), nodes, apps, out, now_ns)
        for count, running in enumerate(allocations, 1):
            if not running.gone:
                self._settle_allocation(running, out, now_ns)
            if not count % STEP:
                yield

    def _settle_all(
        self, queues: Iterable[str], nodes: Iterable[str], apps: Iterable[str], out: Outcome, now_ns: int
    ) -> Steps:
        """Reviews queues, nodes and applications, each in the order of their names."""
        for path in sorted(queues):
            self._settle_queue(path, out, now_ns)
            yield
        node_ids = yield from sorted_in_steps(nodes, str)
        for count, node_id in enumerate(emptied(node_ids), 1):
            yield from self._settle_node(node_id, out, now_ns)
            if not count % FEW:
                yield
        app_ids = yield from sorted_in_steps(apps, str)
        for count, app_id in enumerate(emptied(app_ids), 1):
            yield from self._settle_application(app_id, out, now_ns)
            if not count % FEW:
                yield

    def reconfigured(self, out: Outcome, now_ns: int) -> Steps:
        """Reviews applications after a change of the configuration, in steps: some may have a queue now."""
        for count, entry in enumerate(self.books.entries(ExternalKind.APPLICATION), 1):
            if entry.problem:
                self.vacant[entry.object_id] = None
            if not count % STEP:
                yield
        yield from self._settle_all(self.books.queues, (), (), out, now_ns)

    def cordon_of(self, node: Node) -> Cordon | None:
        """The node's closer, from the present statements: for a follower, which merges nothing."""
        on = self.books.nodes.get(node.node_id) if node.sources else None
        if on is None or (node.schedulable and not on.offers):
            return node.closer
        if node.schedulable:
            return node.closer or revoking_source(on)
        return merge(self._node_lives.report_of(node), reports_by_source(on)).closer

    def withdrawn_offers(self) -> Iterator[Cordon]:
        """Yields the closers that took back offers of nodes that do not exist any more: O(nodes of sources)."""
        for node_id, on in self.books.nodes.items():
            if on.offers and node_id not in self._state.nodes:
                closer = withdrawn_by(on)
                if closer is not None:
                    yield closer

    def catch_up(self, out: Outcome, now_ns: int) -> Steps:
        """Reviews entries that became possible meanwhile, in steps."""
        vacant, self.vacant = self.vacant, {}
        yield from self._settle_all((), (), vacant, out, now_ns)

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def reports_for(self, node_id: str, out: Outcome) -> NodeReports | None:
        """The statements about a node, without entries whose types the partition cannot count; None: there are none."""
        on = self.books.nodes.get(node_id)
        if on is None:
            return None
        bad: list[ReportedObject] = []
        for entry in on.nodes.values():
            self._reserve(entry, bad, out)
        for offers in on.offers.values():
            for entry in offers:
                self._reserve(entry, bad, out)
        return on if not bad else without(on, bad)

    def _reserve(self, entry: ReportedObject, bad: list[ReportedObject], out: Outcome) -> None:
        report, type_names = entry.said, self._state.types.numbers.keys()
        if isinstance(report, ExternalNode) and report.occupied.keys() <= type_names >= (report.capacity or {}).keys():
            return  # the common case
        try:
            self._state.types.reserve(_types_of(entry.said))
        except TooManyTypes as error:
            bad.append(entry)
            set_problem(entry, str(error), out)

    def on_node_added(self, on: NodeReports, out: Outcome, now_ns: int, *, came: bool) -> Steps:
        """Marks the entries about a node as valid now. If the node is new (``came``), dormant entries on it count now,
        too. In steps.
        """
        for entry in on.nodes.values():
            if entry.problem:
                set_problem(entry, "", out)
        for offers in on.offers.values():
            for entry in offers:
                if entry.problem:
                    set_problem(entry, "", out)
        if came:
            running = (entry for entries in on.allocations.values() for entry in entries)
            ordered = yield from sorted_in_steps(running, order_of)
            for count, entry in enumerate(emptied(ordered), 1):
                self._settle_allocation(entry, out, now_ns)
                if not count % STEP:
                    yield

    def on_node_removed(self, node_id: str, on: NodeReports, out: Outcome, *, went: bool) -> Steps:
        """Marks entries about a node that does not exist as dormant. If it existed until now (``went``), entries on it
        are dormant, too. In steps.
        """
        missing = _no_node(node_id)
        for entry in on.nodes.values():
            set_problem(entry, f"{missing}, and this source does not bring it", out)
        for offers in on.offers.values():
            for entry in offers:
                set_problem(entry, f"{missing}, and none of its resources are offered", out)
        if went:
            pace = Pace()
            for allocations in on.allocations.values():
                for entry in allocations:
                    set_problem(entry, missing, out)
                    if pace.is_over():
                        yield

    def _stays(self, node_id: str, entry: ReportedObject) -> bool:
        """Whether one more allocation of a source leaves the node's merged state as it is. The source speaks of the
        node itself, nothing closed the node before, and no stale allocation does so now.
        """
        node, on = self._state.nodes.get(node_id), self.books.nodes.get(node_id)
        if node is None or not node.schedulable or on is None or on.stale or on.offers:
            return False
        source = entry.owner.source
        own = on.nodes.get(source)
        return own is not None and not own.problem and source in node.sources

    def _settle_node(self, node_id: str, out: Outcome, now_ns: int) -> Steps:
        lives = self._node_lives
        node = self._state.nodes.get(node_id)
        yield from lives.settle_in_steps(node_id, lives.report_of(node) if node is not None else None, out, now_ns)

    # ---- queues ----------------------------------------------------------------------------------------------------

    def apply_queue_limits(self, queue: Queue) -> None:
        """Applies what sources say of a new queue's max from the beginning.

        (A fold takes the max from the queue's own record. Otherwise types that could not be counted might take the
        place of types that are.)
        """
        entries = self.books.queues.get(queue.path)
        if entries and queue.parent is not None and self._state.searching:
            queue.restrict(*self._maximum(entries))

    def limit_conflict(self, queue: Queue) -> str:
        """The limits of a queue's max that differ, as a text; "": none."""
        entries = self.books.queues.get(queue.path)
        if not entries or queue.parent is None:
            return ""
        return quota_dispute(queue.by_name(queue.own_maximum), entries)

    def on_queue_added(self, queue: Queue, out: Outcome) -> None:
        """Marks the entries that waited for a new queue as counting."""
        for entry in self.books.queues.get(queue.path, ()):
            set_problem(entry, self._queue_problem(entry, queue), out)

    def on_queue_removed(self, queue: Queue, out: Outcome) -> None:
        """Marks the entries about a removed queue as dormant."""
        for entry in self.books.queues.get(queue.path, ()):
            set_problem(entry, self._queue_problem(entry, None), out)

    def _queue_problem(self, entry: ReportedObject, queue: Queue | None) -> str:
        if queue is None:
            return f"queue {entry.object_id.lower()} is not there"
        if queue.parent is None:
            return "the max of root is the capacity of the nodes: no source can set it"
        try:
            self._state.types.reserve(_types_of(entry.said))
        except TooManyTypes as error:
            return str(error)
        return ""

    def _maximum(self, entries: Iterable[ReportedObject]) -> tuple[tuple[str, ...], dict[int, int] | None]:
        """The sources that limit a queue's max, and the max by type number."""
        types = self._state.types
        counted: list[ReportedObject] = []
        for entry in entries:
            try:
                types.reserve(_types_of(entry.said))
                counted.append(entry)
            except TooManyTypes:
                continue
        sources, maximum = smallest_maximum(counted)
        return sources, None if maximum is None else dict(types.items(maximum))

    def _settle_queue(self, path: str, out: Outcome, now_ns: int) -> None:
        state = self._state
        queue, entries = state.queues.get(path), self.books.queues.get(path, {})
        for entry in entries:
            set_problem(entry, self._queue_problem(entry, queue), out)
        if queue is None or queue.parent is None:
            return
        before, sources = (queue.guaranteed, queue.maximum), queue.sources
        queue.restrict(*self._maximum(entries))
        if queue.maximum != before[1]:
            state.capacity_moved = True
            state.version += 1
            self._queue_tree.limit_events(queue, *before, out, now_ns)
            delay_ns = quota_enforcement.delay_ns(state, queue)
            quota_enforcement.on_config_changed(state, queue, before[1], delay_ns, out, now_ns)
            self._gangs.on_limits_changed(queue, out, now_ns)
            self._waiting.wake_ledgers((queue,))
            out.mark_changed(queue, state.name)
        elif queue.sources != sources:
            out.mark_changed(queue, state.name)

    # ---- applications ----------------------------------------------------------------------------------------------

    def on_id_freed(self, app_id: str) -> None:
        """Handles an application id that is free again: perhaps a source brings an application with this id."""
        if app_id in self.books.applications:
            self.vacant[app_id] = None

    def _settle_application(self, app_id: str, out: Outcome, now_ns: int) -> Steps:
        """Decides which source brings the application with this id: the one that has it keeps it, else the first by
        name. In steps.
        """
        state = self._state
        entries = _sorted(self.books.applications.get(app_id, ()))
        previous = app = state.live_application(app_id)
        if app is not None and app.source:
            owner = next((entry for entry in entries if entry.source == app.source), None)
            if owner is None or not _matches_report(app, owner.said):
                yield from self._lifecycle.remove_in_steps(app, out, now_ns)
                app = None
            elif isinstance(owner.said, ExternalApplication) and app.tags != owner.said.tags:
                app.tags = dict(owner.said.tags)
                out.mark_changed(app, state.name)
        for entry in entries:
            problem = ""
            if app is None:
                app, problem = self._bring_application(entry, out, now_ns)
            elif app.source != entry.source:
                whose = f"source {app.source}" if app.source else "the resource manager"
                problem = f"there is an application {app_id} of {whose}"
            set_problem(entry, problem, out)
        if app is not previous:
            running = yield from sorted_in_steps(self.books.app_allocations.get(app_id, ()), order_of)
            for count, entry in enumerate(emptied(running), 1):
                self._settle_allocation(entry, out, now_ns)
                if not count % STEP:
                    yield

    def _bring_application(self, entry: ReportedObject, out: Outcome, now_ns: int) -> tuple[Application | None, str]:
        """Creates the application that a source brings. Returns None and the reason if that is not possible."""
        state, report = self._state, entry.said
        assert isinstance(report, ExternalApplication)
        if report.app_id == INDEPENDENT:
            return None, f"{INDEPENDENT} is the scheduler's own application, for independent allocations"
        path, problem = placement_rules.path_of(state, report.queue)
        if problem:
            return None, problem
        queue, created, problem = self._queue_tree.create_queue(path)
        if queue is None:
            return None, problem
        number = self._node_lives.number()
        app = Application(state.types, report.app_id, queue, number, now_ns)
        app.requested_queue, app.source, app.tags = report.queue, entry.source, dict(report.tags)
        app.user, app.groups_of_user = report.user, _groups(report)
        app.state_log.append((now_ns, AppState.NEW))
        self._lifecycle.free_id(app, out)
        self._lifecycle.add_application(app)
        for new in created:
            self._queue_tree.announce_queue(new, out, now_ns)
        out.mark_changed(app, state.name)
        out.add_event(
            EventType.APP, EventChange.ADD, EventDetail.NONE, app.app_id, message=f"source {app.source}", now_ns=now_ns
        )
        out.add_event(EventType.APP, EventChange.SET, EventDetail.APP_NEW, app.app_id, now_ns=now_ns)
        out.add_event(EventType.QUEUE, EventChange.ADD, EventDetail.QUEUE_APP, queue.path, app.app_id, now_ns=now_ns)
        link_event(app, app.user_group, EventChange.SET, out, now_ns)
        return app, ""

    # ---- allocations -----------------------------------------------------------------------------------------------

    def allocation_of(self, entry: ReportedObject) -> Allocation | None:
        """The allocation that counts for a source's entry; None: none."""
        report = entry.said
        return self._held(entry, report.app_id) if isinstance(report, ExternalAllocation) else None

    def _held(self, entry: ReportedObject, app_id: str) -> Allocation | None:
        """The allocation that counts for the entry. ``app_id``: the application that it was to belong to."""
        state = self._state
        allocation = state.foreign.get(foreign_id(foreign_key(entry), entry.source))
        if allocation is None and app_id:
            app = state.live_application(app_id)
            if app is not None and app.source == entry.source:
                allocation = app.allocations.get(unique_key(entry.object_id, 0))
        return allocation

    def _settle_allocation(self, entry: ReportedObject, out: Outcome, now_ns: int) -> None:
        """Makes the allocation count: on its node once that exists, and in a queue once its application exists, too.

        (Whatever the order of arrival, no node may look freer than it is.)
        """
        state, report = self._state, entry.said
        assert isinstance(report, ExternalAllocation)
        existing = self._held(entry, report.app_id)
        problem = "" if report.node_id in state.nodes else _no_node(report.node_id)
        if not any(report.quantities.values()):
            problem = problem or "it holds no resources"
        try:
            shape = state.types.shape(report.quantities)
        except TooManyTypes as error:
            problem = problem or str(error)
        if problem:
            set_problem(entry, problem, out)
            if existing is not None:
                self._release(existing, problem, out, now_ns)
            return
        app = state.live_application(report.app_id) if report.app_id else None
        if app is not None and app.source != entry.source:
            app = None
        if report.app_id and app is None:
            problem = f"source {entry.source} has no application {report.app_id} there: it counts on its node only"
        set_problem(entry, problem, out)
        key, app_id = (foreign_key(entry), "") if app is None else (entry.object_id, app.app_id)
        tags, node_id = report.tags, report.node_id
        item = AskItem(key, app_id, state.name, report.quantities, priority=report.priority, tags=tags, node_id=node_id)
        if existing is not None and existing.app is app:
            demand = item_conversion.demand_of(item, shape, existing.submission, existing.created_ns)
            self._recovery.change(existing, demand, node_id, "", out, now_ns, echo=False)
            return
        if existing is not None:
            self._release(existing, f"it is of application {app_id or 'nobody'} now", out, now_ns)
        allocation = item_conversion.allocation_of(item, app, shape, self._node_lives.number(), now_ns)
        allocation.source = entry.source
        self._recovery.adopt(allocation, out, now_ns, echo=False)

    def _end_allocation(self, entry: ReportedObject, app_id: str, out: Outcome, now_ns: int) -> None:
        allocation = self._held(entry, app_id)
        if allocation is not None:
            self._release(allocation, f"source {entry.source} does not run it any more", out, now_ns)

    def _release(self, allocation: Allocation, message: str, out: Outcome, now_ns: int) -> None:
        self._releases.release(
            allocation,
            Termination.STOPPED_BY_RM,
            message,
            EventDetail.ALLOC_CANCEL,
            out,
            now_ns,
            tell=False,
            completing=False,
        )


def foreign_key(entry: ReportedObject) -> str:
    """The key of a source's allocation that belongs to no application."""
    return f"{entry.source}/{entry.object_id}"


def _sorted(entries: Iterable[ReportedObject]) -> list[ReportedObject]:
    return sorted(entries, key=order_of)


def _nodes_of(source: SourceEntry) -> Iterable[str]:
    """The nodes that a source's statement is about."""
    for entry in source.entries.values():
        report = entry.said
        if isinstance(report, ExternalNode | ExternalOffer | ExternalAllocation):
            yield report.node_id


def _types_of(report: ExternalObject) -> list[str]:
    """The resource types that an object about a node or queue names."""
    match report:
        case ExternalNode():
            return [*(report.capacity or ()), *report.occupied]
        case ExternalOffer():
            return list(report.quantities)
        case ExternalQueue():
            return list(report.maximum)
    return []


def _matches_report(app: Application, report: ExternalObject) -> bool:
    """Whether the application has the queue and the user that its source says."""
    assert isinstance(report, ExternalApplication)
    return (app.requested_queue, app.user, app.groups_of_user) == (report.queue, report.user, _groups(report))


def _groups(report: ExternalApplication) -> tuple[str, ...]:
    """The user's groups as the source says; without any, the user's own group, as for the RM's applications."""
    return report.groups or ((report.user,) if report.user else ())


def _no_node(node_id: str) -> str:
    return f"node {node_id} is not there"
