"""The laws of preemption (docs/preemption.md) where gangs go as a whole, on random clusters with seeds.

A longer run: ``MUSTER_SIMULATION_SEEDS=20000 pytest tests/unit/core/test_preemption_gang_laws.py``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest
from muster_core import invariants
from muster_core.config.queue_config import PreemptionConfig, QueueConfig
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.commands import UpdateAllocations
from muster_core.model.outcome import Outcome
from muster_core.model.reasons import NoPreemptionReason
from muster_core.preemption import victim_search
from muster_core.preemption import victims as preemption_victims
from muster_core.preemption.cover_search import WholeGang
from muster_core.preemption.plan import Plan
from muster_core.preemption.rules import quota as quota_rule
from preempting import Arena, Laws, is_of_whole_gang, is_replacing, item, random_arena, was_told

RUNS = max(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "200")), 200)
PER_TEST = 200
BATCHES = pytest.mark.parametrize("first", range(0, RUNS, PER_TEST), ids=lambda first: f"seeds-{first}")


def waiting(arena: Arena) -> list[Ask]:
    """Asks that may preempt: no placeholder leaves for them, and they wait for none."""
    return [
        ask
        for app in arena.partition.apps.values()
        for ask in app.asks.values()
        if not ask.preempts and ask.group is not None and not ask.group.held
    ]


def arena_of(dice: random.Random) -> Arena:
    return random_arena(dice, allocations=dice.randint(4, 11), gangs=True)


def comes_free(laws: Laws) -> bool:
    """Whether the ask will have room once a preempted whole gang has left."""
    for node in laws.usable():
        leaving = [held for held in laws.marked if held.node_id == node.node_id and is_of_whole_gang(held)]
        if leaving and all(
            node.available[number] + sum(dict(held.shape.items).get(number, 0) for held in leaving) >= value
            for number, value in laws.items
        ):
            return True
    return False


def search_in_random_clusters(seeds: range) -> dict[str, int]:
    """Checks every plan and every "no"; gives how many of each kind there were."""
    seen = {"whole gangs": 0, "single": 0, "no": 0, "comes free": 0}
    for seed in seeds:
        dice = random.Random(f"gangs-{seed}")
        arena = arena_of(dice)
        for ask in waiting(arena):
            found = victim_search.search(arena.partition.cluster, ask, arena.now_ns)
            laws = Laws(arena.partition, ask)
            if isinstance(found, NoPreemptionReason):
                lawful = next(laws.lawful_sets(), None)
                if found is NoPreemptionReason.NOT_NEEDED:
                    free = any(laws.fits(node, []) for node in laws.usable())
                    assert free or comes_free(laws), f"{seed}: {ask} has no room"
                    assert not laws.over()
                    seen["comes free"] += not free
                else:
                    assert lawful is None, f"{seed}: {ask}: {found}, but {lawful}"
                    seen["no"] += 1
                continue
            victims = [victim.allocation for victim in found.victims]
            laws.check(found.node, victims, [victim.why.rule for victim in found.victims])
            assert {(victim.why.app_id, victim.why.key) for victim in found.victims} == {(ask.app.app_id, ask.key)}
            seen["whole gangs" if any(len(laws.together(held)) > 1 for held in victims) else "single"] += 1
            if dice.random() < 0.7:
                arena.partition.long_wait.execute(found, ask, Outcome(), arena.now_ns)
                invariants.check(arena.core)
                nothing_is_left_of(victims)
    return seen


def nothing_is_left_of(victims: list[Allocation]) -> None:
    for held in victims:
        if is_of_whole_gang(held) and held.app is not None:
            left = [each for each in held.app.allocations.values() if is_of_whole_gang(each) and not was_told(each)]
            assert not left, f"{held} goes, {left} stay"


@BATCHES
def test_a_search_finds_a_lawful_set_of_whole_gangs_if_and_only_if_there_is_one(first: int) -> None:
    seen = search_in_random_clusters(range(first, first + PER_TEST))
    assert seen["whole gangs"], seen
    assert seen["single"], seen
    assert seen["no"], seen


@BATCHES
def test_kept_data_equal_those_of_a_fresh_search(first: int) -> None:
    """A search with kept data finds the same as a new one."""
    for seed in range(first, first + PER_TEST):
        dice = random.Random(f"known-{seed}")
        arena = arena_of(dice)
        for ask in waiting(arena):
            found = victim_search.search(arena.partition.cluster, ask, arena.now_ns)
            arena.partition.known_victims = None
            assert victim_search.search(arena.partition.cluster, ask, arena.now_ns) == found, seed
            if isinstance(found, Plan):
                arena.partition.long_wait.execute(found, ask, Outcome(), arena.now_ns)


@BATCHES
def test_gangs_that_were_preempted_do_not_take_back(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        dice = random.Random(f"back-{seed}")
        arena = arena_of(dice)
        for ask in waiting(arena):
            found = victim_search.search(arena.partition.cluster, ask, arena.now_ns)
            if isinstance(found, Plan):
                take_back(arena, ask, found)
                break


def take_back(arena: Arena, ask: Ask, plan: Plan) -> None:
    for other in waiting(arena):
        if other is not ask:
            arena.release(other.app.app_id, other.key)
    # 1. The victims go, the ask comes.
    out = Outcome()
    arena.partition.long_wait.execute(plan, ask, out, arena.now_ns)
    arena.confirm(out)
    placed = ask.app.allocations[ask.key]
    assert plan.node is not None
    assert placed.node_id == plan.node.node_id
    # 2. All are asked for again, the members as ordinary ones: nobody takes from whom they made room for.
    for victim in plan.victims:
        gone = victim.allocation
        assert gone.gone
        quantities = {arena.partition.types.names[number]: value for number, value in gone.shape.items}
        arena.want(gone.app_id, f"{gone.key}-again", priority=gone.priority, **quantities)
    for again in waiting(arena):
        found = victim_search.search(arena.partition.cluster, again, arena.now_ns)
        if isinstance(found, Plan):
            assert placed not in [victim.allocation for victim in found.victims], f"{again} takes {placed} back"


@BATCHES
def test_daemons_take_whole_gangs(first: int) -> None:
    plans = 0
    for seed in range(first, first + PER_TEST):
        dice = random.Random(f"daemon-{seed}")
        arena = arena_of(dice)
        node = dice.choice(list(arena.partition.nodes.values()))
        app_id = dice.choice(list(arena.partition.apps))
        wanted = {kind: dice.randint(1, 4) for kind in ("vcore", "memory")}
        daemon = item(app_id, "daemon", priority=dice.randint(0, 3), required_node=node.node_id, **wanted)
        arena.core.apply(UpdateAllocations([daemon]), arena.now_ns)  # and no cycle, which would preempt at once
        ask = arena.the_ask(app_id, "daemon")
        if not node.reservations:
            arena.partition.reservations.reserve(ask, node, Outcome(), arena.now_ns)
        laws = Laws(arena.partition, ask)
        if laws.over() or ask.reserved_node != node.node_id:
            continue
        able = [held for held in node.allocations.values() if may_go_for(ask, held, laws)]
        found = victim_search.search_required_node(arena.partition, ask, node, arena.now_ns)
        if isinstance(found, NoPreemptionReason):
            assert not laws.helps(node, able) or found is NoPreemptionReason.NOT_NEEDED, f"{seed}: {found}"
            continue
        plans += 1
        victims = [victim.allocation for victim in found.victims]
        assert {victim.why.rule for victim in found.victims} == {"REQUIRED_NODE"}
        assert len(set(victims)) == len(victims)
        assert all(may_go_for(ask, held, laws) for held in victims)
        assert laws.helps(node, victims)
        for held in victims:
            unit = laws.together(held)
            assert set(unit) <= set(victims), f"{seed}: {held} goes without its gang"
            assert not laws.helps(node, [other for other in victims if other not in unit]), f"{held} is needless"
    assert plans


def may_go_for(ask: Ask, held: Allocation, laws: Laws) -> bool:
    if is_of_whole_gang(held) and is_replacing(held):
        return False
    return not was_told(held) and all(
        not each.demand.required_node
        and (each.allow_preempt_self or laws.partition.config.preemption.opted_out_last)
        and each.priority <= ask.priority
        for each in laws.together(held)
    )


# ---- queues above their max ------------------------------------------------------------------------------------------


def test_cuts_take_whole_gangs_never_too_much_and_leave_nothing_that_could_go() -> None:
    """Over two children with guarantees, below a max; then everything that stays is tried beside what goes."""
    taken = passed_over = 0
    for seed in range(200):
        dice = random.Random(f"cut-{seed}")
        arena = above_its_max(dice)
        queue = arena.queue("root.a")
        excess = quota_rule.excess(queue)
        victims = [victim.allocation for victim in victim_search.search_quota(arena.partition, queue, arena.now_ns)]
        assert len(set(victims)) == len(victims), seed
        # 1. Whole gangs; of no type more than is over; no queue below its guarantee.
        going = {unit: None for held in victims for unit in [together(held)]}
        assert sum(len(unit) for unit in going) == len(victims), f"{seed}: a part of a gang"
        assert allowed(arena, victims, excess), f"{seed}: too much"
        taken += any(len(unit) > 1 for unit in going)
        # 2. Nobody stays who could go as well.
        everybody = [held for app in arena.partition.apps.values() for held in app.allocations.values()]
        for unit in {together(held): None for held in everybody if held not in victims}:
            if all(held.allow_preempt_self for held in unit) and any(n in excess for n, _ in summed(unit)):
                assert not allowed(arena, [*victims, *unit], excess), f"{seed}: {unit} could go too"
                passed_over += len(unit) > 1
    assert taken > 20
    assert passed_over > 20


def above_its_max(dice: random.Random) -> Arena:
    def some() -> dict[str, int] | None:
        return {kind: dice.randint(0, 8) for kind in ("memory", "vcore") if dice.random() < 0.7} or None

    policy = {"gang.preemption": dice.choice(["whole", "whole", "members"])}
    children = tuple(QueueConfig(name, guaranteed=some(), properties=policy) for name in ("b", "c"))
    most = {kind: dice.randint(2, 20) for kind in ("memory", "vcore")}
    above = QueueConfig("a", queues=children, maximum=most)
    root = QueueConfig("root", parent=True, queues=(above,), submit_acl="*")
    arena = Arena(root, preemption=PreemptionConfig(quota_enabled=True))
    arena.node("n", memory=1000, vcore=1000)
    items = []
    for n in range(4):
        arena.app(f"app{n}", f"root.a.{dice.choice('bc')}")
    for n in range(dice.randint(3, 20)):
        wanted = {kind: dice.randint(1, 3) for kind in dice.sample(["memory", "vcore"], dice.randint(1, 2))}
        of_gang = dice.random() < 0.7
        items.append(
            item(
                f"app{dice.randint(0, 3)}",
                f"k{n}",
                node_id="n",
                priority=dice.randint(0, 2),
                victim=dice.random() < 0.93,
                originator=dice.random() < 0.1,
                task_group="t" if of_gang else "",
                placeholder=of_gang and dice.random() < 0.7,
                **wanted,
            )
        )
    arena.core.apply(UpdateAllocations(items), arena.now_ns)
    return arena


def together(held: Allocation) -> tuple[Allocation, ...]:
    if not is_of_whole_gang(held) or held.app is None:
        return (held,)
    return tuple(each for each in held.app.allocations.values() if is_of_whole_gang(each))


def summed(unit: Iterable[Allocation]) -> list[tuple[int, int]]:
    found: dict[int, int] = {}
    for held in unit:
        for number, value in held.shape.items:
            found[number] = found.get(number, 0) + value
    return list(found.items())


def allowed(arena: Arena, going: list[Allocation], excess: dict[int, int]) -> bool:
    """Whether all of them may go: not below the max, and no queue below its guarantee, in a type that is over."""
    if any(value > excess.get(number, value) for number, value in summed(going)):
        return False
    for path in ("root.a.b", "root.a.c"):
        queue = arena.queue(path)
        for number, value in summed(held for held in going if held.app is not None and held.app.queue is queue):
            least = (queue.guaranteed or {}).get(number, 0)
            if number in excess and queue.allocated[number] - value < least:
                return False
    return True


# ---- the checks notice -----------------------------------------------------------------------------------------------


@pytest.mark.source
@pytest.mark.parametrize(
    ("broken", "said"), [("single members", "and not all of its gang|goes without|may go by"), ("dearest", "may go by")]
)
def test_a_broken_search_is_noticed(broken: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "single members":
        monkeypatch.setattr(victim_search, "is_evicted_whole", lambda _: False)
    else:

        def careless(app: Application, **_: object) -> WholeGang | None:
            members = [held for held in app.allocations.values() if held.task_group and not held.releasing]
            return WholeGang(tuple(members)) if members else None

        monkeypatch.setattr(preemption_victims, "whole_gang", careless)
    with pytest.raises(AssertionError, match=said):
        search_in_random_clusters(range(400))
