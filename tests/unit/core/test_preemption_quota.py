"""Queues above a lowered max (docs/preemption.md): when they are cut, and the victims."""

from __future__ import annotations

import random

import pytest
from muster_core.config.queue_config import PreemptionConfig, QueueConfig
from muster_core.model.allocation import PreemptionRecord
from muster_core.model.commands import AskItem, UpdateAllocations
from muster_core.model.outcome import Event, EventDetail, Outcome
from muster_core.preemption import victim_search
from muster_core.preemption.rules import quota as quota_rule
from muster_core.queues import quota_enforcement
from preempting import Arena, item, told

ON = PreemptionConfig(quota_enabled=True)
DELAY_NS = 60 * 1_000_000_000
DELAYED = "properties: {quota.preemption.delay: 60s}"


def leaf(maximum: int | None, *, delay: str = "60s", name: str = "a", more: str = "") -> str:
    resources = f"resources: {{max: {{memory: {maximum}}}}}, " if maximum is not None else ""
    return f"{{name: {name}, {resources}{more}properties: {{quota.preemption.delay: {delay}}}}}"


def root(*queues: str) -> str:
    return f"{{name: root, submitacl: '*', queues: [{', '.join(queues)}]}}"


def filled(*queues: str, config: PreemptionConfig = ON, used: int = 10) -> Arena:
    """Queue a with application x, which uses as much in pieces of 1."""
    arena = Arena(root(*queues), preemption=config).having({"n": {"memory": 100, "gpu": 100}}, {"x": "root.a"})
    for n in range(used):
        arena.want("x", f"k{n}", memory=1)
        arena.wait(1)
    return arena


def gone(arena: Arena, path: str = "root.a") -> list[str]:
    """The keys that a cut of the queue would take, in order."""
    found = victim_search.search_quota(arena.partition, arena.queue(path), arena.now_ns)
    return [victim.allocation.key for victim in found]


def summaries(out: Outcome) -> list[Event]:
    return [event for event in out.events if event.detail is EventDetail.QUEUE_PREEMPTION]


# ---- when ----------------------------------------------------------------------------------------------------------


def test_a_lowered_max_is_enforced_after_the_delay_and_once() -> None:
    arena = filled(leaf(10))
    arena.reload(root(leaf(7)))
    assert arena.queue("root.a").quota_ns == arena.now_ns + DELAY_NS
    assert told(arena.wait(59)) == []
    out = arena.wait(1)
    assert told(out) == [("x", "k9"), ("x", "k8"), ("x", "k7")]
    held = arena.application("x").allocations["k9"].preempted
    assert held is not None
    assert (held.rule, held.app_id, held.key, held.queue) == ("QUOTA", "", "", "root.a")
    assert (held.victim_share_before, held.victim_share_after) == (10 / 7, 1.0)
    assert (held.asker_share_before, held.asker_share_after) == (10 / 7, 1.0)
    (event,) = summaries(out)
    assert (event.object_id, event.resource) == ("root.a", {"memory": 3})
    assert event.message.startswith("Quota Preemption results summary: 3 allocations with memory=3")
    # Once: those told to go may take as long as they like, and a max that cannot be reached is not tried for ever.
    assert arena.queue("root.a").quota_ns == 0
    assert told(arena.wait(240)) == []
    arena.confirm(out)
    assert arena.queue("root.a").allocated[arena.partition.types.number("memory")] == 7


@pytest.mark.parametrize(
    ("old", "new", "lowered"),
    [
        ({"memory": 10}, {"memory": 9}, True),
        ({"memory": 10}, {"memory": 10}, False),
        ({"memory": 10}, {"memory": 11}, False),
        (None, {"memory": 9}, False),  # a first max is not a lower one
        ({"memory": 10}, None, False),
        ({"memory": 10, "gpu": 2}, {"memory": 9, "gpu": 2}, True),
        ({"memory": 10, "gpu": 2}, {"memory": 9, "gpu": 3}, False),  # one down, one up
        ({"memory": 10}, {"memory": 9, "gpu": 3}, False),  # a type that was not named counts as 0 before
        ({"memory": 10, "gpu": 2}, {"memory": 9}, True),
    ],
)
def test_the_meaning_of_a_lower_max(old: dict[str, int] | None, new: dict[str, int] | None, *, lowered: bool) -> None:
    numbers = {"memory": 0, "gpu": 1}
    by_number = [{numbers[name]: value for name, value in each.items()} if each else None for each in (old, new)]
    assert quota_enforcement.was_lowered(*by_number) == lowered


@pytest.mark.parametrize("case", ["above what is used", "partition off", "no delay", "first max"])
def test_no_clock_runs(case: str) -> None:
    config = PreemptionConfig() if case == "partition off" else ON
    delay = "0" if case == "no delay" else "60s"
    arena = filled(leaf(None if case == "first max" else 20, delay=delay), config=config)
    arena.reload(root(leaf(10 if case == "above what is used" else 5, delay=delay)))
    assert arena.queue("root.a").quota_ns == 0
    assert told(arena.wait(3600)) == []


def test_a_delay_that_is_set_while_it_is_over_starts_the_clock() -> None:
    arena = filled(leaf(10, delay="0"))
    arena.reload(root(leaf(5, delay="0")))
    arena.wait(100)
    arena.reload(root(leaf(5)))
    assert arena.queue("root.a").quota_ns == arena.now_ns + DELAY_NS


def test_another_delay_moves_the_clock() -> None:
    arena = filled(leaf(10))
    arena.reload(root(leaf(5)))
    due_ns = arena.queue("root.a").quota_ns
    arena.wait(10)
    arena.reload(root(leaf(5, delay="90s")))
    assert arena.queue("root.a").quota_ns == due_ns + 30 * 1_000_000_000
    assert told(arena.wait(50)) == []  # the old time passes
    arena.reload(root(leaf(5, delay="1s")))  # a time that has passed already: at once
    assert len(told(arena.outcomes[-1]) + told(arena.do())) == 5


def test_lowering_it_again_starts_the_clock_again() -> None:
    arena = filled(leaf(10))
    arena.reload(root(leaf(8)))
    arena.wait(30)
    arena.reload(root(leaf(6)))
    assert told(arena.wait(30)) == []
    assert len(told(arena.wait(30))) == 4


@pytest.mark.parametrize("way", ["released", "raised", "unset", "switched off"])
def test_back_under_the_max_the_clock_stops(way: str) -> None:
    arena = filled(leaf(10))
    arena.reload(root(leaf(9)))
    if way == "released":
        arena.release("x", "k0")
    elif way == "switched off":
        arena.reload(root(leaf(9)), preemption=PreemptionConfig())
    else:
        arena.reload(root(leaf(20 if way == "raised" else None)))
    assert arena.queue("root.a").quota_ns == 0
    assert told(arena.wait(3600)) == []


def test_raised_but_still_below_what_is_used_it_runs_on() -> None:
    arena = filled(leaf(10))
    arena.reload(root(leaf(5)))
    due_ns = arena.queue("root.a").quota_ns
    arena.wait(1)
    arena.reload(root(leaf(8)))
    assert arena.queue("root.a").quota_ns == due_ns
    assert len(told(arena.wait(59))) == 2


def test_an_allocation_that_the_rm_reports_may_bring_it_over() -> None:
    arena = filled(leaf(10))
    arena.held("x", "small", "n", gpu=1)
    assert arena.queue("root.a").quota_ns == 0  # not of a type that is limited
    arena.held("x", "reported", "n", memory=2)
    due_ns = arena.now_ns + DELAY_NS
    assert arena.queue("root.a").quota_ns == due_ns
    arena.wait(1)
    arena.held("x", "more", "n", memory=1)
    assert arena.queue("root.a").quota_ns == due_ns  # it runs already
    assert told(arena.wait(59)) == [("x", "more"), ("x", "k9"), ("x", "k8")]


def test_an_allocation_that_is_reported_larger_may_bring_it_over() -> None:
    arena = filled(leaf(10))
    arena.held("x", "k0", "n", memory=2)
    assert arena.queue("root.a").quota_ns == arena.now_ns + DELAY_NS
    arena.held("x", "k0", "n", memory=1)
    assert arena.queue("root.a").quota_ns == 0


def test_queues_above_are_cut_first_and_nothing_is_cut_twice() -> None:
    def tree(top: int, a: int) -> str:
        inner = leaf(a, name="a")
        return root(
            f"{{name: top, resources: {{max: {{memory: {top}}}}}, queues: [{inner}, {{name: b}}], "
            "properties: {quota.preemption.delay: 60s}}"
        )

    arena = Arena(tree(20, 20), preemption=ON).having({"n": {"memory": 100}}, {"x": "root.top.a"})
    arena.want("x", "k", wanted=10, memory=1)
    arena.reload(tree(8, 8))
    out = arena.wait(60)
    assert len(told(out)) == 2
    assert [event.object_id for event in summaries(out)] == ["root.top", "root.top.a"]
    assert summaries(out)[1].resource == {}  # what went for the queue above was enough for this one


def test_a_stopped_rm_is_left_alone() -> None:
    arena = filled(leaf(10))
    arena.reload(root(leaf(5)))
    arena.partition.deciding = False
    assert told(arena.wait(60)) == []


# ---- what goes -----------------------------------------------------------------------------------------------------


def over(maximum: int, *, opted_out_last: bool = False) -> Arena:
    """Queue a with application x, and a max that is set below whatever comes; no clock runs."""
    config = PreemptionConfig(quota_enabled=True, opted_out_last=opted_out_last)
    return Arena(root(leaf(maximum, delay="0"), "{name: rest}"), preemption=config).having(
        {"n": {"memory": 100, "gpu": 100}}, {"x": "root.a"}
    )


def test_plain_ones_go_first_then_originators_and_opted_out_ones_last_if_at_all() -> None:
    for opted_out_last in (True, False):
        arena = over(1, opted_out_last=opted_out_last)
        arena.held("x", "both", "n", memory=1, originator=True, victim=False)
        arena.held("x", "opted-out", "n", memory=1, victim=False)
        arena.held("x", "driver", "n", memory=1, originator=True)
        arena.held("x", "plain", "n", memory=1)
        expected = ["plain", "driver", "opted-out"] if opted_out_last else ["plain", "driver"]
        assert gone(arena) == expected


def test_then_what_is_all_of_the_type_that_is_over_then_lower_priorities_then_the_younger_and_smaller() -> None:
    arena = over(1)
    arena.held("x", "mixed", "n", memory=1, gpu=1)
    arena.held("x", "high", "n", memory=1, priority=1)
    arena.held("x", "large", "n", memory=2)
    arena.held("x", "small", "n", memory=1)
    arena.wait(3600)
    arena.held("x", "young", "n", memory=3)
    assert gone(arena) == ["young", "small", "large", "high"]  # 8 used: 7 may go; mixed would be the next


def test_quota_preemption_spares_daemons_and_releasing_allocations() -> None:
    arena = over(1)
    arena.held("x", "daemon", "n", memory=2, required_node="n")
    arena.held("x", "told", "n", memory=2)
    arena.held("x", "plain", "n", memory=2)
    why = PreemptionRecord("QUOTA", "", "", "root.a", arena.now_ns)
    arena.partition.releases.preempt(arena.application("x").allocations["told"], why, "", Outcome(), arena.now_ns)
    assert quota_rule.excess(arena.queue("root.a")) == {arena.partition.types.number("memory"): 3}
    assert gone(arena) == ["plain"]


def test_queues_above_keep_their_guarantee() -> None:
    arena = Arena(
        root(f"{{name: top, resources: {{guaranteed: {{memory: 6}}}}, queues: [{leaf(3)}, {{name: b}}]}}"),
        preemption=ON,
    ).having({"n": {"memory": 100}}, {"x": "root.top.a"})
    for n in range(8):
        arena.held("x", f"k{n}", "n", memory=1)
    assert len(gone(arena, "root.top.a")) == 2  # 5 above the max; 2 above what is guaranteed to the queue above


def parent_of(*children: tuple[str, int | None, int], maximum: int) -> Arena:
    """root.a is a parent: (name, guaranteed, pieces of 1 in use) of each child."""
    text = ", ".join(
        f"{{name: {name}}}" if least is None else f"{{name: {name}, resources: {{guaranteed: {{memory: {least}}}}}}}"
        for name, least, _ in children
    )
    arena = Arena(root(leaf(maximum, more=f"queues: [{text}], ")), preemption=ON)
    arena.node("n", memory=1000)
    for name, _, used in children:
        arena.app(name, f"root.a.{name}")
        items = [item(name, f"{name}{n}", memory=1, node_id="n") for n in range(used)]
        arena.do(UpdateAllocations(items))
    return arena


def taken(arena: Arena) -> dict[str, int]:
    found: dict[str, int] = {}
    for victim in victim_search.search_quota(arena.partition, arena.queue("root.a"), arena.now_ns):
        app_id = victim.allocation.app_id
        found[app_id] = found.get(app_id, 0) + 1
    return found


def test_the_rest_of_rounding_is_taken_too() -> None:
    # (In YuniKorn 2 of 12, split over three and rounded down, is nothing.)
    arena = parent_of(("p", None, 4), ("q", None, 4), ("r", None, 4), maximum=10)
    assert sum(taken(arena).values()) == 2


def test_a_child_that_can_give_nothing_leaves_its_part_to_the_others() -> None:
    arena = parent_of(("p", None, 4), ("q", None, 4), maximum=4)
    for held in arena.application("p").allocations.values():
        held.demand.allow_preempt_self = False
    assert taken(arena) == {"q": 4}


def test_parents_below_a_parent_share_as_well() -> None:
    inner = "{name: p, queues: [{name: p1}, {name: p2}]}"
    arena = Arena(root(leaf(6, more=f"queues: [{inner}, {{name: q}}], ")), preemption=ON)
    arena.node("n", memory=100)
    for name in ("p.p1", "p.p2", "q"):
        arena.app(name, f"root.a.{name}")
        arena.do(UpdateAllocations([item(name, f"{name}{n}", memory=1, node_id="n") for n in range(4)]))
    assert taken(arena) == {"p.p1": 2, "p.p2": 2, "q": 2}


def test_random_cuts_never_go_too_far_and_leave_nothing_that_could_go() -> None:
    cut = 0
    for seed in range(300):
        dice = random.Random(f"quota-{seed}")
        arena = Arena(_random_tree(dice), preemption=ON)
        arena.node("n", memory=1000, vcore=1000)
        leaves = [queue for queue in arena.partition.queues.values() if queue.leaf]
        for n in range(dice.randint(3, 25)):
            queue = dice.choice(leaves)
            if queue.path not in arena.partition.apps:
                arena.app(queue.path, queue.path)
            kinds = dice.sample(["memory", "vcore"], dice.randint(1, 2))
            wanted = {kind: dice.randint(1, 4) for kind in kinds}
            arena.core.apply(UpdateAllocations([_random_item(dice, queue.path, f"k{n}", wanted)]), arena.now_ns)
        cut += _check_cut(arena, seed)
    assert cut > 300


def _random_tree(dice: random.Random) -> QueueConfig:
    def some() -> dict[str, int] | None:
        return {kind: dice.randint(0, 8) for kind in ("memory", "vcore") if dice.random() < 0.7} or None

    inner = [QueueConfig(name, guaranteed=some() if dice.random() < 0.5 else None) for name in ("i", "j")]
    middle = QueueConfig("m", parent=True, queues=tuple(inner), guaranteed=some() if dice.random() < 0.3 else None)
    first = QueueConfig("l", guaranteed=some() if dice.random() < 0.5 else None)
    most = {kind: dice.randint(2, 20) for kind in ("memory", "vcore")}
    above = QueueConfig("a", queues=(middle, first), maximum=most)
    return QueueConfig("root", parent=True, queues=(above,), submit_acl="*")


def _random_item(dice: random.Random, app_id: str, key: str, wanted: dict[str, int]) -> AskItem:
    return item(
        app_id,
        key,
        node_id="n",
        priority=dice.randint(0, 2),
        victim=dice.random() < 0.9,
        originator=dice.random() < 0.1,
        **wanted,
    )


def _check_cut(arena: Arena, seed: int) -> int:
    queue = arena.queue("root.a")
    excess = quota_rule.excess(queue)
    victims = [victim.allocation for victim in victim_search.search_quota(arena.partition, queue, arena.now_ns)]
    assert len(set(victims)) == len(victims)
    freed: dict[str, dict[int, int]] = {}
    for held in victims:
        assert held.allow_preempt_self
        assert held.app is not None
        assert any(number in excess for number, _ in held.shape.items), f"{seed}: {held} gives nothing that is over"
        for below in held.app.queue.ancestry:
            for number, value in held.shape.items:
                sums = freed.setdefault(below.path, {})
                sums[number] = sums.get(number, 0) + value
    # 1. Of no type more than is over; no queue below its guarantee in such a type.
    for number, most in excess.items():
        assert freed.get("root.a", {}).get(number, 0) <= most, f"{seed}: too much"
        for path, sums in freed.items():
            below = arena.queue(path)
            left = below.allocated[number] - sums.get(number, 0)
            assert not sums.get(number) or left >= (below.guaranteed or {}).get(number, 0), f"{seed}: {path}"
    # 2. Nobody stays who could go as well.
    for app in arena.partition.apps.values():
        for held in app.allocations.values():
            if held in victims or not held.allow_preempt_self or not any(n in excess for n, _ in held.shape.items):
                continue
            room = [
                min(
                    excess[number] - freed.get("root.a", {}).get(number, 0),
                    *(
                        below.allocated[number]
                        - freed.get(below.path, {}).get(number, 0)
                        - (below.guaranteed or {}).get(number, 0)
                        for below in app.queue.ancestry[:-2]
                    ),
                )
                >= value
                for number, value in held.shape.items
                if number in excess
            ]
            assert not all(room), f"{seed}: {held} could go too"
    return len(victims)


@pytest.mark.source
def test_a_deep_tree_that_gives_nothing_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level asks its children twice: what they could not give once they are not asked for again."""
    nested = "{name: last}"
    for depth in range(12):
        nested = f"{{name: q{depth}, queues: [{nested}]}}"
    over = f"{{name: a, resources: {{max: {{memory: 10}}}}, queues: [{nested}], {DELAYED}}}"
    arena = Arena(root(over), preemption=ON).having(
        {"n": {"memory": 100}}, {"x": "root.a." + ".".join(f"q{depth}" for depth in range(11, -1, -1)) + ".last"}
    )
    for number in range(10):
        arena.want("x", f"k{number}", memory=1, victim=False)
    arena.wait(1)
    arena.reload(root(over.replace("memory: 10", "memory: 5")))
    visits = 0
    looked = quota_rule._QuotaCut._cut_leaf

    def counted(cut: quota_rule._QuotaCut, *arguments: object) -> None:
        nonlocal visits
        visits += 1
        looked(cut, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(quota_rule._QuotaCut, "_cut_leaf", counted)
    assert gone(arena) == []
    assert visits == 1
