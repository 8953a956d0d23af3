"""The auditor of lives with other managers notices: the core is broken on purpose, one thing at a time.

Not an assertion of the core, nor its invariants, which are not looked at here: the core must have no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from muster_core.allocation.releases import Releases
from muster_core.external import external_merge
from muster_core.external.external_merge import MergedNode, SourceNodeReport
from muster_core.external.model import (
    ApplyExternalChanges,
    SetSourceState,
)
from muster_core.external.reconciler import ExternalReconciler
from muster_core.external.reports import EntryChange, ExternalReports, ReportedObject
from muster_core.model.application import Allocation
from muster_core.model.node import NodeReport
from muster_core.model.outcome import EventDetail, Outcome
from muster_core.nodes import node_lifecycle
from muster_core.scheduler import SchedulerCore
from muster_scheduler import external_reports, registrar
from simulation.external_life import ExternalLife
from simulation.noticing import must_be_noticed

# In these lives what comes up seldom comes up; then all others are tried.
HINTS = (8, 14, 2)
SEEDS = range(60)
STEPS = 50

Break = Callable[[pytest.MonkeyPatch], None]


# ---- what counts of a node -----------------------------------------------------------------------------------------


def _merged_as(
    patch: pytest.MonkeyPatch, wrong: Callable[[NodeReport | None, Sequence[SourceNodeReport], MergedNode], MergedNode]
) -> None:
    whole = external_merge.merge

    def merge(report: NodeReport | None, parts: Sequence[SourceNodeReport]) -> MergedNode:
        return wrong(report, parts, whole(report, parts))

    patch.setattr(node_lifecycle, "merge", merge)


def _other_managers_cannot_drain(patch: pytest.MonkeyPatch) -> None:
    """That another manager drains its host is not heard."""

    def open_(report: NodeReport | None, parts: Sequence[SourceNodeReport], merged: MergedNode) -> MergedNode:
        return merged._replace(closed="" if merged.closed.endswith("says so") else merged.closed)

    _merged_as(patch, open_)


def _what_is_not_named_is_not_there(patch: pytest.MonkeyPatch) -> None:
    """What a source does not name it has none of, though it does not speak of all."""
    whole = external_merge._part

    def all_of_it(source: str, node: ReportedObject | None, *others: Any) -> SourceNodeReport:
        return whole(source, node, *others)._replace(whole=True)

    patch.setattr(external_merge, "_part", all_of_it)


def _contradictions_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """That the RM and a source say different things is in no event."""
    _merged_as(patch, lambda report, parts, merged: merged._replace(disputed=""))


def _the_rm_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """A source's host goes, and the RM does not hear that what ran there ended."""
    whole = Releases.release

    def silently(self: Releases, allocation: Allocation, *said: Any, **how: Any) -> None:
        whole(
            self,
            allocation,
            *said,
            **{**how, "tell": how.get("tell", True) and EventDetail.ALLOC_NODEREMOVED not in said},
        )

    patch.setattr(Releases, "release", silently)


# ---- VMs, owners, quotas, pools ------------------------------------------------------------------------------------


def _vms_take_no_room(patch: pytest.MonkeyPatch) -> None:
    """VMs that are told one by one count nowhere."""
    patch.setattr(ExternalReconciler, "_settle_allocation", lambda self, entry, out, now_ns: None)


# ---- offers --------------------------------------------------------------------------------------------------------


# ---- sources, records, processes -----------------------------------------------------------------------------------


def _decides_at_once(patch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for."""
    patch.setattr(external_reports.ExternalReportIngest, "awaited", lambda self, rm_id: ())


def _what_is_gone_stays(patch: pytest.MonkeyPatch) -> None:
    """That an object is gone is not heard."""
    whole = ExternalReports.apply_in_steps

    def apply(
        self: ExternalReports, command: ApplyExternalChanges | SetSourceState, *how: Any, **more: Any
    ) -> Generator[None, None, list[EntryChange]]:
        if isinstance(command, ApplyExternalChanges):
            kept = tuple(each for each in command.changes if each.what is not None or each.stale)
            command = replace(command, changes=kept)
        return whole(self, command, *how, **more)

    patch.setattr(ExternalReports, "apply_in_steps", apply)


def _registering_again_forgets_sources(patch: pytest.MonkeyPatch) -> None:
    """An RM that registers again gets none of what sources have said."""
    whole = registrar.core_in_steps

    def core_in_steps(*said: Any, **more: Any) -> Generator[None, None, SchedulerCore]:
        return (yield from whole(*said, **{**more, "external": None}))

    patch.setattr(registrar, "core_in_steps", core_in_steps)


def _what_is_said_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """Objects of sources are written once, and not when they change."""
    whole = Outcome.mark_changed

    def touch(self: Outcome, changed: Any, partition: str) -> None:
        if not (isinstance(changed, ReportedObject) and changed.published and not changed.gone):
            whole(self, changed, partition)

    patch.setattr(Outcome, "mark_changed", touch)


BREAKS: dict[Break, Collection[str]] = {
    _other_managers_cannot_drain: {"merge", "unschedulable"},  # rare
    _what_is_not_named_is_not_there: {"merge"},  # rare
    _contradictions_are_not_told: {"dispute"},  # open
    _the_rm_is_not_told: {"ended"},  # rare
    _vms_take_no_room: {"over-commit"},  # rare
    _decides_at_once: {"gate"},  # outside
    _what_is_gone_stays: {"ext record"},  # rare
    _registering_again_forgets_sources: {"node record"},  # outside
    _what_is_said_is_not_recorded: {"ext record"},  # outside
}
# Before those hints, for one of these.
OWN_HINTS: dict[Break, list[int]] = {
    _the_rm_is_not_told: [2],
    _decides_at_once: [0],
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda each: each.__name__.strip("_"))
def test_the_auditor_notices(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    seeds = [*OWN_HINTS.get(broken, ()), *HINTS, *SEEDS]
    life = partial(ExternalLife, check_core=False)
    must_be_noticed(broken.__doc__ or "", BREAKS[broken], seeds, STEPS, life)
