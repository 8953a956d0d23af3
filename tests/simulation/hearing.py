"""What each command must do to the books, and how it must be answered: exactly once, in order.

Told naively, item by item. Each expected answer is compared at once with the next one that the core gave.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from dataclasses import replace

from muster_core.model.commands import (
    AppItem,
    Command,
    EndApplication,
    NodeAction,
    NodeItem,
    SetSchedulingEnabled,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_core.model.outcome import (
    Fact,
    RejectedApplication,
)
from simulation import whereto
from simulation.books import (
    INDEPENDENT,
    OWN,
    SECOND_NS,
    AuditFailure,
    BookedApp,
    BookedNode,
    BookedQueue,
    Document,
    Gang,
    configured_queues,
    must,
    positive,
    read_amounts,
)
from simulation.decaying import decays
from simulation.hearing_asks import (
    CREATION_TIME,
    PLACEHOLDERS_WAIT_NS,
    SHOWN_NS,
    AskHearing,
    in_order,
    plain,
    remove_ask,
    unreserve,
)
from simulation.partition_books import Books


class Hearing(AskHearing):
    """Books commands.

    :ivar document: the configuration in force; ``offered``: the one that the next UpdateConfiguration carries.
    """

    def __init__(self, document: Document, tally: Counter[str]) -> None:
        super().__init__(tally)
        self.document = document
        self.offered: Document | None = None
        self.begin_again()

    def begin_again(self) -> None:
        """Starts anew at a registration: only the configuration is known."""
        self.books = {each["name"]: Books(each) for each in self.document["partitions"]}
        self._deciding = True
        # The applications that an operator ended, and why.
        self.ended: dict[BookedApp, str] = {}
        self.order = 0
        self.now_ns = 0
        self.owed.clear()

    def hear(self, command: Command, facts: list[Fact], now_ns: int) -> None:
        """Books one command and its answers."""
        self.now_ns = now_ns
        for books in self.books.values():
            books.decayed.pass_time(books, now_ns)
        self.facts = deque(facts)
        self.kept.clear()
        self.alone = not isinstance(command, UpdateAllocations) or len(command.releases) + len(command.asks) == 1
        match command:
            case UpdateAllocations():
                for release in command.releases:
                    for named in self._with_application(release):
                        self._release(named)
                for item in command.asks:
                    self._take(item)
            case UpdateApplications():
                for app_item in command.new:
                    self._application(app_item)
                for name, app_id in command.remove:
                    self._remove_application(name, app_id)
            case EndApplication():
                self._end_application(command)
            case UpdateNodes():
                for node_item in command.nodes:
                    self._node(node_item)
            case UpdateConfiguration():
                self._configure()
            case SetSchedulingEnabled():
                self._deciding = command.deciding
                for books in self.books.values():
                    books.deciding = command.deciding
        self.take_consequences()
        if self.facts:
            raise AuditFailure("answer", f"nobody waits for the answer {plain(self.facts[0])} to {command}")

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
        elif item.attributes.get("ready", "true") not in ("true", "false"):
            reason = "ready or not"
        if reason or books is None:
            self.expect("rejected node", item.node_id)
            for existing in item.existing:
                self.expect_rejected(existing)
            self.tally[f"node rejected: {reason}"] += 1
            return
        self.tally[f"node: {item.action.name}"] += 1
        if creates:
            node = BookedNode(
                item.node_id,
                positive(item.capacity),
                positive(item.occupied),
                item.action is NodeAction.CREATE,
                self.next(),
                dict(item.attributes),
            )
            books.nodes[node.node_id] = node
            self.expect("accepted node", item.node_id)
            for existing in item.existing:
                self._take(replace(existing, node_id=node.node_id, partition=books.name))
            return
        assert node is not None
        if item.action is NodeAction.UPDATE:
            if item.capacity is not None:
                node.capacity = positive(item.capacity)
                for ask in [ask for ask in node.reservations if not node.could_hold(ask.wants)]:
                    unreserve(ask)  # not even the empty node would do for it
            if item.occupied is not None:
                node.reported = positive(item.occupied)
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
        in_order = sorted(held, key=lambda each: each.age)
        for each in in_order:
            self._drop(books, each, "node", "timed_out" if each.told == "timeout" else "lost")
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
        books = self.find(item.partition)
        if path is None or books is None:
            self._reject_application(books, item, "")
            return
        user, groups = item.user, tuple(item.groups)
        if not user:
            user, groups = "nobody", ("nogroup",)
        self._make_queues(books, path)
        order = self.next()
        app = BookedApp(item.app_id, path, user, groups or (user,), dict(item.tags), order, self.now_ns)
        app.timeout_ms, app.placeholder_ask = item.execution_timeout_ms, item.placeholder_ask
        app.gang = self._gang(item)
        books.assign_limits(app)
        why = _refuses_gang(books, app)
        if why:
            self._reject_application(books, item, why)
            self.tally[f"application rejected: {why}"] += 1
            return
        self._begin(books, app)
        self._namespace(books.queues[path], item.tags)
        self.expect("accepted application", app.app_id)

    def _reject_application(self, books: Books | None, item: AppItem, why: str) -> None:
        fact = self.expect("rejected application", item.app_id)
        assert isinstance(fact, RejectedApplication)
        must(bool(fact.reason), "answer", f"application {item.app_id} was rejected without a reason")
        must(why in fact.reason, "admission", f"{item}: {fact}, expected {why!r}")
        if books is not None:
            books.rejected[item.app_id] = (fact.reason, self.now_ns + SHOWN_NS)

    def _gang(self, item: AppItem) -> Gang:
        timeout_ns = item.execution_timeout_ms * 1_000_000 or PLACEHOLDERS_WAIT_NS
        created = item.tags.get(CREATION_TIME)
        if created is not None and int(created) * SECOND_NS <= self.now_ns:
            timeout_ns = max(int(created) * SECOND_NS + timeout_ns - self.now_ns, 1_000_000)
        total = positive(item.placeholder_ask) or None
        return Gang(timeout_ns, item.gang_style, total, "WAITING" if total is not None else "")

    def own(self, books: Books) -> BookedApp:
        """The scheduler's own application, for allocations without one."""
        app = books.apps.get(OWN)
        if app is None:
            self._make_queues(books, INDEPENDENT)
            app = BookedApp(OWN, INDEPENDENT, "", (), {}, self.next(), self.now_ns)
            self._begin(books, app)
            self.tally["application: the scheduler's own"] += 1
        return app

    def _begin(self, books: Books, app: BookedApp) -> None:
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

    def _leaf_for(self, item: AppItem) -> str | None:
        books = self.find(item.partition)
        if books is None or item.app_id in books.apps:
            return None
        forced = item.tags.get("application.create.force") == "true"
        user, groups = item.user, tuple(item.groups)
        if not user:
            if not forced:
                return None
            user, groups = "nobody", ("nogroup",)
        elif groups and not whereto.is_user_name(user) and not forced:
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
            if queue.leaf and template is not None and each not in (whereto.RECOVERY, INDEPENDENT):
                resources = template.get("resources", {})
                queue.guaranteed = read_amounts(resources.get("guaranteed"))
                queue.maximum = read_amounts(resources.get("max"))
                queue.max_applications = template.get("maxapplications", 0)
                queue.properties = template.get("properties", {})
                self.tally["queue: made from a template"] += 1
            self.tally["queue: made dynamically"] += 1
            books.queues[each] = queue

    def _namespace(self, queue: BookedQueue, tags: dict[str, str]) -> None:
        if queue.path == whereto.RECOVERY:
            return
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
        if app.independent:
            self.expect("rejected application", app_id)
            return
        for ask in list(app.asks.values()):
            remove_ask(ask)
        for held in in_order(app):  # (its asks are gone: nothing is owed)
            self._drop(books, held, "its application")
            self.expect("released", app_id, held.key, held.uuid, "STOPPED_BY_RM")
        del books.apps[app_id]
        self.left(books, app)
        self.tally["application: removed"] += 1

    def _end_application(self, command: EndApplication) -> None:
        """An operator ends an application: asks first, then what runs, then its state."""
        books = self.find(command.partition)
        app = books.apps.get(command.app_id) if books is not None else None
        if books is None or app is None or app.independent or app.state == "Failing":
            self.tally["operator: ends nothing"] += 1
            return
        self.tally[f"operator: ends what is {app.state}"] += 1
        self.ended[app] = command.message
        for ask in sorted(app.asks.values(), key=lambda each: each.order):
            self.expect("released ask", app.app_id, ask.key, ask.words["previous"], "TIMEOUT")
            remove_ask(ask, "lost")  # (not by the gang's own time-out)
        for held in in_order(app):
            if not held.told:
                self.expect("released", app.app_id, held.key, held.uuid, "TIMEOUT")
                held.told, held.told_ns = "timeout", self.now_ns
        self._state(books, app, "Failing")
        self._idle(books, app)

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
                self.tally["configuration: partition added"] += 1

    def _reconfigure(self, books: Books, document: Document) -> None:
        books.read(document)
        for node in books.nodes.values():
            for ask in list(node.reservations):
                if ask.preempts and not ask.required and not books.preemption_enabled:
                    ask.preempts, ask.planned_ns = False, 0
                if not (ask.preempts or ask.required or ask.leaving or books.reservation_enabled):
                    unreserve(ask)
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
        self._limits_changed(books)


def _refuses_gang(books: Books, app: BookedApp) -> str:
    """Why a gang may never start in this queue."""
    if app.gang.total is None:
        return ""
    if books.queues[app.queue].fair:
        return "unsupported sort type fair"
    if decays(books.queues[app.queue]):
        return "unsupported sort type fairshare"
    if books.is_too_large(app, users=False):
        return "larger than max queue allocation"
    return "larger than the limit" if books.is_too_large(app) else ""
