"""The queues of a partition: created by the configuration or for an application, announced, removed when empty."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Protocol

from muster_core.config import properties
from muster_core.config.queue_config import INDEPENDENT_PATH, RECOVERY_PATH, QueueConfig
from muster_core.model.decayed_usage import LeafUsage
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome
from muster_core.model.queue import Queue
from muster_core.model.states import QueueEvent, QueueState, next_queue_state
from muster_core.model.steps import SOME, Steps
from muster_core.queues import ordering
from muster_core.queues.limits import limit_events

if TYPE_CHECKING:
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.gangs.gangs import Gangs
    from muster_core.model.partition_state import PartitionState
    from muster_core.queues.limits import UserLimits


class QueueReportSource(Protocol):
    """The statements of external sources about queues."""

    def apply_queue_limits(self, queue: Queue) -> None:
        """Applies the sources' statements about a new queue's max."""

    def limit_conflict(self, queue: Queue) -> str:
        """The limits of a queue's max that differ, as a text; "": none."""

    def on_queue_added(self, queue: Queue, out: Outcome) -> None:
        """Marks the entries that waited for a new queue as counting."""

    def on_queue_removed(self, queue: Queue, out: Outcome) -> None:
        """Marks the entries about a removed queue as dormant."""


class QueueTree:
    """Creates, changes and removes the queues of one partition. They are in ``PartitionState.queues``, by path."""

    _external: QueueReportSource

    def __init__(
        self,
        state: PartitionState,
        *,
        limits: UserLimits,
        waiting: SchedulingQueue,
        gangs: Gangs,
    ) -> None:
        self._state = state
        self._limits = limits
        self._waiting = waiting
        self._gangs = gangs

    def connect(self, *, external: QueueReportSource) -> None:
        """Takes the part that is built after this one."""
        self._external = external

    # ---- building --------------------------------------------------------------------------------------------------

    def build_in_steps(
        self, config: QueueConfig, parent: Queue | None, inherited: Mapping[str, str]
    ) -> Generator[None, None, Queue]:
        """Creates a configured queue and everything below it, parents first; in steps."""
        first: Queue | None = None
        count = 0
        waiting = [(config, parent, inherited)]
        while waiting:
            queue_config, above, texts = waiting.pop()
            leaf = above is not None and not (queue_config.queues or queue_config.parent)
            queue = Queue(self._state.types, queue_config.name.lower(), above, leaf=leaf, managed=True)
            self.configure_queue(queue, queue_config, texts)
            self.attach(queue)
            if first is None:
                first = queue
            if queue_config.queues:
                passed_on = properties.inherited(queue.properties)
                waiting += [(child, queue, passed_on) for child in reversed(queue_config.queues)]
            count += 1
            if not count % SOME:
                yield
        assert first is not None, "the configured queue itself"
        return first

    def configure_queue(self, queue: Queue, config: QueueConfig, inherited: Mapping[str, str]) -> None:
        """Applies the configuration of one queue."""
        queue.set_limits(config.guaranteed, config.maximum)
        queue.max_applications = config.max_applications
        queue.submit_acl, queue.admin_acl = config.submit_acl, config.admin_acl
        above = queue.parent.template if queue.parent is not None else None
        queue.template = None if queue.leaf else config.child_template or above
        self.set_properties(queue, {**inherited, **config.properties})

    def set_properties(self, queue: Queue, texts: dict[str, str]) -> None:
        """Takes a queue's properties and the policy that they mean. An unknown value means the default."""
        queue.properties = texts
        queue.policy = policy = properties.policy_of(texts)
        queue.fair_apps = queue.leaf and policy.app_sort.fair
        if not queue.leaf or not policy.app_sort.decays:
            queue.fair_uses = None
        elif queue.fair_uses is None or queue.fair_uses.half_life_ns != policy.half_life_ns:
            queue.fair_uses = LeafUsage(queue, policy.half_life_ns)
        queue.priority_first = policy.priority_first

    def attach(self, queue: Queue) -> None:
        """Adds a new queue to the tree."""
        self._state.queues[queue.path] = queue
        self._external.apply_queue_limits(queue)
        if queue.parent is not None:
            queue.parent.children[queue.name] = queue
            queue.fair_max[:] = queue.parent.fair_max
            self._own_fair_max(queue)

    def announce_in_steps(self, out: Outcome, now_ns: int) -> Steps:
        """Adds the events and objects of a new configuration, in steps."""
        for count, queue in enumerate(self._state.queues.values(), 1):
            self.announce_queue(queue, out, now_ns)
            if not count % SOME:
                yield
        limit_events({}, self._limits.all_limits(), out, now_ns)
        yield

    def announce_queue(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """Adds the events and the object of one new queue."""
        queue.created_ns = now_ns
        detail = EventDetail.NONE if queue.managed else EventDetail.QUEUE_DYNAMIC
        out.add_event(EventType.QUEUE, EventChange.ADD, detail, queue.path, now_ns=now_ns)
        dispute = self._external.limit_conflict(queue)
        for quantities, limit_detail, message in (
            (queue.maximum, EventDetail.QUEUE_MAX, dispute),
            (queue.guaranteed, EventDetail.QUEUE_GUARANTEED, ""),
        ):
            if quantities is not None:
                by_name = queue.by_name(quantities)
                out.add_event(
                    EventType.QUEUE, EventChange.SET, limit_detail, queue.path, "", by_name, message, now_ns=now_ns
                )
        out.mark_changed(queue, self._state.name)
        self._external.on_queue_added(queue, out)

    def limit_events(
        self,
        queue: Queue,
        guaranteed: Mapping[int, int] | None,
        maximum: Mapping[int, int] | None,
        out: Outcome,
        now_ns: int,
    ) -> None:
        """Adds the events of a queue whose guaranteed amounts and max were these before. If external sources differ
        about the max, the event says so.
        """
        dispute = self._external.limit_conflict(queue)
        for old, new, detail, message in (
            (guaranteed, queue.guaranteed, EventDetail.QUEUE_GUARANTEED, ""),
            (maximum, queue.maximum, EventDetail.QUEUE_MAX, dispute),
        ):
            if old != new:
                by_name = queue.by_name(new) or {}
                out.add_event(EventType.QUEUE, EventChange.SET, detail, queue.path, "", by_name, message, now_ns=now_ns)

    # ---- dynamic queues --------------------------------------------------------------------------------------------

    def create_queue(self, path: str) -> tuple[Queue | None, list[Queue], str]:
        """Creates the missing queues of a path: dynamic ones, the last a leaf.

        Returns the leaf, the created queues (for :meth:`announce_queue`), and ""; or None, nothing, and why not.
        """
        state = self._state
        parts = path.split(".")
        queue = state.root
        created: list[Queue] = []
        for depth, part in enumerate(parts[1:], start=1):
            child = queue.children.get(part)
            if child is None:
                if queue.leaf:
                    return None, [], f"creation of queue {path} failed: {queue.path} is a leaf"
                if queue.state is not QueueState.ACTIVE:
                    return None, [], f"creation of queue {path} failed: {queue.path} is {queue.state.lower()}"
                child = Queue(state.types, part, queue, leaf=depth == len(parts) - 1, managed=False)
                self._take_template(child)
                self.attach(child)
                created.append(child)
            queue = child
        if not queue.leaf:
            return None, [], f"queue {path} is not a leaf"
        return queue, created, ""

    def missing(self, path: str) -> int:
        """The number of queues that :meth:`create_queue` would create."""
        queue, parts = self._state.root, path.split(".")[1:]
        for depth, part in enumerate(parts):
            child = queue.children.get(part)
            if child is None:
                return len(parts) - depth
            queue = child
        return 0

    def _take_template(self, queue: Queue) -> None:
        """A dynamic leaf gets the settings of its parent's template. A dynamic parent passes the template on."""
        template = queue.parent.template if queue.parent is not None else None
        if not queue.leaf:
            queue.template = template
        elif template is not None and queue.path not in (RECOVERY_PATH, INDEPENDENT_PATH):  # these accept everything
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
        """Sets the limits that an application's tags give its dynamic queue. None or 0 leaves a limit as it was."""
        state = self._state
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
            for app in state.apps_in(queue):
                app.share = None
                if queue.fair_apps:
                    self._waiting.rekey_app(app)
                    self._waiting.requeue_app(app)
        state.capacity_moved = True
        state.version += 1
        self.limit_events(queue, *before, out, now_ns)
        self._gangs.on_limits_changed(queue, out, now_ns)
        self._waiting.wake_ledgers((queue,))
        out.mark_changed(queue, state.name)

    # ---- removal ---------------------------------------------------------------------------------------------------

    def sweep_queue(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """Removes a dynamic or draining queue that is empty, and then its parents to which the same applies."""
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
        """Removes an empty queue from the tree, with its event and its tombstone."""
        state = self._state
        self._waiting.forget_lists(queue, out)
        uses = queue.fair_uses.forget() if queue.fair_uses is not None else ()
        self.remove_queue(queue)
        detail = EventDetail.NONE if queue.managed else EventDetail.QUEUE_DYNAMIC
        out.add_event(EventType.QUEUE, EventChange.REMOVE, detail, queue.path, now_ns=now_ns)
        for use in uses:
            out.mark_changed(use, state.name)
        out.mark_changed(queue, state.name)
        self._external.on_queue_removed(queue, out)

    def remove_queue(self, queue: Queue) -> None:
        """Removes an empty queue from the tree."""
        state = self._state
        assert not queue.applications, f"{queue} still has applications"
        assert not queue.children, f"{queue} still has children"
        assert queue.parent is not None, "root stays"
        self._waiting.set_ready(queue, None)
        del state.queues[queue.path], queue.parent.children[queue.name]
        queue.gone = True
        queue.unlink()
        state.types.release(queue.limit, queue.fair_max, queue.allocated, queue.pending, queue.preempting)

    def change_queue_state(self, queue: Queue, event: QueueEvent) -> None:
        """Moves a queue along its state table."""
        queue.state = next_queue_state(queue.path, queue.state, event)

    # ---- fair max --------------------------------------------------------------------------------------------------

    def recompute_fair_max(self) -> None:
        """Computes every queue's fair max again, and sorts the ready queues again."""
        state = self._state
        for queue in state.queues.values():  # parents come before their children
            above = state.capacity if queue.parent is None else queue.parent.fair_max
            queue.fair_max[:] = above
            self._own_fair_max(queue)
        for queue in state.queues.values():
            if queue.fair_uses is not None:
                queue.fair_uses.move_all()
        for queue in state.queues.values():
            if queue.ready_key is not None:
                self._waiting.set_ready(queue, ordering.queue_key(queue))

    def _own_fair_max(self, queue: Queue) -> None:
        for number, value in (queue.maximum or {}).items():
            queue.fair_max[number] = value
