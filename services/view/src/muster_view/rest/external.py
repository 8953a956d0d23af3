"""The objects of external sources, as ``/ws/v1/external`` shows them (Muster's own; docs/external.md).

Times are nanoseconds since the epoch; 0: none. No field is left out, so readers need no defaults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice

from muster_core.external.model import (
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
from muster_core.external.reports import ExternalReports, ReportedObject, SourceEntry
from muster_rest.shapes.external import ObjectDao, SourceDao
from muster_runtime.go_json import go_json
from muster_runtime.secrets import masked

from muster_view.rest.json_render import Pieces, small

OBJECTS_DEFAULT, OBJECTS_MAX = 1_000, 10_000
# Objects of one piece: about half a millisecond of work.
_PER_STEP = 2_000

Quantities = dict[str, int]
Place = tuple[str, str]  # kind and id of the last object of a page


def sources(rm_id: str, owners: Iterable[SourceEntry]) -> Pieces:
    """A list of sources: O(their objects), counted in steps between which other tasks may run."""
    separator = b"["
    for owner in list(owners):
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
    """A page of a source's objects, by kind and id: ``{"objects": […], "next": "…"}``; "next" "": there are no more.

    :param after: where the last page ended.
    """
    entries: Sequence[ReportedObject] = list(owner.entries.values())
    matches: list[ReportedObject] = []
    for start in range(0, len(entries), _PER_STEP):
        some = entries[start : start + _PER_STEP]
        matches += [
            entry for entry in some if (kind is None or entry.kind is kind) and (after is None or _place(entry) > after)
        ]
        # (Only one page is kept, so little is sorted.)
        if len(matches) > limit + _PER_STEP:
            matches = nsmallest(limit + 1, matches, key=_place)
        yield b""
    shown = nsmallest(limit + 1, matches, key=_place)
    more = len(shown) > limit
    yield b'{"objects":['
    yield from small((entry for entry in shown[:limit] if not entry.gone), _object)
    last = shown[limit - 1] if more else None
    yield b'],"next":%b}\n' % go_json(f"{last.kind.value}/{last.object_id}" if last is not None else "")


def named(books: ExternalReports, source: str) -> list[SourceEntry]:
    """The sources with that name, at most one in each partition."""
    return [owner for owner in books.all_sources() if owner.source == source]


def _place(entry: ReportedObject) -> Place:
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


def _object(entry: ReportedObject) -> ObjectDao:
    return ObjectDao(
        kind=entry.kind.value,
        id=entry.object_id,
        said=_report_fields(entry.said),
        since=entry.since_ns,
        stale=entry.stale,
        problem=entry.problem,
        offer_state=entry.offer_state.value if entry.offer_state is not None else "",
        withdrawn=entry.withdrawn,
        idle_since=entry.idle_since_ns,
        deadline=entry.deadline_ns,
    )


def _report_fields(report: ExternalObject) -> dict[str, object]:
    match report:
        case ExternalNode():
            return {
                "capacity": report.capacity,
                "occupied": report.occupied,
                "attributes": masked(report.attributes),
                "schedulable": report.schedulable,
                "whole": report.whole,
                "brings": report.brings,
            }
        case ExternalAllocation():
            return {
                "nodeID": report.node_id,
                "resource": report.quantities,
                "applicationID": report.app_id,
                "priority": report.priority,
                "tags": masked(report.tags),
            }
        case ExternalQueue():
            return {"max": report.maximum}
        case ExternalApplication():
            return {
                "queue": report.queue,
                "user": report.user,
                "groups": list(report.groups),
                "tags": masked(report.tags),
            }
        case ExternalOffer():
            return {
                "nodeID": report.node_id,
                "resource": report.quantities,
                "attributes": masked(report.attributes),
                "idle": report.idle_ns,
                "revoked": report.revoked,
                "grace": report.grace_ns,
            }
        case ExternalPool():
            return {"quantity": report.quantity, "occupied": report.occupied}


# ---- health ----------------------------------------------------------------------------------------------------------


def lost(rm_id: str, books: ExternalReports) -> Iterator[str]:
    """A sentence for each lost source. A source without objects whose informer has stopped does not count as lost."""
    for owner in books.all_sources():
        if owner.lost and (owner.entries or owner.reason != NOT_CONFIGURED):
            reason = f" ({owner.reason})" if owner.reason else ""
            yield f"source {rm_id}/{owner.partition}/{owner.source}{reason}"
