"""The shapes of ``/ws/v1/explain/*`` (Muster's own; docs/explain.md). No field is left out, so readers need no
defaults.

Times are nanoseconds since the epoch, 0: none. ``message`` says the same for a person.
"""

from __future__ import annotations

from msgspec import field
from muster_si.constants import FOREIGN

from muster_rest.shapes.base import (
    Amount,
    Code,
    CodeOrEmpty,
    Count,
    MusterShape,
    Name,
    Quantities,
    Sentence,
    Time,
    joined,
)
from muster_rest.shapes.state import LackingDao, ReportedDao


class ToldToGoDao(MusterShape, kw_only=True):
    """An allocation that was released and has not ended yet."""

    application_id: Name = field(name="applicationID")
    allocation_key: Name
    node: Name
    since: Time


class AskPreemptionDao(MusterShape, kw_only=True):
    """The state of preemption for an ask.

    ``state``: CHOSEN (victims were chosen for it), NO (``no`` gives the reason), PENDING (its turn will come), or NONE
    (preemption cannot give what it waits for). ``mayAt``: if it is too young, or has preempted just now and lost the
    room, the time from which it may preempt. ``lost``: why the room that was last made for it is lost.
    """

    state: Code
    no: CodeOrEmpty = ""
    may_at: Time = 0
    lost: str = ""
    victims: list[ToldToGoDao] = []


class KeptNodeDao(MusterShape, kw_only=True):
    """A node that is reserved for an ask."""

    node: Name
    since: Time


class ClosedDao(MusterShape, kw_only=True):
    """How many nodes are closed or gone, by closer. ``source``: the source's name; "": not a source."""

    by: Code
    source: str
    nodes: Count


class FiguresDao(MusterShape, kw_only=True):
    """A reason's figures and names."""

    reason: Code
    resource_type: str
    asked: Count
    used: Amount
    limit: Amount
    free: Count
    promised: Amount
    limit_queue: str
    who: str
    node: str
    nodes: Count
    reserved_nodes: Count


class WhyDao(FiguresDao, kw_only=True):
    """A reason alone: the fields of :class:`muster_core.model.reasons.Reason`.

    ``limitQueue``: the queue of the limit. ``reservedNodes``: how many nodes would fit, but are reserved for others.
    ``promised``: the amount that started gangs will still take there.
    """

    lacking: list[LackingDao]
    closed: list[ClosedDao]
    since: Time
    message: Sentence


class AwaitedDao(MusterShape, kw_only=True):
    """The part of its gang that an ask waits for.

    ``taskGroup``: the incomplete part of the gang: ``placed`` of its ``members`` placeholders are placed. ``because``:
    why the others are not; null: not known. ``placeholder``: the first of those that make room for the ask.
    """

    task_group: str
    placed: Count
    members: Count
    placeholder: str
    because: WhyDao | None


class NowDao(MusterShape, kw_only=True):
    """A reason's current figures, as far as the view knows them: it follows the scheduler."""

    used: Amount
    limit: Amount
    free: Count
    promised: Amount


class PastDao(FiguresDao, kw_only=True):
    """A reason that is over, from ``since`` to ``until``; the fields of :class:`WhyDao`, as they were recorded."""

    closed: list[ClosedDao]
    since: Time
    until: Time
    message: Sentence


class EpisodeDao(MusterShape, kw_only=True):
    """A time in which some asks of an application or a queue waited for one thing.

    ``until``: 0: it still lasts, and ``asks`` wait for it.
    """

    reason: Code
    resource_type: str
    limit_queue: str
    who: str
    since: Time
    until: Time
    asks: Count


class RefusedNodeDao(MusterShape, kw_only=True):
    """A node that the RM refused for an ask. ``unanswered``: the RM did not answer in time."""

    node: Name
    reason: str
    since: Time
    unanswered: bool


class PendingDao(MusterShape, kw_only=True):
    """A pending ask with its reason, flat: the fields of :class:`WhyDao` are those of its reason.

    ``count``: how many allocations are pending. ``placeholder``, ``taskGroup``: those of the ask. ``gang``: the part of
    its gang that it waits for; null: it waits for something else. ``refusals``: the last nodes that the RM refused for
    it; ``refusedUntil``: when the RM will be asked about them again; 0: none is refused. ``waitingSince``: when it was
    submitted; ``since``: when this reason began for it; ``asOf``: the time of the reason's figures; ``now``: the
    current figures, null: it has none. ``history``: the earlier reasons. ``at``: the time of the answer; ``sentence``:
    the explanation in one sentence.
    """

    partition: Name
    application_id: Name = field(name="applicationID")
    allocation_key: Name
    queue: Name
    count: Count
    priority: int
    resource: Quantities
    placeholder: bool
    task_group: str
    reason: Code
    resource_type: str
    asked: Count
    used: Amount
    limit: Amount
    free: Count
    promised: Amount
    limit_queue: str
    who: str
    node: str
    nodes: Count
    reserved_nodes: Count
    lacking: list[LackingDao]
    closed: list[ClosedDao]
    since: Time
    as_of: Time
    now: NowDao | None
    waiting_since: Time
    history: list[PastDao]
    at: Time
    gang: AwaitedDao | None
    reservation: KeptNodeDao | None
    preemption: AskPreemptionDao
    refusals: list[RefusedNodeDao]
    refused_until: Time
    scaled_up: bool
    sentence: Sentence
    message: Sentence


class WhenDao(MusterShape, kw_only=True):
    """When a pending ask will start, from simulations of the present state.

    ``state``: ESTIMATED (in 8 of 10 cases from ``earliest`` to ``latest``), PARTLY (too many simulations do not start
    it), UNKNOWN, or MAKING (ask again); ``why``: the reason of the last three. ``started``: how many of the
    ``simulations`` start it. ``declared``, ``learnt``, ``unknown``: how many running allocations of the partition have
    a length of that kind. ``at``: the time of the state that was simulated.
    """

    partition: Name
    application_id: Name = field(name="applicationID")
    allocation_key: Name
    state: Code
    why: CodeOrEmpty
    earliest: Time
    likely: Time
    latest: Time
    simulations: Count
    started: Count
    declared: Count
    learnt: Count
    unknown: Count
    at: Time
    sentence: Sentence
    message: Sentence


class RowWhenDao(MusterShape, kw_only=True):
    """When the pending asks of an application that wait for one reason will start: a row of the page.

    ``state``: FORECAST (``first`` and ``last`` say more; they are the same of a single ask), STARTED (none of them is
    pending any more; ``first`` and ``last``: what the forecast said), UNKNOWN (``why``: as in WhenDao), or MAKING (ask
    again, with ``since``). ``asks``: how many waited when the forecast was begun; ``started``: those of them that have
    started since, and are still there. ``since``: the forecast's state is not older. ``at``: the time of the state that
    was simulated.
    """

    partition: Name
    application_id: Name = field(name="applicationID")
    reason: CodeOrEmpty
    state: Code
    why: CodeOrEmpty
    asks: Count
    started: Count
    first: WhenDao | None
    last: WhenDao | None
    since: Time
    at: Time
    sentence: Sentence
    message: Sentence


class OutlookDao(MusterShape, kw_only=True):
    """When a queue's asks that wait now start. ``started``: the share that does within 30 days, from 0 to 1. ``half``,
    ``most``: seconds from now until half of them, and 95 %, have started; null: not within 30 days.
    """

    started: float
    half: float | None
    most: float | None


class FutureQueueDao(MusterShape, kw_only=True):
    """A queue with waiting asks, in both futures."""

    queue: Name
    asks: Count
    present: OutlookDao
    other: OutlookDao


class RiseDao(MusterShape, kw_only=True):
    """The share of the waiting asks that have started so many seconds (``moments``) from now, in both futures."""

    moments: list[float]
    present: list[float]
    other: list[float]


class FuturesDao(MusterShape, kw_only=True):
    """When the asks that wait now start, under the configuration in force (``present``) and another one (``other``).

    ``state``: COMPARED; REFUSED (``problems`` says why the configuration would be refused); UNKNOWN (``message`` says
    why); MAKING (ask again with the same body). ``at``: the time of the state that was simulated.
    """

    partition: Name
    state: Code
    problems: list[str]
    queues: list[FutureQueueDao]
    rise: RiseDao | None
    simulations: Count
    at: Time
    message: Sentence


class PreemptedDao(MusterShape, kw_only=True):
    """A preempted allocation and the ask that gets its room. Shares: the fair share of the victim's and the asker's
    queue, without and with the allocations that are preempted together. ``withGang``: its whole gang is preempted with
    it. ``at``: the time of the answer; ``sentence``: the explanation in one sentence.
    """

    partition: Name
    application_id: Name = field(name="applicationID")
    allocation_key: Name
    queue: Name
    node: Name
    priority: int
    resource: Quantities
    placeholder: bool
    task_group: str
    with_gang: bool
    rule: Code
    since: Time
    for_application_id: str = field(name="forApplicationID")
    for_allocation_key: str
    for_queue: str
    victim_share_before: float
    victim_share_after: float
    asker_share_before: float
    asker_share_after: float
    at: Time
    sentence: Sentence
    message: Sentence


class TaskGroupDao(MusterShape, kw_only=True):
    """The placeholders of one name: ``asked = pending + held + replaced + timedOut + lost``.

    ``resource``: of each one. ``leaving``: how many of those held are being released. ``because``: why some are
    pending; null: none is pending.
    """

    task_group: str
    resource: Quantities
    asked: Count
    pending: Count
    held: Count
    leaving: Count
    replaced: Count
    timed_out: Count
    lost: Count
    because: WhyDao | None


class GangDao(MusterShape, kw_only=True):
    """The state of an application's gang.

    ``start``: ``whole`` or ``incremental``. ``asked``: the announced amounts of all its placeholders; ``placed`` of
    them are on nodes, and ``promised`` is kept for the rest. ``deadline``: when unused placeholders time out; 0: their
    clock does not run. ``timeout``: how long that clock runs, from the first placeholder on.
    """

    phase: Code
    style: str
    start: str
    asked: Quantities
    placed: Quantities
    promised: Quantities
    timeout: Count
    deadline: Time
    task_groups: list[TaskGroupDao]
    message: Sentence


class ReplacementDao(MusterShape, kw_only=True):
    """A real allocation that took a placeholder's place, or an ask that is about to.

    ``state``: DONE, or LEAVING while the RM has not confirmed that the placeholder is gone. ``node``: of the
    allocation, or of the placeholder that is being released. ``since``: when it was allocated, or the placeholder
    released.
    """

    allocation_key: Name
    placeholder: Name
    task_group: str
    node: Name
    state: Code
    since: Time
    message: Sentence


class WaitingDao(MusterShape, kw_only=True):
    """Why an application as a whole may not run."""

    reason: Code
    queue: Name
    who: str
    resource_type: str
    asked: Count
    used: Amount
    limit: Amount
    promised: Amount
    since: Time


class ApplicationHeadDao(MusterShape, kw_only=True):
    """An application, without its asks. ``waiting``: why it may not run; null: it may run. ``gang``: null: it has none.

    ``history``: the current and earlier reasons of it and its asks. ``at``: the time of the answer; ``sentence``: the
    explanation in one sentence.
    """

    partition: Name
    application_id: Name = field(name="applicationID")
    queue: Name
    state: Name
    since: Time
    user: str
    group: str
    allocations: Count
    pending: Count
    counts: dict[Code, Count]
    waiting: WaitingDao | None
    gang: GangDao | None
    history: list[EpisodeDao]
    rejected: str
    at: Time
    sentence: Sentence
    message: Sentence


class GuaranteeDao(MusterShape, kw_only=True):
    """A queue's guarantee and usage of one type. ``used`` is without the preempted amount (``preempting``)."""

    queue: Name
    resource_type: Name
    guaranteed: Count
    used: Amount
    preempting: Count
    missing: Count


class FairShareDao(MusterShape, kw_only=True):
    """The decayed use of one user of a leaf in the order of use (``application.sort.policy: fairshare``).

    ``share``: the largest part of a type that the user had lately, of the guaranteed amount or the fair max: 1 is all
    of it for ever. ``shareAhead``: the same at the horizon, by which the users are ordered. ``used``: the decayed use
    now, in amount x seconds; ``held``: what its allocations hold; ``pending``: how many allocations are pending.
    """

    user: str
    share: float
    share_ahead: float
    used: Quantities
    held: Quantities
    pending: Count


class QueueDao(MusterShape, kw_only=True):
    """The state of a queue.

    ``share``: its fair share. ``guarantees``: its own, and those above it up to the fence. ``preemptionFence``: its
    asks preempt nothing outside of that queue. ``protectedBy``: the queue whose configuration protects its allocations
    from preemption; "": none. ``quotaAt``: when usage above its max will be preempted. ``formingApplications``:
    applications that count for ``maxApplications`` only because of their placeholders. ``promised``: the amount that
    started gangs will still take in it. ``sources``: the external sources that set its max (for root: the amounts of
    pools); ``disputed``: where they and the configuration differ; "": nowhere. ``history``: the current and earlier
    reasons of its asks. ``fairShares``: of a leaf in the order of use, its users, the one that comes first at the
    beginning. ``at``: the time of the answer; ``sentence``: the explanation in one sentence.
    """

    partition: Name
    queue: Name
    state: Name
    leaf: bool
    managed: bool
    share: float
    allocated: Quantities
    preempting: Quantities
    pending: Quantities
    promised: Quantities
    maximum: Quantities
    sources: list[Name]
    disputed: str
    headroom: Quantities
    guarantees: list[GuaranteeDao]
    applications: Count
    running_applications: Count
    forming_applications: Count
    max_applications: Count
    preemption_fence: Name
    protected_by: str
    preemption_delay: Count
    preempts_by_priority: bool
    priority_fence: bool
    priority_offset: int
    current_priority: int
    quota_at: Time
    fair_shares: list[FairShareDao]
    asks: dict[Code, Count]
    history: list[EpisodeDao]
    at: Time
    sentence: Sentence
    message: Sentence


class KeptForDao(MusterShape, kw_only=True):
    """An ask for which a node is reserved."""

    application_id: str = field(name="applicationID")
    allocation_key: str
    resource: Quantities
    since: int


class LacksDao(MusterShape, kw_only=True):
    """How many asks a node has too little of a type for."""

    resource_type: str
    asks: int


class WouldFitDao(MusterShape, kw_only=True):
    """The pending asks of a node's partition, by whether they fit on the node.

    ``fit``: how many asks fit on the node now, each alone; ``reasons``: why they still wait. ``lacking``: the others,
    by the first type that the node has too little of. ``elsewhere``: how many require another node.
    """

    asks: int
    fit: int
    reasons: dict[str, int]
    lacking: list[LacksDao]
    elsewhere: int


class OnNodeDao(MusterShape, kw_only=True):
    """An allocation on a node. ``told``: PREEMPTED, REPLACED or TIMED_OUT once it was released, at ``toldAt``."""

    application_id: str = field(name="applicationID")
    allocation_key: str
    resource: Quantities
    priority: int
    placeholder: bool
    since: int
    told: str
    told_at: int


class RefusedForDao(MusterShape, kw_only=True):
    """An ask for which the RM refused a node. ``unanswered``: the RM did not answer in time."""

    application_id: str = field(name="applicationID")
    allocation_key: str
    reason: str
    since: int
    unanswered: bool


class NodeSourceDao(MusterShape, kw_only=True):
    """The report of an external source about a node.

    ``capacity``: null: the source reports none. ``whole``: the node has nothing of types that the source does not name.
    ``held``: why the source closes the node; "": it does not. ``brings``: the source created the node.
    """

    source: str
    capacity: Quantities | None
    whole: bool
    occupied: Quantities
    schedulable: bool
    held: str
    brings: bool


class WantedBackDao(MusterShape, kw_only=True):
    """An offer of the node that its source has revoked or no longer reports.

    ``deadline``: when allocations that do not fit on the node without the offer are preempted.
    """

    source: str
    offer: str
    resource: Quantities
    withdrawn: bool
    deadline: int


class NodeHeadDao(MusterShape, kw_only=True):
    """The state of a node, without its allocations.

    ``ready``: as the RM reports it. ``keptFor``: the asks that reserve it. ``toldToGo``: how many of its allocations
    were released and are still there. ``refusedFor``: the asks for which the RM refused it (a hundred at most;
    ``refusals``: how many there are). ``sources``: the reports of external sources; ``rm``: the RM's own report beside
    them, null: it has none, or no source reports the node. ``disputed``: where the reports differ; ``closed``: the
    closer of the node; "": it is open. ``wantedBack``: its revoked offers. ``at``: the time of the answer;
    ``sentence``: the explanation in one sentence.
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


class SummaryDao(MusterShape, kw_only=True):
    """The progress of an RM's work, in counts."""

    rm: str
    life: str
    life_since: int
    held: bool
    description: str
    allocated: int
    pending: int
    counts: dict[str, int]


class AllPendingDao(MusterShape, kw_only=True):
    """All pending asks, and their number by reason."""

    rm: Name
    pending: list[PendingDao]
    counts: dict[Code, Count]


class AllPreemptedDao(MusterShape, kw_only=True):
    """All allocations that are being preempted. ``ended``: those that have ended since the view started, the latest
    last, at most 100, as they were at their preemption.
    """

    rm: Name
    preempted: list[PreemptedDao]
    ended: list[PreemptedDao]


ApplicationDao = joined(
    "ApplicationDao",
    "An application, why its asks are pending, and which of its allocations are being preempted or replaced.",
    ApplicationHeadDao,
    {"asks": list[PendingDao], "preempted": list[PreemptedDao], "replacements": list[ReplacementDao]},
)
NodeDao = joined(
    "NodeDao",
    "The state of a node, and its allocations.",
    NodeHeadDao,
    {"allocations": list[OnNodeDao], FOREIGN: list[OnNodeDao]},
)
