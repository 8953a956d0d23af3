"""Invariants of external sources: of their statements, and of the merged values.

The rules are written here a second time, in a simple form: from all statements to the expected values.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalOffer,
    ExternalQueue,
    OfferState,
)
from muster_core.external.reports import NodeReports, PartitionReports, ReportedObject
from muster_core.model.application import Allocation
from muster_core.model.cordons import closed_counts
from muster_core.model.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from muster_core.model.steps import Pace, Steps
    from muster_core.partition import Partition

    Must = Callable[[bool, str], None]


def check(partition: Partition, must: Must, pace: Pace, *, merges: bool) -> Steps:
    """Checks one partition, in steps.

    :param merges: check also that this version's rules lead from the statements to the merged values. This may not hold
        after a recovery: values of an earlier version stay until a source or the RM makes another statement.
    """
    books = partition.external.books
    yield from _check_files(books, must, pace)
    yield from _check_offers(partition, must, pace)
    yield from _check_allocations(partition, must, pace)
    yield from _check_applications(partition, must, pace)
    if merges:
        _check_nodes(partition, must)
        _check_queues(partition, must)


def _check_files(books: PartitionReports, must: Must, pace: Pace) -> Steps:
    """Each entry is filed under its subject, and no other entry is filed."""
    filed: dict[ReportedObject, int] = {}

    def found(entry: ReportedObject, about: bool) -> None:
        filed[entry] = filed.get(entry, 0) + 1
        must(about and not entry.gone, f"{entry} is filed where it does not belong, or is gone")

    for node_id, on in books.nodes.items():
        for source, entry in on.nodes.items():
            found(entry, entry.source == source and entry.object_id == node_id)
        for files in (on.offers, on.allocations):
            for source, entries in files.items():
                for entry in entries:
                    if pace.is_over():
                        yield
                    found(entry, entry.source == source and getattr(entry.said, "node_id", None) == node_id)
        yield from _check_stale(node_id, on, must, pace)
    for plain in (books.queues, books.applications, books.pools):
        for about, entries in plain.items():
            for entry in entries:
                if pace.is_over():
                    yield
                found(entry, entry.object_id.lower() == about.lower())
    owned = 0
    for app_id, entries in books.app_allocations.items():
        for entry in entries:
            if pace.is_over():
                yield
            owned += 1
            must(getattr(entry.said, "app_id", None) == app_id, f"{entry} is not of application {app_id}")
    count = of_apps = 0
    for entry in books.entries():
        if pace.is_over():
            yield
        count += 1
        must(filed.get(entry) == 1, f"{entry} is filed {filed.get(entry, 0)} times")
        of_apps += isinstance(entry.said, ExternalAllocation) and bool(entry.said.app_id)
        must(entry.owner.entries.get((entry.kind, entry.object_id)) is entry, f"{entry}: its source does not know it")
    must(count == len(filed), f"{count} entries, {len(filed)} are filed")
    must(owned == of_apps, "an application's allocation is not filed")


def _check_stale(node_id: str, on: NodeReports, must: Must, pace: Pace) -> Steps:
    stale: set[ReportedObject] = set()
    for entries in on.allocations.values():
        for entry in entries:
            if pace.is_over():
                yield
            if entry.stale:
                stale.add(entry)
    must(
        {stale_entry for entries in on.stale.values() for stale_entry in entries} == stale,
        f"node {node_id}: stale are {stale}",
    )


def _check_offers(partition: Partition, must: Must, pace: Pace) -> Steps:
    """Clocks run in their states only. An offer that its source wants back is not kept if everything fits without
    it.
    """
    for entry in partition.external.books.entries(ExternalKind.OFFER):
        if pace.is_over():
            yield
        state = entry.offer_state
        must(state is not None, f"{entry} has no state")
        must(bool(entry.deadline_ns) == (state is OfferState.REVOKED), f"{entry}: {state}, due {entry.deadline_ns}")
        must(not entry.idle_since_ns or state is OfferState.OFFERED, f"{entry}: {state}, idle {entry.idle_since_ns}")
        must(not entry.withdrawn or state is OfferState.REVOKED, f"{entry}: {state}, though its source forgot it")
        if not partition.searching:
            continue
        node = partition.nodes.get(getattr(entry.said, "node_id", ""))
        must(node is None or node.has_offers, f"{node} has offers, but its use is not reviewed")
        kept = state is OfferState.REVOKED and (node is None or min(node.available, default=0) >= 0)
        must(
            not kept or partition.offers.reporting,
            f"{entry} is wanted back, and kept though everything on {node} fits without it",
        )


def _check_allocations(partition: Partition, must: Must, pace: Pace) -> Steps:
    external, names = partition.external, partition.types.names
    expected: set[Allocation] = set()
    for entry in external.books.entries(ExternalKind.ALLOCATION):
        if pace.is_over():
            yield
        report, allocation = entry.said, external.allocation_of(entry)
        assert isinstance(report, ExternalAllocation)
        node = partition.nodes.get(report.node_id)
        if node is None or not any(report.quantities.values()):
            must(
                allocation is None and bool(entry.problem),
                f"{entry} counts, though its node is not there (or it is empty)",
            )
            continue
        if allocation is None:
            must("types" in entry.problem, f"{entry} does not count, though {node} is there: {entry.problem!r}")
            continue
        expected.add(allocation)
        must(allocation.node_id == report.node_id, f"{allocation} should be on {report.node_id}")
        counted = {names[number]: value for number, value in allocation.shape.items}
        amounts = {name: value for name, value in report.quantities.items() if value}
        must(counted == amounts, f"{allocation} counts as {counted}, should be {amounts}")
        app = partition.live_application(report.app_id) if report.app_id else None
        owner = app if app is not None and app.source == entry.source else None
        must(allocation.app is owner, f"{allocation} should be of {owner}")
        must(bool(entry.problem) == (bool(report.app_id) and owner is None), f"{entry}: problem {entry.problem!r}")
    exist = 0
    for allocation in chain(partition.foreign.values(), *(app.allocations.values() for app in partition.apps.values())):
        if pace.is_over():
            yield
        if not allocation.source:
            continue
        exist += 1
        must(allocation in expected, f"{allocation} is of source {allocation.source}, which does not say so")
        must(not allocation.releasing, f"{allocation} was released, although only its source can end it")
    must(exist == len(expected), "an allocation of a source is not there")
    for app in partition.apps.values():
        for allocation in app.allocations.values():
            if pace.is_over():
                yield
            must(allocation.source == app.source, f"{app} of {app.source!r} has {allocation} of others")


def _check_applications(partition: Partition, must: Must, pace: Pace) -> Steps:
    books = partition.external.books
    for entry in books.entries(ExternalKind.APPLICATION):
        if pace.is_over():
            yield
        report = entry.said
        assert isinstance(report, ExternalApplication)
        app = partition.live_application(report.app_id)
        exists = app is not None and app.source == entry.source
        must(exists != bool(entry.problem), f"{entry}: its application is {app}, its problem {entry.problem!r}")
        must(not exists or (app is not None and not app.asks), f"{app} has asks")
    for app in partition.apps.values():
        if app.source:
            entry_ = books.entry(app.source, ExternalKind.APPLICATION, app.app_id)
            must(entry_ is not None, f"{app} is of source {app.source}, which does not say so")


def _check_nodes(partition: Partition, must: Must) -> None:
    about: dict[str, dict[str, list[ReportedObject]]] = {}
    for entry in sorted(partition.external.books.entries(), key=lambda entry: entry.order):
        node_id = getattr(entry.said, "node_id", None)
        # (An entry whose types the partition cannot count is ignored.)
        if node_id is not None and ("types" not in entry.problem or entry.kind is ExternalKind.ALLOCATION):
            about.setdefault(node_id, {}).setdefault(entry.source, []).append(entry)
    for node in partition.nodes.values():
        _check_node(partition, node, about.get(node.node_id, {}), must)
    if partition.searching:
        closers = Counter(node.closer for node in partition.nodes.values() if node.closer is not None)
        expected = closed_counts(closers + Counter(partition.external.withdrawn_offers()))
        closed = partition.figures.closed()
        must(closed == expected, f"{partition} counts as closed {closed}, should be {expected}")
    for node_id, by_source in about.items():
        if node_id not in partition.nodes:
            must(not any(map(_brings, by_source.values())), f"node {node_id} should be there")
            for entry in [entry for entries in by_source.values() for entry in entries]:
                counts = entry.kind is ExternalKind.NODE and not entry.problem
                must(not counts, f"{entry} counts, though its node is not there")


def _check_node(partition: Partition, node: Node, said_of: dict[str, list[ReportedObject]], must: Must) -> None:
    sources = list(said_of)
    must(list(node.sources) == sources, f"{node}: sources {node.sources}, should be {sources}")
    report = node.reported
    if not sources:
        must(node.of_rm, f"{node} belongs neither to the RM nor to a source")
        must(report is None or 0 in (report.capacity or {}).values(), f"{node} keeps a report of the RM without need")
    brought = any(map(_brings, said_of.values()))
    must(node.of_rm or brought, f"{node} should not be there")
    if report is None and not sources:
        return
    amounts: dict[str, list[int]] = {}
    occupied: dict[str, int] = {}
    attributes: dict[str, str] = {}
    schedulable = True
    whole: list[dict[str, int]] = []
    if report is not None:
        for name, value in (report.capacity or {}).items():
            amounts.setdefault(name, []).append(value)
        occupied.update(report.occupied)
        attributes.update(report.attributes)
        schedulable = report.schedulable
    for entries in said_of.values():
        schedulable = schedulable and not any(entry.holds for entry in entries)
        own: dict[str, int] | None = None
        complete = False
        for entry in entries:
            match entry.said:
                case ExternalNode() as source_node:
                    own = None if source_node.capacity is None else dict(source_node.capacity)
                    complete = source_node.whole and own is not None
                    schedulable = schedulable and source_node.schedulable
                    for name, value in source_node.occupied.items():
                        occupied[name] = occupied.get(name, 0) + value
                    attributes = {**source_node.attributes, **attributes}
        for entry in entries:
            match entry.said:
                case ExternalOffer() as offer:
                    own, complete = own or {}, True
                    if entry.offer_state is OfferState.OFFERED:
                        own = {
                            name: own.get(name, 0) + offer.quantities.get(name, 0)
                            for name in {**own, **offer.quantities}
                        }
                        attributes = {**offer.attributes, **attributes}
        for name, value in (own or {}).items():
            amounts.setdefault(name, []).append(value)
        if complete:
            whole.append(own or {})
    capacity = {
        name: 0 if any(name not in source_amounts for source_amounts in whole) else min(values)
        for name, values in amounts.items()
    }
    expected = {name: value for name, value in capacity.items() if value}
    must(node.named_capacity() == expected, f"{node}: capacity {node.named_capacity()}, should be {expected}")
    used = {name: value for name, value in occupied.items() if value}
    counted = {name: value for name, value in node.reported_occupied.items() if value}
    must(counted == used, f"{node}: occupied {counted}, should be {used}")
    must(node.attributes == attributes, f"{node}: attributes {node.attributes}, should be {attributes}")
    must(node.schedulable == schedulable, f"{node}: schedulable {node.schedulable}, should be {schedulable}")
    must(partition.types is node.types, f"{node} counts in other types")
    if partition.searching:
        closer = partition.external.cordon_of(node)
        must(node.closer == closer, f"{node} is closed by {node.closer}, should be {closer}")


def _brings(entries: list[ReportedObject]) -> bool:
    """Whether a source with these entries brings the node."""
    for entry in entries:
        match entry.said:
            case ExternalNode() as report:
                if not report.brings:
                    return False
                if report.capacity is not None and any(report.capacity.values()):
                    return True
    return any(
        isinstance(entry.said, ExternalOffer)
        and entry.offer_state in (OfferState.OFFERED, OfferState.REVOKED)
        and any(entry.said.quantities.values())
        for entry in entries
    )


def _check_queues(partition: Partition, must: Must) -> None:
    names = partition.types.names
    for queue in partition.queues.values():
        if queue.parent is None:
            continue  # root's max comes from the pools (pools.py)
        accepted = [
            entry
            for entry in partition.external.books.queues.get(queue.path, ())
            if isinstance(entry.said, ExternalQueue) and not entry.problem
        ]
        must(list(queue.sources) == sorted({entry.source for entry in accepted}), f"{queue}: sources {queue.sources}")
        least = dict(queue.by_name(queue.own_maximum) or {})
        for entry in accepted:
            assert isinstance(entry.said, ExternalQueue)
            for name, value in entry.said.maximum.items():
                least[name] = min(value, least.get(name, value))
        must((queue.by_name(queue.maximum) or {}) == least, f"{queue}: max {queue.maximum}, should be {least}")
        limits = {names[number]: value for number, value in enumerate(queue.limit) if number in (queue.maximum or {})}
        must(limits == least, f"{queue}: limits {limits}, should be {least}")
    for path, entries in partition.external.books.queues.items():
        for entry in entries:
            exists = path in partition.queues and path != "root"
            must(exists or bool(entry.problem), f"{entry} counts, though its queue is not there")
