"""The shapes of ``/ws/v1/explain/*`` (ours; docs/explain.md). Nothing is left out, so that readers need no defaults.

Times are nanoseconds since the epoch, 0: none. ``message`` says the same for a person.
"""

from __future__ import annotations

from msgspec import Struct, field

from muster_scheduler.view.dao import LackingDao, Quantities, ReportedDao


class _Whole(Struct, kw_only=True, rename="camel"):
    """How all of them are written."""


class ToldToGoDao(_Whole, kw_only=True):
    """An allocation that was told to go and is still there."""

    application_id: str = field(name="applicationID")
    allocation_key: str
    node: str
    since: int


class AskPreemptionDao(_Whole, kw_only=True):
    """What preemption does for an ask.

    ``state``: CHOSEN (victims were chosen for it), NO (and ``no`` says why), PENDING (its turn will come), or NONE
    (what it waits for is nothing that preemption gives). ``mayAt``: from when on it may, where it is too young.
    """

    state: str
    no: str = ""
    may_at: int = 0
    victims: list[ToldToGoDao] = []


class KeptNodeDao(_Whole, kw_only=True):
    """A node that is kept free for an ask."""

    node: str
    since: int


class ClosedDao(_Whole, kw_only=True):
    """So many nodes take nothing new, or are there no more, by whose word. ``source``: its name; "": it is none."""

    by: str
    source: str
    nodes: int


class WhyDao(_Whole, kw_only=True):
    """A reason alone: the fields of :class:`muster_scheduler.core.reasons.Reason`.

    ``limitQueue``: whose limit it is. ``reservedNodes``: how many nodes would do, but are kept free for others.
    ``promised``: what gangs that have started will still take there.
    """

    reason: str
    resource_type: str
    asked: int
    used: int
    limit: int
    free: int
    promised: int
    limit_queue: str
    who: str
    node: str
    nodes: int
    reserved_nodes: int
    lacking: list[LackingDao]
    closed: list[ClosedDao]
    since: int
    message: str


class AwaitedDao(_Whole, kw_only=True):
    """What of its gang an ask waits for.

    ``taskGroup``: the part that is not complete: ``placed`` of its ``members`` placeholders are. ``because``: why the
    rest is not; null: not known. ``placeholder``: of those that are to make room for the ask, the first.
    """

    task_group: str
    placed: int
    members: int
    placeholder: str
    because: WhyDao | None


class NowDao(_Whole, kw_only=True):
    """What a reason's figures are now, as far as the view knows: it follows the scheduler."""

    used: int
    limit: int
    free: int
    promised: int


class PastDao(_Whole, kw_only=True):
    """A reason that is over, from ``since`` to ``until``; the fields of :class:`WhyDao`, as they were recorded."""

    reason: str
    resource_type: str
    asked: int
    used: int
    limit: int
    free: int
    promised: int
    limit_queue: str
    who: str
    node: str
    nodes: int
    reserved_nodes: int
    closed: list[ClosedDao]
    since: int
    until: int
    message: str


class EpisodeDao(_Whole, kw_only=True):
    """A time in which some of an application's, or a queue's asks waited for one thing.

    ``until``: 0: it goes on, and ``asks`` wait for it.
    """

    reason: str
    resource_type: str
    limit_queue: str
    who: str
    since: int
    until: int
    asks: int


class RefusedNodeDao(_Whole, kw_only=True):
    """A node that the RM does not want for an ask. ``unanswered``: it did not say so; it did not answer in time."""

    node: str
    reason: str
    since: int
    unanswered: bool


class PendingDao(_Whole, kw_only=True):
    """A pending ask with its reason, flat: the fields of :class:`WhyDao` are those of its reason.

    ``count``: allocations that are still wanted. ``placeholder``, ``taskGroup``: its own. ``gang``: what of its gang it
    waits for; null: it waits for something else. ``refusals``: of the nodes that the RM refused for it, the last ones;
    ``refusedUntil``: when it will be asked about all of them again; 0: it is not refused any. ``waitingSince``: when it
    came; ``since``: when this reason began for it; ``asOf``: of when the reason's figures are; ``now``: what they are
    now, null: there is nothing to count. ``history``: what it waited for before. ``at``: of when the answer is;
    ``sentence``: the one that says it.
    """

    partition: str
    application_id: str = field(name="applicationID")
    allocation_key: str
    queue: str
    count: int
    priority: int
    resource: Quantities
    placeholder: bool
    task_group: str
    reason: str
    resource_type: str
    asked: int
    used: int
    limit: int
    free: int
    promised: int
    limit_queue: str
    who: str
    node: str
    nodes: int
    reserved_nodes: int
    lacking: list[LackingDao]
    closed: list[ClosedDao]
    since: int
    as_of: int
    now: NowDao | None
    waiting_since: int
    history: list[PastDao]
    at: int
    gang: AwaitedDao | None
    reservation: KeptNodeDao | None
    preemption: AskPreemptionDao
    refusals: list[RefusedNodeDao]
    refused_until: int
    scaled_up: bool
    sentence: str
    message: str


class PreemptedDao(_Whole, kw_only=True):
    """An allocation that was told to go, and for whom. Shares: the fair share of the victim's and the asker's queue,
    without and with what is preempted together with it. ``withGang``: its whole gang goes with it. ``at``: of when the
    answer is; ``sentence``: the one that says it.
    """

    partition: str
    application_id: str = field(name="applicationID")
    allocation_key: str
    queue: str
    node: str
    priority: int
    resource: Quantities
    placeholder: bool
    task_group: str
    with_gang: bool
    rule: str
    since: int
    for_application_id: str = field(name="forApplicationID")
    for_allocation_key: str
    for_queue: str
    victim_share_before: float
    victim_share_after: float
    asker_share_before: float
    asker_share_after: float
    at: int
    sentence: str
    message: str


class TaskGroupDao(_Whole, kw_only=True):
    """The placeholders of one name: ``asked = pending + held + replaced + timedOut + lost``.

    ``resource``: of each. ``leaving``: those held that were told to go. ``because``: why some are pending; null: none
    is.
    """

    task_group: str
    resource: Quantities
    asked: int
    pending: int
    held: int
    leaving: int
    replaced: int
    timed_out: int
    lost: int
    because: WhyDao | None


class GangDao(_Whole, kw_only=True):
    """How far an application's gang is.

    ``start``: ``whole`` or ``incremental``. ``asked``: what its placeholders take in all, as announced, of which
    ``placed`` is on nodes and ``promised`` is kept for the rest. ``deadline``: when the time of unused placeholders is
    up; 0: their clock does not run. ``timeout``: how long that clock runs, from the first placeholder on.
    """

    phase: str
    style: str
    start: str
    asked: Quantities
    placed: Quantities
    promised: Quantities
    timeout: int
    deadline: int
    task_groups: list[TaskGroupDao]
    message: str


class ReplacementDao(_Whole, kw_only=True):
    """A real allocation that took a placeholder's place, or an ask that is about to.

    ``state``: DONE, or LEAVING while the RM has not confirmed that the placeholder is gone. ``node``: of the
    allocation, or of the placeholder that is leaving. ``since``: when it was allocated, or the placeholder told to go.
    """

    allocation_key: str
    placeholder: str
    task_group: str
    node: str
    state: str
    since: int
    message: str


class WaitingDao(_Whole, kw_only=True):
    """Why an application as a whole may not run."""

    reason: str
    queue: str
    who: str
    resource_type: str
    asked: int
    used: int
    limit: int
    promised: int
    since: int


class ApplicationDao(_Whole, kw_only=True):
    """An application, up to its asks. ``waiting``: why it may not run at all; null: it may. ``gang``: null: none.

    ``history``: what it and its asks wait for, and waited for before. ``at``: of when the answer is; ``sentence``: the
    one that says it.
    """

    partition: str
    application_id: str = field(name="applicationID")
    queue: str
    state: str
    since: int
    user: str
    group: str
    allocations: int
    pending: int
    counts: dict[str, int]
    waiting: WaitingDao | None
    gang: GangDao | None
    history: list[EpisodeDao]
    rejected: str
    at: int
    sentence: str
    message: str


class GuaranteeDao(_Whole, kw_only=True):
    """What a queue is guaranteed of one type, and has. ``used`` is without what was told to go (``preempting``)."""

    queue: str
    resource_type: str
    guaranteed: int
    used: int
    preempting: int
    missing: int


class QueueDao(_Whole, kw_only=True):
    """Where a queue stands.

    ``share``: its fair share. ``guarantees``: its own, and those above it up to the fence. ``preemptionFence``: asks
    from in here preempt nothing outside of that queue. ``protectedBy``: the queue whose word it is that nothing in here
    is preempted; "": nobody's. ``quotaAt``: when what is above its max is cut back. ``formingApplications``: those
    whose placeholders count against ``maxApplications`` though nothing else of them runs. ``promised``: what gangs that
    have started will still take in here. ``sources``: those outside of the RM that say what its max is (of root: what
    pools have); ``disputed``: where they and the configuration differ; "": nowhere. ``history``: what the asks in it
    wait for, and waited for before. ``at``: of when the answer is; ``sentence``: the one that says it.
    """

    partition: str
    queue: str
    state: str
    leaf: bool
    managed: bool
    share: float
    allocated: Quantities
    preempting: Quantities
    pending: Quantities
    promised: Quantities
    maximum: Quantities
    sources: list[str]
    disputed: str
    headroom: Quantities
    guarantees: list[GuaranteeDao]
    applications: int
    running_applications: int
    forming_applications: int
    max_applications: int
    preemption_fence: str
    protected_by: str
    preemption_delay: int
    preempts_by_priority: bool
    priority_fence: bool
    priority_offset: int
    current_priority: int
    quota_at: int
    asks: dict[str, int]
    history: list[EpisodeDao]
    at: int
    sentence: str
    message: str


class KeptForDao(_Whole, kw_only=True):
    """An ask that a node is kept free for."""

    application_id: str = field(name="applicationID")
    allocation_key: str
    resource: Quantities
    since: int


class LacksDao(_Whole, kw_only=True):
    """How many asks a node has too little of a type for."""

    resource_type: str
    asks: int


class WouldFitDao(_Whole, kw_only=True):
    """The pending asks of a node's partition, as the node sees them.

    ``fit``: how many it has room for now, each alone; ``reasons``: why these wait all the same. ``lacking``: of the
    others, by the first type that it has too little of. ``elsewhere``: how many may run on another node only.
    """

    asks: int
    fit: int
    reasons: dict[str, int]
    lacking: list[LacksDao]
    elsewhere: int


class OnNodeDao(_Whole, kw_only=True):
    """An allocation on a node. ``told``: PREEMPTED, REPLACED or TIMED_OUT once it was told to go, at ``toldAt``."""

    application_id: str = field(name="applicationID")
    allocation_key: str
    resource: Quantities
    priority: int
    placeholder: bool
    since: int
    told: str
    told_at: int


class RefusedForDao(_Whole, kw_only=True):
    """An ask for which the RM refused a node. ``unanswered``: it did not say so, its time was up."""

    application_id: str = field(name="applicationID")
    allocation_key: str
    reason: str
    since: int
    unanswered: bool


class NodeSourceDao(_Whole, kw_only=True):
    """What a source outside of the RM says of a node.

    ``capacity``: null: it says nothing of it. ``whole``: of a type that it does not name there is none. ``held``: why
    the node takes nothing new for its sake; "": it may. ``brings``: the node is there for its sake.
    """

    source: str
    capacity: Quantities | None
    whole: bool
    occupied: Quantities
    schedulable: bool
    held: str
    brings: bool


class WantedBackDao(_Whole, kw_only=True):
    """An offer of the node that its source wants back, or says nothing of any more.

    ``deadline``: when what does not fit on the node without it is preempted.
    """

    source: str
    offer: str
    resource: Quantities
    withdrawn: bool
    deadline: int


class NodeDao(_Whole, kw_only=True):
    """Where a node stands, up to what is on it.

    ``ready``: as the RM says it. ``keptFor``: the asks that it is kept free for. ``toldToGo``: how many of its
    allocations were told to go and are still there. ``refusedFor``: the asks for which the RM refused it (a hundred at
    most; ``refusals``: how many there are). ``sources``: what those outside of the RM say of it; ``rm``: what the RM
    itself says beside them, null: nothing, or it alone speaks. ``disputed``: where they differ; ``closed``: who says
    that the node takes nothing new; "": nobody. ``wantedBack``: what was lent of it, and no longer is. ``at``: of when
    the answer is; ``sentence``: the one that says it.
    """

    partition: str
    node: str
    schedulable: bool
    ready: bool
    sources: list[NodeSourceDao]
    rm: ReportedDao | None
    disputed: str
    closed: str
    closed_by: str
    wanted_back: list[WantedBackDao]
    capacity: Quantities
    allocated: Quantities
    occupied: Quantities
    available: Quantities
    kept_for: list[KeptForDao]
    told_to_go: int
    waiting: WouldFitDao
    refusals: int
    refused_for: list[RefusedForDao]
    at: int
    sentence: str
    message: str


class SummaryDao(_Whole, kw_only=True):
    """How far an RM's work is, in counts."""

    rm: str
    life: str
    allocated: int
    pending: int
    counts: dict[str, int]
