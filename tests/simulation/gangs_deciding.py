"""Whether what was decided about gangs was right: fact by fact, each against the books of that very moment."""

from __future__ import annotations

from muster_core.model.application import Allocation
from muster_core.model.commands import Command, Termination, UpdateNodes
from muster_core.model.outcome import (
    Fact,
    NewAllocation,
    ReleasedAllocation,
    ReleasedAsk,
    ScaleUpHint,
    UpdatedApplication,
)
from simulation import claims_laws
from simulation.books import (
    Amounts,
    AuditFailure,
    BookedAllocation,
    BookedApp,
    BookedAsk,
    BookedNode,
    covers,
    must,
)
from simulation.deciding import allocation_of, find_held
from simulation.hearing import Hearing
from simulation.hearing_asks import REMINDER_NS, TOLD, remove_ask
from simulation.partition_books import Books
from simulation.preempting_laws import Preemptions

# (state, next state): what an application may go through.
STATES = {
    ("New", "Accepted"),
    ("New", "Resuming"),
    ("New", "Failing"),
    ("Accepted", "Running"),
    ("Accepted", "Completing"),
    ("Accepted", "Resuming"),
    ("Accepted", "Failing"),
    ("Resuming", "Accepted"),
    ("Running", "Completing"),
    ("Running", "Failing"),
    ("Completing", "Running"),
    ("Completing", "Completed"),
    ("Completing", "Failing"),
    ("Resuming", "Failing"),
    ("Failing", "Failed"),
}
MISMATCH = "cancel placeholder: resource incompatible"
TIMED_OUT = "ResourceReservationTimeout"
REPLACING = "replacing allocationKey: "


class Deciding(Hearing):
    """Books facts, and checks that each is allowed."""

    @property
    def default(self) -> Books:
        return self.books["default"]

    def _state(self, books: Books, app: BookedApp, state: str) -> None:
        """States of gangs are seen as they are told (``follows``)."""

    def begin_again(self) -> None:
        super().begin_again()
        # It is a cycle that is looked at, not the answer to a command.
        self._in_cycle = False
        # Whose placeholders' time is up in this cycle, and what it goes to by that: "Failing", "Resuming" or "".
        self._due: dict[BookedApp, str] = {}
        # By placeholder, the sizes of asks that events said to be larger.
        self._mismatched: dict[str, list[Amounts]] = {}
        # By node, for which ask it is kept: now, and all through this cycle; and all that were kept in it.
        self._kept: dict[str, str] = {}
        self._kept_before: dict[str, str] = {}
        self._keeps: set[tuple[str, str]] = set()
        self.preemptions = Preemptions(self, {}, 0)
        self._preempted: dict[BookedApp, list[BookedAllocation]] = {}

    # ---- facts -----------------------------------------------------------------------------------------------------

    def follows(self, fact: Fact) -> bool:
        """Books changes of state, and confirmed releases."""
        if isinstance(fact, UpdatedApplication):
            self._changes_state(fact)
        elif isinstance(fact, NewAllocation) and fact.allocation.replaces is not None:
            self._new(fact)
        else:
            return False
        return True

    def _take_facts(self, facts: list[Fact]) -> None:
        for fact in facts:
            match fact:
                case NewAllocation():
                    self._new(fact)
                case ReleasedAllocation():
                    self._released(fact)
                case ReleasedAsk():
                    self._released_ask(fact)
                case UpdatedApplication():
                    self._changes_state(fact)
                case ScaleUpHint():
                    ask = self._app(fact.app_id, fact).asks[fact.key]
                    must(not ask.told_small, "autoscaling", f"{ask}: told twice that the cluster is too small")
                    ask.told_small = True
                    self.tally["told: the cluster is too small"] += 1
                case _:
                    raise AuditFailure("answer", f"{fact}")

    def _app(self, app_id: str, what: object) -> BookedApp:
        app = self.default.apps.get(app_id)
        if app is None:
            raise AuditFailure("answer", f"{what} of an application that is not there")
        return app

    def _new(self, fact: NewAllocation) -> None:
        made = fact.allocation
        app = self._app(made.app_id, fact)
        ask = app.asks.get(made.key)
        if ask is None:
            raise AuditFailure("allocation", f"{app.app_id}: {made.key} was allocated, and is not asked for")
        node = self.default.nodes.get(made.node_id)
        if node is None:
            raise AuditFailure("allocation", f"{ask} is allocated on {made.node_id}, which is not there")
        if made.replaces is not None:
            self._check_swap(ask, node, made.replaces.key)
        else:
            must(self._in_cycle, "allocation", f"{ask} is allocated on the way")
            must(ask.open > 0, "allocation", f"{ask} is allocated, and waits for {ask.leaving}")
            self._check_allowed(ask, node)
            self.tally[f"allocated: {'placeholder' if ask.placeholder else 'real'}"] += 1
        must(node.has_room(ask.wants), "node fit", f"{ask} on {node.node_id}: {node.used} of {node.capacity}")
        must(node.schedulable, "node fit", f"{ask} on {node.node_id}, which is draining")
        must(
            (made.demand.placeholder, made.demand.task_group) == (ask.placeholder, ask.task_group),
            "flags",
            f"{ask} became {made.demand}",
        )
        self._hold(ask, made)

    def _hold(self, ask: BookedAsk, made: Allocation) -> None:
        held = allocation_of(ask, made, self.now_ns)
        self.default.hold(held)
        must(ask.pending > 0, "twice", f"{ask} was allocated more often than asked for")
        ask.pending -= 1
        ask.made += 1
        ask.planned_ns = 0
        if not ask.pending:
            remove_ask(ask, "")
        self.placed(ask.app, held)

    # ---- an allocation the normal way ------------------------------------------------------------------------------

    def _check_allowed(self, ask: BookedAsk, node: BookedNode) -> None:
        app, books = ask.app, self.default
        must(app.state != "Failing", "state", f"{ask}: its application is failing")
        keeps = self._kept_before.get(node.node_id, ask.key)
        own = keeps == ask.key or claims_laws.may_use(books, ask, node)
        must(own, "reserved node", f"{ask} is on {node.node_id}, which is kept for {keeps}")
        self.tally["allocated: by rank"] += keeps != ask.key
        over = books.over(app, ask.wants)
        must(not over, "quota", f"{ask}: {over}")
        if not app.counted:  # (that it runs is told before its first real allocation: _state)
            full = books.full(app)
            must(not full, "max applications", f"{ask}: {full} is full")
        if ask.placeholder:
            if self.default.whole(app) and app.gang.phase == "WAITING":
                lacks = books.lacks_room(app)
                must(not lacks, "gang room", f"{ask} is the first of its gang: {lacks}")
                self.tally["gang: started as a whole"] += 1
            elif app.gang.phase == "WAITING":
                self.tally["gang: started with one"] += 1
            return
        if self.default.whole(app):
            must(not app.is_forming, "gang forming", f"{ask} is allocated while its gang is {app.gang.phase}")
        counts = app.gang.groups.get(ask.task_group)
        if counts is None or ask.mismatched:
            return
        free = app.free(ask.task_group)
        must(not free, "placeholder first", f"{ask} went to {node.node_id}, and {free[:1]} was free")
        waits = app.pending(ask.task_group) and self.default.awaits_placeholders(app)
        must(not waits, "gang forming", f"{ask} did not wait for the placeholders of its group")

    # ---- the place of a placeholder --------------------------------------------------------------------------------

    def _check_swap(self, ask: BookedAsk, node: BookedNode, placeholder: str) -> None:
        """Checks the second phase of a swap: the placeholder is gone, the real allocation follows."""
        found = [(held, heir) for held, heir in self.owed if heir is ask and held.key == placeholder]
        must(bool(found), "swap", f"{ask} takes the place of {placeholder}, which is not gone")
        held, _ = found[0]
        self.owed.remove(found[0])
        must(not self._in_cycle, "swap", f"{ask} takes a place in a cycle")
        must(covers(held.wants, ask.wants), "swap", f"{ask} is larger than {held}")
        must(held.task_group == ask.task_group and not ask.placeholder, "swap", f"{ask} in the place of {held}")
        own = self.default.nodes.get(held.node_id)
        if own is not node:
            kept = self._kept_by(ask)
            # (It may have been given up in this very command.)
            self.tally["replaced: on another node"] += 1
            fits = own is not None and own.schedulable and own.has_room(ask.wants)
            must(
                not (fits and self.alone),
                "swap",
                f"{ask} went to {node.node_id}, {held.node_id} had room; {kept}",
            )
        else:
            self.tally["replaced: on the same node"] += 1
            if held.wants != ask.wants:
                self.tally["replaced: by a smaller one"] += 1
        if self.default.over(ask.app, ask.wants):
            self.tally["replaced: above a lowered max"] += 1

    def _kept_by(self, ask: BookedAsk) -> str:
        return next((node_id for node_id, key in self._kept.items() if key == ask.key), "")

    def _check_owed(self, command: Command) -> None:
        """Fails unless each ask whose placeholder left was allocated at once, fits nowhere, or is gone."""
        owed, self.owed = self.owed, []
        if len(owed) != 1:
            self.tally["replaced: not at once"] += len(owed)
            return
        held, ask = owed[0]
        if ask.app.asks.get(ask.key) is not ask or ask.open <= 0 or not self.alone:
            return
        self.tally["replaced: not at once"] += 1
        if isinstance(command, UpdateNodes):
            return  # it looks for another placeholder
        if covers(held.wants, ask.wants) and self.default.apps.get(ask.app.app_id) is ask.app:
            for node in self.default.nodes.values():
                ours = self._kept.get(node.node_id, ask.key) == ask.key or node.node_id == held.node_id
                fits = node.schedulable and ours and node.has_room(ask.wants)
                must(not fits, "swap", f"{ask}: {held} is gone, {node.node_id} has room, and it is not allocated")

    # ---- told to go ------------------------------------------------------------------------------------------------

    def _released(self, fact: ReleasedAllocation) -> None:
        app = self._app(fact.app_id, fact)
        held = find_held(self.default, fact.app_id, fact.key, fact.uuid)
        if held.told:
            self._reminder(held, fact)
            return
        match fact.termination:
            case Termination.PLACEHOLDER_REPLACED:
                self._check_replacement(held, fact)
                held.told = "replaced"
            case Termination.TIMEOUT:
                self._check_timeout(held, fact)
                held.told = "timeout"
            case Termination.PREEMPTED_BY_SCHEDULER:
                must(self.default.preemption_enabled or "uota" in fact.message, "preemption", f"{fact}")
                must(app.state != "Failing", "preemption", f"{held}")
                self._preempt(held, fact.message)
            case _:
                raise AuditFailure("told", f"{fact}: {held} runs")
        held.told_ns = self.now_ns

    def _preempt(self, held: BookedAllocation, message: str) -> None:
        app = held.app
        assert app is not None
        whole = (
            app.gang.phase and self.default.queues[app.queue].properties.get("gang.preemption", "members") == "whole"
        )
        if whole and held.task_group and app not in self._preempted:
            leaving = [ask for ask in app.asks.values() if ask.leaving]
            must(not leaving, "whole gang", f"{held} is preempted with all of its gang, and {leaving[:1]} is to come")
            self._preempted[app] = [each for each in app.held.values() if each.task_group and not each.told]
        self.preemptions.told(self.default, held, message)
        self.tally[f"told: {'placeholder' if held.placeholder else 'real'} preempted"] += 1
        forms = whole and self.default.whole(app) and app.gang.phase in ("FORMING", "FORMED")
        if forms and not any(each.free or each.heir for each in app.held.values()):
            app.gang.phase = "WAITING"
            self.tally["gang: starts again"] += 1

    def _reminder(self, held: BookedAllocation, fact: ReleasedAllocation) -> None:
        must(fact.termination is TOLD[held.told], "reminder", f"{fact}: {held} was told otherwise")
        since_ns = self.now_ns - held.told_ns
        must(since_ns > 0, "reminder", f"{fact} {since_ns} ns after it was said")
        held.told_ns = self.now_ns
        self.tally[f"reminder: {held.told}"] += 1

    def _check_replacement(self, held: BookedAllocation, fact: ReleasedAllocation) -> None:
        app, books = held.app, self.default
        assert app is not None
        must(held.placeholder, "replacement", f"{held} is told to go for {fact.message}")
        must(fact.message.startswith(REPLACING), "replacement", f"{fact.message!r}")
        ask = app.asks.get(fact.message.removeprefix(REPLACING))
        if ask is None:
            raise AuditFailure("replacement", f"{fact}: nobody asks for it")
        must(ask.task_group == held.task_group and not ask.placeholder, "replacement", f"{held} goes for {ask}")
        must(not ask.mismatched, "replacement", f"{held} goes for {ask}, which goes its own way")
        must(ask.open > 0, "replacement", f"{held} goes for {ask}, which needs no more")
        must(covers(held.wants, ask.wants), "replacement", f"{held} goes for {ask}, which is larger")
        must(app.state != "Failing", "state", f"{held} goes for {ask}: its application is failing")
        if self.default.whole(app):
            must(not app.is_forming, "gang forming", f"{held} goes for {ask} in {app.gang.phase}")
        takes = takes_place(books, held, ask)
        for each in app.free(held.task_group):
            if each is held or not covers(each.wants, ask.wants):
                continue
            better = takes_place(books, each, ask) and (not takes or each.age < held.age)
            must(not better, "placeholder order", f"{held} goes for {ask}, and {each} comes first")
        if not takes:
            kept = [books.nodes[node_id] for node_id, key in self._keeps if key == ask.key]
            fits = any(each.has_room(ask.wants) for each in kept)
            must(fits, "replacement", f"{held}: no node is kept for {ask}")
            self.tally["told: placeholder, for another node"] += 1
        held.heir = ask.key
        ask.leaving.append(held)
        self.tally["told: placeholder replaced"] += 1

    def _check_timeout(self, held: BookedAllocation, fact: ReleasedAllocation) -> None:
        app = held.app
        assert app is not None
        if fact.message == MISMATCH:
            must(held.placeholder, "mismatch", f"{held}")
            free = app.free(held.task_group)
            must(all(each.age >= held.age for each in free), "mismatch", f"{held} goes, older ones are free")
            said = self._mismatched.get(held.key)
            wants = said.pop(0) if said else None
            like = [
                ask
                for ask in app.asks.values()
                if ask.wants == wants and ask.open > 0 and not ask.mismatched and ask.task_group == held.task_group
            ]
            fits = [each for each in free if wants is None or covers(each.wants, wants)]
            must(not fits, "mismatch", f"{held} goes for {wants}, which fits in {fits[:1]}")
            must(any(not ask.placeholder for ask in like), "mismatch", f"{fact}: no real ask of {wants} is open")
            # (An application's asks come in the order of their priorities, and then of their age.)
            ask = min((ask for ask in like if not ask.placeholder), key=lambda ask: (-ask.priority, ask.order))
            ask.mismatched = True
            self.tally["told: placeholder mismatched"] += 1
            return
        if held.placeholder and app in self._due:
            self.tally["told: placeholder timed out"] += 1
        elif held.placeholder and app.state == "Completing" and app.deadline_ns <= self.now_ns:
            self.tally["told: placeholder left over"] += 1
        else:
            must(self._fails(app), "time-out", f"{fact}: {held}, its time is not up")
            self.tally["told: all of a failed gang"] += 1

    def _fails(self, app: BookedApp) -> bool:
        return self._due.get(app) == "Failing"

    def _released_ask(self, fact: ReleasedAsk) -> None:
        app = self._app(fact.app_id, fact)
        ask = app.asks.get(fact.key)
        must(ask is not None and fact.termination is Termination.TIMEOUT, "time-out", f"{fact}")
        assert ask is not None
        must(app in self._due, "time-out", f"{fact}: the time of its placeholders is not up")
        must(ask.placeholder or self._fails(app), "time-out", f"{fact}: a real ask of a gang that does not fail")
        remove_ask(ask, "timed_out")
        self.tally[f"told: {'placeholder' if ask.placeholder else 'real'} ask dropped"] += 1

    def _check_preempted(self) -> None:
        for app, members in self._preempted.items():
            left = [each for each in members if not each.told]
            must(not left, "whole gang", f"of the gang {app.app_id} some were preempted, and {left[:3]} stay")
            self.tally["preempted: a gang as a whole"] += 1

    # ---- states ----------------------------------------------------------------------------------------------------

    def _changes_state(self, fact: UpdatedApplication) -> None:
        app = self._app(fact.app_id, fact)
        before, state, due_ns = app.state, str(fact.state), app.deadline_ns
        must((before, state) in STATES, "state", f"{app.app_id}: {before} to {state}")
        if state == "Running" and self._in_cycle:
            full = self.default.full(app)
            must(not full, "max applications", f"{app.app_id} runs, {full} is full")
        self.set_state(self.default, app, state)
        if state == "Failing" and app in self.ended:
            must(fact.message == self.ended[app], "state", f"{app.app_id} is ended by {fact.message!r}")
            must(not app.asks, "state", f"{app.app_id} ends with {list(app.asks)[:2]}")
        elif state in ("Resuming", "Failing"):
            must(app in self._due, "state", f"{app.app_id} is {state}, and no time was up")
            due = self._due[app]
            must(due == state, "state", f"{app.app_id} is {state}, should be {due!r}, its style is {app.gang.style!r}")
            must(fact.message == TIMED_OUT, "state", f"{app.app_id} is {state} by {fact.message!r}")
            if state == "Failing":
                must(not app.asks, "state", f"{app.app_id} fails with {list(app.asks)[:2]}")
        elif state == "Completed":
            must(due_ns <= self.now_ns, "state", f"{app.app_id} is Completed before its 30 s are over")
        if state in ("Completed", "Failed"):
            must(not app.held and not app.asks, "state", f"{app.app_id} is {state} and has {list(app.held)[:2]}")
            for name, counts in app.gang.groups.items():
                ended = counts.replaced + counts.timed_out + counts.lost
                must(counts.asked == ended, "placeholder end", f"{app.app_id} is {state}, {name}: {counts}")
            if app.gang.phase:
                self.tally[f"gang: {state} in phase {app.gang.phase}"] += 1

    def _check_state(self, app: BookedApp) -> None:
        state = app.state
        placeholders = any(each.placeholder for each in app.held.values())
        real = app.has_real
        idle = not app.asks and not real
        if real:
            must(state in ("Running", "Failing"), "state", f"{app.app_id} runs, and is {state}")
        if state in ("Accepted", "Running"):
            over = idle and (not placeholders or (app.gang.phase == "USED" and not app.gang.awaits))
            must(not over, "state", f"{app.app_id} has nothing, and is {state} ({app.gang.phase})")
        elif state == "New":
            must(not app.asks and not app.held, "state", f"{app.app_id} has asks, and is New")
        elif state == "Completing":
            must(idle, "state", f"{app.app_id} has {list(app.asks)[:2]}, and is completing")
            if app.deadline_ns <= self.now_ns:
                free = [each for each in app.held.values() if each.free]
                must(not free and placeholders, "deadline", f"{app.app_id} is completing too long: {free[:2]}")
                app.deadline_ns = 0  # what was told to go is waited for
        elif state == "Resuming":
            must(placeholders, "state", f"{app.app_id} has no placeholders, and is Resuming")
        elif state == "Failing":
            must(bool(app.held) and not app.asks, "state", f"{app.app_id} has nothing, and is Failing")

    def _check_told(self, app: BookedApp) -> None:
        for held in app.held.values():
            if held.told:
                over_ns = self.now_ns - held.told_ns - REMINDER_NS
                must(over_ns < 0, "reminder", f"{held} was not told again, {over_ns} ns too long")
            elif app.state == "Failing":
                raise AuditFailure("state", f"{held} was not told to go, and its application fails")

    def _check_due(self) -> None:
        """Checks a time-out: no free or pending placeholder is left, and the application failed if it had to."""
        for app, to_be in self._due.items():
            if self.default.apps.get(app.app_id) is not app:
                continue
            asks = [ask for ask in app.asks.values() if ask.placeholder]
            must(not asks, "time-out", f"{app.app_id}: its placeholders' time is up, and {asks[:2]} stay")
            free = [each for each in app.held.values() if each.free]
            must(not free, "time-out", f"{app.app_id}: its placeholders' time is up, and {free[:2]} stay")
            if to_be == "Failing":
                must(app.state == "Failing", "time-out", f"{app.app_id} is {app.state}, should be {to_be}")
            self.tally[f"time-out: {'of a gang' if to_be else 'of what is not used'}"] += 1


def takes_place(books: Books, held: BookedAllocation, ask: BookedAsk) -> bool:
    """Whether the ask may run on the placeholder's node once that is gone."""
    node = books.nodes[held.node_id]
    return node.schedulable and all(
        want <= node.free(name) + held.wants.get(name, 0) for name, want in ask.wants.items()
    )
