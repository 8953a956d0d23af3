"""Explains preempted allocations (their rule and their ask), and the help of preemption for a pending ask."""

from __future__ import annotations

from collections.abc import Iterator

from muster_core.allocation.preemptors import preempts_from
from muster_core.config.properties import PreemptionPolicy
from muster_core.model.allocation import PreemptionRecord
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.queue import Queue
from muster_core.model.reasons import NoPreemptionReason, Reason, ReasonCode
from muster_core.model.text_format import format_duration, pluralize
from muster_core.partition import Partition
from muster_core.preemption import registry
from muster_core.preemption.victims import is_evicted_whole
from muster_rest.shapes.explain import AskPreemptionDao, PreemptedDao, ToldToGoDao

# The preempted allocations, by application and key of the ask that needs their room.
Victims = dict[tuple[str, str], list[Allocation]]

# Preemption makes room on a node or below a limit; it cannot help with other reasons.
_WAITS_FOR_ROOM = frozenset(
    {
        ReasonCode.NO_NODE_HAS_ROOM,
        ReasonCode.FREE_RESOURCES_SCATTERED,
        ReasonCode.RESERVED_FOR_OTHERS,
        ReasonCode.QUEUE_MAX,
        ReasonCode.USER_LIMIT,
        ReasonCode.GROUP_LIMIT,
        ReasonCode.REQUIRED_NODE_FULL,
    }
)


def releasing(partition: Partition) -> Iterator[Allocation]:
    """The preempted allocations; only leaves that have any are searched."""
    leaves = [queue for queue in partition.queues.values() if queue.leaf and any(queue.preempting)]
    for leaf in leaves:
        for app in partition.apps_in(leaf):
            yield from of_application(app)


def of_application(app: Application) -> Iterator[Allocation]:
    """The preempted allocations of one application, in the order of preemption: a restarted view has them in another
    order.
    """
    victims = [allocation for allocation in app.allocations.values() if allocation.preempted is not None]
    yield from sorted(
        victims, key=lambda allocation: (allocation.releasing_since_ns, allocation.submission, allocation.ordinal)
    )


def victims_of(partition: Partition) -> Victims:
    """The preempted allocations, by the ask that needs their room."""
    victims: Victims = {}
    for allocation in releasing(partition):
        record = allocation.preempted
        if record is not None and record.app_id:  # (else no ask needs the room)
            victims.setdefault((record.app_id, record.key), []).append(allocation)
    return victims


# ---- of an ask -------------------------------------------------------------------------------------------------------


def of_ask(partition: Partition, ask: Ask, reason: Reason, victims: Victims, now_ns: int) -> AskPreemptionDao:
    """The help of preemption for a pending ask.

    The recorded code belongs to a whole group of asks; the facts of this ask come before it.
    """
    if ask.preempts:
        allocations = victims.get((ask.app.app_id, ask.key), ())
        chosen = [
            ToldToGoDao(
                application_id=allocation.app_id,
                allocation_key=allocation.key,
                node=allocation.node_id,
                since=allocation.releasing_since_ns,
            )
            for allocation in allocations
        ]
        return AskPreemptionDao(state="CHOSEN", victims=chosen)
    no = reason.preemption
    daemon = bool(ask.demand.required_node)
    may_at = preempts_from(ask) if ask.planned_ns or not daemon else 0
    too_early = reason.code in _WAITS_FOR_ROOM and now_ns < may_at
    if reason.code in _WAITS_FOR_ROOM and not daemon:
        if not partition.config.preemption.enabled:
            no = NoPreemptionReason.DISABLED
        elif not ask.allow_preempt_other:
            no = NoPreemptionReason.NOT_ALLOWED
        elif too_early and not ask.planned_ns:
            no = NoPreemptionReason.TOO_YOUNG
    if no in (NoPreemptionReason.DISABLED, NoPreemptionReason.NOT_ALLOWED):
        return AskPreemptionDao(state="NO", no=no.value, lost=ask.lost)
    if too_early and ask.planned_ns:  # (it has preempted, and what the last search said is about others)
        return AskPreemptionDao(state="PENDING", may_at=may_at, lost=ask.lost)
    if no is not None:
        return AskPreemptionDao(state="NO", no=no.value, may_at=may_at if too_early else 0, lost=ask.lost)
    comes = reason.code in _WAITS_FOR_ROOM and not reason.is_for_ever
    return AskPreemptionDao(state="PENDING" if comes else "NONE", lost=ask.lost)


def display_code(preemption: AskPreemptionDao) -> str:
    """The code for people; "": the configuration or the RM turned preemption off, which people know."""
    return "" if preemption.no in (NoPreemptionReason.DISABLED, NoPreemptionReason.NOT_ALLOWED) else preemption.no


def sentence_of_ask(preemption: AskPreemptionDao, now_ns: int) -> str:
    """The sentence besides the code; "": none."""
    sentences = []
    if preemption.lost:
        sentences.append(f"The room that was made for it is lost: {preemption.lost}.")
    if preemption.may_at:
        again = " again" if preemption.state == "PENDING" else ""
        sentences.append(f"It may preempt{again} in {format_duration(preemption.may_at - now_ns)}.")
    if sentences:
        return " ".join(sentences)
    if preemption.state != "CHOSEN":
        return ""
    victims = len(preemption.victims)
    if not victims:
        return "All allocations preempted for it have ended."
    ago = format_duration(now_ns - min(victim.since for victim in preemption.victims))
    were, have = ("were", "have") if victims > 1 else ("was", "has")
    return f"{pluralize(victims, 'allocation')} {were} preempted for it {ago} ago and {have} not ended yet."


# ---- of an allocation that must go -----------------------------------------------------------------------------------


def no_preemption(allocation: Allocation) -> str:
    """The answer for an allocation that is not preempted."""
    text = "Allocation was not preempted"
    if allocation.replaced_by:
        return f"{text}: it is a placeholder that was released for {allocation.replaced_by}"
    return f"{text}: it is a placeholder that timed out" if allocation.timed_out else text


def preempted(partition: Partition, allocation: Allocation, record: PreemptionRecord, now_ns: int) -> PreemptedDao:
    """One preemption: the allocation, the rule and the ask."""
    queue = allocation.app.queue.path if allocation.app is not None else ""
    return PreemptedDao(
        partition=partition.name,
        application_id=allocation.app_id,
        allocation_key=allocation.key,
        queue=queue,
        node=allocation.node_id,
        priority=allocation.priority,
        resource=allocation.shape.quantities,
        placeholder=allocation.placeholder,
        task_group=allocation.task_group,
        with_gang=is_evicted_whole(allocation),
        rule=record.rule,
        since=record.since_ns,
        for_application_id=record.app_id,
        for_allocation_key=record.key,
        for_queue=record.queue,
        victim_share_before=record.victim_share_before,
        victim_share_after=record.victim_share_after,
        asker_share_before=record.asker_share_before,
        asker_share_after=record.asker_share_after,
        at=now_ns,
        sentence=sentence(queue, allocation, record, now_ns),
        message=_message(queue, allocation, record)
        + (" Its whole gang is preempted." if is_evicted_whole(allocation) else ""),
    )


def sentence(queue: str, allocation: Allocation, record: PreemptionRecord, now_ns: int) -> str:
    """The summary in one sentence."""
    kind = "Placeholder" if allocation.placeholder else "Allocation"
    victim = f"{kind} {allocation.key} of application {allocation.app_id}"
    event = f"{victim} on node {allocation.node_id} was preempted {format_duration(now_ns - record.since_ns)} ago"
    rule = registry.rule_named(record.rule)
    return (
        rule.sentence(event, queue, allocation, record) if rule is not None else f"{event} by the rule {record.rule}."
    )


def _message(queue: str, allocation: Allocation, record: PreemptionRecord) -> str:
    rule = registry.rule_named(record.rule)
    return (
        rule.message(queue, allocation, record) if rule is not None else f"It was preempted by the rule {record.rule}."
    )


# ---- of a queue ------------------------------------------------------------------------------------------------------


def fence_of(queue: Queue) -> Queue:
    """The fence: asks in the queue preempt nothing outside of it."""
    for level in queue.ancestry:
        if level.policy.preemption is PreemptionPolicy.FENCE:
            return level
    return queue.ancestry[-1]
