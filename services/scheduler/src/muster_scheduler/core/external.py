"""What comes from outside of the RM: the words (seed 004, "Custom SharedIndexInformer").

source
    Another manager of resources that the RM does not know, under the name of the informer that brings it. It belongs to
    one partition of one RM. What it says is kept apart from what the RM says, and outlives the RM's registrations.

object
    One thing that a source says: of a kind, with an id of its own within (source, kind). The whole of it, each time.

life
    One start of an informer. A source lists everything when a life begins; once the listing is complete it is LIVE, and
    what another life said and this one did not is gone.

stale
    A source that is lost, or an object that can no longer be read: what it said last still counts, and by the source's
    policy its nodes take nothing new meanwhile (*drain*), or go on (*keep*).

brings, restricts
    A source *brings* what nobody else says (a node, a type of resource), and *restricts* what somebody else says too:
    of two that speak of the same amount the smaller counts, of two that speak of use the sum. It never enlarges what
    the RM or the configuration says. A contradiction that was resolved so is an event.

offer
    A part of a node that another framework lends: only what is offered may be used. It is given back when nothing needs
    it for a while (idle), or asked back (revoked): then it takes nothing new, what runs there may end by itself within
    the grace period, and is preempted afterwards.

pool
    An amount of one type that is on no node: licences. Asks of that type run on any node, as long as the pool of the
    partition has enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

# Why a source is STALE that no informer has the name of.
NOT_CONFIGURED = "no informer of this name is configured any more"


class ExternalKind(StrEnum):
    """Of what an object is; parents before those that refer to them."""

    POOL = "pool"
    QUEUE = "queue"
    NODE = "node"
    OFFER = "offer"
    APPLICATION = "application"
    ALLOCATION = "allocation"


class SourceState(StrEnum):
    """How far a source is."""

    # A life began; its listing is not complete.
    LISTING = "LISTING"
    # Everything of it is known.
    LIVE = "LIVE"
    # It is lost: what it said last may be true no more.
    STALE = "STALE"


class OfferState(StrEnum):
    """What becomes of an offer."""

    # It may be used.
    OFFERED = "OFFERED"
    # Asked back: it takes nothing new, what runs there ends within its grace period.
    REVOKED = "REVOKED"
    # Given back: nothing here uses it, and the source is told so. It stays until the source forgets it.
    RETURNED = "RETURNED"


@dataclass(frozen=True, slots=True)
class ExternalNode:
    """A node as its source sees it.

    :param capacity: by type name; None: the source says nothing of it (it only brings attributes, or use).
    :param occupied: what is used there besides what the RM and single allocations say; it adds up.
    :param whole: of a type that ``capacity`` does not name there is none; False: it says nothing of such a type.
    :param brings: the node is there even if the RM does not say so; False: it only restricts the RM's node.
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
    """What the other manager runs on a node (a VM).

    :param app_id: an application that the same source brought, in whose queue it counts; "": it counts on its node
        only, as a foreign allocation does.
    """

    key: str
    node_id: str
    quantities: dict[str, int]
    app_id: str = ""
    priority: int = 0
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExternalQueue:
    """A quota that another manager sets on a queue: the smaller of this and the configuration's holds, type by type."""

    path: str
    maximum: dict[str, int]


@dataclass(frozen=True, slots=True)
class ExternalApplication:
    """An owner of external allocations: so that they count in a queue, and for a user."""

    app_id: str
    queue: str
    user: str = ""
    groups: tuple[str, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExternalOffer:
    """A part of a node that a framework lends.

    :param idle_ns: given back after so long without being needed; 0: never by itself.
    :param revoked: the framework wants it back, within ``grace_ns`` from when that was first said.
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
    """An amount of one type that is on no node; of several sources the smallest counts.

    :param occupied: what others use of it.
    """

    resource_type: str
    quantity: int
    occupied: int = 0


ExternalObject = ExternalNode | ExternalAllocation | ExternalQueue | ExternalApplication | ExternalOffer | ExternalPool


def kind_of(what: ExternalObject) -> ExternalKind:
    """The object's kind."""
    match what:
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


def id_of(what: ExternalObject) -> str:
    """The object's id within its source and kind."""
    match what:
        case ExternalNode():
            return what.node_id
        case ExternalAllocation():
            return what.key
        case ExternalQueue():
            return what.path
        case ExternalApplication():
            return what.app_id
        case ExternalOffer():
            return what.offer_id
        case ExternalPool():
            return what.resource_type


@dataclass(frozen=True, slots=True)
class ExternalChange:
    """One object's change.

    :param what: the whole of it; None: it is gone.
    :param stale: what was said last cannot be relied on. ``what`` then says (of an allocation) what to believe where
        nothing was said before: that it is on a node, perhaps how large; else None.
    """

    kind: ExternalKind
    object_id: str
    what: ExternalObject | None
    stale: bool = False


@dataclass(frozen=True, slots=True)
class UpdateExternal:
    """What a source says now (a command of the core's first door)."""

    partition: str
    source: str
    life: str
    changes: tuple[ExternalChange, ...]


@dataclass(frozen=True, slots=True)
class SetSource:
    """How far a source is (likewise a command). LIVE ends a life's listing: what it did not name is gone.

    :param drains: what becomes of its nodes while it is stale: they take nothing new; False: they go on.
    :param reason: why it is stale, for people.
    """

    partition: str
    source: str
    life: str
    state: SourceState
    drains: bool = True
    reason: str = ""
