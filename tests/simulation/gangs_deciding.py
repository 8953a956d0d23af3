"""Whether what was decided about gangs was right: fact by fact, each against the books of that very moment."""

from __future__ import annotations

from typing import Any

from muster_scheduler.core.commands import AskItem, Command, Termination, UpdateNodes
from muster_scheduler.core.outcome import (
    AcceptedApplication,
    AcceptedNode,
    ConfigurationAnswer,
    Fact,
    NewAllocation,
    RejectedApplication,
    RejectedAsk,
    RejectedNode,
    ReleasedAllocation,
    ReleasedAsk,
    TooSmallCluster,
    UpdatedApplication,
)
from simulation.gangs_books import (
    COMPLETING_NS,
    REMINDER_NS,
    App,
    Ask,
    AuditFailure,
    Held,
    Node,
    Vector,
    covers,
    must,
    vector,
)
from simulation.gangs_hearing import TOLD, Hearing

# (state, next state): what an application may go through (core-features §2.8).
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
    ("Failing", "Failed"),
}
MISMATCH = "cancel placeholder: resource incompatible"
TIMED_OUT = "ResourceReservationTimeout"
REPLACING = "replacing allocationKey: "


class Deciding(Hearing):
    """Takes facts into the books, and asks of each whether it may be."""

    def begin_again(self) -> None:
        super().begin_again()
        # It is a cycle that is looked at, not the answer to a command.
        self._deciding = False
        # Whose placeholders' time is up in this cycle, and what it goes to by that: "Failing", "Resuming" or "".
        self._due: dict[App, str] = {}
        # By placeholder, the sizes of asks that events said to be larger.
        self._mismatched: dict[str, list[Vector]] = {}
        # By node, for which ask it is kept: now, and all through this cycle; and all that were kept in it.
        self._kept: dict[str, str] = {}
        self._kept_before: dict[str, str] = {}
        self._keeps: set[tuple[str, str]] = set()
        self._preempted: dict[App, list[Held]] = {}

    # ---- facts -----------------------------------------------------------------------------------------------------

    def _take(self, facts: list[Fact]) -> None:
        for fact in facts:
            match fact:
                case NewAllocation():
                    self._new(fact)
                case ReleasedAllocation():
                    self._released(fact)
                case ReleasedAsk():
                    self._released_ask(fact)
                case UpdatedApplication():
                    self._state(fact)
                case RejectedAsk():
                    self._answered("rejected ask", fact.key)
                case AcceptedApplication():
                    self._answered("accepted application", fact.app_id)
                case RejectedApplication():
                    self._answered("rejected application", fact.app_id)
                case AcceptedNode():
                    self._answered("accepted node", fact.node_id)
                case RejectedNode():
                    self._answered("rejected node", fact.node_id)
                case ConfigurationAnswer():
                    must(not fact.obstacles, "answer", f"{fact}")
                    self._answered("configuration", "")
                case TooSmallCluster():
                    self.tally["told: the cluster is too small"] += 1
                case _:
                    raise AuditFailure("answer", f"{fact}")

    def _answered(self, kind: str, what: str) -> None:
        must(self._answers[kind, what] > 0, "answer", f"{kind} {what}: nobody waits for it")
        self._answers[kind, what] -= 1

    def _app(self, app_id: str, what: object) -> App:
        app = self.books.apps.get(app_id)
        if app is None:
            raise AuditFailure("answer", f"{what} of an application that is not there")
        return app

    def _new(self, fact: NewAllocation) -> None:
        made = fact.allocation
        app = self._app(made.app_id, fact)
        for uuid in (made.uuid, ""):
            reported = self._adopted.pop((app.app_id, made.key, uuid), None)
            if reported is not None:
                self._new_adopted(app, made, *reported)
                return
        ask = app.asks.get(made.key)
        if ask is None:
            raise AuditFailure("allocation", f"{app.app_id}: {made.key} was allocated, and is not asked for")
        node = self.books.nodes.get(made.node_id)
        if node is None:
            raise AuditFailure("allocation", f"{ask} is allocated on {made.node_id}, which is not there")
        if made.replaces is not None:
            self._check_swap(ask, node, made.replaces.key)
        else:
            must(self._deciding, "allocation", f"{ask} is allocated on the way")
            must(ask.open > 0, "allocation", f"{ask} is allocated, and waits for {ask.leaving}")
            self._check_allowed(ask, node)
            self.tally[f"allocated: {'placeholder' if ask.placeholder else 'real'}"] += 1
        must(node.fits(ask.wants), "node fit", f"{ask} on {node.node_id}: {node.used} of {node.capacity}")
        must(node.schedulable, "node fit", f"{ask} on {node.node_id}, which is draining")
        must(
            (made.demand.placeholder, made.demand.task_group) == (ask.placeholder, ask.task_group),
            "flags",
            f"{ask} became {made.demand}",
        )
        self._hold(ask, node, made)

    def _hold(self, ask: Ask, node: Node, made: Any) -> None:
        app, books = ask.app, self.books
        held = Held(
            app,
            ask.key,
            made.uuid,
            ask.said,
            ask.wants,
            node,
            ask.priority,
            ask.task_group,
            ask.placeholder,
            ask.previous,
            ask.may_go,
            ask.may_preempt,
            (self.now_ns, ask.order, made.ordinal),
        )
        books.hold(held)
        books.pend(ask, -1)
        must(ask.pending >= 0, "twice", f"{ask} was allocated more often than asked for")
        ask.made += 1
        if not ask.pending:
            books.remove_ask(ask, "")
        self._placed(app, held)

    def _placed(self, app: App, held: Held) -> None:
        """What an allocation means for its gang."""
        app.awaits = held.placeholder
        if held.placeholder:
            if not app.deadline_ns:
                app.deadline_ns = self.now_ns + app.timeout_ns
            if app.phase == "WAITING":
                app.phase = "FORMING"
            if app.phase == "FORMING" and app.total is not None and covers(app.placed(), app.total):
                app.phase = "FORMED"
        elif app.phase:
            app.phase = "USED"

    def _new_adopted(self, app: App, made: Any, order: int, item: AskItem) -> None:
        node = self.books.nodes[item.node_id]
        must(made.node_id == item.node_id, "answer", f"{item} is said to be on {made.node_id}")
        must(not item.uuid or made.uuid == item.uuid, "answer", f"{item} got another uuid, {made.uuid}")
        placeholder = item.placeholder and bool(item.task_group)
        must(
            (made.demand.placeholder, made.demand.task_group) == (placeholder, item.task_group),
            "flags",
            f"{item} became {made.demand}",
        )
        held = Held(
            app,
            item.key,
            made.uuid,
            dict(item.quantities),
            vector(item.quantities),
            node,
            item.priority,
            item.task_group,
            placeholder,
            item.previous_generation,
            item.allow_preempt_self,
            item.allow_preempt_other,
            (self.now_ns, order, made.ordinal),
        )
        self.books.hold(held)
        if placeholder:
            app.groups[item.task_group].asked += 1
        self.tally[f"adopted: {'placeholder' if placeholder else 'real'}"] += 1
        self._placed(app, held)

    # ---- an allocation the normal way ------------------------------------------------------------------------------

    def _check_allowed(self, ask: Ask, node: Node) -> None:
        app, books = ask.app, self.books
        must(app.state != "Failing", "state", f"{ask}: its application is failing")
        keeps = self._kept_before.get(node.node_id, ask.key)
        must(keeps == ask.key, "reserved node", f"{ask} is on {node.node_id}, which is kept for {keeps}")
        for each in app.limits:
            if each.over(ask.wants):
                raise AuditFailure("quota", f"{ask}: {each.name} uses {each.used} of {each.most}")
        if not app.counted:  # (that it runs is told before its first real allocation: _state)
            full = books.full(app)
            must(not full, "max applications", f"{ask}: {full} is full")
        if ask.placeholder:
            if app.whole and app.phase == "WAITING":
                lacks = books.lacks_room(app)
                must(not lacks, "gang room", f"{ask} is the first of its gang: {lacks}")
                self.tally["gang: started as a whole"] += 1
            elif app.phase == "WAITING":
                self.tally["gang: started with one"] += 1
            return
        if app.whole:
            formed = app.phase not in ("WAITING", "FORMING")
            must(formed, "gang forming", f"{ask} is allocated while its gang is {app.phase}")
        counts = app.groups.get(ask.task_group)
        if counts is None or ask.mismatched:
            return
        free = app.free(ask.task_group)
        must(not free, "placeholder first", f"{ask} went to {node.node_id}, and {free[:1]} was free")
        waits = counts.pending and app.awaits_placeholders
        must(not waits, "gang forming", f"{ask} did not wait for the placeholders of its group")

    # ---- the place of a placeholder --------------------------------------------------------------------------------

    def _check_swap(self, ask: Ask, node: Node, placeholder: str) -> None:
        """The second phase: the placeholder is confirmed gone, the real allocation comes."""
        found = [(held, heir) for held, heir in self._owed if heir is ask and held.key == placeholder]
        must(bool(found), "swap", f"{ask} takes the place of {placeholder}, which is not gone")
        held, _ = found[0]
        self._owed.remove(found[0])
        must(not self._deciding, "swap", f"{ask} takes a place in a cycle")
        must(covers(held.wants, ask.wants), "swap", f"{ask} is larger than {held}")
        must(held.task_group == ask.task_group and not ask.placeholder, "swap", f"{ask} in the place of {held}")
        own = self.books.nodes.get(held.node.node_id)
        if own is not node:
            kept = self._kept_by(ask)
            # (It may have been given up in this very command.)
            self.tally["replaced: on another node"] += 1
            fits = own is not None and own.schedulable and own.fits(ask.wants)
            must(
                not (fits and self._alone),
                "swap",
                f"{ask} went to {node.node_id}, {held.node.node_id} had room; {kept}",
            )
        else:
            self.tally["replaced: on the same node"] += 1
            if held.wants != ask.wants:
                self.tally["replaced: by a smaller one"] += 1
        if self.books.over(ask.app, ask.wants):
            self.tally["replaced: above a lowered max"] += 1

    def _kept_by(self, ask: Ask) -> str:
        return next((node_id for node_id, key in self._kept.items() if key == ask.key), "")

    def _check_owed(self, command: Command) -> None:
        """Whose placeholder is gone was allocated at once, or fits nowhere, or is gone itself."""
        owed, self._owed = self._owed, []
        if len(owed) != 1:
            self.tally["replaced: not at once"] += len(owed)
            return
        held, ask = owed[0]
        if ask.app.asks.get(ask.key) is not ask or ask.open <= 0 or not self._alone:
            return
        self.tally["replaced: not at once"] += 1
        if isinstance(command, UpdateNodes):
            return  # it looks for another placeholder
        if covers(held.wants, ask.wants) and self.books.apps.get(ask.app.app_id) is ask.app:
            for node in self.books.nodes.values():
                ours = self._kept.get(node.node_id, ask.key) == ask.key or node is held.node
                fits = node.schedulable and ours and node.fits(ask.wants)
                must(not fits, "swap", f"{ask}: {held} is gone, {node.node_id} has room, and it is not allocated")

    # ---- told to go ------------------------------------------------------------------------------------------------

    def _released(self, fact: ReleasedAllocation) -> None:
        key = (fact.app_id, fact.key, fact.uuid, fact.termination)
        if self._echoes[key] > 0:
            self._echoes[key] -= 1
            return
        app = self._app(fact.app_id, fact)
        held = app.held.get((fact.key, fact.uuid))
        if held is None:
            raise AuditFailure("answer", f"{fact} of what is not held")
        if held.told:
            self._reminder(held, fact)
            return
        must(self._deciding, "told", f"{fact} on the way")
        match fact.termination:
            case Termination.PLACEHOLDER_REPLACED:
                self._check_replacement(held, fact)
                held.told = "replaced"
            case Termination.TIMEOUT:
                self._check_timeout(held, fact)
                held.told = "timeout"
            case Termination.PREEMPTED_BY_SCHEDULER:
                must(self.books.partition["preemption"]["enabled"] or "uota" in fact.message, "preemption", f"{fact}")
                must(app.state != "Failing", "preemption", f"{held}")
                self._preempt(held)
            case _:
                raise AuditFailure("told", f"{fact}: {held} runs")
        held.told_ns = self.now_ns

    def _preempt(self, held: Held) -> None:
        app = held.app
        whole = app.phase and app.queue.property("gang.preemption", "members") == "whole"
        if whole and held.task_group and app not in self._preempted:
            leaving = [ask for ask in app.asks.values() if ask.leaving]
            must(not leaving, "whole gang", f"{held} is preempted with all of its gang, and {leaving[:1]} is to come")
            self._preempted[app] = [each for each in app.held.values() if each.task_group and not each.told]
        held.told = "preempted"
        self.tally[f"told: {'placeholder' if held.placeholder else 'real'} preempted"] += 1
        forms = whole and app.whole and app.phase in ("FORMING", "FORMED")
        if forms and not any(each.free or each.heir for each in app.held.values()):
            app.phase = "WAITING"
            self.tally["gang: starts again"] += 1

    def _reminder(self, held: Held, fact: ReleasedAllocation) -> None:
        must(fact.termination is TOLD[held.told], "reminder", f"{fact}: {held} was told otherwise")
        must(self._deciding, "reminder", f"{fact} on the way")
        since_ns = self.now_ns - held.told_ns
        must(since_ns > 0, "reminder", f"{fact} {since_ns} ns after it was said")
        held.told_ns = self.now_ns
        self.tally[f"reminder: {held.told}"] += 1

    def _check_replacement(self, held: Held, fact: ReleasedAllocation) -> None:
        app, books = held.app, self.books
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
        if app.whole:
            must(app.phase not in ("WAITING", "FORMING"), "gang forming", f"{held} goes for {ask} in {app.phase}")
        takes = takes_place(held, ask)
        for each in app.free(held.task_group):
            if each is held or not covers(each.wants, ask.wants):
                continue
            better = takes_place(each, ask) and (not takes or each.order < held.order)
            must(not better, "placeholder order", f"{held} goes for {ask}, and {each} comes first")
        if not takes:
            kept = [books.nodes[node_id] for node_id, key in self._keeps if key == ask.key]
            fits = any(each.fits(ask.wants) for each in kept)
            must(fits, "replacement", f"{held}: no node is kept for {ask}")
            self.tally["told: placeholder, for another node"] += 1
        held.heir = ask.key
        ask.leaving.append(held)
        self.tally["told: placeholder replaced"] += 1

    def _check_timeout(self, held: Held, fact: ReleasedAllocation) -> None:
        app = held.app
        if fact.message == MISMATCH:
            must(held.placeholder, "mismatch", f"{held}")
            free = app.free(held.task_group)
            must(all(each.order >= held.order for each in free), "mismatch", f"{held} goes, older ones are free")
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
            ask = min((ask for ask in like if not ask.placeholder), key=lambda ask: ask.order)
            ask.mismatched = True
            self.tally["told: placeholder mismatched"] += 1
            return
        if held.placeholder and app in self._due:
            self.tally["told: placeholder timed out"] += 1
        elif held.placeholder and app.state == "Completing" and app.completing_ns <= self.now_ns:
            self.tally["told: placeholder left over"] += 1
        else:
            must(self._fails(app), "time-out", f"{fact}: {held}, its time is not up")
            self.tally["told: all of a failed gang"] += 1

    def _fails(self, app: App) -> bool:
        return self._due.get(app) == "Failing"

    def _released_ask(self, fact: ReleasedAsk) -> None:
        if fact.termination is Termination.STOPPED_BY_RM:
            self._answered("released ask", fact.key)
            return
        app = self._app(fact.app_id, fact)
        ask = app.asks.get(fact.key)
        must(ask is not None and fact.termination is Termination.TIMEOUT, "time-out", f"{fact}")
        assert ask is not None
        must(app in self._due, "time-out", f"{fact}: the time of its placeholders is not up")
        must(ask.placeholder or self._fails(app), "time-out", f"{fact}: a real ask of a gang that does not fail")
        self.books.remove_ask(ask, "timed_out")
        self.tally[f"told: {'placeholder' if ask.placeholder else 'real'} ask dropped"] += 1

    def _check_preempted(self) -> None:
        """Whole gangs, where the queue says so."""
        for app, members in self._preempted.items():
            left = [each for each in members if not each.told]
            must(not left, "whole gang", f"of the gang {app.app_id} some were preempted, and {left[:3]} stay")
            self.tally["preempted: a gang as a whole"] += 1

    # ---- states ----------------------------------------------------------------------------------------------------

    def _state(self, fact: UpdatedApplication) -> None:
        app = self._app(fact.app_id, fact)
        before, state = app.state, str(fact.state)
        must((before, state) in STATES, "state", f"{app.app_id}: {before} to {state}")
        self.tally[f"state: {before} to {state}"] += 1
        if state == "Running" and self._deciding:
            full = self.books.full(app)
            must(not full, "max applications", f"{app.app_id} runs, {full} is full")
        app.state = state
        if state in ("Resuming", "Failing"):
            must(app in self._due, "state", f"{app.app_id} is {state}, and no time was up")
            due = self._due[app]
            must(due == state, "state", f"{app.app_id} is {state}, should be {due!r}, its style is {app.style!r}")
            must(fact.message == TIMED_OUT, "state", f"{app.app_id} is {state} by {fact.message!r}")
            if state == "Failing":
                must(not app.asks, "state", f"{app.app_id} fails with {list(app.asks)[:2]}")
        elif state == "Completing":
            app.completing_ns = self.now_ns + COMPLETING_NS
        elif state == "Completed":
            must(app.completing_ns <= self.now_ns, "state", f"{app.app_id} is Completed before its 30 s are over")
        if state in ("Completed", "Failed"):
            must(not app.held and not app.asks, "state", f"{app.app_id} is {state} and has {list(app.held)[:2]}")
            for name, counts in app.groups.items():
                ended = counts.replaced + counts.timed_out + counts.lost
                must(counts.asked == ended, "placeholder end", f"{app.app_id} is {state}, {name}: {counts}")
            if app.phase:
                self.tally[f"gang: {state} in phase {app.phase}"] += 1
            self._forget(app)

    def _check_state(self, app: App) -> None:
        """Whether its state is what it has."""
        state = app.state
        placeholders = any(each.placeholder for each in app.held.values())
        real = app.has_real
        idle = not app.asks and not real
        if real:
            must(state in ("Running", "Failing"), "state", f"{app.app_id} runs, and is {state}")
        if state in ("Accepted", "Running"):
            over = idle and (not placeholders or (app.phase == "USED" and not app.awaits))
            must(not over, "state", f"{app.app_id} has nothing, and is {state} ({app.phase})")
        elif state == "New":
            must(not app.asks and not app.held, "state", f"{app.app_id} has asks, and is New")
        elif state == "Completing":
            must(idle, "state", f"{app.app_id} has {list(app.asks)[:2]}, and is completing")
            if app.completing_ns <= self.now_ns:
                free = [each for each in app.held.values() if each.free]
                must(not free and placeholders, "deadline", f"{app.app_id} is completing too long: {free[:2]}")
        elif state == "Resuming":
            must(placeholders, "state", f"{app.app_id} has no placeholders, and is Resuming")
        elif state == "Failing":
            must(bool(app.held) and not app.asks, "state", f"{app.app_id} has nothing, and is Failing")

    def _check_told(self, app: App) -> None:
        for held in app.held.values():
            if held.told:
                over_ns = self.now_ns - held.told_ns - REMINDER_NS
                must(over_ns < 0, "reminder", f"{held} was not told again, {over_ns} ns too long")
            elif app.state == "Failing":
                raise AuditFailure("state", f"{held} was not told to go, and its application fails")

    def _check_due(self) -> None:
        """Whose placeholders' time was up has no free ones, and no asks for more, and failed if it had to."""
        for app, to_be in self._due.items():
            if self.books.apps.get(app.app_id) is not app:
                continue
            asks = [ask for ask in app.asks.values() if ask.placeholder]
            must(not asks, "time-out", f"{app.app_id}: its placeholders' time is up, and {asks[:2]} stay")
            free = [each for each in app.held.values() if each.free]
            must(not free, "time-out", f"{app.app_id}: its placeholders' time is up, and {free[:2]} stay")
            if to_be == "Failing":
                must(app.state == "Failing", "time-out", f"{app.app_id} is {app.state}, should be {to_be}")
            self.tally[f"time-out: {'of a gang' if to_be else 'of what is not used'}"] += 1


def takes_place(held: Held, ask: Ask) -> bool:
    """Whether the ask may run on the placeholder's node once that is gone."""
    node = held.node
    if not node.schedulable:
        return False
    return all(
        not want or node.used[number] - held.wants[number] + want <= node.capacity[number]
        for number, want in enumerate(ask.wants)
    )
