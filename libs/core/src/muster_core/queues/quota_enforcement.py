"""When a queue that is above its max is cut back. ``preemption/rules/quota.py`` says by how much.

``queue.quota_ns`` is the only clock. The scheduler sets it when the max falls below what is used, when an allocation
that the RM reports raises usage above the max, or when a delay is first set for a queue that is over. It clears the
clock when usage is below the max again, or when the quota is not enforced any more. When the clock runs out, victims
are released once; nothing more happens until the next such change. Only configured queues are cut, and only if the
partition enables it.

YuniKorn checks every second, from root down, and skips the queues below one that it is cutting. Here each queue has its
own deadline, queues above go first, and released allocations count as gone everywhere: so nothing is cut twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome
from muster_core.model.queue import Queue
from muster_core.preemption import victim_search
from muster_core.preemption.rules.quota import excess

if TYPE_CHECKING:
    from muster_core.model.allocation import PreemptionRecord
    from muster_core.model.application import Allocation
    from muster_core.model.partition_state import PartitionState


class Preemptor(Protocol):
    """The part that preempts allocations."""

    def preempt(
        self, allocation: Allocation, record: PreemptionRecord, message: str, out: Outcome, now_ns: int
    ) -> None:
        """Releases an allocation by preemption."""


def delay_ns(state: PartitionState, queue: Queue) -> int:
    """How long the queue may be above its max, in nanoseconds; 0: forever. (Root's max are pools, from which nothing is
    taken back.)
    """
    enabled = state.config.preemption.quota_enabled and queue.managed and queue.parent is not None
    return queue.policy.quota_preemption_delay_ns if enabled else 0


def is_over(queue: Queue) -> bool:
    """Whether the queue uses more than its own max."""
    allocated = queue.allocated
    return any(allocated[number] > most for number, most in (queue.maximum or {}).items())


def was_lowered(old: Mapping[int, int] | None, new: Mapping[int, int] | None) -> bool:
    """Whether the max fell for some type and rose for none. A first max is no lower max. A type that is not named
    counts as 0.
    """
    if old is None or new is None:
        return False
    steps = [new.get(number, 0) - old.get(number, 0) for number in {**old, **new}]
    return max(steps, default=0) <= 0 and min(steps, default=0) < 0


def on_config_changed(
    state: PartitionState,
    queue: Queue,
    old_maximum: Mapping[int, int] | None,
    old_delay_ns: int,
    out: Outcome,
    now_ns: int,
) -> None:
    """Sets or clears the clock after a queue got a configuration. Before, it had this max, and this
    :func:`delay_ns`.
    """
    delay = delay_ns(state, queue)
    when_ns = queue.quota_ns
    if not delay or not is_over(queue):
        when_ns = 0
    elif was_lowered(old_maximum, queue.maximum) or (not when_ns and not old_delay_ns):
        when_ns = now_ns + delay
    elif when_ns:
        when_ns = max(when_ns + delay - old_delay_ns, now_ns)
    _set(state, queue, when_ns, out)


def on_usage_changed(
    state: PartitionState, leaf: Queue, reported: Iterable[tuple[int, int]], out: Outcome, now_ns: int
) -> None:
    """Sets or clears clocks after an allocation left the leaf (``reported`` is empty), or the RM reported one there."""
    for queue in leaf.ancestry:
        if queue.maximum is None:
            continue
        if queue.quota_ns:
            if not is_over(queue):
                _set(state, queue, 0, out)
            continue
        delay = delay_ns(state, queue)
        if delay and any(queue.allocated[number] > queue.maximum.get(number, value) for number, value in reported):
            _set(state, queue, now_ns + delay, out)


def on_deadline(state: PartitionState, releases: Preemptor, queue: Queue, out: Outcome, now_ns: int) -> None:
    """Cuts the queue back, once, because its deadline has come. Queues above it that are due, too, are cut first."""
    for ancestor in reversed(queue.ancestry):
        if 0 < ancestor.quota_ns <= now_ns and state.deciding:
            _set(state, ancestor, 0, out)
            if delay_ns(state, ancestor) and is_over(ancestor):
                _cut(state, releases, ancestor, out, now_ns)


def rearm(state: PartitionState) -> None:
    """Sets the clocks again when decisions resume."""
    state.deadlines += [(queue.quota_ns, queue) for queue in state.queues.values() if queue.quota_ns]


def _set(state: PartitionState, queue: Queue, when_ns: int, out: Outcome) -> None:
    if queue.quota_ns != when_ns:
        queue.quota_ns = when_ns
        out.mark_changed(queue, state.name)
        if when_ns:
            state.deadlines.append((when_ns, queue))


def _cut(state: PartitionState, releases: Preemptor, queue: Queue, out: Outcome, now_ns: int) -> None:
    above = excess(queue)
    victims = victim_search.search_quota(state, queue, now_ns)
    freed: dict[int, int] = {}
    for victim in victims:
        for number, value in victim.allocation.shape.items:
            freed[number] = freed.get(number, 0) + value
    for victim in victims:
        releases.preempt(victim.allocation, victim.why, victim.message, out, now_ns)
    summary = (
        f"Quota Preemption results summary: {len(victims)} allocations with {_text(queue, freed)} are preempted; "
        f"above the max: {_text(queue, above)}"
    )
    resource = queue.by_name(freed)
    change = (EventType.QUEUE, EventChange.SET, EventDetail.QUEUE_PREEMPTION)
    out.add_event(*change, queue.path, resource=resource, message=summary, now_ns=now_ns)


def _text(queue: Queue, amount: Mapping[int, int]) -> str:
    by_name = queue.by_name(amount) or {}
    return ",".join(f"{name}={by_name[name]}" for name in sorted(by_name)) or "nothing"
