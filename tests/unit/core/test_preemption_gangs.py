"""Gangs and preemption (docs/preemption.md): single members, or the whole of them, rule by rule.

Quantities are of memory and gpu, which are written as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from muster_core.config.queue_config import PreemptionConfig
from muster_core.model.application import Allocation
from muster_core.model.commands import (
    AppItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
)
from muster_core.model.outcome import Outcome
from muster_core.model.reasons import NoPreemptionReason, ReasonCode
from muster_core.model.states import GangPhase
from muster_core.preemption import victim_search
from muster_core.preemption import victims as preemption_victims
from muster_core.preemption.plan import Plan
from muster_core.preemption.rules import quota as quota_rule
from muster_core.preemption.rules import revoked_offer
from preempting import Arena, item, told

POLICIES = pytest.mark.parametrize("policy", ["members", "whole"])
POOR = "{name: poor, resources: {guaranteed: {memory: 10}}}"


def arena_of(
    *queues: str, opted_out_last: bool = False, quota: bool = False, nodes: int = 2, memory: int = 10
) -> Arena:
    """So many nodes n0, n1 ... with so much memory, and 4 gpu each."""
    root = f"{{name: root, submitacl: '*', queues: [{', '.join(queues)}]}}"
    arena = Arena(root, preemption=PreemptionConfig(opted_out_last=opted_out_last, quota_enabled=quota))
    for n in range(nodes):
        arena.node(f"n{n}", memory=memory, gpu=4)
    return arena


def rich(policy: str, *, guaranteed: int = 0, more: str = "") -> str:
    resources = f"resources: {{guaranteed: {{memory: {guaranteed}}}}}, " if guaranteed else ""
    return f"{{name: rich, {resources}properties: {{gang.preemption: {policy}, {more}}}}}"


def two_queues(policy: str, **what: Any) -> Arena:
    """poor (guaranteed 10) with application p; rich with the gang g and with r, which has none."""
    guaranteed, more = what.pop("guaranteed", 0), what.pop("more", "")
    arena = arena_of(POOR, rich(policy, guaranteed=guaranteed, more=more), **what)
    arena.app("p", "root.poor")
    arena.app("g", "root.rich", user="bob")
    arena.app("r", "root.rich", user="carl")
    return arena


def one_leaf(policy: str, **what: Any) -> Arena:
    arena = arena_of(f"{{name: a, properties: {{gang.preemption: {policy}}}}}", **what)
    for app_id, user in (("p", "alice"), ("g", "bob"), ("r", "carl")):
        arena.app(app_id, "root.a", user=user)
    return arena


def member(arena: Arena, key: str, node_id: str, *, app_id: str = "g", placeholder: bool = True, **what: Any) -> None:
    arena.held(app_id, key, node_id, task_group=what.pop("task_group", "t"), placeholder=placeholder, **what)


def search(arena: Arena, app_id: str = "p", key: str = "ask") -> Plan | NoPreemptionReason:
    return victim_search.search(arena.partition.cluster, arena.the_ask(app_id, key), arena.now_ns)


def victims(arena: Arena, app_id: str = "p", key: str = "ask") -> list[str]:
    """The keys of the victims, in order. Fails if there are none."""
    return keys(search(arena, app_id, key))


def keys(found: Plan | NoPreemptionReason) -> list[str]:
    assert isinstance(found, Plan), found
    return [victim.allocation.key for victim in found.victims]


def carry_out(arena: Arena, app_id: str = "p", key: str = "ask") -> Outcome:
    """(By hand: asks may preempt only when they are 30 s old.)"""
    found = search(arena, app_id, key)
    assert isinstance(found, Plan), found
    out = Outcome()
    arena.partition.long_wait.execute(found, arena.the_ask(app_id, key), out, arena.now_ns)
    return out


def the(arena: Arena, key: str, app_id: str = "g") -> Allocation:
    return arena.application(app_id).allocations[key]


# ---- by guarantee, and by priority ---------------------------------------------------------------------------------


@POLICIES
def test_by_guarantee_one_member_goes_or_all_of_them_wherever_they_are(policy: str) -> None:
    arena = two_queues(policy)
    for n in range(4):
        member(arena, f"m{n}", f"n{n % 2}", memory=5)
    arena.want("p", "ask", memory=3)
    found = search(arena)
    assert isinstance(found, Plan)
    assert keys(found) == (["m2"] if policy == "members" else ["m0", "m1", "m2", "m3"])
    assert found.node is arena.the_node("n0")
    for victim in found.victims:
        why = victim.why
        assert (why.rule, why.app_id, why.key, why.queue) == ("GUARANTEE", "p", "ask", "root.poor")
        left = 15 if policy == "members" else 0
        assert (why.victim_share_before, why.victim_share_after) == (1.0, left / 20)


@POLICIES
def test_by_priority_one_member_goes_or_all_of_them(policy: str) -> None:
    arena = one_leaf(policy)
    for n in range(4):
        member(arena, f"m{n}", f"n{n % 2}", memory=5)
    arena.want("p", "ask", memory=3, priority=1)
    found = search(arena)
    assert isinstance(found, Plan)
    assert keys(found) == (["m2"] if policy == "members" else ["m0", "m1", "m2", "m3"])
    assert {victim.why.rule for victim in found.victims} == {"PRIORITY"}


def test_allocations_with_a_task_group_are_members_and_others_are_not() -> None:
    arena = two_queues("whole")
    member(arena, "held", "n0", memory=4)
    member(arena, "runs", "n1", memory=4, placeholder=False)
    member(arena, "other-group", "n1", memory=4, task_group="u")
    arena.held("g", "driver", "n0", memory=6)
    arena.held("r", "fills", "n1", memory=2)
    arena.want("p", "ask", memory=3)
    assert victims(arena) == ["driver"]  # alone: it is cheaper than the gang, and no part of it
    arena.want("p", "large", memory=8)
    assert victims(arena, key="large") == ["held", "runs", "other-group"]


def test_an_application_without_placeholders_is_no_gang_whatever_its_task_groups() -> None:
    arena = two_queues("whole")
    for n in range(2):
        member(arena, f"m{n}", f"n{n}", app_id="r", placeholder=False, memory=10)
    arena.want("p", "ask", memory=3)
    assert victims(arena) == ["m0"]


@pytest.mark.parametrize(
    "case", ["required node", "opted out", "opted out, they go last", "priority", "guarantee", "leaving for a real ask"]
)
@POLICIES
def test_one_member_that_may_not_go_keeps_the_whole_gang(case: str, policy: str) -> None:
    guaranteed = 6 if case == "guarantee" else 0
    arena = two_queues(policy, opted_out_last=case.endswith("last"), guaranteed=guaranteed)
    member(arena, "m0", "n0", memory=5)
    member(arena, "m1", "n0", memory=5)
    special: dict[str, Any] = {
        "required node": {"required_node": "n1"},
        "opted out": {"victim": False},
        "opted out, they go last": {"victim": False},
        "priority": {"priority": 2},
    }.get(case, {})
    member(arena, "special", "n1", memory=5, **special)
    arena.held("r", "fills", "n1", memory=5, required_node="n1")
    if case == "leaving for a real ask":
        arena.want("g", "real", memory=5, task_group="t")
        assert the(arena, "m0").replaced_by == "real"
    arena.want("p", "ask", memory=3, priority=1)
    if policy == "members":
        assert victims(arena) == ["m1"]
    elif case == "opted out, they go last":
        assert victims(arena) == ["m0", "m1", "special"]
    else:
        assert search(arena) in (NoPreemptionReason.NO_VICTIMS, NoPreemptionReason.NOT_ENOUGH_VICTIMS)
    if case == "guarantee" and policy == "whole":
        arena.release("r", "fills")  # (of 20 in all 6 are guaranteed; without: 15)
        arena.held("r", "more", "n1", memory=5, victim=False)
        arena.node("n9", memory=1)
        arena.held("r", "rest", "n9", memory=1, victim=False)
        arena.want("p", "again", memory=3, priority=1)
        assert victims(arena, key="again") == ["m0", "m1", "special"]  # 6 of 21 stay


def test_members_that_are_releasing_do_not_protect_the_others() -> None:
    arena = two_queues("whole")
    for n in range(3):
        member(arena, f"m{n}", "n0", memory=3)
    arena.held("r", "fills", "n1", memory=10, victim=False)
    arena.partition.releases.time_out(the(arena, "m0"), "over", Outcome(), arena.now_ns)
    arena.want("p", "ask", memory=3)
    assert victims(arena) == ["m1", "m2"]


def test_a_gang_goes_once_the_placeholder_is_gone_that_leaves_for_a_real_ask() -> None:
    for way in ("confirmed", "withdrawn"):
        arena = two_queues("whole")
        member(arena, "m0", "n0", memory=5)
        member(arena, "m1", "n0", memory=5)
        arena.held("r", "fills", "n1", memory=10, victim=False)
        arena.want("g", "real", memory=5, task_group="t")
        arena.want("p", "ask", memory=3)
        assert not isinstance(search(arena), Plan)
        if way == "withdrawn":
            ask = ReleaseItem("default", "g", "real", Termination.STOPPED_BY_RM, ask_only=True)
            arena.do(UpdateAllocations((), [ask]))
            assert not isinstance(search(arena), Plan)  # (m0 goes in any case)
        arena.release("g", "m0", Termination.PLACEHOLDER_REPLACED)
        if way == "confirmed":
            assert victims(arena) == ["m1", "real"]
        else:
            assert arena.placed("p") == {"ask": "n0"}
            arena.want("p", "more", memory=3)
            assert victims(arena, key="more") == ["m1"]


def test_the_policy_may_change_while_gangs_run() -> None:
    arena = two_queues("members")
    for n in range(4):
        member(arena, f"m{n}", f"n{n % 2}", memory=5)
    for n in range(3):
        arena.want("p", f"ask{n}", memory=3)
    assert victims(arena, key="ask0") == ["m2"]
    carry_out(arena, key="ask0")
    arena.reload(f"{{name: root, submitacl: '*', queues: [{POOR}, {rich('whole')}]}}")
    assert victims(arena, key="ask1") == ["m0", "m1", "m3"]  # m2 goes already
    arena.reload(f"{{name: root, submitacl: '*', queues: [{POOR}, {rich('members')}]}}")
    assert len(victims(arena, key="ask1")) == 1


def test_an_application_may_become_a_gang_between_two_looks() -> None:
    arena = two_queues("whole")
    for n in range(2):
        member(arena, f"m{n}", f"n{n}", app_id="r", placeholder=False, memory=5)
        arena.held("g", f"dear{n}", f"n{n}", memory=5, priority=1)
    arena.want("p", "ask", memory=3, priority=1)
    assert victims(arena) == ["m0"]
    before = arena.partition.version
    ask = item("r", "m2", task_group="t", placeholder=True, memory=10)
    arena.core.apply(UpdateAllocations([ask]), arena.now_ns)
    assert victims(arena) == ["m0", "m1"]
    carry_out(arena)
    assert arena.partition.version > before
    assert the(arena, "m1", "r").preempted is not None
    arena.want("p", "another", memory=5, priority=1)
    assert search(arena, key="another") is NoPreemptionReason.NOT_NEEDED  # m1 leaves it


def test_a_gang_of_the_asks_own_application_is_no_victim_by_priority() -> None:
    arena = one_leaf("whole")
    for n in range(2):
        member(arena, f"m{n}", f"n{n}", app_id="p", memory=10)
    arena.want("p", "ask", memory=3, priority=1)
    assert not isinstance(search(arena), Plan)


# ---- which of them -------------------------------------------------------------------------------------------------


def test_a_lower_class_goes_first_though_it_is_a_gang() -> None:
    arena = two_queues("whole", nodes=3)
    arena.held("r", "alone", "n2", memory=10, priority=1)
    for n in range(2):
        member(arena, f"m{n}", f"n{n}", memory=10)
    arena.want("p", "ask", memory=10, priority=1)
    assert victims(arena) == ["m0", "m1"]


def test_a_gangs_class_is_that_of_its_dearest_member() -> None:
    arena = two_queues("whole", nodes=3)
    arena.held("r", "alone", "n2", memory=10, priority=1)
    member(arena, "m0", "n0", memory=10)
    member(arena, "m1", "n1", memory=10, originator=True)
    arena.want("p", "ask", memory=10, priority=1)
    assert victims(arena) == ["alone"]
    arena.release("p", "ask")
    arena.release("r", "alone")
    arena.held("r", "alone", "n2", memory=10, priority=1, originator=True)
    arena.want("p", "other", memory=10, priority=1)
    assert victims(arena, key="other") == ["m0", "m1"]  # one originator each, and priority 0


def test_the_smaller_gang_goes() -> None:
    arena = two_queues("whole", nodes=5)
    arena.app("h", "root.rich")
    for n in range(3):
        member(arena, f"g{n}", f"n{n}", memory=10)
    for n in range(2):
        member(arena, f"h{n}", f"n{n + 3}", app_id="h", memory=10)
    arena.want("p", "ask", memory=10)
    assert victims(arena) == ["h0", "h1"]


def test_a_gang_that_others_make_needless_stays() -> None:
    arena = two_queues("whole")
    member(arena, "m0", "n0", memory=2)
    member(arena, "m1", "n1", memory=2)
    arena.held("r", "alone", "n0", memory=3)
    arena.held("r", "fills", "n0", memory=5)
    arena.held("r", "rest", "n1", memory=8, victim=False)
    arena.want("p", "ask", memory=8)
    assert sorted(victims(arena)) == ["alone", "fills"]


def test_a_gang_and_single_ones_together_where_neither_is_enough() -> None:
    arena = two_queues("whole")
    member(arena, "m0", "n0", memory=5)
    member(arena, "m1", "n1", memory=5)
    arena.held("r", "alone", "n0", memory=5)
    arena.held("r", "rest", "n1", memory=5, victim=False)
    arena.want("p", "ask", memory=9)
    assert sorted(victims(arena)) == ["alone", "m0", "m1"]


def test_below_a_limit_all_of_a_gang_counts_once() -> None:
    top = f"{{name: top, resources: {{max: {{memory: 20}}}}, queues: [{POOR}, {rich('whole')}]}}"
    arena = arena_of(top, nodes=6).having({}, {"p": "root.top.poor", "g": "root.top.rich"})
    for n in range(4):
        member(arena, f"m{n}", f"n{n}", memory=5)
    arena.want("p", "ask", memory=10)  # there is room on n4, below the max there is none
    found = search(arena)
    assert isinstance(found, Plan)
    assert keys(found) == ["m0", "m1", "m2", "m3"]
    assert found.node is arena.the_node("n4")


def test_a_gang_makes_room_on_a_node_and_below_a_limit_at_once() -> None:
    top = f"{{name: top, resources: {{max: {{memory: 20}}}}, queues: [{POOR}, {rich('whole')}]}}"
    arena = arena_of(top, nodes=2).having({}, {"p": "root.top.poor", "g": "root.top.rich", "r": "root.top.rich"})
    member(arena, "m0", "n0", memory=5)
    member(arena, "m1", "n1", memory=5)
    arena.held("r", "a", "n0", memory=5, victim=False)
    arena.held("r", "b", "n1", memory=5, victim=False)
    arena.want("p", "ask", memory=5)
    assert victims(arena) == ["m0", "m1"]


# ---- those told to go leave room for others ------------------------------------------------------------------------


def test_room_of_a_released_gang_elsewhere_replaces_another_preemption() -> None:
    arena = two_queues("whole", nodes=4)
    arena.app("h", "root.rich")
    for n in range(2):
        member(arena, f"g{n}", f"n{n}", memory=10)
        member(arena, f"h{n}", f"n{n + 2}", app_id="h", memory=10)
    for n in range(3):
        arena.want("p", f"ask{n}", memory=3)
    assert keys(search(arena, key="ask0")) == ["g0", "g1"]
    out = carry_out(arena, key="ask0")
    assert arena.the_ask("p", "ask0").reserved_node == "n0"
    assert search(arena, key="ask1") is NoPreemptionReason.NOT_NEEDED
    arena.want("p", "large", memory=11)
    assert search(arena, key="large") is NoPreemptionReason.OVER_GUARANTEE  # that is another matter
    arena.release("p", "large")
    arena.confirm(out)
    assert sorted(arena.placed("p")) == ["ask0", "ask1", "ask2"]
    assert not any(held.releasing for held in arena.application("h").allocations.values())


def test_the_room_of_single_members_is_for_the_ask_that_preempted_them() -> None:
    arena = two_queues("members", nodes=2)
    for n in range(2):
        member(arena, f"m{n}", f"n{n}", memory=10)
    for n in range(2):
        arena.want("p", f"ask{n}", memory=5)
    carry_out(arena, key="ask0")
    assert keys(search(arena, key="ask1")) == ["m1"]


# ---- the gang afterwards -------------------------------------------------------------------------------------------


def forming(policy: str, *, asked: int, nodes: int = 2, start: str = "whole") -> Arena:
    """g is a gang of so many placeholders of 5, in a queue that can hold them; two fit on each node."""
    arena = arena_of(POOR, rich(policy, more=f"gang.start: {start}"), nodes=nodes)
    arena.app("p", "root.poor")
    gang = AppItem("g", "root.rich", "default", "bob", placeholder_ask={"memory": 5 * asked})
    arena.do(UpdateApplications((gang,)))
    items = [item("g", f"m{n}", task_group="t", placeholder=True, memory=5) for n in range(asked)]
    arena.do(UpdateAllocations(items))
    return arena


def test_a_gang_that_is_preempted_whole_while_it_forms_holds_nothing_and_keeps_its_asks() -> None:
    arena = forming("whole", asked=6)
    gang = arena.application("g").gang
    assert gang is not None
    assert gang.phase is GangPhase.FORMING
    assert sorted(arena.placed("g")) == ["m0", "m1", "m2", "m3"]
    arena.want("p", "ask", memory=5)
    out = arena.wait(30)
    assert [key for _, key in told(out)] == ["m0", "m1", "m2", "m3"]
    assert gang.phase is GangPhase.WAITING  # it starts again as a whole,
    assert gang.promised == {}  # nothing is kept from others for it,
    assert sorted(arena.application("g").asks) == ["m4", "m5"]  # and what was not placed is still asked for
    arena.confirm(out)
    assert len(arena.placed("p")) == 1
    counts = gang.groups["t"]
    assert (counts.asked, counts.pending + counts.held, counts.lost) == (6, 2, 4)


def test_single_members_go_while_a_gang_forms_and_it_goes_on() -> None:
    arena = forming("members", asked=6)
    gang = arena.application("g").gang
    assert gang is not None
    arena.want("p", "ask", memory=5)
    out = arena.wait(30)
    assert len(told(out)) == 1
    assert gang.phase is GangPhase.FORMING
    assert (gang.groups["t"].held, len(gang.groups["t"].free)) == (4, 3)


# ---- gangs that ask ------------------------------------------------------------------------------------------------


def test_a_gang_without_room_as_a_whole_preempts_nothing() -> None:
    poor = "{name: poor, resources: {guaranteed: {memory: 10}, max: {memory: 10}}}"
    arena = arena_of(poor, rich("members")).having({}, {"r": "root.rich", "q": "root.poor"})
    for n in range(2):
        arena.held("r", f"k{n}", f"n{n}", memory=10)
    gang = AppItem("p", "root.poor", "default", "bob", placeholder_ask={"memory": 10})
    arena.do(UpdateApplications((gang,)))
    arena.do(UpdateAllocations([item("p", "m0", task_group="t", placeholder=True, memory=5)]))
    assert isinstance(search(arena, key="m0"), Plan)
    arena.node("n9", memory=1)
    arena.held("q", "one", "n9", memory=1)
    assert search(arena, key="m0") is NoPreemptionReason.LIMIT
    assert told(arena.wait(60)) == []


@pytest.mark.parametrize("why", ["replaced", "timed out"])
def test_a_placeholder_that_goes_already_is_no_victim(why: str) -> None:
    arena = two_queues("members")
    member(arena, "m0", "n0", memory=10)
    member(arena, "m1", "n1", memory=10)
    if why == "replaced":
        arena.want("g", "real", memory=10, task_group="t")
    else:
        arena.partition.releases.time_out(the(arena, "m0"), "over", Outcome(), arena.now_ns)
    assert the(arena, "m0").releasing
    arena.want("p", "ask", memory=1)
    assert victims(arena) == ["m1"]


# ---- daemons -------------------------------------------------------------------------------------------------------


def daemon(arena: Arena, *, memory: int, priority: int = 0, node_id: str = "n0") -> Plan | NoPreemptionReason:
    wanted = item("p", "ask", required_node=node_id, memory=memory, priority=priority)
    arena.core.apply(UpdateAllocations([wanted]), arena.now_ns)
    ask, node = arena.the_ask("p", "ask"), arena.the_node(node_id)
    arena.partition.reservations.reserve(ask, node, Outcome(), arena.now_ns)
    return victim_search.search_required_node(arena.partition, ask, node, arena.now_ns)


@POLICIES
def test_a_daemon_takes_one_member_on_its_node_or_all_wherever_they_are(policy: str) -> None:
    arena = two_queues(policy, guaranteed=20)  # guarantees do not count here
    for n in range(4):
        member(arena, f"m{n}", f"n{n % 2}", memory=5)
    found = daemon(arena, memory=1)
    assert keys(found) == (["m2"] if policy == "members" else ["m0", "m1", "m2", "m3"])
    assert isinstance(found, Plan)
    assert {victim.why.rule for victim in found.victims} == {"REQUIRED_NODE"}
    assert {victim.why.key for victim in found.victims} == {"ask"}


def test_a_daemon_takes_one_alone_before_a_gang_and_the_smaller_gang_first() -> None:
    arena = two_queues("whole", nodes=4)
    arena.app("h", "root.rich")
    for n in range(4):
        member(arena, f"g{n}", f"n{n}", memory=3)
    for n in range(2):
        member(arena, f"h{n}", f"n{n}", app_id="h", memory=3)
    arena.held("r", "alone", "n0", memory=4)
    assert keys(daemon(arena, memory=4)) == ["alone"]
    arena.release("p", "ask")
    assert keys(daemon(arena, memory=7)) == ["alone", "h0", "h1"]


@pytest.mark.parametrize("case", ["priority", "opted out", "required node"])
def test_a_daemon_leaves_a_gang_alone_of_which_one_elsewhere_may_not_go(case: str) -> None:
    special: dict[str, Any] = {
        "priority": {"priority": 1},
        "opted out": {"victim": False},
        "required node": {"required_node": "n1"},
    }[case]
    arena = two_queues("whole")
    member(arena, "m0", "n0", memory=10)
    member(arena, "m1", "n1", memory=10, **special)
    assert daemon(arena, memory=1) is NoPreemptionReason.NO_VICTIMS


def test_a_daemon_takes_the_node_that_is_kept_for_a_replacement_and_the_real_ask_finds_its_way() -> None:
    arena = arena_of("{name: a}", nodes=2, memory=10)
    arena.app("g", "root.a")
    arena.app("p", "root.a", user="bob")
    member(arena, "m0", "n0", memory=5, gpu=1)
    arena.held("p", "fills", "n0", memory=5)
    # 1. The placeholder's node takes nobody new: the real ask will go to n1, which is kept for it.
    arena.partition.node_books.set_node_state(arena.the_node("n0"), {}, schedulable=False)
    arena.want("g", "real", memory=5, task_group="t")
    real = arena.the_ask("g", "real")
    assert real.reserved_node == "n1"
    assert real.group is None
    # 2. Nobody else comes there, nor does anybody preempt there; a daemon does.
    arena.held("p", "on-it", "n1", memory=4)
    arena.want("p", "other", memory=6)
    assert arena.pending("p") == {"other": ReasonCode.RESERVED_FOR_OTHERS.value}
    out = arena.want("p", "daemon", memory=8, required_node="n1")
    assert told(out) == [("p", "on-it")]
    assert not real.reserved_node
    # 3. The placeholder goes: n1 is the daemon's, and the real ask waits as an ordinary one until there is room.
    arena.confirm(out)
    assert arena.placed("p")["daemon"] == "n1"
    arena.release("g", "m0", Termination.PLACEHOLDER_REPLACED)
    assert "real" in arena.application("g").asks
    arena.release("p", "daemon")
    assert arena.placed("g") == {"real": "n1"}


# ---- a queue above its max -----------------------------------------------------------------------------------------


def over(policy: str, maximum: int) -> Arena:
    """Queue a, with a max that is below whatever comes, the gang g and the application r."""
    properties = f"properties: {{gang.preemption: {policy}}}"
    return arena_of(
        f"{{name: a, resources: {{max: {{memory: {maximum}}}}}, {properties}}}", quota=True, nodes=3
    ).having({}, {"g": "root.a", "r": "root.a"})


def cut(arena: Arena) -> list[str]:
    found = victim_search.search_quota(arena.partition, arena.queue("root.a"), arena.now_ns)
    return [victim.allocation.key for victim in found]


@POLICIES
def test_a_cut_takes_single_members_or_a_whole_gang(policy: str) -> None:
    arena = over(policy, 4)
    for n in range(3):
        member(arena, f"m{n}", f"n{n}", memory=2)
    arena.held("r", "stays", "n0", memory=4, victim=False)
    assert cut(arena) == (["m2", "m1", "m0"] if policy == "members" else ["m0", "m1", "m2"])


@POLICIES
def test_a_cut_passes_a_gang_over_that_is_larger_than_what_is_over(policy: str) -> None:
    arena = over(policy, 5)
    for n in range(3):
        member(arena, f"m{n}", f"n{n}", memory=2)
    arena.held("r", "high", "n0", memory=4, priority=5)
    assert quota_rule.excess(arena.queue("root.a")) == {arena.partition.types.number("memory"): 5}
    assert cut(arena) == (["m2", "m1"] if policy == "members" else ["high"])


def test_a_cut_takes_nothing_where_there_is_only_a_gang_that_is_larger() -> None:
    arena = over("whole", 5)
    for n in range(3):
        member(arena, f"m{n}", f"n{n}", memory=2)
    assert cut(arena) == []


def test_a_cut_takes_those_alone_first_then_smaller_gangs() -> None:
    arena = over("whole", 1)
    arena.app("h", "root.a")
    for n in range(3):
        member(arena, f"g{n}", f"n{n}", memory=1)
    for n in range(2):
        member(arena, f"h{n}", f"n{n}", app_id="h", memory=1)
    arena.held("r", "alone", "n0", memory=1)
    assert cut(arena) == ["alone", "h0", "h1"]  # 5 are over; then 2 are left, and g is 3


def test_a_cut_leaves_a_gang_alone_of_which_one_may_not_go() -> None:
    arena = over("whole", 1)
    member(arena, "m0", "n0", memory=2)
    member(arena, "m1", "n1", memory=2, victim=False)
    assert cut(arena) == []


def test_a_parents_cut_takes_a_gang_that_no_childs_part_would_hold_from_the_rest() -> None:
    child = "properties: {gang.preemption: whole}"
    top = f"{{name: a, resources: {{max: {{memory: 4}}}}, queues: [{{name: b, {child}}}, {{name: c, {child}}}]}}"
    arena = arena_of(top, quota=True).having({}, {"g": "root.a.b", "r": "root.a.c"})
    for n in range(2):
        member(arena, f"m{n}", f"n{n}", memory=2)
    arena.held("r", "k", "n0", memory=4, victim=False)
    assert cut(arena) == ["m0", "m1"]  # 4 are over: 2 of each child by their shares, and c gives nothing


# ---- what it costs -------------------------------------------------------------------------------------------------


def lines_run(what: Callable[[], object]) -> int:
    """Of everything that it calls (single instructions are not counted reliably on every Python)."""
    count = 0

    def trace(_frame: FrameType, event: str, _: object) -> Callable[..., object]:
        nonlocal count
        count += event in ("line", "call")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        what()
    finally:
        sys.settrace(before)
    return count


def many_gangs(policy: str, *, gangs: int, size: int) -> Arena:
    """So many gangs, each with one member on each of as many nodes; an ask that waits."""
    arena = arena_of(POOR, rich(policy), nodes=size, memory=gangs)
    arena.app("p", "root.poor")
    items = []
    for n in range(gangs):
        arena.app(f"g{n}", "root.rich")
        items += [
            item(f"g{n}", f"m{k}", node_id=f"n{k}", task_group="t", placeholder=True, memory=1) for k in range(size)
        ]
    arena.do(UpdateAllocations(items))
    arena.want("p", "ask", memory=2)
    return arena


@pytest.mark.source
def test_gangs_are_looked_up_once_and_each_node_costs_what_is_on_it() -> None:
    first, again = {}, {}
    for policy, gangs in (("members", 40), ("whole", 40), ("whole", 80)):
        arena = many_gangs(policy, gangs=gangs, size=40)
        found = []
        first[policy, gangs] = lines_run(lambda arena=arena, found=found: found.append(search(arena)))  # type: ignore[misc]
        again[policy, gangs] = lines_run(lambda arena=arena, found=found: found.append(search(arena)))  # type: ignore[misc]
        assert found[0] == found[1]
        assert len(keys(found[0])) == (2 if policy == "members" else 80)
    assert first["whole", 80] < 2.5 * first["whole", 40]  # twice as many members
    assert first["whole", 40] < 3 * first["members", 40]
    assert again["whole", 80] < 2.5 * again["whole", 40]
    assert again["whole", 40] < 3 * again["members", 40]  # not once for each member of each gang on each node


@pytest.mark.source
def test_where_no_queue_says_so_no_gang_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = many_gangs("members", gangs=5, size=5)

    def noticed(*_: object, **__: object) -> None:
        raise AssertionError("a gang was looked up")

    monkeypatch.setattr(preemption_victims, "whole_gang", noticed)
    for rule in (quota_rule, revoked_offer):
        monkeypatch.setattr(rule, "whole_gang", noticed)
    assert len(victims(arena)) == 2
    arena.release("p", "ask")
    assert len(keys(daemon(arena, memory=2))) == 2
    assert victim_search.search_quota(arena.partition, arena.queue("root.rich"), arena.now_ns) == ()
