"""The auditor of gangs notices: the core is broken on purpose, one thing at a time, and within a few lives it says so.

Not an assertion of the core, nor its invariants, which are not looked at here: the core must have no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from muster_core.allocation import items
from muster_core.allocation.announcements import Announcements
from muster_core.allocation.books import Books
from muster_core.allocation.releases import Releases
from muster_core.applications import admission
from muster_core.applications.lifecycle import Lifecycle
from muster_core.gangs import gangs
from muster_core.gangs.gangs import Gangs
from muster_core.gangs.room import GangRoom
from muster_core.model import application
from muster_core.model.application import Allocation, Application, Ask, AskGroup, Gang
from muster_core.model.commands import Termination
from muster_core.model.outcome import Detail, Outcome
from muster_core.model.placeholders import FreePlaceholders
from muster_core.model.queue import Queue
from muster_core.model.resources import Shape
from muster_core.model.states import APP_TERMINAL, AppState
from muster_core.model.steps import Steps
from muster_core.queues.queue_tree import QueueTree
from muster_core.scheduler import SchedulerCore
from simulation.life import Life
from simulation.manager import ENDED, GANGS
from simulation.noticing import must_be_noticed

SEEDS = range(40)
STEPS = 150

Break = Callable[[pytest.MonkeyPatch], None]


def _counted_twice(patch: pytest.MonkeyPatch) -> None:
    """The real allocation is counted while the placeholder still is: it comes when that is told to go."""
    whole = Gangs._replace

    def at_once(self: Gangs, placeholder: Allocation, ask: Ask, gang: Gang, out: Outcome, now_ns: int) -> None:
        whole(self, placeholder, ask, gang, out, now_ns)
        node = self._state.nodes[placeholder.node_id]
        if ask.pending and node.schedulable:
            self._placing.allocate(ask, ask.group, node, out, now_ns, replaces=placeholder)

    patch.setattr(Gangs, "_replace", at_once)


def _not_confirmed(patch: pytest.MonkeyPatch) -> None:
    """The placeholder goes when it is told to, and not when the RM confirms."""
    whole = Gangs._replace

    def gone(self: Gangs, placeholder: Allocation, ask: Ask, gang: Gang, out: Outcome, now_ns: int) -> None:
        whole(self, placeholder, ask, gang, out, now_ns)
        termination, detail = Termination.PLACEHOLDER_REPLACED, Detail.ALLOC_REPLACED
        self._releases.release(placeholder, termination, "", detail, out, now_ns, tell=False, completing=False)
        self.swap(placeholder, out, now_ns)

    patch.setattr(Gangs, "_replace", gone)


def _not_swapped(patch: pytest.MonkeyPatch) -> None:
    """The placeholder is confirmed gone, and the ask that it made room for waits on."""
    patch.setattr(Gangs, "swap", lambda self, placeholder, out, now_ns, elsewhere=True: None)


def _counts_kept(patch: pytest.MonkeyPatch) -> None:
    """A placeholder that is replaced stays in what the queue and its user have."""
    whole = Books.unhold

    def without_ledgers(self: Books, allocation: Allocation) -> None:
        whole(self, allocation)
        app = allocation.app
        if app is not None and allocation.replaced_by is not None:
            for number, value in allocation.shape.items:
                for ledger in app.ledgers:
                    ledger.allocated[number] += value

    patch.setattr(Books, "unhold", without_ledgers)


def _start_without_room(patch: pytest.MonkeyPatch) -> None:
    """A gang starts when its first placeholder fits."""
    patch.setattr(GangRoom, "lacking_room", lambda self, app: None)


def _promises_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A gang starts whatever was promised to others."""
    patch.setattr(Gangs, "_set_promise", lambda self, gang, wanted: setattr(gang, "promised", wanted))


def _promises_kept(patch: pytest.MonkeyPatch) -> None:
    """What a gang was promised stays promised when it is over."""
    patch.setattr(Gangs, "withdraw", lambda self, app: None)


def _ended_expected(patch: pytest.MonkeyPatch) -> None:
    """A gang expects all that it announced, also placeholders that ended."""
    whole = Gangs._count

    def but_ended(self: Gangs, gang: Gang, amounts: dict[int, int], *given: Any) -> None:
        if amounts is not gang.ended:
            whole(self, gang, amounts, *given)

    patch.setattr(Gangs, "_count", but_ended)


def _promised_while_completing(patch: pytest.MonkeyPatch) -> None:
    """A gang keeps its promise while its application is Completing."""
    patch.setattr(application, "APP_ENDING", APP_TERMINAL)


def _real_before_formed(patch: pytest.MonkeyPatch) -> None:
    """Real asks do not wait for their gang."""
    patch.setattr(Gang, "holds", lambda self, group: group in self.stuck)


def _real_beside_placeholders(patch: pytest.MonkeyPatch) -> None:
    """Real asks go the normal way, whatever placeholders are there."""
    patch.setattr(Gangs, "give_way", lambda self, ask, group, out, now_ns: False)


def _too_large(patch: pytest.MonkeyPatch) -> None:
    """A real ask takes the place of a smaller placeholder."""
    patch.setattr(gangs, "covers", lambda placeholder, real: True)


def _order(patch: pytest.MonkeyPatch) -> None:
    """The youngest placeholder gives way first."""
    whole = FreePlaceholders.covering

    def youngest_first(self: FreePlaceholders, shape: Shape) -> Iterator[Allocation]:
        return reversed(list(whole(self, shape)))

    patch.setattr(FreePlaceholders, "covering", youngest_first)


def _deadline_lost(patch: pytest.MonkeyPatch) -> None:
    """The placeholders' clock is not on the scheduler's."""
    whole = Gangs.placed

    def without_deadline(self: Gangs, placeholder: Allocation, out: Outcome, now_ns: int) -> None:
        whole(self, placeholder, out, now_ns)
        self._state.deadlines = [each for each in self._state.deadlines if each[1] is not placeholder.app]

    patch.setattr(Gangs, "placed", without_deadline)


def _hard_is_soft(patch: pytest.MonkeyPatch) -> None:
    """Every gang goes on as an ordinary application."""
    patch.setattr(Gang, "is_hard", property(lambda self: False))


def _reminder_lost(patch: pytest.MonkeyPatch) -> None:
    """What is not confirmed is not told again."""
    patch.setattr(Releases, "remind", lambda self, allocation, out, now_ns: None)


def _leftovers(patch: pytest.MonkeyPatch) -> None:
    """Unused placeholders of a completing application stay."""
    whole = Lifecycle.expire

    def without_placeholders(self: Lifecycle, app: Application, out: Outcome, now_ns: int) -> Steps:
        if app.state is not AppState.COMPLETING or app.gang is None or not app.gang.held:
            yield from whole(self, app, out, now_ns)

    patch.setattr(Lifecycle, "expire", without_placeholders)


def _miscounted(patch: pytest.MonkeyPatch) -> None:
    """A placeholder that is lost with its node counts as replaced."""
    whole = Gangs.count_gone

    def never_lost(self: Gangs, placeholder: Allocation, detail: Detail) -> None:
        whole(self, placeholder, Detail.ALLOC_REPLACED)

    patch.setattr(Gangs, "count_gone", never_lost)


def _heir_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """An ask that was sent again, larger, takes the place that was made for the smaller one."""
    patch.setattr(Gangs, "keep_heir", lambda self, ask, out: None)
    patch.setattr(gangs, "_suits", lambda ask, placeholder: True)


def _node_not_kept(patch: pytest.MonkeyPatch) -> None:
    """The node to which a real ask will go is not kept for it."""
    whole = Gangs.give_way

    def without_node(self: Gangs, ask: Ask, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        reservations = self._reservations
        reserve = reservations.reserve
        reservations.reserve = lambda *_: None  # type: ignore[method-assign]
        try:
            return whole(self, ask, group, out, now_ns)
        finally:
            reservations.reserve = reserve  # type: ignore[method-assign]

    patch.setattr(Gangs, "give_way", without_node)


def _stuck_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Who could take a placeholder's place, and fitted nowhere, does not look again."""
    whole = Gangs._review

    def forgetful(self: Gangs, gang: Gang, names: dict[str, None] | None, out: Outcome) -> None:
        stuck = {group.task_group for group in gang.stuck}
        known = gang.reals if names is None else names
        whole(self, gang, dict.fromkeys(name for name in known if name not in stuck), out)

    patch.setattr(Gangs, "_review", forgetful)


def _gang_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A gang that waits for room as a whole is not woken."""
    patch.setattr("muster_core.allocation.waiting.Waiting._wake_gangs", lambda self, ledger: None)


def _admitted(patch: pytest.MonkeyPatch) -> None:
    """A gang that can never fit is let in."""
    patch.setattr(admission, "gang_refused", lambda *_: "")


def _gang_torn(patch: pytest.MonkeyPatch) -> None:
    """Single members are preempted, where a gang goes as a whole."""
    whole = QueueTree.set_properties

    def without_gangs(self: QueueTree, queue: Queue, texts: dict[str, str]) -> None:
        whole(self, queue, texts)
        queue.policy = replace(queue.policy, gangs_preempted_whole=False)

    patch.setattr(QueueTree, "set_properties", without_gangs)


def _flag_lost(patch: pytest.MonkeyPatch) -> None:
    """What the RM reports is no placeholder."""
    whole = items.allocation_of

    def real(item: Any, *others: Any) -> Allocation:
        return whole(replace(item, placeholder=False), *others)

    patch.setattr(items, "allocation_of", real)


def _record_lost(patch: pytest.MonkeyPatch) -> None:
    """For which ask a placeholder leaves is not in its record."""
    whole = Gangs._replace

    def untouched(self: Gangs, placeholder: Allocation, ask: Ask, gang: Gang, out: Outcome, now_ns: int) -> None:
        touch = Outcome.touch
        try:
            Outcome.touch = lambda self, changed, partition: (  # type: ignore[method-assign]
                None if changed is placeholder else touch(self, changed, partition)
            )
            whole(self, placeholder, ask, gang, out, now_ns)
        finally:
            Outcome.touch = touch  # type: ignore[method-assign]

    patch.setattr(Gangs, "_replace", untouched)


def _phase_stays(patch: pytest.MonkeyPatch) -> None:
    """A real allocation leaves its gang as it was."""
    patch.setattr(Gangs, "real_placed", lambda self, app, out: None)


def _told_twice(patch: pytest.MonkeyPatch) -> None:
    """The real allocation is told twice."""
    whole = Announcements.tell_new

    def twice(self: Announcements, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        whole(self, allocation, out, now_ns)
        if allocation.replaces is not None:
            whole(self, allocation, out, now_ns)

    patch.setattr(Announcements, "tell_new", twice)


# What is broken, how, and which checks may be the ones that notice.
def _placeholders_change_silently(patch: pytest.MonkeyPatch) -> None:
    """A placeholder's ask that wants another amount is in no event."""
    whole = Announcements.wants

    def of_real_asks(self: Announcements, before: Ask | None, after: Ask | None, *given: Any) -> None:
        if before is None or not before.placeholder:
            whole(self, before, after, *given)

    patch.setattr(Announcements, "wants", of_real_asks)


def _ended_with_asks(patch: pytest.MonkeyPatch) -> None:
    """An application that an operator ends keeps its asks."""
    whole = Lifecycle.fail

    def without_asks(self: Lifecycle, app: Application, message: str, out: Outcome, now_ns: int) -> Steps:
        kept = dict(app.asks) if message.startswith(ENDED) else {}
        for key in kept:
            del app.asks[key]
        yield from whole(self, app, message, out, now_ns)
        app.asks.update(kept)

    patch.setattr(Lifecycle, "fail", without_asks)


def _registration_says_nothing(patch: pytest.MonkeyPatch) -> None:
    """What an RM had that registers again ends in no event."""
    patch.setattr(SchedulerCore, "end", lambda self, now_ns, out=None: Outcome())


def _registration_forgets_asks(patch: pytest.MonkeyPatch) -> None:
    """Of what an RM had that registers again, no event ends what was pending."""
    end = SchedulerCore.end

    def without_asks(self: SchedulerCore, now_ns: int, out: Outcome | None = None) -> Outcome:
        found = end(self, now_ns, out)
        found.events[:] = [each for each in found.events if each.detail is not Detail.REQUEST_CANCEL]
        return found

    patch.setattr(SchedulerCore, "end", without_asks)


BROKEN: dict[str, tuple[Break, set[str]]] = {
    "counted twice": (_counted_twice, {"swap", "counters"}),
    "not confirmed": (_not_confirmed, {"swap", "counters", "replacement"}),
    "not swapped": (_not_swapped, {"swap"}),
    "counts kept": (_counts_kept, {"counters"}),
    "start without room": (_start_without_room, {"gang room"}),
    "promises forgotten": (_promises_forgotten, {"gang room", "promised"}),
    "promises kept": (_promises_kept, {"promised"}),
    "ended expected": (_ended_expected, {"promised", "left pending"}),
    "promised while completing": (_promised_while_completing, {"promised"}),
    "real before formed": (_real_before_formed, {"gang forming"}),
    "real beside placeholders": (_real_beside_placeholders, {"placeholder first", "left pending"}),
    "too large": (_too_large, {"replacement", "swap", "left pending"}),
    "order": (_order, {"placeholder order"}),
    "deadline lost": (_deadline_lost, {"time-out"}),
    "hard is soft": (_hard_is_soft, {"state"}),
    "reminder lost": (_reminder_lost, {"reminder"}),
    "leftovers": (_leftovers, {"deadline"}),
    "miscounted": (_miscounted, {"counters"}),
    "heir not looked at": (_heir_not_looked_at, {"swap", "left pending"}),
    "node not kept": (_node_not_kept, {"replacement"}),
    "stuck for ever": (_stuck_for_ever, {"left pending"}),
    "gang forgotten": (_gang_forgotten, {"left pending"}),
    "admitted": (_admitted, {"answer", "admission"}),
    "gang torn": (_gang_torn, {"whole gang"}),
    "flag lost": (_flag_lost, {"flags"}),
    "record lost": (_record_lost, {"record"}),
    "phase stays": (_phase_stays, {"counters"}),
    "placeholders change silently": (_placeholders_change_silently, {"history"}),
    "ended with asks": (_ended_with_asks, {"answer"}),
    "registration says nothing": (_registration_says_nothing, {"history"}),
    "registration forgets asks": (_registration_forgets_asks, {"history"}),
    "told twice": (_told_twice, {"allocation", "twice", "swap", "event sum"}),
}
# Lives in which it comes up at once; then all others are tried.
HINTS = {
    "stuck for ever": [56, 87],
    "heir not looked at": [44],
    "too large": [403],
    "gang torn": [26],
    "node not kept": [31],
    "promises kept": [14],
    "flag lost": [11],
    "miscounted": [73],
    "ended with asks": [22, 54, 86, 118],
}


@pytest.mark.parametrize("what", list(BROKEN))
def test_the_auditor_notices_gangs_with_broken(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, checks = BROKEN[what]
    breaks(monkeypatch)
    seeds = [*HINTS.get(what, ()), *SEEDS]
    must_be_noticed(what, checks, seeds, STEPS, lambda seed: Life(seed, {GANGS}, check_core=False))
