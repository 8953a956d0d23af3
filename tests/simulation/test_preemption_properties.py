"""The laws of preemption (docs/preemption.md), on random clusters with seeds that reproduce them.

A longer run: ``MUSTER_SIMULATION_SEEDS=20000 pytest tests/simulation/test_preemption_properties.py``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from muster_core import invariants
from muster_core.model.application import Allocation, Ask
from muster_core.model.commands import UpdateAllocations
from muster_core.model.outcome import Outcome
from muster_core.model.queue import Queue
from muster_core.model.reasons import NoPreemptionReason
from muster_core.preemption import cover_search, victim_search
from muster_core.preemption.plan import Plan
from muster_core.preemption.rule import VictimScope
from muster_core.preemption.rules import guarantee, priority
from muster_core.preemption.victims import PendingPreemptions
from preempting import Arena, Laws, item, random_arena

RUNS = max(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "100")), 100)
PER_TEST = 50
BATCHES = pytest.mark.parametrize("first", range(0, RUNS, PER_TEST), ids=lambda first: f"seeds-{first}")


def _waiting(arena: Arena) -> list[Ask]:
    return [ask for app in arena.partition.apps.values() for ask in app.asks.values() if not ask.preempts]


def _check(arena: Arena, ask: Ask, found: Plan | NoPreemptionReason) -> None:
    """A plan keeps the laws; without one, a look at all sets of victims finds no lawful one either."""
    laws = Laws(arena.partition, ask)
    if isinstance(found, NoPreemptionReason):
        lawful = next(laws.lawful_sets(), None)
        assert lawful is None or found is NoPreemptionReason.NOT_NEEDED, f"{ask}: {found}, but {lawful}"
    else:
        laws.check(
            found.node,
            [victim.allocation for victim in found.victims],
            [victim.why.rule for victim in found.victims],
        )


@BATCHES
def test_a_search_finds_a_lawful_set_if_and_only_if_there_is_one(first: int) -> None:
    _search_in_random_clusters(range(first, first + PER_TEST))


def _search_in_random_clusters(seeds: range) -> None:
    for seed in seeds:
        dice = random.Random(seed)
        arena = random_arena(dice, allocations=dice.randint(4, 10))
        if dice.random() < 0.4:
            arena.wait(3)  # some get a node to themselves
        for ask in _waiting(arena):
            found = victim_search.search(arena.partition.cluster, ask, arena.now_ns)
            _check(arena, ask, found)
            # The next ones look at a cluster in which some were told to go and have not gone yet.
            if isinstance(found, Plan) and dice.random() < 0.6:
                arena.partition.long_wait.execute(found, ask, Outcome(), arena.now_ns)
                invariants.check(arena.core)


@BATCHES
def test_where_victims_exist_they_are_chosen_within_the_delay(first: int) -> None:
    """Though nodes are reserved for others meanwhile: each ask that may preempt has its victims, or there are none."""
    assert _wait_for_victims(range(first, first + PER_TEST)), "no ask had victims"


def _wait_for_victims(seeds: range) -> int:
    """Lets the delay pass in random clusters. Returns how many asks had victims."""
    with_victims = 0
    for seed in seeds:
        dice = random.Random(f"delay-{seed}")
        arena = random_arena(dice, allocations=dice.randint(4, 10))
        arena.wait(3)  # some get a node to themselves
        arena.wait(61)  # the longest delay, and the time between two turns
        invariants.check(arena.core)
        for ask in _waiting(arena):
            if ask.demand.allow_preempt_other and not ask.demand.required_node and ask.group is not None:
                found = victim_search.search(arena.partition.cluster, ask, arena.now_ns)
                assert isinstance(found, NoPreemptionReason), (
                    f"seed {seed}: {ask} has no victims, though there are {found}"
                )
                _check(arena, ask, found)
        with_victims += sum(ask.preempts for app in arena.partition.apps.values() for ask in app.asks.values())
    return with_victims


@BATCHES
def test_preempted_resources_are_not_preempted_back(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        dice = random.Random(f"cycle-{seed}")
        arena = random_arena(dice, allocations=dice.randint(4, 10))
        for ask in _waiting(arena):
            found = victim_search.search(arena.partition.cluster, ask, arena.now_ns)
            if isinstance(found, Plan):
                _take_back(arena, ask, found)
                break


def _take_back(arena: Arena, ask: Ask, plan: Plan) -> None:
    assert plan.node is not None
    for other in _waiting(arena):
        if other is not ask:
            arena.release(other.app.app_id, other.key)
    # 1. The victims go, the ask comes, on its node.
    out = Outcome()
    arena.partition.long_wait.execute(plan, ask, out, arena.now_ns)
    arena.confirm(out)
    placed = ask.app.allocations[ask.key]
    assert placed.node_id == plan.node.node_id
    for victim in plan.victims:
        assert victim.allocation.gone
    # 2. All victims are asked for again, and may preempt: some may, but nobody takes from whom they made room for.
    for victim in plan.victims:
        _ask_again(arena, victim.allocation)
    for again in _waiting(arena):
        found = victim_search.search(arena.partition.cluster, again, arena.now_ns)
        _check(arena, again, found)
        if isinstance(found, Plan):
            assert placed not in [victim.allocation for victim in found.victims], f"{again} takes {placed} back"


def _ask_again(arena: Arena, gone: Allocation) -> None:
    quantities = {arena.partition.types.names[number]: value for number, value in gone.shape.items}
    arena.want(gone.app_id, f"{gone.key}-again", priority=gone.priority, **quantities)


# ---- the checks notice -----------------------------------------------------------------------------------------------


def _no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cover_search.GuaranteeGuard, "allows", lambda *_: True)
    monkeypatch.setattr(guarantee, "GuaranteeGuard", lambda queue, spare: cover_search.GuaranteeGuard(queue, {}))


def _no_trim(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(chosen: list[cover_search.VictimUnit], needs: list[int]) -> list[cover_search.VictimUnit]:
        trim(list(chosen), [1 << 60] * len(needs))  # undoes what is on the guards
        return chosen

    trim = cover_search._trim
    monkeypatch.setattr(cover_search, "_trim", keep)


def _any_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    def branch(leaf: Queue, rule: str, _: int | None, *guards: Any, **spared: Any) -> cover_search.VictimLeaf:
        return cover_search.VictimLeaf(leaf, rule, None, *guards, **spared)

    for rule in (guarantee, priority):
        monkeypatch.setattr(rule, "VictimLeaf", branch)


def _everybody_is_entitled(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(self: guarantee.GuaranteePreemption, ask: Ask, underway: PendingPreemptions, over: Any) -> VictimScope:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(PendingPreemptions, "used", lambda *_: -1000)
            return reach(self, ask, underway, over)

    reach = guarantee.GuaranteePreemption.reach
    monkeypatch.setattr(guarantee.GuaranteePreemption, "reach", generous)


def test_reservations_that_keep_victims_from_everybody_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victim_search, "may_use", lambda ask, node: not set(node.reservations) - {ask})
    with pytest.raises(AssertionError, match=r"NOT_ENOUGH_VICTIMS|NODES_CLAIMED|NO_VICTIMS"):
        _wait_for_victims(range(200))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (_no_guard, "under their guarantee"),
        (_no_trim, "is a needless victim"),
        (_any_priority, "may go by None"),
        (_everybody_is_entitled, "may go by None"),
    ],
    ids=["guarantee", "needless", "priority", "entitled"],
)
def test_a_broken_search_is_noticed(
    broken: Callable[[pytest.MonkeyPatch], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=said):
        _search_in_random_clusters(range(600))


# ---- daemons --------------------------------------------------------------------------------------------------------


@BATCHES
def test_victims_of_a_required_node_make_room_there_and_none_is_needless(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        dice = random.Random(f"daemon-{seed}")
        arena = random_arena(dice, allocations=dice.randint(4, 10))
        node = dice.choice(list(arena.partition.nodes.values()))
        app_id = dice.choice(list(arena.partition.apps))
        kinds = {kind: dice.randint(1, 4) for kind in ("vcore", "memory")}
        wanted = item(app_id, "daemon", priority=dice.randint(0, 3), required_node=node.node_id, **kinds)
        arena.core.apply(UpdateAllocations([wanted]), arena.now_ns)  # and no cycle, which would preempt at once
        ask = arena.the_ask(app_id, "daemon")
        if dice.random() < 0.5:
            arena.partition.reservations.reserve(ask, node, Outcome(), arena.now_ns)
        laws = Laws(arena.partition, ask)
        able = [held for held in node.allocations.values() if _may_go_for(ask, held, arena)]
        found = victim_search.search_required_node(arena.partition, ask, node, arena.now_ns)
        if laws.over():
            assert found is NoPreemptionReason.LIMIT  # room on the node would not help it
            continue
        if isinstance(found, NoPreemptionReason):
            assert not laws.helps(node, able) or found is NoPreemptionReason.NOT_NEEDED, f"{ask}: {found}"
            continue
        victims = [victim.allocation for victim in found.victims]
        assert all(held in able for held in victims)
        assert laws.helps(node, victims)
        for held in victims:
            assert not laws.helps(node, [other for other in victims if other is not held]), f"{held} is needless"
        assert {victim.why.rule for victim in found.victims} == {"REQUIRED_NODE"}


def _may_go_for(ask: Ask, held: Allocation, arena: Arena) -> bool:
    opted_out = not held.allow_preempt_self and not arena.partition.config.preemption.opted_out_last
    told = held.preempted is not None or held.timed_out
    return not (told or opted_out or held.demand.required_node) and held.priority <= ask.priority
