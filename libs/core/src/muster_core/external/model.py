"""The terms and commands of external resources (the event handler framework, "Custom SharedIndexInformer").

source
    Another manager of resources that the RM does not know. Its name is that of its informer. It belongs to one
    partition of one RM. Its statements are kept apart from the RM's, and outlive the RM's registrations.

object
    One thing that a source describes: of a kind, with an id of its own within (source, kind). Each statement describes
    the whole object.

life
    One start of an informer. When a life begins, the source lists everything. Once the listing is complete, the source
    is LIVE, and objects that only earlier lives named are gone.

stale
    A source that is lost, or an object that cannot be read any more. The last statement still counts. By the source's
    policy, its nodes take nothing new meanwhile (*drain*), or continue (*keep*).

brings, restricts
    A source *brings* a node or a resource type that only it describes. It *restricts* one that others describe, too. Of
    two amounts of the same thing the smaller counts; use adds up. A source never enlarges an amount that the RM or the
    configuration states. A contradiction that was resolved in this way is an event.

offer
    A part of a node that another framework offers: only what is offered may be used. The scheduler gives the offer back
    when nothing needs it for a while (idle). The framework may revoke the offer: then it takes no new allocations.
    Allocations there may end by themselves within the grace period; after it, the scheduler preempts the rest.

pool
    An amount of one type that is on no node, such as licences. Asks of that type run on any node, as long as the pool
    of the partition has enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

# The reason of a STALE source for which no informer is configured.
NOT_CONFIGURED = "no informer of this name is configured any more"


class ExternalKind(StrEnum):
    """The kind of an external object. Parents come before the kinds that refer to them."""

    POOL = "pool"
    QUEUE = "queue"
    NODE = "node"
    OFFER = "offer"
    APPLICATION = "application"
    ALLOCATION = "allocation"


class SourceState(StrEnum):
    """How much is known of a source."""

    # A life began; its listing is not complete.
    LISTING = "LISTING"
    # Everything of the source is known.
    LIVE = "LIVE"
    # The source is lost: its last statements may not be true any more.
    STALE = "STALE"


class OfferState(StrEnum):
    """The state of an offer."""

    # The offer may be used.
    OFFERED = "OFFERED"
    # The source wants the offer back: no new allocation uses it, and present ones end within the grace period.
    REVOKED = "REVOKED"
    # Given back: no allocation uses it, and the source is informed. The entry stays until the source forgets the offer.
    RETURNED = "RETURNED"


@dataclass(frozen=True, slots=True)
class ExternalNode:
    """A node as its source describes it.

    :param capacity: by type name; None: the source does not state a capacity (only attributes, or use).
    :param occupied: amounts used on the node in addition to the RM's report and single allocations; amounts of several
        sources add up.
    :param whole: types that ``capacity`` does not name are 0 on the node; False: the source makes no statement about
        them.
    :param brings: the node exists even if the RM does not report it; False: the source only restricts the RM's node.
    """

    node_id: str
    capacity: dict[str, int] | None = None
    occupied: dict[str, int] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    schedulable: bool = True
    whole: bool = False
    brings: bool = True


@dataclass(frozen=True, slots=True)
class ExternalAllocation:
    """An allocation that another manager runs on a node (for example, a VM).

    :param app_id: an application that the same source brought; the allocation counts in its queue. "": the allocation
        counts on its node only, like a foreign allocation.
    """

    key: str
    node_id: str
    quantities: dict[str, int]
    app_id: str = ""
    priority: int = 0
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExternalQueue:
    """A quota that another manager sets on a queue. By type, the smaller of this and the configured max counts."""

    path: str
    maximum: dict[str, int]


@dataclass(frozen=True, slots=True)
class ExternalApplication:
    """An application of a source: its allocations count in a queue and for a user."""

    app_id: str
    queue: str
    user: str = ""
    groups: tuple[str, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExternalOffer:
    """A part of a node that a framework offers.

    :param idle_ns: the offer is given back when it was not needed for so long; 0: never for that reason.
    :param revoked: the framework wants it back, within ``grace_ns`` after it first said so.
    """

    offer_id: str
    node_id: str
    quantities: dict[str, int]
    attributes: dict[str, str] = field(default_factory=dict)
    idle_ns: int = 0
    revoked: bool = False
    grace_ns: int = 0


@dataclass(frozen=True, slots=True)
class ExternalPool:
    """An amount of one type that is on no node. Of several sources, the smallest amount counts.

    :param occupied: how much of it others use.
    """

    resource_type: str
    quantity: int
    occupied: int = 0


ExternalObject = ExternalNode | ExternalAllocation | ExternalQueue | ExternalApplication | ExternalOffer | ExternalPool


def kind_of(obj: ExternalObject) -> ExternalKind:
    """The object's kind."""
    match obj:
        case ExternalNode():
            return ExternalKind.NODE
        case ExternalAllocation():
            return ExternalKind.ALLOCATION
        case ExternalQueue():
            return ExternalKind.QUEUE
        case ExternalApplication():
            return ExternalKind.APPLICATION
        case ExternalOffer():
            return ExternalKind.OFFER
        case ExternalPool():
            return ExternalKind.POOL


def id_of(obj: ExternalObject) -> str:
    """The object's id within its source and kind."""
    match obj:
        case ExternalNode():
            return obj.node_id
        case ExternalAllocation():
            return obj.key
        case ExternalQueue():
            return obj.path
        case ExternalApplication():
            return obj.app_id
        case ExternalOffer():
            return obj.offer_id
        case ExternalPool():
            return obj.resource_type


@dataclass(frozen=True, slots=True)
class ExternalChange:
    """A change of one object.

    :param what: the whole object; None: the object is gone.
    :param stale: the last statement cannot be relied on. Then ``what`` says, of an allocation, what to believe
        if nothing was said before: its node, perhaps its size; else None.
    """

    kind: ExternalKind
    object_id: str
    what: ExternalObject | None
    stale: bool = False


@dataclass(frozen=True, slots=True)
class ApplyExternalChanges:
    """New statements of a source (a command for ``apply``)."""

    partition: str
    source: str
    life: str
    changes: tuple[ExternalChange, ...]


@dataclass(frozen=True, slots=True)
class SetSourceState:
    """The new state of a source (a command, too). LIVE ends a life's listing: objects that the listing did not name are
    gone.

    :param drains: while the source is stale, its nodes take nothing new; False: they continue.
    :param reason: why the source is stale, for people.
    """

    partition: str
    source: str
    life: str
    state: SourceState
    drains: bool = True
    reason: str = ""
