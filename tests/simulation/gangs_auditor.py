"""The auditor of gangs: hears what the core is told, sees what comes out, and believes nothing.

It is told of commands, facts and events only, keeps books of its own (``gangs_books.py``), and asks of each fact
whether it may be, and after each step whether all that must be was. What the core counts is compared with the books at
the end of each step, and only there is the core itself looked at.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from muster_scheduler.core.commands import (
    Command,
)
from muster_scheduler.core.outcome import (
    Change,
    Detail,
    Event,
    EventType,
    Fact,
    NewAllocation,
    ReleasedAllocation,
)
from muster_scheduler.core.scheduler import SchedulerCore
from simulation.event_sums import amounts_of
from simulation.gangs_books import (
    App,
    Ask,
    AuditFailure,
    Held,
    Limit,
    Node,
    covers,
    must,
    vector,
)
from simulation.gangs_deciding import Deciding, takes_place

_GONE = (
    Detail.ALLOC_CANCEL,
    Detail.ALLOC_PREEMPT,
    Detail.ALLOC_TIMEOUT,
    Detail.ALLOC_REPLACED,
    Detail.ALLOC_NODEREMOVED,
)


class Auditor(Deciding):
    """Audits one life."""

    def begin_again(self) -> None:
        super().begin_again()
        # By application, what its events add up to.
        self._events: dict[str, Counter[str]] = {}

    # ---- what happens ----------------------------------------------------------------------------------------------

    def heard(self, command: Command, facts: list[Fact], events: list[Event], now_ns: int) -> None:
        """A command was taken, and this came out."""
        self.now_ns = now_ns
        self._deciding = False
        for event in events:
            if event.detail is Detail.NODE_RESERVATION:
                self._reservation(event)
        self.hear(command, facts)
        self._take(facts)
        self.all_is_answered(command)
        self._check_owed(command)
        self._count_events(facts, events)

    def cycled(self, facts: list[Fact], events: list[Event], now_ns: int, budget: int) -> None:
        """A cycle was run, and this came out."""
        self.now_ns = now_ns
        self._deciding = True
        self._due = {}
        for app in self.books.apps.values():
            if app.deadline_ns and app.deadline_ns <= now_ns:
                self._due[app] = self._after_time_out(app)
                app.deadline_ns = 0
        self._kept_before = dict(self._kept)
        self._keeps = set(self._kept.items())
        moved = set()
        self._mismatched.clear()
        for event in events:
            if event.detail is Detail.NODE_RESERVATION:
                moved.add(event.object_id)
                self._keeps.add((event.object_id, event.reference_id))
                self._reservation(event)
            elif event.type is EventType.REQUEST and event.message.startswith("Task group"):
                self._mismatched.setdefault(event.object_id, []).append(vector(amounts_of(event)))
        for node_id in moved:
            self._kept_before.pop(node_id, None)
        self._preempted = {}
        self._take(facts)
        said = [key for key, left in self._mismatched.items() if left]
        must(not said, "mismatch", f"said of {said}, which do not go")
        made = sum(isinstance(fact, NewAllocation) for fact in facts)
        must(made <= budget, "budget", f"{made} allocations, where {budget} were allowed")
        self._check_preempted()
        self._check_due()
        self._count_events(facts, events)
        for app in self.books.apps.values():
            self._check_state(app)
            self._check_told(app)
        self.tally["allocations"] += made

    def _after_time_out(self, app: App) -> str:
        """What state the end of its placeholders' time brings it to; "": none. Its gang forms no more."""
        unused = app.phase != "USED" and not any(ask.leaving for ask in app.asks.values())
        if app.phase in ("WAITING", "FORMING") or (unused and app.phase == "FORMED"):
            app.phase = "OVER"
        waits = app.state in ("New", "Accepted")
        if unused and app.style.lower() == "hard" and (waits or (app.state == "Running" and app.whole)):
            return "Failing"
        return "Resuming" if unused and waits else ""

    def restarted(self) -> None:
        """The core is another one, folded from the records."""
        self.tally["restart"] += 1
        for app in self.books.apps.values():
            for held in app.held.values():
                if held.told:
                    self.tally[f"restart: while one is {held.told}"] += 1

    # ---- events ----------------------------------------------------------------------------------------------------

    def _reservation(self, event: Event) -> None:
        if event.change is Change.ADD:
            must(event.object_id not in self._kept, "reservation", f"{event}: {self._kept.get(event.object_id)} has it")
            self._kept[event.object_id] = event.reference_id
        else:
            must(self._kept.pop(event.object_id, "") == event.reference_id, "reservation", f"{event}: it has not")

    def _count_events(self, facts: list[Fact], events: list[Event]) -> None:
        """Events tell of each allocation once when it comes, and once when it goes."""
        touched = set()
        for event in events:
            if event.type is not EventType.APP:
                continue
            sums = self._events.setdefault(event.object_id, Counter())
            if event.detail is Detail.APP_ALLOC:
                sums["held"] += 1
            elif event.detail in _GONE:
                sums["held"] -= 1
                if event.detail is Detail.ALLOC_REPLACED:
                    sums["replaced"] += 1
            elif event.detail is Detail.REQUEST_TIMEOUT:
                sums["request timed out"] += 1
            else:
                continue
            touched.add(event.object_id)
        for fact in facts:
            if isinstance(fact, NewAllocation | ReleasedAllocation):
                touched.add(fact.allocation.app_id if isinstance(fact, NewAllocation) else fact.app_id)
        for app_id in touched:
            app = self.books.apps.get(app_id)
            held, said = len(app.held) if app is not None else 0, self._events.setdefault(app_id, Counter())["held"]
            must(held == said, "event sum", f"{app_id}: by events {said} are held, by the books {held}")
            if app is None:
                del self._events[app_id]

    # ---- nothing is left -------------------------------------------------------------------------------------------

    def nothing_is_left(self) -> None:
        """After a cycle that ran to its end: every ask, every limit, every placeholder, every node."""
        books = self.books
        for app in books.apps.values():
            if not app.asks or app.state == "Failing" or books.full(app):
                continue
            forming = app.whole and app.phase in ("WAITING", "FORMING")
            waits = app.whole and app.phase == "WAITING" and books.lacks_room(app)
            if waits:
                self.tally["gang: waits for room as a whole"] += 1
            seen: set[tuple[Any, ...]] = set()
            for ask in app.asks.values():
                if ask.open <= 0 or waits:
                    continue
                kind = (ask.wants, ask.task_group, ask.placeholder, ask.mismatched)
                if kind in seen and not self._kept:
                    continue
                seen.add(kind)
                if not ask.placeholder:
                    if forming:
                        self.tally["real asks wait: the gang forms"] += 1
                        continue
                    counts = app.groups.get(ask.task_group)
                    if counts is not None and not ask.mismatched:
                        free = app.free(ask.task_group)
                        if free:
                            self._check_stuck(ask, free)
                            continue
                        if counts.pending and app.awaits_placeholders:
                            continue
                if not books.over(app, ask.wants):
                    room = self._room(ask)
                    must(room is None, "left pending", f"{ask} fits on {room.node_id if room else ''}")

    def _check_stuck(self, ask: Ask, free: list[Held]) -> None:
        fits = [each for each in free if covers(each.wants, ask.wants)]
        must(bool(fits), "left pending", f"{ask} waits, and no placeholder of {free[:2]} is as large")
        takes = [each for each in fits if takes_place(each, ask)]
        must(not takes, "left pending", f"{ask} waits, and {takes[:1]} could give way")
        # (One node at a time is kept for an ask: with repeats, what leaves for it must be gone first. And those that
        # are alike wait together.)
        others = ask.app.asks.values()
        leaving = any(each.leaving for each in others if (each.wants, each.task_group) == (ask.wants, ask.task_group))
        room = self._room(ask) if not self._kept_by(ask) and not leaving else None
        must(room is None, "left pending", f"{ask} could go to {room.node_id if room else ''} for {fits[0]}")
        self.tally["stuck: no node for a real ask"] += 1

    def _room(self, ask: Ask) -> Node | None:
        for node in self.books.nodes.values():
            kept = self._kept.get(node.node_id)
            # (While placeholders leave for it, what is kept for it is kept for what comes in their place.)
            ours = kept is None or (kept == ask.key and not ask.leaving)
            if ours and node.schedulable and node.fits(ask.wants):
                return node
        return None

    # ---- counters --------------------------------------------------------------------------------------------------

    def compare(self, core: SchedulerCore) -> None:
        """What the core counts is what the books sum to."""
        partition = core.partitions["default"]
        names = partition.types.names
        places = [(number, {"vcore": 0, "memory": 1, "gpu": 2}[name]) for number, name in enumerate(names)]
        books = self.books

        def same(what: str, counted: list[int], known: Any) -> None:
            for number, place in places:
                if counted[number] != known[place]:
                    raise AuditFailure("counters", f"{what}: counted {counted}, in the books {known} ({names})")

        must(partition.nodes.keys() == books.nodes.keys(), "counters", "nodes")
        for node_id, node in partition.nodes.items():
            same(node_id, node.allocated, books.nodes[node_id].used)
        for path, queue in partition.queues.items():
            known = books.queues.get(path)
            if known is None:
                continue
            same(path, queue.allocated, known.used)
            same(f"{path} pending", queue.pending, known.pending)
            self._compare_promised(known, queue.promised, names)
            running = books.running_in(known)
            must(queue.running_applications == running, "counters", f"{path} runs {queue.running_applications}")
        for tracker in partition.limits:
            user = books.users.get((tracker.path, tracker.who), Limit(""))
            same(f"{tracker.who} in {tracker.path}", tracker.allocated, user.used)
            self._compare_promised(user, tracker.promised, names)
        for app_id, app in books.apps.items():
            self._compare_gang(app, partition.apps.get(app_id))
            self._compare_app(app, partition.apps[app_id])

    def _compare_promised(self, known: Limit, counted: dict[int, int], names: list[str]) -> None:
        promised = vector({names[number]: value for number, value in counted.items()})
        own = self.books.promised(known)
        must(promised == own, "promised", f"{known.name}: {promised} is promised, in the books {own}")

    def _compare_app(self, app: App, found: Any) -> None:
        must(str(found.state) == app.state, "counters", f"{app.app_id} is {found.state}, in the books {app.state}")
        must(len(found.allocations) == len(app.held), "counters", f"{app.app_id} holds {len(found.allocations)}")
        pending = {key: ask.pending for key, ask in app.asks.items()}
        counted = {key: ask.pending for key, ask in found.asks.items()}
        must(pending == counted, "counters", f"{app.app_id} pending {counted}, in the books {pending}")

    def _compare_gang(self, app: App, found: Any) -> None:
        if found is None:
            raise AuditFailure("counters", f"{app.app_id} is not there")
        gang = found.gang
        phase = str(gang.phase) if gang is not None else ""
        must(phase == app.phase, "counters", f"{app.app_id}: phase {phase}, in the books {app.phase}")
        if gang is None:
            return
        must(gang.deadline_ns == app.deadline_ns, "counters", f"{app.app_id}: {gang.deadline_ns}, {app.deadline_ns}")
        for name, counts in app.groups.items():
            group = gang.groups.get(name)
            if group is None:
                raise AuditFailure("counters", f"{app.app_id}: no task group {name}")
            counted = (group.asked, group.pending, group.held, group.replaced, group.timed_out, group.lost)
            known = (counts.asked, counts.pending, counts.held, counts.replaced, counts.timed_out, counts.lost)
            must(counted == known, "counters", f"{app.app_id} {name}: counted {counted}, in the books {known}")
            must(known[0] == sum(known[1:]), "books", f"{app.app_id} {name}: {counts}")

    # ---- the end ---------------------------------------------------------------------------------------------------

    def check_end(self, core: SchedulerCore) -> None:
        """Left alone, everything has come to its end, and nothing is counted any more."""
        books = self.books
        left = [
            f"{app.app_id} is {app.state}: {list(app.asks)[:2]} {list(app.held)[:2]}" for app in books.apps.values()
        ]
        must(not left, "end", f"left alone, {left[:3]}")
        books.check_sums()
        sums = [each.used for kind in (books.nodes, books.queues, books.users) for each in kind.values()]
        must(not any(map(any, sums)), "end", "something is used")
        self.compare(core)
        for queue in core.partitions["default"].queues.values():
            must(not any(queue.allocated) and not any(queue.pending), "end", f"{queue.path} counts")
            must(not queue.running_applications and not queue.promised, "end", f"{queue.path} counts {queue.promised}")
        for tracker in core.partitions["default"].limits:
            must(not tracker.promised, "end", f"{tracker.path}: {tracker.promised}")
