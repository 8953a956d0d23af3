"""What counts, in one partition, of what sources outside of the RM say (docs/external-rules.md).

What a change concerns is looked at anew, and nothing else. What cannot count now (its node, queue or application is
not there) is *dormant*: its entry says why, and it is looked at again when that comes. The RM is told nothing of all
this but what ends of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from muster_scheduler.core import placement, quota
from muster_scheduler.core.closing import Closer
from muster_scheduler.core.commands import AskItem, Termination
from muster_scheduler.core.external import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
)
from muster_scheduler.core.external_books import Changed, ExternalEntry, OnNode, PartitionBooks, SourceEntry
from muster_scheduler.core.external_merge import (
    merge,
    parts_of,
    quota_dispute,
    smallest_maximum,
    taken_back,
    wanted_back,
)
from muster_scheduler.core.limits import link_event
from muster_scheduler.core.objects import Allocation, Application, Node, Queue, foreign_id, unique_key
from muster_scheduler.core.outcome import Change, Detail, EventType, Outcome
from muster_scheduler.core.resources import TooManyTypes
from muster_scheduler.core.states import AppState

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


class PartitionExternal:
    """The sources' part in one partition. Entries are the books'; what counts is in the partition's own objects.

    An allocation of a source is one of its application, or (without) a foreign one with the key ``<source>/<key>``.

    :ivar books: what was said.
    """

    def __init__(self, partition: Partition, books: PartitionBooks) -> None:
        self._partition = partition
        self.books = books
        # Ids of applications that went, which sources bring an application of, too.
        self._vacant: dict[str, None] = {}

    # ---- the whole of it -------------------------------------------------------------------------------------------

    def begin(self, out: Outcome, now_ns: int) -> None:
        """Takes all that is in the books into a partition that is new."""
        self._partition.pools.settle(out, now_ns)
        self._partition.offers.begin(out, now_ns)
        for path in sorted(self.books.queues):
            self._settle_queue(path, out, now_ns)
        for node_id in sorted(self.books.nodes):
            self._settle_node(node_id, out, now_ns)
        for app_id in sorted(self.books.applications):
            self._settle_application(app_id, out, now_ns)
        for entry in _sorted(self.books.entries(ExternalKind.ALLOCATION)):
            self._settle_allocation(entry, out, now_ns)

    def end(self, out: Outcome, now_ns: int) -> None:
        """Takes all that is the sources' out of a partition that goes."""
        partition = self._partition
        for app in [app for app in partition.apps.values() if app.source]:
            partition.lifecycle.remove_application(app, out, now_ns)
        for node in list(partition.nodes.values()):
            partition.node_lives.remove(node, out, now_ns)
        for entry in list(self.books.entries()):
            if entry.withdrawn:  # nothing needs it any more
                self.books.forget(entry)
                out.touch(entry, entry.partition)
            else:
                no_partition(entry, out)

    def activate(self) -> None:
        """After a fold, in which nothing is merged anew: what later changes are compared with."""
        partition = self._partition
        for path, entries in self.books.queues.items():
            queue = partition.queues.get(path)
            if queue is not None and queue.parent is not None:
                queue.external_maximum = self._maximum(entries)[1]
        for node_id, on in self.books.nodes.items():
            node = partition.nodes.get(node_id)
            if node is not None:
                merged = merge(partition.node_lives.report_of(node), parts_of(on))
                node.disputed, node.closed_by = merged.disputed, merged.closer or wanted_back(on)
            else:
                partition.figures.taken_back(node_id, taken_back(on))

    def apply(self, changes: Iterable[Changed], out: Outcome, now_ns: int) -> None:
        """What sources said is in the books; it counts from here on, all of it at once.

        So that nothing ends in between that is there before and after: what is gone goes first, then nodes and queues
        are as they are now, then comes what needs them.
        """
        pools = False
        queues: dict[str, None] = {}
        nodes: dict[str, None] = {}
        apps: dict[str, None] = {}
        gone: list[tuple[ExternalEntry, str]] = []
        allocations: dict[ExternalEntry, None] = {}
        name = self.books.name
        for entry, before, counts in changes:
            out.touch(entry, name)
            if not counts:
                continue
            if isinstance(entry, SourceEntry):
                nodes.update(dict.fromkeys(_nodes_of(entry)))
                pools = pools or bool(self.books.pools)
                continue
            match entry.said:
                case ExternalNode(node_id=node_id):
                    nodes[node_id] = None
                case ExternalOffer(node_id=node_id):
                    self._partition.offers.heard(entry, before, out, now_ns)
                    nodes[node_id] = None
                    if isinstance(before, ExternalOffer):
                        nodes[before.node_id] = None
                case ExternalPool():
                    pools = True
                case ExternalQueue(path=path):
                    queues[path.lower()] = None
                case ExternalApplication(app_id=app_id):
                    apps[app_id] = None
                case ExternalAllocation(node_id=node_id, app_id=app_id):
                    if not self._stays(node_id, entry):
                        nodes[node_id] = None
                    if isinstance(before, ExternalAllocation):
                        if before.node_id != node_id and not self._stays(before.node_id, entry):
                            nodes[before.node_id] = None
                        if entry.gone or before.app_id != app_id:
                            gone.append((entry, before.app_id))
                    if not entry.gone:
                        allocations[entry] = None
        if pools:
            self._partition.pools.settle(out, now_ns)
        for path in sorted(queues):
            self._settle_queue(path, out, now_ns)
        for ended, of_app in gone:
            self._end_allocation(ended, of_app, out, now_ns)
        for node_id in sorted(nodes):
            self._settle_node(node_id, out, now_ns)
        for app_id in sorted(apps):
            self._settle_application(app_id, out, now_ns)
        for running in allocations:
            if not running.gone:
                self._settle_allocation(running, out, now_ns)

    def reconfigured(self, out: Outcome, now_ns: int) -> None:
        """The configuration is another: there may be queues for what had none."""
        for entry in self.books.entries(ExternalKind.APPLICATION):
            if entry.problem:
                self._vacant[entry.object_id] = None
        for path in sorted(self.books.queues):
            self._settle_queue(path, out, now_ns)

    def closer_of(self, node: Node) -> Closer | None:
        """Who closes a node, by what is said of it now: for a follower, which merges nothing."""
        on = self.books.nodes.get(node.node_id) if node.sources else None
        if on is None or (node.schedulable and not on.offers):
            return node.closer
        if node.schedulable:
            return node.closer or wanted_back(on)
        return merge(self._partition.node_lives.report_of(node), parts_of(on)).closer

    def taken_back(self) -> Iterator[Closer]:
        """Who took back what was lent of nodes that are there no more: O(nodes of which sources speak)."""
        for node_id, on in self.books.nodes.items():
            if on.offers and node_id not in self._partition.nodes:
                closer = taken_back(on)
                if closer is not None:
                    yield closer

    @property
    def is_behind(self) -> bool:
        """Something became possible since it was last looked at."""
        return bool(self._vacant)

    def catch_up(self, out: Outcome, now_ns: int) -> None:
        """Looks at what became possible meanwhile."""
        vacant = sorted(self._vacant)
        self._vacant.clear()
        for app_id in vacant:
            self._settle_application(app_id, out, now_ns)

    @staticmethod
    def set_problem(entry: ExternalEntry, problem: str, out: Outcome) -> None:
        """Why an entry does not count, or not all of it; "": it does."""
        if entry.problem != problem:
            entry.problem = problem
            out.touch(entry, entry.partition)

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def heard_of(self, node_id: str, out: Outcome) -> OnNode | None:
        """What sources say of a node, as far as the partition can count in the types of it; None: nothing."""
        on = self.books.nodes.get(node_id)
        if on is None:
            return None
        bad: list[ExternalEntry] = []
        for entry in on.nodes.values():
            self._reserve(entry, bad, out)
        for offers in on.offers.values():
            for entry in offers:
                self._reserve(entry, bad, out)
        return on if not bad else _without(on, bad)

    @staticmethod
    def counted(on: OnNode) -> OnNode:
        """What counts of all that is said of a node that is there, since somebody spoke of it last."""
        bad = [entry for entry in on.nodes.values() if entry.problem]
        bad += [entry for offers in on.offers.values() for entry in offers if entry.problem]
        return on if not bad else _without(on, bad)

    def _reserve(self, entry: ExternalEntry, bad: list[ExternalEntry], out: Outcome) -> None:
        said, known = entry.said, self._partition.types.numbers.keys()
        if isinstance(said, ExternalNode) and said.occupied.keys() <= known >= (said.capacity or {}).keys():
            return  # as nearly always
        try:
            self._partition.types.reserve(_types_of(entry.said))
        except TooManyTypes as error:
            bad.append(entry)
            self.set_problem(entry, str(error), out)

    def node_is_there(self, on: OnNode, out: Outcome, now_ns: int, *, came: bool) -> None:
        """A node is as it is said: what speaks of it counts; and, if it is new, what waits for it."""
        for entry in on.nodes.values():
            if entry.problem:
                self.set_problem(entry, "", out)
        for offers in on.offers.values():
            for entry in offers:
                if entry.problem:
                    self.set_problem(entry, "", out)
        if came:
            for entry in _sorted(entry for entries in on.allocations.values() for entry in entries):
                self._settle_allocation(entry, out, now_ns)

    def node_is_gone(self, node_id: str, on: OnNode, out: Outcome, *, went: bool) -> None:
        """There is no such node: what speaks of it is dormant, and (if it was there until now) what was on it."""
        missing = _no_node(node_id)
        for entry in on.nodes.values():
            self.set_problem(entry, f"{missing}, and this source does not bring it", out)
        for offers in on.offers.values():
            for entry in offers:
                self.set_problem(entry, f"{missing}, and nothing of it is offered", out)
        if went:
            for allocations in on.allocations.values():
                for entry in allocations:
                    self.set_problem(entry, missing, out)

    def _stays(self, node_id: str, entry: ExternalEntry) -> bool:
        """Whether a node is the same with another allocation of a source that speaks of the node itself: nothing kept
        it from what is new before, and no allocation that is stale does so now."""
        node, on = self._partition.nodes.get(node_id), self.books.nodes.get(node_id)
        if node is None or not node.schedulable or on is None or on.stale or on.offers:
            return False
        source = entry.owner.source
        own = on.nodes.get(source)
        return own is not None and not own.problem and source in node.sources

    def _settle_node(self, node_id: str, out: Outcome, now_ns: int) -> None:
        lives = self._partition.node_lives
        node = self._partition.nodes.get(node_id)
        lives.settle(node_id, lives.report_of(node) if node is not None else None, out, now_ns)

    # ---- queues ----------------------------------------------------------------------------------------------------

    def restrict(self, queue: Queue) -> None:
        """A queue is new: what sources say of its max holds from its beginning.

        (A fold takes what counts from the queue's own record: types that could not be counted must not take the place
        of those that are.)
        """
        entries = self.books.queues.get(queue.path)
        if entries and queue.parent is not None and self._partition.searching:
            queue.restrict(*self._maximum(entries))

    def dispute(self, queue: Queue) -> str:
        """Who says what of a queue's max, where they differ, in words; "": nowhere."""
        entries = self.books.queues.get(queue.path)
        if not entries or queue.parent is None:
            return ""
        return quota_dispute(queue.by_name(queue.own_maximum), entries)

    def queue_is_there(self, queue: Queue, out: Outcome) -> None:
        """A queue was announced: those that waited for it count."""
        for entry in self.books.queues.get(queue.path, ()):
            self.set_problem(entry, self._queue_problem(entry, queue), out)

    def queue_is_gone(self, queue: Queue, out: Outcome) -> None:
        """A queue went."""
        for entry in self.books.queues.get(queue.path, ()):
            self.set_problem(entry, self._queue_problem(entry, None), out)

    def _queue_problem(self, entry: ExternalEntry, queue: Queue | None) -> str:
        if queue is None:
            return f"queue {entry.object_id.lower()} is not there"
        if queue.parent is None:
            return "the max of root is what the nodes have: no source sets it"
        try:
            self._partition.types.reserve(_types_of(entry.said))
        except TooManyTypes as error:
            return str(error)
        return ""

    def _maximum(self, entries: Iterable[ExternalEntry]) -> tuple[tuple[str, ...], dict[int, int] | None]:
        """What sources say of a queue's max, by type number."""
        types = self._partition.types
        counted: list[ExternalEntry] = []
        for entry in entries:
            try:
                types.reserve(_types_of(entry.said))
                counted.append(entry)
            except TooManyTypes:
                continue
        sources, maximum = smallest_maximum(counted)
        return sources, None if maximum is None else dict(types.items(maximum))

    def _settle_queue(self, path: str, out: Outcome, now_ns: int) -> None:
        partition = self._partition
        queue, entries = partition.queues.get(path), self.books.queues.get(path, {})
        for entry in entries:
            self.set_problem(entry, self._queue_problem(entry, queue), out)
        if queue is None or queue.parent is None:
            return
        before, sources = (queue.guaranteed, queue.maximum), queue.sources
        queue.restrict(*self._maximum(entries))
        if queue.maximum != before[1]:
            partition.capacity_moved = True
            partition.version += 1
            partition.queue_tree.limit_events(queue, *before, out, now_ns)
            delay_ns = quota.delay_ns(partition, queue)
            quota.configured(partition, queue, before[1], delay_ns, out, now_ns)
            partition.waiting.stir((queue,))
            out.touch(queue, partition.name)
        elif queue.sources != sources:
            out.touch(queue, partition.name)

    # ---- applications ----------------------------------------------------------------------------------------------

    def application_left(self, app_id: str) -> None:
        """An id is free again; perhaps a source brings an application of it."""
        if app_id in self.books.applications:
            self._vacant[app_id] = None

    def _settle_application(self, app_id: str, out: Outcome, now_ns: int) -> None:
        """Of several that bring an application of this id the one that has it keeps it, else the first by name."""
        partition = self._partition
        entries = _sorted(self.books.applications.get(app_id, ()))
        known = app = partition.live_application(app_id)
        if app is not None and app.source:
            owner = next((entry for entry in entries if entry.source == app.source), None)
            if owner is None or not _is_as_said(app, owner.said):
                partition.lifecycle.remove_application(app, out, now_ns)
                app = None
            elif isinstance(owner.said, ExternalApplication) and app.tags != owner.said.tags:
                app.tags = dict(owner.said.tags)
                out.touch(app, partition.name)
        for entry in entries:
            problem = ""
            if app is None:
                app, problem = self._bring_application(entry, out, now_ns)
            elif app.source != entry.source:
                whose = f"source {app.source}" if app.source else "the resource manager"
                problem = f"there is an application {app_id} of {whose}"
            self.set_problem(entry, problem, out)
        if app is not known:
            for entry in _sorted(self.books.app_allocations.get(app_id, ())):
                self._settle_allocation(entry, out, now_ns)

    def _bring_application(self, entry: ExternalEntry, out: Outcome, now_ns: int) -> tuple[Application | None, str]:
        """The application that a source brings; or None, and why it cannot be."""
        partition, said = self._partition, entry.said
        assert isinstance(said, ExternalApplication)
        path, problem = placement.path_of(partition, said.queue)
        if problem:
            return None, problem
        queue, created, problem = partition.queue_tree.create_queue(path)
        if queue is None:
            return None, problem
        number = partition.node_lives.number()
        app = Application(partition.types, said.app_id, queue, number, now_ns)
        app.requested_queue, app.source, app.tags = said.queue, entry.source, dict(said.tags)
        app.user, app.groups_of_user = said.user, _groups(said)
        app.story.append((now_ns, AppState.NEW))
        partition.lifecycle.take_id(app, out)
        partition.lifecycle.add_application(app)
        for new in created:
            partition.queue_tree.announce_queue(new, out, now_ns)
        out.touch(app, partition.name)
        out.track(EventType.APP, Change.ADD, Detail.NONE, app.app_id, message=f"source {app.source}", now_ns=now_ns)
        out.track(EventType.APP, Change.SET, Detail.APP_NEW, app.app_id, now_ns=now_ns)
        out.track(EventType.QUEUE, Change.ADD, Detail.QUEUE_APP, queue.path, app.app_id, now_ns=now_ns)
        link_event(app, app.user_group, Change.SET, out, now_ns)
        return app, ""

    # ---- allocations -----------------------------------------------------------------------------------------------

    def allocation_of(self, entry: ExternalEntry) -> Allocation | None:
        """What counts of an allocation that a source runs; None: nothing."""
        said = entry.said
        return self._held(entry, said.app_id) if isinstance(said, ExternalAllocation) else None

    def _held(self, entry: ExternalEntry, app_id: str) -> Allocation | None:
        """Whatever counts of it; ``app_id``: whose it was to be."""
        partition = self._partition
        held = partition.foreign.get(foreign_id(foreign_key(entry), entry.source))
        if held is None and app_id:
            app = partition.live_application(app_id)
            if app is not None and app.source == entry.source:
                held = app.allocations.get(unique_key(entry.object_id, 0))
        return held

    def _settle_allocation(self, entry: ExternalEntry, out: Outcome, now_ns: int) -> None:
        """It counts as soon as its node is there; in a queue, when its application is there, too.

        (What came in which order must not make a node look free that is not.)
        """
        partition, said = self._partition, entry.said
        assert isinstance(said, ExternalAllocation)
        held = self._held(entry, said.app_id)
        problem = "" if said.node_id in partition.nodes else _no_node(said.node_id)
        if not any(said.quantities.values()):
            problem = problem or "it holds no resources"
        try:
            shape = partition.types.shape(said.quantities)
        except TooManyTypes as error:
            problem = problem or str(error)
        if problem:
            self.set_problem(entry, problem, out)
            if held is not None:
                self._release(held, problem, out, now_ns)
            return
        app = partition.live_application(said.app_id) if said.app_id else None
        if app is not None and app.source != entry.source:
            app = None
        if said.app_id and app is None:
            problem = f"source {entry.source} has no application {said.app_id} there: it counts on its node only"
        self.set_problem(entry, problem, out)
        key, app_id = (foreign_key(entry), "") if app is None else (entry.object_id, app.app_id)
        tags, node_id = said.tags, said.node_id
        item = AskItem(key, app_id, partition.name, said.quantities, 1, said.priority, tags, node_id=node_id)
        if held is not None and held.app is app:
            demand = partition.demand_of(item, shape, held.submission, held.created_ns)
            partition.adoption.change(held, demand, node_id, "", out, now_ns, echo=False)
            self._taken(node_id, out)
            return
        if held is not None:
            self._release(held, f"it is of application {app_id or 'nobody'} now", out, now_ns)
        allocation = partition.allocation_of(item, app, shape, partition.node_lives.number(), now_ns)
        allocation.source = entry.source
        partition.adoption.adopt(allocation, out, now_ns, echo=False)
        self._taken(node_id, out)

    def _taken(self, node_id: str, out: Outcome) -> None:
        """The RM may be being asked about what is now another's: it would be over-committed with open eyes."""
        node = self._partition.nodes[node_id]
        if node.inquiries:
            self._partition.questions.node_shrank(node, out)

    def _end_allocation(self, entry: ExternalEntry, app_id: str, out: Outcome, now_ns: int) -> None:
        held = self._held(entry, app_id)
        if held is not None:
            self._release(held, f"source {entry.source} does not run it any more", out, now_ns)

    def _release(self, held: Allocation, message: str, out: Outcome, now_ns: int) -> None:
        self._partition.releases.release(
            held, Termination.STOPPED_BY_RM, message, Detail.ALLOC_CANCEL, out, now_ns, tell=False, completing=False
        )


def no_partition(entry: ExternalEntry, out: Outcome) -> None:
    """The configuration does not have the partition of an entry."""
    PartitionExternal.set_problem(entry, f"partition {entry.partition} does not exist", out)


def foreign_key(entry: ExternalEntry) -> str:
    """The key of an allocation that belongs to no application."""
    return f"{entry.source}/{entry.object_id}"


def _sorted(entries: Iterable[ExternalEntry]) -> list[ExternalEntry]:
    return sorted(entries, key=lambda entry: entry.order)


def _nodes_of(source: SourceEntry) -> Iterable[str]:
    """The nodes that a source takes part in."""
    for entry in source.entries.values():
        said = entry.said
        if isinstance(said, ExternalNode | ExternalOffer | ExternalAllocation):
            yield said.node_id


def _types_of(said: ExternalObject) -> list[str]:
    """The resource types that an object of a node or queue names."""
    match said:
        case ExternalNode():
            return [*(said.capacity or ()), *said.occupied]
        case ExternalOffer():
            return list(said.quantities)
        case ExternalQueue():
            return list(said.maximum)
    return []


def _without(on: OnNode, bad: list[ExternalEntry]) -> OnNode:
    """What is said of a node but for some of it."""
    kept = OnNode()
    kept.nodes = {source: entry for source, entry in on.nodes.items() if entry not in bad}
    kept.offers = {
        source: {entry: None for entry in offers if entry not in bad}
        for source, offers in on.offers.items()
        if any(entry not in bad for entry in offers)
    }
    kept.allocations, kept.stale = on.allocations, on.stale
    return kept


def _is_as_said(app: Application, said: ExternalObject) -> bool:
    """Whether the application is where, and whose, its source says."""
    assert isinstance(said, ExternalApplication)
    return (app.requested_queue, app.user, app.groups_of_user) == (said.queue, said.user, _groups(said))


def _groups(said: ExternalApplication) -> tuple[str, ...]:
    """Nobody resolves them: without any, the user's own group, as for the RM's applications."""
    return said.groups or ((said.user,) if said.user else ())


def _no_node(node_id: str) -> str:
    return f"node {node_id} is not there"
