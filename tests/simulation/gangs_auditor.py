"""The auditor of gangs: hears what the core is told, sees what comes out, and believes nothing.

It is told of commands, facts and events only, keeps books of its own (``gangs_books.py``), and asks of each fact
whether it may be, and after each step whether all that must be was. What the core counts is compared with the books at
the end of each step, and only there is the core itself looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from muster_core.model.commands import Command
from muster_core.model.outcome import (
    Event,
    EventChange,
    EventDetail,
    EventType,
    Fact,
    NewAllocation,
    Outcome,
)
from muster_core.scheduler import SchedulerCore
from muster_state.state_folder import RmInfo
from simulation.auditor import RecordBooks
from simulation.books import (
    AuditFailure,
    BookedAllocation,
    BookedApp,
    BookedAsk,
    BookedNode,
    Bound,
    Document,
    covers,
    must,
    positive,
)
from simulation.event_sums import EventSums, amounts_of
from simulation.gangs_deciding import Deciding, takes_place
from simulation.hearing_asks import unreserve
from simulation.preempting_laws import Preemptions
from simulation.records import MESSAGES
from simulation.run import Run

# So many steps between two looks: at what is left to do, and at the books' own sums.
LEFT_EVERY, SUMS_EVERY = 3, 16


class Auditor(Deciding, RecordBooks):
    """Audits one life.

    :ivar often: look at everything after each step.
    """

    often = False

    def begin_again(self) -> None:
        super().begin_again()
        self._sums = EventSums()
        self.records = {kind: {} for kind in MESSAGES}

    # ---- what happens ----------------------------------------------------------------------------------------------

    def registers(self, run: Run) -> None:
        self.begin_again()

    def began(self, run: Run, out: Outcome) -> None:
        for event in out.events:
            self._sums.take(event)

    def hears(self, run: Run, command: Command, offered: Document | None) -> None:
        self.offered = offered

    def taken(self, run: Run, command: Command, facts: list[Fact], events: list[Event]) -> None:
        self.now_ns = run.now_ns
        self._in_cycle = False
        for event in events:
            if event.detail is EventDetail.NODE_RESERVATION:
                self._reservation(event)
        self.hear(command, facts, run.now_ns)
        self._check_owed(command)
        for event in events:
            self._book_reservation(event)
            self._sums.take(event)

    def decided(self, run: Run, facts: list[Fact], events: list[Event], budget: int) -> None:
        self._cycled(facts, events, run.now_ns, budget)
        self.compare(run.core)
        if run.core.exhausted and (self.often or len(run.steps) % LEFT_EVERY == 0):
            self.nothing_is_left()
        if self.often or len(run.steps) % SUMS_EVERY == 0:
            self.default.check_sums()
            self._sums.compare(self.books)
            self.compare_records(self.books.values(), run.now_ns)

    def _cycled(self, facts: list[Fact], events: list[Event], now_ns: int, budget: int) -> None:
        self.now_ns = now_ns
        self._in_cycle = True
        self._due = {}
        for app in self.default.apps.values():
            if app.gang.deadline_ns and app.gang.deadline_ns <= now_ns:
                self._due[app] = self._after_time_out(app)
                app.gang.deadline_ns, app.gang.too_large = 0, False
        self._kept_before = dict(self._kept)
        self._keeps = set(self._kept.items())
        moved = set()
        self._mismatched.clear()
        for event in events:
            if event.detail is EventDetail.NODE_RESERVATION:
                moved.add(event.object_id)
                self._keeps.add((event.object_id, event.reference_id))
                self._reservation(event)
                self._book_reservation(event)
            elif event.type is EventType.REQUEST and event.message.startswith("Task group"):
                self._mismatched.setdefault(event.object_id, []).append(positive(amounts_of(event)))
        for node_id in moved:
            self._kept_before.pop(node_id, None)
        self._preempted = {}
        self.preemptions = Preemptions(self, self.records, now_ns)
        self._take_facts(facts)
        said = [key for key, left in self._mismatched.items() if left]
        must(not said, "mismatch", f"said of {said}, which do not go")
        made = sum(isinstance(fact, NewAllocation) for fact in facts)
        must(made <= budget, "budget", f"{made} allocations, where {budget} were allowed")
        self._check_preempted()
        self.preemptions.finish()
        self._check_due()
        for event in events:
            self._sums.take(event)
        self._sums.compare_used(self.books)
        for app in self.default.apps.values():
            self._check_state(app)
            self._check_told(app)
        self.tally["allocations"] += made

    def _after_time_out(self, app: BookedApp) -> str:
        """The application's state after its placeholders' time-out; "": unchanged. The gang's phase is over."""
        unused = app.gang.phase != "USED" and not any(ask.leaving for ask in app.asks.values())
        if app.gang.phase in ("WAITING", "FORMING") or (unused and app.gang.phase == "FORMED"):
            app.gang.phase = "OVER"
        waits = app.state in ("New", "Accepted")
        if (
            unused
            and app.gang.style.lower() == "hard"
            and (waits or (app.state == "Running" and self.default.whole(app)))
        ):
            return "Failing"
        return "Resuming" if unused and waits else ""

    def restarted(self, run: Run, info: RmInfo) -> None:
        self.compare(run.core)
        self.tally["restart"] += 1
        for app in self.default.apps.values():
            for held in app.held.values():
                if held.told:
                    self.tally[f"restart: while one is {held.told}"] += 1

    # ---- events ----------------------------------------------------------------------------------------------------

    def _reservation(self, event: Event) -> None:
        if event.change is EventChange.ADD:
            must(event.object_id not in self._kept, "reservation", f"{event}: {self._kept.get(event.object_id)} has it")
            self._kept[event.object_id] = event.reference_id
        else:
            must(self._kept.pop(event.object_id, "") == event.reference_id, "reservation", f"{event}: it has not")

    def _book_reservation(self, event: Event) -> None:
        if event.detail is not EventDetail.NODE_RESERVATION:
            return
        asks = [app.asks[event.reference_id] for app in self.default.apps.values() if event.reference_id in app.asks]
        node = self.default.nodes.get(event.object_id)
        for ask in asks:
            if event.change is EventChange.REMOVE:
                unreserve(ask)
            elif node is not None:
                ask.reserved, ask.reserved_ns = node, self.now_ns
                node.reservations.append(ask)

    # ---- nothing is left -------------------------------------------------------------------------------------------

    def nothing_is_left(self) -> None:
        """After a cycle that ran to its end: every ask, every limit, every placeholder, every node."""
        books = self.default
        for app in books.apps.values():
            if not app.asks or app.state == "Failing" or books.full(app):
                continue
            forming = self.default.whole(app) and app.is_forming
            waits = forming and app.gang.phase == "WAITING" and books.lacks_room(app)
            if waits:
                self.tally["gang: waits for room as a whole"] += 1
            seen: set[tuple[Any, ...]] = set()
            for ask in app.asks.values():
                if ask.open <= 0 or waits:
                    continue
                kind = (tuple(ask.wants.items()), ask.task_group, ask.placeholder, ask.mismatched)
                if kind in seen and not self._kept:
                    continue
                seen.add(kind)
                if not ask.placeholder:
                    if forming:
                        self.tally["real asks wait: the gang forms"] += 1
                        continue
                    counts = app.gang.groups.get(ask.task_group)
                    if counts is not None and not ask.mismatched:
                        free = app.free(ask.task_group)
                        if free:
                            self._check_stuck(ask, free)
                            continue
                        if app.pending(ask.task_group) and self.default.awaits_placeholders(app):
                            continue
                if not books.over(app, ask.wants):
                    room = self._room(ask)
                    must(room is None, "left pending", f"{ask} fits on {room.node_id if room else ''}")

    def _check_stuck(self, ask: BookedAsk, free: list[BookedAllocation]) -> None:
        fits = [each for each in free if covers(each.wants, ask.wants)]
        must(bool(fits), "left pending", f"{ask} waits, and no placeholder of {free[:2]} is as large")
        takes = [each for each in fits if takes_place(self.default, each, ask)]
        must(not takes, "left pending", f"{ask} waits, and {takes[:1]} could give way")
        # (One node at a time is kept for an ask: with repeats, what leaves for it must be gone first. And those that
        # are alike wait together.)
        others = ask.app.asks.values()
        leaving = any(each.leaving for each in others if (each.wants, each.task_group) == (ask.wants, ask.task_group))
        room = self._room(ask) if not self._kept_by(ask) and not leaving else None
        must(room is None, "left pending", f"{ask} could go to {room.node_id if room else ''} for {fits[0]}")
        self.tally["stuck: no node for a real ask"] += 1

    def _room(self, ask: BookedAsk) -> BookedNode | None:
        for node in self.default.nodes.values():
            kept = self._kept.get(node.node_id)
            # (While placeholders leave for it, what is kept for it is kept for what comes in their place.)
            ours = kept is None or (kept == ask.key and not ask.leaving)
            if ours and node.schedulable and node.has_room(ask.wants):
                return node
        return None

    # ---- counters --------------------------------------------------------------------------------------------------

    def compare(self, core: SchedulerCore) -> None:
        """Fails unless the core's counters equal the books."""
        partition = core.partitions["default"]
        names = partition.types.names
        books = self.default

        def same(what: str, counted: Iterable[int], known: Mapping[str, int]) -> None:
            for name, value in zip(names, counted, strict=False):
                must(
                    value == known.get(name, 0),
                    "counters",
                    f"{what}: counted {counted}, in the books {known} ({names})",
                )

        def same_promised(bound: Bound, counted: dict[int, int]) -> None:
            promised = {names[number]: value for number, value in counted.items() if value}
            own = books.promised(bound)
            must(promised == +own, "promised", f"{bound}: {promised} is promised, in the books {own}")

        must(partition.nodes.keys() == books.nodes.keys(), "counters", "nodes")
        for node_id, node in partition.nodes.items():
            same(node_id, node.allocated, books.nodes[node_id].used)
        for path, queue in partition.queues.items():
            if path not in books.queues:
                continue
            bound = books.queue_bound(path)
            same(path, queue.allocated, books.used_at(bound))
            same(f"{path} pending", queue.pending, books.pending_below(path))
            same_promised(bound, queue.promised)
            running = books.running_in(path)
            must(queue.running_applications == running, "counters", f"{path} runs {queue.running_applications}")
        for tracker in partition.limits:
            bound = Bound("user", tracker.who, tracker.path, {}, 0)
            same(f"{tracker.who} in {tracker.path}", tracker.allocated, books.used_at(bound))
            same_promised(bound, tracker.promised)
        for app_id, app in books.apps.items():
            self._compare_gang(app, partition.apps.get(app_id))
            self._compare_app(app, partition.apps[app_id])

    def _compare_app(self, app: BookedApp, found: Any) -> None:
        must(str(found.state) == app.state, "counters", f"{app.app_id} is {found.state}, in the books {app.state}")
        must(len(found.allocations) == len(app.held), "counters", f"{app.app_id} holds {len(found.allocations)}")
        pending = {key: ask.pending for key, ask in app.asks.items()}
        counted = {key: ask.pending for key, ask in found.asks.items()}
        must(pending == counted, "counters", f"{app.app_id} pending {counted}, in the books {pending}")

    def _compare_gang(self, app: BookedApp, found: Any) -> None:
        if found is None:
            raise AuditFailure("counters", f"{app.app_id} is not there")
        gang = found.gang
        phase = str(gang.phase) if gang is not None else ""
        must(phase == app.gang.phase, "counters", f"{app.app_id}: phase {phase}, in the books {app.gang.phase}")
        if gang is None:
            return
        must(
            gang.deadline_ns == app.gang.deadline_ns,
            "counters",
            f"{app.app_id}: {gang.deadline_ns}, {app.gang.deadline_ns}",
        )
        for name, counts in app.gang.groups.items():
            group = gang.groups.get(name)
            if group is None:
                raise AuditFailure("counters", f"{app.app_id}: no task group {name}")
            counted = (group.asked, group.pending, group.held, group.replaced, group.timed_out, group.lost)
            pending, held = app.pending(name), len(app.placeholders(name))
            known = (counts.asked, pending, held, counts.replaced, counts.timed_out, counts.lost)
            must(counted == known, "counters", f"{app.app_id} {name}: counted {counted}, in the books {known}")
            must(known[0] == sum(known[1:]), "books", f"{app.app_id} {name}: {counts}")

    # ---- the end ---------------------------------------------------------------------------------------------------

    def over(self, run: Run) -> None:
        """Fails unless everything has ended and all counters are zero."""
        books, core = self.default, run.core
        left = [
            f"{app.app_id} is {app.state}: {list(app.asks)[:2]} {list(app.held)[:2]}" for app in books.apps.values()
        ]
        must(not left, "end", f"left alone, {left[:3]}")
        books.check_sums()
        used = [each.used for each in books.nodes.values()]
        sums = [*used, *books.queue_used.values(), *books.user_used.values()]
        must(not any(map(any, (each.values() for each in sums))), "end", "something is used")
        self.compare(core)
        for queue in core.partitions["default"].queues.values():
            must(not any(queue.allocated) and not any(queue.pending), "end", f"{queue.path} counts")
            must(not queue.running_applications and not queue.promised, "end", f"{queue.path} counts {queue.promised}")
        for tracker in core.partitions["default"].limits:
            must(not tracker.promised, "end", f"{tracker.path}: {tracker.promised}")
