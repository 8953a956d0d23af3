"""One partition: its data (``PartitionState``) and the parts that work on it, built in the order of their needs.

Each part is given by name the earlier parts that it uses. If two parts need each other, the earlier one declares its
needs in a Protocol of its own, and is connected once both exist.
"""

from __future__ import annotations

from muster_core.allocation.accounting import Accounting
from muster_core.allocation.allocation_facts import AllocationFacts
from muster_core.allocation.allocator import Allocator
from muster_core.allocation.ask_events import AskEvents
from muster_core.allocation.asks import Asks
from muster_core.allocation.backfill import Backfill, in_force_ms
from muster_core.allocation.cycle import SchedulingCycle
from muster_core.allocation.escalation import Escalation
from muster_core.allocation.exclusivity import ScopeExclusivity
from muster_core.allocation.fair_share_accounting import FairShareAccounting
from muster_core.allocation.limit_checks import LimitChecks
from muster_core.allocation.recovery import Recovery
from muster_core.allocation.releases import Releases
from muster_core.allocation.reservations import Reservations
from muster_core.allocation.scheduling_queue import SchedulingQueue
from muster_core.applications.lifecycle import ApplicationLifecycle
from muster_core.config.queue_config import BACKFILL_OFF, PartitionConfig, types_named
from muster_core.external.offers import Offers, due_of
from muster_core.external.reconciler import ExternalReconciler
from muster_core.external.reports import PartitionReports, ReportedObject
from muster_core.gangs.gang_headroom import GangHeadroom
from muster_core.gangs.gangs import Gangs
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.decayed_usage import LeafUsage
from muster_core.model.outcome import (
    Outcome,
)
from muster_core.model.partition_state import HasDeadline, PartitionState
from muster_core.model.predicate_checks import RefusalExpiry
from muster_core.model.queue import Queue, Waitlist
from muster_core.model.scope_queues import ScopeQueues
from muster_core.model.states import DYNAMIC_QUEUE_LINGER_NS, QueueState
from muster_core.model.steps import FEW, STEP, Steps, clear_in_steps, finish
from muster_core.nodes.node_accounting import NodeAccounting
from muster_core.nodes.node_index import NodeIndex
from muster_core.nodes.node_lifecycle import NodeLifecycle
from muster_core.nodes.node_stats import NodeStats
from muster_core.nodes.pools import Pools
from muster_core.predicates.predicate_calls import PredicateCalls
from muster_core.preemption.search_context import SearchContext
from muster_core.queues import quota_enforcement
from muster_core.queues.limits import UserLimits
from muster_core.queues.queue_tree import QueueTree

# The parts that are connected to later ones, and so are in a circle with them.
CONNECTED = (
    *("books", "reservations", "asks", "releases", "lifecycle"),
    *("gangs", "questions", "queue_tree", "node_lives"),
)


class Partition(PartitionState):
    """One partition: its data, and the parts that work on it.

    :ivar figures: the nodes' amounts, for reasons.
    :ivar limits: limits of users and groups.
    :ivar notifications: events for people about waiting asks.
    :ivar room: the room that limits leave to gangs that start as a whole.
    :ivar waiting: ready asks, parked asks, and the changes that wake parked ones.
    :ivar node_books: the nodes' sums, and their places in the node index.
    :ivar books: pending and allocated amounts.
    :ivar fair_shares: the decayed use of users.
    :ivar announcements: facts and events about asks and allocations.
    :ivar reservations: reserved nodes.
    :ivar asks: adds and removes asks.
    :ivar releases: ends allocations.
    :ivar lifecycle: moves applications through their lives.
    :ivar gangs: placeholders, and the real asks that take their places.
    :ivar queue_tree: creates, changes and removes queues.
    :ivar pools: resource types that are on no node.
    :ivar limit_checks: finds the limit that stops an ask.
    :ivar placing: finds the node for an ask, and makes the allocation.
    :ivar questions: asks the RM before decisions.
    :ivar cluster: the view of the partition for a search of victims.
    :ivar long_wait: reservations, preemption and signals to the autoscaler for asks that wait long.
    :ivar cycle: the search for the next allocation.
    :ivar recovery: adopts allocations that the RM reports.
    :ivar node_lives: adds, changes and removes nodes.
    :ivar offers: parts of nodes that another framework offers.
    :ivar external: applies the statements of external sources.
    """

    def __init__(
        self,
        config: PartitionConfig,
        *,
        searching: bool = True,
        external: PartitionReports | None = None,
        rm_id: str = "",
        reports_until_ns: int = 0,
        built: bool = True,
    ) -> None:
        """``built``: with its queues; otherwise :meth:`build_in_steps` makes them, before any other use."""
        super().__init__(config, searching=searching, rm_id=rm_id)
        sources = external if external is not None else PartitionReports(config.name)
        # 1. The parts, each with the earlier parts that it uses.
        self.figures = NodeStats(self.types)
        self.limits = UserLimits(self.types, self.users)
        self.notifications = AskEvents(self)
        self.room = GangHeadroom(self)
        lines = ScopeQueues()
        backfill = Backfill(self)
        self.waiting = SchedulingQueue(
            self, notifications=self.notifications, room=self.room, lines=lines, backfill=backfill
        )
        self.node_books = NodeAccounting(self, figures=self.figures, waiting=self.waiting)
        self.books = Accounting(self, waiting=self.waiting, node_books=self.node_books)
        self.fair_shares = FairShareAccounting(self, waiting=self.waiting)
        self.announcements = AllocationFacts(self)
        self.reservations = Reservations(self, waiting=self.waiting, node_books=self.node_books)
        self.asks = Asks(
            self,
            waiting=self.waiting,
            node_books=self.node_books,
            books=self.books,
            reservations=self.reservations,
            announcements=self.announcements,
            notifications=self.notifications,
        )
        self.releases = Releases(self, books=self.books, node_books=self.node_books, fair_shares=self.fair_shares)
        self.lifecycle = ApplicationLifecycle(
            self, limits=self.limits, waiting=self.waiting, asks=self.asks, releases=self.releases
        )
        self.gangs = Gangs(
            self,
            room=self.room,
            waiting=self.waiting,
            node_books=self.node_books,
            asks=self.asks,
            reservations=self.reservations,
            releases=self.releases,
            lifecycle=self.lifecycle,
        )
        self.queue_tree = QueueTree(self, limits=self.limits, waiting=self.waiting, gangs=self.gangs)
        self.pools = Pools(
            self,
            external_books=sources,
            limits=self.limits,
            node_books=self.node_books,
            queue_tree=self.queue_tree,
            gangs=self.gangs,
            reservations=self.reservations,
            waiting=self.waiting,
        )
        self.limit_checks = LimitChecks(self, room=self.room, pools=self.pools)
        turns = ScopeExclusivity(
            self, figures=self.figures, node_books=self.node_books, waiting=self.waiting, lines=lines
        )
        self.placing = Allocator(
            self,
            notifications=self.notifications,
            waiting=self.waiting,
            node_books=self.node_books,
            books=self.books,
            fair_shares=self.fair_shares,
            reservations=self.reservations,
            announcements=self.announcements,
            asks=self.asks,
            lifecycle=self.lifecycle,
            gangs=self.gangs,
            turns=turns,
        )
        self.questions = PredicateCalls(
            self,
            notifications=self.notifications,
            waiting=self.waiting,
            books=self.books,
            fair_shares=self.fair_shares,
            node_books=self.node_books,
            asks=self.asks,
            reservations=self.reservations,
            lifecycle=self.lifecycle,
            gangs=self.gangs,
            turns=turns,
            limit_checks=self.limit_checks,
            placing=self.placing,
        )
        self.cluster = SearchContext(self, room=self.room, node_books=self.node_books, questions=self.questions)
        self.long_wait = Escalation(
            self,
            figures=self.figures,
            waiting=self.waiting,
            notifications=self.notifications,
            reservations=self.reservations,
            releases=self.releases,
            questions=self.questions,
            limit_checks=self.limit_checks,
            cluster=self.cluster,
            backfill=backfill,
        )
        self.cycle = SchedulingCycle(
            self,
            waiting=self.waiting,
            notifications=self.notifications,
            figures=self.figures,
            queue_tree=self.queue_tree,
            gangs=self.gangs,
            turns=turns,
            questions=self.questions,
            limit_checks=self.limit_checks,
            reservations=self.reservations,
            placing=self.placing,
            backfill=backfill,
            long_wait=self.long_wait,
        )
        self.recovery = Recovery(
            self,
            books=self.books,
            fair_shares=self.fair_shares,
            node_books=self.node_books,
            waiting=self.waiting,
            lifecycle=self.lifecycle,
            gangs=self.gangs,
            releases=self.releases,
            announcements=self.announcements,
            questions=self.questions,
            backfill=backfill,
        )
        self.node_lives = NodeLifecycle(
            self,
            figures=self.figures,
            node_books=self.node_books,
            books=self.books,
            reservations=self.reservations,
            releases=self.releases,
            lifecycle=self.lifecycle,
            gangs=self.gangs,
            questions=self.questions,
            external_books=sources,
            backfill=backfill,
        )
        self.offers = Offers(
            self,
            external_books=sources,
            node_lives=self.node_lives,
            releases=self.releases,
            questions=self.questions,
            reports_until_ns=reports_until_ns,
        )
        self.external = ExternalReconciler(
            self,
            figures=self.figures,
            waiting=self.waiting,
            gangs=self.gangs,
            lifecycle=self.lifecycle,
            releases=self.releases,
            recovery=self.recovery,
            queue_tree=self.queue_tree,
            node_lives=self.node_lives,
            pools=self.pools,
            offers=self.offers,
            books=sources,
        )
        # 2. The connections from a part to later parts, declared by the Protocols in its module.
        self.books.connect(gangs=self.gangs, questions=self.questions)
        self.reservations.connect(questions=self.questions)
        self.asks.connect(gangs=self.gangs, questions=self.questions, turns=turns)
        self.releases.connect(gangs=self.gangs, lifecycle=self.lifecycle)
        self.lifecycle.connect(gangs=self.gangs, external=self.external)
        self.gangs.connect(questions=self.questions, turns=turns, placing=self.placing, long_wait=self.long_wait)
        turns.connect(questions=self.questions)
        self.questions.connect(long_wait=self.long_wait)
        self.queue_tree.connect(external=self.external)
        self.node_lives.connect(external=self.external)
        # 3. The first configuration.
        if built:
            finish(self.build_in_steps())

    @property
    def index(self) -> NodeIndex:
        """The nodes in the order in which they are tried."""
        return self.node_books.index

    # ---- the whole partition ---------------------------------------------------------------------------------------

    def build_in_steps(self) -> Steps:
        """Builds the queue tree from the partition's first configuration, in steps."""
        config = self.config
        self.types.reserve(types_named(config))
        yield
        yield from self.limits.configure(config.root)
        self.set_policies(config)
        self.root = yield from self.queue_tree.build_in_steps(config.root, None, {})
        self.root.backfills = config.backfill != BACKFILL_OFF
        if self.searching:
            self.node_books.index = self.node_books.new_index()

    def set_policies(self, config: PartitionConfig) -> None:
        """Takes the configuration's policies for the whole partition."""
        self.config = config
        self.node_books.set_policy(config)

    def activate(self, now_ns: int, decided_ns: int) -> None:
        """After a fold: orders the nodes, and makes everything pending ready.

        :param decided_ns: the time of the last decision before.
        """
        self.searching = self.types.bounded = True
        self.capacity_moved = True
        self.capacity_version += 1
        self.node_books.index = self.node_books.new_index()
        for node in self.nodes.values():
            self.node_books.update_index(node)
        self.external.activate()
        self.offers.activate()
        self.gangs.activate()
        self.questions.activate()
        self.fair_shares.activate(now_ns)
        for app in self.apps.values():
            for group in app.groups.values():
                if group.parked_key is None and group.ready_key is None and group.asks:
                    self.waiting.make_ready(group)
        self.reservations.activate()
        for node in self.nodes.values():
            for allocation in node.allocations.values():
                if allocation.releasing:
                    self.releases.schedule_resend(allocation, decided_ns)
                self.announcements.set_execution_deadline(allocation)
        for queue in self.queues.values():
            self.waiting.resume(queue)
            if queue.quota_ns:
                self.deadlines.append((queue.quota_ns, queue))
            for waitlist in queue.waitlists.values():
                self.long_wait.resume(waitlist, decided_ns)
            going = not queue.managed or queue.state is QueueState.DRAINING
            if going and not queue.applications and not queue.children:
                self.deadlines.append((now_ns + DYNAMIC_QUEUE_LINGER_NS, queue))

    def dispose(self) -> Steps:
        """Empties a partition whose core another one has replaced; in steps.

        Queues, nodes, applications, asks and allocations refer to each other and to the partition. Left alone, they
        would be in memory until a full garbage collection. The parts of the partition remain in such a circle, but they
        are few.
        """
        for apps in (self.apps, self.rejected):
            for count, app in enumerate(apps.values(), 1):
                yield from app.dispose()
                if not count % FEW:
                    yield
        for count, node in enumerate(self.nodes.values(), 1):
            self.waiting.on_node_removed(node)
            yield from node.take_apart()
            if not count % FEW:
                yield
        for count, queue in enumerate(self.queues.values(), 1):
            queue.unlink()
            if not count % STEP:
                yield
        for mapping in (self.nodes, self.apps, self.rejected, self.foreign, self.queues):
            yield from clear_in_steps(mapping)
        self.reserved.clear()
        self.moved_offers.clear()
        for nodes in (self.waiting.gained, self.waiting.gained_reserved):
            nodes.clear()
        self.waiting.parked.clear()
        self.deadlines.clear()
        self.types.dispose()
        self.figures.dispose()
        self.node_books.index = self.node_books.new_index()

    @property
    def unfinished(self) -> bool:
        """Whether the last cycle left work that the next one can do at once."""
        stopped = self.questions.turns.stopped
        return self.deciding and (
            self.waiting.has_wakeups
            or self.long_wait.waiting
            or self.gangs.waiting
            or self.notifications.unfinished(stopped=stopped)
            or self.questions.has_wakeups
            or (bool(self.root.ready) and not stopped)
        )

    def on_deadline(self, obj: HasDeadline, due_ns: int, out: Outcome, now_ns: int) -> Steps:
        """Handles a deadline that has come, in steps. Ignores a deadline that was moved meanwhile."""
        match obj:
            case Queue():
                if obj.quota_ns and obj.quota_ns == due_ns:
                    quota_enforcement.on_deadline(self, self.releases, obj, out, now_ns)
                self.queue_tree.sweep_queue(obj, out, now_ns)
            case Application():
                if obj.deadline_ns == due_ns:
                    yield from self.lifecycle.expire(obj, out, now_ns)
                if obj.gang is not None and obj.gang.deadline_ns == due_ns:
                    yield from self.gangs.time_out(obj, out, now_ns)
            case Waitlist():
                if obj.due_ns == due_ns:
                    self.long_wait.on_deadline(obj)
            case Allocation() if obj.releasing:
                if due_ns == obj.reminder_ns:
                    self.releases.resend(obj, out, now_ns)
            case Allocation() if is_current(obj, due_ns):
                over = f"the execution time-out of {in_force_ms(obj)} ms is over"
                self.releases.time_out(obj, over, out, now_ns)
            case Ask():
                self.long_wait.reservation_timed_out(obj, out, now_ns)
            case ReportedObject():
                if due_of(obj) == due_ns:
                    yield from self.offers.on_deadline(obj, out, now_ns)
            case Offers():
                yield from obj.on_report_deadline(out, now_ns)
            case LeafUsage() if obj.due_ns == due_ns:
                self.fair_shares.on_deadline(obj, out, now_ns)
            case PredicateCalls():
                obj.on_deadline(out, now_ns)
            case RefusalExpiry():
                self.questions.on_retry_deadline(obj, due_ns, out, now_ns)


def is_current(obj: HasDeadline, due_ns: int) -> bool:
    """Whether a deadline is still valid; False: its object does not exist any more, or has another deadline."""
    if obj.gone:
        return False
    match obj:
        case Application():
            return obj.deadline_ns == due_ns or (obj.gang is not None and obj.gang.deadline_ns == due_ns)
        case Waitlist():
            return obj.due_ns == due_ns
        case Ask():
            return bool(obj.reserved_node)
        case LeafUsage():
            return obj.due_ns == due_ns
        case ReportedObject():
            return due_of(obj) == due_ns
        case RefusalExpiry():
            return obj.refusals.armed_ns == due_ns
        case Allocation() if not obj.releasing:
            return obj.end_ns == due_ns  # (the RM may have changed it meanwhile)
    return True
