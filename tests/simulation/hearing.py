"""What each command must do to the books, and how it must be answered: exactly once, in order (core-features §2.9).

Told naively, item by item. Each expected answer is compared at once with the next one that the core gave.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import Any

from muster_scheduler.core.commands import (
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    SetDeciding,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
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
    UpdatedApplication,
)
from simulation import whereto
from simulation.books import (
    SECOND_NS,
    TERMINAL,
    Amounts,
    AuditFailure,
    BookedAllocation,
    BookedApp,
    BookedAsk,
    BookedNode,
    BookedQueue,
    Books,
    Document,
    configured_queues,
    must,
    read_amounts,
)

COMPLETING_NS = 30 * SECOND_NS
SHOWN_NS = 72 * 3600 * SECOND_NS
LINGER_NS = 10 * SECOND_NS
REMINDER_NS = 300 * SECOND_NS
REQUIRED_NODE = "yunikorn.apache.org/requiredNode"
# What the RM says for the second time, and must not be told again.
CONFIRMATIONS = (Termination.TIMEOUT, Termination.PREEMPTED_BY_SCHEDULER, Termination.PLACEHOLDER_REPLACED)


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
        case ConfigurationAnswer():
            return ("configuration", not fact.obstacles)
    return (type(fact).__name__,)


class Hearing:
    """Takes commands into the books.

    :ivar document: the configuration in force; ``offered``: the one that the next UpdateConfiguration carries.
    :ivar order: number of arrivals.
    """

    def __init__(self, document: Document, tally: Counter[str]) -> None:
        self.document = document
        self.offered: Document | None = None
        self.tally = tally
        self.books = {each["name"]: Books(each) for each in document["partitions"]}
        self._deciding = True
        self.order = 0
        self.now_ns = 0
        self._facts: deque[Fact] = deque()
        for books in self.books.values():
            for rules in books.configured.values():
                books.queues[rules.path] = books.queue_of(rules)

    def hear(self, command: Command, facts: list[Fact], now_ns: int) -> None:
        """One command, and all that was answered to it."""
        self.now_ns = now_ns
        self._facts = deque(facts)
        match command:
            case UpdateAllocations():
                for release in self._with_application(command.releases):
                    self._release(release)
                for item in command.asks:
                    self._take(item)
            case UpdateApplications():
                for app_item in command.new:
                    self._application(app_item)
                for name, app_id in command.remove:
                    self._remove_application(name, app_id)
            case UpdateNodes():
                for node_item in command.nodes:
                    self._node(node_item)
            case UpdateConfiguration():
                self._configure()
            case SetDeciding():
                self._deciding = command.deciding
                for books in self.books.values():
                    books.deciding = command.deciding
        if self._facts:
            raise AuditFailure("answer", f"nobody waits for the answer {plain(self._facts[0])} to {command}")

    def expect(self, *wanted: Any) -> Fact:
        """The next answer must be this."""
        must(bool(self._facts), "answer", f"no answer; expected {wanted}")
        found = self._facts.popleft()
        must(plain(found) == wanted, "answer", f"answered {plain(found)}; expected {wanted}")
        self.tally[f"answer: {wanted[0]}"] += 1
        return found

    def _expect_rejected(self, item: AskItem) -> None:
        fact = self.expect("rejected ask", item.app_id, item.key)
        assert isinstance(fact, RejectedAsk)
        must(bool(fact.reason), "answer", f"{item.key} was rejected without a reason")

    def _next(self) -> int:
        self.order += 1
        return self.order

    def find(self, name: str) -> Books | None:
        """The partition of an RM's name for it."""
        return self.books.get("default" if name.lower() in ("", "default") else name)

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _node(self, item: NodeItem) -> None:
        books = self.find(item.partition)
        reason = "" if books is not None else "no such partition"
        if any(value < 0 for part in (item.capacity, item.occupied) for value in (part or {}).values()):
            reason = "negative"
        node = books.nodes.get(item.node_id) if books is not None else None
        creates = item.action in (NodeAction.CREATE, NodeAction.CREATE_DRAIN)
        if creates and node is not None:
            reason = "twice"
        elif not creates and (node is None or item.action is NodeAction.UNKNOWN):
            reason = "unknown"
        elif item.action is NodeAction.DRAIN_TO_SCHEDULABLE and node is not None and node.schedulable:
            reason = "not draining"
        elif item.attributes.get("ready", "true") not in ("true", "false"):
            reason = "ready or not"
        if reason or books is None:
            self.expect("rejected node", item.node_id)
            for existing in item.existing:
                self._expect_rejected(existing)
            self.tally[f"node rejected: {reason}"] += 1
            return
        self.tally[f"node: {item.action.name}"] += 1
        if creates:
            node = BookedNode(
                item.node_id,
                _positive(item.capacity),
                _positive(item.occupied),
                item.action is NodeAction.CREATE,
                self._next(),
                dict(item.attributes),
            )
            books.nodes[node.node_id] = node
            self.expect("accepted node", item.node_id)
            for existing in item.existing:
                self._take(existing._replace(node_id=node.node_id, partition=books.name))
            return
        assert node is not None
        if item.action is NodeAction.UPDATE:
            if item.capacity is not None:
                node.capacity = _positive(item.capacity)
                for ask in [ask for ask in node.reservations if not node.could_hold(ask.wants)]:
                    unreserve(ask)  # not even the empty node would do for it
            if item.occupied is not None:
                node.reported = _positive(item.occupied)
            alone = set(item.attributes) <= {"ready", "si/node-partition"}
            was_usable = node.usable
            node.attributes = {**(node.attributes if alone else {}), **item.attributes}
            if was_usable and not node.usable:
                self.tally["node: not ready any more"] += 1
                for ask in [ask for ask in node.reservations if not ask.required]:
                    unreserve(ask)
        elif item.action is NodeAction.DECOMISSION:
            self._remove_node(books, node)
        else:
            node.schedulable = item.action is NodeAction.DRAIN_TO_SCHEDULABLE
            for ask in [] if node.schedulable else [ask for ask in node.reservations if not ask.required]:
                unreserve(ask)
        self.expect("accepted node", item.node_id)

    def _remove_node(self, books: Books, node: BookedNode) -> None:
        held = [held for app in books.apps.values() for held in app.held.values() if held.node_id == node.node_id]
        in_order = sorted(held, key=lambda each: (each.allocated_ns, each.order, each.ordinal))
        for each in in_order:
            books.drop(each)
            self.expect("released", each.app_id, each.key, each.uuid, "STOPPED_BY_RM")
        for ask in list(node.reservations):
            unreserve(ask)
        for foreign in [each for each in books.foreign.values() if each.node_id == node.node_id]:
            books.drop(foreign)
        del books.nodes[node.node_id]
        for app in dict.fromkeys(each.app for each in in_order if each.app is not None):
            self._idle(books, app)

    # ---- applications ----------------------------------------------------------------------------------------------

    def _application(self, item: AppItem) -> None:
        path = self._leaf_for(item)
        if path is None:
            fact = self.expect("rejected application", item.app_id)
            assert isinstance(fact, RejectedApplication)
            must(bool(fact.reason), "answer", f"application {item.app_id} was rejected without a reason")
            refusing = self.find(item.partition)
            if refusing is not None:
                refusing.rejected[item.app_id] = (fact.reason, self.now_ns + SHOWN_NS)
            return
        books = self.find(item.partition)
        assert books is not None
        user, groups = item.user, tuple(item.groups)
        if not user:
            user, groups = "nobody", ("nogroup",)
        self._make_queues(books, path)
        order = self._next()
        app = BookedApp(item.app_id, path, user, groups or (user,), dict(item.tags), order, self.now_ns)
        app.timeout_ms, app.placeholder_ask = item.execution_timeout_ms, item.placeholder_ask
        old = books.finished.pop(app.app_id, None)
        if old is not None:
            name = f"{old.app_id}-{old.finished_ns // SECOND_NS}"
            while name in books.finished or name in books.apps:
                name += "x"
            old.app_id = name
            books.finished[name] = old
            self.tally["application: id used again"] += 1
        books.apps[app.app_id] = app
        books.assign_limits(app)
        self._namespace(books.queues[path], item.tags)
        self.expect("accepted application", app.app_id)

    def _leaf_for(self, item: AppItem) -> str | None:
        books = self.find(item.partition)
        if books is None or item.app_id in books.apps:
            return None
        user, groups = item.user, tuple(item.groups)
        if not user:
            if item.tags.get("application.create.force") != "true":
                return None
            user, groups = "nobody", ("nogroup",)
        elif groups and not whereto.is_user_name(user):
            return None
        return whereto.leaf_for(books, item.queue, user, groups or (user,), item.tags)

    def _make_queues(self, books: Books, path: str) -> None:
        parts = path.split(".")
        for size in range(2, len(parts) + 1):
            each = ".".join(parts[:size])
            if each in books.queues:
                continue
            queue = BookedQueue(each, size == len(parts), False)
            template = books.template_for(each.rpartition(".")[0])
            if queue.leaf and template is not None and each != whereto.RECOVERY:
                resources = template.get("resources", {})
                queue.guaranteed = read_amounts(resources.get("guaranteed"))
                queue.maximum = read_amounts(resources.get("max"))
                queue.max_applications = template.get("maxapplications", 0)
                queue.properties = template.get("properties", {})
                self.tally["queue: made from a template"] += 1
            self.tally["queue: made dynamically"] += 1
            books.queues[each] = queue

    def _namespace(self, queue: BookedQueue, tags: dict[str, str]) -> None:
        if queue.managed:
            return
        for tag, name in (("namespace.resourcequota", "maximum"), ("namespace.resourceguaranteed", "guaranteed")):
            if tag in tags:
                said = json.loads(tags[tag])["resources"]
                setattr(queue, name, {kind: int(value["value"]) for kind, value in said.items()})
                self.tally["queue: quota of a namespace"] += 1
        queue.max_applications = int(tags.get("namespace.resourcemaxapps", "0")) or queue.max_applications

    def _remove_application(self, name: str, app_id: str) -> None:
        books = self.find(name)
        app = books.apps.get(app_id) if books is not None else None
        if books is None or app is None:
            return
        for ask in list(app.asks.values()):
            remove_ask(ask)
        for held in _in_order(app):
            books.drop(held)
            self.expect("released", app_id, held.key, held.uuid, "STOPPED_BY_RM")
        del books.apps[app_id]
        self.left(books, app)
        self.tally["application: removed"] += 1

    # ---- states ----------------------------------------------------------------------------------------------------

    def set_state(self, books: Books, app: BookedApp, state: str) -> None:
        """Writes down another state, with its timers."""
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
        """The application left its queue, which may be empty now."""
        queue = books.queues[app.queue]
        if not any(books.apps_below(queue.path)):
            queue.empty_since_ns = self.now_ns

    def _state(self, books: Books, app: BookedApp, state: str) -> None:
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

    # ---- asks ------------------------------------------------------------------------------------------------------

    def _take(self, item: AskItem) -> None:
        self.tally[f"ask item: {_kind_of(item)}"] += 1
        if any(value < 0 for value in item.quantities.values()):
            self._expect_rejected(item)
        elif item.node_id or "foreign" in item.tags:
            self._adopt(item)
        else:
            self._ask(item)

    def _ask(self, item: AskItem) -> None:
        books = self.find(item.partition)
        app = books.apps.get(item.app_id) if books is not None else None
        wants = _positive(item.quantities)
        if books is None or app is None or app.state == "Failing" or not wants or item.wanted < 1:
            self._expect_rejected(item)
            return
        old = app.asks.get(item.key)
        ordinals = app.ordinals(item.key)
        made = old.made if old is not None else (max(ordinals) + 1 if ordinals else 0)
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
            old.order if old is not None else self._next(),
            _words(item),
            item.tags.get(REQUIRED_NODE, ""),
            item.allow_preempt_other,
        )
        if old is not None:
            if _same(old, ask):
                return
            if old.said == ask.said and old.required == ask.required:
                pass_on(old, ask)
                self.tally["ask: changed, for the same amount"] += 1
            remove_ask(old)
            self.tally["ask: changed"] += 1
        add_ask(ask)
        if app.state == "New":
            self._state(books, app, "Accepted")
        elif app.state == "Completing":
            self._state(books, app, "Running")

    def _adopt(self, item: AskItem) -> None:
        books = self.find(item.partition)
        foreign = "foreign" in item.tags
        node = books.nodes.get(item.node_id) if books is not None else None
        app = books.apps.get(item.app_id) if books is not None else None
        wants = _positive(item.quantities)
        if books is None or node is None or not wants or (app is None and not foreign):
            self._expect_rejected(item)
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
            self._next(),
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
        self._fail_with(app, held)

    def _fail_with(self, app: BookedApp, held: BookedAllocation) -> None:
        if app.state == "Failing" and not held.told:
            self.expect("released", app.app_id, held.key, held.uuid, "TIMEOUT")
            held.told, held.told_ns = "timeout", self.now_ns

    def _change_held(self, books: Books, held: BookedAllocation, item: AskItem) -> None:
        """The ask came again: what runs is as it says, but what it is to its gang, and in whose words it came."""
        words = {**_words(item), **{name: held.words[name] for name in ("task_group", "placeholder", "previous")}}
        self._change(books, held, item, words, held.node_id)

    def _reported_again(self, books: Books, held: BookedAllocation, item: AskItem) -> None:
        kept = ["timeout_ms", "previous"]
        if held.words["previous"]:
            kept += ["originator", "may_go", "may_preempt", "policy"]
        self._change(books, held, item, {**_words(item), **{name: held.words[name] for name in kept}}, item.node_id)
        self.expect("new", held.app_id, item.key, held.ordinal, item.node_id)
        if held.app is not None:
            self._fail_with(held.app, held)

    def _change(self, books: Books, held: BookedAllocation, item: AskItem, words: dict[str, Any], node_id: str) -> None:
        created_ns = _created(item.tags, held.created_ns)
        before = (held.said, held.node_id, held.priority, held.created_ns, held.words)
        if before == (item.quantities, node_id, item.priority, created_ns, words):
            return
        self.tally[
            f"changed while it {'is to go' if held.told else 'runs'}{', moved' if node_id != held.node_id else ''}"
        ] += 1
        books.drop(held)
        held.said, held.wants, held.priority = dict(item.quantities), _positive(item.quantities), item.priority
        if node_id != held.node_id:
            held.node_id, held.allocated_ns = node_id, self.now_ns
        held.created_ns, held.words = created_ns, words
        books.hold(held)

    # ---- releases --------------------------------------------------------------------------------------------------

    def _with_application(self, releases: Any) -> list[ReleaseItem]:
        """An ask by its key alone is every application's, as it was before the first release; a UUID finds its own."""
        found: list[ReleaseItem] = []
        for item in releases:
            if item.app_id or not (item.ask_only or item.uuid):
                found.append(item)
                continue
            books = self.find(item.partition)
            apps = list(books.apps.values()) if books is not None else []
            if item.ask_only:
                apps = [app for app in apps if item.key and item.key in app.asks]
            else:
                apps = [app for app in apps if any(each.uuid == item.uuid for each in app.held.values())]
                self.tally["release: by its UUID alone"] += bool(apps)
            found += [item._replace(app_id=app.app_id) for app in apps] or [item]
        return found

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
            held = [each for each in _in_order(app) if each.uuid == item.uuid]
        elif item.key:
            held = [app.held[item.key, ordinal] for ordinal in app.ordinals(item.key)]
        else:
            held = _in_order(app)
        if item.ask_only:
            held = []
        fails = app.state == "Failing"  # nothing is asked for again
        if item.termination is Termination.SCHEDULING_FAILED_ON_RM and held and not fails:
            for each in held:
                if each.told == "timeout":  # its time is up, wherever it ran
                    books.drop(each)
                else:
                    self._ask_again(books, app, each)
            self._idle(books, app)
            return
        # A confirmation ends what was told to go, and nothing else; where nothing was, it ends what it names.
        told = [each for each in held if each.told]
        confirms = item.termination in CONFIRMATIONS and bool(item.key or item.uuid) and bool(told)
        held = told if confirms else held
        keeps = item.termination in (Termination.TIMEOUT, Termination.SCHEDULING_FAILED_ON_RM)
        asks: list[BookedAsk] = []
        if (not keeps and not confirms) or item.ask_only:
            named = [ask for ask in app.asks.values() if ask.key == item.key or not item.key]
            asks = sorted(named, key=lambda ask: ask.order) if not item.uuid else []
        for ask in asks:
            remove_ask(ask)
        for each in held:
            books.drop(each)
            if each.told:
                self.tally[f"confirmed: {each.told}"] += 1
            if not each.told or (item.termination not in CONFIRMATIONS and not keeps):
                self.expect("released", app.app_id, each.key, each.uuid, "STOPPED_BY_RM")
        for ask in asks:
            if ask.key not in {each.key for each in held}:
                self.expect("released ask", app.app_id, ask.key, item.ask_only, "STOPPED_BY_RM")
        if not held and not asks:
            self._nothing_there(item)
        self._idle(books, app)

    def _ask_again(self, books: Books, app: BookedApp, held: BookedAllocation) -> None:
        old = app.asks.get(held.key)
        pending, made = (old.pending + 1, old.made) if old is not None else (1, max(app.ordinals(held.key)) + 1)
        books.drop(held)
        if old is not None:
            remove_ask(old)
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
                self._next(),
                words,
                words["required"],
                words["may_preempt"],
            )
        )
        self.tally["ask: again after a failure on the RM"] += 1

    # ---- configuration ---------------------------------------------------------------------------------------------

    def _configure(self) -> None:
        document = self.offered
        assert document is not None
        wanted = {each["name"]: each for each in document["partitions"]}
        refused = False
        for name, books in self.books.items():
            if name not in wanted:
                refused = refused or bool(books.nodes or books.apps or books.foreign)
                continue
            for rules in configured_queues(wanted[name]).values():
                queue = books.queues.get(rules.path)
                if queue is not None and queue.leaf != rules.leaf and any(books.apps_below(rules.path)):
                    refused = True
        self.expect("configuration", not refused)
        self.tally[f"configuration: {'refused' if refused else 'taken'}"] += 1
        if refused:
            return
        self.document = document
        for name in [name for name in self.books if name not in wanted]:
            del self.books[name]
            self.tally["configuration: partition removed"] += 1
        for name, each in wanted.items():
            if name in self.books:
                self._reconfigure(self.books[name], each)
            else:
                self.books[name] = fresh = Books(each)
                fresh.deciding = self._deciding
                for rules in fresh.configured.values():
                    fresh.queues[rules.path] = fresh.queue_of(rules)
                self.tally["configuration: partition added"] += 1

    def _reconfigure(self, books: Books, document: Document) -> None:
        books.read(document)
        for rules in books.configured.values():
            old = books.queues.get(rules.path)
            if old is not None and old.leaf != rules.leaf:
                for path in [path for path in books.queues if path.startswith(f"{rules.path}.")]:
                    del books.queues[path]
                self.tally["configuration: leaf and parent change"] += 1
            if old is not None and old.draining:
                self.tally["configuration: drained queue is back"] += 1
            books.queues[rules.path] = books.queue_of(rules)
        for queue in books.queues.values():
            if queue.path in books.configured:
                continue
            above = [books.queues[path] for path in queue.parents()[1:]]
            drains = queue.managed or any(each.draining for each in above)
            self.tally["configuration: queue drains"] += drains and not queue.draining
            self.tally["configuration: drained queue is back"] += queue.draining and not drains
            queue.draining = drains
            queue.empty_since_ns = self.now_ns
        for app in books.apps.values():
            books.assign_limits(app)
        books.recount_groups()


# ---- small changes -------------------------------------------------------------------------------------------------


def add_ask(ask: BookedAsk) -> None:
    """Writes down a new ask; its application is as old as its oldest."""
    ask.app.asks[ask.key] = ask
    ask.app.submitted_ns = min(ask.app.submitted_ns, ask.created_ns)


def pass_on(old: BookedAsk, new: BookedAsk) -> None:
    """An ask that is sent again for the same amount keeps what it came to by waiting."""
    new.preempts, new.told_small = old.preempts, old.told_small
    node = old.reserved
    if node is not None:
        new.reserved, new.reserved_ns, new.limited_ns, old.reserved = node, old.reserved_ns, old.limited_ns, None
        node.reservations[node.reservations.index(old)] = new


def remove_ask(ask: BookedAsk) -> None:
    """Writes down that the ask is gone, with its reservation."""
    unreserve(ask)
    del ask.app.asks[ask.key]


def unreserve(ask: BookedAsk) -> None:
    """Writes down that no node is kept free for it."""
    if ask.reserved is not None:
        ask.reserved.reservations.remove(ask)
        ask.reserved, ask.reserved_ns = None, 0


def _reported_before(app: BookedApp, item: AskItem) -> BookedAllocation | None:
    """What the RM reports again: by its UUID, else by its key; another UUID is another allocation."""
    if item.uuid:
        for held in app.held.values():
            if (held.key, held.uuid) == (item.key, item.uuid):
                return held
    first = app.held.get((item.key, 0))
    return first if first is not None and (not item.uuid or first.uuid in ("", item.uuid)) else None


def _in_order(app: BookedApp) -> list[BookedAllocation]:
    return sorted(app.held.values(), key=lambda each: (each.allocated_ns, each.order, each.ordinal))


def _positive(amounts: Amounts | None) -> Amounts:
    return {name: value for name, value in (amounts or {}).items() if value}


def _created(tags: dict[str, str], now_ns: int) -> int:
    text = tags.get("creationTime", "")
    return min(int(text) * SECOND_NS, now_ns) if text.isdigit() else now_ns


def _words(item: AskItem) -> dict[str, Any]:
    """What else the RM said, in few words."""
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
