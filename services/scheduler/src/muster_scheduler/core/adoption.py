"""Allocations as the RM has them: those that it reports, and those of which it says otherwise later.

They are taken in whatever the limits say: what runs, runs. New decisions are ``cycle.py``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_scheduler.core import quota
from muster_scheduler.core.objects import Allocation, Demand, Node
from muster_scheduler.core.outcome import Detail, NewAllocation, Outcome

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


class Adoption:
    """Takes what the RM reports of one partition's allocations."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def adopt(self, allocation: Allocation, out: Outcome, now_ns: int, *, echo: bool = True) -> None:
        """Takes an allocation that the RM reports, without asking any limit, and echoes it (core-features §2.9).

        Likewise what a source outside of the RM runs; of that the RM is told nothing.
        """
        partition = self._partition
        node = partition.nodes[allocation.node_id]
        partition.hold(allocation, node)
        out.touch(allocation, partition.name)
        if allocation.foreign:
            partition.node_books.occupied_event(node.node_id, out, now_ns)
            if echo:
                out.facts.append(NewAllocation(partition.name, allocation, adopted=True))
            return
        app = allocation.app
        assert app is not None
        partition.waiting.refresh_app(app)  # (a group of it that was woken may be on its list again)
        partition.waiting.refresh(app.queue)
        if allocation.demand.placeholder:
            partition.gangs.ask_more(allocation.demand, app, 1)
            out.touch(app, partition.name)
            partition.gangs.placed(allocation, out, now_ns)
        else:
            partition.waiting.may_run(app, out, now_ns)  # (it does, whatever the maxima say)
            partition.lifecycle.started(app, out, now_ns)
        partition.tell_new(allocation, out, now_ns, adopted=True, echo=echo)
        if not allocation.source:
            self._tell_excess(allocation, node, out, now_ns)
        quota.usage_changed(partition, app.queue, allocation.shape.items, out, now_ns)

    def change(
        self,
        held: Allocation,
        demand: Demand,
        node_id: str,
        uuid: str,
        out: Outcome,
        now_ns: int,
        *,
        echo: bool,
    ) -> Allocation:
        """The RM says otherwise of an allocation that there is: of its size, its node, its priority, its tags.

        No limit is asked, and it may become larger than its node. What was told to go stays told.

        :param echo: the RM reported the allocation, and is answered with it; else it sent its ask again.
        """
        partition = self._partition
        demand.changed_ns = held.demand.changed_ns
        moved, sized = node_id != held.node_id, demand.shape is not held.shape
        role = (demand.task_group, demand.placeholder) == (held.task_group, held.placeholder)
        if role and not moved and not sized and uuid in ("", held.uuid):
            if not demand.same_as(held.demand):
                held.demand = demand
                partition.version += 1
                partition.end_in_time(held)
                out.touch(held, partition.name)
            if echo:
                out.facts.append(NewAllocation(partition.name, held, adopted=True))
            return held
        if sized and not moved:
            demand.changed_ns = now_ns
        new = Allocation(
            held.app, demand, node_id, now_ns if moved else held.allocated_ns, held.ordinal, uuid or held.uuid
        )
        new.preempted, new.timed_out, new.replaces = held.preempted, held.timed_out, held.replaces
        new.source = held.source
        if demand.placeholder:  # else it is no placeholder any more, and nobody takes its place
            new.replaced_by = held.replaced_by if partition.gangs.still_does(new, held.replaced_by) else ""
        self.give_back(held, out, now_ns)
        new.published, held.published = held.published, False  # the same record
        if new.told:
            new.told_ns, new.reminder_ns = held.told_ns, held.reminder_ns
            partition.deadlines.append((new.reminder_ns, new))
        self.adopt(new, out, now_ns, echo=echo)
        return new

    def give_back(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """Takes an allocation off the books because the RM changed its size or its node; the new one follows."""
        partition = self._partition
        partition.releases.account(allocation, out, now_ns)
        partition.unhold(allocation)
        if allocation.foreign:
            partition.node_books.occupied_event(allocation.node_id, out, now_ns)
        else:
            if allocation.demand.placeholder and allocation.app is not None:
                partition.gangs.ask_more(allocation.demand, allocation.app, -1)
                out.touch(allocation.app, partition.name)
            partition.releases.tell_gone(allocation, Detail.ALLOC_REPLACED, out, now_ns)

    def _tell_excess(self, allocation: Allocation, node: Node, out: Outcome, now_ns: int) -> None:
        """What the RM reports is taken in whatever the limits say; where it goes over one, people are told."""
        app, names = allocation.app, self._partition.types.names
        assert app is not None, f"{allocation} is foreign"
        found = [
            f"node {node.node_id} has {-node.available[number]} {names[number]} less than it holds"
            for number, _ in allocation.shape.items
            if node.available[number] < 0
        ]
        found += [
            f"{ledger.who or 'queue'} in {ledger.path} has {ledger.allocated[number]} of {ledger.limit[number]} "
            f"{names[number]}"
            for ledger in app.bounds
            for number, _ in allocation.shape.items
            if ledger.allocated[number] > ledger.limit[number]
        ]
        if found:
            message = f"taken in as the resource manager reports it: {'; '.join(found)}"
            out.tell_people(allocation.key, app.app_id, allocation.shape, message, now_ns)
