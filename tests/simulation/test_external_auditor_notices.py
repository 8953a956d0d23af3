"""The auditor of lives with other managers notices: the core is broken on purpose, one thing at a time.

Not an assertion of the core, nor its invariants, which are not looked at here: the core must have no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from muster_core.allocation.releases import Releases
from muster_core.allocation.waiting import Waiting
from muster_core.external import external_merge, offers
from muster_core.external.external import (
    ExternalAllocation,
    ExternalChange,
    ExternalOffer,
    OfferState,
    SetSource,
    SourceState,
    UpdateExternal,
)
from muster_core.external.external_books import Changed, ExternalBooks, ExternalEntry
from muster_core.external.external_merge import Merged, Part
from muster_core.external.external_partition import PartitionExternal
from muster_core.model.application import Allocation
from muster_core.model.node import Node, NodeReport
from muster_core.model.outcome import Detail, Outcome
from muster_core.model.queue import Queue
from muster_core.model.steps import Steps
from muster_core.nodes import node_lives, pools
from muster_core.nodes.node_lives import NodeLives
from muster_core.partition import Partition
from muster_core.preemption import preemption_victims
from muster_core.scheduler import SchedulerCore
from muster_informers.informer import SharedIndexInformer
from muster_proto.muster.bus.v1 import state_pb2
from muster_scheduler import registrar, sources
from muster_state import state_codec
from simulation.external_life import ExternalLife
from simulation.noticing import must_be_noticed

# In these lives what comes up seldom comes up; then all others are tried.
HINTS = (8, 14, 2)
SEEDS = range(60)
STEPS = 50

Break = Callable[[pytest.MonkeyPatch], None]


# ---- what counts of a node -----------------------------------------------------------------------------------------


def _merged_as(patch: pytest.MonkeyPatch, wrong: Callable[[NodeReport | None, Sequence[Part], Merged], Merged]) -> None:
    whole = external_merge.merge

    def merge(report: NodeReport | None, parts: Sequence[Part]) -> Merged:
        return wrong(report, parts, whole(report, parts))

    patch.setattr(node_lives, "merge", merge)


def _the_larger_counts(patch: pytest.MonkeyPatch) -> None:
    """Of two that speak of a type the larger amount counts."""

    def larger(speakers: Sequence[tuple[str, Mapping[str, int], bool]]) -> tuple[dict[str, int], str]:
        names = dict.fromkeys(name for _, said, _ in speakers for name in said)
        return {name: max(said.get(name, 0) for _, said, _ in speakers) for name in names}, ""

    patch.setattr(external_merge, "_smallest", larger)


def _the_rm_counts(patch: pytest.MonkeyPatch) -> None:
    """Where the RM says what a node has, nobody else is heard."""

    def own(report: NodeReport | None, parts: Sequence[Part], merged: Merged) -> Merged:
        said = report.capacity if report is not None else None
        return merged if said is None else merged._replace(capacity=dict(said))

    _merged_as(patch, own)


def _use_does_not_add_up(patch: pytest.MonkeyPatch) -> None:
    """What is used on a node besides is as the RM says."""

    def own(report: NodeReport | None, parts: Sequence[Part], merged: Merged) -> Merged:
        return merged if report is None else merged._replace(occupied=dict(report.occupied))

    _merged_as(patch, own)


def _other_managers_cannot_drain(patch: pytest.MonkeyPatch) -> None:
    """That another manager drains its host is not heard."""

    def open_(report: NodeReport | None, parts: Sequence[Part], merged: Merged) -> Merged:
        return merged._replace(closed="" if merged.closed.endswith("says so") else merged.closed)

    _merged_as(patch, open_)


def _lost_sources_go_on(patch: pytest.MonkeyPatch) -> None:
    """The hosts of a source that is lost, or that cannot be read, take new containers, whatever its policy."""
    patch.setattr(external_merge, "_held", lambda entry: "")


def _who_restricts_brings(patch: pytest.MonkeyPatch) -> None:
    """Who only restricts nodes of the RM brings them, too."""
    whole = external_merge._part

    def bringing(source: str, node: ExternalEntry | None, *others: Any) -> Part:
        part = whole(source, node, *others)
        return part._replace(brings=part.capacity is not None and any(part.capacity.values()))

    patch.setattr(external_merge, "_part", bringing)


def _what_is_not_named_is_not_there(patch: pytest.MonkeyPatch) -> None:
    """What a source does not name it has none of, though it does not speak of all."""
    whole = external_merge._part

    def all_of_it(source: str, node: ExternalEntry | None, *others: Any) -> Part:
        return whole(source, node, *others)._replace(whole=True)

    patch.setattr(external_merge, "_part", all_of_it)


def _contradictions_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """That the RM and a source say different things is in no event."""
    _merged_as(patch, lambda report, parts, merged: merged._replace(disputed=""))


def _decommission_takes_all(patch: pytest.MonkeyPatch) -> None:
    """The RM's DECOMISSION takes the node away, though a source brings it."""
    patch.setattr(NodeLives, "decommission", lambda self, node, out, now_ns: self.remove(node, out, now_ns))


def _decommission_leaves_containers(patch: pytest.MonkeyPatch) -> None:
    """Where a source brings the node, the RM's containers run on when the RM takes it away."""

    def decommission(self: NodeLives, node: Node, out: Outcome, now_ns: int) -> Steps:
        yield from self.settle_in_steps(node.node_id, None, out, now_ns)

    patch.setattr(NodeLives, "decommission", decommission)


def _the_rm_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """A source's host goes, and the RM does not hear that what ran there ended."""
    whole = Releases.release

    def silently(self: Releases, allocation: Allocation, *said: Any, **how: Any) -> None:
        whole(
            self, allocation, *said, **{**how, "tell": how.get("tell", True) and Detail.ALLOC_NODEREMOVED not in said}
        )

    patch.setattr(Releases, "release", silently)


def _nobody_is_woken(patch: pytest.MonkeyPatch) -> None:
    """A node that gains something wakes nobody."""
    patch.setattr(Waiting, "node_gained", lambda self, node: None)


# ---- VMs, owners, quotas, pools ------------------------------------------------------------------------------------


def _vms_take_no_room(patch: pytest.MonkeyPatch) -> None:
    """VMs that are told one by one count nowhere."""
    patch.setattr(PartitionExternal, "_settle_allocation", lambda self, entry, out, now_ns: None)


def _vms_without_owner_take_no_room(patch: pytest.MonkeyPatch) -> None:
    """VMs of an owner that nobody knows count nowhere."""
    whole = PartitionExternal._settle_allocation

    def settle(self: PartitionExternal, entry: ExternalEntry, out: Outcome, now_ns: int) -> None:
        said = entry.said
        assert isinstance(said, ExternalAllocation)
        if not said.app_id or self._state.live_application(said.app_id) is not None:
            whole(self, entry, out, now_ns)

    patch.setattr(PartitionExternal, "_settle_allocation", settle)


def _vms_do_not_grow(patch: pytest.MonkeyPatch) -> None:
    """A VM that is changed counts as it was."""
    whole = PartitionExternal._settle_allocation

    def settle(self: PartitionExternal, entry: ExternalEntry, out: Outcome, now_ns: int) -> None:
        if self.allocation_of(entry) is None:
            whole(self, entry, out, now_ns)

    patch.setattr(PartitionExternal, "_settle_allocation", settle)


def _vms_never_end(patch: pytest.MonkeyPatch) -> None:
    """What a VM took stays taken."""
    patch.setattr(PartitionExternal, "_end_allocation", lambda self, *said: None)


def _owners_count_in_no_queue(patch: pytest.MonkeyPatch) -> None:
    """What other managers' applications hold does not count in their queues."""
    whole = PartitionExternal._settle_application

    def nobody(self: PartitionExternal, app_id: str, out: Outcome, now_ns: int) -> Steps:
        if app_id not in self.books.applications:
            yield from whole(self, app_id, out, now_ns)

    patch.setattr(PartitionExternal, "_settle_application", nobody)


def _quotas_of_others_do_not_hold(patch: pytest.MonkeyPatch) -> None:
    """A queue's max is what is configured, whatever sources say."""
    whole = Queue.restrict

    def restrict(self: Queue, sources: tuple[str, ...], maximum: dict[int, int] | None) -> None:
        whole(self, sources, maximum if self.parent is None else None)

    patch.setattr(Queue, "restrict", restrict)


def _vms_are_preempted(patch: pytest.MonkeyPatch) -> None:
    """What other managers run is told to go as what the RM runs."""

    def may_go(allocation: Allocation) -> bool:
        return not allocation.releasing and not allocation.demand.required_node

    patch.setattr(preemption_victims, "may_go", may_go)
    for module in ("preemption", "rules.required_node", "rules.quota"):
        name = f"muster_core.preemption.{module}.may_go"
        patch.setattr(name, may_go, raising=False)


def _licences_of_others_are_free(patch: pytest.MonkeyPatch) -> None:
    """What others use of a pool is not taken off."""
    whole = pools.total_of

    def total_of(entries: Collection[ExternalEntry]) -> int:
        used = sum(getattr(entry.said, "occupied", 0) for entry in entries)
        return whole(entries) + used

    patch.setattr(pools, "total_of", total_of)


def _pools_have_no_end(patch: pytest.MonkeyPatch) -> None:
    """A pool that there is always has enough."""
    patch.setattr(pools, "total_of", lambda entries: 1_000)


# ---- offers --------------------------------------------------------------------------------------------------------


def _idle_offers_come_back_at_once(patch: pytest.MonkeyPatch) -> None:
    """An offer that nothing needs is not kept for its idle time."""
    patch.setattr(offers, "due_of", lambda entry: 1)


def _used_offers_come_back(patch: pytest.MonkeyPatch) -> None:
    """An offer is given back though what runs there needs it."""
    patch.setattr(offers._Room, "spares", lambda self, entry: True)


def _revoked_offers_are_used(patch: pytest.MonkeyPatch) -> None:
    """What is asked back is used as before."""
    whole = external_merge._part

    def part(source: str, node: Any, lent: Collection[ExternalEntry], *more: Any) -> Part:
        found = whole(source, node, lent, *more)
        capacity = dict(found.capacity) if found.capacity is not None else None
        for entry in lent:
            if entry.offer_state is OfferState.REVOKED and capacity is not None:
                assert isinstance(entry.said, ExternalOffer)
                for name, value in entry.said.quantities.items():
                    capacity[name] = capacity.get(name, 0) + value
        return found._replace(capacity=capacity)

    patch.setattr(external_merge, "_part", part)


def _nothing_is_released(patch: pytest.MonkeyPatch) -> None:
    """Nobody has to leave what is asked back."""
    patch.setattr(offers.Offers, "_evict", lambda self, *said: ())


# ---- sources, records, processes -----------------------------------------------------------------------------------


def _decides_at_once(patch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for."""
    patch.setattr(sources.Sources, "awaited", lambda self, rm_id: ())


def _what_an_earlier_life_said_stays(patch: pytest.MonkeyPatch) -> None:
    """A complete listing ends nothing."""
    whole = ExternalBooks.apply_in_steps

    def apply(
        self: ExternalBooks, command: UpdateExternal | SetSource, *how: Any, **more: Any
    ) -> Generator[None, None, list[Changed]]:
        if isinstance(command, SetSource) and command.state is SourceState.LIVE:
            for entry in self.of(command.partition).entries():
                if entry.source == command.source:
                    entry.life = command.life
        return whole(self, command, *how, **more)

    patch.setattr(ExternalBooks, "apply_in_steps", apply)


def _what_is_gone_stays(patch: pytest.MonkeyPatch) -> None:
    """That an object is gone is not heard."""
    whole = ExternalBooks.apply_in_steps

    def apply(
        self: ExternalBooks, command: UpdateExternal | SetSource, *how: Any, **more: Any
    ) -> Generator[None, None, list[Changed]]:
        if isinstance(command, UpdateExternal):
            kept = tuple(each for each in command.changes if each.what is not None or each.stale)
            command = replace(command, changes=kept)
        return whole(self, command, *how, **more)

    patch.setattr(ExternalBooks, "apply_in_steps", apply)


def _garbage_is_overlooked(patch: pytest.MonkeyPatch) -> None:
    """That an object cannot be read any more is not heard."""
    whole = ExternalBooks._take

    def take(self: ExternalBooks, books: Any, owner: Any, change: ExternalChange, *how: Any, **more: Any) -> None:
        if not change.stale:
            whole(self, books, owner, change, *how, **more)

    patch.setattr(ExternalBooks, "_take", take)


def _sources_are_never_lost(patch: pytest.MonkeyPatch) -> None:
    """That a source is lost is not heard."""
    whole = ExternalBooks.apply_in_steps

    def apply(
        self: ExternalBooks, command: UpdateExternal | SetSource, *how: Any, **more: Any
    ) -> Generator[None, None, list[Changed]]:
        if isinstance(command, SetSource) and command.state is SourceState.STALE:
            command = replace(command, state=SourceState.LIVE)
        return whole(self, command, *how, **more)

    patch.setattr(ExternalBooks, "apply_in_steps", apply)


def _registering_again_forgets_sources(patch: pytest.MonkeyPatch) -> None:
    """An RM that registers again gets none of what sources have said."""
    whole = registrar.core_in_steps

    def core_in_steps(*said: Any, **more: Any) -> Generator[None, None, SchedulerCore]:
        return (yield from whole(*said, **{**more, "external": None}))

    patch.setattr(registrar, "core_in_steps", core_in_steps)


def _what_is_said_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """Objects of sources are written once, and not when they change."""
    whole = Outcome.touch

    def touch(self: Outcome, changed: Any, partition: str) -> None:
        if not (isinstance(changed, ExternalEntry) and changed.published and not changed.gone):
            whole(self, changed, partition)

    patch.setattr(Outcome, "touch", touch)


def _folds_forget_the_rms_part(patch: pytest.MonkeyPatch) -> None:
    """After a restart what counts of a node is all that the RM is believed to have said."""
    whole = state_codec.fold_value

    def fold_value(partition: Partition, kind: str, value: bytes) -> None:
        whole(partition, kind, value)
        if kind == state_codec.NODE:
            for node in partition.nodes.values():
                node.reported = None

    patch.setattr(state_codec, "fold_value", fold_value)


def _folds_trust_again(patch: pytest.MonkeyPatch) -> None:
    """After a restart nobody knows what could not be read."""
    whole = state_codec.fold_external_value

    def fold_value(books: ExternalBooks, kind: str, value: bytes) -> None:
        if kind == "ext":
            recorded = state_pb2.ExternalRecord.FromString(value)
            recorded.said.stale = False
            value = recorded.SerializeToString(deterministic=True)
        whole(books, kind, value)

    patch.setattr(state_codec, "fold_external_value", fold_value)


def _late_versions_count(patch: pytest.MonkeyPatch) -> None:
    """An informer takes an old version that comes late."""
    whole = SharedIndexInformer._take

    def take(self: SharedIndexInformer, said: Any, **how: Any) -> None:
        kept = self.store.kept((said.kind, said.object_id))  # type: ignore[arg-type]
        if kept is not None:
            self.store.put((said.kind, said.object_id), kept.what, None)  # type: ignore[arg-type]
        whole(self, said, **how)

    patch.setattr(SharedIndexInformer, "_take", take)


def _a_listing_deletes_nothing(patch: pytest.MonkeyPatch) -> None:
    """An informer overlooks what a listing does not name any more, and what is said to be gone."""
    patch.setattr(SharedIndexInformer, "_remove", lambda self, key: None)


BREAKS: dict[Break, Collection[str]] = {
    _the_larger_counts: {"merge", "over-commit"},
    _the_rm_counts: {"merge", "over-commit"},
    _use_does_not_add_up: {"merge", "over-commit"},
    _other_managers_cannot_drain: {"merge", "unschedulable"},
    _lost_sources_go_on: {"merge", "unschedulable"},
    _who_restricts_brings: {"node record"},
    _what_is_not_named_is_not_there: {"merge"},
    _contradictions_are_not_told: {"dispute"},
    _decommission_takes_all: {"node record"},
    _decommission_leaves_containers: {"ended"},
    _the_rm_is_not_told: {"ended"},
    _nobody_is_woken: {"left pending"},
    _vms_take_no_room: {"over-commit"},
    _vms_without_owner_take_no_room: {"over-commit"},
    _vms_do_not_grow: {"over-commit"},
    _vms_never_end: {"left pending"},
    _owners_count_in_no_queue: {"queue"},
    _quotas_of_others_do_not_hold: {"queue"},
    _vms_are_preempted: {"told"},
    _licences_of_others_are_free: {"pool"},
    _pools_have_no_end: {"pool"},
    _idle_offers_come_back_at_once: {"offer"},
    _used_offers_come_back: {"offer"},
    _revoked_offers_are_used: {"merge", "offer"},
    _nothing_is_released: {"offer"},
    _decides_at_once: {"gate"},
    _what_an_earlier_life_said_stays: {"ext record"},
    _what_is_gone_stays: {"ext record"},
    _garbage_is_overlooked: {"ext record"},
    _sources_are_never_lost: {"source record"},
    _registering_again_forgets_sources: {"node record"},
    _what_is_said_is_not_recorded: {"ext record"},
    _folds_forget_the_rms_part: {"fold", "merge", "node record"},
    _folds_trust_again: {"fold", "follow"},
    _late_versions_count: {"told", "ext record"},
    _a_listing_deletes_nothing: {"told", "ext record"},
}
# Before those hints, for one of these.
OWN_HINTS: dict[Break, list[int]] = {
    _vms_without_owner_take_no_room: [4],
    _what_an_earlier_life_said_stays: [11],
    _decommission_leaves_containers: [11],
    _the_rm_is_not_told: [2],
    _vms_do_not_grow: [6],
    _vms_never_end: [5],
    _owners_count_in_no_queue: [7],
    _decides_at_once: [0],
    _nobody_is_woken: [0],
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda each: each.__name__.strip("_"))
def test_the_auditor_notices(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    seeds = [*OWN_HINTS.get(broken, ()), *HINTS, *SEEDS]
    life = partial(ExternalLife, check_core=False)
    must_be_noticed(broken.__doc__ or "", BREAKS[broken], seeds, STEPS, life)
