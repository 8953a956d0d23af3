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
    held, foreign = _in_order(node.allocations.values()), _in_order(node.foreign.values())
    found = NodeHeadDao(
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
        kept_for=[_kept_for(wanted) for wanted in node.reservations],
        told_to_go=sum(each.releasing for each in held),
        waiting=waiting,
        refusals=len(node.refused_by),
        refused_for=list(islice(_refused_for(node), _REFUSED_MAX)),
        at=now_ns,
        sentence="",
        message="",
    )
    closer = partition.external.cordon_of(node)
    found.closed_by = closer.by.value if closer is not None else ""
    found.sentence = _sentence(found, len(held), pause)
    found.message = _message(found, len(held), len(foreign), pause)
    yield go_json(found)[:-1]
    for name, objects in ((b"allocations", held), (b"foreign", foreign)):
        yield b',"%b":[' % name
        yield from small((each for each in objects if not each.gone), _on_node)
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
    revoked = (each for offers in on.offers.values() for each in offers if each.offer_state is OfferState.REVOKED)
    for each in sorted(revoked, key=lambda each: each.order):
        assert isinstance(each.said, ExternalOffer)
        yield WantedBackDao(
            source=each.source,
            offer=each.object_id,
            resource=dict(each.said.quantities),
            withdrawn=each.withdrawn,
            deadline=each.deadline_ns,
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


def _kept_for(wanted: Ask) -> KeptForDao:
    return KeptForDao(
        application_id=wanted.app.app_id,
        allocation_key=wanted.key,
        resource=wanted.shape.quantities,
        since=wanted.reserved_ns,
    )


def _refused_for(node: Node) -> Iterator[RefusedForDao]:
    for wanted in node.refused_by:
        refusal = wanted.refusals.nodes.get(node.node_id) if wanted.refusals is not None else None
        if refusal is not None:
            yield RefusedForDao(
                application_id=wanted.app.app_id,
                allocation_key=wanted.key,
                reason=refusal.reason,
                since=refusal.refused_ns,
                unanswered=refusal.unanswered,
            )


def _in_order(found: Iterable[Allocation]) -> list[Allocation]:
    """Sorts by arrival: after a restart of the view, a changed object has another place in its dictionary."""
    return sorted(found, key=lambda each: (each.allocated_ns, each.app_id, each.submission, each.ordinal, each.key))


def _on_node(held: Allocation) -> OnNodeDao:
    return OnNodeDao(
        application_id=held.app_id,
        allocation_key=held.key,
        resource=held.shape.quantities,
        priority=held.priority,
        placeholder=held.placeholder,
        since=held.allocated_ns,
        told=_told(held),
        told_at=held.releasing_since_ns,
    )


def _told(held: Allocation) -> str:
    if held.preempted is not None:
        return "PREEMPTED"
    if held.replaced_by is not None:
        return "REPLACED"
    return "TIMED_OUT" if held.timed_out else ""


# ---- what waits ------------------------------------------------------------------------------------------------------


def _waiting(
    partition: Partition, node: Node, pause: Reason | None, turns: ScopeWaits
) -> Generator[bytes, None, WouldFitDao]:
    """Counts the pending asks that fit on the node now, and the others. Only its free resources count, no limits."""
    lacking: Counter[str] = Counter()
    fitting: Counter[str] = Counter()
    found = WouldFitDao(asks=0, fit=0, reasons={}, lacking=[], elsewhere=0)
    names = partition.types.names
    rooms: dict[Shape, str] = {}
    for looked, (wanted, asks) in enumerate(_pending(partition), 1):
        if looked % _PER_STEP == 0:
            yield b""
        if wanted is None or wanted.gone:
            continue
        found.asks += asks
        if wanted.demand.required_node not in ("", node.node_id):
            found.elsewhere += asks
            continue
        lack = rooms.get(wanted.shape)
        if lack is None:
            lack = rooms[wanted.shape] = _lack(wanted.shape, node, names)
        if lack:
            lacking[lack] += asks
        else:
            found.fit += asks
            fitting[reason_of(wanted, pause=pause, turns=turns).code.value] += asks
    found.reasons = dict(fitting)
    found.lacking = [LacksDao(resource_type=name, asks=count) for name, count in sorted(lacking.items())]
    return found


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
            for wanted in gang.waiting_for_placeholders(app):
                yield wanted, 1


# ---- for people ------------------------------------------------------------------------------------------------------


def _sentence(found: NodeHeadDao, allocations: int, pause: Reason | None) -> str:
    """One sentence: whether the node takes allocations, its allocations, and how many pending asks fit."""
    waiting, takes = found.waiting, "takes new allocations"
    if not (found.schedulable and found.ready):
        takes = f"takes no new allocations ({_closed(found)})"
    full = _full(found)
    has = f"has {pluralize(allocations, 'allocation') if allocations else 'no allocation'}"
    parts = [takes, f"{has} and no {join_words(full, 'or')} free" if full else has]
    if waiting.asks:
        parts.append(f"and has room for {f'{waiting.fit:,}' if waiting.fit else 'none'} of {_asks(waiting)}")
    else:
        parts.append("and its partition has no pending asks")
    sentence = f"Node {found.node} {', '.join(parts)}"
    return f"{sentence}; {pause.clause()}." if pause is not None else f"{sentence}."


def _asks(waiting: WouldFitDao) -> str:
    return pluralize(waiting.asks, "pending ask")


def _full(found: NodeHeadDao) -> list[str]:
    """The types with nothing free."""
    return sorted(name for name in found.capacity if found.available.get(name, 0) <= 0)


def _message(found: NodeHeadDao, allocations: int, foreign: int, pause: Reason | None) -> str:
    sentences = [
        pause.sentence() if pause is not None else "",
        _takes(found),
        _spoken_of(found),
        _back(found),
        _kept(found),
    ]
    sentences += [_has(found, allocations, foreign), _refused(found), _would_fit(found.waiting)]
    return " ".join(text for text in sentences if text)


def _takes(found: NodeHeadDao) -> str:
    if found.schedulable and found.ready:
        return ""
    if found.closed and not found.schedulable:
        return f"Only asks that require this node can start on it: {found.closed}."
    return f"It is {_closed(found)}: only asks that require this node can start on it."


def _closed(found: NodeHeadDao) -> str:
    """Why the node takes no new allocations."""
    if found.schedulable:
        return "not ready"
    by = "an operator" if found.closed_by == CordonKind.OPERATOR else "the resource manager"
    return found.closed or f"drained by {by}"


def _spoken_of(found: NodeHeadDao) -> str:
    """The sources that report the node, and which report counts where they differ."""
    if not found.sources:
        return ""
    names = [each.source for each in found.sources]
    who = f"source{'s' if len(names) > 1 else ''} {join_words(names)}"
    besides = "Besides the resource manager, " if found.rm is not None else "Only "
    sentence = f"{besides}{who} {'reports' if len(names) == 1 else 'report'} it."
    return f"{sentence} The reports differ ({found.disputed})." if found.disputed else sentence


def _back(found: NodeHeadDao) -> str:
    """The node's revoked offers, and when preemption begins to clear them."""
    if not found.wanted_back:
        return ""
    first, *others = found.wanted_back
    more, be, them = (f" and {len(others):,} more", "were", "them") if others else ("", "was", "it")
    until = datetime.fromtimestamp(min(each.deadline for each in found.wanted_back) // 10**9, tz=UTC)
    return (
        f"Offer {first.offer} of source {first.source}{more} {be} revoked: "
        f"allocations that do not fit without {them} are preempted from {until:%Y-%m-%d %H:%M:%S} UTC."
    )


def _kept(found: NodeHeadDao) -> str:
    if not found.kept_for:
        return ""
    first = found.kept_for[0]
    more = f" and {len(found.kept_for) - 1:,} more" if len(found.kept_for) > 1 else ""
    return f"It is reserved for {first.allocation_key} of application {first.application_id}{more}."


def _refused(found: NodeHeadDao) -> str:
    if not found.refusals:
        return ""
    sentence = f"The resource manager refused it for {pluralize(found.refusals, 'ask')}"
    why = next((each.reason for each in found.refused_for if each.reason), "")
    return f"{sentence} ({why})." if why else f"{sentence}."


def _has(found: NodeHeadDao, allocations: int, foreign: int) -> str:
    if not allocations:
        sentence = "It has no allocation"
    else:
        sentence = f"It has {pluralize(allocations, 'allocation')}"
        if found.told_to_go:
            sentence += f", {found.told_to_go:,} of which {'is' if found.told_to_go == 1 else 'are'} being released"
    if foreign:
        sentence += f", and {pluralize(foreign, 'foreign allocation')}"
    full = _full(found)
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
            f"for {each.asks:,} it has too little {each.resource_type}" for each in waiting.lacking
        )
    if waiting.elsewhere:
        sentence += f"; {waiting.elsewhere:,} require another node"
    return sentence + "."
