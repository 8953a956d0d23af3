"""What sources outside of the RM said, as ``/ws/v1/external`` shows it (ours; docs/external.md).

Times are nanoseconds since the epoch, 0: none. Nothing is left out, so that readers need no defaults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice

from msgspec import Struct, field
from muster_service.go_json import go_json

from muster_scheduler.core.external import (
    NOT_CONFIGURED,
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    OfferState,
)
from muster_scheduler.core.external_books import ExternalBooks, ExternalEntry, SourceEntry
from muster_scheduler.view.render import Pieces, small

OBJECTS_DEFAULT, OBJECTS_MAX = 1_000, 10_000
# Objects that are looked at in one piece: about half a millisecond.
_PER_STEP = 2_000

Quantities = dict[str, int]
Place = tuple[str, str]  # kind and id of the last object of a page


class _Whole(Struct, kw_only=True, rename="camel"):
    """How all of them are written."""


class SourceDao(_Whole, kw_only=True):
    """A source. ``lost``: it was STALE and has not been LIVE again; ``drains``: its nodes take nothing new meanwhile.

    ``objects``: how many of each kind it said; ``stale``: how many of them cannot be relied on; ``problems``: how many
    do not count, or not as they were said.
    """

    rm_id: str = field(name="rmID")
    partition: str
    source: str
    state: str
    since: int
    reason: str
    life: str
    lost: bool
    drains: bool
    objects: dict[str, int]
    stale: int
    problems: int


class ObjectDao(_Whole, kw_only=True):
    """One object, as it was said last. ``problem``: why it does not count, or not as it was said; "": it does.

    ``offerState``: of an offer; else "". ``withdrawn``: its source forgot it, and it stays until nothing needs it.
    ``idleSince``, ``deadline``: of an offer, 0: it is needed, it is not revoked.
    """

    kind: str
    id: str
    said: dict[str, object]
    since: int
    stale: bool
    problem: str
    offer_state: str
    withdrawn: bool
    idle_since: int
    deadline: int


def sources(rm_id: str, found: Iterable[SourceEntry]) -> Pieces:
    """A list of sources: O(what they said), counted in steps behind which others may take their turn."""
    separator = b"["
    for owner in list(found):
        counts: Counter[str] = Counter()
        stale = problems = 0
        entries = iter(list(owner.entries.values()))
        while some := list(islice(entries, _PER_STEP)):
            for entry in some:
                counts[entry.kind.value] += 1
                stale += entry.stale
                problems += bool(entry.problem) and entry.offer_state is not OfferState.RETURNED
            yield b""
        if not owner.gone:
            yield separator + go_json(_source(rm_id, owner, counts, stale, problems))
            separator = b","
    yield b"]\n" if separator == b"," else b"[]\n"


def objects(owner: SourceEntry, kind: ExternalKind | None, after: Place | None, limit: int) -> Pieces:
    """A page of what a source said, by kind and id: ``{"objects": […], "next": "…"}``; "next" "": there are no more.

    :param after: where the last page ended.
    """
    entries: Sequence[ExternalEntry] = list(owner.entries.values())
    wanted: list[ExternalEntry] = []
    for start in range(0, len(entries), _PER_STEP):
        some = entries[start : start + _PER_STEP]
        wanted += [
            each for each in some if (kind is None or each.kind is kind) and (after is None or _place(each) > after)
        ]
        # (A page's worth is kept: what is sorted stays small.)
        if len(wanted) > limit + _PER_STEP:
            wanted = nsmallest(limit + 1, wanted, key=_place)
        yield b""
    shown = nsmallest(limit + 1, wanted, key=_place)
    more = len(shown) > limit
    yield b'{"objects":['
    yield from small((each for each in shown[:limit] if not each.gone), _object)
    last = shown[limit - 1] if more else None
    yield b'],"next":%b}\n' % go_json(f"{last.kind.value}/{last.object_id}" if last is not None else "")


def named(books: ExternalBooks, source: str) -> list[SourceEntry]:
    """The sources of that name, one in each partition that has one."""
    return [each for each in books.all_sources() if each.source == source]


def _place(entry: ExternalEntry) -> Place:
    return entry.kind.value, entry.object_id


def _source(rm_id: str, owner: SourceEntry, counts: Counter[str], stale: int, problems: int) -> SourceDao:
    return SourceDao(
        rm_id=rm_id,
        partition=owner.partition,
        source=owner.source,
        state=owner.state.value,
        since=owner.since_ns,
        reason=owner.reason,
        life=owner.life,
        lost=owner.lost,
        drains=owner.drains,
        objects=dict(sorted(counts.items())),
        stale=stale,
        problems=problems,
    )


def _object(entry: ExternalEntry) -> ObjectDao:
    return ObjectDao(
        kind=entry.kind.value,
        id=entry.object_id,
        said=_said(entry.said),
        since=entry.since_ns,
        stale=entry.stale,
        problem=entry.problem,
        offer_state=entry.offer_state.value if entry.offer_state is not None else "",
        withdrawn=entry.withdrawn,
        idle_since=entry.idle_since_ns,
        deadline=entry.deadline_ns,
    )


def _said(what: ExternalObject) -> dict[str, object]:
    match what:
        case ExternalNode():
            return {
                "capacity": what.capacity,
                "occupied": what.occupied,
                "attributes": what.attributes,
                "schedulable": what.schedulable,
                "whole": what.whole,
                "brings": what.brings,
            }
        case ExternalAllocation():
            return {
                "nodeID": what.node_id,
                "resource": what.quantities,
                "applicationID": what.app_id,
                "priority": what.priority,
                "tags": what.tags,
            }
        case ExternalQueue():
            return {"max": what.maximum}
        case ExternalApplication():
            return {"queue": what.queue, "user": what.user, "groups": list(what.groups), "tags": what.tags}
        case ExternalOffer():
            return {
                "nodeID": what.node_id,
                "resource": what.quantities,
                "attributes": what.attributes,
                "idle": what.idle_ns,
                "revoked": what.revoked,
                "grace": what.grace_ns,
            }
        case ExternalPool():
            return {"quantity": what.quantity, "occupied": what.occupied}


# ---- health ----------------------------------------------------------------------------------------------------------


def lost(rm_id: str, books: ExternalBooks) -> Iterator[str]:
    """A sentence for each source that is lost. One that was emptied before its informer went is missed by nobody."""
    for owner in books.all_sources():
        if owner.lost and (owner.entries or owner.reason != NOT_CONFIGURED):
            why = f" ({owner.reason})" if owner.reason else ""
            yield f"source {rm_id}/{owner.partition}/{owner.source}{why}"
