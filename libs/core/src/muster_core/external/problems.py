"""The reasons for which entries of external sources do not count. Each entry holds its own."""

from __future__ import annotations

from muster_core.external.reports import NodeReports, ReportedObject
from muster_core.model.outcome import Outcome


def set_problem(entry: ReportedObject, problem: str, out: Outcome) -> None:
    """Records why an entry does not count, or not all of it; "": it counts."""
    if entry.problem != problem:
        entry.problem = problem
        out.mark_changed(entry, entry.partition)


def no_partition(entry: ReportedObject, out: Outcome) -> None:
    """Records that the configuration does not have the partition of an entry."""
    set_problem(entry, f"partition {entry.partition} does not exist", out)


def counted_of(on: NodeReports) -> NodeReports:
    """The statements that count about an existing node, as of the last change."""
    bad = [entry for entry in on.nodes.values() if entry.problem]
    bad += [entry for offers in on.offers.values() for entry in offers if entry.problem]
    return on if not bad else without(on, bad)


def without(on: NodeReports, bad: list[ReportedObject]) -> NodeReports:
    """The statements about a node, without some entries."""
    kept = NodeReports()
    kept.nodes = {source: entry for source, entry in on.nodes.items() if entry not in bad}
    kept.offers = {
        source: {entry: None for entry in offers if entry not in bad}
        for source, offers in on.offers.items()
        if any(entry not in bad for entry in offers)
    }
    kept.allocations, kept.stale = on.allocations, on.stale
    return kept
