"""Who is ready, who is parked on what, and who is woken when.

Ready: an application's groups, a leaf's applications, a parent's queues, each in its order (``ordering.py``); the cycle
takes the first of the first of the first. Parked: what was found not to fit waits, by shape and leaf, on the thing
that said "no", and is looked at again only when that very thing gained:

* at a ledger (a queue, or a user or group in one), when an ask would take it over its limit (woken by a release there);
* at the nodes, when no node has room (woken by a node that gained room for this shape);
* at one node, when it is required (woken when that node gained);
* at a ledger's maximum of running applications (woken when one stops running);
* at a ledger without room for the whole of a gang (woken when there is, one by one).

Of the groups of one waitlist only the first is woken; each success wakes the next (``wake_next``). Of the lists of one
leaf that wait at one place for one shape only the first is woken, too (``places.py``). So a release in front of 100,000
waiting asks, or of 3,000 waiting users, costs as many looks as it makes allocations.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from muster_scheduler.core import ordering
from muster_scheduler.core.objects import Application, AskGroup, Ledger, Node, Queue, Tracker, Waitlist
from muster_scheduler.core.outcome import Change, Detail, EventType, Outcome
from muster_scheduler.core.past import PAST_KEPT, Past, begun, ended, followed
from muster_scheduler.core.places import Bench, GangLines, Place
from muster_scheduler.core.reasons import Reason, ReasonCode
from muster_scheduler.core.resources import Shape
from muster_scheduler.core.states import APP_TERMINAL, QueueState

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


class _HeldBy(NamedTuple):
    """How it is said that a maximum of applications holds an application back, and that it does no more."""

    cannot_run: Detail
    runnable: Detail


_BY_QUEUE = _HeldBy(Detail.APP_CANNOTRUN_QUEUE, Detail.APP_RUNNABLE_QUEUE)
_BY_QUOTA = _HeldBy(Detail.APP_CANNOTRUN_QUOTA, Detail.APP_RUNNABLE_QUOTA)
_MAXIMA = {
    ReasonCode.QUEUE_MAX_APPLICATIONS: _BY_QUEUE,
    ReasonCode.USER_MAX_APPLICATIONS: _BY_QUOTA,
    ReasonCode.GROUP_MAX_APPLICATIONS: _BY_QUOTA,
}

# So many nodes are looked through one by one; more are looked for in the index.
GAINED_NODES_FEW = 16


class Waiting:
    """The ready and the parked of one partition.

    :ivar no_node: the lists that wait for room on a node, by shape.
    :ivar required: the same, of those that must run on one node, by its id.
    :ivar gained_reserved: nodes with more room that are kept free for somebody.
    :ivar parked: the groups that were parked, or whose first ask is another one, since this was last emptied.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition.name
        self._telling = partition.telling
        self._room_for = partition.gangs.room_for
        self.no_node = Place()
        self.required: dict[str, Place] = {}
        self.gained_reserved: list[Node] = []
        self.parked: dict[AskGroup, None] = {}
        # Shapes that no node has room for: they need not look again. Never iterated where an order could show.
        self.found_no_node: set[Shape] = set()
        # Of those woken in this cycle: nothing but the nodes that gained can have room, when they are few.
        self.only_gained: set[Shape] = set()
        self.gained: list[Node] = []
        self._in_flight: dict[Waitlist, None] = {}
        self._woken_apps: dict[Application, None] = {}
        # Those that are not full, and who woke one of those who wait to run there.
        self._ledgers_with_waiting_apps: dict[Ledger, None] = {}
        self._gained_nodes: dict[Node, None] = {}
        self._other_nodes: dict[str, None] = {}
        # Of groups that left their lists, and are on another one soon: what they waited for.
        self._carried: dict[AskGroup, Past] = {}
        self._gained_ledgers: dict[Ledger, None] = {}

    # ---- what gained -----------------------------------------------------------------------------------------------

    def node_gained(self, node: Node) -> None:
        """The node has more room, or is there again."""
        self._gained_nodes[node] = None

    def node_came(self, node: Node) -> None:
        """The node is new: those that require it may be told something else, even if it has no room."""
        self._other_nodes[node.node_id] = None

    def node_gone(self, node: Node) -> None:
        """The node is no more."""
        self._gained_nodes.pop(node, None)
        self._other_nodes[node.node_id] = None

    def ledgers_gained(self, app: Application) -> None:
        """Something of the application was released."""
        for ledger in app.ledgers:
            if ledger.blocked or ledger.waiting_gangs:
                self._gained_ledgers[ledger] = None

    @property
    def nodes_gained(self) -> bool:
        """Some nodes have more room, or are there again."""
        return bool(self._gained_nodes)

    @property
    def stirred(self) -> bool:
        """Something gained that nobody was woken for yet."""
        return bool(self._gained_nodes or self._gained_ledgers or self._other_nodes)

    def stir(self, ledgers: Iterable[Ledger]) -> None:
        """Limits moved: whoever waits at the ledgers looks again."""
        for ledger in ledgers:
            if ledger.blocked or ledger.waiting_gangs:
                self._gained_ledgers[ledger] = None
            if ledger.waiting_apps:
                self._ledgers_with_waiting_apps[ledger] = None

    def resume(self, leaf: Queue) -> None:
        """After a fold: until the next cycle nobody is on the leaf's recorded lists, and nobody waits to run."""
        self._in_flight.update(dict.fromkeys(leaf.waitlists.values()))
        self._woken_apps.update((app, None) for app in leaf.applications.values() if app.reason is not None)

    # ---- ready, parked, woken --------------------------------------------------------------------------------------

    def make_ready(self, group: AskGroup) -> None:
        self.place_ready(group)
        self.refresh_app(group.app)

    def place_ready(self, group: AskGroup) -> None:
        """Puts the group among its application's ready ones, where its oldest ask belongs; unless its gang holds it."""
        gang = group.app.gang
        if gang is not None:
            group.held = gang.holds(group)
            if group.held:
                if group.ready_key is not None:  # it may have been the woken one of its list
                    self.unready(group)
                    self.wake_next(group)
                return
        head = group.head()
        assert head is not None, f"{group} has nothing to try"
        key = (-group.priority, head.created_ns, head.submission)
        if group.ready_key == key:
            return
        self.unready(group)
        group.ready_key = key
        insort(group.app.ready, (*key, group))

    def unready(self, group: AskGroup) -> None:
        if group.ready_key is None:
            return
        ready = group.app.ready
        place = bisect_left(ready, group.ready_key)
        assert ready[place][-1] is group, f"{group} is not where its key says"
        del ready[place]
        group.ready_key = None

    def refresh_app(self, app: Application) -> bool:
        """Puts the application where it belongs among its leaf's ready ones; says whether that was elsewhere."""
        leaf = app.queue
        if app.waiting_at is not None:
            self._rekey_waiting(app)
        old = app.ready_key
        in_queue = app.waiting_at is None and app.ready and leaf.state is not QueueState.STOPPED
        new = ordering.app_key(app) if in_queue else None
        if new == old:
            return False
        if old is not None:
            leaf.ready_apps.remove((*old, app))
        ordering.lend(leaf, old, new)
        app.ready_key = new
        if new is not None:
            leaf.ready_apps.add((*new, app))
        self.refresh(leaf)
        return True

    def refresh(self, queue: Queue) -> None:
        """Puts the queue and its ancestors where they belong among their parents' ready ones."""
        while queue.parent is not None:
            if queue.leaf:
                active = bool(queue.ready_apps) and queue.state is not QueueState.STOPPED
            else:
                active = bool(queue.ready) and queue.state is not QueueState.STOPPED
            # (A queue with nothing to try has no place; its ancestors' shares may have moved all the same.)
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
            del ready[bisect_left(ready, old)]
        if new is not None:
            insort(ready, (*new, queue))
        ordering.lend(parent, old, new)
        queue.ready_key = new

    def park(self, group: AskGroup, place: Place, reason: Reason, out: Outcome, now_ns: int) -> None:
        """The group waits: out of the ready ones, on the list of its shape, which is registered at ``place``."""
        app = group.app
        leaf = app.queue
        waitlist = leaf.waitlists.get(group.wait_key)
        if waitlist is None:
            leaf.waitlists[group.wait_key] = waitlist = Waitlist(leaf, group.wait_key)
            if self._carried:
                waitlist.past = self._carried.pop(group, ())
        self.unready(group)
        waitlist.park(group, self.wait_key(group))
        waitlist.register(place)
        self.parked[group] = None
        changed = self.note(waitlist, reason, out, now_ns)
        if self._telling.wanted:
            self._telling.parked(group, waitlist.reason)
        if waitlist.relay is not None:
            self._tell_bench(waitlist, place, reason if changed else None, out, now_ns)
        self.refresh_app(app)
        if not app.counted:
            self._wake_apps(app)
        if app.gang is not None and app.gang.waits_for_room:
            self.wake_gangs_beside(app)  # it does not take the room now

    def _tell_bench(self, waitlist: Waitlist, place: Place, other: Reason | None, out: Outcome, now_ns: int) -> None:
        """The list that was woken from its bench got a "no" (``other``: another one than before): what of the rest?"""
        came_from, waitlist.relay = waitlist.relay, None
        bench = came_from.bench_of(waitlist) if came_from is not None else None
        if bench is None or came_from is None:
            return
        if place is not came_from and place.own:
            self._wake_bench(bench, came_from)  # it concerns the list only
            return
        # The leaf, or the nodes, say the same to all.
        bench.moving = False
        if place is came_from and other is None:
            return
        for waiting in list(bench.lists):
            if place is not came_from:
                waiting.register(place)
                self.parked[waiting.groups[0][-1]] = None
            if other is not None:
                self.note(waiting, other, out, now_ns)

    def join(self, group: AskGroup, waitlist: Waitlist) -> None:
        """What holds the others of the list holds this group too: it waits without having been tried."""
        waitlist.park(group, self.wait_key(group))
        self.parked[group] = None
        if self._telling.wanted:
            self._telling.parked(group, waitlist.reason)

    def next_in_line(self, group: AskGroup) -> None:
        """A parked group has perhaps another first ask: another place on its list, and rights of its own."""
        if group.parked_key is not None:
            waitlist = group.app.queue.waitlists[group.wait_key]
            waitlist.unpark(group)
            waitlist.park(group, self.wait_key(group))
            waitlist.tried = False
            self.parked[group] = None
            self._hurry(waitlist)

    def leave_list(self, group: AskGroup, out: Outcome) -> None:
        """A parked group waits no more; who is the first now may have waited as long."""
        waitlist = group.app.queue.waitlists[group.wait_key]
        was_first = waitlist.groups[0][-1] is group
        waitlist.unpark(group)
        if not waitlist.groups:
            if waitlist.place is not None:
                self.forget_list(waitlist, out)
        elif was_first:
            self.next_in_line(waitlist.groups[0][-1])

    def later_now(self, group: AskGroup) -> None:
        """A group that is being tried has a later first ask than before: others of its list may come before it now."""
        waitlist = group.app.queue.waitlists.get(group.wait_key)
        if waitlist is not None and waitlist.groups:
            self._hurry(waitlist)

    def _hurry(self, waitlist: Waitlist) -> None:
        """Its first may have come before one that is being tried: it must not wait behind it."""
        if waitlist.bench is not None:
            if waitlist.bench.moving:
                self._wake_list(waitlist)
            return
        awake = waitlist.awake
        tried = awake is not None and awake.ready_key is not None and awake.head() is not None
        if awake is not None and tried and waitlist.groups and waitlist.groups[0][:-1] < self.wait_key(awake):
            self._wake_first(waitlist)

    def note(self, waitlist: Waitlist, reason: Reason, out: Outcome, now_ns: int) -> bool:
        """Why the list waits. The same "no" again changes nothing: its figures are those of the first time.

        Says whether it is another one.
        """
        if reason.same_as(waitlist.reason):
            return False
        waitlist.past, waitlist.reason = followed(waitlist.past, waitlist.reason, reason, now_ns)
        out.touch(waitlist, self._partition)
        if self._telling.wanted:
            self._telling.reason_changed(waitlist)
        return True

    def carry(self, group: AskGroup, past: Past) -> None:
        """The group is going to be on a new list: it has waited for this before."""
        if past:
            self._carried[group] = past

    @staticmethod
    def past_of(group: AskGroup, now_ns: int) -> Past:
        """What the group has waited for on its list, up to now; empty: it is on none, or was for moments only."""
        waitlist = group.app.queue.waitlists.get(group.wait_key)
        return ended(waitlist.past, waitlist.reason, now_ns) if waitlist is not None else ()

    def required_place(self, node_id: str) -> Place:
        """Where those wait that must run on the node."""
        return self.required.setdefault(node_id, Place())

    def forget_list(self, waitlist: Waitlist, out: Outcome) -> None:
        """Nobody waits on the list any more."""
        waitlist.register(None)
        del waitlist.leaf.waitlists[waitlist.key]
        waitlist.gone = True
        self.found_no_node.discard(waitlist.shape)  # so that shapes of the past are not kept, nor nodes that never came
        if not self.required.get(waitlist.required_node, True):
            del self.required[waitlist.required_node]
        out.touch(waitlist, self._partition)

    def forget_lists(self, leaf: Queue, out: Outcome) -> None:
        """The leaf goes, and with it the lists that were in flight."""
        for waitlist in list(leaf.waitlists.values()):
            self.forget_list(waitlist, out)

    def forget_those_of(self, leaf: Queue, trackers: tuple[Tracker, ...], out: Outcome) -> None:
        """Somebody under these limits left: lists in flight on which nobody is left, who could be, go at once.

        (Before the limits' ledgers do, without which a follower does not know whom such a list is about.)
        """
        idle = [
            waitlist
            for waitlist in self._in_flight
            if waitlist.leaf is leaf and waitlist.trackers == trackers and not waitlist.groups and not waitlist.gone
        ]
        if idle and all(app.trackers != trackers for app in leaf.applications.values()):
            for waitlist in idle:
                self.forget_list(waitlist, out)

    def wait_key(self, group: AskGroup) -> tuple[Any, ...]:
        head = group.head()
        assert head is not None, f"{group} has nothing that could wait"
        return ordering.group_key(group, head)

    def rekey(self, app: Application) -> None:
        """Its share or its age is another: so is the place of its groups on their lists, parked or just woken."""
        leaf = app.queue
        if not leaf.waitlists:
            return
        for group in app.groups.values() if app.parked else ():
            if group.parked_key is not None and group.head() is not None:
                waitlist = leaf.waitlists[group.wait_key]
                waitlist.unpark(group)
                waitlist.park(group, self.wait_key(group))
                self._hurry(waitlist)
        for *_, group in list(app.ready):
            if app.gang is not None and app.gang.gives_way_to(group):
                continue  # it was not woken: a placeholder is there for it
            woken = leaf.waitlists.get(group.wait_key)
            if woken is None or woken.place is not None or not woken.groups or group.head() is None:
                continue
            key = self.wait_key(group)
            if woken.groups[0][:-1] < key:  # another one is first in line now
                self.unready(group)
                woken.park(group, key)
                self._wake_first(woken)

    def wake(self) -> None:
        """Those who wait for what has gained since the last time are tried again."""
        for ledger in self._gained_ledgers:
            room = [most - used for most, used in zip(ledger.limit, ledger.allocated, strict=True)]
            self._wake_shapes(ledger.blocked, ledger.blocked.fitting([room]))
            if ledger.waiting_gangs:
                self._wake_gangs(ledger)
        self._gained_ledgers.clear()
        for ledger in list(self._ledgers_with_waiting_apps):
            if ledger.waiting_apps:
                self.wake_app(ledger)
            if not ledger.waiting_apps or ledger.is_full:  # who makes room there tells it (`wake_app`)
                del self._ledgers_with_waiting_apps[ledger]
        for node_id in self._other_nodes:
            place = self.required.get(node_id)
            for shape in list(place or ()):
                for waitlist in list(place.lists(shape)) if place is not None else ():
                    waitlist.tried = False  # they may have the node kept free at once
                    self._wake_list(waitlist)  # each: they may be told something else, even if it has no room
            if place is not None and not place:
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

    def _wake_for_nodes(self) -> None:
        self.found_no_node.intersection_update(self.no_node)  # others may find room now
        shapes = self.no_node.fitting([node.available for node in self.gained])
        for shape in shapes:
            if shape in self.found_no_node:
                self.found_no_node.discard(shape)
                if len(self.gained) <= GAINED_NODES_FEW:
                    self.only_gained.add(shape)
        self._wake_shapes(self.no_node, shapes)

    def _wake_shapes(self, place: Place, shapes: Iterable[Shape]) -> None:
        for shape in shapes:
            for bench in place.benches(shape):
                self._wake_bench(bench, place)

    def _wake_bench(self, bench: Bench, place: Place) -> None:
        """The first of those who wait there for the same is tried."""
        if bench.leaf.fair_apps:  # who comes first there may change with each allocation
            for waitlist in list(bench.lists):
                self._wake_list(waitlist)
            return
        first = bench.first()
        if first is not None:
            bench.moving = True
            first.relay = place
            self._wake_list(first)

    def _wake_list(self, waitlist: Waitlist) -> None:
        waitlist.register(None)
        self._in_flight[waitlist] = None
        self._wake_first(waitlist)

    def wake_next(self, group: AskGroup) -> None:
        """The group went its way: the next one of its list may follow."""
        waitlist = group.app.queue.waitlists.get(group.wait_key)
        if waitlist is not None and waitlist.place is None:
            self._wake_first(waitlist)
            place, waitlist.relay = waitlist.relay, None
            bench = place.bench_of(waitlist) if place is not None else None
            if bench is not None and place is not None:
                self._wake_bench(bench, place)

    def _wake_first(self, waitlist: Waitlist) -> None:
        while True:
            for *_, group in waitlist.groups:
                if group.head() is not None:  # else its last ask was placed just now, and it goes
                    break
            else:
                return
            waitlist.unpark(group)
            waitlist.awake = group
            self.make_ready(group)
            if not group.held:
                return

    def land(self, out: Outcome, now_ns: int) -> None:
        """After a cycle: lists that are still in flight and empty have nobody left who waits."""
        for waitlist in self._in_flight:
            if waitlist.place is None and not waitlist.groups and not waitlist.gone:
                self.forget_list(waitlist, out)
        self._in_flight.clear()
        self._carried.clear()  # (who was not tried, as in a stopped queue, is not waited for: it is not recorded)
        for app in self._woken_apps:
            if app.waiting_at is None and app.reason is not None:
                self.may_run(app, out, now_ns)
                app.past, app.reason = ended(app.past, app.reason, now_ns), None
                out.touch(app, self._partition)
        self._woken_apps.clear()

    def may_run(self, app: Application, out: Outcome, now_ns: int) -> None:
        """If a maximum of applications held it back, it does no more, and that is said: before what follows from it."""
        held_by = _MAXIMA.get(app.reason.code) if app.reason is not None else None
        if held_by is None:
            return
        app.past, app.reason = ended(app.past, app.reason, now_ns), None
        if not app.gone and app.state not in APP_TERMINAL:
            out.touch(app, self._partition)
            out.track(EventType.APP, Change.NONE, held_by.runnable, app.app_id, now_ns=now_ns)

    def wait_to_run(self, app: Application, ledger: Ledger, out: Outcome, now_ns: int) -> None:
        """The ledger runs as many applications as it may: the application as a whole waits there."""
        reason = Reason(
            _full(ledger),
            ledger.path,
            used=ledger.running_applications,
            limit=ledger.max_applications,
            who=ledger.who,
        )
        if not reason.same_as(app.reason):
            held_by = _MAXIMA[reason.code]
            if app.reason is None or _MAXIMA.get(app.reason.code) is not held_by:
                self.may_run(app, out, now_ns)
                out.track(EventType.APP, Change.NONE, held_by.cannot_run, app.app_id, now_ns=now_ns)
            self._begin(app, reason, now_ns)
            out.touch(app, self._partition)
        self._wait(app, ledger, out, whole=False)
        self._wake_apps(app, but=ledger)
        self.wake_gangs_beside(app)

    def wait_for_room(self, app: Application, ledger: Ledger, reason: Reason, out: Outcome, now_ns: int) -> None:
        """The ledger has no room for the whole of the application's gang: the application as a whole waits there."""
        if not reason.same_as(app.reason):
            self.may_run(app, out, now_ns)
            self._begin(app, reason, now_ns)
            out.touch(app, self._partition)
        self._wait(app, ledger, out, whole=True)
        self._wake_apps(app)
        self.wake_gangs_beside(app)  # (here too: it may have been woken, and others have taken a part of the room)

    @staticmethod
    def _begin(app: Application, reason: Reason, now_ns: int) -> None:
        """The application as a whole waits for this from now on; what its asks waited for alone is its past now."""
        if app.reason is not None:
            app.past, app.reason = followed(app.past, app.reason, reason, now_ns)
            return
        app.past, app.reason = begun(app.past, reason, now_ns)
        found = list(app.past)
        known = {(each.shape, each.reason.since_ns, each.until_ns) for each in found}
        for group in app.groups.values():
            waitlist = app.queue.waitlists.get(group.wait_key)
            head = group.head()
            if waitlist is not None and head is not None:
                for each in ended(waitlist.past, waitlist.reason, now_ns):
                    about = (group.shape, each.reason.since_ns, each.until_ns)
                    if each.until_ns > head.created_ns and about not in known:
                        known.add(about)
                        found.append(each._replace(shape=group.shape))
        if len(found) > len(app.past):
            found.sort(key=lambda each: each.until_ns)
            app.past = tuple(found[-PAST_KEPT:])

    def _wait(self, app: Application, ledger: Ledger, out: Outcome, *, whole: bool) -> None:
        app.waiting_at, app.waits_whole = ledger, whole
        app.waiting_key = self._waiting_key(app)
        self._stand_in(app, ledger)
        # Nothing of it waits for anything else now. It, or its groups, may have been the woken ones of another line.
        for group in list(app.groups.values()):
            if group.parked_key is None:
                self.wake_next(group)
                continue
            self.leave_list(group, out)
            self.place_ready(group)
        self.refresh_app(app)

    def _wake_apps(self, app: Application, but: Ledger | None = None) -> None:
        """The application does not start now: perhaps others do that wait for the same."""
        for ledger in app.ledgers:
            if ledger.waiting_apps and ledger is not but:
                self.wake_app(ledger)

    def wake_gangs_beside(self, app: Application) -> None:
        """Perhaps other gangs may start now that wait for the same room: this one has, or does not now."""
        for ledger in app.bounds:
            if ledger.waiting_gangs:
                self._gained_ledgers[ledger] = None

    def _wake_gangs(self, ledger: Ledger) -> None:
        """Of each leaf the first gang for which there is room is tried; when it has started, the next one."""
        for leaf, lines in list(ledger.waiting_gangs.items()):
            room = self._room_for(leaf, ledger)
            while (app := lines.first(room)) is not None:
                self.stop_waiting(app)
                self.refresh_app(app)
                if app.ready:
                    break

    @staticmethod
    def _stand_in(app: Application, ledger: Ledger) -> None:
        """Puts the application into its line at the ledger."""
        if not app.waits_whole:
            ledger.waiting_apps.add((*app.waiting_key, app))
            return
        lines = ledger.waiting_gangs.get(app.queue)
        if lines is None:
            lines = ledger.waiting_gangs[app.queue] = GangLines()
        lines.add(_total(app), app.waiting_key, app)

    @staticmethod
    def _stand_out(app: Application, ledger: Ledger) -> None:
        """Takes it out of there."""
        if not app.waits_whole:
            ledger.waiting_apps.remove((*app.waiting_key, app))
            return
        lines = ledger.waiting_gangs[app.queue]
        lines.remove(_total(app), app.waiting_key, app)
        if not lines:
            del ledger.waiting_gangs[app.queue]

    def _waiting_key(self, app: Application) -> tuple[int, int, int]:
        priority = app.ready[0][0] if app.ready and app.queue.priority_first else 0
        return (priority, app.submitted_ns, app.submission)

    def _rekey_waiting(self, app: Application) -> None:
        """It has another first group now: perhaps another place among those that wait to run."""
        ledger, new = app.waiting_at, self._waiting_key(app)
        if ledger is not None and new != app.waiting_key:
            self._stand_out(app, ledger)
            app.waiting_key = new
            self._stand_in(app, ledger)

    def stop_waiting(self, app: Application) -> None:
        assert app.waiting_at is not None
        self._stand_out(app, app.waiting_at)
        app.waiting_at = None
        self._woken_apps[app] = None

    def wake_app(self, ledger: Ledger) -> None:
        """The ledger may run one more: the first that waits is tried, if it has anything to try."""
        while ledger.waiting_apps and not ledger.is_full:
            app: Application = ledger.waiting_apps[0][-1]
            self.stop_waiting(app)
            self.refresh_app(app)
            if app.ready:
                if ledger.waiting_apps:
                    self._ledgers_with_waiting_apps[ledger] = None  # until it runs, or another one does
                return

    def suspend(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """The rules change: nobody in the queue is ready, and nobody waits, until :meth:`restart`.

        The lists go at once, so that their tombstones come before the records of those that take their places.
        """
        for waitlist in list(queue.waitlists.values()):
            past = ended(waitlist.past, waitlist.reason, now_ns)
            for *_, group in list(waitlist.groups):
                waitlist.unpark(group)
                self.carry(group, past)
            self.forget_list(waitlist, out)
        for app in queue.applications.values():
            if app.waiting_at is not None:
                self.stop_waiting(app)
            if app.ready_key is not None:
                queue.ready_apps.remove((*app.ready_key, app))
                app.ready_key = None
        queue.ready.clear()
        queue.lent.clear()
        queue.ready_key = None

    def restart(self, queue: Queue) -> None:
        """All that is pending in the queue is tried, under the rules of now."""
        for app in queue.applications.values():
            app.share = None
            for group in app.groups.values():
                if group.asks:
                    self.place_ready(group)
            self.refresh_app(app)


def _total(app: Application) -> Shape:
    """What the application's gang needs as a whole."""
    assert app.gang is not None, f"{app} has no gang"
    assert app.gang.total is not None, f"{app.gang} starts as it comes"
    return app.gang.total


def _full(ledger: Ledger) -> ReasonCode:
    if not isinstance(ledger, Tracker):
        return ReasonCode.QUEUE_MAX_APPLICATIONS
    return ReasonCode.GROUP_MAX_APPLICATIONS if ledger.group else ReasonCode.USER_MAX_APPLICATIONS
