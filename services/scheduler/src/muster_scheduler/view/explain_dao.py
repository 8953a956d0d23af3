"""The shapes of ``/ws/v1/explain/*`` (ours; docs/explain.md). Nothing is left out, so that readers need no defaults.

Times are nanoseconds since the epoch, 0: none. ``message`` says the same for a person.
"""

from __future__ import annotations

from msgspec import Struct, field

from muster_scheduler.view.dao import LackingDao, Quantities


class _Whole(Struct, kw_only=True, rename="camel"):
    """How all of them are written."""


class ToldToGoDao(_Whole, kw_only=True):
    """An allocation that was told to go and is still there."""

    application_id: str = field(name="applicationID")
    allocation_key: str
    node: str


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


class PendingDao(_Whole, kw_only=True):
    """A pending ask with its reason, flat: the fields of :class:`muster_scheduler.core.reasons.Reason`.

    ``count``: allocations that are still wanted. ``limitQueue``: whose limit it is. ``reservedNodes``: how many nodes
    would do, but are kept free for others.
    """

    partition: str
    application_id: str = field(name="applicationID")
    allocation_key: str
    queue: str
    count: int
    priority: int
    resource: Quantities
    reason: str
    resource_type: str
    asked: int
    used: int
    limit: int
    free: int
    limit_queue: str
    who: str
    node: str
    nodes: int
    reserved_nodes: int
    lacking: list[LackingDao]
    since: int
    reservation: KeptNodeDao | None
    preemption: AskPreemptionDao
    scaled_up: bool
    message: str


class PreemptedDao(_Whole, kw_only=True):
    """An allocation that was told to go, and for whom. Shares: the fair share of the victim's and the asker's queue,
    without and with what is preempted together with it.
    """

    partition: str
    application_id: str = field(name="applicationID")
    allocation_key: str
    queue: str
    node: str
    priority: int
    resource: Quantities
    rule: str
    since: int
    for_application_id: str = field(name="forApplicationID")
    for_allocation_key: str
    for_queue: str
    victim_share_before: float
    victim_share_after: float
    asker_share_before: float
    asker_share_after: float
    message: str


class ApplicationDao(_Whole, kw_only=True):
    """An application, up to its asks. ``waiting``: why it may not run at all; null: it may."""

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
    waiting: dict[str, str | int] | None
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
    is preempted; "": nobody's. ``quotaAt``: when what is above its max is cut back.
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
    maximum: Quantities
    headroom: Quantities
    guarantees: list[GuaranteeDao]
    applications: int
    running_applications: int
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
    message: str


class SummaryDao(_Whole, kw_only=True):
    """How far an RM's work is, in counts."""

    rm: str
    life: str
    allocated: int
    pending: int
    counts: dict[str, int]
