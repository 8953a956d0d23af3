"""Explains a queue: its guarantee, its max, its fences, and its pending asks by reason."""

from __future__ import annotations

from collections import Counter
from functools import partial

from muster_core.config.properties import PreemptionPolicy
from muster_core.config.queue_config import ROOT
from muster_core.model.queue import Queue
from muster_core.model.reason_history import Past
from muster_core.model.reasons import Reason
from muster_core.model.resources import saturated
from muster_core.model.states import QueueState
from muster_core.model.text_format import format_amount, format_amounts, join_words, pluralize
from muster_core.partition import Partition
from muster_core.preemption.victims import POLICY
from muster_rest.shapes.explain import GuaranteeDao, QueueDao

from muster_view.explain import fair, gang, wait_history
from muster_view.explain.asks import ScopeWaits, reason_of
from muster_view.explain.preemption import fence_of
from muster_view.rest import dao


def explain(
    partition: Partition,
    queue: Queue,
    now_ns: int,
    *,
    pause: Reason | None,
    pauses: Past = (),
    turns: ScopeWaits | None = None,
) -> QueueDao:
    """Renders a queue: O(pending asks in the queue and its descendants).

    :param pause: why the scheduler makes no decisions; ``pauses``: the past ones.
    :param turns: which asks wait for the answer to another proposal.
    """
    turns = turns or ScopeWaits()
    quantities = partition.types.quantities
    guarantees = _guarantees(queue)
    fence, protected_by = fence_of(queue), _protected_by(queue)
    headroom = dao.headroom(partition, queue)
    forming = dao.allocating_applications(partition, queue).forming
    policy = queue.policy
    queue_dao = QueueDao(
        partition=partition.name,
        queue=queue.path,
        state=queue.state.value,
        leaf=queue.leaf,
        managed=queue.managed,
        share=round(_share(partition, queue), 6),
        allocated=quantities(queue.allocated),
        preempting=quantities(queue.preempting),
        pending=quantities(queue.pending),
        promised=gang.promised_in(partition, queue),
        maximum=queue.by_name(queue.maximum) or {},
        sources=list(queue.sources),
        disputed=partition.external.limit_conflict(queue),
        headroom=headroom,
        guarantees=guarantees,
        applications=_applications(queue),
        running_applications=queue.running_applications - forming,
        forming_applications=forming,
        max_applications=queue.max_applications,
        preemption_fence=fence.path,
        protected_by=protected_by,
        preemption_delay=policy.preemption_delay_ns,
        preempts_by_priority=policy.preempts_by_priority,
        priority_fence=policy.priority_fence,
        priority_offset=policy.priority_offset,
        current_priority=dao.current_priority(partition, queue),
        quota_at=queue.quota_ns,
        fair_shares=fair.of_queue(partition, queue, now_ns),
        asks=dict(_asks(partition, queue, pause, turns)),
        history=wait_history.of_queue(partition, queue, partial(reason_of, pause=pause, turns=turns), pauses),
        at=now_ns,
        sentence="",
        message="",
    )
    queue_dao.sentence, queue_dao.message = _sentence(queue_dao), _message(queue, queue_dao)
    return queue_dao


def _share(partition: Partition, queue: Queue) -> float:
    """The largest ratio of usage to guarantee, or else to the nearest max above, or else to the cluster."""
    guaranteed = queue.guaranteed or {}
    shares = [0.0]
    for number, used in enumerate(queue.allocated):
        if used > 0:
            total = guaranteed.get(number)
            if total is None:
                total = _fair_max(partition, queue, number)
            shares.append(used / total if total > 0 else 1.0)
    return max(shares)


def _fair_max(partition: Partition, queue: Queue, number: int) -> int:
    for level in queue.ancestry:
        most = (level.maximum or {}).get(number)
        if most is not None:
            return most
    return partition.capacity[number]


def _guarantees(queue: Queue) -> list[GuaranteeDao]:
    """The guarantees that protect the queue: its own first, then those above it up to the fence, whose guarantee
    protects against the outside.
    """
    fence = fence_of(queue)
    levels = [queue, *(level for level in queue.ancestry[1 : queue.ancestry.index(fence)])]
    names = queue.types.names
    return [
        GuaranteeDao(
            queue=level.path,
            resource_type=names[number],
            guaranteed=saturated(least),
            used=saturated(used := level.allocated[number] - level.preempting[number]),
            preempting=saturated(level.preempting[number]),
            missing=saturated(max(least - used, 0)),
        )
        for level in levels
        for number, least in sorted((level.guaranteed or {}).items(), key=lambda item: names[item[0]])
    ]


def _protected_by(queue: Queue) -> str:
    """The policy of the nearest queue that sets one."""
    for level in queue.ancestry:
        if POLICY in level.properties:
            return level.path if level.policy.preemption is PreemptionPolicy.DISABLED else ""
    return ""


def _applications(queue: Queue) -> int:
    return len(queue.applications) if queue.leaf else sum(map(_applications, queue.children.values()))


def _asks(partition: Partition, queue: Queue, pause: Reason | None, turns: ScopeWaits) -> Counter[str]:
    """The number of pending asks in the queue and its descendants, by reason."""
    counts: Counter[str] = Counter()
    for child in queue.children.values():
        counts += _asks(partition, child, pause, turns)
    for app in partition.apps_in(queue):
        for group in app.groups.values():
            head = group.head()
            if head is not None:  # asks of a group share one reason
                counts[reason_of(head, pause=pause, turns=turns).code.value] += group.asks
        for ask in gang.waiting_for_placeholders(app):
            counts[reason_of(ask, pause=pause, turns=turns).code.value] += 1
    return counts


# ---- for people ------------------------------------------------------------------------------------------------------


_STATES = {QueueState.DRAINING: "is draining", QueueState.STOPPED: "is stopped"}


def _sentence(queue_dao: QueueDao) -> str:
    """The queue's usage, and the most frequent reason of its pending asks, as text."""
    state = _STATES.get(QueueState(queue_dao.state), "")
    sentence = _usage(queue_dao, state)
    if not queue_dao.asks:
        return f"{sentence}."
    code, most = min(queue_dao.asks.items(), key=lambda item: (-item[1], item[0]))
    which = "which" if most == sum(queue_dao.asks.values()) else f"{most:,} of which"
    behind = "waits" if most == 1 else "wait"
    return f"{sentence}, {which} {behind} {wait_history.wait_clause(queue_dao.history, code, most, queue_dao.at)}."


def _usage(queue_dao: QueueDao, state: str = "") -> str:
    """The queue's usage, and the number of its pending asks; before them its state."""
    parts = [state] if state else []
    uses = []
    for name, most in sorted(queue_dao.maximum.items()):
        used, limit = format_amounts(name, queue_dao.allocated.get(name, 0), most)
        uses.append(f"{used} of its max of {limit}")
    uses = uses or [format_amount(name, used) for name, used in sorted(queue_dao.allocated.items())]
    parts.append(f"uses {join_words(uses) or 'nothing'}")
    waiting = sum(queue_dao.asks.values())
    asks = pluralize(waiting, "pending ask") if waiting else "no pending asks"
    return f"Queue {queue_dao.queue} {', '.join(parts)}, and has {asks}"


def _message(queue: Queue, queue_dao: QueueDao) -> str:
    """The whole text: all that the sentence says, and more, each of it once."""
    sentences = [f"{_usage(queue_dao)}.", _state(queue), _guarantee(queue, queue_dao), _maximum(queue_dao)]
    sentences += [_applications_max(queue_dao), _preemption(queue_dao)]
    sentences.append(fair.sentence_of_queue(queue, queue_dao.fair_shares))
    sentences += wait_history.sentences(queue_dao.history, queue_dao.at)
    return " ".join(text for text in sentences if text)


def _state(queue: Queue) -> str:
    match queue.state:
        case QueueState.DRAINING:
            return "It is draining: its applications continue, and no new ones enter."
        case QueueState.STOPPED:
            return "It is stopped: nothing in it is scheduled."
        case _:
            return ""


def _guarantee(queue: Queue, queue_dao: QueueDao) -> str:
    own = [guarantee for guarantee in queue_dao.guarantees if guarantee.queue == queue.path]
    if not own:
        return "It has no guarantee of its own."
    missing = [format_amount(guarantee.resource_type, guarantee.missing) for guarantee in own if guarantee.missing]
    if missing:
        return f"It is below its guarantee by {join_words(missing)}."
    return "It has its guarantee."


def _maximum(queue_dao: QueueDao) -> str:
    used_up = sorted(name for name, remaining in queue_dao.headroom.items() if remaining <= 0)
    sentence = ""
    if queue_dao.disputed:
        sentence = f"Several reports set its max ({queue_dao.disputed}). "
    elif queue_dao.sources:
        subject = "Its max is set" if queue_dao.queue != ROOT else "Its pools are reported"
        sentence = f"{subject} by source{'s' if len(queue_dao.sources) > 1 else ''} {', '.join(queue_dao.sources)}. "
    if used_up:
        sentence += f"No {' and no '.join(used_up)} is left in its headroom."
    if queue_dao.quota_at:
        sentence += " Preemption will remove the usage above its max."
    return sentence.strip()


def _applications_max(queue_dao: QueueDao) -> str:
    if (
        not queue_dao.max_applications
        or queue_dao.running_applications + queue_dao.forming_applications < queue_dao.max_applications
    ):
        return ""
    forming = (
        f" ({queue_dao.forming_applications:,} of them with a forming gang)" if queue_dao.forming_applications else ""
    )
    return f"It runs its maximum of {pluralize(queue_dao.max_applications, 'application')}{forming}."


def _preemption(queue_dao: QueueDao) -> str:
    sentences = []
    if queue_dao.preemption_fence != queue_dao.queue.partition(".")[0]:
        sentences.append(f"Asks in it preempt nothing outside of {queue_dao.preemption_fence}.")
    if queue_dao.protected_by:
        sentences.append("Its allocations are protected from preemption.")
    return " ".join(sentences)
