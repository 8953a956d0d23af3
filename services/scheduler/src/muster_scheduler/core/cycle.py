"""The search for the next allocation, in numbered steps: best leaf, best application, oldest ask, limits, node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_scheduler.core.node_index import NodeKey
from muster_scheduler.core.objects import Allocation, Application, Ask, AskGroup, Figures, Node, Queue, unique_key
from muster_scheduler.core.outcome import Outcome
from muster_scheduler.core.reasons import Reason, ReasonCode
from muster_scheduler.core.resources import Shape, fits
from muster_scheduler.core.states import AppState

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


_NO_KEY: NodeKey = (float("inf"), "")


class Cycle:
    """Decides for one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._waiting = partition.waiting
        self._figures = Figures()
        self._explained_version = -1

    def run(self, out: Outcome, now_ns: int, budget: int) -> int:
        """Makes up to ``budget`` allocations; gives how many. Fewer means: nothing more fits now."""
        partition = self._partition
        if not partition.deciding:
            return 0
        # 1. Shares move with the cluster's capacity: all keys anew, once.
        if partition.capacity_moved:
            partition.capacity_moved = False
            partition.measure_fair_max()
        # 2. Who waits for what has gained is tried again.
        self._waiting.wake()
        made = 0
        root = partition.root
        while made < budget:
            # 3. The best leaf: from root down, the first child in its parent's order.
            queue = root
            while not queue.leaf and queue.ready:
                queue = queue.ready[0][-1]
            if not queue.leaf:
                break
            # 4. Its best application, that one's best group, that one's oldest ask.
            app: Application = queue.ready_apps[0][-1]
            group: AskGroup = app.ready[0][-1]
            ask = group.head()
            assert ask is not None, f"{group} is ready without an ask"
            # 5. Limits first, then a node; a "no" parks the group with its reason.
            if self._park_over_limit(queue, app, group, out, now_ns):
                continue
            node = self._find_node(group.shape)
            if node is None:
                self._waiting.park(group, self._waiting.no_node, self._node_reason(group.shape), out, now_ns)
                continue
            # 6. The allocation, on all books.
            self._allocate(ask, group, node, out, now_ns)
            made += 1
        # 7. Whoever was woken and waits no more is off the lists. (Out of budget: some were not yet looked at.)
        if made < budget:
            self._waiting.land(out)
            # 8. Other nodes may mean another "no", even where they do not mean a "yes".
            if self._explained_version != partition.capacity_version:
                self._explained_version = partition.capacity_version
                for shape, lists in self._waiting.no_node.items():
                    reason = self._node_reason(shape)
                    for waitlist in lists:
                        self._waiting.note(waitlist, reason, out, now_ns)
        return made

    def _find_node(self, shape: Shape) -> Node | None:
        waiting = self._waiting
        if shape in waiting.found_no_node:
            return None
        if shape in waiting.only_gained:
            node = min(
                (node for node in waiting.gained if fits(shape.items, node.available)),
                key=lambda node: node.index_key or _NO_KEY,
                default=None,
            )
        else:
            node = self._partition.index.first_fit(shape.items)
        if node is None:
            waiting.found_no_node.add(shape)
        return node

    def _allocate(self, ask: Ask, group: AskGroup, node: Node, out: Outcome, now_ns: int) -> None:
        partition = self._partition
        app, shape = ask.app, ask.shape
        queue = app.queue
        ordinal = ask.allocated
        ask.allocated = ordinal + 1
        allocation = Allocation(
            app,
            ask.key,
            node.node_id,
            shape,
            ask.priority,
            ask.submission,
            ask.created_ns,
            now_ns,
            ask.tags,
            ordinal,
            f"{ask.submission:x}-{ordinal}" if ask.previous_generation else "",
            ask.task_group,
            ask.placeholder,
            ask.originator,
            ask.allow_preempt_self,
            ask.allow_preempt_other,
            ask.has_preemption_policy,
            ask.execution_timeout_ms,
            ask.previous_generation,
        )
        # Inlined booking (as in `hold` and `add_pending`): this is the hottest path of all.
        partition.allocations_count += 1
        if ordinal or allocation.uuid:
            app.book(allocation)
        key = unique_key(ask.key, ordinal)
        app.allocations[key] = allocation
        node.allocations[(app.app_id, key)] = allocation
        node_allocated, available = node.allocated, node.available
        app_allocated, app_pending = app.allocated, app.pending
        ancestry = queue.ancestry
        for number, value in shape.items:
            node_allocated[number] += value
            available[number] -= value
            app_allocated[number] += value
            app_pending[number] -= value
            for q in ancestry:
                q.allocated[number] += value
                q.pending[number] -= value
        partition.index.move(node, partition.score(node))
        out.touch(allocation, partition.name)
        if app.state is not AppState.RUNNING:
            partition.started(app, out, now_ns)
        partition.tell_new(allocation, out, now_ns)
        ask.pending -= 1
        if ask.pending:
            out.touch(ask, partition.name)
        else:
            partition.drop_ask(ask, out)
        if queue.fair_apps:
            self._waiting.rekey_parked(app)
        self._waiting.refresh_app(app)
        self._waiting.refresh(queue)
        if group.asks:  # else drop_ask woke the next
            self._waiting.wake_next(queue, shape)

    # ---- limits and reasons ----------------------------------------------------------------------------------------

    def _park_over_limit(self, leaf: Queue, app: Application, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        """Parks the group (or the application) when a queue's limit stands against it; says whether."""
        partition = self._partition
        if not app.counted:
            for queue in leaf.ancestry:
                if queue.max_applications and queue.running_applications >= queue.max_applications:
                    self._waiting.wait_to_run(app, queue, out, now_ns)
                    return True
        items = group.shape.items
        for queue in leaf.line:
            used, limit = queue.allocated, queue.limit
            for number, value in items:
                if used[number] + value > limit[number]:
                    reason = Reason(
                        ReasonCode.QUEUE_MAX,
                        queue.path,
                        partition.types.names[number],
                        value,
                        used[number],
                        limit[number],
                    )
                    self._waiting.park(group, queue.blocked, reason, out, now_ns)
                    return True
        return False

    def _node_reason(self, shape: Shape) -> Reason:
        partition = self._partition
        if not partition.index.count:
            return Reason(ReasonCode.NO_NODES)
        figures, size = self._figures, len(partition.types.names)
        if figures.free_version != partition.index.version or len(figures.largest_free) < size:
            figures.free_version = partition.index.version
            figures.largest_free = partition.index.largest_free(size)
        if figures.capacity_version != partition.capacity_version or len(figures.largest_capacity) < size:
            figures.capacity_version = partition.capacity_version
            figures.largest_capacity = [
                max(column) for column in zip(*(node.capacity for node in partition.index), strict=True)
            ]
        names = partition.types.names
        short: Reason | None = None
        for number, value in shape.items:
            free, largest = figures.largest_free[number], figures.largest_capacity[number]
            if value > largest:
                return Reason(ReasonCode.LARGER_THAN_ANY_NODE, "", names[number], value, limit=largest, free=free)
            if short is None and value > free:
                short = Reason(ReasonCode.NO_NODE_HAS_ROOM, "", names[number], value, limit=largest, free=free)
        return short or Reason(ReasonCode.FREE_RESOURCES_SCATTERED)
