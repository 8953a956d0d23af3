"""Who was told to go, by which rule and for whom; and what preemption does for an ask that waits."""

from __future__ import annotations

from collections.abc import Iterator

from muster_scheduler.core.objects import Allocation, Application, Ask, Preempted, PreemptionRule, Queue
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.preemption_victims import goes_whole
from muster_scheduler.core.properties import PreemptionPolicy
from muster_scheduler.core.reasons import PreemptionNo, Reason, ReasonCode
from muster_scheduler.core.words import count, lasted
from muster_scheduler.view.explain_dao import AskPreemptionDao, PreemptedDao, ToldToGoDao

# By application and key of the ask that they make room for.
Victims = dict[tuple[str, str], list[Allocation]]

# Room, on a node or below a limit, is what preemption makes; it gives nothing to those who wait for something else.
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


def told_to_go(partition: Partition) -> Iterator[Allocation]:
    """The allocations that were told to go by preemption: only leaves in which there are any are walked."""
    leaves = [queue for queue in partition.queues.values() if queue.leaf and any(queue.preempting)]
    for leaf in leaves:
        for app in list(leaf.applications.values()):
            yield from of_application(app)


def of_application(app: Application) -> Iterator[Allocation]:
    """Those of one application, in the order in which they were told: a view that begins anew has them in another."""
    found = [held for held in app.allocations.values() if held.preempted is not None]
    yield from sorted(found, key=lambda held: (held.told_ns, held.submission, held.ordinal))


def victims_of(partition: Partition) -> Victims:
    """By whom they make room for."""
    found: Victims = {}
    for held in told_to_go(partition):
        why = held.preempted
        if why is not None and why.app_id:  # (else it is for nobody)
            found.setdefault((why.app_id, why.key), []).append(held)
    return found


# ---- of an ask -------------------------------------------------------------------------------------------------------


def of_ask(partition: Partition, wanted: Ask, reason: Reason, victims: Victims, now_ns: int) -> AskPreemptionDao:
    """What preemption does for it.

    The recorded "no" is that of all who wait for the same; what concerns this ask alone comes before it.
    """
    if wanted.preempts:
        held = victims.get((wanted.app.app_id, wanted.key), ())
        told = [
            ToldToGoDao(application_id=each.app_id, allocation_key=each.key, node=each.node_id, since=each.told_ns)
            for each in held
        ]
        return AskPreemptionDao(state="CHOSEN", victims=told)
    no = reason.preemption
    may_at = 0
    if reason.code in _WAITS_FOR_ROOM and not wanted.demand.required_node:
        may_at = wanted.created_ns + wanted.app.queue.policy.preemption_delay_ns
        if not partition.config.preemption.enabled:
            no = PreemptionNo.DISABLED
        elif not wanted.allow_preempt_other:
            no = PreemptionNo.NOT_ALLOWED
        elif now_ns < may_at:
            no = PreemptionNo.TOO_YOUNG
    if no is not None:
        too_young = no is PreemptionNo.TOO_YOUNG
        return AskPreemptionDao(state="NO", no=no.value, may_at=may_at if too_young else 0)
    comes = reason.code in _WAITS_FOR_ROOM and not reason.is_for_ever
    return AskPreemptionDao(state="PENDING" if comes else "NONE")


def worth_saying(preemption: AskPreemptionDao) -> str:
    """The "no" for a person; "": that there is no preemption was said by those who configured it, or by the RM."""
    return "" if preemption.no in (PreemptionNo.DISABLED, PreemptionNo.NOT_ALLOWED) else preemption.no


def sentence_of_ask(preemption: AskPreemptionDao, now_ns: int) -> str:
    """What there is to say beside a "no"; "": nothing."""
    if preemption.may_at:
        return f"It may preempt in {lasted(preemption.may_at - now_ns)}."
    if preemption.state != "CHOSEN":
        return ""
    victims = len(preemption.victims)
    if not victims:
        return "All that was told to go for it has gone."
    ago = lasted(now_ns - min(each.since for each in preemption.victims))
    told, gone = ("were told", "they have") if victims > 1 else ("was told", "it has")
    return f"{count(victims, 'allocation')} {told} {ago} ago to go for it; {gone} not gone yet."


# ---- of an allocation that must go -----------------------------------------------------------------------------------


def no_preemption(held: Allocation) -> str:
    """What there is to say of one that is not preempted."""
    said = "Allocation was not preempted"
    if held.replaced_by:
        return f"{said}: it is a placeholder, and was told to make room for {held.replaced_by}"
    return f"{said}: it is a placeholder, and was told to go because its time was up" if held.timed_out else said


def story(partition: Partition, held: Allocation, why: Preempted, now_ns: int) -> PreemptedDao:
    """One preemption: who goes, by which rule, for whom."""
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
        with_gang=goes_whole(held),
        rule=why.rule.value,
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
        message=_sentence(queue, held, why) + (" Its gang goes as a whole." if goes_whole(held) else ""),
    )


def sentence(queue: str, held: Allocation, why: Preempted, now_ns: int) -> str:
    """The one that says it all."""
    who = f"{'Placeholder' if held.placeholder else 'Allocation'} {held.key} of application {held.app_id}"
    told = f"{who} was told {lasted(now_ns - why.since_ns)} ago to leave node {held.node_id}"
    match why.rule:
        case PreemptionRule.GUARANTEE:
            missing = f"queue {why.queue} gets {why.asker_share_after:.0%} of its share instead of"
            for_whom = f"so that ask {why.key} of application {why.app_id} may run and {missing}"
            return f"{told}, {for_whom} {why.asker_share_before:.0%}."
        case PreemptionRule.PRIORITY:
            return (
                f"{told} for ask {why.key} of application {why.app_id}, which has a higher priority than its "
                f"{held.priority} in the same queue, {queue}."
            )
        case PreemptionRule.REQUIRED_NODE:
            return f"{told} for ask {why.key} of application {why.app_id}, which can run there only."
        case PreemptionRule.QUOTA:
            shares = f"{why.asker_share_before:.0%} of its max, which was lowered"
            return f"{told} because queue {why.queue} used {shares}."
        case PreemptionRule.REVOKED:
            source, _, offer = why.key.partition("/")
            return f"{told} because there is no room for it without offer {offer}, which source {source} wants back."


def _sentence(queue: str, held: Allocation, why: Preempted) -> str:
    whom = f"It must go for {why.key} of application {why.app_id}"
    asker, victim = _shares(why.queue, *_asker(why)), _shares(queue, *_victim(why))
    match why.rule:
        case PreemptionRule.GUARANTEE:
            return f"{whom}, whose queue is under its guarantee: {asker}, {victim}."
        case PreemptionRule.PRIORITY:
            return f"{whom}, which has a higher priority than its {held.priority} in the same queue, {why.queue}."
        case PreemptionRule.REQUIRED_NODE:
            return f"{whom}, which can run on node {held.node_id} only."
        case PreemptionRule.QUOTA:
            return f"It must go because queue {why.queue} is above its max, which was lowered: {asker}."
        case PreemptionRule.REVOKED:
            source, _, offer = why.key.partition("/")
            lent = f"offer {offer} of source {source}, which is wanted back"
            return f"It must go because node {held.node_id} has no room for it without {lent}."


def _asker(why: Preempted) -> tuple[float, float]:
    return why.asker_share_before, why.asker_share_after


def _victim(why: Preempted) -> tuple[float, float]:
    return why.victim_share_before, why.victim_share_after


def _shares(queue: str, before: float, after: float) -> str:
    return f"{queue} goes from {before:.0%} to {after:.0%} of its share"


# ---- of a queue ------------------------------------------------------------------------------------------------------


def fence_of(queue: Queue) -> Queue:
    """The queue outside of which asks from in here preempt nothing."""
    for level in queue.ancestry:
        if level.policy.preemption is PreemptionPolicy.FENCE:
            return level
    return queue.ancestry[-1]
