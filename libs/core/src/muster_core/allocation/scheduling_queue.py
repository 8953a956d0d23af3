"""Ready groups, applications and queues; parked groups; and the changes that wake parked groups.

Ready: an application's groups, a leaf's applications, a parent's queues, each in its order (``ordering.py``). The cycle
always takes the first one. Parked: groups that did not fit wait, by shape and leaf, at the wait point that refused
them. They are tried again only after that wait point gained. Wait points are:

* at a ledger (a queue, or a user or group in one), if an ask would exceed its limit (woken by a release there);
* at the nodes, if no node has room (woken by a node that gained room for this shape);
* at a required node, if the ask requires one (woken when that node gained room);
* at a ledger's limit of running applications (woken when an application stops running);
* at a ledger without room for a whole gang (woken one by one, when there is room).

Only the first group of a waitlist is woken; each success wakes the next (``wake_next``). If several lists of one leaf
wait at one wait point for one shape, only the first of these is woken, too (``wait_points.py``). So a release before
100,000 waiting asks, or 3,000 waiting users, costs as many tries as it makes allocations. (In a leaf whose order does
not begin with priority, the most urgent one is woken beside the first one, because the leaf is as urgent as that.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from muster_core.allocation import whole_reasons
from muster_core.allocation.application_lines import ApplicationLines, key_of
from muster_core.allocation.parked_groups import ParkedGroups, first_open
from muster_core.model.application import Application, AskGroup
from muster_core.model.node import Node
from muster_core.model.outcome import EventChange, EventType, Outcome
from muster_core.model.queue import Ledger, Queue, Tracker, Waitlist
from muster_core.model.reason_history import Past, with_ended, with_replaced
from muster_core.model.reasons import Reason
from muster_core.model.resources import Shape
from muster_core.model.states import APP_TERMINAL, QueueState
from muster_core.model.wait_points import WaitPoint, WaitQueue
from muster_core.queues import ordering
from muster_core.queues.running_limits import MAXIMA, maximum_of

if TYPE_CHECKING:
    from muster_core.allocation.ask_events import AskEvents
    from muster_core.allocation.backfill import Backfill
    from muster_core.gangs.gang_headroom import GangHeadroom
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.scope_queues import ScopeQueues


# If no more nodes than this gained, a search tries them one by one; otherwise it uses the index.
GAINED_NODES_FEW = 16


class SchedulingQueue:
    """The ready and the parked groups of one partition.

    :ivar parking: which groups are on which waitlist.
    :ivar no_node: the waitlists that wait for room on a node, by shape.
    :ivar turns: the waitlists, by shape, for which a node has room but another proposal is open there; ``turns_moved``:
        shapes for which that is over.
    :ivar required: by node id, the waitlists of asks that require the node.
    :ivar waiting_gangs: by ledger, and by leaf, the gangs that wait there for room for the whole gang.
    :ivar gained_reserved: reserved nodes that gained room; ``changed_claims``: others with claims of preemption.
    :ivar parked: groups that were parked, or whose first ask changed, since this was last emptied.
    """

    def __init__(
        self,
        state: PartitionState,
        *,
        notifications: AskEvents,
        room: GangHeadroom,
        lines: ScopeQueues,
        backfill: Backfill,
    ) -> None:
        self._state = state
        self._backfill = backfill
        self._notifications = notifications
        self._room_for = room.headroom
        self._lines = lines
        self.parking = ParkedGroups()
        self.no_node: WaitPoint[Waitlist] = WaitPoint(parties=True)
        self.required: dict[str, WaitPoint[Waitlist]] = {}
        self.turns: WaitPoint[Waitlist] = WaitPoint()
        self._app_lines = ApplicationLines()
        self.waiting_gangs = self._app_lines.gangs
        self.turns_moved: dict[Shape, None] = {}
        self.gained_reserved: list[Node] = []
        self.changed_claims: dict[Node, None] = {}
        self.parked: dict[AskGroup, None] = {}
        # Shapes for which no node has room: they need not be searched again. Never iterated where the order could show.
        self.found_no_node: set[Shape] = set()
        # Woken shapes for which only the nodes that gained can have room, if these are few.
        self.only_gained: set[Shape] = set()
        self.gained: list[Node] = []
        self._in_flight: dict[Waitlist, None] = {}
        self._woken_apps: dict[Application, None] = {}
        # Ledgers that are not full and have applications in line: the first of these was woken and does not run yet.
        self._ledgers_with_waiting_apps: dict[Ledger, None] = {}
        self._gained_nodes: dict[Node, None] = {}
        self._other_nodes: dict[str, None] = {}
        # The past reasons of groups that left their lists and will be on another list soon.
        self._carried: dict[AskGroup, Past] = {}
        self._gained_ledgers: dict[Ledger, None] = {}

    # ---- what gained -----------------------------------------------------------------------------------------------

    def on_node_gained(self, node: Node) -> None:
        """Notes a node that has more room or is available again."""
        self._gained_nodes[node] = None

    def on_node_added(self, node: Node) -> None:
        """Notes a new node: the reason of asks that require the node may change, even if it has no room."""
        self._other_nodes[node.node_id] = None

    def on_node_removed(self, node: Node) -> None:
        """Forgets a node that was removed."""
        for changed in (self._gained_nodes, self.changed_claims):
            changed.pop(node, None)
        self._other_nodes[node.node_id] = None

    def on_limit_gained(self, app: Application) -> None:
        """Notes that an ask or allocation of the application was released."""
        for ledger in app.ledgers:
            if ledger.blocked or ledger in self.waiting_gangs:
                self._gained_ledgers[ledger] = None

    @property
    def nodes_gained(self) -> bool:
        """Whether some nodes have more room, or are available again."""
        return bool(self._gained_nodes)

    @property
    def has_wakeups(self) -> bool:
        """Whether a node or a limit gained room and the waitlists there were not woken yet."""
        gained = self._gained_nodes or self._gained_ledgers or self._other_nodes
        return bool(gained or self.turns_moved or self.changed_claims)

    def wake_ledgers(self, ledgers: Iterable[Ledger]) -> None:
        """Wakes all waitlists at the ledgers, because limits changed."""
        for ledger in ledgers:
            if ledger.blocked or ledger in self.waiting_gangs:
                self._gained_ledgers[ledger] = None
            if ledger.waiting_apps:
                self._ledgers_with_waiting_apps[ledger] = None

    def resume(self, leaf: Queue) -> None:
        """After a fold: until the next cycle, the leaf's recorded lists are empty and no application waits to run."""
        self._in_flight.update(dict.fromkeys(leaf.waitlists.values()))
        self._woken_apps.update((app, None) for app in self._state.apps_in(leaf) if app.reason is not None)

    # ---- ready, parked, woken --------------------------------------------------------------------------------------

    def make_ready(self, group: AskGroup) -> None:
        self.queue_ready(group)
        self.requeue_app(group.app)

    def queue_ready(self, group: AskGroup) -> None:
        """Puts the group at its place among its application's ready groups, unless its gang holds it."""
        gang = group.app.gang
        if gang is not None:
            group.held = gang.gates(group)
            if group.held:
                if group.ready_key is not None:  # it may be the woken group of its list
                    self.remove_ready(group)
                    self.wake_next(group)
                return
        head = group.head()
        assert head is not None, f"{group} has nothing to try"
        if group.in_line:
            self._lines.requeue(group)
            return
        key, old = (-group.priority, head.created_ns, head.submission), group.ready_key
        if old == key:
            return
        ready = group.app.ready
        group.ready_key = key
        if old is not None:
            index = 0 if ready[0][-1] is group else bisect_left(ready, old)
            assert ready[index][-1] is group, f"{group} is not where its key says"
            if (not index or ready[index - 1] < key) and (index + 1 == len(ready) or key < ready[index + 1]):
                ready[index] = (*key, group)  # between the same neighbours: nothing is shifted
                return
            del ready[index]
        insort(ready, (*key, group))

    def remove_ready(self, group: AskGroup) -> None:
        if group.in_line:
            self._lines.dequeue(group)
        if group.ready_key is None:
            return
        ready = group.app.ready
        index = 0 if ready[0][-1] is group else bisect_left(ready, group.ready_key)
        assert ready[index][-1] is group, f"{group} is not where its key says"
        del ready[index]
        group.ready_key = None

    def requeue_app(self, app: Application) -> bool:
        """Puts the application at its place among its leaf's ready ones. Returns whether the place changed."""
        leaf = app.queue
        if app.waiting_at is not None:
            self._rekey_waiting(app)
        old = app.ready_key
        in_queue = app.waiting_at is None and app.ready and not app.taken and leaf.state is not QueueState.STOPPED
        new = ordering.app_key(app) if in_queue else None
        if new == old:
            return False
        line = leaf.ready_apps if leaf.fair_uses is None else leaf.fair_uses.get_or_create(app.user).line
        if old is not None:
            line.remove((*old, app))
        if not leaf.priority_first:
            leaf.ready_priorities.set(app, new)
        app.ready_key = new
        if new is not None:
            line.add((*new, app))
        if leaf.fair_uses is not None:
            leaf.fair_uses.requeue_user(app.user)
        self.requeue_queue(leaf)
        return True

    def requeue_queue(self, queue: Queue) -> None:
        """Puts the queue and its ancestors at their places among their parents' ready queues."""
        while queue.parent is not None:
            if queue.leaf:
                active = bool(queue.ready_apps) and queue.state is not QueueState.STOPPED
            else:
                active = bool(queue.ready) and queue.state is not QueueState.STOPPED
            # (A queue with nothing to try has no place. Its ancestors' shares may have changed all the same.)
            self.set_ready(queue, ordering.queue_key(queue) if active else None)
            queue = queue.parent

    def set_ready(self, queue: Queue, new: tuple[Any, ...] | None) -> None:
        parent = queue.parent
        assert parent is not None
        old = queue.ready_key
        if old == new:
            return
        ready = parent.ready
        if old is not None:
            del ready[0 if ready[0][-1] is queue else bisect_left(ready, old)]
        if new is not None:
            insort(ready, (*new, queue))
        if not parent.priority_first:
            parent.ready_priorities.set(queue, new)
        queue.ready_key = new

    def park(self, group: AskGroup, wait_point: WaitPoint[Waitlist], reason: Reason, out: Outcome, now_ns: int) -> None:
        """Parks the group: it is not ready any more, and waits on its shape's list, registered at ``wait_point``."""
        app = group.app
        leaf = app.queue
        waitlist = leaf.waitlists.get(group.wait_key)
        if waitlist is None:
            leaf.waitlists[group.wait_key] = waitlist = Waitlist(leaf, group.wait_key)
            if self._carried:
                waitlist.past = self._carried.pop(group, ())
        self.remove_ready(group)
        self.parking.park(waitlist, group, self.wait_key(group))
        waitlist.register(wait_point)
        self.parked[group] = None
        changed = self.set_reason(waitlist, reason, out, now_ns)
        if self._notifications.wanted:
            self._notifications.on_parked(group, waitlist.reason)
        changed = self._backfill.is_uneven(waitlist, reason) or changed
        if waitlist.relay is not None:
            self._tell_bench(waitlist, wait_point, reason if changed else None, out, now_ns)
        self.requeue_app(app)
        if not app.counted:
            self._wake_apps(app)
        if app.gang is not None and app.gang.waits_for_room:
            self.wake_gangs_beside(app)  # the gang does not take the room now

    def _tell_bench(
        self, waitlist: Waitlist, wait_point: WaitPoint[Waitlist], new_reason: Reason | None, out: Outcome, now_ns: int
    ) -> None:
        """A list woken from its bench was refused: decides about the rest.

        :param new_reason: the reason of the list, if it changed; else None.
        """
        came_from, waitlist.relay = waitlist.relay, None
        bench = came_from.bench_of(waitlist) if came_from is not None else None
        if bench is None or came_from is None:
            return
        if wait_point is not came_from and wait_point.own:
            self.wake_queue(bench, came_from)  # the refusal concerns this list only
            return
        # The leaf or the nodes refuse all lists of the bench for the same reason.
        bench.moving = False
        if wait_point is came_from and new_reason is None:
            return
        for waiting in list(bench.lists):
            if wait_point is not came_from:
                waiting.register(wait_point)
                self.parked[waiting.groups[0][-1]] = None
            if new_reason is not None:
                self.set_reason(waiting, self._backfill.shared(new_reason, waiting, now_ns), out, now_ns)

    def park_on(self, group: AskGroup, waitlist: Waitlist) -> None:
        """Parks the group without a try: it waits for the same reason as its list."""
        self.parking.park(waitlist, group, self.wait_key(group))
        self.parked[group] = None
        if self._notifications.wanted:
            self._notifications.on_parked(group, waitlist.reason)

    def rekey_head(self, group: AskGroup) -> None:
        """The first ask of a parked group may have changed: computes its place on the list and its deadlines again."""
        if group.parked_key is not None:
            waitlist = group.app.queue.waitlists[group.wait_key]
            self.parking.unpark(waitlist, group)
            self.parking.park(waitlist, group, self.wait_key(group))
            waitlist.tried = False
            self.parked[group] = None
            self._hurry(waitlist)

    def unpark(self, group: AskGroup, out: Outcome) -> None:
        """Takes a parked group off its list. The group that is first now may have waited as long."""
        waitlist = group.app.queue.waitlists[group.wait_key]
        was_first = waitlist.groups[0][-1] is group
        self.parking.unpark(waitlist, group)
        if not waitlist.groups:
            if waitlist.wait_point is not None:
                self.forget_list(waitlist, out)
        elif was_first:
            self.rekey_head(waitlist.groups[0][-1])

    def on_head_changed(self, group: AskGroup) -> None:
        """Handles a woken group whose first ask is a later one now: other groups of its list may come before it."""
        waitlist = group.app.queue.waitlists.get(group.wait_key)
        if waitlist is not None and waitlist.groups:
            self._hurry(waitlist)

    def _hurry(self, waitlist: Waitlist) -> None:
        """Lets the list's first group be tried if it comes before a group that is being tried."""
        if waitlist.bench is not None:
            if waitlist.bench.moving:
                self._wake_list(waitlist)
            return
        tried = self.parking.in_flight_group(waitlist)
        if tried is not None and waitlist.groups and waitlist.groups[0][:-1] < self.wait_key(tried):
            self._wake_first(waitlist)

    def set_reason(self, waitlist: Waitlist, reason: Reason, out: Outcome, now_ns: int) -> bool:
        """Records why the list waits. Returns whether that changed; an unchanged reason keeps its first figures."""
        if reason.same_as(waitlist.reason):
            return False
        waitlist.past, waitlist.reason = with_replaced(waitlist.past, waitlist.reason, reason, now_ns)
        out.mark_changed(waitlist, self._state.name)
        if self._notifications.wanted:
            self._notifications.reason_changed(waitlist)
        return True

    def carry_history(self, group: AskGroup, past: Past) -> None:
        """Keeps the group's past reasons for the new list on which it will be."""
        if past:
            self._carried[group] = past

    def history_of(self, group: AskGroup, now_ns: int) -> Past:
        """The group's past reasons on its list, up to now; empty: there are none, or it waited for moments only."""
        waitlist = group.app.queue.waitlists.get(group.wait_key)
        return (
            with_ended(waitlist.past, waitlist.reason, now_ns) if waitlist is not None else self._carried.get(group, ())
        )

    def required_wait_point(self, node_id: str) -> WaitPoint[Waitlist]:
        """The wait point of asks that require the node."""
        return self.required.setdefault(node_id, WaitPoint())

    def forget_list(self, waitlist: Waitlist, out: Outcome) -> None:
        """Removes a list on which nothing waits any more."""
        waitlist.register(None)
        del waitlist.leaf.waitlists[waitlist.key]
        self.parking.forget(waitlist)
        self.no_node.forget(waitlist)
        waitlist.gone = True
        self.found_no_node.discard(waitlist.shape)  # (Unused shapes, and nodes that never existed, are not kept.)
        if not self.required.get(waitlist.required_node, True):
            del self.required[waitlist.required_node]
        out.mark_changed(waitlist, self._state.name)

    def forget_lists(self, leaf: Queue, out: Outcome) -> None:
        """Removes the lists of a leaf that is removed."""
        for waitlist in list(leaf.waitlists.values()):
            self.forget_list(waitlist, out)

    def forget_those_of(self, leaf: Queue, trackers: tuple[Tracker, ...], out: Outcome) -> None:
        """An application left these limits. Removes the woken lists under the limits that can have no groups any more.
        (This runs before the ledgers are removed: a follower needs them to find the user and group of a list.)
        """
        idle = [
            waitlist
            for waitlist in self._in_flight
            if waitlist.leaf is leaf and waitlist.trackers == trackers and not waitlist.groups and not waitlist.gone
        ]
        if idle and all(app.trackers != trackers for app in self._state.apps_in(leaf)):
            for waitlist in idle:
                self.forget_list(waitlist, out)

    def wait_key(self, group: AskGroup) -> tuple[Any, ...]:
        head = group.head()
        assert head is not None, f"{group} has nothing that could wait"
        return ordering.group_key(group, head)

    def rekey_app(self, app: Application) -> None:
        """The application's share or age changed: moves its parked and woken groups to their places on their lists."""
        leaf = app.queue
        if not leaf.waitlists:
            return
        for group in app.groups.values() if app.parked else ():
            if group.parked_key is not None and group.head() is not None:
                waitlist = leaf.waitlists[group.wait_key]
                self.parking.unpark(waitlist, group)
                self.parking.park(waitlist, group, self.wait_key(group))
                self._hurry(waitlist)
        for *_, group in list(app.ready):
            if app.gang is not None and app.gang.can_be_replaced_by(group):
                continue  # it was not woken: a placeholder makes room for it
            woken = leaf.waitlists.get(group.wait_key)
            if woken is None or woken.wait_point is not None or not woken.groups or group.head() is None:
                continue
            if self.parking.pressing.get(woken) is group:
                continue  # it was not woken for its place
            key = self.wait_key(group)
            if woken.groups[0][:-1] < key:  # another group is first in line now
                self.remove_ready(group)
                self.parking.park(woken, group, key)
                self._wake_first(woken)

    def wake(self) -> None:
        """Wakes groups that wait for what has gained since the last call."""
        for ledger in self._gained_ledgers:
            room = [[most - used for most, used in zip(ledger.limit, ledger.allocated, strict=True)]]
            self._wake_shapes(ledger.blocked, ledger.blocked.fitting(room))
            if ledger in self.waiting_gangs:
                self._wake_gangs(ledger)
        self._gained_ledgers.clear()
        for ledger in list(self._ledgers_with_waiting_apps):
            if ledger.waiting_apps:
                self.wake_app(ledger)
            if not ledger.waiting_apps or ledger.is_full:  # (whatever makes room there calls :meth:`wake_app`)
                del self._ledgers_with_waiting_apps[ledger]
        for node_id in self._other_nodes:
            wait_point = self.required.get(node_id)
            for shape in list(wait_point or ()):
                for waitlist in list(wait_point.lists(shape)) if wait_point is not None else ():
                    waitlist.tried = False  # it may reserve the node at once
                    self._wake_list(waitlist)  # every list: its reason may change even if the node has no room
            if wait_point is not None and not wait_point:
                del self.required[node_id]
        self._other_nodes.clear()
        self.only_gained.clear()
        self.gained = []
        self.gained_reserved = []
        for node in self._gained_nodes:
            if node.index_key is not None:
                self.gained.append(node)
            elif node.reservations:
                self.gained_reserved.append(node)
            required = self.required.get(node.node_id)
            if required is not None:
                self._wake_shapes(required, required.fitting([node.available]))
        self._gained_nodes.clear()
        if self.gained:
            self._wake_for_nodes()
        moved, self.turns_moved = self.turns_moved, {}
        self._wake_shapes(self.turns, [shape for shape in moved if shape in self.turns])

    def _wake_for_nodes(self) -> None:
        self.found_no_node.intersection_update(self.no_node)  # other shapes may find room now
        if self.turns:
            self._wake_shapes(self.turns, self.turns.fitting([node.available for node in self.gained]))
        shapes = self.no_node.fitting([node.available for node in self.gained])
        for shape in shapes:
            if shape in self.found_no_node:
                self.found_no_node.discard(shape)
                if len(self.gained) <= GAINED_NODES_FEW:
                    self.only_gained.add(shape)
        self._wake_shapes(self.no_node, shapes)

    def _wake_shapes(self, wait_point: WaitPoint[Waitlist], shapes: Iterable[Shape]) -> None:
        for shape in shapes:
            for bench in wait_point.benches(shape):
                self.wake_queue(bench, wait_point)

    def wake_queue(self, bench: WaitQueue[Waitlist], wait_point: WaitPoint[Waitlist]) -> None:
        """Wakes the first of the lists that wait there for the same."""
        if bench.leaf.fair_apps:  # each allocation may change which one comes first
            for waitlist in list(bench.lists):
                self._wake_list(waitlist)
            return
        while (first := bench.first()) is not None:
            bench.moving = True
            first.relay = wait_point
            if self._wake_list(first):
                break
            first.relay = None  # (none of it can be tried now, so it can tell the rest nothing)
        else:
            return
        while (urgent := bench.urgent.first() if bench.urgent is not None else None) is not None:
            if self.parking.is_pressed(urgent, first, bench.pressing):
                return
            bench.pressing, urgent.relay = urgent, wait_point
            if self._wake_list(urgent):
                return
            urgent.relay = None

    def wake_shorter(self, bench: WaitQueue[Waitlist], most_ms: int, position: tuple[Any, ...]) -> bool:
        """Wakes the first list of the bench behind the place whose asks last for at most so long, if there is one."""
        while (first := bench.first_within(most_ms, position)) is not None:
            bench.moving = True
            first.relay = self.no_node
            if self._wake_list(first):
                if bench.urgent is not None:
                    urgent = bench.first_within(most_ms, position, urgent=True)
                    if urgent is not None and not self.parking.is_pressed(urgent, first, bench.pressing):
                        bench.pressing = urgent
                        self._wake_list(urgent)  # (without a relay: its refusal tells nothing of the first one)
                return True
            first.relay = None
        return False

    def _wake_list(self, waitlist: Waitlist) -> bool:
        waitlist.register(None)
        self._in_flight[waitlist] = None
        return self._wake_first(waitlist)

    def wake_next(self, group: AskGroup) -> None:
        """Wakes the next group of the list after the group was placed or removed."""
        waitlist = group.app.queue.waitlists.get(group.wait_key)
        if waitlist is not None and waitlist.wait_point is None:
            self._wake_first(waitlist)
            wait_point, waitlist.relay = waitlist.relay, None
            bench = wait_point.bench_of(waitlist) if wait_point is not None else None
            if bench is not None and wait_point is not None:
                self.wake_queue(bench, wait_point)

    def _wake_first(self, waitlist: Waitlist) -> bool:
        """Wakes the first group of the list that can be tried. Returns whether there is one."""
        while (group := first_open(waitlist.groups)) is not None:
            self.parking.unpark(waitlist, group)
            self.parking.awake[waitlist] = group
            self.make_ready(group)
            if not group.held and not group.app.taken:
                if waitlist.urgent:
                    self._wake_urgent(waitlist)
                return True
        return False

    def _wake_urgent(self, waitlist: Waitlist) -> None:
        """Wakes the most urgent group of a list whose first one is tried, unless one is tried that is as urgent."""
        while (group := first_open(waitlist.urgent)) is not None and not self.parking.is_pressed(waitlist, waitlist):
            self.parking.unpark(waitlist, group)
            self.parking.pressing[waitlist] = group
            self.make_ready(group)
            if not group.held and not group.app.taken:
                return

    def drop_idle_waitlists(self, out: Outcome, now_ns: int) -> None:
        """After a cycle: removes woken lists on which nothing waits any more."""
        for waitlist in self._in_flight:
            if waitlist.wait_point is None and not waitlist.groups and not waitlist.gone:
                self.forget_list(waitlist, out)
        self._in_flight.clear()
        # Groups that were not tried, as in a stopped queue, have no recorded reason. (Those in line will have one.)
        self._carried = {group: past for group, past in self._carried.items() if group.in_line and group.asks}
        for app in self._woken_apps:
            if app.waiting_at is None and (reason := app.reason) is not None:
                self.on_run_allowed(app, out, now_ns)
                app.past, app.reason = (app.past if app.reason is None else with_ended(app.past, reason, now_ns)), None
                out.mark_changed(app, self._state.name)
        self._woken_apps.clear()

    def on_run_allowed(self, app: Application, out: Outcome, now_ns: int) -> None:
        """Adds the event that a limit of running applications no longer stops the application, if one did."""
        held_by = MAXIMA.get(app.reason.code) if app.reason is not None else None
        if held_by is None:
            return
        app.past, app.reason = with_ended(app.past, app.reason, now_ns), None
        if not app.gone and app.state not in APP_TERMINAL:
            out.mark_changed(app, self._state.name)
            out.add_event(EventType.APP, EventChange.NONE, held_by.runnable, app.app_id, now_ns=now_ns)

    def park_app(self, app: Application, ledger: Ledger, out: Outcome, now_ns: int) -> None:
        """Lets the whole application wait at a ledger that allows no further running application."""
        reason = Reason(
            maximum_of(ledger),
            ledger.path,
            used=ledger.running_applications,
            limit=ledger.max_applications,
            who=ledger.who,
        )
        if not reason.same_as(app.reason):
            held_by = MAXIMA[reason.code]
            if app.reason is None or MAXIMA.get(app.reason.code) is not held_by:
                self.on_run_allowed(app, out, now_ns)
                out.add_event(EventType.APP, EventChange.NONE, held_by.cannot_run, app.app_id, now_ns=now_ns)
            whole_reasons.begin(app, reason, now_ns)
            out.mark_changed(app, self._state.name)
        self._wait(app, ledger, out, whole=False)
        self._wake_apps(app, but=ledger)
        self.wake_gangs_beside(app)

    def park_gang(self, app: Application, ledger: Ledger, reason: Reason, out: Outcome, now_ns: int) -> None:
        """Lets the whole application wait at a ledger without room for its whole gang."""
        if not reason.same_as(app.reason):
            self.on_run_allowed(app, out, now_ns)
            whole_reasons.begin(app, reason, now_ns)
            out.mark_changed(app, self._state.name)
        self._wait(app, ledger, out, whole=True)
        self._wake_apps(app)
        self.wake_gangs_beside(app)  # (Here, too: it may have been woken, and others have taken a part of the room.)

    def _wait(self, app: Application, ledger: Ledger, out: Outcome, *, whole: bool) -> None:
        app.waiting_at, app.waits_whole = ledger, whole
        app.waiting_key = key_of(app)
        self._app_lines.stand_in(app, ledger)
        # From now on its groups wait only for this. The application, or its groups, may be woken in another line.
        for group in list(app.groups.values()):
            if group.parked_key is None:
                self.wake_next(group)
                continue
            self.unpark(group, out)
            self.queue_ready(group)
        self.requeue_app(app)

    def _wake_apps(self, app: Application, but: Ledger | None = None) -> None:
        """Wakes the next applications in line, because the application does not start now."""
        for ledger in app.ledgers:
            if ledger.waiting_apps and ledger is not but:
                self.wake_app(ledger)

    def wake_gangs_beside(self, app: Application) -> None:
        """Wakes other gangs that wait for the same room: this one has started, or does not start now."""
        for ledger in app.bounds:
            if ledger in self.waiting_gangs:
                self._gained_ledgers[ledger] = None

    def _wake_gangs(self, ledger: Ledger) -> None:
        """Wakes the first gang of each leaf for which there is room. The next one follows when it has started."""
        for leaf, lines in list(self.waiting_gangs[ledger].items()):
            room = self._room_for(leaf, ledger)
            while (app := lines.first(room)) is not None:
                self._let_try(app)
                if app.ready:
                    break
            else:
                continue
            if (urgent := self._app_lines.more_urgent(app, ledger, room)) is not None:
                self._let_try(urgent)

    def _rekey_waiting(self, app: Application) -> None:
        """Updates the application's place in its line after its first group changed."""
        ledger, new = app.waiting_at, key_of(app)
        if ledger is not None and new != app.waiting_key:
            self._app_lines.stand_out(app, ledger)
            app.waiting_key = new
            self._app_lines.stand_in(app, ledger)

    def unpark_app(self, app: Application) -> None:
        assert app.waiting_at is not None
        self._app_lines.stand_out(app, app.waiting_at)
        app.waiting_at = None
        self._woken_apps[app] = None

    def _let_try(self, app: Application) -> None:
        self.unpark_app(app)
        self.requeue_app(app)

    def wake_app(self, ledger: Ledger) -> None:
        """The ledger allows one more running application: wakes the first one that has something to try."""
        while ledger.waiting_apps and not ledger.is_full:
            app: Application = ledger.waiting_apps.first()[-1]
            self._let_try(app)
            if app.ready:
                if ledger.waiting_apps:
                    self._ledgers_with_waiting_apps[ledger] = None  # until it runs, or another one does
                    if (urgent := self._app_lines.more_urgent(app, ledger)) is not None:
                        self._let_try(urgent)
                return

    def suspend(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """Before the rules change: takes everything in the queue out of the search until :meth:`restart`. Removes the
        lists at once, so that their tombstones come before the records of their successors.
        """
        for waitlist in list(queue.waitlists.values()):
            past = with_ended(waitlist.past, waitlist.reason, now_ns)
            for *_, group in list(waitlist.groups):
                self.parking.unpark(waitlist, group)
                self.carry_history(group, past)
            self.forget_list(waitlist, out)
        for app in self._state.apps_in(queue):
            if app.waiting_at is not None:
                self.unpark_app(app)
            app.ready_key = None
        queue.ready_apps.clear()
        if queue.fair_uses is not None:
            queue.fair_uses.clear_lines()
        queue.ready.clear()
        queue.ready_priorities.clear()
        queue.ready_key = None

    def restart(self, queue: Queue) -> None:
        """Makes everything pending in the queue ready, under the present rules."""
        for app in self._state.apps_in(queue):
            app.share = None
            for group in app.groups.values():
                if group.asks:
                    self.queue_ready(group)
            self.requeue_app(app)
