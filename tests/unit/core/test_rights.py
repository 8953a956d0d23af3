"""Long waitlists: one search for victims answers for all groups that are alike, and a turn costs what has changed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from muster_core import invariants
from muster_core.allocation import escalation
from muster_core.allocation.preemptors import RETRY_NS, Preemptors
from muster_core.model.application import Ask, AskGroup
from muster_core.model.commands import UpdateAllocations
from muster_core.model.outcome import Outcome, ReleasedAllocation
from muster_core.model.reasons import NoPreemptionReason
from muster_core.preemption import victim_search
from muster_core.preemption.plan import Plan
from muster_core.preemption.search_context import SearchContext
from preempting import Arena, item

GROUPS = 200
LEAF = "{name: root, submitacl: '*', queues: [{name: leaf}]}"


@contextmanager
def searched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The keys of the asks for which victims are searched."""
    keys: list[str] = []
    search = victim_search.search

    def noted(cluster: SearchContext, ask: Ask, now_ns: int) -> Plan | NoPreemptionReason:
        keys.append(ask.key)
        return search(cluster, ask, now_ns)

    with monkeypatch.context() as patched:
        patched.setattr(escalation.victim_search, "search", noted)
        yield keys


def crowd(*, priorities: tuple[int, ...] = (0,), held: int = 1, node: int = 2 * GROUPS) -> Arena:
    """A node, and many applications in one leaf: each holds a little, and asks for more than any node has."""
    arena = Arena(LEAF)
    arena.node("n", memory=node)
    for number in range(GROUPS):
        arena.app(f"a{number}", "root.leaf")
        arena.want(f"a{number}", "held", memory=held)
        arena.want(f"a{number}", f"large-{number}", memory=10 * node, priority=priorities[number % len(priorities)])
    return arena


def change(arena: Arena) -> None:
    """Something that changes no answer: an allocation comes and goes."""
    arena.want("a0", "short", memory=1)
    arena.release("a0", "short")


def told(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(fact.app_id, fact.key) for out in outcomes for fact in out.facts if isinstance(fact, ReleasedAllocation)]


@pytest.mark.source
def test_one_search_answers_for_a_whole_list(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = crowd()
    arena.wait(31)
    with searched(monkeypatch) as keys:
        for turns in range(1, 6):
            change(arena)
            arena.wait(15)
            assert len(keys) <= 2 * turns, "a search for each group"
    assert keys
    assert arena.core.exhausted
    invariants.check(arena.core, exhausted=True)


@pytest.mark.source
def test_one_search_for_each_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = crowd(priorities=(0, 1, 2))
    arena.wait(31)
    change(arena)
    with searched(monkeypatch) as keys:
        arena.wait(15)
    # (Some applications hold priority 0, so groups of priorities 1 and 2 may not take from their own: all are single.)
    assert 0 < len(keys) <= GROUPS
    arena = crowd(priorities=(0, -1, -2))
    arena.wait(31)
    change(arena)
    with searched(monkeypatch) as keys:
        arena.wait(15)
    assert 0 < len(keys) <= 2 * 3


@pytest.mark.source
def test_a_new_ask_is_searched_for_and_those_with_an_answer_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ask has another priority. (Each turn searched for all that waited before.)"""
    turns, arena = 20, Arena(LEAF)
    arena.node("n", memory=10)
    arena.app("a", "root.leaf")
    with searched(monkeypatch) as keys:
        for turn in range(turns):
            arena.want("a", f"large-{turn}", memory=100, priority=turn)
            arena.wait(31)
    assert set(keys) == {f"large-{turn}" for turn in range(turns)}
    assert len(keys) <= 2 * turns


@pytest.mark.source
def test_after_a_change_each_answer_is_searched_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(LEAF)
    arena.node("n", memory=10)
    for number in range(3):
        arena.app(f"a{number}", "root.leaf")
        arena.want(f"a{number}", f"large-{number}", memory=100, priority=number)
    arena.wait(31)
    for _ in range(3):
        change(arena)
        with searched(monkeypatch) as keys:
            arena.wait(16)
        assert set(keys) == {"large-0", "large-1", "large-2"}


def test_a_reason_names_the_answer_for_the_last_of_the_list() -> None:
    arena = crowd(priorities=(0, -1))
    arena.wait(31)
    assert str(arena.reason("a0", "large-0")) == str(arena.reason("a1", "large-1"))
    waitlist = next(iter(arena.queue("root.leaf").waitlists.values()))
    assert waitlist.reason is not None
    assert waitlist.reason.preemption is NoPreemptionReason.NO_GUARANTEE


def test_a_group_finds_victims_behind_many_that_find_none() -> None:
    """Groups of the lowest priority wait; one ask of a higher priority comes, and its application holds a lower one."""
    arena = Arena(LEAF)
    arena.node("n1", memory=GROUPS // 2)  # (the first ask that waits reserves one of them)
    arena.node("n2", memory=GROUPS // 2)
    for number in range(GROUPS):
        arena.app(f"a{number}", "root.leaf")
        arena.want(f"a{number}", "held", memory=1)
    arena.do(UpdateAllocations([item(f"a{number}", f"more-{number}", memory=1) for number in range(GROUPS)]))
    arena.wait(60)
    assert told(arena.outcomes) == []
    arena.want("a7", "urgent", memory=1, priority=1)
    for _ in range(29):
        arena.wait(1)
    assert told(arena.outcomes) == []
    arena.wait(1)
    ((app_id, key),) = told(arena.outcomes)
    assert (app_id != "a7", key) == (True, "held")
    invariants.check(arena.core)


def test_an_application_that_holds_a_lower_priority_does_not_take_its_own() -> None:
    arena = Arena(LEAF)
    arena.node("n1", memory=2)
    arena.node("n2", memory=2)
    arena.app("a", "root.leaf")
    arena.app("b", "root.leaf")
    arena.want("a", "low", wanted=2, memory=2)
    arena.want("a", "high", memory=2, priority=1)
    for _ in range(40):
        arena.wait(1)
    assert told(arena.outcomes) == []
    arena.want("b", "high", memory=2, priority=1)
    for _ in range(40):
        arena.wait(1)
    assert [app_id for app_id, _ in told(arena.outcomes)] == ["a"]
    invariants.check(arena.core)


# ---- when groups may preempt ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_times_are_those_of_naive_sums(seed: int) -> None:
    dice = random.Random(f"rights-{seed}")
    arena = Arena(LEAF)
    arena.node("n", memory=1)
    groups: list[AskGroup] = []
    for number in range(30):
        arena.wait(dice.choice([0, 1, 7, 15, 16.5, 40]))
        arena.app(f"a{number}", "root.leaf")
        arena.want(f"a{number}", "ask", memory=5, priority=dice.randrange(3))
        groups += arena.application(f"a{number}").groups.values()
    rights = Preemptors(every_own=False)
    on_list: list[AskGroup] = []
    for _ in range(200):
        group = dice.choice(groups)
        if group in on_list:
            on_list.remove(group)
            rights.remove(group)
        else:
            on_list.append(group)
            rights.add(group)
        after_ns = arena.now_ns - dice.randrange(400) * 1_000_000_000 + dice.choice([-1, 0, 1])
        created = sorted(head.created_ns for each in on_list if (head := each.head()) is not None)
        assert rights.first_ns() == min(created, default=None)
        assert rights.next_after(after_ns) == min((each for each in created if each > after_ns), default=None)
        turns = [each if each > after_ns else each + ((after_ns - each) // RETRY_NS + 1) * RETRY_NS for each in created]
        assert rights.next_turn(after_ns) == min(turns, default=None)
        assert rights.invariant_violation(on_list) == ""
