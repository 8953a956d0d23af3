"""The comparison of whole and cut messages notices: what sees a message's items together is put back, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from muster_core.allocation.unqualified_releases import UnqualifiedReleases
from muster_core.model.commands import NodeAction, ReleaseItem, UpdateAllocations, UpdateApplications, UpdateNodes
from muster_core.model.outcome import Outcome
from muster_core.model.steps import Steps
from muster_core.scheduler import SchedulerCore
from muster_gateway import admission
from muster_gateway.bounded_messages import SIZES, StepSizes
from muster_gateway.stream_kind import StreamKind
from muster_scheduler import generation
from muster_scheduler.machine import SchedulerMachine
from simulation.messages import Mismatch, SplitLife

SEEDS = range(300)

Break = Callable[[pytest.MonkeyPatch], None]


def _doubles_of_nodes(patch: pytest.MonkeyPatch) -> None:
    """The gateway refuses a second creation of a node in one message."""
    whole, of = admission.admission_steps, admission.KINDS[StreamKind.NODE]

    def with_check(kind: StreamKind, raw: bytes, rm_id: str, limits: Any, sizes: StepSizes = SIZES) -> Any:
        created: set[str] = set()

        def problem(item: Any, path: str, limits: Any, facts: Any) -> str | None:
            if item.nodeID in created:
                return f"{path}: twice"
            created.add(item.nodeID)
            return of.lists[0].check(item, path, limits, facts)

        with patch.context() as inner:
            inner.setitem(admission.KINDS, StreamKind.NODE, replace(of, lists=(replace(of.lists[0], check=problem),)))
            return (yield from whole(kind, raw, rm_id, limits, replace(sizes, whole_bytes=0)))

    patch.setattr(admission, "admission_steps", with_check)


def _releases_last(patch: pytest.MonkeyPatch) -> None:
    """The gateway cuts with releases behind asks."""
    of = admission.KINDS[StreamKind.ALLOCATION]
    patch.setitem(admission.KINDS, StreamKind.ALLOCATION, replace(of, lists=(*of.lists[2:], *of.lists[:2])))


def _removals_first(patch: pytest.MonkeyPatch) -> None:
    """The core removes applications before it adds any."""
    whole = SchedulerCore._take_items

    def turned(self: SchedulerCore, command: Any, out: Outcome, now_ns: int) -> Steps:
        if isinstance(command, UpdateApplications):
            yield from whole(self, replace(command, new=()), out, now_ns)
            command = replace(command, remove=())
        yield from whole(self, command, out, now_ns)

    patch.setattr(SchedulerCore, "_take_items", turned)


def _creations_first(patch: pytest.MonkeyPatch) -> None:
    """The core creates nodes before it changes any."""
    whole = SchedulerCore._take_items

    def turned(self: SchedulerCore, command: Any, out: Outcome, now_ns: int) -> Steps:
        if isinstance(command, UpdateNodes):
            order = sorted(command.nodes, key=lambda item: item.action is not NodeAction.CREATE)
            command = UpdateNodes(tuple(order))
        yield from whole(self, command, out, now_ns)

    patch.setattr(SchedulerCore, "_take_items", turned)


def _last_of_a_key(patch: pytest.MonkeyPatch) -> None:
    """Of several asks of one key in a message the core takes the last one only."""
    whole = SchedulerCore._take_items

    def merged(self: SchedulerCore, command: Any, out: Outcome, now_ns: int) -> Steps:
        if isinstance(command, UpdateAllocations):
            last = {(item.partition, item.app_id, item.key): item for item in command.asks}
            command = replace(command, asks=list(last.values()))
        yield from whole(self, command, out, now_ns)

    patch.setattr(SchedulerCore, "_take_items", merged)


def _owners_at_the_start(patch: pytest.MonkeyPatch) -> None:
    """What a release by UUID or key alone means is found before the message's first release."""
    init, named = UnqualifiedReleases.__init__, UnqualifiedReleases.named

    def begun(self: Any, releases: Any, partitions: Any) -> None:
        init(self, releases, partitions)
        self.found = {item: named(self, item) for item in releases}

    def as_begun(self: Any, item: ReleaseItem) -> Any:
        return self.found[item]

    patch.setattr(UnqualifiedReleases, "__init__", begun)
    patch.setattr(UnqualifiedReleases, "named", as_begun)


def _generation_of_the_message(patch: pytest.MonkeyPatch) -> None:
    """All of a message is read in the generation that one of its items shows."""
    whole = generation.generation_evidence

    def at_the_start(command: Any) -> generation.GenerationEvidence | None:
        seen = whole(command)
        return None if seen is None else seen._replace(at=0)

    patch.setattr(generation, "generation_evidence", at_the_start)


def _asks_show_first(patch: pytest.MonkeyPatch) -> None:
    """Asks are looked at for the generation before the releases, which are taken before them."""
    whole = generation.generation_evidence

    def asks_first(command: Any) -> generation.GenerationEvidence | None:
        if isinstance(command, UpdateAllocations) and command.releases:
            seen = whole(UpdateAllocations(command.asks))
            if seen is not None:
                return seen._replace(at=seen.at + len(command.releases))
        return whole(command)

    patch.setattr(generation, "generation_evidence", asks_first)


def _words_of_the_end(patch: pytest.MonkeyPatch) -> None:
    """What was caused before the generation was shown is told in the words of after it."""
    patch.setattr(SchedulerMachine, "_emit_pending", lambda self, *_: iter(()))


def _followed_up_once(patch: pytest.MonkeyPatch) -> None:
    """What a message means for other managers' offers is looked at when all of it was taken."""
    take, after = SchedulerCore._take_items, SchedulerCore._follow_up

    def once(self: SchedulerCore, command: Any, out: Outcome, now_ns: int) -> Steps:
        with patch.context() as inner:
            inner.setattr(SchedulerCore, "_follow_up", lambda *_: ())
            yield from take(self, command, out, now_ns)
        yield from after(self, out, now_ns)

    patch.setattr(SchedulerCore, "_take_items", once)


BREAKS: dict[str, Break] = {
    "doubles of nodes": _doubles_of_nodes,
    "releases last": _releases_last,
    "removals first": _removals_first,
    "creations first": _creations_first,
    "last of a key": _last_of_a_key,
    "owners at the start": _owners_at_the_start,
    "generation of the message": _generation_of_the_message,
    "asks show first": _asks_show_first,
    "words of the end": _words_of_the_end,
    "followed up once": _followed_up_once,
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_decision_about_several_items_together_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS[name](monkeypatch)
    for seed in SEEDS:
        try:
            SplitLife(seed).live()
        except Mismatch:
            return
    pytest.fail(f"{len(SEEDS)} lives with {name!r} broken, and no life noticed it")
