"""Whether what a cycle decided was right: event by event, each against the books of that very moment.

An allocation must fit where it went, keep every limit, and be the one that came first: in its application, its leaf,
and at each queue up to root, of all that could have been placed as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain, pairwise
from typing import Any

from muster_core.model.application import Allocation
from muster_core.model.commands import Termination
from muster_core.model.outcome import (
    Event,
    EventChange,
    EventDetail,
    EventType,
    Fact,
    NewAllocation,
    ReleasedAllocation,
    ReleasedAsk,
    ScaleUpHint,
    UpdatedApplication,
)
from simulation import backfilling, claims_laws, node_orders
from simulation.books import OWN, TERMINAL, AuditFailure, BookedAllocation, BookedApp, BookedAsk, BookedNode, must
from simulation.decaying import are_near, decays
from simulation.event_sums import amounts_of
from simulation.hearing import Hearing
from simulation.hearing_asks import REMINDER_NS, remove_ask, unreserve
from simulation.partition_books import Books
from simulation.preempting_laws import Preemptions

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1

Records = Mapping[str, Mapping[tuple[str, ...], Any]]


# Whose maximum of applications it is said to be, in the auditor's words.
_CANNOT_RUN = {EventDetail.APP_CANNOTRUN_QUEUE: ("queue ",), EventDetail.APP_CANNOTRUN_QUOTA: ("user ", "group ")}


class Deciding:
    """The checks of one cycle.

    :param records: what the state topic holds after it, by kind and the parts of the key.
    """

    def __init__(self, hearing: Hearing, records: Records, now_ns: int, *, exhausted: bool) -> None:
        self._hearing = hearing
        self._tally = hearing.tally
        self._records = records
        self._now_ns = now_ns
        self._exhausted = exhausted
        self._facts: deque[Fact] = deque()
        # Nodes that were given up in this cycle: whoever was looked at before may not know yet.
        self._given_up: set[str] = set()
        self._was_reserved: dict[tuple[str, str], BookedNode] = {}
        # Asks that lost their node and got nothing, with the node and for how long they had it.
        self._lost: dict[BookedAsk, tuple[BookedNode, int]] = {}
        # Of these, those that had the node by age alone; and claims that are said to be lost.
        self._by_age: set[BookedAsk] = set()
        self._said_lost: set[BookedAsk] = set()
        self.by_rank: set[str] = set()
        # Nodes reserved by age that have room for an ask of higher rank, whether or not a limit stops it (before
        # the search, that is not known).
        self._contested = {
            node
            for books in hearing.books.values()
            for node in books.nodes.values()
            for holder in node.reservations
            if claims_laws.yields(holder) and claims_laws.rivals(books, node, holder, set(), limited=True)
        }
        self._limited = {ask for books in hearing.books.values() for ask in note_limited(books, now_ns)}
        self._starting: BookedApp | None = None
        self._preemptions = Preemptions(hearing, records, now_ns)
        self._before = {
            name: {app.app_id for app in books.apps.values() if app.waits_to_run}
            for name, books in hearing.books.items()
        }

    def check(self, facts: list[Fact], events: list[Event]) -> int:
        """Checks a cycle's events and facts. Returns the number of new allocations."""
        self._hearing.now_ns = self._now_ns
        self._backfilled: tuple[str, str] | None = None
        for books in self._hearing.books.values():
            books.decayed.pass_time(books, self._now_ns)
        self._facts = deque(facts)
        made = 0
        last: Event | None = None
        for event in events:
            self._lone_facts()
            must(event.now_ns == self._now_ns, "event", f"{event} of another time than {self._now_ns}")
            match (event.type, event.change, event.detail):
                case (EventType.NODE, EventChange.ADD, EventDetail.NODE_RESERVATION):
                    self._reserved(event, last)
                case (EventType.NODE, EventChange.REMOVE, EventDetail.NODE_RESERVATION):
                    self._unreserved(event)
                case (EventType.APP, EventChange.ADD, EventDetail.APP_ALLOC):
                    made += 1
                    self._allocated(event)
                case (EventType.NODE, EventChange.ADD, EventDetail.NODE_ALLOC):
                    same = last is not None and last.detail is EventDetail.APP_ALLOC
                    must(same and last.reference_id == event.reference_id, "event", f"{event} follows {last}")
                case (EventType.APP, EventChange.SET, _):
                    self._state_changed(event)
                case (EventType.APP, EventChange.REMOVE, EventDetail.REQUEST_CANCEL):
                    self._cancelled(event)
                case (EventType.APP, EventChange.REMOVE, EventDetail.NONE) | (
                    EventType.QUEUE,
                    EventChange.REMOVE,
                    EventDetail.QUEUE_APP,
                ):
                    pass  # EventSums follows who is in which queue
                case (EventType.QUEUE, EventChange.REMOVE, _):
                    self._queue_gone(event)
                case (EventType.REQUEST, EventChange.NONE, EventDetail.NONE):
                    self._told_people(event, last)
                case (
                    EventType.USERGROUP,
                    EventChange.ADD,
                    EventDetail.UG_USER_RESOURCE | EventDetail.UG_GROUP_RESOURCE,
                ):
                    same = last is not None and last.detail in (EventDetail.NODE_ALLOC, EventDetail.UG_USER_RESOURCE)
                    must(same and last.resource == event.resource, "event", f"{event} follows {last}")
                case (EventType.USERGROUP, EventChange.REMOVE, EventDetail.UG_APP_LINK):
                    pass  # EventSums follows them
                case (EventType.APP, EventChange.NONE, detail) if detail in _CANNOT_RUN:
                    self._cannot_run(event, _CANNOT_RUN[detail])
                case (EventType.APP, EventChange.NONE, EventDetail.APP_RUNNABLE_QUEUE | EventDetail.APP_RUNNABLE_QUOTA):
                    self._tally["event: may run again"] += 1
                case (EventType.QUEUE, EventChange.SET, EventDetail.QUEUE_PREEMPTION):
                    self._tally["event: quota preemption"] += 1
                case _:
                    raise AuditFailure("event", f"a cycle says {event}")
            last = event
        self._lone_facts()
        if self._facts:
            raise AuditFailure("answer", f"{self._facts[0]} without an event")
        self._preemptions.finish()
        self._check_lost()
        return made

    # ---- facts -----------------------------------------------------------------------------------------------------

    def _lone_facts(self) -> None:
        """Checks the facts that have no event of their own."""
        while self._facts:
            fact = self._facts[0]
            if isinstance(fact, ScaleUpHint):
                self._too_small(fact)
            elif isinstance(fact, ReleasedAllocation) and self._reminds(fact):
                self._tally["told: again"] += 1
            elif isinstance(fact, ReleasedAllocation) and fact.termination is Termination.TIMEOUT:
                self._timed_out(fact)
            else:
                return
            self._facts.popleft()

    def _fact(self, kind: type[Any], event: Event) -> Any:
        fact = self._facts.popleft() if self._facts else None
        must(isinstance(fact, kind), "answer", f"{event} goes with {fact}, expected a {kind.__name__}")
        return fact

    def _too_small(self, fact: ScaleUpHint) -> None:
        books = self._hearing.books[fact.partition]
        app = books.apps.get(fact.app_id)
        ask = app.asks.get(fact.key) if app is not None else None
        if ask is None or app is None:
            raise AuditFailure("autoscaling", f"{fact} of an ask that is not there")
        must(not ask.told_small, "autoscaling", f"{ask}: told twice that the cluster is too small")
        must(not ask.required, "autoscaling", f"{ask} wants node {ask.required}, not a larger cluster")
        over = books.over(app, ask.wants)
        must(not over, "autoscaling", f"{ask}: a larger cluster would not help, {over}")
        if not ask.preempts and self._exhausted:  # else its turn may come
            rooms = [node.node_id for node in books.rooms(ask) if node.node_id not in self._given_up]
            must(not rooms, "autoscaling", f"{ask} fits on {rooms}")
        ask.told_small = True
        self._tally["told: the cluster is too small"] += 1

    def _reminds(self, fact: ReleasedAllocation) -> bool:
        """An unconfirmed release is repeated every five minutes."""
        held = find_held(self._hearing.books[fact.partition], fact.app_id, fact.key, fact.uuid)
        if not held.told:
            return False
        termination = Termination.TIMEOUT if held.told == "timeout" else Termination.PREEMPTED_BY_SCHEDULER
        must(fact.termination is termination, "reminder", f"{fact}: {held} was told to go: {held.told}")
        must(self._now_ns >= held.told_ns + REMINDER_NS, "reminder", f"{fact} too soon: {held.told_ns}")
        must(self._now_ns > held.reminded_ns, "reminder", f"{fact} twice")
        held.reminded_ns = self._now_ns
        return True

    def _timed_out(self, fact: ReleasedAllocation) -> None:
        books = self._hearing.books[fact.partition]
        held = find_held(books, fact.app_id, fact.key, fact.uuid)
        app = held.app
        assert app is not None
        own = 0 < held.end_ns <= self._now_ns
        fails = app.state == "Failing" or self._is_due(app)
        must(own or fails, "timeout", f"{held} is told that its time is up")
        held.told, held.told_ns = "timeout", self._now_ns
        self._tally["told: time is up"] += 1

    # ---- states ----------------------------------------------------------------------------------------------------

    def _state_changed(self, event: Event) -> None:
        state = event.detail.name.removeprefix("APP_").capitalize()
        if not event.object_id.startswith(OWN):  # of which the RM is told nothing
            fact = self._fact(UpdatedApplication, event)
            must(fact.app_id == event.object_id, "state", f"{event} goes with {fact}")
            must(state == fact.state, "state", f"{event} goes with {fact}")
        books, app = self._app(event.object_id)
        if state in ("Accepted", "Running"):
            must(app.state in ("New", "Accepted", "Completing"), "state", f"{app.app_id}: {app.state} to {state}")
            self._starting = app
        elif state == "Completed":
            must(app.state == "Completing", "state", f"{app.app_id}: {app.state} to {state}")
            must(app.deadline_ns <= self._now_ns, "state", f"{app.app_id} is Completed before its 30 s are over")
        elif state == "Failing":
            must(self._is_due(app), "state", f"{app.app_id} fails in {app.state}, its time is not up")
            self._tally["application: time is up"] += 1
        elif state == "Failed":
            empty = not app.asks and not app.held
            must(app.state == "Failing" and empty, "state", f"{app.app_id} failed with something held")
        elif state == "Expired":
            must(app.state in TERMINAL and app.deadline_ns <= self._now_ns, "state", f"{app.app_id} expired early")
        else:
            raise AuditFailure("state", f"{app.app_id} becomes {state} in a cycle")
        self._hearing.set_state(books, app, state)

    def _is_due(self, app: BookedApp) -> bool:
        """Whether the application's execution time is over: it fails after everything of it is released."""
        return app.state == "Running" and app.timeout_ms > 0 and app.deadline_ns <= self._now_ns

    def _cancelled(self, event: Event) -> None:
        fact = self._fact(ReleasedAsk, event)
        must((fact.app_id, fact.key) == (event.object_id, event.reference_id), "event", f"{event} goes with {fact}")
        _, app = self._app(event.object_id)
        ask = app.asks.get(event.reference_id)
        must(self._is_due(app) and ask is not None, "event", f"{event} of an application in state {app.state}")
        assert ask is not None
        del app.asks[ask.key]  # if a node is kept for it, that it is given up comes next

    def _queue_gone(self, event: Event) -> None:
        for books in self._hearing.books.values():
            queue = books.queues.get(event.object_id)
            if queue is None or not (queue.draining or not queue.managed) or any(books.children(queue.path)):
                continue
            if any(books.apps_below(queue.path)):
                continue
            del books.queues[queue.path]
            parent = books.queues[queue.path.rpartition(".")[0]]
            parent.empty_since_ns = self._now_ns
            self._tally["queue: gone"] += 1
            return
        raise AuditFailure("queue", f"{event}: the queue must stay")

    # ---- reservations ----------------------------------------------------------------------------------------------

    def _reserved(self, event: Event, last: Event | None) -> None:
        books, node = self._node(event.object_id)
        ask = self._asking(books, event)
        must(ask.reserved is None, "reservation", f"{ask} gets {node.node_id}, and has another node")
        # (What a plan reserves comes right behind its victims, or behind what is given up for it.)
        own_plan = self._preemptions.last_asker is ask and last is not None
        own_plan = own_plan and (last.type is EventType.REQUEST or last.detail is EventDetail.NODE_RESERVATION)
        daemon, preempting = bool(ask.required), own_plan and ask in self._preemptions.askers
        preempting = preempting and ask not in self._preemptions.settled
        for loser in [loser for loser, (lost, _) in self._lost.items() if lost is node and loser is not ask]:
            timed_out = loser in self._limited and self._lost[loser][1] >= books.reservation_timeout_ns
            if loser in self._by_age and not (daemon or timed_out) and loser.app.asks.get(loser.key) is loser:
                ranks = claims_laws.outranks(books, ask, loser)
                must(ranks, "rank", f"{ask} takes {node.node_id} from {loser}, which ranks above it")
                del self._lost[loser]
                self._tally["reservation: taken by a higher rank"] += 1
        alone = not node.reservations or (daemon and all(other.required for other in node.reservations))
        must(alone, "reservation", f"{node.node_id} is kept for {ask}, and for {node.reservations}")
        must(node.could_hold(ask.wants), "reservation", f"{node.node_id} could never hold {ask}")
        over = "" if preempting else books.over(ask.app, ask.wants)
        must(not over, "reservation", f"{ask} is over a limit: {over}")
        if daemon:
            must(ask.required == node.node_id, "reservation", f"{ask} wants {ask.required}, gets {node.node_id}")
            self._tally["reservation: for a daemon"] += 1
        elif not preempting:
            must(books.reservation_enabled, "reservation", f"{ask} reserves, where nobody may")
            age_ns = self._now_ns - ask.created_ns
            must(age_ns >= books.reservation_delay_ns, "reservation", f"{ask} reserves {age_ns} ns after it came")
            must(node.usable, "reservation", f"{node.node_id} is draining, and kept for {ask}")
            rooms = books.rooms(ask, but=frozenset(self._given_up)) or claims_laws.rooms_by_rank(books, ask)
            must(not rooms, "reservation", f"{ask} reserves, and fits on {rooms[0].node_id if rooms else ''}")
            must(books.full(ask.app) == "", "reservation", f"{ask} reserves and may not run")
            self._tally["reservation: made"] += 1
        else:
            self._preemptions.kept(ask, node)
            ask.preempts = True
            self._tally["reservation: with victims"] += 1
        ask.reserved, ask.reserved_ns = node, self._now_ns
        node.reservations.append(ask)

    def _unreserved(self, event: Event) -> None:
        _, node = self._node(event.object_id)
        said = amounts_of(event)
        asks = [ask for ask in node.reservations if ask.key == event.reference_id and ask.said == said]
        if not asks:
            raise AuditFailure("reservation", f"{event}: nobody of this key has it")
        ask = asks[0]
        if claims_laws.yields(ask) and ask not in self._said_lost:
            self._by_age.add(ask)
        self._lost[ask] = (node, self._now_ns - ask.reserved_ns)
        self._was_reserved[ask.app.app_id, ask.key] = node
        self._give_up(ask)
        unreserve(ask)

    def _check_lost(self) -> None:
        """A reservation ends when its ask is placed, for a daemon or a preempting ask, or at the time-out."""
        for ask, (node, age_ns) in self._lost.items():
            if ask.app.asks.get(ask.key) is not ask:
                self._tally["reservation: its ask is gone"] += 1
                continue
            books = self._hearing.books[self._partition_of(node)]
            taken = any(other.required or other in self._preemptions.askers for other in node.reservations)
            if taken or ask in self._preemptions.askers or ask in self._said_lost:
                self._tally["reservation: taken by a daemon or a preempting ask"] += 1
                continue
            over = ask in self._limited and age_ns >= books.reservation_timeout_ns
            must(over, "reservation", f"{ask} lost {node.node_id} after {age_ns} ns for nothing")
            self._tally["reservation: timed out"] += 1

    def _partition_of(self, node: BookedNode) -> str:
        return next(name for name, books in self._hearing.books.items() if books.nodes.get(node.node_id) is node)

    def _give_up(self, ask: BookedAsk) -> None:
        if ask.reserved is not None:
            self._given_up.add(ask.reserved.node_id)

    def _asking(self, books: Books, event: Event) -> BookedAsk:
        """(The same key may be asked for by several applications: in the simulation they differ in their amounts.)"""
        said = amounts_of(event)
        for app in books.apps.values():
            ask = app.asks.get(event.reference_id)
            if ask is not None and ask.said == said:
                return ask
        raise AuditFailure("reservation", f"{event}: nobody asks for this")

    # ---- preemption ------------------------------------------------------------------------------------------------

    def _cannot_run(self, event: Event, kinds: tuple[str, ...]) -> None:
        found = [books for books in self._hearing.books.values() if event.object_id in books.apps]
        must(len(found) == 1, "event", f"{event} is about nobody")
        full = found[0].full(found[0].apps[event.object_id])
        must(full.startswith(kinds), "event", f"{event}: {full or 'it may'}")
        self._tally["event: may not run"] += 1

    def _told_people(self, event: Event, last: Event | None) -> None:
        if event.message.startswith("Preempted by "):
            self._released(event)
            return
        if event.message == "Successful allocation":
            before = EventType.NODE if event.reference_id == OWN else EventType.USERGROUP  # (of nobody there is none)
            same = last is not None and last.type is before and last.resource == event.resource
            must(same, "event", f"{event} follows {last}")
            return
        if event.message.startswith("Backfilled on node "):
            must(self._backfilled == (event.reference_id, event.object_id), "event", f"{event}: it was not")
            return
        if event.message.startswith("The room that was made for it on node "):
            self._claim_lost(event)
            return
        key = (event.reference_id, event.object_id)
        asks = [books for books in self._hearing.books.values() if event.reference_id in books.apps]
        must(len(asks) == 1, "event", f"{event} is about nobody")
        ask = asks[0].apps[key[0]].asks.get(key[1])
        if " does not fit in queue " in event.message or " exceeds the available user quota " in event.message:
            must(ask is not None, "event", f"{event} is about no ask")
            by_queue = " in queue " in event.message
            over = ask is not None and asks[0].over_some(ask.app, ask.wants, queue=by_queue)
            must(bool(over), "event", f"{event}: it fits")
            self._tally["event: does not fit"] += 1
        elif " has become schedulable in queue " in event.message or " fits in the available user" in event.message:
            self._tally["event: fits again"] += 1
        elif "no preemption victim found" in event.message:
            must(ask is not None and bool(ask.required), "event", f"{event} is about no daemon")
            self._tally["event: no victim"] += 1
        else:
            raise AuditFailure("event", f"a cycle says {event}")

    def _claim_lost(self, event: Event) -> None:
        books, app = self._app(event.reference_id)
        ask = app.asks.get(event.object_id)
        if ask is None or ask.reserved is None:
            raise AuditFailure("claim", f"{event} of an ask without a node")
        must(ask.preempts and ask.reserved.node_id in event.message, "claim", f"{event}: {ask} claims {ask.reserved}")
        if "others use it" in event.message or (not ask.required and "a limit stops" in event.message):
            limited = "a limit stops" in event.message
            must(not limited or bool(books.over(app, ask.wants) or books.full(app)), "claim", f"{event}: no limit does")
            claims_laws.check_lost(books, ask, ask.reserved)
        self._tally["claim: lost"] += 1
        self._said_lost.add(ask)
        ask.preempts = False

    def _released(self, event: Event) -> None:
        fact = self._fact(ReleasedAllocation, event)
        words = (fact.key, fact.app_id, fact.message)
        must(words == (event.object_id, event.reference_id, event.message), "event", f"{event} goes with {fact}")
        must(fact.termination is Termination.PREEMPTED_BY_SCHEDULER, "preemption", f"{fact} is no preemption")
        books = self._hearing.books[fact.partition]
        self._preemptions.told(books, find_held(books, fact.app_id, fact.key, fact.uuid), fact.message)

    # ---- allocations -----------------------------------------------------------------------------------------------

    def _allocated(self, event: Event) -> None:
        fact = self._fact(NewAllocation, event)
        made = fact.allocation
        books = self._hearing.books[fact.partition]
        app = books.apps.get(made.app_id)
        ask = app.asks.get(made.key) if app is not None else None
        node = books.nodes.get(made.node_id)
        must(books.deciding, "deciding", f"{made.key} was placed while nothing is decided")
        if app is None or ask is None or node is None or event.object_id != made.app_id:
            raise AuditFailure("allocation", f"{made} of an ask, application or node that is not there; {event}")
        must(self._starting in (None, app), "state", f"{self._starting} changed its state, {app.app_id} got something")
        was = self._was_reserved.pop((app.app_id, ask.key), None)
        # (Its state changed a moment before the decision is told: who may run is seen as it was.)
        state, app.state = app.state, "Accepted" if self._starting is app else app.state
        self._check_allowed(books, ask, node)
        self._backfilled = (made.app_id, made.key) if made.backfilled is not None else None
        kept = [other for other in node.reservations if other is not ask]
        by_rank = bool(kept) and not ask.required and claims_laws.may_use(books, ask, node)
        backfilled = bool(kept) and not ask.required and not by_rank
        must(bool(made.backfilled) == backfilled, "backfill", f"{made} says {made.backfilled}")
        waited = self._before.get(books.name, set())
        if by_rank:
            self.by_rank.add(node.node_id)
            claims_laws.check_placed(books, ask, node, waited)
        elif was is node and ask in self._by_age:
            first = claims_laws.rivals(books, node, ask, waited)
            must(not first, "rank", f"{ask} was placed on its {node.node_id}, and {first} rank above it")
        elif was is not node:
            self._check_first(books, ask)
            if made.backfilled is None:
                self._check_node(books, ask, node)
        app.state = state
        self._tally[
            f"allocation: {'on its reserved node' if was is node else 'by rank' if by_rank else 'in order'}"
        ] += 1
        held = allocation_of(ask, made, self._now_ns)
        if made.backfilled is not None:
            held.promised_ns = backfilling.ends_after(self._now_ns, ask) or 0
        if self._lost.pop(ask, None) is not None:
            self._tally["reservation: served"] += 1
        ordinal = ask.made
        while ordinal and (ask.key, ordinal) in app.held:
            ordinal += 1  # an earlier one came back, those behind it did not
        must(made.ordinal == ordinal, "allocation", f"{held}: expected number {ordinal}, {ask} has had {ask.made}")
        must(bool(made.uuid) == ask.words["previous"], "allocation", f"{held}: UUID {made.uuid!r}")
        books.hold(held)
        ask.pending -= 1
        ask.made += 1
        ask.planned_ns = 0
        if not ask.pending:
            remove_ask(ask)
        must(app.state == "Running", "state", f"{app.app_id} got {ask.key}, and is {app.state}")
        self._starting = None
        if ask.required:
            self._tally["allocation: on a required node"] += 1

    def _check_allowed(self, books: Books, ask: BookedAsk, node: BookedNode) -> None:
        app = ask.app
        full = books.full(app)
        must(not full, "max applications", f"{ask}: {full}")
        over = books.over(app, ask.wants)
        must(not over, "user limit" if over[:5] in ("user ", "group") else "quota", f"{ask}: {over}")
        for name, value in ask.wants.items():
            must(value <= node.free(name), "node fit", f"{ask}: {node.node_id} has {node.free(name)} {name} free")
        if ask.required:
            must(ask.required == node.node_id, "required node", f"{ask} wants {ask.required}, got {node.node_id}")
            return
        must(node.usable, "draining node", f"{ask} went to {node.node_id}")
        others = [other for other in node.reservations if other is not ask]
        if others and not claims_laws.may_use(books, ask, node):
            self._tally[f"backfill: {backfilling.check(books, ask, node, self._now_ns)}"] += 1
        must(app.state not in TERMINAL and app.state != "Failing", "state", f"{ask} of an application {app.state}")

    def _check_node(self, books: Books, ask: BookedAsk, node: BookedNode) -> None:
        """Fails unless the node is the first in order with room."""
        if ask.required:
            return
        value = node_orders.values(books, ask)
        own = value(node)
        for other in books.listed():
            if other is node or other.node_id in self._given_up or not other.has_room(ask.wants):
                continue
            alike = other.capacity == node.capacity and all(
                other.free(name) == node.free(name) for name in (*node.capacity, *other.occupied, *node.occupied)
            )
            ahead = other.node_id < node.node_id if alike else value(other) < own - node_orders.NEARLY
            words = f"{ask} went to {node.node_id} ({own}), and {other.node_id} ({value(other)}) comes first"
            must(not ahead, "node order", words)
        self._tally[f"node order: {books.node_policy}"] += 1

    # ---- who comes first -------------------------------------------------------------------------------------------

    def _check_first(self, books: Books, chosen: BookedAsk) -> None:
        rivals = self._rivals(books)
        if not rivals:
            return
        order = _Order(books)
        chosen_app = chosen.app
        # 1. In its application: the highest priority, then the oldest.
        for ask in rivals.get(chosen_app.app_id, ()):
            own, other = ((-each.priority, each.created_ns, each.order) for each in (chosen, ask))
            must(own <= other, "ask order", f"{chosen} was placed, and {ask} comes first")
        # 2. In its leaf.
        best_of = {
            books.apps[app_id].app_id: max(ask.priority for ask in asks) for app_id, asks in rivals.items() if asks
        }
        own_key = order.app_key(chosen_app, chosen.priority)
        for app_id, priority in best_of.items():
            app = books.apps[app_id]
            if app is not chosen_app and app.queue == chosen_app.queue:
                if order.are_near(chosen_app, app):
                    continue
                key = order.app_key(app, priority)
                self._tally["application order: by decayed use"] += decays(books.queues[app.queue])
                must(own_key <= key, "application order", f"{chosen} {own_key} was placed, and {app_id} {key} waits")
        # 3. At each queue up to root.
        paths = books.queues[chosen_app.queue].parents()
        lent_most = order.lent([chosen, *chain(*self._rivals(books, certain=False).values())])
        lent = order.lent(chain(*rivals.values()))
        for path, parent in pairwise(paths):
            first = books.queues[parent].priority_first
            own_key = order.queue_key(path, lent_most[path], first)
            for rival in books.children(parent):
                if rival.path != path and rival.path in lent:
                    key = order.queue_key(rival.path, lent[rival.path], first)
                    words = f"{chosen}: {path} {own_key} was served, and {rival.path} {key} comes first"
                    must(own_key <= key, "queue order", words)

    def _rivals(self, books: Books, *, certain: bool = True) -> dict[str, list[BookedAsk]]:
        """For each application, the oldest ask of each kind that could have been placed since the cycle began.

        :param certain: without those that the core need not have seen yet.
        """
        found: dict[str, list[BookedAsk]] = {}
        but = frozenset(self._given_up) if certain else frozenset()
        memo: dict[tuple[Any, ...], bool] = {}
        waited = self._before.get(books.name, ()) if certain else ()
        for app in books.apps.values():
            if not app.asks or app.app_id in waited or app.state == "Failing" or books.full(app):
                continue
            for ask in heads(app.asks.values()):
                key = (app.queue, app.user, app.group, *ask.kind[:1], ask.required, id(ask.reserved))
                if key not in memo:
                    memo[key] = not books.over(app, ask.wants) and bool(self._open_rooms(books, ask, but))
                if memo[key]:
                    found.setdefault(app.app_id, []).append(ask)
        return found

    def _open_rooms(self, books: Books, ask: BookedAsk, but: frozenset[str]) -> list[BookedNode]:
        """Where the search may place the ask. (What others may have a better right to is given after the search.)"""
        found, own = books.rooms(ask, but=but), ask.reserved
        if own is None or own not in found or not claims_laws.yields(ask):
            return found
        if own in self._contested or claims_laws.rivals(books, own, ask, set(), limited=True):
            found.remove(own)
        return found

    # ---- look-ups --------------------------------------------------------------------------------------------------

    def _app(self, app_id: str) -> tuple[Books, BookedApp]:
        for books in self._hearing.books.values():
            app = books.apps.get(app_id) or books.finished.get(app_id)
            if app is not None:
                return books, app
        raise AuditFailure("event", f"application {app_id} is not there")

    def _node(self, node_id: str) -> tuple[Books, BookedNode]:
        for books in self._hearing.books.values():
            if node_id in books.nodes:
                return books, books.nodes[node_id]
        raise AuditFailure("event", f"node {node_id} is not there")


def note_limited(books: Books, now_ns: int) -> list[BookedAsk]:
    """Notes the asks with a node that a limit holds back, and since when."""
    found = []
    for node in books.nodes.values():
        for ask in node.reservations:
            if books.over(ask.app, ask.wants) or books.full(ask.app):
                ask.limited_ns = ask.limited_ns or now_ns
                found.append(ask)
            else:
                ask.limited_ns = 0
    return found


def heads(asks: Iterable[BookedAsk]) -> list[BookedAsk]:
    found: dict[tuple[Any, ...], BookedAsk] = {}
    for ask in asks:
        old = found.get(ask.kind)
        if old is None or (ask.created_ns, ask.order) < (old.created_ns, old.order):
            found[ask.kind] = ask
    return list(found.values())


def allocation_of(ask: BookedAsk, made: Allocation, now_ns: int) -> BookedAllocation:
    return BookedAllocation(
        ask.app,
        ask.key,
        made.ordinal,
        ask.said,
        ask.wants,
        ask.priority,
        made.node_id,
        ask.order,
        ask.created_ns,
        now_ns,
        ask.words,
        made.uuid,
    )


def find_held(books: Books, app_id: str, key: str, uuid: str) -> BookedAllocation:
    """The allocation that a message names. Raises AuditFailure when there is none."""
    app = books.apps.get(app_id)
    if app is not None:
        for held in app.held.values():
            if held.key == key and held.uuid == uuid:
                return held
    raise AuditFailure("answer", f"a release of {key} ({uuid}) of {app_id}, which is not held")


class _Order:
    """Sort keys of applications and queues."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._capacity = books.capacity()
        self._shares: dict[str, float] = {}
        self._uses: dict[tuple[str, str], float] = {}

    def _use(self, app: BookedApp) -> float:
        place = (app.queue, app.user)
        if place not in self._uses:
            self._uses[place] = self._books.decayed.share(self._books, app, self._capacity)
        return self._uses[place]

    def are_near(self, one: BookedApp, other: BookedApp) -> bool:
        """Whether, by the decayed use of their users, the two may come in either order."""
        if not decays(self._books.queues[one.queue]) or one.user == other.user:
            return False
        return are_near(self._use(one), self._use(other))

    def app_key(self, app: BookedApp, priority: int) -> tuple[Any, ...]:
        queue = self._books.queues[app.queue]
        key: tuple[Any, ...] = (app.submitted_ns, app.order)
        if queue.fair:
            key = (self._books.app_shares(app), *key)
        elif decays(queue):
            key = (self._use(app), *key)
        return (-priority, *key) if queue.priority_first else (*key, -priority)

    def queue_key(self, path: str, priority: int, priority_first: bool) -> tuple[Any, ...]:
        share = self._shares.get(path)
        if share is None:
            share = self._shares[path] = self._books.share(path, self._capacity)
        return (-priority, share, path) if priority_first else (share, path)

    def lent(self, asks: Iterable[BookedAsk]) -> dict[str, int]:
        """The priority that each queue has by these asks: the best of them, with the offsets on the way up."""
        best: dict[str, int] = {}
        for ask in asks:
            priority = ask.priority
            for path in self._books.queues[ask.app.queue].parents():
                priority = self._lift(path, priority)
                best[path] = max(priority, best.get(path, priority))
        return best

    def _lift(self, path: str, priority: int) -> int:
        queue = self._books.queues[path]
        if queue.fence:
            return queue.offset
        return max(INT32_MIN, min(INT32_MAX, priority + queue.offset))
