"""The contract of sources and event handlers, for those that come with Muster and for plugins.

A change flows in one direction: ``source → informer (store) → filter → event handler → cache → log → core``.

source
    Talks to the other manager: lists all objects once, then reports changes (:class:`ListWatch`). The source knows
    nothing about scheduling and stores nothing. It gives plain mappings in the form of the other manager's documents.

informer
    Stores the source's objects with indexers, and notifies a handler of added, modified and deleted ones
    (:class:`~muster_informers.informer.SharedIndexInformer`). When the source fails, the informer tries again with
    growing waits. When a watch cannot continue, it lists again and reports the difference.

event handler
    Decides what a change means for the scheduler, and puts the result into the cache (:class:`EventHandler`). The
    informer calls it in the order of the changes, from one task. It must not block; long work belongs in a task of the
    handler's own.

cache
    The interface to the scheduler's cached objects (:class:`ExternalCache`). The newest state per object wins and is
    written to the log soon after. A handler has no other interface: informers and handlers never see the scheduler's
    memory.

synced
    An informer is synced once all objects of its first listing are in the store, have been handed to the handler, and
    are on the log. The scheduler decides nothing for the RM before all of the RM's informers are synced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from muster_bus.clock import Clock
from muster_core.external.model import (
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

# A document of the other manager, from JSON or YAML: {"kind": "node", "id": "host-1", "version": 7, …}.
Document = Mapping[str, object]
Options = Mapping[str, object]


class ChangeType(StrEnum):
    """The types of changes in a watch."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Listing(NamedTuple):
    """All objects of a source at one moment.

    :param cursor: where a watch continues, in the source's own format; "": the source has no cursors.
    """

    documents: Sequence[Document]
    cursor: str = ""


class Delta(NamedTuple):
    """One change in a watch. The informer decides between ADDED and MODIFIED by its store, not by the source.

    :param document: the whole object; for DELETED its kind and id are enough.
    :param cursor: where the next watch continues if this one breaks off after this change.
    """

    type: ChangeType
    document: Document
    cursor: str = ""


class ListWatch(Protocol):
    """A source. One task uses it; ``list`` and ``watch`` are never under way at the same time.

    Raises SourceUnavailable (errors.py) for failures that may pass (away, refused, timed out), and SourceSaysNonsense
    for an answer that cannot be read at all. It passes on a single unreadable document: the informer judges that.
    """

    async def list(self) -> Listing:
        """All objects, now."""
        ...

    def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        """Yields all changes from ``cursor`` on, without end; simultaneous ones together. An empty sequence means that
        the source lives. Raises CursorExpired when it cannot continue from the cursor: then the informer lists again.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class InformerContext:
    """The context of a source's factory.

    :param name: the informer's name, for logs: the key of its table in the settings.
    :param base: the directory to which relative paths in the options refer.
    """

    name: str
    clock: Clock
    base: str = "."


class InformerFactory(Protocol):
    """An entry point of ``muster.informers``: creates a source. It does not connect yet.

    :param options: its table in the settings, without the keys of all informers. Values may be secrets: never log them.
    :raises InformerSettingsWrong: an option is not valid; names the field, the value and what was expected.
    """

    def __call__(self, options: Options, context: InformerContext) -> ListWatch: ...


class ExternalCache(Protocol):
    """The scheduler's cached objects, for one source. Never blocks."""

    @property
    def source(self) -> str:
        """The informer's name."""
        ...

    def put(self, what: ExternalObject) -> None:
        """Sets the new state of an object, which is always the whole object."""
        ...

    def delete(self, kind: ExternalKind, object_id: str) -> None:
        """Removes an object that does not exist any more."""
        ...

    def distrust(self, kind: ExternalKind, object_id: str, believed: ExternalAllocation | None = None) -> None:
        """Marks the object's last state as unreliable (stale) until it is put again.

        :param believed: the state of an object that is not in the cache: an unreadable allocation closes its node, if
            the node is known.
        """
        ...


class EventHandler(Protocol):
    """Handles the events of an informer's objects (the event handler framework, "EventHandler Factory": the interface
    of object events).

    ``initial``: the object came with the first listing. An exception concerns one object: the informer logs it with the
    object's kind and id, counts it, distrusts the object, and continues with the next one.
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
    """A source with offers (``two-level``) implements this, too: it gets unused offers back."""

    async def give_back(self, offer_ids: Sequence[str]) -> None:
        """Takes back offers that are not used any more. The call is repeated until it succeeds, so it is idempotent.

        Raises SourceUnavailable: Muster tries again.
        """
        ...


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """The context of an event handler's factory, beside cache and configuration.

    :param source_kind: the informer's kind (``file``, ``http`` …).
    :param options: the options of the informer's table that begin with ``handler_``, without that prefix.
    :param log_context: for structlog: source, rm and partition.
    """

    source_kind: str
    clock: Clock
    options: Options = field(default_factory=dict)
    log_context: Mapping[str, str] = field(default_factory=dict)


class HandlerFactory(Protocol):
    """An entry point of ``muster.event_handlers``: creates a handler for one informer (the event handler framework,
    ``Factory``).

    :param config: the content of the file that ``--config-path`` names; None: there is none.
    :raises HandlerSettingsWrong: the configuration is not valid.
    """

    def __call__(self, cache: ExternalCache, config: bytes | None, context: HandlerContext) -> EventHandler: ...
