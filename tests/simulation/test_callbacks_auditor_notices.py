"""The auditor of callbacks notices: the core is broken on purpose, one thing at a time, and in a few lives it says so.

Not an assertion of the core, nor its invariants, which are not looked at here: the core must have no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from muster_core.allocation.exclusivity import ScopeExclusivity
from muster_core.allocation.scheduling_queue import SchedulingQueue
from muster_core.gangs.gangs import Gangs
from muster_core.model.application import Allocation, Ask, AskGroup
from muster_core.model.node import Node
from muster_core.model.outcome import Outcome
from muster_core.model.predicate_checks import CheckKind, PredicateCheck, RefusalExpiry
from muster_core.model.queue import Ledger
from muster_core.model.scopes import CallbackPolicy
from muster_core.nodes.node_index import NodeIndex
from muster_core.predicates.predicate_calls import PredicateCalls
from simulation.life import Life
from simulation.manager import CALLBACKS
from simulation.noticing import must_be_noticed

SEEDS = range(60)
STEPS = 70

Break = Callable[[pytest.MonkeyPatch], None]


def _a_no_is_a_yes(patch: pytest.MonkeyPatch) -> None:
    """Whatever the RM says, it is placed."""
    whole = PredicateCalls.apply_answer

    def yes(
        self: PredicateCalls, question: int, fits: bool, *said: Any, index: int = -1, unanswered: bool = False
    ) -> None:
        whole(self, question, fits or not unanswered, *said, index=index, unanswered=unanswered)

    patch.setattr(PredicateCalls, "apply_answer", yes)


def _silence_is_a_yes(patch: pytest.MonkeyPatch) -> None:
    """No answer in time lets it be placed."""
    whole = PredicateCalls.apply_answer

    def yes(
        self: PredicateCalls, question: int, fits: bool, *said: Any, index: int = -1, unanswered: bool = False
    ) -> None:
        whole(self, question, fits or unanswered, *said, index=index)

    patch.setattr(PredicateCalls, "apply_answer", yes)


def _not_counted_in_limits(patch: pytest.MonkeyPatch) -> None:
    """What is proposed does not count in its queues."""
    whole = PredicateCalls._book

    def on_node_only(self: PredicateCalls, check: PredicateCheck, sign: int) -> None:
        whole(self, check, sign)
        for ledger in check.ask.app.ledgers:
            for number, value in check.ask.shape.items:
                ledger.allocated[number] -= sign * value

    patch.setattr(PredicateCalls, "_book", on_node_only)


def _nobody_is_woken(patch: pytest.MonkeyPatch) -> None:
    """What is given back after a no wakes nobody who waits for room."""
    whole = PredicateCalls._give_back

    def quietly(self: PredicateCalls, check: PredicateCheck) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SchedulingQueue, "on_node_gained", lambda self, node: None)
            whole(self, check)

    patch.setattr(PredicateCalls, "_give_back", quietly)


def _limits_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    """What is given back after a no wakes nobody who waits at a limit."""
    whole = PredicateCalls._give_back

    def quietly(self: PredicateCalls, check: PredicateCheck) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SchedulingQueue, "on_limit_gained", lambda self, app: None)
            whole(self, check)

    patch.setattr(PredicateCalls, "_give_back", quietly)


def _refused_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Refusals are not forgotten when the pause is over."""
    patch.setattr(
        PredicateCalls,
        "on_retry_deadline",
        lambda self, retry, due_ns, out, now_ns: setattr(retry.refusals, "armed_ns", 0),
    )


def _ends_move_nobody(patch: pytest.MonkeyPatch) -> None:
    """An allocation on the refused node ended, and the refusal holds until the pause is over."""
    patch.setattr(
        PredicateCalls, "retry_changed", lambda self, out, now_ns: self._changed_nodes.clear() or self._outdated.clear()
    )


def _forgotten_and_not_tried(patch: pytest.MonkeyPatch) -> None:
    """Refusals are forgotten, and nobody looks again."""

    def forget_only(self: PredicateCalls, retry: RefusalExpiry, due_ns: int, out: Outcome, now_ns: int) -> None:
        ask, refusals = retry.ask, retry.refusals
        refusals.until_ns = refusals.armed_ns = 0
        self._forget(ask, list(refusals.nodes))
        out.mark_changed(ask, self._state.name)

    patch.setattr(PredicateCalls, "on_retry_deadline", forget_only)


def _asked_at_once_again(patch: pytest.MonkeyPatch) -> None:
    """A refused node is looked at as any other."""
    whole = NodeIndex.fitting
    patch.setattr(NodeIndex, "fitting", lambda self, items, but, count: whole(self, items, (), count))


def _the_same_numbers(patch: pytest.MonkeyPatch) -> None:
    """After a restart the numbers of questions begin anew."""
    whole = PredicateCalls.activate

    def small(self: PredicateCalls) -> None:
        whole(self)
        numbers = iter(range(1, 1 << 30))
        self.number = lambda: next(numbers)

    patch.setattr(PredicateCalls, "activate", small)


def _asked_for_ever(patch: pytest.MonkeyPatch) -> None:
    """The grace after the stream was lost has no end."""
    whole = PredicateCalls.set_policy

    def patient(self: PredicateCalls, policy: CallbackPolicy, out: Outcome, now_ns: int) -> None:
        whole(self, replace(policy, grace_ns=1 << 62), out, now_ns)

    patch.setattr(PredicateCalls, "set_policy", patient)


def _preempts_unasked(patch: pytest.MonkeyPatch) -> None:
    """Nobody is asked before a preemption."""
    patch.setattr(
        PredicateCalls, "check_preemption", lambda self, ask, node, victims, further, out, now_ns: frozenset()
    )


def _preempts_too_many(patch: pytest.MonkeyPatch) -> None:
    """All who may go do, however few the RM wants gone."""
    whole = PredicateCalls.apply_answer

    def all_of_them(self: PredicateCalls, question: int, *said: Any, **named: Any) -> None:
        check = self.open.get(question)
        last = len(check.victims) - 1 if check is not None else -1
        whole(self, question, *said, **{**named, "index": last})

    patch.setattr(PredicateCalls, "apply_answer", all_of_them)


def _replaces_unasked(patch: pytest.MonkeyPatch) -> None:
    """A placeholder makes room at once."""

    def at_once(
        self: PredicateCalls,
        ask: Ask,
        group: AskGroup,
        placeholder: Allocation,
        node: Node,
        out: Outcome,
        now_ns: int,
    ) -> None:
        self._gangs.start_replacement(placeholder, ask, node, out, now_ns)

    patch.setattr(PredicateCalls, "propose_replacement", at_once)


def _courted_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A placeholder whose ask was refused stays courted."""
    patch.setattr(Gangs, "unmark_candidate", lambda self, placeholder: None)


def _kept_refusals_of_dead_nodes(patch: pytest.MonkeyPatch) -> None:
    """A node that is gone stays refused."""
    whole = PredicateCalls.on_node_removed

    def keep(self: PredicateCalls, node: Node, out: Outcome, now_ns: int) -> None:
        kept = dict(node.refused_by)
        node.refused_by.clear()
        whole(self, node, out, now_ns)
        node.refused_by.update(kept)

    patch.setattr(PredicateCalls, "on_node_removed", keep)


def _not_recorded(patch: pytest.MonkeyPatch) -> None:
    """That the RM is asked no more is not recorded."""
    whole = PredicateCalls._close

    def silently(self: PredicateCalls, check: PredicateCheck, out: Outcome | None) -> None:
        whole(self, check, Outcome() if out is not None else None)

    patch.setattr(PredicateCalls, "_close", silently)


def _told_unasked(patch: pytest.MonkeyPatch) -> None:
    """Scheduling states are told to everybody."""
    whole = PredicateCalls.set_policy

    def wanting(self: PredicateCalls, policy: CallbackPolicy, out: Outcome, now_ns: int) -> None:
        whole(self, policy, out, now_ns)
        self.states = True

    patch.setattr(PredicateCalls, "set_policy", wanting)


def _more_than_wanted(patch: pytest.MonkeyPatch) -> None:
    """An ask that is asked about is tried on."""
    whole = PredicateCheck.__init__

    def tried_on(self: PredicateCheck, kind: CheckKind, *rest: Any) -> None:
        whole(self, kind, *rest)
        self.holds_out = kind is CheckKind.REPLACE

    patch.setattr(PredicateCheck, "__init__", tried_on)


def _full_all_the_same(patch: pytest.MonkeyPatch) -> None:
    """Queues and users run as many applications as come."""
    patch.setattr(Ledger, "is_full", property(lambda self: False))


def _turns_never_end(patch: pytest.MonkeyPatch) -> None:
    """Who stands in line where a scope is free again is not let go."""
    patch.setattr(ScopeExclusivity, "_let_go", lambda self, turn: False)
    patch.setattr(ScopeExclusivity, "_free", lambda self, node: setattr(node, "taken", False))


def _nobody_in_line_is_called(patch: pytest.MonkeyPatch) -> None:
    """A refused ask stands in line, and never leaves it."""
    patch.setattr(ScopeExclusivity, "_next_of", lambda self, later: None)


BREAKS: dict[Break, Collection[str]] = {
    _a_no_is_a_yes: {"allocation"},  # rare
    _silence_is_a_yes: {"allocation"},  # rare
    _not_counted_in_limits: {"limit"},  # several places
    _nobody_is_woken: {"left pending"},  # several places
    _limits_wake_nobody: {"left pending"},  # several places
    _refused_for_ever: {"leak", "settled"},  # rare
    _ends_move_nobody: {"ended"},  # rare
    _forgotten_and_not_tried: {"left pending"},  # several places
    _asked_at_once_again: {"asked again"},  # rare
    _the_same_numbers: {"question"},  # outside
    _asked_for_ever: {"question"},  # outside
    _preempts_unasked: {"preemption"},  # rare
    _preempts_too_many: {"preemption"},  # several places
    _replaces_unasked: {"replacement"},  # rare
    _courted_for_ever: {"leak"},  # rare
    _kept_refusals_of_dead_nodes: {"leak"},  # several places
    _not_recorded: {"record"},  # several places
    _told_unasked: {"state"},  # outside
    _more_than_wanted: {"twice", "leak"},  # rare
    _full_all_the_same: {"max applications"},  # rare
    _turns_never_end: {"left pending"},  # rare
    _nobody_in_line_is_called: {"left pending"},  # rare
}
# Lives in which what comes up seldom comes up; then all others are tried.
HINTS: dict[Break, list[int]] = {
    _forgotten_and_not_tried: [21],
    _kept_refusals_of_dead_nodes: [12],
    _more_than_wanted: [37],
    _preempts_too_many: [19],
    _full_all_the_same: [15],
    _preempts_unasked: [8],
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda each: each.__name__.strip("_"))
def test_the_auditor_notices(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    seeds = [*HINTS.get(broken, ()), *SEEDS]
    life = partial(Life, features={CALLBACKS}, check_core=False)
    must_be_noticed(broken.__doc__ or "", BREAKS[broken], seeds, STEPS, life)
