"""The auditor: hears what the core is told, sees what comes out, and believes nothing.

It has books of its own (``books.py``), knows how each command must be answered (``hearing.py``), looks at each decision
in the moment in which it was made (``deciding.py``), and after each step compares the books with the sums of all events
and with what stands on the state topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from muster_scheduler.core.commands import Command, UpdateConfiguration
from muster_scheduler.core.outcome import Event, Fact
from simulation.books import AuditFailure, BookedAllocation, BookedApp, BookedAsk, Books, Document, must
from simulation.deciding import Deciding, note_limited
from simulation.event_sums import EventSums
from simulation.hearing import LINGER_NS, REMINDER_NS, Hearing
from simulation.preempting_laws import unique_key
from simulation.reasons import Reasons

Records = Mapping[str, Mapping[tuple[str, ...], Any]]


class Auditor:
    """Audits one life of a cluster.

    :ivar tally: how often what came up, by words.
    """

    def __init__(self, document: Document, tally: Counter[str] | None = None) -> None:
        self.tally: Counter[str] = tally if tally is not None else Counter()
        self.hearing = Hearing(document, self.tally)
        self._sums = EventSums()
        self._restarted_ns = 0
        self._configured_ns = 0

    @property
    def books(self) -> dict[str, Books]:
        """By partition."""
        return self.hearing.books

    # ---- what happens ----------------------------------------------------------------------------------------------

    def started(self, events: list[Event]) -> None:
        """The queues of the first configuration were announced."""
        for event in events:
            self._sums.take(event)

    def applied(self, command: Command, facts: list[Fact], events: list[Event], now_ns: int) -> None:
        """A command was taken, and this came out."""
        self.hearing.hear(command, facts, now_ns)
        if isinstance(command, UpdateConfiguration):
            self._configured_ns = now_ns
        for event in events:
            must(event.now_ns == now_ns, "event", f"{event} of another time than {now_ns}")
            self._sums.take(event)

    def cycled(
        self, facts: list[Fact], events: list[Event], now_ns: int, budget: int, exhausted: bool, records: Records
    ) -> None:
        """A cycle was run, and this came out."""
        made = Deciding(self.hearing, records, now_ns, exhausted=exhausted).check(facts, events)
        must(made <= budget, "budget", f"{made} allocations, where {budget} were allowed")
        for event in events:
            self._sums.take(event)
        self.tally["allocations"] += made
        self._check_times(now_ns)
        for books in self.books.values():
            books.check_sums()
            _check_states(books)
            _check_reservations(books)
        self._sums.compare(self.books)
        if exhausted:
            self.tally["cycle: to its end"] += 1
            for books in self.books.values():
                if books.deciding:
                    self._nothing_is_left(books)
                    Reasons(books, records, self.tally).check()
        else:
            self.tally["cycle: stopped by its budget"] += 1
        self._note_waiting(records)

    def restarted(self, now_ns: int) -> None:
        """The core is another one now, folded from the records."""
        self._restarted_ns = now_ns
        self.tally["restart"] += 1

    # ---- what must be true between steps ---------------------------------------------------------------------------

    def _check_times(self, now_ns: int) -> None:
        """Whatever had its time was done."""
        for books in self.books.values():
            for app in [*books.apps.values(), *books.finished.values()]:
                due = app.deadline_ns and app.deadline_ns <= now_ns
                must(not due, "deadline", f"{app.app_id} is still {app.state}, {now_ns - app.deadline_ns} ns too long")
                for held in app.held.values():
                    timeout_ns = held.words["timeout_ms"] * 1_000_000
                    over = timeout_ns > 0 and held.allocated_ns + timeout_ns <= now_ns
                    must(not over or bool(held.told), "deadline", f"{held}: its time is up")
                    waits_ns = now_ns - max(held.told_ns, held.reminded_ns)
                    must(not held.told or waits_ns < REMINDER_NS, "reminder", f"{held} was not told again")
            for ask in note_limited(books, now_ns):
                since_ns = max(ask.limited_ns, ask.reserved_ns, self._restarted_ns, self._configured_ns)
                over = now_ns >= since_ns + books.reservation_timeout_ns
                must(not over, "deadline", f"a node is kept since {since_ns} for {ask}, which may not be placed")
            for queue in books.queues.values():
                going = not queue.managed or queue.draining
                if going and not any(books.children(queue.path)) and not any(books.apps_below(queue.path)):
                    since_ns = max(queue.empty_since_ns, self._restarted_ns)
                    must(now_ns < since_ns + LINGER_NS, "deadline", f"queue {queue.path} is empty since {since_ns}")

    def _nothing_is_left(self, books: Books) -> None:
        """Brute force: every ask, every limit, every node."""
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
                    must(not rooms, "left pending", f"{ask} fits on {rooms[0].node_id if rooms else ''}")

    def _note_waiting(self, records: Records) -> None:
        """Which applications as a whole wait: others may go first, until they were looked at."""
        for books in self.books.values():
            for app in books.apps.values():
                record = records["app"].get((books.name, app.app_id))
                app.waits_to_run = record is not None and record.HasField("waiting")

    # ---- the records -----------------------------------------------------------------------------------------------

    def compare(self, records: Records, now_ns: int) -> None:
        """Compares everything on the state topic with the books."""
        for books in self.books.values():
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
    _same(f"{held}: preempted", record.HasField("preempted"), held.told == "preempted")
    _same(f"{held}: timed out", record.timed_out, held.told == "timeout")


def _compare_ask(ask: BookedAsk, record: Any) -> None:
    _compare_demand(ask, record.demand)
    _same(f"{ask}: pending", (record.pending, record.allocated), (ask.pending, ask.made))
    node = ask.reserved.node_id if ask.reserved is not None else ""
    _same(f"{ask}: reserved", (record.reserved_node, record.reserved_ns), (node, ask.reserved_ns))
    _same(f"{ask}: told", (record.preempts, record.scaled_up), (ask.preempts, ask.told_small))


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
