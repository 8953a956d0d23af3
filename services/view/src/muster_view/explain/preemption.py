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
    found = [held for held in app.allocations.values() if held.preempted is not None]
    yield from sorted(found, key=lambda held: (held.releasing_since_ns, held.submission, held.ordinal))


def victims_of(partition: Partition) -> Victims:
    """The preempted allocations, by the ask that needs their room."""
    found: Victims = {}
    for held in releasing(partition):
        why = held.preempted
        if why is not None and why.app_id:  # (else no ask needs the room)
            found.setdefault((why.app_id, why.key), []).append(held)
    return found


# ---- of an ask -------------------------------------------------------------------------------------------------------


def of_ask(partition: Partition, wanted: Ask, reason: Reason, victims: Victims, now_ns: int) -> AskPreemptionDao:
    """The help of preemption for a pending ask.

    The recorded code belongs to a whole group of asks; the facts of this ask come before it.
    """
    if wanted.preempts:
        held = victims.get((wanted.app.app_id, wanted.key), ())
        told = [
            ToldToGoDao(
                application_id=each.app_id, allocation_key=each.key, node=each.node_id, since=each.releasing_since_ns
            )
            for each in held
        ]
        return AskPreemptionDao(state="CHOSEN", victims=told)
    no = reason.preemption
    daemon = bool(wanted.demand.required_node)
    may_at = preempts_from(wanted) if wanted.planned_ns or not daemon else 0
    too_early = reason.code in _WAITS_FOR_ROOM and now_ns < may_at
    if reason.code in _WAITS_FOR_ROOM and not daemon:
        if not partition.config.preemption.enabled:
            no = NoPreemptionReason.DISABLED
        elif not wanted.allow_preempt_other:
            no = NoPreemptionReason.NOT_ALLOWED
        elif too_early and not wanted.planned_ns:
            no = NoPreemptionReason.TOO_YOUNG
    if no in (NoPreemptionReason.DISABLED, NoPreemptionReason.NOT_ALLOWED):
        return AskPreemptionDao(state="NO", no=no.value, lost=wanted.lost)
    if too_early and wanted.planned_ns:  # (it has preempted, and what the last search said is about others)
        return AskPreemptionDao(state="PENDING", may_at=may_at, lost=wanted.lost)
    if no is not None:
        return AskPreemptionDao(state="NO", no=no.value, may_at=may_at if too_early else 0, lost=wanted.lost)
    comes = reason.code in _WAITS_FOR_ROOM and not reason.is_for_ever
    return AskPreemptionDao(state="PENDING" if comes else "NONE", lost=wanted.lost)


def display_code(preemption: AskPreemptionDao) -> str:
    """The code for people; "": the configuration or the RM turned preemption off, which people know."""
    return "" if preemption.no in (NoPreemptionReason.DISABLED, NoPreemptionReason.NOT_ALLOWED) else preemption.no


def sentence_of_ask(preemption: AskPreemptionDao, now_ns: int) -> str:
    """The sentence besides the code; "": none."""
    said = []
    if preemption.lost:
        said.append(f"The room that was made for it is lost: {preemption.lost}.")
    if preemption.may_at:
        again = " again" if preemption.state == "PENDING" else ""
        said.append(f"It may preempt{again} in {format_duration(preemption.may_at - now_ns)}.")
    if said:
        return " ".join(said)
    if preemption.state != "CHOSEN":
        return ""
    victims = len(preemption.victims)
    if not victims:
        return "All allocations preempted for it have ended."
    ago = format_duration(now_ns - min(each.since for each in preemption.victims))
    were, have = ("were", "have") if victims > 1 else ("was", "has")
    return f"{pluralize(victims, 'allocation')} {were} preempted for it {ago} ago and {have} not ended yet."


# ---- of an allocation that must go -----------------------------------------------------------------------------------


def no_preemption(held: Allocation) -> str:
    """The answer for an allocation that is not preempted."""
    text = "Allocation was not preempted"
    if held.replaced_by:
        return f"{text}: it is a placeholder that was released for {held.replaced_by}"
    return f"{text}: it is a placeholder that timed out" if held.timed_out else text


def preempted(partition: Partition, held: Allocation, why: PreemptionRecord, now_ns: int) -> PreemptedDao:
    """One preemption: the allocation, the rule and the ask."""
    queue = held.app.queue.path if held.app is not None else ""
    return PreemptedDao(
        partition=partition.name,
        application_id=held.app_id,
        allocation_key=held.key,
        queue=queue,
        node=held.node_id,
        priority=held.priority,
        resource=held.shape.quantities,
        placeholder=held.placeholder,
        task_group=held.task_group,
        with_gang=is_evicted_whole(held),
        rule=why.rule,
        since=why.since_ns,
        for_application_id=why.app_id,
        for_allocation_key=why.key,
        for_queue=why.queue,
        victim_share_before=why.victim_share_before,
        victim_share_after=why.victim_share_after,
        asker_share_before=why.asker_share_before,
        asker_share_after=why.asker_share_after,
        at=now_ns,
        sentence=sentence(queue, held, why, now_ns),
        message=_message(queue, held, why) + (" Its whole gang is preempted." if is_evicted_whole(held) else ""),
    )


def sentence(queue: str, held: Allocation, why: PreemptionRecord, now_ns: int) -> str:
    """The summary in one sentence."""
    victim = f"{'Placeholder' if held.placeholder else 'Allocation'} {held.key} of application {held.app_id}"
    event = f"{victim} on node {held.node_id} was preempted {format_duration(now_ns - why.since_ns)} ago"
    rule = registry.rule_named(why.rule)
    return rule.sentence(event, queue, held, why) if rule is not None else f"{event} by the rule {why.rule}."


def _message(queue: str, held: Allocation, why: PreemptionRecord) -> str:
    rule = registry.rule_named(why.rule)
    return rule.message(queue, held, why) if rule is not None else f"It was preempted by the rule {why.rule}."


# ---- of a queue ------------------------------------------------------------------------------------------------------


def fence_of(queue: Queue) -> Queue:
    """The fence: asks in the queue preempt nothing outside of it."""
    for level in queue.ancestry:
        if level.policy.preemption is PreemptionPolicy.FENCE:
            return level
    return queue.ancestry[-1]
