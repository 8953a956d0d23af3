"""Where a queue stands: against its guarantee and its max, behind which fences, and what waits in it for what."""

from __future__ import annotations

from collections import Counter
from functools import partial

from muster_scheduler.core.config import ROOT
from muster_scheduler.core.objects import Queue
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.past import Past
from muster_scheduler.core.preemption_victims import POLICY
from muster_scheduler.core.properties import PreemptionPolicy
from muster_scheduler.core.reasons import Reason
from muster_scheduler.core.resources import saturated
from muster_scheduler.core.states import QueueState
from muster_scheduler.core.words import amount, amounts, count, listed
from muster_scheduler.view import dao, explain_gang, explain_history
from muster_scheduler.view.explain import reason_of
from muster_scheduler.view.explain_dao import GuaranteeDao, QueueDao
from muster_scheduler.view.explain_preemption import fence_of


def explained(partition: Partition, queue: Queue, now_ns: int, *, halt: Reason | None, halts: Past = ()) -> QueueDao:
    """A queue: O(what waits in it and below).

    :param halt: why nothing at all is decided; ``halts``: the same of before.
    """
    quantities = partition.types.quantities
    guarantees = _guarantees(queue)
    fence, protected_by = fence_of(queue), _protected_by(queue)
    headroom = dao.headroom(partition, queue)
    forming = len(dao.forming_applications(queue))
    policy = queue.policy
    found = QueueDao(
        partition=partition.name,
        queue=queue.path,
        state=queue.state.value,
        leaf=queue.leaf,
        managed=queue.managed,
        share=round(_share(partition, queue), 6),
        allocated=quantities(queue.allocated),
        preempting=quantities(queue.preempting),
        pending=quantities(queue.pending),
        promised=explain_gang.promised_in(partition, queue),
        maximum=queue.by_name(queue.maximum) or {},
        sources=list(queue.sources),
        disputed=partition.external.dispute(queue),
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
        current_priority=dao.current_priority(queue),
        quota_at=queue.quota_ns,
        asks=dict(_asks(queue, halt)),
        history=explain_history.of_queue(queue, partial(reason_of, halt=halt), halts),
        at=now_ns,
        sentence="",
        message="",
    )
    found.sentence, found.message = _sentence(found), _message(queue, found)
    return found


def _share(partition: Partition, queue: Queue) -> float:
    """Its most used type, of its guaranteed, else of the nearest max on the way up, else of the cluster."""
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
    """Its own first, then those on the way up to the fence: that one's own is a word to those outside of it."""
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
    """The nearest queue that says anything about it has the word."""
    for level in queue.ancestry:
        if POLICY in level.properties:
            return level.path if level.policy.preemption is PreemptionPolicy.DISABLED else ""
    return ""


def _applications(queue: Queue) -> int:
    return len(queue.applications) if queue.leaf else sum(map(_applications, queue.children.values()))


def _asks(queue: Queue, halt: Reason | None) -> Counter[str]:
    """How many asks wait in it and below, by why."""
    counts: Counter[str] = Counter()
    for child in queue.children.values():
        counts += _asks(child, halt)
    for app in queue.applications.values():
        for group in app.groups.values():
            head = group.head()
            if head is not None:  # those of a group share one reason
                counts[reason_of(head, halt=halt).code.value] += group.asks
        for wanted in explain_gang.waiting_for_placeholders(app):
            counts[reason_of(wanted, halt=halt).code.value] += 1
    return counts


# ---- for people ------------------------------------------------------------------------------------------------------


_STATES = {QueueState.DRAINING: "drains", QueueState.STOPPED: "is stopped"}


def _sentence(found: QueueDao) -> str:
    """What it uses, and what most of those who wait in it wait for."""
    parts = [_STATES[QueueState(found.state)]] if found.state in _STATES else []
    uses = []
    for name, most in sorted(found.maximum.items()):
        used, limit = amounts(name, found.allocated.get(name, 0), most)
        uses.append(f"{used} of its max of {limit}")
    uses = uses or [amount(name, used) for name, used in sorted(found.allocated.items())]
    parts.append(f"uses {listed(uses) or 'nothing'}")
    said = f"Queue {found.queue} {', '.join(parts)}, and has"
    if not found.asks:
        return f"{said} nothing that waits."
    total = sum(found.asks.values())
    code, most = min(found.asks.items(), key=lambda item: (-item[1], item[0]))
    asks = f"{count(total, 'ask')} that {'waits' if total == 1 else 'wait'}"
    of_these = "" if most == total else f", {most:,} of them"
    return f"{said} {asks}{of_these} {explain_history.waits(found.history, code, most, found.at)}."


def _message(queue: Queue, found: QueueDao) -> str:
    said = [_state(queue), _guarantee(queue, found), _maximum(found), _applications_max(found), _preemption(found)]
    waiting = sum(found.asks.values())
    shown = sum(not each.until and bool(each.asks) for each in found.history)
    if not waiting:
        said.append("Nothing waits in it.")
    elif shown > 1:
        said.append(f"{count(waiting, 'ask waits', 'asks wait')} in it.")
    said += explain_history.sentences(found.history, found.at)
    return " ".join(text for text in said if text)


def _state(queue: Queue) -> str:
    match queue.state:
        case QueueState.DRAINING:
            return "It is draining: what is in it runs on, nothing new comes in."
        case QueueState.STOPPED:
            return "It is stopped: nothing in it is decided."
        case _:
            return ""


def _guarantee(queue: Queue, found: QueueDao) -> str:
    own = [each for each in found.guarantees if each.queue == queue.path]
    if not own:
        return "It has no guarantee of its own."
    missing = [amount(each.resource_type, each.missing) for each in own if each.missing]
    if missing:
        return f"It is under its guarantee by {listed(missing)}."
    return "It has its guarantee."


def _maximum(found: QueueDao) -> str:
    used_up = sorted(name for name, left in found.headroom.items() if left <= 0)
    said = ""
    if found.disputed:
        said = f"Of its max more than one speak ({found.disputed}). "
    elif found.sources:
        what = "Its max is set" if found.queue != ROOT else "What pools have is said"
        said = f"{what} by source{'s' if len(found.sources) > 1 else ''} {', '.join(found.sources)}. "
    if used_up:
        said += f"No {' and no '.join(used_up)} is left in its headroom."
    if found.quota_at:
        said += " What is above its max is going to be cut back."
    return said.strip()


def _applications_max(found: QueueDao) -> str:
    if not found.max_applications or found.running_applications + found.forming_applications < found.max_applications:
        return ""
    forming = f" ({found.forming_applications:,} of them by their placeholders)" if found.forming_applications else ""
    return f"It runs as many applications as it may, {found.max_applications:,}{forming}."


def _preemption(found: QueueDao) -> str:
    said = []
    if found.preemption_fence != found.queue.partition(".")[0]:
        said.append(f"Asks in it preempt nothing outside of {found.preemption_fence}.")
    if found.protected_by:
        said.append("Nothing in it is preempted for others.")
    return " ".join(said)
