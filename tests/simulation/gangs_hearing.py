"""What each command does to the books of gangs, and how it must be answered. Told naively, item by item."""

from __future__ import annotations

from collections import Counter

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
from muster_scheduler.core.outcome import Fact, RejectedApplication
from simulation.gangs_books import (
    PLACEHOLDERS_WAIT_NS,
    SECOND_NS,
    App,
    Ask,
    Books,
    Document,
    Held,
    Node,
    must,
    vector,
)

CREATION_TIME = "yunikorn.apache.org/creationTime"
# What an allocation that was told to go was told, in the RM's words.
TOLD = {
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
# What ends an allocation so, keeps its ask.
_KEEPING = (Termination.TIMEOUT, Termination.SCHEDULING_FAILED_ON_RM)


class Hearing:
    """Takes commands into the books.

    :ivar document: the configuration in force; ``offered``: the one that the next UpdateConfiguration carries.
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
        self._adopted: dict[tuple[str, str, str], tuple[int, AskItem]] = {}
        # The command is about one thing only: what was true before it is true when that is answered.
        self._alone = True
        # Placeholders that are gone, and the asks that they made room for.
        self._owed: list[tuple[Held, Ask]] = []

    def hear(self, command: Command, facts: list[Fact]) -> None:
        """One command; of the answers only a rejection's reason is looked at here."""
        self._alone = not isinstance(command, UpdateAllocations) or len(command.releases) + len(command.asks) == 1
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

    def all_is_answered(self, command: Command) -> None:
        """Whether everything was said that had to be."""
        for what in (self._echoes, self._answers):
            left = +what
            must(not left, "answer", f"not answered: {list(left)[:3]} after {command}")
            what.clear()
        must(not self._adopted, "answer", f"not echoed: {list(self._adopted)[:3]}")

    # ---- commands: nodes -------------------------------------------------------------------------------------------

    def _hear_node(self, item: NodeItem) -> None:
        books = self.books
        self.tally[f"node: {item.action.name}"] += 1
        if item.action in (NodeAction.CREATE, NodeAction.CREATE_DRAIN):
            if item.node_id in books.nodes:
                self._answers["rejected node", item.node_id] += 1
                return
            node = Node(item.node_id, vector(item.capacity or {}), item.action is NodeAction.CREATE)
            books.nodes[item.node_id] = node
            self._answers["accepted node", item.node_id] += 1
            for existing in item.existing:
                self._hear_adopted(existing._replace(node_id=item.node_id))
            return
        known = books.nodes.get(item.node_id)
        if known is None or (item.action is NodeAction.DRAIN_TO_SCHEDULABLE and known.schedulable):
            self._answers["rejected node", item.node_id] += 1
            return
        node = known
        self._answers["accepted node", item.node_id] += 1
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
        if item.app_id in books.apps:
            self._answers["rejected application", item.app_id] += 1
            return
        queue = books.queues[item.queue]
        total = vector(item.placeholder_ask or {})
        timeout_ns = item.execution_timeout_ms * 1_000_000 or PLACEHOLDERS_WAIT_NS
        created = item.tags.get(CREATION_TIME)
        if created is not None and int(created) * SECOND_NS <= self.now_ns:
            timeout_ns = max(int(created) * SECOND_NS + timeout_ns - self.now_ns, 1_000_000)
        app = App(item.app_id, queue, item.user, timeout_ns, item.gang_style, total if any(total) else None)
        if app.total is not None:
            app.phase = "WAITING"
        books.apps[app.app_id] = app
        books.assign_limits(app)
        why = ""
        if app.total is not None:
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
        made = old.made if old is not None else app.made(item.key)
        for held in [each for each in app.held.values() if made and each.key == item.key]:
            self._change_held(held, item)
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

    def _change_held(self, held: Held, item: AskItem) -> None:
        """Its ask came again: what runs is as it says, whatever it was told meanwhile."""
        books = self.books
        before = (held.said, held.priority, held.may_go, held.may_preempt)
        if before == (item.quantities, item.priority, item.allow_preempt_self, item.allow_preempt_other):
            return
        self.tally[
            f"changed: {'placeholder' if held.placeholder else 'real'}{f', {held.told}' if held.told else ''}"
        ] += 1
        resized = held.said != item.quantities
        books.resize(held, dict(item.quantities), vector(item.quantities))
        held.priority = item.priority
        held.may_go, held.may_preempt = item.allow_preempt_self, item.allow_preempt_other
        if resized:
            self._placed(held.app, held)

    def _placed(self, app: App, held: Held) -> None:
        """What an allocation means for its gang."""
        raise NotImplementedError

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
        self._order += 1
        self._adopted[item.app_id, item.key, item.uuid] = (self._order, item)

    # ---- commands: releases ----------------------------------------------------------------------------------------

    def _hear_release(self, item: ReleaseItem) -> None:
        books = self.books
        app = books.apps.get(item.app_id)
        if app is None:
            self._nothing_there(item)
            return
        self.tally[f"release: {item.termination.name}{' (ask)' if item.ask_only else ''}"] += 1
        found = [
            held
            for held in app.held.values()
            if (held.uuid == item.uuid if item.uuid else not item.key or held.key == item.key)
        ]
        if item.ask_only:
            found = []
        if item.termination is Termination.SCHEDULING_FAILED_ON_RM and found and app.state != "Failing":
            for held in found:
                over = held.placeholder and app.state == "Completing"  # nobody needs it any more
                if over or held.told in ("timeout", "replaced"):
                    self._end(held, item)
                else:
                    self._ask_again(held)
            return
        # A confirmation ends what was told to go, and nothing else; without any, it ends what it names.
        told = [held for held in found if held.told]
        confirms = item.termination in TOLD.values() and bool(item.key or item.uuid) and bool(told)
        ended = told if confirms else found
        asks = [ask for ask in app.asks.values() if not item.uuid and item.key in ("", ask.key)]
        if not item.ask_only and (confirms or item.termination in _KEEPING):
            asks = []
        for ask in asks:
            self.tally["ask: cancelled"] += 1
            if ask.leaving:
                self.tally["ask: cancelled while a placeholder leaves"] += 1
            books.remove_ask(ask, "lost")
            if ask.key not in {held.key for held in ended}:
                self._answers["released ask", ask.key] += 1
        if not ended and not asks:
            self._nothing_there(item)
        self._alone = self._alone and len(ended) <= 1
        for held in ended:
            self._end(held, item)

    def _nothing_there(self, item: ReleaseItem) -> None:
        self.tally["release: of nothing"] += 1
        if item.ask_only:
            self._answers["released ask", item.key] += 1
        else:
            self._echoes[item.app_id, item.key, item.uuid, Termination.STOPPED_BY_RM] += 1

    def _end(self, held: Held, item: ReleaseItem) -> None:
        if not held.told or item.termination not in _CONFIRMATIONS:
            self._echoes[held.app.app_id, held.key, held.uuid, Termination.STOPPED_BY_RM] += 1
        heir, became = (
            held.app.asks.get(held.heir),
            {"timeout": "timed_out", "replaced": "replaced"}.get(held.told, "lost"),
        )
        if held.told:
            other = item.termination is not TOLD[held.told]
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
        pending, made = 1, app.made(held.key) - 1
        books.drop(held, "lost")
        if held.placeholder:
            app.groups[held.task_group].lost -= 1
        self.tally["ask: again after a failure on the RM"] += 1
        # (With others of its ask still pending they become what it was: their size may have changed since.)
        if old is not None:
            pending, made = old.pending + 1, old.made - 1
            books.remove_ask(old, "")
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
        books.add_ask(ask, pending)
