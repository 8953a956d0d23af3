"""The auditor of gangs notices: the core is broken on purpose, one thing at a time, and within a few lives it says so.

Not an assertion of the core, nor its invariants, which are not looked at here: the core must have no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from muster_core.allocation import item_conversion
from muster_core.gangs.gang_headroom import GangHeadroom
from muster_core.gangs.gangs import Gangs
from muster_core.model import application
from muster_core.model.application import Allocation, Ask, AskGroup, Gang
from muster_core.model.free_placeholders import FreePlaceholders
from muster_core.model.outcome import Outcome
from muster_core.model.queue import Queue
from muster_core.model.resources import Shape
from muster_core.model.states import APP_TERMINAL
from muster_core.queues.queue_tree import QueueTree
from muster_core.scheduler import SchedulerCore
from simulation.life import Life
from simulation.manager import GANGS
from simulation.noticing import must_be_noticed

SEEDS = range(40)
STEPS = 150

Break = Callable[[pytest.MonkeyPatch], None]


def _start_without_room(patch: pytest.MonkeyPatch) -> None:
    """A gang starts when its first placeholder fits."""
    patch.setattr(GangHeadroom, "blocking_limit", lambda self, app: None)


def _promised_while_completing(patch: pytest.MonkeyPatch) -> None:
    """A gang keeps its promise while its application is Completing."""
    patch.setattr(application, "APP_ENDING", APP_TERMINAL)


def _order(patch: pytest.MonkeyPatch) -> None:
    """The youngest placeholder gives way first."""
    whole = FreePlaceholders.covering

    def youngest_first(self: FreePlaceholders, shape: Shape) -> Iterator[Allocation]:
        return reversed(list(whole(self, shape)))

    patch.setattr(FreePlaceholders, "covering", youngest_first)


def _deadline_lost(patch: pytest.MonkeyPatch) -> None:
    """The placeholders' clock is not on the scheduler's."""
    whole = Gangs.on_placeholder_allocated

    def without_deadline(self: Gangs, placeholder: Allocation, out: Outcome, now_ns: int) -> None:
        whole(self, placeholder, out, now_ns)
        self._state.deadlines = [each for each in self._state.deadlines if each[1] is not placeholder.app]

    patch.setattr(Gangs, "on_placeholder_allocated", without_deadline)


def _node_not_kept(patch: pytest.MonkeyPatch) -> None:
    """The node to which a real ask will go is not kept for it."""
    whole = Gangs.replace_placeholder

    def without_node(self: Gangs, ask: Ask, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        reservations = self._reservations
        reserve = reservations.reserve
        reservations.reserve = lambda *_: None  # type: ignore[method-assign]
        try:
            return whole(self, ask, group, out, now_ns)
        finally:
            reservations.reserve = reserve  # type: ignore[method-assign]

    patch.setattr(Gangs, "replace_placeholder", without_node)


def _gang_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A gang that waits for room as a whole is not woken."""
    patch.setattr("muster_core.allocation.scheduling_queue.SchedulingQueue._wake_gangs", lambda self, ledger: None)


def _gang_torn(patch: pytest.MonkeyPatch) -> None:
    """Single members are preempted, where a gang goes as a whole."""
    whole = QueueTree.set_properties

    def without_gangs(self: QueueTree, queue: Queue, texts: dict[str, str]) -> None:
        whole(self, queue, texts)
        queue.policy = replace(queue.policy, gangs_preempted_whole=False)

    patch.setattr(QueueTree, "set_properties", without_gangs)


def _flag_lost(patch: pytest.MonkeyPatch) -> None:
    """What the RM reports is no placeholder."""
    whole = item_conversion.allocation_of

    def real(item: Any, *others: Any) -> Allocation:
        return whole(replace(item, placeholder=False), *others)

    patch.setattr(item_conversion, "allocation_of", real)


def _record_lost(patch: pytest.MonkeyPatch) -> None:
    """For which ask a placeholder leaves is not in its record."""
    whole = Gangs._replace

    def untouched(self: Gangs, placeholder: Allocation, ask: Ask, gang: Gang, out: Outcome, now_ns: int) -> None:
        touch = Outcome.mark_changed
        try:
            Outcome.mark_changed = lambda self, changed, partition: (  # type: ignore[method-assign]
                None if changed is placeholder else touch(self, changed, partition)
            )
            whole(self, placeholder, ask, gang, out, now_ns)
        finally:
            Outcome.mark_changed = touch  # type: ignore[method-assign]

    patch.setattr(Gangs, "_replace", untouched)


# What is broken, how, and which checks may be the ones that notice.


def _registration_says_nothing(patch: pytest.MonkeyPatch) -> None:
    """What an RM had that registers again ends in no event."""
    patch.setattr(SchedulerCore, "end", lambda self, now_ns, out=None: Outcome())


BROKEN: dict[str, tuple[Break, set[str]]] = {
    "start without room": (_start_without_room, {"gang room"}),  # rare
    "promised while completing": (_promised_while_completing, {"promised"}),  # outside
    "order": (_order, {"placeholder order"}),  # order
    "deadline lost": (_deadline_lost, {"time-out"}),  # rare
    "node not kept": (_node_not_kept, {"replacement"}),  # several places
    "gang forgotten": (_gang_forgotten, {"left pending"}),  # rare
    "gang torn": (_gang_torn, {"whole gang"}),  # outside
    "flag lost": (_flag_lost, {"flags"}),  # outside
    "record lost": (_record_lost, {"record"}),  # several places
    "registration says nothing": (_registration_says_nothing, {"history"}),  # rare
}
# Lives in which it comes up at once; then all others are tried.
HINTS = {
    "gang torn": [26],
    "node not kept": [31],
    "flag lost": [11],
}


@pytest.mark.parametrize("what", list(BROKEN))
def test_the_auditor_notices_gangs_with_broken(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, checks = BROKEN[what]
    breaks(monkeypatch)
    seeds = [*HINTS.get(what, ()), *SEEDS]
    must_be_noticed(what, checks, seeds, STEPS, lambda seed: Life(seed, {GANGS}, check_core=False))
