"""What asks, releases and reports must do to the books, and how they must be answered: exactly once, in order.

Told naively, item by item. Each expected answer is compared at once with the next one that the core gave.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import Any

from muster_core.model.commands import (
    AskItem,
    ReleaseItem,
    Termination,
)
from muster_core.model.outcome import (
    AcceptedApplication,
    AcceptedNode,
    ConfigurationResult,
    Fact,
    NewAllocation,
    RejectedApplication,
    RejectedAsk,
    RejectedNode,
    ReleasedAllocation,
    ReleasedAsk,
    UpdatedApplication,
)
from simulation.backfilling import outlives
from simulation.books import (
    OWN,
    SECOND_NS,
    TERMINAL,
    BookedAllocation,
    BookedApp,
    BookedAsk,
    covers,
    end_placeholders,
    must,
    positive,
    suits,
)
from simulation.partition_books import Books

COMPLETING_NS = 30 * SECOND_NS
SHOWN_NS = 72 * 3600 * SECOND_NS
LINGER_NS = 10 * SECOND_NS
REMINDER_NS = 300 * SECOND_NS
REQUIRED_NODE = "yunikorn.apache.org/requiredNode"
DURATION = "muster.executionTimeoutMilliSeconds"
CREATION_TIME = "yunikorn.apache.org/creationTime"
PLACEHOLDERS_WAIT_NS = 900 * SECOND_NS
# What an allocation that was told to go was told, in the RM's words.
TOLD = {
    "preempted": Termination.PREEMPTED_BY_SCHEDULER,
    "timeout": Termination.TIMEOUT,
    "replaced": Termination.PLACEHOLDER_REPLACED,
}
# What the RM says for the second time, and must not be told again.
CONFIRMATIONS = (*TOLD.values(), Termination.SCHEDULING_FAILED_ON_RM)


def plain(fact: Fact) -> tuple[Any, ...]:
    """A fact in a few words, of which the first is its kind."""
    match fact:
        case NewAllocation(_, made):
            return ("new", made.app_id, made.key, made.ordinal, made.node_id)
        case ReleasedAllocation():
            return ("released", fact.app_id, fact.key, fact.uuid, Termination(fact.termination).name)
        case ReleasedAsk():
            return ("released ask", fact.app_id, fact.key, fact.previous_generation, Termination(fact.termination).name)
        case RejectedAsk():
            return ("rejected ask", fact.app_id, fact.key)
        case AcceptedApplication():
            return ("accepted application", fact.app_id)
        case RejectedApplication():
            return ("rejected application", fact.app_id)
        case UpdatedApplication():
            return ("state", fact.app_id, str(fact.state))
        case AcceptedNode():
            return ("accepted node", fact.node_id)
        case RejectedNode():
            return ("rejected node", fact.node_id)
        case ConfigurationResult():
            return ("configuration", not fact.obstacles)
    return (type(fact).__name__,)


class AskHearing:
    """Books asks and releases.

    :ivar order: number of arrivals; ``facts``: the answers that nobody waited for yet.
    """

    def __init__(self, tally: Counter[str]) -> None:
        self.tally = tally
        self.books: dict[str, Books] = {}
        self.order = 0
        self.now_ns = 0
        # Placeholders that are gone, and the asks that they made room for.
        self.owed: list[tuple[BookedAllocation, BookedAsk]] = []
        # The backfilled allocations of which the command said a later end than promised: application and key.
        self.kept: list[tuple[str, str]] = []
        # The command is about one thing only: what was true before it is true when that is answered.
        self.alone = True
        self.facts: deque[Fact] = deque()

    def expect(self, *wanted: Any) -> Fact:
        """Fails unless the next answer is this one, apart from consequences of earlier commands."""
        self.take_consequences(wanted)
        must(bool(self.facts), "answer", f"no answer; expected {wanted}")
        found = self.facts.popleft()
        must(plain(found) == wanted, "answer", f"answered {plain(found)}; expected {wanted}")
        self.tally[f"answer: {wanted[0]}"] += 1
        return found

    def take_consequences(self, wanted: tuple[Any, ...] = ()) -> None:
        """Takes what follows from what was heard, up to the answer that is wanted."""
        while self.facts and plain(self.facts[0]) != wanted and self.follows(self.facts[0]):
            self.facts.popleft()

    def follows(self, fact: Fact) -> bool:
        """Whether this follows from what was heard, so that no command's own answer is expected in it."""
        return False

    def expect_rejected(self, item: AskItem) -> None:
        fact = self.expect("rejected ask", item.app_id, item.key)
        assert isinstance(fact, RejectedAsk)
        must(bool(fact.reason), "answer", f"{item.key} was rejected without a reason")

    def next(self) -> int:
        self.order += 1
        return self.order

    def find(self, name: str) -> Books | None:
        """The partition of an RM's name for it."""
        return self.books.get("default" if name.lower() in ("", "default") else name)

    def own(self, books: Books) -> BookedApp:
        """The scheduler's own application, for allocations without one."""
        raise NotImplementedError

    # ---- states ----------------------------------------------------------------------------------------------------

    def set_state(self, books: Books, app: BookedApp, state: str) -> None:
        """Books another state, with its timers."""
        before, app.state = app.state, state
        app.deadline_ns = 0
        self.tally[f"state: {before} to {state}"] += 1
        if state == "Running":
            app.started_ns = app.started_ns or self.now_ns
            if app.timeout_ms > 0 and app.placeholder_ask is None:
                app.deadline_ns = app.started_ns + app.timeout_ms * 1_000_000
        elif state == "Completing":
            app.deadline_ns = self.now_ns + COMPLETING_NS
        elif state in TERMINAL and before not in TERMINAL:
            app.finished_ns = self.now_ns
            app.deadline_ns = self.now_ns + SHOWN_NS
            del books.apps[app.app_id]
            books.finished[app.app_id] = app
            self.left(books, app)
        elif state == "Expired":
            del books.finished[app.app_id]

    def left(self, books: Books, app: BookedApp) -> None:
        """Books that the application left its queue."""
        queue = books.queues[app.queue]
        if not any(books.apps_below(queue.path)):
            queue.empty_since_ns = self.now_ns

    def _state(self, books: Books, app: BookedApp, state: str) -> None:
        if not app.independent:
            self.expect("state", app.app_id, state)
        self.set_state(books, app, state)

    def _idle(self, books: Books, app: BookedApp) -> None:
        """Without asks and allocations an application begins to complete, or has failed."""
        if app.asks or app.held:
            return
        if app.state in ("Accepted", "Running"):
            self._state(books, app, "Completing")
        elif app.state == "Failing":
            self._state(books, app, "Failed")

    # ---- gangs -----------------------------------------------------------------------------------------------------

    def placed(self, app: BookedApp, held: BookedAllocation) -> None:
        """Books an allocation in its gang."""
        gang = app.gang
        gang.awaits = held.placeholder
        if gang.too_large:
            gang.deadline_ns, gang.too_large = 0, False
        if not held.placeholder:
            gang.phase = gang.phase and "USED"
            return
        if not gang.deadline_ns:
            gang.deadline_ns = self.now_ns + gang.timeout_ns
        if gang.phase == "WAITING":
            gang.phase = "FORMING"
        if gang.phase == "FORMING" and gang.total is not None:
            whole = any(books.apps.get(app.app_id) is app and books.whole(app) for books in self.books.values())
            if covers(app.placed(), gang.total) or (whole and not app.to_come()):
                gang.phase = "FORMED"

    def _limits_changed(self, books: Books) -> None:
        """The clock of a gang that waits runs while a limit is smaller than all of it."""
        for app in books.apps.values():
            gang = app.gang
            if gang.total is None or gang.phase != "WAITING" or app.state == "Failing":
                continue
            if not books.is_too_large(app):
                if gang.too_large:
                    gang.deadline_ns, gang.too_large = 0, False
                    self.tally["gang: too large no more"] += 1
            elif not gang.deadline_ns:
                gang.deadline_ns, gang.too_large = self.now_ns + gang.timeout_ns, True
                self.tally["gang: too large now"] += 1

    def _drop(self, books: Books, held: BookedAllocation, why: str, became: str = "lost") -> None:
        """Books the end of an allocation. A placeholder that left for a real ask makes room for it."""
        app = held.app
        assert app is not None
        heir = app.asks.get(held.heir)
        if held.placeholder:
            self.tally[f"placeholder gone: {held.told or 'free'}, by {why}"] += 1
        books.drop(held, became)
        if heir is not None:
            self.owed.append((held, heir))

    # ---- asks ------------------------------------------------------------------------------------------------------

    def _take(self, item: AskItem) -> None:
        self.tally[f"ask item: {_kind_of(item)}"] += 1
        if any(value < 0 for value in item.quantities.values()):
            self.expect_rejected(item)
        elif item.node_id or "foreign" in item.tags:
            self._adopt(item)
        else:
            self._ask(item)

    def _ask(self, item: AskItem) -> None:
        books = self.find(item.partition)
        app = books.apps.get(item.app_id) if books is not None else None
        wants = positive(item.quantities)
        if books is not None and wants and item.wanted >= 1:
            app, item = self._or_own(books, app, item)
        if books is None or app is None or app.state == "Failing" or not wants or item.wanted < 1:
            self.expect_rejected(item)
            return
        old = app.asks.get(item.key)
        ordinals = app.ordinals(item.key)
        made = old.made if old is not None else app.made(item.key)
        for ordinal in ordinals if made else ():
            self._change_held(books, app.held[item.key, ordinal], item)
        if made >= item.wanted:
            if old is not None:
                remove_ask(old)
                self._idle(books, app)
            return
        created_ns = _created(item.tags, old.created_ns if old is not None else self.now_ns)
        ask = BookedAsk(
            app,
            item.key,
            dict(item.quantities),
            wants,
            item.priority,
            item.wanted - made,
            made,
            created_ns,
            old.order if old is not None else self.next(),
            _words(item),
            item.tags.get(REQUIRED_NODE, ""),
            item.allow_preempt_other,
        )
        if old is not None:
            if _same(old, ask):
                self.tally["ask: again"] += 1
                return
            if old.wants == ask.wants:
                ask.mismatched = old.mismatched
            if old.placeholder:
                app.counts_of(old.task_group).asked -= old.pending
            self.tally["ask: changed while a placeholder leaves"] += bool(old.leaving)
            pass_on(old, ask)
            if old.said == ask.said and old.required == ask.required:
                self.tally["ask: changed, for the same amount"] += 1
            remove_ask(old, "")
            self.tally["ask: changed"] += 1
        add_ask(ask)
        if ask.placeholder:
            app.counts_of(ask.task_group).asked += ask.pending
        if app.state == "New":
            self._state(books, app, "Accepted")
        elif app.state == "Completing":
            self._state(books, app, "Running")

    def _or_own(self, books: Books, app: BookedApp | None, item: AskItem) -> tuple[BookedApp | None, AskItem]:
        """What belongs to no application goes to the scheduler's own, unless its key is a foreign allocation's."""
        if item.app_id:
            return None if app is not None and app.independent else app, item
        if item.key in books.foreign:
            return None, item
        self.tally["ask item: independent"] += 1
        return self.own(books), replace(item, app_id=OWN, task_group="", placeholder=False)

    def _adopt(self, item: AskItem) -> None:
        books = self.find(item.partition)
        foreign = "foreign" in item.tags
        node = books.nodes.get(item.node_id) if books is not None else None
        app = books.apps.get(item.app_id) if books is not None else None
        wants = positive(item.quantities)
        if books is not None and node is not None and wants and not foreign:
            app, item = self._or_own(books, app, item)
        if books is None or node is None or not wants or (app is None and not foreign):
            self.expect_rejected(item)
            return
        if foreign:
            app = None
        old = books.foreign.get(item.key) if app is None else _reported_before(app, item)
        if old is not None:
            self._reported_again(books, old, item)
            return
        ordinal = 0 if app is None else max(app.ordinals(item.key), default=-1) + 1
        held = BookedAllocation(
            app,
            item.key,
            ordinal,
            dict(item.quantities),
            wants,
            item.priority,
            item.node_id,
            self.next(),
            _created(item.tags, self.now_ns),
            self.now_ns,
            _words(item),
            item.uuid,
        )
        if app is None:
            books.hold(held)
            self.expect("new", "", item.key, 0, item.node_id)
            return
        if item.key in app.asks:
            remove_ask(app.asks[item.key])
            self.tally["adopted: what was asked for"] += 1
        books.hold(held)
        if held.placeholder:
            app.counts_of(held.task_group).asked += 1
        self.placed(app, held)
        self.tally[f"adopted: {'placeholder' if held.placeholder else 'real'}"] += 1
        # It makes the application run, whatever the limits say.
        if app.state == "New":
            self._state(books, app, "Accepted")
        if app.state in ("Accepted", "Completing"):
            self._state(books, app, "Running")
        fact = self.expect("new", app.app_id, item.key, ordinal, item.node_id)
        assert isinstance(fact, NewAllocation)
        must(bool(fact.allocation.uuid), "answer", f"{held} has no UUID")
        must(not held.uuid or held.uuid == fact.allocation.uuid, "answer", f"{held} got another UUID than {held.uuid}")
        held.uuid = fact.allocation.uuid
        demand = fact.allocation.demand
        flags = (demand.placeholder, demand.task_group)
        must(flags == (held.placeholder, held.task_group), "flags", f"{item} became {demand}")
        self._fail_with(app, held)

    def _fail_with(self, app: BookedApp, held: BookedAllocation) -> None:
        if app.state == "Failing" and not held.told:
            self.expect("released", app.app_id, held.key, held.uuid, "TIMEOUT")
            held.told, held.told_ns = "timeout", self.now_ns

    def _change_held(self, books: Books, held: BookedAllocation, item: AskItem) -> None:
        """The ask came again: what runs is as it says, but what it is to its gang, and in whose words it came."""
        words = {**_words(item), **{name: held.words[name] for name in ("task_group", "placeholder", "previous")}}
        resized = held.said != item.quantities
        late = outlives(held, item.execution_timeout_ms)
        self._change(books, held, item, words, held.node_id)
        if resized and held.app is not None:
            self.placed(held.app, held)
        if late:
            self._check_told_end(held, self.expect("new", held.app_id, held.key, held.ordinal, held.node_id))
            self.kept.append((held.app_id, held.key))
            self.tally["promise: in an ask again"] += 1

    def _reported_again(self, books: Books, held: BookedAllocation, item: AskItem) -> None:
        declares = item.execution_timeout_ms > 0
        late = declares and outlives(held, item.execution_timeout_ms)
        kept = ["previous"] if declares else ["timeout_ms", "previous"]
        if held.words["previous"]:
            kept += ["originator", "may_go", "may_preempt", "policy"]
        self._change(books, held, item, {**_words(item), **{name: held.words[name] for name in kept}}, item.node_id)
        fact = self.expect("new", held.app_id, item.key, held.ordinal, item.node_id)
        self._check_told_end(held, fact)
        if late:
            self.kept.append((held.app_id, held.key))
            self.tally["promise: in a report"] += 1
        if held.app is not None:
            self._fail_with(held.app, held)

    @staticmethod
    def _check_told_end(held: BookedAllocation, fact: Fact) -> None:
        """If the RM's words are later than promised, it is told the end that is in force."""
        assert isinstance(fact, NewAllocation)
        told, wanted = fact.demand.tags.get(DURATION), held.words["tags"].get(DURATION)
        if outlives(held, held.words["timeout_ms"]):
            wanted = str((held.promised_ns - held.allocated_ns) // 1_000_000)
        must(told == wanted, "promise", f"{held} was answered with {told} ms, it was promised for {wanted}")

    def _change(self, books: Books, held: BookedAllocation, item: AskItem, words: dict[str, Any], node_id: str) -> None:
        created_ns = _created(item.tags, held.created_ns)
        before = (held.said, held.node_id, held.priority, held.created_ns, held.words)
        if before == (item.quantities, node_id, item.priority, created_ns, words):
            return
        self.tally[
            f"changed while it {'is to go' if held.told else 'runs'}{', moved' if node_id != held.node_id else ''}"
        ] += 1
        if held.promised_ns and words["timeout_ms"] > 0:
            end_ns = held.allocated_ns + words["timeout_ms"] * 1_000_000
            self.tally["promise: an earlier end"] += end_ns < held.promised_ns
            held.promised_ns = min(held.promised_ns, end_ns)
        books.change(held, dict(item.quantities), node_id)
        held.priority, held.created_ns, held.words = item.priority, created_ns, words

    # ---- releases --------------------------------------------------------------------------------------------------

    def _with_application(self, item: ReleaseItem) -> list[ReleaseItem]:
        """An ask by its key alone is every application's that has it at this moment; a UUID finds its own."""
        if item.app_id or not (item.ask_only or item.uuid):
            return [item]
        books = self.find(item.partition)
        apps = list(books.apps.values()) if books is not None else []
        if item.ask_only:
            apps = [app for app in apps if item.key and item.key in app.asks]
        else:
            apps = [app for app in apps if any(each.uuid == item.uuid for each in app.held.values())]
            self.tally["release: by its UUID alone"] += bool(apps)
        return [item._replace(app_id=app.app_id) for app in apps] or [item]

    def _nothing_there(self, item: ReleaseItem) -> None:
        self.tally["release: of nothing"] += 1
        if item.ask_only:
            fact: Any = self.expect("released ask", item.app_id, item.key, True, "STOPPED_BY_RM")
        else:
            fact = self.expect("released", item.app_id, item.key, item.uuid, "STOPPED_BY_RM")
        must(bool(fact.message), "answer", f"nothing was there for {item}, and nothing says so")

    def _release(self, item: ReleaseItem) -> None:
        books = self.find(item.partition)
        self.tally[f"release: {Termination(item.termination).name}{' (ask)' if item.ask_only else ''}"] += 1
        if books is None:
            self._nothing_there(item)
            return
        own = books.apps.get(OWN)
        if not item.app_id and own is not None and _concerns(own, item):
            item = item._replace(app_id=OWN)
            self.tally["independent: released"] += 1
        if not item.app_id:
            foreign = books.foreign.get(item.key) if not item.ask_only and not item.uuid else None
            if foreign is None:
                self._nothing_there(item)
                return
            books.drop(foreign)
            self.expect("released", "", item.key, "", "STOPPED_BY_RM")
            self.tally["foreign: released"] += 1
            return
        app = books.apps.get(item.app_id)
        if app is None:
            self._nothing_there(item)
            return
        if item.uuid:
            held = [each for each in in_order(app) if each.uuid == item.uuid]
        elif item.key:
            held = [app.held[item.key, ordinal] for ordinal in app.ordinals(item.key)]
        else:
            held = in_order(app)
        if item.ask_only:
            held = []
        fails = app.state == "Failing"  # nothing is asked for again
        if item.termination is Termination.SCHEDULING_FAILED_ON_RM and held and not fails:
            for each in held:
                over = each.placeholder and app.state == "Completing"  # nobody needs it any more
                if over or each.told in ("timeout", "replaced"):  # it goes, wherever it ran
                    self._end(books, each, item)
                else:
                    self._ask_again(books, app, each)
            self._idle(books, app)
            return
        # A confirmation ends what was told to go, and nothing else; where nothing was, it ends what it names.
        told = [each for each in held if each.told]
        confirms = item.termination in TOLD.values() and bool(item.key or item.uuid) and bool(told)
        held = told if confirms else held
        keeps = item.termination in (Termination.TIMEOUT, Termination.SCHEDULING_FAILED_ON_RM)
        asks: list[BookedAsk] = []
        if (not keeps and not confirms) or item.ask_only:
            named = [ask for ask in app.asks.values() if ask.key == item.key or not item.key]
            asks = sorted(named, key=lambda ask: ask.order) if not item.uuid else []
        self.alone = self.alone and len(held) <= 1
        for ask in asks:
            self.tally["ask: cancelled"] += 1
            self.tally["ask: cancelled while a placeholder leaves"] += bool(ask.leaving)
            remove_ask(ask)
        for each in held:
            self._end(books, each, item)
        for ask in asks:
            if ask.key not in {each.key for each in held}:
                self.expect("released ask", app.app_id, ask.key, item.ask_only, "STOPPED_BY_RM")
        if not held and not asks:
            self._nothing_there(item)
        self._idle(books, app)

    def _end(self, books: Books, held: BookedAllocation, item: ReleaseItem) -> None:
        app = held.app
        assert app is not None
        if held.told:
            other = item.termination is not TOLD[held.told]
            self.tally[f"confirmed: {held.told}{' in other words' if other else ''}"] += 1
        if not held.placeholder:
            app.gang.awaits = False
        self._drop(books, held, "the RM", {"timeout": "timed_out", "replaced": "replaced"}.get(held.told, "lost"))
        if not held.told or item.termination not in CONFIRMATIONS:
            self.expect("released", app.app_id, held.key, held.uuid, "STOPPED_BY_RM")

    def _ask_again(self, books: Books, app: BookedApp, held: BookedAllocation) -> None:
        old = app.asks.get(held.key)
        pending, made = (old.pending + 1, old.made) if old is not None else (1, max(app.ordinals(held.key)) + 1)
        books.drop(held)
        if old is not None:
            remove_ask(old, "")
        words = dict(held.words)
        add_ask(
            BookedAsk(
                app,
                held.key,
                held.said,
                held.wants,
                held.priority,
                pending,
                made - 1,
                held.created_ns,
                self.next(),
                words,
                words["required"],
                words["may_preempt"],
            )
        )
        self.tally["ask: again after a failure on the RM"] += 1


# ---- small changes -------------------------------------------------------------------------------------------------


def add_ask(ask: BookedAsk) -> None:
    """Writes down a new ask; its application is as old as its oldest.

    Placeholders that leave for one of its key leave for it, when it fits in them.
    """
    ask.app.asks[ask.key] = ask
    ask.app.submitted_ns = min(ask.app.submitted_ns, ask.created_ns)
    if ask.placeholder:
        ask.app.counts_of(ask.task_group)
    for held in ask.app.held.values():
        if held.heir == ask.key:
            if suits(ask, held):
                ask.leaving.append(held)
            else:
                held.heir = ""


def pass_on(old: BookedAsk, new: BookedAsk) -> None:
    """An ask that is sent again keeps what victims leave for it; for the same amount, all it came to by waiting."""
    if old.required != new.required:
        return
    new.planned_ns = old.planned_ns
    same, node = old.said == new.said, old.reserved
    if same:
        new.told_small = old.told_small
    if node is not None and (same or (old.preempts and node.could_hold(new.wants))):
        new.preempts, old.preempts = old.preempts, False
        new.reserved, new.reserved_ns, new.limited_ns, old.reserved = node, old.reserved_ns, old.limited_ns, None
        node.reservations[node.reservations.index(old)] = new


def remove_ask(ask: BookedAsk, became: str = "lost") -> None:
    """Writes down that the ask is gone, with its reservation; ``became``: what became of pending placeholders."""
    unreserve(ask)
    del ask.app.asks[ask.key]
    ask.leaving = []
    if ask.placeholder and became:
        end_placeholders(ask, became, ask.pending)


def unreserve(ask: BookedAsk) -> None:
    """Writes down that no node is kept free for it."""
    if ask.reserved is not None:
        ask.reserved.reservations.remove(ask)
        ask.reserved, ask.reserved_ns, ask.preempts = None, 0, False


def _concerns(own: BookedApp, item: ReleaseItem) -> bool:
    """Whether a release that names no application is of the scheduler's own."""
    if item.uuid:
        return any(each.uuid == item.uuid for each in own.held.values())
    if item.ask_only:
        return item.key in own.asks
    return item.key in own.asks or bool(own.ordinals(item.key))


def _reported_before(app: BookedApp, item: AskItem) -> BookedAllocation | None:
    """What the RM reports again: by its UUID, else by its key; another UUID is another allocation."""
    if item.uuid:
        for held in app.held.values():
            if (held.key, held.uuid) == (item.key, item.uuid):
                return held
    first = app.held.get((item.key, 0))
    return first if first is not None and (not item.uuid or first.uuid in ("", item.uuid)) else None


def in_order(app: BookedApp) -> list[BookedAllocation]:
    return sorted(app.held.values(), key=lambda each: each.age)


def _created(tags: dict[str, str], now_ns: int) -> int:
    text = tags.get("creationTime", "")
    return min(int(text) * SECOND_NS, now_ns) if text.isdigit() else now_ns


def _words(item: AskItem) -> dict[str, Any]:
    return {
        "tags": dict(item.tags),
        "required": item.tags.get(REQUIRED_NODE, ""),
        "task_group": item.task_group,
        "placeholder": item.placeholder and bool(item.task_group),
        "originator": item.originator,
        "may_go": item.allow_preempt_self,
        "may_preempt": item.allow_preempt_other,
        "policy": item.has_preemption_policy,
        "timeout_ms": item.execution_timeout_ms,
        "previous": item.previous_generation,
    }


def _same(old: BookedAsk, new: BookedAsk) -> bool:
    return (old.said, old.priority, old.pending, old.created_ns, old.words) == (
        new.said,
        new.priority,
        new.pending,
        new.created_ns,
        new.words,
    )


def _kind_of(item: AskItem) -> str:
    if "foreign" in item.tags:
        return "foreign"
    if item.node_id:
        return "adopted"
    if item.tags.get(REQUIRED_NODE):
        return "required node"
    return "repeats" if item.wanted > 1 else "plain"
