"""The merge of the statements of the RM and of external sources about one thing (docs/external-rules.md). Pure.

The smaller amount counts, use adds up, and no speaker enlarges another one's amount. The resource manager (RM) is one
of the speakers; each external source is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from muster_core.external.model import ExternalNode, ExternalOffer, ExternalQueue, OfferState
from muster_core.external.reports import NodeReports, ReportedObject
from muster_core.model.cordons import Cordon, CordonKind
from muster_core.model.node import NodeReport

RM = "the resource manager"
RULE = "the smaller counts"
_DRAINED = f"{RM} drains it"
_CORDONED = "an operator drained it"
# Offers in these states make a node exist: an offer that is asked back may be used until its deadline.
_BRINGING = (OfferState.OFFERED, OfferState.REVOKED)


class SourceNodeReport(NamedTuple):
    """The statements of one source about a node, taken together.

    :ivar capacity: the sum of its node and its offers; None: the source states no capacity.
    :ivar whole: the node has nothing of a type that ``capacity`` does not name.
    :ivar schedulable: as the source says. ``held``: why the node takes no new allocations although the source permits
        them; "": it takes them.
    :ivar brings: the node exists because of this source.
    """

    source: str
    capacity: Mapping[str, int] | None = None
    whole: bool = False
    occupied: Mapping[str, int] = {}
    attributes: Mapping[str, str] = {}
    schedulable: bool = True
    held: str = ""
    brings: bool = False


class MergedNode(NamedTuple):
    """The merged values of a node.

    :ivar capacity: by type name, zeros included.
    :ivar closed: why the node takes no new allocations, as a text; "": it takes them.
    :ivar disputed: the types for which speakers name different amounts, as a text; "": none.
    :ivar closer: the node's closer; None: it has none.
    """

    capacity: Mapping[str, int]
    occupied: Mapping[str, int]
    attributes: Mapping[str, str]
    closed: str
    sources: tuple[str, ...]
    disputed: str
    closer: Cordon | None = None


def reports_by_source(on: NodeReports) -> list[SourceNodeReport]:
    """The statements about a node, by source. (For a node that exists, all of them count.)"""
    if len(on.nodes) == 1 and not on.offers and not on.stale and on.allocations.keys() <= on.nodes.keys():
        # A quick path for most nodes. (An allocation that is not stale holds a node only if its source does.)
        ((source, entry),) = on.nodes.items()
        return [_part(source, entry, (), None)]
    return all_parts_of(on)


def all_parts_of(on: NodeReports) -> list[SourceNodeReport]:
    """:func:`reports_by_source` for all cases."""
    return [
        _part(source, on.nodes.get(source), on.offers.get(source, ()), _least_reliable(on, source))
        for source in sorted({**on.nodes, **on.offers, **on.allocations})
    ]


def _least_reliable(on: NodeReports, source: str) -> ReportedObject | None:
    """One of a source's allocations on the node: a stale one, if there is any."""
    if source in on.stale:
        return min(on.stale[source], key=_by_order)
    return next(iter(on.allocations[source])) if source in on.allocations else None


def _part(
    source: str, node: ReportedObject | None, offers: Iterable[ReportedObject], allocation: ReportedObject | None
) -> SourceNodeReport:
    capacity: Mapping[str, int] | None = None
    occupied: Mapping[str, int] = {}
    attributes: Mapping[str, str] = {}
    schedulable, whole, may_bring = True, False, True
    cordon_reason = ""
    if node is not None:
        report = node.said
        assert isinstance(report, ExternalNode)
        capacity, occupied, attributes = report.capacity, report.occupied, report.attributes
        schedulable, whole, may_bring = report.schedulable, report.whole and capacity is not None, report.brings
        cordon_reason = _held(node)
    brings = may_bring and capacity is not None and any(capacity.values())
    if offers:
        whole = True
        summed = dict(capacity or {})
        named = dict(attributes)
        for offer in sorted(offers, key=_by_order):
            offered = offer.said
            assert isinstance(offered, ExternalOffer)
            brings = brings or (may_bring and offer.offer_state in _BRINGING and any(offered.quantities.values()))
            cordon_reason = cordon_reason or _held(offer)
            if offer.offer_state is OfferState.OFFERED:
                for name, value in offered.quantities.items():
                    summed[name] = summed.get(name, 0) + value
                for key, text in offered.attributes.items():
                    named.setdefault(key, text)
        capacity, attributes = summed, named
    if not cordon_reason and allocation is not None:
        cordon_reason = _held(allocation)
    return SourceNodeReport(source, capacity, whole, occupied, attributes, schedulable, cordon_reason, brings)


def _by_order(entry: ReportedObject) -> tuple[str, int, str]:
    return entry.order


def _held(entry: ReportedObject) -> str:
    """Why no new allocation may go to the node because of this entry; "": the entry closes nothing."""
    owner = entry.owner
    if not owner.drains:
        return ""
    if owner.lost:
        return f"source {owner.source} is lost{': ' if owner.reason else ''}{owner.reason}"
    if entry.stale:
        return f"source {owner.source} cannot be relied on for {entry.kind} {entry.object_id}"
    return ""


def merge(report: NodeReport | None, parts: Sequence[SourceNodeReport]) -> MergedNode:
    """Merges the statements of the RM and of these sources about a node. ``report`` None: the RM makes none.

    On nearly all nodes there is only one speaker. Its values are the merged values, and are not copied.
    """
    if report is None and len(parts) == 1:
        source, capacity, _, occupied, attributes, schedulable, cordon_reason, _ = parts[0]
        if capacity is not None:
            closed, closer = ("", None) if schedulable and not cordon_reason else _closed(parts[0])
            return MergedNode(capacity, occupied, attributes, closed, (source,), "", closer)
    if not parts and report is not None and report.capacity is not None:
        closed, closer = ("", None) if report.schedulable else _drained(report)
        return MergedNode(report.capacity, report.occupied, report.attributes, closed, (), "", closer)
    return merge_all(report, parts)


def merge_all(report: NodeReport | None, parts: Sequence[SourceNodeReport]) -> MergedNode:
    """:func:`merge` for all cases."""
    speakers: list[tuple[str, Mapping[str, int], bool]] = []
    attributes: dict[str, str] = {}
    occupied: dict[str, int] = {}
    closed, closer = "", None
    if report is not None:
        if report.capacity is not None:
            speakers.append((RM, report.capacity, False))
        attributes.update(report.attributes)
        occupied.update(report.occupied)
        if not report.schedulable:
            closed, closer = _drained(report)
    for part in parts:
        if part.capacity is not None:
            speakers.append((f"source {part.source}", part.capacity, part.whole))
        for name, value in part.occupied.items():
            occupied[name] = occupied.get(name, 0) + value
        for key, text in part.attributes.items():
            attributes.setdefault(key, text)
        if not closed:
            closed, closer = _closed(part)
    if len(speakers) == 1:
        capacity, disputed = dict(speakers[0][1]), ""
    else:
        capacity, disputed = _smallest(speakers)
    return MergedNode(capacity, occupied, attributes, closed, tuple(part.source for part in parts), disputed, closer)


def _drained(report: NodeReport) -> tuple[str, Cordon]:
    """Why a node that the RM drained takes no new allocations, as a text, and the node's closer."""
    return (_CORDONED, Cordon(CordonKind.OPERATOR)) if report.by_operator else (_DRAINED, Cordon(CordonKind.RM))


def _closed(part: SourceNodeReport) -> tuple[str, Cordon | None]:
    """The same for a source; ("", None): the source does not close the node."""
    if not part.schedulable:
        return f"source {part.source} says so", Cordon(CordonKind.SOURCE, part.source)
    return (part.held, Cordon(CordonKind.SOURCE_LOST, part.source)) if part.held else ("", None)


def revoking_source(on: NodeReports) -> Cordon | None:
    """The first source that wants back an offer of an existing node; None: no source does."""
    return _lender(on, _is_wanted)


def withdrawn_by(on: NodeReports) -> Cordon | None:
    """The first source that took back its offer of a node that does not exist any more; None: none did.

    (An offer that was given back because nothing needed it was not taken back.)
    """
    return _lender(on, _is_taken)


def _lender(on: NodeReports, goes: Callable[[ReportedObject], bool]) -> Cordon | None:
    lenders = [source for source, offers in on.offers.items() if any(map(goes, offers))]
    return Cordon(CordonKind.WANTED_BACK, min(lenders)) if lenders else None


def _is_wanted(offer: ReportedObject) -> bool:
    return offer.offer_state is OfferState.REVOKED


def _is_taken(offer: ReportedObject) -> bool:
    assert isinstance(offer.said, ExternalOffer)
    return offer.offer_state is OfferState.REVOKED or offer.said.revoked or offer.withdrawn


def _smallest(speakers: Sequence[tuple[str, Mapping[str, int], bool]]) -> tuple[dict[str, int], str]:
    """By type, the smallest amount of the speakers; and the types for which they differ, as a text."""
    capacity: dict[str, int] = {}
    disputes: list[str] = []
    limited = any(whole for _, _, whole in speakers)
    # The order of recorded amounts has no meaning.
    for name in sorted({name for _, amounts, _ in speakers for name in amounts}):
        least = most = None
        for _, amounts, _ in speakers:
            value = amounts.get(name)
            if value is not None:
                least = value if least is None or value < least else least
                most = value if most is None or value > most else most
        assert least is not None, f"no speaker names {name}"
        assert most is not None
        if least != most:
            words = ", ".join(f"{who} says {amounts[name]}" for who, amounts, _ in speakers if name in amounts)
            disputes.append(f"{name}: {words}")
        if limited and any(whole and name not in amounts for _, amounts, whole in speakers):
            least = 0
        capacity[name] = least
    return capacity, f"{'; '.join(sorted(disputes))}: {RULE}" if disputes else ""


def smallest_maximum(entries: Iterable[ReportedObject]) -> tuple[tuple[str, ...], dict[str, int] | None]:
    """The sources that set a quota on a queue, and the quota; None: there is no quota."""
    sources: dict[str, None] = {}
    maximum: dict[str, int] = {}
    for entry in sorted(entries, key=_by_order):
        report = entry.said
        assert isinstance(report, ExternalQueue)
        sources[entry.source] = None
        for name, value in report.maximum.items():
            maximum[name] = min(value, maximum.get(name, value))
    return tuple(sources), maximum if sources else None


def quota_dispute(own: Mapping[str, int] | None, entries: Iterable[ReportedObject]) -> str:
    """The types for which the limits of a queue differ, as a text; "": none."""
    speakers: list[tuple[str, Mapping[str, int]]] = [] if own is None else [("the configuration", own)]
    for entry in sorted(entries, key=_by_order):
        assert isinstance(entry.said, ExternalQueue)
        speakers.append((f"source {entry.source}", entry.said.maximum))
    disputes = []
    for name in sorted({name for _, maximum in speakers for name in maximum}):
        amounts = {who: maximum[name] for who, maximum in speakers if name in maximum}
        if len({*amounts.values()}) > 1:
            disputes.append(f"{name}: {', '.join(f'{who} says {value}' for who, value in amounts.items())}")
    return f"{'; '.join(disputes)}: {RULE}" if disputes else ""
