"""What an informer's source and an event handler are: the contract for those that come with Muster and for plugins.

The way of a change, one way: ``source → informer (store) → filter → event handler → cache → log → core``.

source
    Speaks with the other manager: lists everything once, then tells what changes (:class:`ListWatch`). It knows nothing
    of scheduling and keeps nothing. What it gives are plain mappings, as the other manager's documents have them.

informer
    Keeps what a source said in a local store with indexers, and tells a handler what was added, modified, deleted
    (:class:`~muster_scheduler.external.informer.SharedIndexInformer`). When the source fails it is asked again, with
    growing waits; a watch that cannot go on where it was is begun anew with a listing, and the difference is told.

event handler
    Decides what a change means for the scheduler, and puts that into the cache (:class:`EventHandler`). It is called in
    the order of changes, from one task, and must not block: what it cannot do at once it leaves to a task of its own.

cache
    The way into the scheduler's cached objects (:class:`ExternalCache`): the newest state per object wins, and is on
    its way to the log soon after. It is the handler's only way: no informer or handler sees the scheduler's memory.

synced
    An informer is synced once everything of its first listing is in the store, was handed to the handler, and is on the
    log. Nothing is decided for the RM before all of its informers are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from muster_bus.clock import Clock

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

INFORMERS_GROUP = "muster.informers"
EVENT_HANDLERS_GROUP = "muster.event_handlers"

# A document of the other manager, as JSON or YAML gives it: {"kind": "node", "id": "host-1", "version": 7, …}.
Document = Mapping[str, object]
Options = Mapping[str, object]


class ChangeType(StrEnum):
    """Of what a watch tells."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Listing(NamedTuple):
    """Everything that a source has, at one moment.

    :param cursor: from where a watch goes on: the source's own words, "" when it has none.
    """

    documents: Sequence[Document]
    cursor: str = ""


class Delta(NamedTuple):
    """One change that a watch tells. Whether it was ADDED or MODIFIED is looked up in the store, not believed.

    :param document: the whole object; of DELETED its kind and id are enough.
    :param cursor: from where a watch that breaks off here goes on.
    """

    type: ChangeType
    document: Document
    cursor: str = ""


class ListWatch(Protocol):
    """A source. One task uses it; ``list`` and ``watch`` are never under way at the same time.

    Raises SourceUnavailable (errors.py) for what may pass (away, refused, timed out), SourceSaysNonsense for answers
    that cannot be read as a whole; a single document that cannot be read is the informer's to judge: it is given on.
    """

    async def list(self) -> Listing:
        """Everything, now."""
        ...

    def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        """What changes from ``cursor`` on, for ever, several at once where they come at once; an empty sequence says
        that the source lives. Raises CursorExpired when it cannot go on from there: the informer lists again."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class InformerContext:
    """What a factory of a source is told.

    :param name: the informer's, for logs: the key of its table in the settings.
    :param base: directory that relative paths in its options are about.
    """

    name: str
    clock: Clock
    base: str = "."


class InformerFactory(Protocol):
    """An entry point of ``muster.informers``: makes a source. Connects to nothing yet.

    :param options: its table in the settings, without what all informers have. Texts may be secrets: into no log.
    :raises InformerSettingsWrong: the options cannot be used; field, value and what was expected.
    """

    def __call__(self, options: Options, context: InformerContext) -> ListWatch: ...


class ExternalCache(Protocol):
    """The scheduler's cached objects, for one source. Never blocks."""

    @property
    def source(self) -> str:
        """The informer's name."""
        ...

    def put(self, what: ExternalObject) -> None:
        """The whole new state of an object."""
        ...

    def delete(self, kind: ExternalKind, object_id: str) -> None:
        """The object is gone."""
        ...

    def distrust(self, kind: ExternalKind, object_id: str, believed: ExternalAllocation | None = None) -> None:
        """What was said of the object last cannot be relied on any more (it is stale until it is put again).

        :param believed: what to believe where nothing was said of it: an allocation that cannot be read holds its node
            closed, as far as that is known.
        """
        ...


class EventHandler(Protocol):
    """What becomes of the objects of an informer (seed 004, "EventHandler Factory": its interface of object events).

    ``initial`` says that an object came with the first listing. An exception concerns one object: it is logged with its
    kind and id, counted, the object is distrusted, and the next one is handled.
    """

    def add_node(self, node: ExternalNode, *, initial: bool) -> None: ...
    def update_node(self, old: ExternalNode, new: ExternalNode) -> None: ...
    def delete_node(self, node: ExternalNode) -> None: ...
    def add_allocation(self, allocation: ExternalAllocation, *, initial: bool) -> None: ...
    def update_allocation(self, old: ExternalAllocation, new: ExternalAllocation) -> None: ...
    def delete_allocation(self, allocation: ExternalAllocation) -> None: ...
    def add_queue(self, queue: ExternalQueue, *, initial: bool) -> None: ...
    def update_queue(self, old: ExternalQueue, new: ExternalQueue) -> None: ...
    def delete_queue(self, queue: ExternalQueue) -> None: ...
    def add_application(self, application: ExternalApplication, *, initial: bool) -> None: ...
    def update_application(self, old: ExternalApplication, new: ExternalApplication) -> None: ...
    def delete_application(self, application: ExternalApplication) -> None: ...
    def add_offer(self, offer: ExternalOffer, *, initial: bool) -> None: ...
    def update_offer(self, old: ExternalOffer, new: ExternalOffer) -> None: ...
    def delete_offer(self, offer: ExternalOffer) -> None: ...
    def add_pool(self, pool: ExternalPool, *, initial: bool) -> None: ...
    def update_pool(self, old: ExternalPool, new: ExternalPool) -> None: ...
    def delete_pool(self, pool: ExternalPool) -> None: ...


class OfferTaker(Protocol):
    """A source that lends (``two-level``) also is one of these: what it offered comes back to it."""

    async def give_back(self, offer_ids: Sequence[str]) -> None:
        """These offers are not used any more. Told again until it succeeds; so again is nothing new.

        Raises SourceUnavailable: it is tried again.
        """
        ...


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """What a factory of an event handler is told beside cache and configuration.

    :param source_kind: the informer's kind (``file``, ``http`` …).
    :param options: of the informer's table, those that begin with ``handler_``, without that.
    :param log_context: for structlog: source, rm and partition.
    """

    source_kind: str
    clock: Clock
    options: Options = field(default_factory=dict)
    log_context: Mapping[str, str] = field(default_factory=dict)


class HandlerFactory(Protocol):
    """An entry point of ``muster.event_handlers``: makes a handler for one informer (seed 004, ``Factory``).

    :param config: what ``--config-path`` names, as read; None: there is none.
    :raises HandlerSettingsWrong: the configuration cannot be used.
    """

    def __call__(self, cache: ExternalCache, config: bytes | None, context: HandlerContext) -> EventHandler: ...
