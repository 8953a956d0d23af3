"""Explains a node: whether it takes allocations, what runs on it, and which pending asks would fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice

from muster_core.external.external_merge import SourceNodeReport, merge, reports_by_source
from muster_core.external.model import ExternalOffer, OfferState
from muster_core.external.reports import ExternalReports, NodeReports
from muster_core.model.application import Allocation, Ask
from muster_core.model.cordons import CordonKind
from muster_core.model.node import Node
from muster_core.model.reasons import Reason
from muster_core.model.resources import Shape, fits
from muster_core.model.text_format import join_words, pluralize
from muster_core.partition import Partition
from muster_rest.shapes.explain import (
    KeptForDao,
    LacksDao,
    NodeHeadDao,
    NodeSourceDao,
    OnNodeDao,
    RefusedForDao,
    WantedBackDao,
    WouldFitDao,
)
from muster_runtime.go_json import go_json

from muster_view.explain import gang
from muster_view.explain.asks import ScopeWaits, reason_of
from muster_view.explain.reason_phrases import WAITS
from muster_view.rest import dao
from muster_view.rest.json_render import Pieces, small

_REFUSED_MAX = 100
# Groups of asks (and applications) per step: about half a millisecond.
_PER_STEP = 200


def explain(
    partition: Partition,
    node: Node,
    now_ns: int,
    *,
    pause: Reason | None,
    external: ExternalReports | None = None,
    turns: ScopeWaits | None = None,
) -> Pieces:
    """Renders a node: O(its allocations, and the groups of pending asks in its partition).

    ``{NodeHeadDao …, "allocations": [OnNodeDao …], "foreign": [OnNodeDao …]}``

    Counts pending asks first, and yields an empty piece after each step, so that other answers get their turn.

    :param pause: why the scheduler makes no decisions; ``turns``: which asks wait for the answer to another proposal.
    :param external: the reports of external sources; None: there are none.
    """
    on = _said_of(partition, node, external)
    parts = reports_by_source(on) if on is not None else []
    merged = merge(node.reported, parts) if parts else None
    waiting = yield from _waiting(partition, node, pause, turns or ScopeWaits())
    quantities = partition.types.quantities
    allocations, foreign = _in_order(node.allocations.values()), _in_order(node.foreign.values())
    head = NodeHeadDao(
        partition=partition.name,
        node=node.node_id,
        schedulable=node.schedulable,
        ready=node.ready,
        sources=[_source(part) for part in parts],
        rm=dao.reported(node),
        disputed=merged.disputed if merged is not None else "",
        closed=merged.closed if merged is not None else "",
        closed_by="",
        wanted_back=list(_wanted_back(on)) if on is not None else [],
        capacity=quantities(node.capacity),
        allocated=quantities(node.allocated),
        occupied=quantities(node.occupied),
        available=quantities(node.available),
        kept_for=[_reservation_dao(ask) for ask in node.reservations],
        told_to_go=sum(allocation.releasing for allocation in allocations),
        waiting=waiting,
        refusals=len(node.refused_by),
        refused_for=list(islice(_refused_for(node), _REFUSED_MAX)),
        at=now_ns,
        sentence="",
        message="",
    )
    closer = partition.external.cordon_of(node)
    head.closed_by = closer.by.value if closer is not None else ""
    head.sentence = _sentence(head, len(allocations), pause)
    head.message = _message(head, len(allocations), len(foreign), pause)
    yield go_json(head)[:-1]
    for name, objects in ((b"allocations", allocations), (b"foreign", foreign)):
        yield b',"%b":[' % name
        yield from small((allocation for allocation in objects if not allocation.gone), _on_node)
        yield b"]"
    yield b"}\n"


def _said_of(partition: Partition, node: Node, external: ExternalReports | None) -> NodeReports | None:
    """The reports of the sources that take part in the node."""
    return (
        external.for_partition(partition.name).nodes.get(node.node_id)
        if node.sources and external is not None
        else None
    )


def _wanted_back(on: NodeReports) -> Iterator[WantedBackDao]:
    """The node's REVOKED offers, by source and id."""
    revoked = (offer for offers in on.offers.values() for offer in offers if offer.offer_state is OfferState.REVOKED)
    for offer in sorted(revoked, key=lambda offer: offer.order):
        assert isinstance(offer.said, ExternalOffer)
        yield WantedBackDao(
            source=offer.source,
            offer=offer.object_id,
            resource=dict(offer.said.quantities),
            withdrawn=offer.withdrawn,
            deadline=offer.deadline_ns,
        )


def _source(part: SourceNodeReport) -> NodeSourceDao:
    return NodeSourceDao(
        source=part.source,
        capacity=dict(part.capacity) if part.capacity is not None else None,
        whole=part.whole,
        occupied=dict(part.occupied),
        schedulable=part.schedulable,
        held=part.held,
        brings=part.brings,
    )


def _reservation_dao(ask: Ask) -> KeptForDao:
    return KeptForDao(
        application_id=ask.app.app_id,
        allocation_key=ask.key,
        resource=ask.shape.quantities,
        since=ask.reserved_ns,
    )


def _refused_for(node: Node) -> Iterator[RefusedForDao]:
    for ask in node.refused_by:
        refusal = ask.refusals.nodes.get(node.node_id) if ask.refusals is not None else None
        if refusal is not None:
            yield RefusedForDao(
                application_id=ask.app.app_id,
                allocation_key=ask.key,
                reason=refusal.reason,
                since=refusal.refused_ns,
                unanswered=refusal.unanswered,
            )


def _in_order(allocations: Iterable[Allocation]) -> list[Allocation]:
    """Sorts by arrival: after a restart of the view, a changed object has another place in its dictionary."""
    return sorted(
        allocations,
        key=lambda allocation: (
            allocation.allocated_ns,
            allocation.app_id,
            allocation.submission,
            allocation.ordinal,
            allocation.key,
        ),
    )


def _on_node(allocation: Allocation) -> OnNodeDao:
    return OnNodeDao(
        application_id=allocation.app_id,
        allocation_key=allocation.key,
        resource=allocation.shape.quantities,
        priority=allocation.priority,
        placeholder=allocation.placeholder,
        since=allocation.allocated_ns,
        told=_release_cause(allocation),
        told_at=allocation.releasing_since_ns,
    )


def _release_cause(allocation: Allocation) -> str:
    if allocation.preempted is not None:
        return "PREEMPTED"
    if allocation.replaced_by is not None:
        return "REPLACED"
    return "TIMED_OUT" if allocation.timed_out else ""


# ---- what waits ------------------------------------------------------------------------------------------------------


def _waiting(
    partition: Partition, node: Node, pause: Reason | None, turns: ScopeWaits
) -> Generator[bytes, None, WouldFitDao]:
    """Counts the pending asks that fit on the node now, and the others. Only its free resources count, no limits."""
    lacking: Counter[str] = Counter()
    fitting: Counter[str] = Counter()
    would_fit = WouldFitDao(asks=0, fit=0, reasons={}, lacking=[], elsewhere=0)
    names = partition.types.names
    rooms: dict[Shape, str] = {}
    for looked, (ask, asks) in enumerate(_pending(partition), 1):
        if looked % _PER_STEP == 0:
            yield b""
        if ask is None or ask.gone:
            continue
        would_fit.asks += asks
        if ask.demand.required_node not in ("", node.node_id):
            would_fit.elsewhere += asks
            continue
        lack = rooms.get(ask.shape)
        if lack is None:
            lack = rooms[ask.shape] = _lack(ask.shape, node, names)
        if lack:
            lacking[lack] += asks
        else:
            would_fit.fit += asks
            fitting[reason_of(ask, pause=pause, turns=turns).code.value] += asks
    would_fit.reasons = dict(fitting)
    would_fit.lacking = [LacksDao(resource_type=name, asks=count) for name, count in sorted(lacking.items())]
    return would_fit


def _lack(shape: Shape, node: Node, names: list[str]) -> str:
    """The first type that the node has too little of; "": it has room."""
    if fits(shape.items, node.available):
        return ""
    return next(names[number] for number, value in shape.items if value > node.available[number])


def _pending(partition: Partition) -> Iterator[tuple[Ask | None, int]]:
    """One ask of each group with the group's size; and None for each application, as a step of work."""
    for queue in list(partition.queues.values()):
        if not queue.leaf:
            continue
        for app in partition.apps_in(queue):
            yield None, 0
            for group in list(app.groups.values()):
                head = group.head()
                if head is not None:
                    yield head, group.asks
            for ask in gang.waiting_for_placeholders(app):
                yield ask, 1


# ---- for people ------------------------------------------------------------------------------------------------------


def _sentence(head: NodeHeadDao, allocations: int, pause: Reason | None) -> str:
    """One sentence: whether the node takes allocations, its allocations, and how many pending asks fit."""
    waiting, takes = head.waiting, "takes new allocations"
    if not (head.schedulable and head.ready):
        takes = f"takes no new allocations ({_closed(head)})"
    full = _full(head)
    has = f"has {pluralize(allocations, 'allocation') if allocations else 'no allocation'}"
    parts = [takes, f"{has} and no {join_words(full, 'or')} free" if full else has]
    if waiting.asks:
        parts.append(f"and has room for {f'{waiting.fit:,}' if waiting.fit else 'none'} of {_asks(waiting)}")
    else:
        parts.append("and its partition has no pending asks")
    sentence = f"Node {head.node} {', '.join(parts)}"
    return f"{sentence}; {pause.clause()}." if pause is not None else f"{sentence}."


def _asks(waiting: WouldFitDao) -> str:
    return pluralize(waiting.asks, "pending ask")


def _full(head: NodeHeadDao) -> list[str]:
    """The types with nothing free."""
    return sorted(name for name in head.capacity if head.available.get(name, 0) <= 0)


def _message(head: NodeHeadDao, allocations: int, foreign: int, pause: Reason | None) -> str:
    sentences = [
        pause.sentence() if pause is not None else "",
        _admission_sentence(head),
        _spoken_of(head),
        _back(head),
        _reservation_sentence(head),
    ]
    sentences += [_has(head, allocations, foreign), _refused(head), _would_fit(head.waiting)]
    return " ".join(text for text in sentences if text)


def _admission_sentence(head: NodeHeadDao) -> str:
    if head.schedulable and head.ready:
        return ""
    if head.closed and not head.schedulable:
        return f"Only asks that require this node can start on it: {head.closed}."
    return f"It is {_closed(head)}: only asks that require this node can start on it."


def _closed(head: NodeHeadDao) -> str:
    """Why the node takes no new allocations."""
    if head.schedulable:
        return "not ready"
    by = "an operator" if head.closed_by == CordonKind.OPERATOR else "the resource manager"
    return head.closed or f"drained by {by}"


def _spoken_of(head: NodeHeadDao) -> str:
    """The sources that report the node, and which report counts where they differ."""
    if not head.sources:
        return ""
    names = [source.source for source in head.sources]
    who = f"source{'s' if len(names) > 1 else ''} {join_words(names)}"
    besides = "Besides the resource manager, " if head.rm is not None else "Only "
    sentence = f"{besides}{who} {'reports' if len(names) == 1 else 'report'} it."
    return f"{sentence} The reports differ ({head.disputed})." if head.disputed else sentence


def _back(head: NodeHeadDao) -> str:
    """The node's revoked offers, and when preemption begins to clear them."""
    if not head.wanted_back:
        return ""
    first, *others = head.wanted_back
    more, be, them = (f" and {len(others):,} more", "were", "them") if others else ("", "was", "it")
    until = datetime.fromtimestamp(min(offer.deadline for offer in head.wanted_back) // 10**9, tz=UTC)
    return (
        f"Offer {first.offer} of source {first.source}{more} {be} revoked: "
        f"allocations that do not fit without {them} are preempted from {until:%Y-%m-%d %H:%M:%S} UTC."
    )


def _reservation_sentence(head: NodeHeadDao) -> str:
    if not head.kept_for:
        return ""
    first = head.kept_for[0]
    more = f" and {len(head.kept_for) - 1:,} more" if len(head.kept_for) > 1 else ""
    return f"It is reserved for {first.allocation_key} of application {first.application_id}{more}."


def _refused(head: NodeHeadDao) -> str:
    if not head.refusals:
        return ""
    sentence = f"The resource manager refused it for {pluralize(head.refusals, 'ask')}"
    reason = next((refusal.reason for refusal in head.refused_for if refusal.reason), "")
    return f"{sentence} ({reason})." if reason else f"{sentence}."


def _has(head: NodeHeadDao, allocations: int, foreign: int) -> str:
    if not allocations:
        sentence = "It has no allocation"
    else:
        sentence = f"It has {pluralize(allocations, 'allocation')}"
        if head.told_to_go:
            sentence += f", {head.told_to_go:,} of which {'is' if head.told_to_go == 1 else 'are'} being released"
    if foreign:
        sentence += f", and {pluralize(foreign, 'foreign allocation')}"
    full = _full(head)
    return f"{sentence}." + (f" No {' and no '.join(full)} is free." if full else "")


def _would_fit(waiting: WouldFitDao) -> str:
    if not waiting.asks:
        return "Its partition has no pending asks."
    sentence = f"Of {_asks(waiting)} it has room for "
    sentence += f"{waiting.fit:,}" if waiting.fit else "none"
    if waiting.fit > 1:
        sentence += ", each alone"
    if waiting.reasons:
        reasons = sorted(waiting.reasons.items())
        waits = [f"{asks:,} {'waits' if asks == 1 else 'wait'} {WAITS[code]}" for code, asks in reasons]
        sentence += f" ({', '.join(waits)})"
    if waiting.lacking:
        sentence += "; " + ", ".join(
            f"for {lack.asks:,} it has too little {lack.resource_type}" for lack in waiting.lacking
        )
    if waiting.elsewhere:
        sentence += f"; {waiting.elsewhere:,} require another node"
    return sentence + "."
