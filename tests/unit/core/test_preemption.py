"""The victims that a search chooses (docs/preemption.md), on small clusters.

Quantities are of memory and gpu, which are written as they are.
"""

from __future__ import annotations

import pytest
from muster_core.config.queue_config import PreemptionConfig
from muster_core.model.allocation import PreemptionRecord
from muster_core.model.commands import (
    AskItem,
    NodeAction,
    NodeItem,
    UpdateAllocations,
    UpdateNodes,
)
from muster_core.model.outcome import Outcome
from muster_core.model.reasons import NoPreemptionReason
from muster_core.preemption import victim_search
from muster_core.preemption.plan import Plan
from preempting import Arena

POOR = "{name: poor, resources: {guaranteed: {memory: 10}}}"
RICH = "{name: rich}"


def arena_of(*queues: str, opted_out_last: bool = False) -> Arena:
    root = f"{{name: root, submitacl: '*', queues: [{', '.join(queues)}]}}"
    return Arena(root, preemption=PreemptionConfig(opted_out_last=opted_out_last))


def two_queues(*, poor: str = POOR, rich: str = RICH, opted_out_last: bool = False, **node: int) -> Arena:
    """poor (guaranteed 10) with application p, and rich with r; one node."""
    arena = arena_of(poor, rich, opted_out_last=opted_out_last)
    arena.node("n", **(node or {"memory": 10}))
    arena.app("p", "root.poor")
    arena.app("r", "root.rich")
    return arena


def search(arena: Arena, app_id: str = "p", key: str = "ask") -> Plan | NoPreemptionReason:
    return victim_search.search(arena.partition.cluster, arena.the_ask(app_id, key), arena.now_ns)


def victims(arena: Arena, app_id: str = "p", key: str = "ask") -> list[str]:
    """The keys of the victims, in order. Fails if there are none."""
    found = search(arena, app_id, key)
    assert isinstance(found, Plan), found
    return [victim.allocation.key for victim in found.victims]


def carry_out(arena: Arena, app_id: str, key: str) -> None:
    found = search(arena, app_id, key)
    assert isinstance(found, Plan), found
    arena.partition.long_wait.execute(found, arena.the_ask(app_id, key), Outcome(), arena.now_ns)


# ---- by guarantee --------------------------------------------------------------------------------------------------


def test_an_ask_within_its_guarantee_takes_from_a_queue_without() -> None:
    arena = two_queues()
    arena.want("r", "old", memory=5)
    arena.wait(1)
    arena.want("r", "young", memory=5)
    arena.want("p", "ask", memory=4)
    found = search(arena)
    assert isinstance(found, Plan)
    assert found.node is arena.the_node("n")
    (victim,) = found.victims
    assert victim.allocation.key == "young"
    why = victim.why
    assert (why.rule, why.app_id, why.key, why.queue) == ("GUARANTEE", "p", "ask", "root.poor")
    assert why.since_ns == arena.now_ns
    assert (why.victim_share_before, why.victim_share_after) == (1.0, 0.5)  # of the cluster: it has no guarantee
    assert (why.asker_share_before, why.asker_share_after) == (0.0, 0.4)  # of its guarantee


def test_a_search_changes_nothing() -> None:
    arena = two_queues(rich="{name: rich, resources: {guaranteed: {memory: 2}}}")
    arena.want("r", "k", wanted=5, memory=2)
    arena.want("p", "ask", memory=4)
    version = arena.partition.version
    before = [list(queue.allocated) + list(queue.preempting) for queue in arena.partition.queues.values()]
    assert victims(arena) == victims(arena)
    assert before == [list(queue.allocated) + list(queue.preempting) for queue in arena.partition.queues.values()]
    assert arena.partition.version == version


def test_a_guarantee_of_another_type_does_not_speak_for_an_ask() -> None:
    arena = two_queues(memory=10, gpu=1)
    arena.want("r", "k", gpu=1)
    arena.want("p", "ask", gpu=1)
    assert search(arena) is NoPreemptionReason.NO_GUARANTEE


def test_types_without_a_guarantee_do_not_hinder() -> None:
    arena = two_queues(memory=10, pods=2)
    arena.want("r", "k", wanted=2, memory=2, pods=1)
    arena.want("p", "ask", memory=2, pods=1)
    assert victims(arena) == ["k"]  # pods are short, memory is guaranteed


def test_no_queue_falls_below_its_guarantee() -> None:
    arena = two_queues(rich="{name: rich, resources: {guaranteed: {memory: 7}}}")
    arena.want("r", "big", memory=4)
    arena.want("r", "small", wanted=3, memory=2)
    arena.want("p", "ask", memory=3)
    assert search(arena) is NoPreemptionReason.NOT_ENOUGH_VICTIMS
    arena.want("p", "less", memory=2)
    assert victims(arena, key="less") == ["small"]


def test_only_what_is_given_up_is_compared_with_the_guarantee() -> None:
    arena = two_queues(rich="{name: rich, resources: {guaranteed: {gpu: 5, memory: 1}}}", memory=10, gpu=5)
    arena.want("r", "with-gpu", memory=5, gpu=1)
    arena.want("r", "without", memory=5)
    arena.wait(1)
    arena.want("p", "ask", memory=5)
    assert victims(arena) == ["without"]  # the queue has 1 of its 5 gpus: none of them goes


def test_the_guarantee_of_a_queue_above_protects_those_below() -> None:
    arena = arena_of(
        POOR, "{name: top, resources: {guaranteed: {memory: 7}}, queues: [{name: rich}, {name: idle}]}"
    ).having({"n": {"memory": 10}}, {"p": "root.poor", "r": "root.top.rich"})
    arena.want("r", "k", wanted=5, memory=2)
    arena.want("p", "ask", memory=3)
    assert search(arena) is NoPreemptionReason.NOT_ENOUGH_VICTIMS
    arena.want("p", "less", memory=2)
    assert victims(arena, key="less") == ["k"]


def test_a_guarantee_from_above_says_nothing_between_the_queues_below_it() -> None:
    # Else each of the two could take from the other, in turn, for ever.
    arena = arena_of("{name: top, resources: {guaranteed: {memory: 12}}, queues: [{name: poor}, {name: twin}]}").having(
        {"n": {"memory": 10}}, {"p": "root.top.poor", "t": "root.top.twin"}
    )
    arena.want("t", "k", wanted=5, memory=2)
    arena.want("p", "ask", memory=2)
    assert search(arena) is NoPreemptionReason.NO_VICTIMS


def test_the_own_guarantee_holds_though_a_sibling_used_up_the_one_above() -> None:
    arena = arena_of(
        "{name: top, resources: {guaranteed: {memory: 6}}, queues: ["
        "{name: poor, resources: {guaranteed: {memory: 3}}}, {name: twin, properties: {preemption.policy: disabled}}]}",
        RICH,
    ).having({"n": {"memory": 10}}, {"p": "root.top.poor", "t": "root.top.twin", "r": "root.rich"})
    arena.want("t", "twin", memory=6)
    arena.want("r", "k", wanted=2, memory=2)
    arena.want("p", "ask", memory=2)
    assert victims(arena) == ["k"]


def test_a_leaf_that_is_a_fence_takes_nothing_from_outside() -> None:
    poor = "{name: poor, resources: {guaranteed: {memory: 10}}, properties: {preemption.policy: fence}}"
    arena = two_queues(poor=poor)
    arena.want("r", "k", memory=10)
    arena.want("p", "ask", memory=1)
    assert search(arena) is NoPreemptionReason.FENCED


def test_a_fence_does_not_protect_what_is_inside() -> None:
    arena = two_queues(rich="{name: rich, properties: {preemption.policy: fence}}")
    arena.want("r", "k", memory=10)
    arena.want("p", "ask", memory=1)
    assert victims(arena) == ["k"]


def test_a_max_in_the_way_is_a_fence() -> None:
    top = f"{{name: top, resources: {{max: {{memory: 10}}}}, queues: [{POOR}, {{name: twin}}]}}"
    arena = arena_of(top, RICH).having(
        {"n": {"memory": 20}}, {"p": "root.top.poor", "t": "root.top.twin", "r": "root.rich"}
    )
    arena.want("t", "inside", wanted=5, memory=2)
    arena.wait(1)
    arena.want("r", "outside", wanted=5, memory=2)
    arena.want("p", "ask", memory=3)
    assert victims(arena) == ["inside", "inside"]


def test_below_a_max_there_may_be_room_on_a_node_already() -> None:
    poor = "{name: poor, resources: {guaranteed: {memory: 4}}}"
    arena = arena_of(f"{{name: top, resources: {{max: {{memory: 4}}}}, queues: [{poor}, {{name: twin}}]}}").having(
        {"n1": {"memory": 2}, "n2": {"memory": 2}}, {"p": "root.top.poor", "t": "root.top.twin"}
    )
    arena.want("t", "k", wanted=2, memory=2)
    arena.node("n3", memory=9)
    arena.want("p", "ask", memory=2)
    found = search(arena)
    assert isinstance(found, Plan)
    assert found.node is arena.the_node("n3")  # victims go elsewhere, to get below the max
    assert len(found.victims) == 1


def test_victims_on_other_nodes_bring_a_max_down_beside_those_that_make_room() -> None:
    top = f"{{name: top, resources: {{max: {{memory: 12}}}}, queues: [{POOR}, {{name: twin}}]}}"
    arena = arena_of(top).having(
        {"n1": {"memory": 6, "gpu": 1}, "n2": {"memory": 6}}, {"p": "root.top.poor", "t": "root.top.twin"}
    )
    arena.held("t", "gpu", "n1", memory=1, gpu=1)
    arena.held("t", "sticky", "n1", memory=5, victim=False)
    arena.held("t", "a", "n2", memory=3)
    arena.held("t", "b", "n2", memory=3)
    arena.want("p", "ask", memory=1, gpu=1)
    assert victims(arena) == ["gpu"]  # enough for both
    arena.do(UpdateNodes((NodeItem("n1", NodeAction.UPDATE, capacity={"memory": 9, "gpu": 1}),)))
    arena.want("p", "more", memory=4, gpu=1)
    assert sorted(victims(arena, key="more")) == ["b", "gpu"]  # 12 used, 4 more: 4 must go


def test_a_disabled_parent_protects_the_leaves_that_do_not_say_otherwise() -> None:
    top = (
        "{name: top, properties: {preemption.policy: disabled}, queues: ["
        "{name: silent}, {name: open, properties: {preemption.policy: default}}]}"
    )
    arena = arena_of(POOR, top).having(
        {"n": {"memory": 10}}, {"p": "root.poor", "s": "root.top.silent", "o": "root.top.open"}
    )
    arena.want("o", "open", memory=5)
    arena.wait(1)
    arena.want("s", "silent", memory=5)
    arena.want("p", "ask", memory=1)
    assert victims(arena) == ["open"]


def test_a_disabled_parent_protects_its_dynamic_leaves_too() -> None:
    # (In YuniKorn not: they take nothing from their parent but the template.)
    arena = arena_of(POOR, "{name: top, parent: true, properties: {preemption.policy: disabled}}").having(
        {"n": {"memory": 10}}, {"p": "root.poor"}
    )
    leaf, _, problem = arena.partition.queue_tree.create_queue("root.top.made")
    assert leaf is not None, problem
    arena.app("d", "root.top.made")
    arena.want("d", "k", memory=10)
    arena.want("p", "ask", memory=1)
    assert search(arena) is NoPreemptionReason.NO_VICTIMS


# ---- priorities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("poor", "rich", "most"), [(0, 0, 5), (3, 0, 8), (-3, 0, 2), (0, 3, 2), (0, -3, 8), (2, 2, 5)])
def test_offsets_add_on_the_way_up_and_come_off_on_the_way_down(poor: int, rich: int, most: int) -> None:
    asker = f"{{name: poor, resources: {{guaranteed: {{memory: 10}}}}, properties: {{priority.offset: '{poor}'}}}}"
    giver = f"{{name: rich, properties: {{priority.offset: '{rich}'}}}}"
    for priority, goes in ((most, True), (most + 1, False)):
        arena = two_queues(poor=asker, rich=giver)
        arena.want("r", "k", memory=10, priority=priority)
        arena.want("p", "ask", memory=1, priority=5)
        assert isinstance(search(arena), Plan) == goes, priority


def test_a_priority_fence_on_the_way_up_leaves_its_offset_only() -> None:
    poor = (
        "{name: poor, resources: {guaranteed: {memory: 10}}, "
        "properties: {priority.policy: fence, priority.offset: '2'}}"
    )
    for priority, goes in ((2, True), (3, False)):
        arena = two_queues(poor=poor)
        arena.want("r", "k", memory=10, priority=priority)
        arena.want("p", "ask", memory=1, priority=1000)
        assert isinstance(search(arena), Plan) == goes, priority


# ---- who may be a victim, and in which order -----------------------------------------------------------------------


def test_an_allocation_that_opted_out_is_no_victim() -> None:
    arena = two_queues()
    arena.want("r", "k", memory=10, victim=False)
    arena.want("p", "ask", memory=1)
    assert search(arena) is NoPreemptionReason.NO_VICTIMS


def test_where_the_partition_says_so_opted_out_ones_go_last() -> None:
    arena = two_queues(opted_out_last=True)
    arena.want("r", "willing", memory=5, originator=True, priority=1)
    arena.wait(1)
    arena.want("r", "opted-out", memory=5, victim=False)
    arena.want("p", "ask", memory=5, priority=1)
    assert victims(arena) == ["willing"]
    arena.want("p", "both", memory=10, priority=1)
    assert victims(arena, key="both") == ["willing", "opted-out"]


def test_originators_go_late() -> None:
    arena = two_queues()
    arena.want("r", "worker", memory=5, priority=3)
    arena.wait(1)
    arena.want("r", "driver", memory=5, originator=True)
    arena.want("p", "ask", memory=5, priority=3)
    assert victims(arena) == ["worker"]
    arena.want("p", "both", memory=10, priority=3)
    assert victims(arena, key="both") == ["worker", "driver"]


def test_lower_priorities_go_first_wherever_they_are() -> None:
    arena = two_queues(memory=4)
    for n, priority in ((2, 3), (3, 1), (4, 2)):
        arena.node(f"n{n}", memory=4)
        arena.held("r", f"k{n}", f"n{n}", memory=4, priority=priority)
    arena.held("r", "k1", "n", memory=4, priority=5)
    arena.want("p", "ask", memory=4, priority=5)
    assert victims(arena) == ["k3"]


def test_few_of_the_same_priority_go_rather_than_many() -> None:
    arena = two_queues()
    arena.node("m", memory=10)
    arena.held("r", "one", "n", memory=10)
    arena.wait(1)
    for n in range(5):
        arena.held("r", f"k{n}", "m", memory=2)
    arena.want("p", "ask", memory=10)
    assert victims(arena) == ["one"]


def test_the_youngest_goes_first_then_the_node_of_the_lower_name() -> None:
    arena = two_queues()
    for node_id in ("c", "b"):
        arena.node(node_id, memory=10)
    arena.held("r", "old", "n", memory=10)
    arena.wait(1)
    arena.held("r", "young-c", "c", memory=10)
    arena.held("r", "young-b", "b", memory=10)
    arena.want("p", "ask", memory=10)
    assert victims(arena) == ["young-b"]


def test_the_node_that_is_kept_for_the_ask_is_taken_where_it_costs_the_same() -> None:
    arena = two_queues()
    arena.node("z", memory=10)
    arena.held("r", "k1", "n", memory=10)
    arena.held("r", "k2", "z", memory=10)
    arena.want("p", "ask", memory=10)
    arena.partition.reservations.reserve(arena.the_ask("p", "ask"), arena.the_node("z"), Outcome(), arena.now_ns)
    assert victims(arena) == ["k2"]


def test_no_victim_is_released_without_need() -> None:
    arena = two_queues(memory=10, gpu=4)
    arena.want("r", "small", wanted=4, memory=1)
    arena.want("r", "gpu", memory=1, gpu=4)
    arena.want("r", "large", memory=5)
    arena.want("p", "ask", memory=6, gpu=1)
    assert sorted(victims(arena)) == ["gpu", "large"]


def test_a_search_goes_back_where_the_first_choice_led_nowhere() -> None:
    # Large first would take 4 of the 5 that may go, and then there is no way to the 5 that are needed.
    arena = two_queues(rich="{name: rich, resources: {guaranteed: {memory: 7}}}", memory=12)
    arena.want("r", "large", memory=4)
    arena.want("r", "b", memory=3)
    arena.want("r", "c", memory=2)
    arena.want("r", "d", memory=3)
    arena.want("p", "ask", memory=5)
    assert sorted(victims(arena)) in (["b", "c"], ["c", "d"])


def test_daemons_foreign_and_releasing_allocations_are_no_victims() -> None:
    arena = two_queues(memory=20)
    arena.want("r", "daemon", memory=5, required_node="n")
    arena.want("r", "told", memory=5)
    arena.want("r", "timed-out", memory=5)
    alien = AskItem("alien", "", "default", {"memory": 5}, node_id="n", tags={"foreign": "default"})
    arena.do(UpdateAllocations([alien]))
    arena.want("p", "first", memory=5)
    arena.application("r").allocations["timed-out"].timed_out = True
    carry_out(arena, "p", "first")
    assert arena.application("r").allocations["told"].preempted is not None
    arena.want("p", "ask", memory=5)
    assert search(arena) in (NoPreemptionReason.NO_VICTIMS, NoPreemptionReason.NOT_ENOUGH_VICTIMS)


@pytest.mark.parametrize("closed", ["drained", "kept for one of higher rank"])
def test_nodes_that_are_not_there_for_the_ask_are_left_alone(closed: str) -> None:
    arena = two_queues()
    arena.held("r", "k", "n", memory=10)
    arena.want("p", "other", memory=1)
    arena.want("p", "ask", memory=1)
    if closed == "drained":
        arena.do(UpdateNodes((NodeItem("n", NodeAction.DRAIN_NODE),)))
    else:
        arena.partition.reservations.reserve(arena.the_ask("p", "other"), arena.the_node("n"), Outcome(), arena.now_ns)
    assert search(arena) is (
        NoPreemptionReason.NOT_ENOUGH_VICTIMS if closed == "drained" else NoPreemptionReason.NODES_CLAIMED
    )


# ---- earlier preemptions that are not through ----------------------------------------------------------------------


def test_victims_of_one_ask_do_not_count_for_another() -> None:
    arena = two_queues()
    arena.node("m", memory=10)
    arena.held("r", "k1", "n", memory=10)
    arena.held("r", "k2", "m", memory=10)
    arena.want("p", "first", memory=5)
    arena.want("p", "second", memory=5)
    carry_out(arena, "p", "first")
    carry_out(arena, "p", "second")
    assert all(held.preempted is not None for held in arena.application("r").allocations.values())


def test_an_ask_for_which_others_go_counts_against_its_queues_guarantee() -> None:
    arena = two_queues()
    arena.held("r", "k", "n", memory=10)
    for n in range(2):
        arena.node(f"n{n}", memory=10)
        arena.held("r", f"k{n}", f"n{n}", memory=10)
    arena.want("p", "first", memory=6)
    carry_out(arena, "p", "first")
    arena.want("p", "second", memory=6)
    assert search(arena, key="second") is NoPreemptionReason.OVER_GUARANTEE
    arena.want("p", "third", memory=4)
    assert isinstance(search(arena, key="third"), Plan)


def test_releasing_allocations_no_longer_count_for_the_victims_guarantee() -> None:
    arena = two_queues(rich="{name: rich, resources: {guaranteed: {memory: 8}}}", memory=8)
    arena.node("m", memory=8)
    arena.held("r", "k1", "n", memory=8)
    arena.held("r", "k2", "m", memory=8)
    arena.want("p", "first", memory=1)
    arena.want("p", "second", memory=1)
    carry_out(arena, "p", "first")
    assert search(arena, key="second") in (NoPreemptionReason.NO_VICTIMS, NoPreemptionReason.NOT_ENOUGH_VICTIMS)


def test_releasing_allocations_on_the_asks_reserved_node_are_room_for_it() -> None:
    arena = two_queues()
    arena.held("r", "gone-soon", "n", memory=6)
    arena.held("r", "stays", "n", memory=4)
    arena.want("p", "ask", memory=8)
    arena.partition.reservations.reserve(arena.the_ask("p", "ask"), arena.the_node("n"), Outcome(), arena.now_ns)
    going = arena.application("r").allocations["gone-soon"]
    why = PreemptionRecord("QUOTA", "", "", "root.rich", arena.now_ns)
    arena.partition.releases.preempt(going, why, "", Outcome(), arena.now_ns)
    assert victims(arena) == ["stays"]


# ---- limits --------------------------------------------------------------------------------------------------------


def test_an_ask_that_fits_needs_no_victims() -> None:
    arena = two_queues()
    arena.want("r", "k", memory=9)
    arena.core.apply(UpdateAllocations([AskItem("ask", "p", "default", {"memory": 1})]), arena.now_ns)
    assert search(arena) is NoPreemptionReason.NOT_NEEDED


def test_a_users_limit_is_moved_by_the_same_users_allocations_only() -> None:
    limits = "limits: [{users: [alice], maxresources: {memory: 4}}]"
    top = f"{{name: top, {limits}, queues: [{POOR}, {{name: twin}}]}}"
    arena = arena_of(top)
    arena.node("n", memory=20)
    arena.app("p", "root.top.poor", user="alice")
    arena.app("hers", "root.top.twin", user="alice")
    arena.app("his", "root.top.twin", user="bob")
    arena.want("his", "k1", memory=4)
    arena.want("p", "ask", memory=4)  # placed: nothing is in the way yet
    arena.release("p", "ask")
    arena.want("hers", "k2", memory=4)
    arena.want("p", "again", memory=3)
    assert victims(arena, key="again") == ["k2"]


def test_a_limit_in_which_no_victim_counts_is_not_relieved() -> None:
    limits = "limits: [{users: [alice], maxresources: {memory: 4}}]"
    arena = arena_of(f"{{name: poor, resources: {{guaranteed: {{memory: 10}}}}, {limits}}}", RICH)
    arena.node("n", memory=10)
    arena.app("p", "root.poor", user="alice")
    arena.app("r", "root.rich", user="bob")
    arena.want("r", "k", memory=10)
    arena.want("p", "ask", memory=5)
    assert search(arena) is NoPreemptionReason.LIMIT


def test_an_application_that_may_not_run_preempts_nothing() -> None:
    arena = two_queues(poor="{name: poor, maxapplications: 1, resources: {guaranteed: {memory: 10}}}", memory=11)
    arena.app("q", "root.poor")
    arena.want("p", "runs", memory=1)
    arena.want("r", "k", memory=10)
    arena.want("q", "ask", memory=1)
    assert search(arena, "q") is NoPreemptionReason.LIMIT


@pytest.mark.source  # it replaces a limit
def test_a_search_that_has_too_many_ways_to_try_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = two_queues(memory=40)
    arena.want("r", "k", wanted=40, memory=1)
    arena.want("p", "ask", memory=9)
    monkeypatch.setattr(victim_search, "STEPS_PER_NODE_MAX", 5)
    assert search(arena) is NoPreemptionReason.TOO_MANY_WAYS


# ---- by priority, in one leaf --------------------------------------------------------------------------------------


def one_leaf(leaf: str = "{name: a}", *, opted_out_last: bool = False, memory: int = 10) -> Arena:
    arena = arena_of(leaf, opted_out_last=opted_out_last).having({"n": {"memory": memory}}, {"p": "root.a"})
    arena.app("r", "root.a", user="bob")
    return arena


def test_a_higher_priority_takes_from_a_lower_one_in_its_leaf() -> None:
    arena = one_leaf()
    arena.want("r", "k", wanted=5, memory=2, priority=1)
    arena.want("p", "ask", memory=3, priority=2)
    found = search(arena)
    assert isinstance(found, Plan)
    assert len(found.victims) == 2
    why = found.victims[0].why
    assert (why.rule, why.queue) == ("PRIORITY", "root.a")
    assert (why.victim_share_before, why.asker_share_before) == (1.0, 1.0)
    assert (why.victim_share_after, why.asker_share_after) == (0.9, 0.9)  # 10 - 4 + 3


@pytest.mark.parametrize("case", ["same priority", "same application", "property", "disabled", "opted out"])
def test_otherwise_no_ask_preempts_in_its_own_leaf(case: str) -> None:
    properties = {"property": "{preemption.priority: disabled}", "disabled": "{preemption.policy: disabled}"}
    arena = one_leaf(f"{{name: a, properties: {properties.get(case, '{}')}}}")
    owner = "p" if case == "same application" else "r"
    arena.want(owner, "k", memory=10, priority=2 if case == "same priority" else 1, victim=case != "opted out")
    arena.want("p", "ask", memory=1, priority=2)
    assert search(arena) in (NoPreemptionReason.NO_GUARANTEE, NoPreemptionReason.NOT_ENOUGH_VICTIMS)


def test_guarantees_do_not_matter_in_one_leaf() -> None:
    arena = one_leaf("{name: a, resources: {guaranteed: {memory: 10}}}")
    arena.want("r", "k", memory=10, priority=1)
    arena.want("p", "ask", memory=1, priority=2)
    assert victims(arena) == ["k"]


def test_a_fence_does_not_matter_in_one_leaf() -> None:
    arena = one_leaf("{name: a, properties: {preemption.policy: fence}}")
    arena.want("r", "k", memory=10, priority=1)
    arena.want("p", "ask", memory=1, priority=2)
    assert victims(arena) == ["k"]


def test_a_users_limit_in_the_leaf_is_moved_by_the_same_user() -> None:
    arena = one_leaf("{name: a, limits: [{users: ['*'], maxresources: {memory: 4}}]}")
    arena.app("mine", "root.a")  # alice's, as p
    arena.want("r", "k", memory=4, priority=1)
    arena.want("mine", "own", memory=4, priority=1)
    arena.want("p", "ask", memory=1, priority=2)
    assert victims(arena) == ["own"]


def test_other_queues_give_first_then_lower_priorities_in_the_leaf() -> None:
    arena = two_queues(memory=20)
    arena.app("low", "root.poor")
    arena.want("low", "low", memory=2, priority=1)
    arena.wait(1)
    arena.want("r", "k", memory=18)
    arena.want("p", "ask", memory=2, priority=2)
    assert victims(arena) == ["k"]


def test_both_rules_together_where_neither_is_enough() -> None:
    arena = two_queues(rich="{name: rich, resources: {guaranteed: {memory: 4}}}")
    arena.app("low", "root.poor")
    arena.want("low", "low", memory=2, priority=1)
    arena.want("r", "k", wanted=4, memory=2)
    arena.want("p", "ask", memory=6, priority=2)
    found = search(arena)
    assert isinstance(found, Plan)
    assert sorted(victim.why.rule for victim in found.victims) == ["GUARANTEE", "GUARANTEE", "PRIORITY"]


# ---- the one node of a daemon --------------------------------------------------------------------------------------


def daemon(arena: Arena, key: str = "ask", *, memory: int, priority: int = 0) -> Plan | NoPreemptionReason:
    item = AskItem(
        key,
        "p",
        "default",
        {"memory": memory},
        wanted=1,
        priority=priority,
        tags={"yunikorn.apache.org/requiredNode": "n"},
    )
    arena.core.apply(UpdateAllocations([item]), arena.now_ns)
    ask, node = arena.the_ask("p", key), arena.the_node("n")
    arena.partition.reservations.reserve(ask, node, Outcome(), arena.now_ns)
    return victim_search.search_required_node(arena.partition, ask, node, arena.now_ns)


def keys(found: Plan | NoPreemptionReason) -> list[str]:
    assert isinstance(found, Plan), found
    assert {victim.why.rule for victim in found.victims} == {"REQUIRED_NODE"}
    return [victim.allocation.key for victim in found.victims]


def test_plain_ones_go_then_originators_by_priority_the_youngest_and_smallest_first() -> None:
    arena = two_queues()
    arena.held("r", "driver", "n", memory=2, originator=True)
    arena.held("r", "high", "n", memory=2, priority=1)
    arena.held("r", "old", "n", memory=2)
    arena.wait(1)
    arena.held("r", "large", "n", memory=3)
    arena.held("r", "small", "n", memory=1)
    assert keys(daemon(arena, memory=1, priority=1)) == ["small"]
    arena.release("p", "ask")
    assert keys(daemon(arena, memory=4, priority=1)) == ["small", "large"]
    arena.release("p", "ask")
    assert keys(daemon(arena, memory=8, priority=1)) == ["small", "large", "old", "high"]
    arena.release("p", "ask")
    assert keys(daemon(arena, memory=10, priority=1)) == ["small", "large", "old", "high", "driver"]


def test_for_a_daemon_opted_out_ones_go_before_originators_where_they_go_at_all() -> None:
    arena = two_queues(opted_out_last=True)
    arena.held("r", "driver", "n", memory=5, originator=True)
    arena.held("r", "opted-out", "n", memory=5, victim=False)
    assert keys(daemon(arena, memory=1)) == ["opted-out"]
    arena = two_queues()
    arena.held("r", "opted-out", "n", memory=10, victim=False)
    assert daemon(arena, memory=1) is NoPreemptionReason.NO_VICTIMS


def test_a_daemon_over_a_limit_takes_nothing() -> None:
    arena = two_queues(poor="{name: poor, resources: {max: {memory: 3}}}")
    arena.held("r", "k", "n", memory=10)
    assert daemon(arena, memory=4) is NoPreemptionReason.LIMIT


def test_two_daemons_do_not_count_on_the_same_room() -> None:
    arena = two_queues()
    arena.held("r", "k1", "n", memory=5)
    arena.wait(1)
    arena.held("r", "k2", "n", memory=5)
    first = daemon(arena, "first", memory=3)
    assert keys(first) == ["k2"]
    arena.partition.long_wait.execute(first, arena.the_ask("p", "first"), Outcome(), arena.now_ns)  # type: ignore[arg-type]
    assert daemon(arena, "second", memory=2) is NoPreemptionReason.NOT_NEEDED  # of the 5 that go, 2 are left
    assert keys(daemon(arena, "third", memory=3)) == ["k1"]
