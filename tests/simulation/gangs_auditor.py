"""The auditor of gangs: hears what the core is told, sees what comes out, and believes nothing.

It is told of commands, facts and events only, keeps books of its own (``gangs_books.py``), and asks of each fact
whether it may be, and after each step whether all that must be was. What the core counts is compared with the books at
the end of each step, and only there is the core itself looked at.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from muster_scheduler.core.commands import (
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_scheduler.core.outcome import (
    AcceptedApplication,
    AcceptedNode,
    Change,
    ConfigurationAnswer,
    Detail,
    Event,
    EventType,
    Fact,
    NewAllocation,
    RejectedApplication,
    RejectedAsk,
    ReleasedAllocation,
    ReleasedAsk,
    TooSmallCluster,
    UpdatedApplication,
)
from muster_scheduler.core.scheduler import SchedulerCore
from simulation.event_sums import amounts_of
from simulation.gangs_books import (
    COMPLETING_NS,
    PLACEHOLDERS_WAIT_NS,
    REMINDER_NS,
    SECOND_NS,
    App,
    Ask,
    AuditFailure,
    Books,
    Document,
    Held,
    Limit,
    Node,
    Vector,
    covers,
    must,
    vector,
)

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
CREATION_TIME = "yunikorn.apache.org/creationTime"
_TOLD = {
    "preempted": Termination.PREEMPTED_BY_SCHEDULER,
    "timeout": Termination.TIMEOUT,
    "replaced": Termination.PLACEHOLDER_REPLACED,
}
# What the RM says for the second time, and is not told again.
_CONFIRMATIONS = (
    Termination.TIMEOUT,
    Termination.PREEMPTED_BY_SCHEDULER,
    Termination.PLACEHOLDER_REPLACED,
    Termination.SCHEDULING_FAILED_ON_RM,
)
_GONE = (
    Detail.ALLOC_CANCEL,
    Detail.ALLOC_PREEMPT,
    Detail.ALLOC_TIMEOUT,
    Detail.ALLOC_REPLACED,
    Detail.ALLOC_NODEREMOVED,
)


class Auditor:
    """Audits one life.

    :ivar tally: how often what came up.
    """

    def __init__(self, document: Document, tally: Counter[str]) -> None:
        self.tally = tally
        self.document = document
        self.offered: Document | None = None
        self.begin_again()

    def begin_again(self) -> None:
        """The RM registered anew: nothing is known but the configuration."""
        self.books = Books(self.document)
        self.now_ns = 0
        self._order = 0
        # What must still be said in answer to a command.
        self._echoes: Counter[tuple[str, str, str, Termination]] = Counter()
        self._answers: Counter[tuple[str, str]] = Counter()
        self._adopted: dict[tuple[str, str], AskItem] = {}
        self._owed: list[tuple[Held, Ask]] = []
        self._swapped: set[tuple[str, str]] = set()
        # In a cycle.
        self._deciding = False
        self._due: dict[App, bool] = {}
        self._mismatched: dict[str, list[Vector]] = {}
        self._kept: dict[str, str] = {}
        self._kept_before: dict[str, str] = {}
        self._keeps: set[tuple[str, str]] = set()
        self._preempted: dict[App, list[Held]] = {}
        self._events: dict[str, Counter[str]] = {}

    # ---- what happens ----------------------------------------------------------------------------------------------

    def heard(self, command: Command, facts: list[Fact], events: list[Event], now_ns: int) -> None:
        """A command was taken, and this came out."""
        self.now_ns = now_ns
        self._deciding = False
        for event in events:
            if event.detail is Detail.NODE_RESERVATION:
                self._reservation(event)
        match command:
            case UpdateAllocations():
                for release in command.releases:
                    self._hear_release(release)
                for item in command.asks:
                    self._hear_ask(item)
            case UpdateNodes():
                for node in command.nodes:
                    self._hear_node(node)
            case UpdateApplications():
                for new in command.new:
                    self._hear_application(new, facts)
                for _, app_id in command.remove:
                    self._hear_removal(app_id)
            case UpdateConfiguration():
                assert self.offered is not None
                self.document = self.offered
                self.books.configure(self.document)
                self._answers["configuration", ""] += 1
                self.tally["configuration"] += 1
        self._take(facts)
        for what in (self._echoes, self._answers):
            left = +what
            must(not left, "answer", f"not answered: {list(left)[:3]} after {command}")
            what.clear()
        must(not self._adopted, "answer", f"not echoed: {list(self._adopted)[:3]}")
        self._check_owed(command)
        self._count_events(facts, events)

    def cycled(self, facts: list[Fact], events: list[Event], now_ns: int, budget: int) -> None:
        """A cycle was run, and this came out."""
        self.now_ns = now_ns
        self._deciding = True
        self._due = {}
        for app in self.books.apps.values():
            if app.deadline_ns and app.deadline_ns <= now_ns:
                replacing = any(ask.leaving for ask in app.asks.values())
                self._due[app] = app.state in ("New", "Accepted") and app.phase != "USED" and not replacing
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

    # ---- commands: nodes -------------------------------------------------------------------------------------------

    def _hear_node(self, item: NodeItem) -> None:
        books = self.books
        self.tally[f"node: {item.action.name}"] += 1
        if item.action in (NodeAction.CREATE, NodeAction.CREATE_DRAIN):
            node = Node(item.node_id, vector(item.capacity or {}), item.action is NodeAction.CREATE)
            books.nodes[item.node_id] = node
            self._answers["accepted node", item.node_id] += 1
            for existing in item.existing:
                self._hear_adopted(existing._replace(node_id=item.node_id))
            return
        node = books.nodes[item.node_id]
        if item.action is NodeAction.UPDATE:
            node.capacity = vector(item.capacity or {})
        elif item.action is NodeAction.DECOMISSION:
            del books.nodes[item.node_id]
            for app in books.apps.values():
                for held in [each for each in app.held.values() if each.node is node]:
                    heir = app.asks.get(held.heir)
                    self._echoes[app.app_id, held.key, held.uuid, Termination.STOPPED_BY_RM] += 1
                    self._note_gone(held, "node")
                    books.drop(held, "timed_out" if held.told == "timeout" else "lost")
                    if heir is not None:
                        self._owed.append((held, heir))
        else:
            node.schedulable = item.action is NodeAction.DRAIN_TO_SCHEDULABLE

    # ---- commands: applications ------------------------------------------------------------------------------------

    def _hear_application(self, item: AppItem, facts: list[Fact]) -> None:
        books = self.books
        must(item.app_id not in books.apps, "harness", f"{item.app_id} is there")
        queue = books.queues[item.queue]
        total = vector(item.placeholder_ask) if item.placeholder_ask else None
        timeout_ns = item.execution_timeout_ms * 1_000_000 or PLACEHOLDERS_WAIT_NS
        created = item.tags.get(CREATION_TIME)
        if created is not None and int(created) * SECOND_NS <= self.now_ns:
            timeout_ns = max(int(created) * SECOND_NS + timeout_ns - self.now_ns, 1_000_000)
        app = App(item.app_id, queue, item.user, timeout_ns, item.gang_style, total, total is not None)
        if total is not None:
            app.phase = "WAITING"
        books.apps[app.app_id] = app
        books.assign_limits(app)
        why = ""
        if total is not None:
            if queue.property("application.sort.policy", "fifo") == "fair":
                why = "unsupported sort type fair"
            else:
                large = any(total[n] > each.most[n] for each in queue.levels[:-1] for n in (0, 1, 2))
                limited = any(total[n] > each.most[n] for each in app.limits for n in (0, 1, 2))
                why = "larger than max queue allocation" if large else "larger than the limit" if limited else ""
        if not why:
            self._answers["accepted application", item.app_id] += 1
            return
        del books.apps[app.app_id]
        self._answers["rejected application", item.app_id] += 1
        self.tally[f"application rejected: {why}"] += 1
        said = next((fact for fact in facts if isinstance(fact, RejectedApplication)), None)
        must(said is not None and why in said.reason, "admission", f"{item}: {said}, expected {why!r}")

    def _hear_removal(self, app_id: str) -> None:
        app = self.books.apps.get(app_id)
        if app is None:
            return
        self.tally["application: removed"] += 1
        for ask in list(app.asks.values()):
            self.books.remove_ask(ask, "lost")
        for held in list(app.held.values()):
            self._echoes[app_id, held.key, held.uuid, Termination.STOPPED_BY_RM] += 1
            self._note_gone(held, "its application")
            self.books.drop(held, "lost")
        self._forget(app)

    def _forget(self, app: App) -> None:
        del self.books.apps[app.app_id]

    # ---- commands: asks --------------------------------------------------------------------------------------------

    def _hear_ask(self, item: AskItem) -> None:
        if item.node_id:
            self._hear_adopted(item)
            return
        books = self.books
        app = books.apps.get(item.app_id)
        wants = vector(item.quantities)
        if app is None or app.state == "Failing" or not any(wants):
            self._answers["rejected ask", item.key] += 1
            return
        old = app.asks.get(item.key)
        made = old.made if old is not None else sum(key == item.key for key, _ in app.held)
        if made >= item.wanted:
            if old is not None:
                books.remove_ask(old, "lost")
            return
        self._order += 1
        ask = Ask(
            self._order,
            app,
            item.key,
            dict(item.quantities),
            wants,
            0,
            made,
            item.priority,
            item.task_group,
            item.placeholder and bool(item.task_group),
            item.previous_generation,
            item.allow_preempt_other,
            item.allow_preempt_self,
        )
        pending = item.wanted - made
        if old is not None:
            self._replace_ask(old, ask, pending)
        books.add_ask(ask, pending)
        if ask.placeholder:
            app.groups[ask.task_group].asked += pending
        self.tally[f"ask: {'placeholder' if ask.placeholder else 'real'}"] += 1

    def _replace_ask(self, old: Ask, new: Ask, pending: int) -> None:
        """The same key again."""
        new.order = old.order
        if old.placeholder:
            old.app.groups[old.task_group].asked -= old.pending
        same = (old.wants, old.pending, old.priority) == (new.wants, pending, new.priority)
        if old.wants == new.wants:
            new.mismatched = old.mismatched
        self.tally["ask: again" if same else "ask: changed"] += 1
        if old.leaving:
            self.tally["ask: changed while a placeholder leaves"] += 1
        self.books.remove_ask(old, "")

    def _hear_adopted(self, item: AskItem) -> None:
        books = self.books
        app, node = books.apps.get(item.app_id), books.nodes.get(item.node_id)
        wants = vector(item.quantities)
        if app is None or node is None or not any(wants):
            self._answers["rejected ask", item.key] += 1
            return
        self._adopted[item.app_id, item.key] = item

    # ---- commands: releases ----------------------------------------------------------------------------------------

    def _hear_release(self, item: ReleaseItem) -> None:
        books = self.books
        app = books.apps.get(item.app_id)
        if app is None:
            return
        self.tally[f"release: {item.termination.name}{' (ask)' if item.ask_only else ''}"] += 1
        found = [
            held
            for held in app.held.values()
            if (held.uuid == item.uuid if item.uuid else not item.key or held.key == item.key)
        ]
        if item.ask_only:
            found = []
        failed_on_rm = item.termination is Termination.SCHEDULING_FAILED_ON_RM and not item.ask_only
        if failed_on_rm and app.state != "Failing":
            for held in found:
                if held.told in ("timeout", "replaced"):
                    self._end(held, item)
                else:
                    self._ask_again(held)
            return
        if item.termination is not Termination.TIMEOUT or item.ask_only:
            for ask in list(app.asks.values()):
                if ask.key == item.key or (not item.key and not item.uuid):
                    self.tally["ask: cancelled"] += 1
                    if ask.leaving:
                        self.tally["ask: cancelled while a placeholder leaves"] += 1
                    books.remove_ask(ask, "lost")
        for held in found:
            self._end(held, item)

    def _end(self, held: Held, item: ReleaseItem) -> None:
        if item.termination not in _CONFIRMATIONS:
            termination = item.termination or Termination.STOPPED_BY_RM
            self._echoes[held.app.app_id, held.key, held.uuid, Termination(termination)] += 1
        heir, became = (
            held.app.asks.get(held.heir),
            {"timeout": "timed_out", "replaced": "replaced"}.get(held.told, "lost"),
        )
        if held.told:
            other = item.termination is not _TOLD[held.told]
            self.tally[f"confirmed: {held.told}{' in other words' if other else ''}"] += 1
        if not held.placeholder:
            held.app.awaits = False
        self._note_gone(held, "the RM")
        self.books.drop(held, became)
        if heir is not None:
            self._owed.append((held, heir))

    def _note_gone(self, held: Held, why: str) -> None:
        if held.placeholder:
            self.tally[f"placeholder gone: {held.told or 'free'}, by {why}"] += 1

    def _ask_again(self, held: Held) -> None:
        """The RM could not start it."""
        books, app = self.books, held.app
        old = app.asks.get(held.key)
        books.drop(held, "lost")
        if held.placeholder:
            app.groups[held.task_group].lost -= 1
        self.tally["ask: again after a failure on the RM"] += 1
        if old is not None:
            old.made -= 1
            books.pend(old, 1)
            return
        made = sum(key == held.key for key, _ in app.held)
        self._order += 1
        ask = Ask(
            self._order,
            app,
            held.key,
            held.said,
            held.wants,
            0,
            made,
            held.priority,
            held.task_group,
            held.placeholder,
            held.previous,
            held.may_preempt,
            held.may_go,
        )
        books.add_ask(ask, 1)

    # ---- facts -----------------------------------------------------------------------------------------------------

    def _take(self, facts: list[Fact]) -> None:
        self._swapped = set()
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
        reported = self._adopted.pop((app.app_id, made.key), None)
        if reported is not None:
            self._new_adopted(app, made, reported)
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
        self._order += 1
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
            self._order,
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

    def _new_adopted(self, app: App, made: Any, item: AskItem) -> None:
        node = self.books.nodes[item.node_id]
        must(made.node_id == item.node_id, "answer", f"{item} is said to be on {made.node_id}")
        must(not item.uuid or made.uuid == item.uuid, "answer", f"{item} got another uuid, {made.uuid}")
        placeholder = item.placeholder and bool(item.task_group)
        must(
            (made.demand.placeholder, made.demand.task_group) == (placeholder, item.task_group),
            "flags",
            f"{item} became {made.demand}",
        )
        self._order += 1
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
            self._order,
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
        must(not counts.pending, "gang forming", f"{ask} did not wait for the placeholders of its group")

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
            single = len(self._owed) == 0 and not self._swapped
            must(not (fits and single), "swap", f"{ask} went to {node.node_id}, {held.node.node_id} had room; {kept}")
        else:
            self.tally["replaced: on the same node"] += 1
            if held.wants != ask.wants:
                self.tally["replaced: by a smaller one"] += 1
        if self.books.over(ask.app, ask.wants):
            self.tally["replaced: above a lowered max"] += 1
        self._swapped.add((ask.app.app_id, ask.key))

    def _kept_by(self, ask: Ask) -> str:
        return next((node_id for node_id, key in self._kept.items() if key == ask.key), "")

    def _check_owed(self, command: Command) -> None:
        """Whose placeholder is gone was allocated at once, or fits nowhere, or is gone itself."""
        owed, self._owed = self._owed, []
        if len(owed) != 1:
            self.tally["replaced: not at once"] += len(owed)
            return
        held, ask = owed[0]
        alone = not isinstance(command, UpdateAllocations) or (len(command.releases) == 1 and not command.asks)
        if ask.app.asks.get(ask.key) is not ask or ask.open <= 0 or not alone:
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
                held.told = "preempted"
                self._preempted.setdefault(app, []).append(held)
                self.tally[f"told: {'placeholder' if held.placeholder else 'real'} preempted"] += 1
            case _:
                raise AuditFailure("told", f"{fact}: {held} runs")
        held.told_ns = self.now_ns

    def _reminder(self, held: Held, fact: ReleasedAllocation) -> None:
        must(fact.termination is _TOLD[held.told], "reminder", f"{fact}: {held} was told otherwise")
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
        takes = _takes(held, ask)
        for each in app.free(held.task_group):
            if each is held or not covers(each.wants, ask.wants):
                continue
            better = _takes(each, ask) and (not takes or each.order < held.order)
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
        return self._due.get(app, False) and app.style.lower() == "hard"

    def _released_ask(self, fact: ReleasedAsk) -> None:
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
        for app, told in self._preempted.items():
            if app.queue.property("gang.preemption", "members") != "whole" or not app.phase:
                continue
            left = [each for each in app.held.values() if not each.told]
            gang = app.groups and any(each.placeholder or each.task_group in app.groups for each in told)
            left = [each for each in left if each.placeholder or each.task_group in app.groups]
            must(not (gang and left), "whole gang", f"{told} of a gang were preempted, and {left[:3]} stay")
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
            hard = app.style.lower() == "hard"
            must(self._due.get(app, False), "state", f"{app.app_id} is {state}, and no time was up")
            must(hard == (state == "Failing"), "state", f"{app.app_id} is {state}, its style is {app.style!r}")
            must(fact.message == TIMED_OUT, "state", f"{app.app_id} is {state} by {fact.message!r}")
            app.phase = "OVER"
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
        for app, failed in self._due.items():
            if self.books.apps.get(app.app_id) is not app:
                continue
            asks = [ask for ask in app.asks.values() if ask.placeholder]
            must(not asks, "time-out", f"{app.app_id}: its placeholders' time is up, and {asks[:2]} stay")
            free = [each for each in app.held.values() if each.free]
            must(not free, "time-out", f"{app.app_id}: its placeholders' time is up, and {free[:2]} stay")
            if failed:
                must(app.phase in ("OVER", "USED"), "time-out", f"{app.app_id} is {app.state}, not failed")
            self.tally[f"time-out: {'of a gang' if failed else 'of what is not used'}"] += 1

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
                        if counts.pending:
                            continue
                if not books.over(app, ask.wants):
                    room = self._room(ask)
                    must(room is None, "left pending", f"{ask} fits on {room.node_id if room else ''}")

    def _check_stuck(self, ask: Ask, free: list[Held]) -> None:
        fits = [each for each in free if covers(each.wants, ask.wants)]
        must(bool(fits), "left pending", f"{ask} waits, and no placeholder of {free[:2]} is as large")
        takes = [each for each in fits if _takes(each, ask)]
        must(not takes, "left pending", f"{ask} waits, and {takes[:1]} could give way")
        # (One node at a time is kept for an ask: with repeats, what leaves for it must be gone first.)
        room = self._room(ask) if not self._kept_by(ask) and not ask.leaving else None
        must(room is None, "left pending", f"{ask} could go to {room.node_id if room else ''} for {fits[0]}")
        self.tally["stuck: no node for a real ask"] += 1

    def _room(self, ask: Ask) -> Node | None:
        for node in self.books.nodes.values():
            if node.schedulable and self._kept.get(node.node_id, ask.key) == ask.key and node.fits(ask.wants):
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


def _takes(held: Held, ask: Ask) -> bool:
    """Whether the ask may run on the placeholder's node once that is gone."""
    node = held.node
    if not node.schedulable:
        return False
    return all(
        not want or node.used[number] - held.wants[number] + want <= node.capacity[number]
        for number, want in enumerate(ask.wants)
    )
