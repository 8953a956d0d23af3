"""An application and everything that belongs to it: its asks, singly and in groups, its allocations, and its gang."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from muster_core.config.queue_config import INDEPENDENT_PATH
from muster_core.model.allocation import BackfillRecord, PreemptionRecord, ReplacedPlaceholder, foreign_id, unique_key
from muster_core.model.demand import _HasDemand
from muster_core.model.free_placeholders import to_come
from muster_core.model.reasons import Reason
from muster_core.model.resources import ResourceTypes, Shape, Vector
from muster_core.model.states import APP_ENDING, AppState, GangPhase
from muster_core.model.steps import Steps, clear_in_steps, clear_list_in_steps
from muster_core.model.task_group import TaskGroup
from muster_core.model.wait_points import ALONE_FROM, DURATION_FROM

if TYPE_CHECKING:
    from muster_core.model.demand import Demand
    from muster_core.model.queue import Ledger, Queue, Tracker, WaitKey
    from muster_core.model.reason_history import Past
    from muster_core.model.refusals import NodeRefusals, PendingCheck

_DURATION_MAX = (1 << 62) - 1
# The last event for people about an ask, which is recorded (``ask_events.py``): the ask does not fit in its queue,
# or in the quota of its user or group; the RM refuses every node for it; preemption finds nothing on its required node.
NOTIFIED_QUEUE, NOTIFIED_USER, NOTIFIED_REFUSED, NOTIFIED_NO_VICTIM = 1, 2, 4, 8
HARD = "hard"
NOTHING_HELD = 1 << 62  # above all priorities
# Shape, priority, required node, whether it may preempt, task group, placeholder, apart: asks of one application with
# the same values are alike.
GroupKey = tuple[Shape, int, str, bool, str, bool, int]
# What a renamed application shares with the one that it is a copy of.
_SHARED = (
    "requested_queue",
    "user",
    "groups_of_user",
    "user_group",
    "tags",
    "state",
    "state_log",
    "started_ns",
    "finished_ns",
    "deadline_ns",
    "execution_timeout_ms",
    "placeholder_ask",
    "gang_style",
    "rejected_message",
    "failed_message",
    "usage",
    "most_used",
    "asks",
    "allocations",
    "repeats",
    "by_uuid",
    "groups",
    "trackers",
    "bounds",
    "ledgers",
    "allocated",
    "pending",
    "lowest_held",
    "ready",
    "ready_key",
    "parked",
    "share",
    "counted",
    "waiting_at",
    "waits_whole",
    "waiting_key",
    "reason",
    "past",
    "gang",
    "proposed",
    "taken",
    "source",
    "independent",
    "gone",
)
# The limit of entries in a group's heap beyond twice its asks.
_HEAP_SPARE = 16


class Application:
    """An application in a leaf queue.

    :ivar submitted_ns: when it, or the oldest of its asks, was submitted: its place in FIFO order.
    :ivar state_log: (time, state), oldest first; of a long one, the beginning and the end.
    :ivar failed_message: why it fails, or has failed.
    :ivar allocations: by unique key.
    :ivar repeats: the allocations with an ordinal above 0, by key and ordinal.
    :ivar by_uuid: the allocations with a UUID.
    :ivar trackers: the ledgers of its user and its group, from its leaf up, where limits hold.
    :ivar bounds: the ledgers whose limits its asks must keep, in the order of checking: its trackers, then its queues
        below root (and root, while any type is pooled).
    :ivar ledgers: the ledgers in which its allocations count: its trackers, and all its queues.
    :ivar usage: its past use, see ``applications/usage.py``.
    :ivar most_used: by type name, the most that its real allocations or its placeholders held at once, at the last end
        of one. They may hold more now.
    :ivar lowest_held: no allocation that it holds has a lower priority than this.
    :ivar share: its fair share, while neither what it holds nor its queue's guaranteed amount has changed; None: to be
        computed.
    :ivar parked: the number of its parked groups.
    :ivar counted: whether it counts against limits of running applications.
    :ivar waiting_at: the ledger (of a queue, user or group) at which the whole application waits; None: it does not
        wait. ``waiting_key``: its place there.
    :ivar waits_whole: it waits there for room for its gang, not for a place among the running applications.
    :ivar reason: why the whole application may not run; None: it may, or has not been tried. ``past``: its past
        reasons, and those of its asks of one shape (``reason_history.py``).
    :ivar gang: its placeholders; None: it has none, and announced none.
    :ivar proposed: the number of its open proposals that are booked on a node.
    :ivar taken: no further proposal is made for it until the RM has answered (``exclusivity.py``).
    :ivar source: the external source that brought it; "": the RM did. An external application never completes by
        itself.
    :ivar independent: it is the scheduler's own, for independent allocations: the RM gets no messages about it, and it
        does not count against limits of running applications.
    """

    def __init__(self, types: ResourceTypes, app_id: str, queue: Queue, submission: int, submitted_ns: int) -> None:
        self.app_id = app_id
        self.queue = queue
        self.submission = submission
        self.submitted_ns = submitted_ns
        self.requested_queue = ""
        self.user = ""
        self.groups_of_user: tuple[str, ...] = ()
        self.user_group = ""
        self.tags: dict[str, str] = {}
        self.state = AppState.NEW
        self.state_log: list[tuple[int, str]] = []
        self.started_ns = 0
        self.finished_ns = 0
        self.deadline_ns = 0
        self.execution_timeout_ms = 0
        self.placeholder_ask: dict[str, int] | None = None
        self.gang_style = ""
        self.rejected_message = ""
        self.failed_message = ""
        self.usage: dict[str, dict[str, dict[str, int]]] = {}
        self.most_used: dict[str, int] = {}
        self.asks: dict[str, Ask] = {}
        self.allocations: dict[str, Allocation] = {}
        self.repeats: dict[str, dict[int, Allocation]] = {}
        self.by_uuid: dict[str, dict[Allocation, None]] = {}
        self.groups: dict[GroupKey, AskGroup] = {}
        self.trackers: tuple[Tracker, ...] = ()
        self.bounds: tuple[Ledger, ...] = queue.line
        self.ledgers: tuple[Ledger, ...] = queue.ancestry
        self.allocated: Vector = types.vector()
        self.pending: Vector = types.vector()
        self.lowest_held = NOTHING_HELD
        self.ready: list[tuple[Any, ...]] = []
        self.ready_key: tuple[Any, ...] | None = None
        self.parked = 0
        self.share: tuple[float, ...] | None = None
        self.counted = False
        self.waiting_at: Ledger | None = None
        self.waits_whole = False
        self.waiting_key: tuple[int, int, int, int] = (0, 0, 0, 0)
        self.reason: Reason | None = None
        self.past: Past = ()
        self.gang: Gang | None = None
        self.proposed = 0
        self.taken = False
        self.source = ""
        self.independent = queue.path == INDEPENDENT_PATH
        self.gone = False
        self.published = False

    def renamed(self, app_id: str) -> Application:
        """A copy under another id, which shares everything with this one. It is not published yet."""
        types = self.queue.types
        clone = Application(types, app_id, self.queue, self.submission, self.submitted_ns)
        types.release(clone.allocated, clone.pending)
        for name in _SHARED:
            setattr(clone, name, getattr(self, name))
        return clone

    def index(self, allocation: Allocation) -> None:
        """Files an allocation under its key and its UUID."""
        self.allocations[allocation.unique_key] = allocation
        if allocation.ordinal:
            self.repeats.setdefault(allocation.key, {})[allocation.ordinal] = allocation
        if allocation.uuid:
            self.by_uuid.setdefault(allocation.uuid, {})[allocation] = None

    def unindex(self, allocation: Allocation) -> None:
        """Undoes :meth:`index`."""
        del self.allocations[allocation.unique_key]
        if allocation.ordinal:
            repeats = self.repeats[allocation.key]
            del repeats[allocation.ordinal]
            if not repeats:
                del self.repeats[allocation.key]
        if allocation.uuid:
            same = self.by_uuid[allocation.uuid]
            del same[allocation]
            if not same:
                del self.by_uuid[allocation.uuid]

    def has(self, key: str) -> bool:
        """Whether an ask has allocations."""
        return key in self.repeats or unique_key(key, 0) in self.allocations

    def allocations_of(self, key: str) -> list[Allocation]:
        """The allocations of one ask, by ordinal."""
        repeats = self.repeats.get(key)
        allocations = [repeats[ordinal] for ordinal in sorted(repeats)] if repeats is not None else []
        first = self.allocations.get(unique_key(key, 0))
        return allocations if first is None else [first, *allocations]

    def allocated_count(self, key: str) -> int:
        """How many allocations an ask has had, judged by the present ones."""
        repeats = self.repeats.get(key)
        if repeats is not None:
            return max(repeats) + 1
        return 1 if unique_key(key, 0) in self.allocations else 0

    def dispose(self) -> Steps:
        """Forgets its asks and allocations. It is no longer used, see ``Partition.dispose``."""
        for mapping in (self.allocations, self.repeats, self.by_uuid, self.asks):
            yield from clear_in_steps(mapping)
        for group in self.groups.values():
            yield from clear_list_in_steps(group.heap)
            group.unreported.clear()
            group.untold = None
        self.groups.clear()
        self.ready.clear()
        self.gang = None

    def __repr__(self) -> str:
        return f"Application({self.app_id}, {self.state})"


class AskGroup:
    """Asks of one application that are alike: they may go to the same nodes, and have the same purpose.

    If one of them does not fit, none does. So a group is tried, parked and woken as one.

    :ivar heap: (created_ns, submission, push, ask), oldest first; asks that are gone are skipped. (A changed ask has
        the submission number of the ask that it replaced; the number of the push distinguishes them.)
    :ivar wait_key: the key of the waitlist in its leaf on which it would wait.
    :ivar ready_key: its key in the application's ``ready``; None: it is not there.
    :ivar parked_key: its key on its waitlist; None: it is ready, or empty.
    :ivar unreported: asks that were not reported to the RM as too large for the cluster. Some may be gone.
    :ivar task_group: the task group of asks for which placeholders hold room, or "".
    :ivar placeholder: its asks are asks for placeholders.
    :ivar apart: of one ask for which the RM refused nodes, or of asks that must be alone in one scope
        (:attr:`Ask.apart`); 0: not apart.
    :ivar notified_skipped: the ask, and the reason, that the RM was last told is skipped.
    :ivar held: the gang holds it back (:meth:`Gang.gates`): it is neither ready nor parked.
    :ivar in_line: it stands in the line of its task group's turn, or gives way (``scope_queues.py``): it is neither
        ready nor parked.
    :ivar stood: the obstacle of its asks at the last event for people (``ask_events.py``); None: there was no event.
    :ivar untold: the asks that were added since.
    """

    __slots__ = (
        "apart",
        "app",
        "asks",
        "heap",
        "held",
        "in_line",
        "key",
        "notified_skipped",
        "parked_key",
        "placeholder",
        "preempts",
        "priority",
        "pushes",
        "ready_key",
        "required_node",
        "shape",
        "stood",
        "task_group",
        "unreported",
        "untold",
        "wait_key",
    )

    def __init__(self, app: Application, key: GroupKey) -> None:
        self.app = app
        self.key = key
        self.shape, self.priority, self.required_node, self.preempts, self.task_group, self.placeholder = key[:6]
        self.apart: int = key[6]
        self.wait_key: WaitKey = (self.shape, app.trackers, self.required_node, self.apart)
        self.heap: list[tuple[int, int, int, Ask]] = []
        self.pushes = 0
        self.asks = 0
        self.ready_key: tuple[Any, ...] | None = None
        self.parked_key: tuple[Any, ...] | None = None
        self.unreported: list[Ask] = []
        self.notified_skipped: tuple[int, str] | None = None
        self.held = False
        self.in_line = False
        self.stood: int | None = None
        self.untold: list[Ask] | None = None

    def head(self) -> Ask | None:
        """The oldest ask with something pending; None: there is none."""
        heap = self.heap
        while heap:
            ask = heap[0][3]
            if ask.pending > 0 and not ask.gone and ask.group is self:
                return ask
            heapq.heappop(heap)
        return None

    def push(self, ask: Ask) -> None:
        """Adds an ask."""
        ask.group = self
        self.pushes += 1
        demand = ask.demand
        heapq.heappush(self.heap, (demand.created_ns, demand.submission, self.pushes, ask))
        self.asks += 1
        if not ask.scaled_up:
            self.unreported.append(ask)

    def pull(self, ask: Ask) -> None:
        """Removes an ask. Its entry in the heap goes when it comes up, or when such entries outnumber the asks."""
        ask.group = None
        self.asks -= 1
        if len(self.heap) > 2 * self.asks + _HEAP_SPARE:
            self.heap = [entry for entry in self.heap if entry[3].group is self]
            heapq.heapify(self.heap)
        if len(self.unreported) > 2 * self.asks + _HEAP_SPARE:
            self.unreported = [waiting for waiting in self.unreported if waiting.group is self]

    def __repr__(self) -> str:
        return f"AskGroup({self.app.app_id}, {self.shape.name}, priority={self.priority})"


class Ask(_HasDemand):
    """A request of an application for ``pending`` more allocations of one demand.

    :ivar allocated: the number of allocations made for it.
    :ivar reserved_node: the id of the node reserved for it, or ""; ``reserved_ns``: since when.
    :ivar preempts: the reservation is a claim on what victims leave, which were released for its next allocation.
    :ivar planned_ns: when victims were last chosen for that one; 0: never. ``lost``: why the last claim was lost.
    :ivar scaled_up: the RM was told that the cluster is too small for it (autoscaling).
    :ivar mismatched: no placeholder of its task group was large enough: it is placed without one.
    :ivar asking: the open questions to the RM about its places; each stands for one of the pending allocations.
    :ivar asked: the question that the RM has not answered for long.
    :ivar refusals: the nodes that the RM refused for it. With any, it stands apart from asks that are alike.
    :ivar notified: the last event for people about it: the sum of ``NOTIFIED_…``.
    """

    __slots__ = (
        "allocated",
        "app",
        "asked",
        "asking",
        "demand",
        "gone",
        "group",
        "lost",
        "mismatched",
        "notified",
        "pending",
        "planned_ns",
        "preempts",
        "published",
        "refusals",
        "reserved_node",
        "reserved_ns",
        "scaled_up",
    )

    def __init__(self, app: Application, demand: Demand, pending: int = 1, allocated: int = 0) -> None:
        self.app = app
        self.demand = demand
        self.pending = pending
        self.allocated = allocated
        self.group: AskGroup | None = None
        self.reserved_node = ""
        self.reserved_ns = 0
        self.preempts = False
        self.planned_ns = 0
        self.lost = ""
        self.scaled_up = False
        self.mismatched = False
        self.asking: list[PendingCheck] | None = None
        self.asked: PendingCheck | None = None
        self.refusals: NodeRefusals | None = None
        self.notified = 0
        self.gone = False
        self.published = False

    @property
    def open(self) -> int:
        """How many of the pending allocations neither have a leaving placeholder nor wait for the RM's answer."""
        count = self.pending if self.asking is None else self.pending - len(self.asking)
        gang = self.app.gang
        if gang is None or not gang.replacing:
            return count
        return count - len(gang.replacing.get(self.demand.key, ()))

    @property
    def apart(self) -> int:
        """Separates it from asks that are alike while nodes are refused for it, if its proposals must be alone in a
        scope, or if its duration decides whether it is backfilled; 0: it is not apart.
        """
        if self.refusals is not None:
            return self.demand.submission
        alone = self.demand.alone
        if alone:
            return ALONE_FROM + alone
        duration_ms = self.demand.execution_timeout_ms
        if duration_ms > 0 and self.app.queue.ancestry[-1].backfills:
            return DURATION_FROM + min(duration_ms, _DURATION_MAX)
        return 0

    @property
    def age(self) -> tuple[int, int]:
        """Sorts asks, the oldest first."""
        return self.demand.created_ns, self.demand.submission

    @property
    def yields(self) -> bool:
        """Whether its reservation stands by its age alone, and so gives way to asks of higher rank."""
        return not (self.preempts or self.demand.required_node or self.awaits_placeholders)

    @property
    def awaits_placeholders(self) -> bool:
        """Whether placeholders were released for it. A reserved node is then kept for the time when they are gone."""
        gang = self.app.gang
        return gang is not None and self.demand.key in gang.replacing

    def __repr__(self) -> str:
        return f"Ask({self.app.app_id}, {self.demand.key})"


class Allocation(_HasDemand):
    """Resources of a node that an application holds.

    :ivar ordinal: the number of the allocation among those of an ask with repeats, from 0. ``unique_key`` distinguishes
        them.
    :ivar foreign: another manager holds it; the core keeps it so that the node's free resources are right.
    :ivar preempted: why preemption released it; it counts until the RM confirms. None: it was not preempted.
    :ivar timed_out: the scheduler released it because its time was up; it counts until the RM confirms.
    :ivar replaced_by: of a placeholder: the key of the real ask for which the scheduler released it; it counts until
        the RM confirms. "": that ask is gone meanwhile; None: not released for an ask.
    :ivar agreed_node: of a placeholder: the node to which the RM agreed for the ask that takes its place. "": the RM
        was not asked, or a restart forgot it; the placeholder's own node or the reserved node is possible.
    :ivar releasing_since_ns: when the scheduler released it, for any reason; 0: not released. ``reminder_ns``: when the
        RM is reminded next.
    :ivar replaces: the placeholder that it replaced.
    :ivar backfilled: the reservation on whose node it was backfilled; None: it was not.
    :ivar source: the external source that runs it; "": the RM runs it. The RM gets no messages about a source's
        allocation.
    :ivar shown: for followers, whose allocations never change: its text, from the first request on. The core does not
        use it.
    """

    __slots__ = (
        "agreed_node",
        "allocated_ns",
        "app",
        "backfilled",
        "demand",
        "foreign",
        "gone",
        "node_id",
        "ordinal",
        "preempted",
        "published",
        "releasing_since_ns",
        "reminder_ns",
        "replaced_by",
        "replaces",
        "shown",
        "source",
        "timed_out",
        "uuid",
    )

    def __init__(
        self,
        app: Application | None,
        demand: Demand,
        node_id: str,
        allocated_ns: int,
        ordinal: int = 0,
        uuid: str = "",
    ) -> None:
        self.app = app
        self.demand = demand
        self.node_id = node_id
        self.allocated_ns = allocated_ns
        self.ordinal = ordinal
        self.uuid = uuid
        self.foreign = app is None
        self.preempted: PreemptionRecord | None = None
        self.timed_out = False
        self.replaced_by: str | None = None
        self.agreed_node = ""
        self.releasing_since_ns = self.reminder_ns = 0
        self.replaces: ReplacedPlaceholder | None = None
        self.backfilled: BackfillRecord | None = None
        self.source = ""
        self.shown: bytes | None = None
        self.gone = False
        self.published = False

    @property
    def unique_key(self) -> str:
        """See :func:`unique_key`."""
        return unique_key(self.demand.key, self.ordinal)

    @property
    def end_ns(self) -> int:
        """When its execution time-out ends it; 0: never. What was backfilled keeps the end that it was let in for."""
        timeout_ms, by = self.demand.execution_timeout_ms, self.backfilled
        end_ns = self.allocated_ns + timeout_ms * 1_000_000 if timeout_ms > 0 else 0
        return end_ns if by is None or 0 < end_ns < by.end_ns else by.end_ns

    @property
    def foreign_id(self) -> str:
        """The id under which a foreign allocation is filed. The RM's is its key, which may be any name; a source's
        differs from all of these.
        """
        return foreign_id(self.demand.key, self.source)

    @property
    def releasing(self) -> bool:
        """Whether the scheduler released it; it counts until the RM confirms that it is gone."""
        return self.preempted is not None or self.timed_out or self.replaced_by is not None

    @property
    def app_id(self) -> str:
        """The application's id; "" for a foreign allocation."""
        return self.app.app_id if self.app is not None else ""

    def __repr__(self) -> str:
        return f"Allocation({self.app_id}, {self.unique_key} on {self.node_id})"


class Gang:
    """The placeholders of one application.

    :ivar total: the placeholderAsk: what all placeholders will take; None: the application did not announce it.
    :ivar deadline_ns: when unused placeholders time out; 0: the clock does not run.
    :ivar too_large_since_ns: since when the gang waits although a limit is smaller than all of it; 0: no limit is, or
        the gang has started. Its clock runs from then on.
    :ivar taken: by type number, the amounts that placeholders hold; ``placed``: without those released for no real ask.
    :ivar pending: by type number, the amounts of the pending placeholder asks; ``ended``: of all that ended.
    :ivar promised: what the gang has still to take while it forms. The limits count it as ``promised``.
    :ivar proposed: by type number, the amounts of the placeholders' open proposals.
    :ivar replacing: by key of a real ask, the unique keys of the placeholders that are leaving for it.
    :ivar reals: by task group ("": none), the groups of real asks.
    :ivar stuck: groups whose asks could take a placeholder's place, but fit on no node now.
    """

    __slots__ = (
        "app",
        "deadline_ns",
        "ended",
        "groups",
        "pending",
        "phase",
        "placed",
        "promised",
        "proposed",
        "reals",
        "replacing",
        "stuck",
        "taken",
        "too_large_since_ns",
        "total",
    )

    def __init__(self, app: Application, total: Shape | None) -> None:
        self.app = app
        self.total = total
        self.phase = GangPhase.WAITING
        self.deadline_ns = self.too_large_since_ns = 0
        self.groups: dict[str, TaskGroup] = {}
        self.taken: dict[int, int] = {}
        self.placed: dict[int, int] = {}
        self.pending: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.promised: dict[int, int] = {}
        self.proposed: dict[int, int] = {}
        self.replacing: dict[str, dict[str, None]] = {}
        self.reals: dict[str, dict[AskGroup, None]] = {}
        self.stuck: dict[AskGroup, None] = {}
        for group in app.groups.values():
            self.on_group_added(group)

    @property
    def whole(self) -> bool:
        """Whether it starts only when there is room for all of it, and holds its real asks until it is formed."""
        return self.total is not None and self.app.queue.policy.whole_gangs

    @property
    def waits_for_room(self) -> bool:
        """Whether it has not started, because there must be room for all of it first."""
        return self.phase is GangPhase.WAITING and self.whole and not self.proposed and self.expects

    @property
    def to_come(self) -> dict[int, int]:
        """By type number, the announced amounts that are not placed and may still be."""
        return to_come(self.total, self.placed, self.taken, self.pending, self.ended)

    @property
    def expects(self) -> bool:
        """Whether a gang that is not formed yet may still get a placeholder."""
        return self.phase in (GangPhase.WAITING, GangPhase.FORMING) and bool(self.to_come)

    @property
    def is_complete(self) -> bool:
        """Whether placeholders hold everything that was announced; of a whole gang, everything that may still come."""
        if self.whole or self.total is None:
            return self.whole and not self.to_come
        return all(self.placed.get(number, 0) >= value for number, value in self.total.items)

    @property
    def is_hard(self) -> bool:
        """Whether the application must not run without its placeholders (gangSchedulingStyle)."""
        return self.app.gang_style.lower() == HARD

    @property
    def unplaced_by_type(self) -> dict[int, int]:
        """By type number, the amounts to come that are not proposed, while the gang forms as a whole: its promise."""
        started = self.phase is GangPhase.FORMING or (self.phase is GangPhase.WAITING and self.proposed)
        amounts = self.to_come if self.whole and started and self.app.state not in APP_ENDING else {}
        return {
            number: unplaced
            for number, value in amounts.items()
            if (unplaced := value - self.proposed.get(number, 0)) > 0
        }

    def oldest_pending(self, task_group: str) -> Ask | None:
        """The placeholder ask of the task group that was created first among the pending ones, also after a fold."""
        alike = (group for group in self.app.groups.values() if group.placeholder and group.task_group == task_group)
        heads = (head for group in alike if (head := group.head()) is not None)
        return min(heads, key=lambda ask: (ask.created_ns, ask.submission), default=None)

    @property
    def held(self) -> int:
        """The number of placeholders on the books, including released ones."""
        return sum(group.held for group in self.groups.values())

    @property
    def counts_as_running(self) -> bool:
        """Whether it counts against limits of running applications, because it forms or is formed."""
        return self.phase in (GangPhase.FORMING, GangPhase.FORMED)

    def task_group(self, demand: Demand) -> TaskGroup:
        """The task group of a placeholder, created if there is none."""
        group = self.groups.get(demand.task_group)
        if group is None:
            self.groups[demand.task_group] = group = TaskGroup(demand.task_group, demand.shape)
        return group

    def on_group_added(self, group: AskGroup) -> None:
        """A group of the application is new."""
        if not group.placeholder:
            self.reals.setdefault(group.task_group, {})[group] = None

    def on_group_removed(self, group: AskGroup) -> None:
        """A group of the application is gone."""
        self.stuck.pop(group, None)
        same = self.reals.get(group.task_group)
        if same is not None and group in same:
            del same[group]
            if not same:
                del self.reals[group.task_group]

    # ---- which asks are held back, and why -------------------------------------------------------------------------

    def gates(self, group: AskGroup) -> bool:
        """Whether real asks must wait for placeholders. They are then neither ready nor parked."""
        if group.placeholder:
            return False
        if self.whole and self.expects:
            return True
        return group in self.stuck or self.awaits(self.groups.get(group.task_group))

    def awaits(self, own: TaskGroup | None) -> bool:
        """Whether pending placeholders hold back the real asks of their task group.

        This happens only with ``gang.start: incremental``, and only while the placeholders' clock runs. Once the gang
        was formed, the gang design lets a real ask that finds no placeholder go the normal way.
        """
        if own is None or not own.pending or own.free or self.whole:
            return False
        return self.phase not in (GangPhase.USED, GangPhase.OVER) or self.deadline_ns > 0

    def can_be_replaced_by(self, group: AskGroup) -> bool:
        """Whether there are placeholders whose places these asks may take."""
        own = self.groups.get(group.task_group) if not group.placeholder else None
        if own is None or not own.free:
            return False
        return not group.required_node or own.free.on(group.required_node)

    def __repr__(self) -> str:
        return f"Gang({self.app.app_id}, {self.phase})"
