"""How allocations end: told to go (preempted, timed out), reminded until the RM confirms, released.

What was told to go stays on the books until the RM says that it went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_scheduler.core import quota, usage
from muster_scheduler.core.commands import Termination
from muster_scheduler.core.gangs import released, replacing_message
from muster_scheduler.core.limits import usage_events
from muster_scheduler.core.objects import Allocation, Preempted
from muster_scheduler.core.outcome import Change, Detail, Event, EventType, Outcome
from muster_scheduler.core.states import REMINDER_NS, PlaceholderEvent

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition

REMINDER_MESSAGE = "told again: it was not confirmed that the allocation is gone"


class Releases:
    """The ends of one partition's allocations."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    # ---- told to go ------------------------------------------------------------------------------------------------

    def preempt(self, allocation: Allocation, why: Preempted, message: str, out: Outcome, now_ns: int) -> None:
        """Tells an allocation to go. It counts until the RM confirms that it went."""
        partition = self._partition
        app = allocation.app
        assert app is not None, f"{allocation} is foreign"
        assert not allocation.told, f"{allocation} was told to go already"
        if allocation.demand.placeholder:
            partition.gangs.tell(allocation, PlaceholderEvent.PREEMPT)
        allocation.preempted = why
        partition.add_preempting(app.queue, allocation.shape.items, 1)
        self.told(allocation, out, now_ns)
        partition.gangs.preempted(app, out)
        out.facts.append(released(partition, allocation, Termination.PREEMPTED_BY_SCHEDULER, message))
        out.tell_people(allocation.key, app.app_id, allocation.shape, message, now_ns)

    def time_out(self, allocation: Allocation, message: str, out: Outcome, now_ns: int) -> None:
        """Tells an allocation to go because its time is up. It counts until the RM confirms that it went."""
        partition = self._partition
        if allocation.told or allocation.gone:
            return
        if allocation.demand.placeholder:
            partition.gangs.tell(allocation, PlaceholderEvent.TIME_OUT)
        allocation.timed_out = True
        self.told(allocation, out, now_ns)
        out.facts.append(released(partition, allocation, Termination.TIMEOUT, message))

    def told(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """An allocation was told to go: it is no victim any more, and will be reminded."""
        partition = self._partition
        allocation.told_ns = now_ns
        partition.version += 1
        self.remind_at(allocation, now_ns)
        out.touch(allocation, partition.name)

    def remind(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """The RM has not confirmed that an allocation is gone: it may not have heard, or its answer was lost."""
        termination, message = Termination.TIMEOUT, REMINDER_MESSAGE
        if allocation.preempted is not None:
            termination = Termination.PREEMPTED_BY_SCHEDULER
        elif allocation.replaced_by is not None:
            termination = Termination.PLACEHOLDER_REPLACED
            if allocation.replaced_by:
                message = f"{replacing_message(allocation.replaced_by)} ({REMINDER_MESSAGE})"
        out.facts.append(released(self._partition, allocation, termination, message)._replace(reminder=True))
        self.remind_at(allocation, now_ns)

    def remind_at(self, allocation: Allocation, now_ns: int) -> None:
        """At the next whole multiple after it was told: the same after a restart."""
        reminders = max(now_ns - allocation.told_ns, 0) // REMINDER_NS + 1
        allocation.reminder_ns = allocation.told_ns + reminders * REMINDER_NS
        self._partition.deadlines.append((allocation.reminder_ns, allocation))

    # ---- gone ------------------------------------------------------------------------------------------------------

    def release(
        self,
        allocation: Allocation,
        termination: Termination,
        message: str,
        detail: Detail,
        out: Outcome,
        now_ns: int,
        *,
        tell: bool = True,
        completing: bool = True,
    ) -> None:
        """Ends an allocation and says so to the RM (``tell``) and in the events."""
        partition = self._partition
        self.account(allocation, out, now_ns)
        partition.unhold(allocation)
        out.touch(allocation, partition.name)
        if tell:
            out.facts.append(released(partition, allocation, termination, message))
        if allocation.foreign:
            partition.node_books.occupied_event(allocation.node_id, out, now_ns)
            return
        self.tell_gone(allocation, detail, out, now_ns)
        app = allocation.app
        if app is None:
            return
        if allocation.demand.placeholder:
            partition.gangs.count_gone(allocation, detail)
            out.touch(app, partition.name)
        for queue in app.queue.ancestry:
            if queue.quota_ns:
                quota.usage_changed(partition, app.queue, (), out, now_ns)
                break
        if completing:
            partition.lifecycle.complete_if_idle(app, out, now_ns)

    def account(self, ended: Allocation, out: Outcome, now_ns: int) -> None:
        """Adds what an allocation used to what its application did."""
        partition = self._partition
        app = ended.app
        if app is None:
            return
        used = usage.account(app.usage, ended, partition.nodes.get(ended.node_id), now_ns)
        # (Before it ends: what it held is still in the sums.)
        if usage.most(app, ended) or used:
            out.touch(app, partition.name)

    def tell_gone(self, allocation: Allocation, detail: Detail, out: Outcome, now_ns: int) -> None:
        """The events of an allocation that is gone."""
        if (detail is Detail.ALLOC_CANCEL or detail is Detail.ALLOC_NODEREMOVED) and not allocation.source:
            out.released += 1
        app = allocation.app
        if app is None or not out.tracking:
            return
        key, shape = allocation.key, allocation.shape
        by = (
            f"replaced by {allocation.replaced_by}"
            if allocation.replaced_by and detail is Detail.ALLOC_REPLACED
            else ""
        )
        remove, node_id = Change.REMOVE, allocation.node_id
        out.events += (
            Event(EventType.APP, remove, detail, app.app_id, key, shape, by, now_ns),
            Event(EventType.NODE, remove, Detail.NODE_ALLOC, node_id, key, shape, "", now_ns),
        )
        usage_events(app, remove, shape, out, now_ns)
