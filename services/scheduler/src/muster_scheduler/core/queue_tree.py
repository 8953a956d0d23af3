"""The queues of a partition: made from the configuration or with an application, announced, removed when empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster_scheduler.core import ordering, properties
from muster_scheduler.core.config import RECOVERY_QUEUE, QueueConfig
from muster_scheduler.core.limits import limit_events
from muster_scheduler.core.objects import Queue
from muster_scheduler.core.outcome import Change, Detail, EventType, Outcome
from muster_scheduler.core.states import QueueEvent, QueueState, next_queue_state

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


class QueueTree:
    """How the queues of one partition come, change and go; they are in ``Partition.queues``, by path."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    # ---- building --------------------------------------------------------------------------------------------------

    def build_queue(self, config: QueueConfig, parent: Queue | None, inherited: Mapping[str, str]) -> Queue:
        """Makes a configured queue and what is below it."""
        leaf = parent is not None and not (config.queues or config.parent)
        queue = Queue(self._partition.types, config.name.lower(), parent, leaf=leaf, managed=True)
        self.configure_queue(queue, config, inherited)
        self.link(queue)
        for child in config.queues:
            self.build_queue(child, queue, properties.inherited(queue.properties))
        return queue

    def configure_queue(self, queue: Queue, config: QueueConfig, inherited: Mapping[str, str]) -> None:
        """Takes what the configuration says of one queue."""
        queue.set_limits(config.guaranteed, config.maximum)
        queue.max_applications = config.max_applications
        queue.submit_acl, queue.admin_acl = config.submit_acl, config.admin_acl
        above = queue.parent.template if queue.parent is not None else None
        queue.template = None if queue.leaf else config.child_template or above
        self.set_properties(queue, {**inherited, **config.properties})

    def set_properties(self, queue: Queue, texts: dict[str, str]) -> None:
        """Takes a queue's properties and what they mean; unknown values mean the default (core-features §2.2)."""
        queue.properties = texts
        queue.policy = policy = properties.policy_of(texts)
        queue.fair_apps = queue.leaf and policy.app_sort.fair
        queue.priority_first = policy.priority_first

    def link(self, queue: Queue) -> None:
        """Puts a new queue into the tree."""
        self._partition.queues[queue.path] = queue
        self._partition.external.restrict(queue)
        if queue.parent is not None:
            queue.parent.children[queue.name] = queue
            queue.fair_max[:] = queue.parent.fair_max
            self._own_fair_max(queue)

    def announce_queues(self, out: Outcome, now_ns: int) -> None:
        """The events and objects of a fresh configuration."""
        for queue in self._partition.queues.values():
            self.announce_queue(queue, out, now_ns)
        limit_events({}, self._partition.limits.standing(), out, now_ns)

    def announce_queue(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """The events and the object of one new queue."""
        queue.created_ns = now_ns
        detail = Detail.NONE if queue.managed else Detail.QUEUE_DYNAMIC
        out.track(EventType.QUEUE, Change.ADD, detail, queue.path, now_ns=now_ns)
        dispute = self._partition.external.dispute(queue)
        for quantities, what, message in (
            (queue.maximum, Detail.QUEUE_MAX, dispute),
            (queue.guaranteed, Detail.QUEUE_GUARANTEED, ""),
        ):
            if quantities is not None:
                by_name = queue.by_name(quantities)
                out.track(EventType.QUEUE, Change.SET, what, queue.path, "", by_name, message, now_ns=now_ns)
        out.touch(queue, self._partition.name)
        self._partition.external.queue_is_there(queue, out)

    def limit_events(
        self,
        queue: Queue,
        guaranteed: Mapping[int, int] | None,
        maximum: Mapping[int, int] | None,
        out: Outcome,
        now_ns: int,
    ) -> None:
        """The events of a queue whose guaranteed and max were these before; where sources outside of the RM say
        otherwise of the max, who says what.
        """
        dispute = self._partition.external.dispute(queue)
        for old, new, detail, message in (
            (guaranteed, queue.guaranteed, Detail.QUEUE_GUARANTEED, ""),
            (maximum, queue.maximum, Detail.QUEUE_MAX, dispute),
        ):
            if old != new:
                by_name = queue.by_name(new) or {}
                out.track(EventType.QUEUE, Change.SET, detail, queue.path, "", by_name, message, now_ns=now_ns)

    # ---- dynamic queues --------------------------------------------------------------------------------------------

    def create_queue(self, path: str) -> tuple[Queue | None, list[Queue], str]:
        """Makes the missing queues of a path, dynamic, the last a leaf.

        Gives the leaf, the queues that were made (for :meth:`announce_queue`), and ""; or None, nothing, and why not.
        """
        partition = self._partition
        parts = path.split(".")
        queue = partition.root
        created: list[Queue] = []
        for depth, part in enumerate(parts[1:], start=1):
            child = queue.children.get(part)
            if child is None:
                if queue.leaf:
                    return None, [], f"creation of queue {path} failed: {queue.path} is a leaf"
                if queue.state is not QueueState.ACTIVE:
                    return None, [], f"creation of queue {path} failed: {queue.path} is {queue.state.lower()}"
                child = Queue(partition.types, part, queue, leaf=depth == len(parts) - 1, managed=False)
                self._take_template(child)
                self.link(child)
                created.append(child)
            queue = child
        if not queue.leaf:
            return None, [], f"queue {path} is not a leaf"
        return queue, created, ""

    def _take_template(self, queue: Queue) -> None:
        """A dynamic leaf is made as its parent's template says; a dynamic parent hands the template on (§2.1)."""
        template = queue.parent.template if queue.parent is not None else None
        if not queue.leaf:
            queue.template = template
        elif template is not None and queue.name != RECOVERY_QUEUE:  # which must take whatever comes (§2.2)
            queue.set_limits(template.guaranteed, template.maximum)
            queue.max_applications = template.max_applications
            self.set_properties(queue, dict(template.properties))

    def limit_dynamic_queue(
        self,
        queue: Queue,
        guaranteed: Mapping[str, int] | None,
        maximum: Mapping[str, int] | None,
        max_applications: int,
        out: Outcome,
        now_ns: int,
    ) -> None:
        """Sets what an application's tags say of its dynamic queue; None or 0: as it was (core-features §2.9)."""
        partition = self._partition
        before = (queue.guaranteed, queue.maximum)
        most = queue.max_applications
        queue.set_limits(
            guaranteed if guaranteed is not None else queue.by_name(queue.guaranteed),
            maximum if maximum is not None else queue.by_name(queue.own_maximum),
        )
        queue.max_applications = max_applications or queue.max_applications
        if (queue.guaranteed, queue.maximum, queue.max_applications) == (*before, most):
            return
        if queue.guaranteed != before[0]:
            for app in queue.applications.values():
                app.share = None
                if queue.fair_apps:
                    partition.waiting.rekey(app)
                    partition.waiting.refresh_app(app)
        partition.capacity_moved = True
        partition.version += 1
        self.limit_events(queue, *before, out, now_ns)
        partition.waiting.stir((queue,))
        out.touch(queue, partition.name)

    # ---- going -----------------------------------------------------------------------------------------------------

    def sweep_queue(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """Removes a dynamic or draining queue that is empty, and then its parents for which the same is true."""
        while (
            queue.parent is not None
            and not queue.gone
            and not queue.applications
            and not queue.children
            and (not queue.managed or queue.state is QueueState.DRAINING)
        ):
            self.drop_queue(queue, out, now_ns)
            queue = queue.parent

    def drop_queue(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """Takes an empty queue out of the tree, and says so."""
        partition = self._partition
        partition.waiting.forget_lists(queue, out)
        self.remove_queue(queue)
        detail = Detail.NONE if queue.managed else Detail.QUEUE_DYNAMIC
        out.track(EventType.QUEUE, Change.REMOVE, detail, queue.path, now_ns=now_ns)
        out.touch(queue, partition.name)
        partition.external.queue_is_gone(queue, out)

    def remove_queue(self, queue: Queue) -> None:
        """Takes an empty queue out of the tree."""
        partition = self._partition
        assert not queue.applications, f"{queue} still has applications"
        assert not queue.children, f"{queue} still has children"
        assert queue.parent is not None, "root stays"
        partition.waiting.set_ready(queue, None)
        del partition.queues[queue.path], queue.parent.children[queue.name]
        queue.gone = True
        partition.types.release(queue.limit, queue.fair_max, queue.allocated, queue.pending, queue.preempting)

    def change_queue_state(self, queue: Queue, event: QueueEvent) -> None:
        """Moves a queue along its table."""
        queue.state = next_queue_state(queue.path, queue.state, event)

    # ---- fair max --------------------------------------------------------------------------------------------------

    def measure_fair_max(self) -> None:
        """Measures every queue's fair max anew, and puts the ready ones in their new order."""
        partition = self._partition
        for queue in partition.queues.values():  # parents come before their children
            above = partition.capacity if queue.parent is None else queue.parent.fair_max
            queue.fair_max[:] = above
            self._own_fair_max(queue)
        for queue in partition.queues.values():
            if queue.ready_key is not None:
                partition.waiting.set_ready(queue, ordering.queue_key(queue))

    def _own_fair_max(self, queue: Queue) -> None:
        for number, value in (queue.maximum or {}).items():
            queue.fair_max[number] = value
