"""The auditor: hears what the core is told, sees what comes out, and believes nothing.

It has books of its own (``books.py``), knows how each command must be answered (``hearing.py``), looks at each decision
in the moment in which it was made (``deciding.py``), and after each step compares the books with the sums of all events
and with what stands on the state topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from muster_bus.topics import parse_state_key
from muster_core.model.commands import Command, UpdateAllocations, UpdateConfiguration, UpdateNodes
from muster_core.model.outcome import Event, EventType, Fact, Outcome
from muster_state.state_folder import RmInfo
from simulation import backfilling, claims_laws
from simulation.books import AuditFailure, BookedAllocation, BookedApp, BookedAsk, Document, must
from simulation.deciding import Deciding, note_limited
from simulation.event_sums import EventSums
from simulation.hearing import Hearing
from simulation.hearing_asks import LINGER_NS, REMINDER_NS
from simulation.partition_books import Books
from simulation.preempting_laws import unique_key
from simulation.reasons import Reasons
from simulation.records import MESSAGES
from simulation.run import Law, Run

# So many steps between two comparisons of everything with the records.
COMPARE_EVERY = 8
_STAYS, _DUE = "Its execution time-out stays ", ", reserved for it, is due"
Records = Mapping[str, Mapping[tuple[str, ...], Any]]


class RecordBooks(Law):
    """What stands on the state topic, compared with the books now and then.

    :ivar tally: how often what came up, by words.
    """

    def __init__(self, tally: Counter[str]) -> None:
        self.tally = tally
        self.records: dict[str, dict[tuple[str, ...], Any]] = {kind: {} for kind in MESSAGES}

    def record(self, key: bytes, value: bytes | None) -> None:
        _, kind, parts = parse_state_key(key)
        if value is not None:
            self.records[kind][parts] = MESSAGES[kind].FromString(value)
        else:
            del self.records[kind][parts]

    def compare_records(self, all_books: Iterable[Books], now_ns: int) -> None:
        """Compares everything on the state topic with the books."""
        records = self.records
        for books in all_books:
            name = books.name
            _same_keys("node", records, name, {(name, node_id) for node_id in books.nodes})
            _same_keys("queue", records, name, {(name, path) for path in books.queues})
            apps = [*books.apps.values(), *books.finished.values()]
            _same_keys("app", records, name, {(name, app.app_id) for app in apps})
            _same_keys("ask", records, name, {(name, a.app_id, key) for a in books.apps.values() for key in a.asks})
            held = [each for app in books.apps.values() for each in app.held.values()] + list(books.foreign.values())
            keys = {(name, each.app_id, unique_key(each.key, each.ordinal)): each for each in held}
            _same_keys("alloc", records, name, set(keys))
            for key, each in keys.items():
                _compare_allocation(each, records["alloc"][key])
            for app in apps:
                _compare_application(app, records["app"][name, app.app_id])
                for ask in app.asks.values():
                    _compare_ask(ask, records["ask"][name, app.app_id, ask.key])
            _compare_queues(books, records)
            _compare_nodes(books, records)
            rejected = {(name, app_id): text for app_id, (text, until) in books.rejected.items() if until > now_ns}
            _same_keys("rejected", records, name, set(rejected))
            for key, text in rejected.items():
                _same(f"rejected {key}", records["rejected"][key].rejected_message, text)
        self.tally["records compared"] += 1


class Auditor(RecordBooks):
    """Audits one life of a cluster."""

    def __init__(self, document: Document, tally: Counter[str] | None = None) -> None:
        super().__init__(tally if tally is not None else Counter())
        self.hearing = Hearing(document, self.tally)
        self._sums = EventSums()
        self._restarted_ns = 0
        self._configured_ns = 0

    @property
    def books(self) -> dict[str, Books]:
        return self.hearing.books

    # ---- what happens ----------------------------------------------------------------------------------------------

    def began(self, run: Run, out: Outcome) -> None:
        """Notes the queues of the first configuration."""
        for event in out.events:
            self._sums.take(event)

    def hears(self, run: Run, command: Command, offered: Document | None) -> None:
        self.hearing.offered = offered

    def taken(self, run: Run, command: Command, facts: list[Fact], events: list[Event]) -> None:
        now_ns = run.now_ns
        before = {name: backfilling.dues(books, now_ns) for name, books in self.books.items()}
        self.hearing.hear(command, facts, now_ns)
        self._check_told(command, events, before, now_ns)
        if isinstance(command, UpdateConfiguration):
            self._configured_ns = now_ns
            self._sums.note_partitions(len(self.books))
        for event in events:
            must(event.now_ns == now_ns, "event", f"{event} of another time than {now_ns}")
            self._sums.take(event)

    def decided(self, run: Run, facts: list[Fact], events: list[Event], budget: int) -> None:
        records, now_ns, exhausted = self.records, run.now_ns, run.core.exhausted
        before = {name: backfilling.dues(books, now_ns) for name, books in self.books.items()}
        deciding = Deciding(self.hearing, records, now_ns, exhausted=exhausted)
        made = deciding.check(facts, events)
        must(made <= budget, "budget", f"{made} allocations, where {budget} were allowed")
        for event in events:
            self._sums.take(event)
        self.tally["allocations"] += made
        self._check_times(now_ns)
        for books in self.books.values():
            books.check_sums()
            later = backfilling.moved(books, before[books.name], now_ns)
            by_right = _took_daemons(books, now_ns) | deciding.by_rank
            later = [each for each in later if each[2] not in by_right]
            must(not later, "promise", f"{later} are due later, and the RM reported nothing: {before[books.name]}")
            _check_states(books)
            _check_reservations(books)
        self._sums.compare(self.books)
        if exhausted:
            self.tally["cycle: to its end"] += 1
            for books in self.books.values():
                if books.deciding:
                    self._nothing_is_left(books)
                    claims_laws.check_claims(books, records)
                    Reasons(books, records, self.tally).check()
        else:
            self.tally["cycle: stopped by its budget"] += 1
        self._note_waiting(records)
        if len(run.steps) % COMPARE_EVERY == 0:
            self.compare_records(self.books.values(), now_ns)

    def restarts(self, run: Run) -> None:
        """In the middle of what a restart comes."""
        self.compare_records(self.books.values(), run.now_ns)
        tally = self.tally
        for books in self.books.values():
            asks = [ask for app in books.apps.values() for ask in app.asks.values()]
            held = [held for app in books.apps.values() for held in app.held.values()]
            tally["restart: with pending asks"] += bool(asks)
            tally["restart: with reservations"] += any(ask.reserved is not None for ask in asks)
            tally["restart: with preempted allocations"] += any(each.told == "preempted" for each in held)
            tally["restart: with timed out allocations"] += any(each.told == "timeout" for each in held)
            tally["restart: with draining queues"] += any(queue.draining for queue in books.queues.values())

    def restarted(self, run: Run, info: RmInfo) -> None:
        self._restarted_ns = run.now_ns
        self.tally["restart"] += 1

    def over(self, run: Run) -> None:
        self.compare_records(self.books.values(), run.now_ns)

    def _check_told(
        self, command: Command, events: list[Event], before: dict[str, dict[backfilling.Reserved, int]], now_ns: int
    ) -> None:
        """People are told that an end stays, and why a reservation is due later."""
        told = [event for event in events if event.type is EventType.REQUEST]
        stays = [(each.reference_id, each.object_id) for each in told if each.message.startswith(_STAYS)]
        must(stays == self.hearing.kept, "promise", f"told that {stays} keep their ends, expected {self.hearing.kept}")
        if not _reports_one(command):
            return
        found = [(each.reference_id, each.object_id) for each in told if _DUE in each.message]
        for books in self.books.values():
            for app_id, key, node_id, *_ in backfilling.moved(books, before.get(books.name, {}), now_ns):
                why = f"{key} of {app_id} waits longer for {node_id}, and no event says why"
                must((app_id, key) in found, "promise", why)
                found.remove((app_id, key))
                self.tally["reservation: due later by a report"] += 1
        # (The report may be of an ask's own allocations, of which there are as many as it wants now.)
        asks = {(app.app_id, key) for books in self.books.values() for app in books.apps.values() for key in app.asks}
        left = [each for each in found if each in asks]
        must(not left, "promise", f"{left} are told that they wait longer, and do not")

    # ---- what must be true between steps ---------------------------------------------------------------------------

    def _check_times(self, now_ns: int) -> None:
        for books in self.books.values():
            for app in [*books.apps.values(), *books.finished.values()]:
                due = app.deadline_ns and app.deadline_ns <= now_ns
                must(not due, "deadline", f"{app.app_id} is still {app.state}, {now_ns - app.deadline_ns} ns too long")
                for held in app.held.values():
                    over = 0 < held.end_ns <= now_ns
                    kind = "promise" if held.end_ns == held.promised_ns else "deadline"
                    must(not over or bool(held.told), kind, f"{held}: its time is up")
                    waits_ns = now_ns - max(held.told_ns, held.reminded_ns)
                    must(not held.told or waits_ns < REMINDER_NS, "reminder", f"{held} was not told again")
            for ask in note_limited(books, now_ns):
                if ask.preempts:  # (until its victims are gone: they may relieve the limit)
                    continue
                since_ns = max(ask.limited_ns, ask.reserved_ns, self._restarted_ns, self._configured_ns)
                over = now_ns >= since_ns + books.reservation_timeout_ns
                must(not over, "deadline", f"a node is kept since {since_ns} for {ask}, which may not be placed")
            for queue in books.queues.values():
                going = not queue.managed or queue.draining
                if going and not any(books.children(queue.path)) and not any(books.apps_below(queue.path)):
                    since_ns = max(queue.empty_since_ns, self._restarted_ns)
                    must(now_ns < since_ns + LINGER_NS, "deadline", f"queue {queue.path} is empty since {since_ns}")

    def _nothing_is_left(self, books: Books) -> None:
        for app in books.apps.values():
            if not app.asks or app.state == "Failing" or books.full(app):
                continue
            over: dict[Any, str] = {}
            for ask in app.asks.values():
                key = tuple(sorted(ask.wants.items()))
                if key not in over:
                    over[key] = books.over(app, ask.wants)
                if not over[key]:
                    rooms = books.rooms(ask)
                    below = [] if rooms else claims_laws.rooms_by_rank(books, ask)
                    must(not below, "rank", f"{ask} waits for {below[0].reservations if below else ''}")
                    must(not rooms, "left pending", f"{ask} fits on {rooms[0].node_id if rooms else ''}")

    def _note_waiting(self, records: Records) -> None:
        """Notes the applications that wait as a whole: others may go first until they are tried."""
        for books in self.books.values():
            for app in books.apps.values():
                record = records["app"].get((books.name, app.app_id))
                app.waits_to_run = record is not None and record.HasField("waiting")


def _reports_one(command: Command) -> bool:
    """Whether the command is about one ask, allocation or node only, so that its events can be told apart."""
    match command:
        case UpdateAllocations():
            return len(command.asks) == 1 and not command.releases
        case UpdateNodes():
            return len(command.nodes) == 1
    return False


def _took_daemons(books: Books, now_ns: int) -> set[str]:
    """The nodes that took a daemon just now. (It goes before a reservation, which promises nothing against that.)"""
    held = [each for app in books.apps.values() for each in app.held.values()]
    return {each.node_id for each in held if each.words["required"] and each.allocated_ns == now_ns}


def _check_states(books: Books) -> None:
    for app in books.apps.values():
        if app.held:
            must(app.state in ("Running", "Failing"), "state", f"{app.app_id} holds allocations, and is {app.state}")
        elif app.asks:
            must(app.state in ("Accepted", "Running"), "state", f"{app.app_id} has asks, and is {app.state}")
        else:
            must(app.state in ("New", "Completing"), "state", f"{app.app_id} has nothing, and is {app.state}")


def _check_reservations(books: Books) -> None:
    for node in books.nodes.values():
        normal = [ask for ask in node.reservations if not ask.required]
        must(len(normal) <= 1, "reservation", f"{node.node_id} is kept for {normal}")
        must(not normal or len(node.reservations) == 1, "reservation", f"{node.node_id}: {node.reservations}")
        for ask in node.reservations:
            must(ask.app.asks.get(ask.key) is ask, "reservation", f"{node.node_id} is kept for {ask}, which is gone")


def _same_keys(kind: str, records: Records, partition: str, known: set[tuple[str, ...]]) -> None:
    found = {key for key in records[kind] if key[0] == partition}
    if found != known:
        raise AuditFailure("record", f"{kind}: recorded {sorted(found - known)}, not recorded {sorted(known - found)}")


def _same(what: str, recorded: object, known: object) -> None:
    must(recorded == known, "record", f"{what}: recorded {recorded}, should be {known}")


def _compare_allocation(held: BookedAllocation, record: Any) -> None:
    _compare_demand(held, record.demand)
    _same(f"{held}: node", record.node_id, held.node_id)
    _same(f"{held}: time", record.allocated_ns, held.allocated_ns)
    _same(f"{held}: foreign", record.foreign, held.app is None)
    _same(f"{held}: uuid", record.uuid, held.uuid)
    _same(f"{held}: promised", record.backfilled.end_ns, held.promised_ns)
    _same(f"{held}: preempted", record.HasField("preempted"), held.told == "preempted")
    _same(f"{held}: timed out", record.timed_out, held.told == "timeout")


def _compare_ask(ask: BookedAsk, record: Any) -> None:
    _compare_demand(ask, record.demand)
    _same(f"{ask}: pending", (record.pending, record.allocated), (ask.pending, ask.made))
    node = ask.reserved.node_id if ask.reserved is not None else ""
    _same(f"{ask}: reserved", (record.reserved_node, record.reserved_ns), (node, ask.reserved_ns))
    _same(f"{ask}: told", (record.preempts, record.scaled_up), (ask.preempts, ask.told_small))
    _same(f"{ask}: planned", record.planned_ns, ask.planned_ns)


def _compare_demand(what: BookedAsk | BookedAllocation, demand: Any) -> None:
    words = what.words
    _same(f"{what}: resource", dict(demand.resource.values), what.said)
    _same(
        f"{what}: demand",
        (
            demand.priority,
            demand.created_ns,
            dict(demand.tags),
            demand.task_group,
            demand.placeholder,
            demand.originator,
            demand.allow_preempt_self,
            demand.allow_preempt_other,
            demand.has_preemption_policy,
            demand.execution_timeout_ms,
        ),
        (
            what.priority,
            what.created_ns,
            words["tags"],
            words["task_group"],
            words["placeholder"],
            words["originator"],
            words["may_go"],
            words["may_preempt"],
            words["policy"],
            words["timeout_ms"],
        ),
    )


def _compare_application(app: BookedApp, record: Any) -> None:
    _same(
        app.app_id,
        (record.queue, record.user, tuple(record.groups), dict(record.tags), record.state),
        (app.queue, app.user, app.groups, app.tags, app.state),
    )
    _same(f"{app.app_id}: submitted", record.submitted_ns, app.submitted_ns)
    _same(
        f"{app.app_id}: started, deadline", (record.started_ns, record.deadline_ns), (app.started_ns, app.deadline_ns)
    )
    _same(f"{app.app_id}: finished", record.finished_ns, app.finished_ns)


def _compare_queues(books: Books, records: Records) -> None:
    for queue in books.queues.values():
        record = records["queue"][books.name, queue.path]
        _same(
            f"queue {queue.path}",
            (record.state, record.managed, record.leaf, record.max_applications, dict(record.properties)),
            (
                "Draining" if queue.draining else "Active",
                queue.managed,
                queue.leaf,
                queue.max_applications,
                queue.properties,
            ),
        )
        maximum = dict(record.max.values) if record.has_max else None
        guaranteed = dict(record.guaranteed.values) if record.has_guaranteed else None
        _same(f"queue {queue.path}: max, guaranteed", (maximum, guaranteed), (queue.maximum, queue.guaranteed))


def _compare_nodes(books: Books, records: Records) -> None:
    for node in books.nodes.values():
        record = records["node"][books.name, node.node_id]
        occupied = {name: value for name, value in record.occupied.values.items() if value}
        _same(
            f"node {node.node_id}",
            (dict(record.capacity.values), occupied, record.schedulable, dict(record.attributes)),
            (node.capacity, node.reported, node.schedulable, node.attributes),
        )
