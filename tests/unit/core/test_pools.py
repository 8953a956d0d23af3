"""Pools: types that are on no node (core/pools.py, docs/external-rules.md)."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace

import pytest
from builders import Cluster, nodes
from builders import ask as ask_item
from muster_core import invariants
from muster_core.external.model import ExternalKind, ExternalPool, SourceState
from muster_core.model.commands import AppItem, AskItem, NodeAction, UpdateAllocations, UpdateApplications
from muster_core.model.outcome import EventDetail, Outcome
from muster_core.model.reasons import Reason
from muster_core.model.resources import INT64_MAX, ResourceTypes
from muster_view.rest import dao, snapshot
from outside import LEAVES, Outside

POOL = ExternalPool("license", 4)


def licensed(quantity: int = 4, **more: int) -> Outside:
    """A cluster with one node and a pool, and an application in each of two leaves."""
    cluster = Outside().having({"n1": {"vcore": 100}}, {"app": "root.a", "other": "root.b"})
    cluster.says("flex", ExternalPool("license", quantity, **more))
    return cluster


def why(cluster: Cluster, app_id: str, key: str) -> Reason:
    found = cluster.reason(app_id, key)
    assert isinstance(found, Reason)
    return found


def test_an_ask_for_a_pooled_type_runs_on_any_node_while_the_pool_has_enough() -> None:
    cluster = licensed()
    cluster.ask("app", "one", vcore=1, license=3)
    assert cluster.placed("app") == {"one": "n1"}
    cluster.ask("other", "two", vcore=1, license=2)
    reason = why(cluster, "other", "two")
    assert (reason.code, reason.queue, reason.resource_type) == ("QUEUE_MAX", "root", "license")
    assert (reason.asked, reason.used, reason.limit) == (2, 3, 4)
    assert reason.sentence() == "The pool of license has 4, of which 3 are used; 2 more would exceed it."
    cluster.ask("other", "small", vcore=1, license=1)
    assert cluster.placed("other") == {"small": "n1"}
    cluster.check_folds()


def test_a_release_wakes_asks_that_wait_for_the_pool() -> None:
    cluster = licensed()
    cluster.ask("app", "one", vcore=1, license=4)
    cluster.ask("other", "two", vcore=1, license=2)
    cluster.release("app", "one")
    assert cluster.placed("other") == {"two": "n1"}


def test_a_growing_pool_wakes_asks_that_wait_for_it() -> None:
    cluster = licensed(1)
    cluster.ask("app", "one", vcore=1, license=3)
    assert cluster.placed("app") == {}
    cluster.says("flex", ExternalPool("license", 3))
    assert cluster.placed("app") == {"one": "n1"}
    cluster.check_folds()


def test_the_smallest_quantity_counts_less_what_all_say_that_others_use() -> None:
    cluster = licensed(10, occupied=1)
    cluster.says("sales", ExternalPool("license", 7, occupied=2))
    assert cluster.queue("root").by_name(cluster.queue("root").maximum) == {"license": 4}
    assert cluster.queue("root").sources == ("flex", "sales")
    cluster.forgets("sales", ExternalPool("license", 7))
    assert cluster.queue("root").by_name(cluster.queue("root").maximum) == {"license": 9}
    cluster.says("flex", ExternalPool("license", 2, occupied=5))
    assert cluster.queue("root").by_name(cluster.queue("root").maximum) == {"license": 0}
    cluster.check_folds()


def test_a_pool_that_shrinks_below_its_use_takes_nothing_back_and_gives_nothing() -> None:
    quota = "preemption: {quotapreemptionenabled: true},"
    delayed = "{name: root, submitacl: '*', properties: {quota.preemption.delay: 1s}, queues: [{name: a}]}"
    cluster = Outside(partition=quota).having({"n1": {"vcore": 100}}, {"app": "root.a"})
    cluster.says("flex", POOL)
    item = replace(ask_item("app", "one", wanted=4, vcore=1, license=1), allow_preempt_self=True)
    cluster.do(UpdateAllocations([item]))
    cluster.says("flex", ExternalPool("license", 2))
    assert cluster.reload(delayed, partition=quota) == ()
    cluster.wait(3600)
    held = cluster.application("app").allocations
    assert len(held) == 4
    assert not any(each.releasing for each in held.values())
    cluster.ask("app", "more", vcore=1, license=1)
    assert cluster.pending("app") == {"more": "QUEUE_MAX"}
    cluster.check_folds()


def test_a_pool_that_goes_leaves_its_type_to_the_nodes() -> None:
    cluster = licensed()
    cluster.ask("app", "one", vcore=1, license=1)
    cluster.ask("app", "two", vcore=1, license=5)
    cluster.ask("app", "three", vcore=1, license=2)
    cluster.release("app", "one")
    cluster.forgets("flex", POOL)
    assert cluster.pending("app") == {"two": "LARGER_THAN_ANY_NODE"}
    assert cluster.placed("app") == {"three": "n1"}
    cluster.node("n2", vcore=5, license=5)
    assert cluster.placed("app") == {"two": "n2", "three": "n1"}
    cluster.ask("app", "four", vcore=1, license=1)
    assert cluster.pending("app") == {"four": "NO_NODE_HAS_ROOM"}
    assert not cluster.partition.types.pooled
    assert cluster.application("app").bounds == cluster.queue("root.a").line
    cluster.check_folds()


def test_a_node_is_not_kept_free_for_what_only_a_pool_had() -> None:
    cluster = licensed()
    cluster.ask("app", "one", vcore=1)
    cluster.ask("other", "large", vcore=100, license=1)
    cluster.wait(3)
    assert cluster.application("other").asks["large"].reserved_node == "n1"
    cluster.forgets("flex", POOL)
    assert not cluster.application("other").asks["large"].reserved_node
    cluster.check_folds()


def test_a_nodes_own_amount_of_a_pooled_type_counts_only_after_the_pools_end() -> None:
    cluster = licensed()
    cluster.node("n2", vcore=1, license=50)
    quantities = cluster.partition.types.quantities
    assert quantities(cluster.the_node("n2").capacity) == {"vcore": 1}
    assert quantities(cluster.partition.capacity) == {"vcore": 101, "license": 4}
    cluster.ask("app", "one", vcore=1, license=5)
    assert cluster.pending("app") == {"one": "QUEUE_MAX"}
    cluster.check_folds()
    cluster.forgets("flex", POOL)
    assert cluster.placed("app") == {"one": "n2"}
    assert quantities(cluster.partition.capacity) == {"vcore": 101, "license": 50}
    cluster.says("flex", POOL)
    assert quantities(cluster.partition.capacity) == {"vcore": 101, "license": 4}
    cluster.do(nodes(NodeAction.UPDATE, {"n2": {"vcore": 2, "license": 60}}))
    cluster.do(nodes(NodeAction.DECOMISSION, {"n2": None}))
    assert quantities(cluster.partition.capacity) == {"vcore": 100, "license": 4}
    cluster.check_folds()


def test_an_update_of_a_node_with_the_same_figures_is_no_change() -> None:
    cluster = licensed()
    cluster.node("n2", vcore=1, license=50)
    out = cluster.do(nodes(NodeAction.UPDATE, {"n2": {"vcore": 1, "license": 50}}))
    assert not any(event.detail is EventDetail.NODE_CAPACITY for event in out.events)


def test_while_all_sources_of_a_pool_are_lost_and_drain_nothing_new_takes_from_it() -> None:
    cluster = licensed()
    cluster.says("sales", ExternalPool("license", 6))
    cluster.sets("flex", SourceState.LIVE)
    cluster.sets("flex", SourceState.STALE, reason="refused")
    cluster.ask("app", "one", vcore=1, license=1)
    assert cluster.placed("app") == {"one": "n1"}, "one of the two can be relied on"
    cluster.distrusts("sales", POOL)
    cluster.ask("app", "two", vcore=1, license=1)
    assert cluster.pending("app") == {"two": "QUEUE_MAX"}
    said = "Source flex is lost: refused; source sales cannot be relied on for it."
    text = "It asks for 1 license, and the pool of license has 0 in all."
    assert why(cluster, "app", "two").sentence() == f"{text} {said}"
    cluster.check_folds()
    cluster.sets("flex", SourceState.LIVE)
    assert set(cluster.placed("app")) == {"one", "two"}
    cluster.sets("flex", SourceState.STALE, drains=False)
    cluster.ask("app", "three", vcore=1, license=1)
    assert set(cluster.placed("app")) == {"one", "two", "three"}, "it goes on as it was"


def test_a_restart_and_a_registration_change_nothing_of_pools() -> None:
    cluster = licensed()
    cluster.ask("app", "one", wanted=5, vcore=1, license=1)
    cluster.restart(seed=3)
    cluster.release("app", "one")
    cluster.ask("other", "two", wanted=5, vcore=1, license=1)
    assert len(cluster.placed("other")) == 4
    cluster.check_folds()
    cluster.register_again()
    cluster.node("n1", vcore=100)
    cluster.app("app", "root.a")
    cluster.ask("app", "one", wanted=5, vcore=1, license=1)
    assert len(cluster.placed("app")) == 4
    cluster.check_folds()


def test_another_configuration_leaves_pools_as_they_are() -> None:
    cluster = licensed()
    cluster.ask("app", "one", wanted=3, vcore=1, license=1)
    assert cluster.reload("{name: root, submitacl: '*', queues: [{name: a}, {name: b}, {name: c}]}") == ()
    cluster.ask("other", "two", wanted=2, vcore=1, license=1)
    assert (len(cluster.placed("app")), len(cluster.placed("other"))) == (3, 1)
    assert cluster.pending("other") == {"two": "QUEUE_MAX"}
    cluster.check_folds()


def gang(cluster: Cluster, app_id: str, members: int, **each: int) -> None:
    """An application whose gang starts as a whole, and the asks of its placeholders."""
    total = {name: members * value for name, value in each.items()}
    cluster.do(UpdateApplications((AppItem(app_id, "root.a", "default", "alice", placeholder_ask=total),)))
    keys = [f"m{n}" for n in range(members)]
    asks = [AskItem(key, app_id, "default", dict(each), task_group="g", placeholder=True) for key in keys]
    cluster.do(UpdateAllocations(asks))


def test_a_gang_waits_for_room_in_the_pool_for_all_of_it() -> None:
    cluster = licensed()
    cluster.ask("other", "held", vcore=1, license=2)
    gang(cluster, "gang", 3, vcore=1, license=1)
    found = why(cluster, "gang", "m0")
    assert (found.code, found.queue, found.resource_type) == ("GANG_ROOM", "root", "license")
    assert found.sentence() == (
        "The pool of license has 4, of which 2 are used; its gang asks for 3 in all and starts as a whole."
    )
    cluster.release("other", "held")
    assert len(cluster.placed("gang")) == 3
    cluster.check_folds()


def test_promises_of_a_pool_end_and_return_with_the_pool() -> None:
    cluster = licensed()
    gang(cluster, "gang", 3, vcore=40, license=1)
    assert len(cluster.placed("gang")) == 2
    number = cluster.partition.types.numbers["license"]
    assert cluster.queue("root").promised[number] == 1
    gang(cluster, "late", 2, vcore=1, license=1)
    assert cluster.pending("late") == {"m0": "GANG_ROOM", "m1": "GANG_ROOM"}, "one of the two left is promised"
    cluster.forgets("flex", POOL)
    assert cluster.queue("root").promised == {}
    cluster.says("flex", POOL)
    assert cluster.queue("root").promised[number] == 1
    cluster.check_folds()


def test_preemption_gets_a_guaranteed_part_of_a_pool_back() -> None:
    leaf = "{name: a, resources: {guaranteed: {license: 2}}, properties: {preemption.delay: 1s}}"
    cluster = Outside(f"{{name: root, submitacl: '*', queues: [{leaf}, {{name: b}}]}}").having(
        {"n1": {"vcore": 100}, "n2": {"vcore": 100}}, {"app": "root.a", "other": "root.b"}
    )
    cluster.says("flex", ExternalPool("license", 4))
    taken = [replace(ask_item("other", f"t{n}", vcore=1, license=1), allow_preempt_self=True) for n in range(4)]
    cluster.do(UpdateAllocations(taken))
    wanted = replace(ask_item("app", "mine", vcore=1, license=2), allow_preempt_other=True)
    cluster.do(UpdateAllocations([wanted]))
    cluster.wait(2)
    told = [held for held in cluster.application("other").allocations.values() if held.preempted is not None]
    assert len(told) == 2
    for held in told:
        cluster.release("other", held.key)
    assert len(cluster.placed("app")) == 1


def test_more_types_than_a_partition_knows_are_a_problem_of_the_pool_only() -> None:
    cluster = licensed()
    for n in itertools.count():
        if len(cluster.partition.types.names) == 256:
            break
        cluster.partition.types.number(f"t{n}")
    cluster.says("flex", ExternalPool("one-too-many", 3), ExternalPool("license", 5))
    assert "256 types" in cluster.entry("flex", ExternalKind.POOL, "one-too-many").problem
    assert cluster.queue("root").by_name(cluster.queue("root").maximum) == {"license": 5}


@pytest.mark.parametrize("nodesort", ["fair", "binpacking", "dotproduct", "fragmentation"])
def test_nodes_are_chosen_as_if_there_were_no_pool(nodesort: str) -> None:
    """A pooled type is equal on all nodes, so it changes no policy's order."""

    def placements(*, pooled: bool) -> list[dict[str, str]]:
        cluster = Outside(nodesort=nodesort)
        rng = random.Random(7)
        for n in range(12):
            cluster.node(f"n{n}", vcore=rng.randint(4, 20), memory=rng.randint(4, 20), gpu=rng.randint(0, 4))
        cluster.app("app", "root.a")
        if pooled:
            cluster.says("flex", ExternalPool("nvidia.com/gpu", 1000))
        for n in range(30):
            wants = {"vcore": rng.randint(1, 4), "memory": rng.randint(1, 4), "gpu": rng.randint(0, 1)}
            cluster.do(
                UpdateAllocations([ask_item("app", f"k{n}", **wants, **({"nvidia.com/gpu": 1} if pooled else {}))])
            )
        return [cluster.placed("app")]

    assert placements(pooled=True) == placements(pooled=False)


def test_a_reason_at_the_nodes_says_nothing_of_a_pooled_type() -> None:
    cluster = licensed()
    cluster.ask("app", "big", vcore=200, license=1)
    found = why(cluster, "app", "big")
    assert (found.code, found.resource_type, found.lacking) == ("LARGER_THAN_ANY_NODE", "vcore", (("vcore", 1),))


def test_readers_see_the_pool_at_root_and_no_nonsense_at_nodes() -> None:
    cluster = licensed()
    cluster.ask("app", "one", vcore=1, license=4)
    partition = cluster.partition
    assert dao.headroom(partition, cluster.queue("root.a"))["license"] == 0
    node = dao.node_head(partition, cluster.the_node("n1"))
    assert (node.capacity, node.available, node.allocated) == (
        {"vcore": 100},
        {"vcore": 99},
        {"vcore": 1, "license": 4},
    )
    assert snapshot.used_percent(cluster.the_node("n1")) == 1
    assert all(abs(value) < INT64_MAX for value in node.utilized.values())
    cluster.says("flex", ExternalPool("license", 0))
    assert dao._maximum(partition, cluster.queue("root")) == {"vcore": 100, "license": 0}


def test_a_pool_says_so_in_an_event_of_root() -> None:
    cluster = licensed()
    out: Outcome = cluster.says("flex", ExternalPool("license", 9))
    (event,) = (event for event in out.events if event.detail is EventDetail.QUEUE_MAX)
    assert (event.object_id, event.resource) == ("root", {"license": 9})
    assert not cluster.says("flex", ExternalPool("license", 9)).events


def test_without_pools_vectors_are_as_they_are() -> None:
    types = ResourceTypes()
    types.number("vcore")
    assert types.quantities([1 << 100]) == {"vcore": INT64_MAX}


@pytest.mark.parametrize("seed", range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "6"))))
def test_in_random_lives_the_pool_is_never_exceeded_and_folds_equal_the_live_state(seed: int) -> None:
    """Random sources, nodes, asks and releases. Only a pool that shrinks is ever below its use."""
    rng = random.Random(seed)
    cluster = Outside(LEAVES)
    for n in range(3):
        cluster.node(f"n{n}", vcore=20)
    for n in range(4):
        cluster.app(f"app{n}", f"root.{'ab'[n % 2]}")
    for step in range(50):
        root, number = cluster.queue("root"), cluster.partition.types.numbers.get("license")
        before = root.allocated[number] if number is not None else 0
        match rng.randrange(10):
            case 0:
                cluster.says(rng.choice(["x", "y"]), ExternalPool("license", rng.randint(0, 12), rng.randint(0, 2)))
            case 1:
                cluster.forgets(rng.choice(["x", "y"]), POOL)
            case 2:
                cluster.sets(rng.choice(["x", "y"]), rng.choice([SourceState.LIVE, SourceState.STALE]))
            case 3:
                figures = {
                    "vcore": rng.randint(5, 25),
                    **({"license": rng.randint(0, 3)} if rng.random() < 0.3 else {}),
                }
                cluster.do(nodes(NodeAction.UPDATE, {f"n{rng.randrange(3)}": figures}))
            case 4 | 5 | 6:
                wants = {"vcore": rng.randint(1, 5), "license": rng.randint(0, 3)}
                cluster.ask(f"app{rng.randrange(4)}", f"k{step}", wanted=rng.randint(1, 2), **wants)
            case 7 | 8:
                app = cluster.application(f"app{rng.randrange(4)}")
                if app.allocations:
                    cluster.release(app.app_id, rng.choice(list(app.allocations.values())).key)
            case 9:
                cluster.restart(seed=step)
        invariants.check(cluster.core, exhausted=cluster.core.exhausted)
        root, number = cluster.queue("root"), cluster.partition.types.numbers.get("license")
        if number is not None and number in cluster.partition.types.pooled:
            most = max(root.limit[number], before)
            assert root.allocated[number] <= most, f"step {step}: {root.allocated[number]} of {most}"
        cluster.check_folds()
