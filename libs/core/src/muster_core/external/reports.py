"""The statements of external sources, by partition: the input of the merge, not its result. ``model.py`` defines the
terms.

:class:`ExternalReports` belong to an RM's id, not to one of its registrations: they exist before the RM registers, and
outlive it. Machine and follower keep one for each RM and hand it to its core, which computes from it what counts
(``external_merge.py``). Where there is no core yet, :meth:`ExternalReports.apply_in_steps` alone suffices.

Each entry is filed under its subject: a node's parts under the node, an application's allocations under the
application. So a change costs time only for its subject.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from muster_core.config.queue_config import partition_name
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    OfferState,
    SetSourceState,
    SourceState,
)
from muster_core.model.steps import LIGHT_STEP, STEP, Steps, emptied, sorted_in_steps

# The number of ended lives that are remembered of a source. Late commands of these lives are ignored.
PAST_LIVES_MAX = 4

# Kinds whose id does not name their subject, which may change.
_REFER = (ExternalAllocation, ExternalOffer)
_KIND_RANKS = {kind: rank for rank, kind in enumerate(ExternalKind)}


@dataclass(slots=True, eq=False)
class SourceEntry:
    """A source and its statements.

    :ivar since_ns: when the source entered its state.
    :ivar drains: while the source is lost, its nodes take nothing new.
    :ivar lost: the source was STALE, and has not been LIVE since.
    :ivar past: the lives before the present one, oldest first.
    :ivar entries: by kind and id.
    """

    partition: str
    source: str
    state: SourceState = SourceState.LISTING
    life: str = ""
    since_ns: int = 0
    drains: bool = True
    reason: str = ""
    lost: bool = False
    past: tuple[str, ...] = ()
    entries: dict[tuple[ExternalKind, str], ReportedObject] = field(default_factory=dict, repr=False)
    gone: bool = False
    published: bool = False

    @property
    def holds(self) -> bool:
        """Whether its nodes take nothing new."""
        return self.lost and self.drains


@dataclass(slots=True, eq=False)
class ReportedObject:
    """One object as its source described it last.

    :ivar since_ns: when the source first named it.
    :ivar life: the source's life that named it last.
    :ivar stale: the last statement cannot be relied on.
    :ivar problem: why it does not count; "": it counts (or there is no core to judge).
    :ivar offer_state: the state of an offer; None: the object is no offer. Of offers, too: ``idle_since_ns`` (0: it is
        needed) and ``deadline_ns``, when what runs there is preempted (0: no deadline).
    :ivar withdrawn: the source does not name the offer any more; the offer goes when nothing needs it.
    """

    owner: SourceEntry
    kind: ExternalKind
    object_id: str
    said: ExternalObject
    life: str
    since_ns: int
    stale: bool = False
    problem: str = ""
    offer_state: OfferState | None = None
    idle_since_ns: int = 0
    deadline_ns: int = 0
    withdrawn: bool = False
    gone: bool = False
    published: bool = False

    @property
    def partition(self) -> str:
        """The partition's name."""
        return self.owner.partition

    @property
    def source(self) -> str:
        """The source's name."""
        return self.owner.source

    @property
    def holds(self) -> bool:
        """Whether the object or its source is lost, and its node takes nothing new meanwhile."""
        return self.owner.drains and (self.stale or self.owner.lost)

    @property
    def order(self) -> tuple[str, int, str]:
        """Sorts the entries of a partition by source, kind and id, whatever came first."""
        return self.owner.source, _KIND_RANKS[self.kind], self.object_id

    def __repr__(self) -> str:
        return f"ReportedObject({self.partition}/{self.source}/{self.kind}/{self.object_id})"


External = SourceEntry | ReportedObject


class EntryChange(NamedTuple):
    """An entry or a source that changed, or (``what.gone``) went.

    :ivar before: the source's former statement; None: there was none, or ``what`` is a source.
    :ivar counts: the change can make a difference; False: only the life of the source is another.
    """

    what: External
    before: ExternalObject | None = None
    counts: bool = True


class NodeReports:
    """The statements of sources about one node.

    :ivar nodes: by source.
    :ivar offers: by source; ``allocations``: by source, what runs there.
    :ivar stale: by source, the allocations that cannot be relied on.
    """

    __slots__ = ("allocations", "nodes", "offers", "stale")

    def __init__(self) -> None:
        self.nodes: dict[str, ReportedObject] = {}
        self.offers: dict[str, dict[ReportedObject, None]] = {}
        self.allocations: dict[str, dict[ReportedObject, None]] = {}
        self.stale: dict[str, dict[ReportedObject, None]] = {}

    def __bool__(self) -> bool:
        return bool(self.nodes or self.offers or self.allocations)


class PartitionReports:
    """The statements of sources about one partition. The order of the inner dictionaries has no meaning.

    :ivar sources: by name.
    :ivar nodes: by node id.
    :ivar queues: by path, lower case; ``applications`` by id; ``app_allocations`` by the application's id; ``pools`` by
        resource type.
    """

    __slots__ = ("app_allocations", "applications", "name", "nodes", "pools", "queues", "sources")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sources: dict[str, SourceEntry] = {}
        self.nodes: dict[str, NodeReports] = {}
        self.queues: dict[str, dict[ReportedObject, None]] = {}
        self.applications: dict[str, dict[ReportedObject, None]] = {}
        self.app_allocations: dict[str, dict[ReportedObject, None]] = {}
        self.pools: dict[str, dict[ReportedObject, None]] = {}

    def entry(self, source: str, kind: ExternalKind, object_id: str) -> ReportedObject | None:
        """A source's entry for one object; None: there is none."""
        owner = self.sources.get(source)
        return owner.entries.get((kind, object_id)) if owner is not None else None

    def entries(self, kind: ExternalKind | None = None) -> Iterator[ReportedObject]:
        """All entries (of one kind). Their order has no meaning."""
        for owner in self.sources.values():
            for entry in owner.entries.values():
                if kind is None or entry.kind is kind:
                    yield entry

    # ---- entries by subject ----------------------------------------------------------------------------------------

    def index(self, entry: ReportedObject) -> None:
        """Files an entry under its subject."""
        match entry.said:
            case ExternalNode():
                self._on(entry.said.node_id).nodes[entry.source] = entry
            case ExternalOffer():
                self._on(entry.said.node_id).offers.setdefault(entry.source, {})[entry] = None
            case ExternalAllocation(node_id=node_id, app_id=app_id):
                on = self._on(node_id)
                on.allocations.setdefault(entry.source, {})[entry] = None
                if entry.stale:
                    on.stale.setdefault(entry.source, {})[entry] = None
                if app_id:
                    self.app_allocations.setdefault(app_id, {})[entry] = None
            case ExternalQueue():
                self.queues.setdefault(entry.said.path.lower(), {})[entry] = None
            case ExternalApplication():
                self.applications.setdefault(entry.said.app_id, {})[entry] = None
            case ExternalPool():
                self.pools.setdefault(entry.said.resource_type, {})[entry] = None

    def unindex(self, entry: ReportedObject) -> None:
        """Undoes :meth:`index`. The entry's statement and its ``stale`` must be the same as then."""
        match entry.said:
            case ExternalNode(node_id=node_id):
                del self.nodes[node_id].nodes[entry.source]
                self._off(node_id)
            case ExternalOffer(node_id=node_id):
                _drop(self.nodes[node_id].offers, entry.source, entry)
                self._off(node_id)
            case ExternalAllocation(node_id=node_id, app_id=app_id):
                _drop(self.nodes[node_id].allocations, entry.source, entry)
                if entry.stale:
                    _drop(self.nodes[node_id].stale, entry.source, entry)
                self._off(node_id)
                if app_id:
                    _drop(self.app_allocations, app_id, entry)
            case ExternalQueue():
                _drop(self.queues, entry.said.path.lower(), entry)
            case ExternalApplication():
                _drop(self.applications, entry.said.app_id, entry)
            case ExternalPool():
                _drop(self.pools, entry.said.resource_type, entry)

    def forget(self, entry: ReportedObject) -> None:
        """Removes an entry."""
        self.unindex(entry)
        del entry.owner.entries[entry.kind, entry.object_id]
        entry.gone = True

    def _on(self, node_id: str) -> NodeReports:
        reports = self.nodes.get(node_id)
        if reports is None:
            self.nodes[node_id] = reports = NodeReports()
        return reports

    def _off(self, node_id: str) -> None:
        if not self.nodes[node_id]:
            del self.nodes[node_id]


class ExternalReports:
    """The statements of sources for one RM.

    :ivar partitions: by name, including partitions that no configuration has.
    """

    __slots__ = ("partitions",)

    def __init__(self) -> None:
        self.partitions: dict[str, PartitionReports] = {}

    def __bool__(self) -> bool:
        return any(books.sources for books in self.partitions.values())

    def for_partition(self, partition: str) -> PartitionReports:
        """The books of a partition, created if there are none."""
        reports = self.partitions.get(partition)
        if reports is None:
            self.partitions[partition] = reports = PartitionReports(partition)
        return reports

    def source(self, partition: str, source: str) -> SourceEntry | None:
        """A source; None: it has made no statement."""
        books = self.partitions.get(partition)
        return books.sources.get(source) if books is not None else None

    def all_sources(self) -> Iterator[SourceEntry]:
        """The sources of all partitions, by partition and name."""
        for name in sorted(self.partitions):
            sources = self.partitions[name].sources
            yield from (sources[source] for source in sorted(sources))

    def apply_in_steps(
        self, command: ApplyExternalChanges | SetSourceState, now_ns: int, *, has_offers: bool = False
    ) -> Generator[None, None, list[EntryChange]]:
        """Takes a source's statements, in steps. Returns the changes, in order.

        Ignores an earlier life: records of an informer that has ended may still arrive. An unchanged object counts as a
        change only if its life changed.

        :param has_offers: an offer that its source does not name any more is *withdrawn*, and goes when nothing needs
            it (``offers.py``). False: nothing can need it, so it goes at once.
        """
        books = self.for_partition(partition_name(command.partition))
        changed: list[EntryChange] = []
        owner = books.sources.get(command.source)
        if owner is None:
            owner = SourceEntry(books.name, command.source, life=command.life, since_ns=now_ns)
            books.sources[command.source] = owner
            began = True
        elif command.life in owner.past:
            return changed
        else:
            began = owner.life != command.life
            if began:
                owner.past = (*owner.past, owner.life)[-PAST_LIVES_MAX:]
                owner.life = command.life
        if isinstance(command, SetSourceState):
            yield from self._set(books, owner, command, began, now_ns, changed, has_offers=has_offers)
            return changed
        if began:  # (Changes before the first SetSourceState of a life belong to its listing.)
            if owner.state is not SourceState.LISTING:
                owner.state, owner.since_ns = SourceState.LISTING, now_ns
            changed.append(EntryChange(owner, counts=False))
        for count, change in enumerate(command.changes, 1):
            self._take(books, owner, change, now_ns, changed, has_offers=has_offers)
            if not count % STEP:
                yield
        return changed

    def _set(
        self,
        books: PartitionReports,
        owner: SourceEntry,
        command: SetSourceState,
        began: bool,
        now_ns: int,
        changed: list[EntryChange],
        *,
        has_offers: bool,
    ) -> Steps:
        state = command.state
        if state is SourceState.LIVE:
            unnamed: list[ReportedObject] = []
            for count, entry in enumerate(owner.entries.values(), 1):
                if entry.life != owner.life:
                    unnamed.append(entry)
                if not count % LIGHT_STEP:
                    yield
            unnamed = yield from sorted_in_steps(emptied(unnamed), order_of)
            for count, entry in enumerate(emptied(unnamed), 1):
                self._leave(books, entry, changed, has_offers=has_offers)
                if not count % STEP:
                    yield
        lost = state is SourceState.STALE or (owner.lost and state is SourceState.LISTING)
        # (While the source lists again, the reason for which it was lost is kept.)
        reason = command.reason if state is SourceState.STALE else owner.reason if lost else ""
        before, after = (owner.state, owner.drains, owner.reason, owner.lost), (state, command.drains, reason, lost)
        if owner.state is not state:
            owner.since_ns = now_ns
        was_closing = owner.holds
        owner.state, owner.drains, owner.reason, owner.lost = after
        if began or before != after:
            # (Some of its objects may be stale; for these the source says whether they drain.)
            changed.append(EntryChange(owner, counts=was_closing != owner.holds or before[1] != after[1]))

    def _take(
        self,
        books: PartitionReports,
        owner: SourceEntry,
        change: ExternalChange,
        now_ns: int,
        changed: list[EntryChange],
        *,
        has_offers: bool,
    ) -> None:
        object_id = change.object_id
        entry = owner.entries.get((change.kind, object_id))
        if change.what is None or (change.stale and entry is not None):
            if entry is None or (entry.withdrawn and change.stale):
                return
            if not change.stale:
                self._leave(books, entry, changed, has_offers=has_offers)
            elif not entry.stale or entry.life != owner.life:
                counts = not entry.stale
                books.unindex(entry)
                entry.stale, entry.life = True, owner.life
                books.index(entry)
                changed.append(EntryChange(entry, entry.said, counts))
            return
        if entry is None:
            entry = ReportedObject(owner, change.kind, object_id, change.what, owner.life, now_ns, change.stale)
            if entry.kind is ExternalKind.OFFER:
                entry.offer_state = OfferState.OFFERED
            self.add(entry)
            changed.append(EntryChange(entry))
            return
        before = entry.said
        offered_again, entry.withdrawn = entry.withdrawn, False
        if offered_again:
            entry.offer_state, entry.since_ns, entry.deadline_ns = OfferState.OFFERED, now_ns, 0
        elif before == change.what and not entry.stale:
            # (A returned offer is recorded again, so that its source is informed again.)
            if entry.life != owner.life or entry.offer_state is OfferState.RETURNED:
                entry.life = owner.life
                changed.append(EntryChange(entry, before, counts=False))
            return
        entry.life = owner.life
        if isinstance(before, _REFER):  # (For other kinds, the id names the subject.)
            books.unindex(entry)
            entry.said, entry.stale = change.what, False
            books.index(entry)
        else:
            entry.said, entry.stale = change.what, False
        changed.append(EntryChange(entry, before))

    def _leave(
        self, books: PartitionReports, entry: ReportedObject, changed: list[EntryChange], *, has_offers: bool
    ) -> None:
        """Handles an object that its source does not name any more."""
        if not has_offers or entry.offer_state in (None, OfferState.RETURNED):
            self._forget(books, entry, changed)
        elif not entry.withdrawn:
            entry.withdrawn = True
            changed.append(EntryChange(entry, entry.said))

    def _forget(self, books: PartitionReports, entry: ReportedObject, changed: list[EntryChange]) -> None:
        books.forget(entry)
        changed.append(EntryChange(entry, entry.said))

    # ---- fold ------------------------------------------------------------------------------------------------------

    def add(self, entry: ReportedObject) -> None:
        """Adds an entry of a known source."""
        entry.owner.entries[entry.kind, entry.object_id] = entry
        self.for_partition(entry.partition).index(entry)

    def remove(self, partition: str, source: str, kind: ExternalKind, object_id: str) -> None:
        """Applies the tombstone of an entry."""
        books = self.for_partition(partition)
        entry = books.entry(source, kind, object_id)
        if entry is not None:
            self._forget(books, entry, [])


def order_of(entry: ReportedObject) -> tuple[str, int, str]:
    """For sorting, see :attr:`ReportedObject.order`."""
    return entry.order


def _drop(filed: dict[str, dict[ReportedObject, None]], about: str, entry: ReportedObject) -> None:
    entries = filed[about]
    del entries[entry]
    if not entries:
        del filed[about]
