"""When a queue that is above its max is cut back (core-features §2.16); by how much, ``preemption_quota.py`` says.

``queue.quota_ns`` is the one clock: set when the max was lowered below what is used, when an allocation that the RM
reports brings usage over the max, or when a delay is set for the first time while it is over; cleared when usage is
back under the max, or nothing asks for it any more. When it has come, victims are told once; nothing more happens until
the next such change. Only configured queues are cut, and only where the partition says so.

The real core's check runs every second, from root down, and leaves out what is below a queue that it is busy with.
Here each queue has its deadline, those above go first, and those told to go already count as gone everywhere: so
nothing is cut twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from muster_scheduler.core import preemption, preemption_quota
from muster_scheduler.core.objects import Queue
from muster_scheduler.core.outcome import Change, Detail, EventType, Outcome

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


def delay_ns(partition: Partition, queue: Queue) -> int:
    """How long the queue may be above its max; 0: for ever. (Root's are pools, of which nothing is taken back.)"""
    enabled = partition.config.preemption.quota_enabled and queue.managed and queue.parent is not None
    return queue.policy.quota_preemption_delay_ns if enabled else 0


def is_over(queue: Queue) -> bool:
    """Whether more is used than the queue's own max."""
    allocated = queue.allocated
    return any(allocated[number] > most for number, most in (queue.maximum or {}).items())


def was_lowered(old: Mapping[int, int] | None, new: Mapping[int, int] | None) -> bool:
    """Less of one type, and of none more. A first max is not a lower one; a type that is not named counts as 0."""
    if old is None or new is None:
        return False
    steps = [new.get(number, 0) - old.get(number, 0) for number in {**old, **new}]
    return max(steps, default=0) <= 0 and min(steps, default=0) < 0


def configured(
    partition: Partition,
    queue: Queue,
    old_maximum: Mapping[int, int] | None,
    old_delay_ns: int,
    out: Outcome,
    now_ns: int,
) -> None:
    """The queue has its (new) configuration; before, its max was this and :func:`delay_ns` that."""
    delay = delay_ns(partition, queue)
    when_ns = queue.quota_ns
    if not delay or not is_over(queue):
        when_ns = 0
    elif was_lowered(old_maximum, queue.maximum) or (not when_ns and not old_delay_ns):
        when_ns = now_ns + delay
    elif when_ns:
        when_ns = max(when_ns + delay - old_delay_ns, now_ns)
    _set(partition, queue, when_ns, out)


def usage_changed(
    partition: Partition, leaf: Queue, reported: Iterable[tuple[int, int]], out: Outcome, now_ns: int
) -> None:
    """Something went from the leaf (``reported`` is empty), or the RM reported an allocation in it."""
    for queue in leaf.ancestry:
        if queue.maximum is None:
            continue
        if queue.quota_ns:
            if not is_over(queue):
                _set(partition, queue, 0, out)
            continue
        delay = delay_ns(partition, queue)
        if delay and any(queue.allocated[number] > queue.maximum.get(number, value) for number, value in reported):
            _set(partition, queue, now_ns + delay, out)


def due(partition: Partition, queue: Queue, out: Outcome, now_ns: int) -> None:
    """The queue's time has come: cuts it back, once. Those above it that are due too go first."""
    for each in reversed(queue.ancestry):
        if 0 < each.quota_ns <= now_ns and partition.deciding:
            _set(partition, each, 0, out)
            if delay_ns(partition, each) and is_over(each):
                _cut(partition, each, out, now_ns)


def rearm(partition: Partition) -> None:
    """Decisions go on: a time that came meanwhile has come now."""
    partition.deadlines += [(queue.quota_ns, queue) for queue in partition.queues.values() if queue.quota_ns]


def _set(partition: Partition, queue: Queue, when_ns: int, out: Outcome) -> None:
    if queue.quota_ns != when_ns:
        queue.quota_ns = when_ns
        out.touch(queue, partition.name)
        if when_ns:
            partition.deadlines.append((when_ns, queue))


def _cut(partition: Partition, queue: Queue, out: Outcome, now_ns: int) -> None:
    excess = preemption_quota.excess(queue)
    victims = preemption.search_quota(partition, queue, now_ns)
    freed: dict[int, int] = {}
    for victim in victims:
        for number, value in victim.allocation.shape.items:
            freed[number] = freed.get(number, 0) + value
    for victim in victims:
        message = f"Preempted by Quota change enforcement process in {queue.path}"
        partition.releases.preempt(victim.allocation, victim.why, message, out, now_ns)
    summary = (
        f"Quota Preemption results summary: {len(victims)} allocations with {_text(queue, freed)} are preempted; "
        f"above the max: {_text(queue, excess)}"
    )
    resource = queue.by_name(freed)
    change = (EventType.QUEUE, Change.SET, Detail.QUEUE_PREEMPTION)
    out.track(*change, queue.path, resource=resource, message=summary, now_ns=now_ns)


def _text(queue: Queue, amount: Mapping[int, int]) -> str:
    by_name = queue.by_name(amount) or {}
    return ",".join(f"{name}={by_name[name]}" for name in sorted(by_name)) or "nothing"
