"""Queues: max at each level, guaranteed and fair shares, applications that may run, dynamic queues."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from builders import Cluster, allocations, ask, nodes
from muster_core.model.commands import NodeAction, ReleaseItem, Termination, UpdateAllocations, UpdateApplications
from muster_core.model.outcome import EventChange, EventDetail, EventType
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config

TREE = """{name: root, submitacl: '*', queues: [
  {name: p, resources: {max: {vcore: 10, memory: 100}}, queues: [
    {name: q, resources: {max: {vcore: 8}}, queues: [{name: a, resources: {max: {vcore: 6}}}, {name: b}]},
    {name: c}]},
  {name: free}]}"""


def test_a_parents_max_is_shared_and_a_release_anywhere_under_it_wakes() -> None:
    cluster = Cluster(TREE)
    cluster.node("n", vcore=100_000, memory=1000)
    for name, queue in (("a", "root.p.q.a"), ("b", "root.p.q.b"), ("c", "root.p.c")):
        cluster.app(name, queue)
    cluster.do(UpdateAllocations([ask("a", f"k{number}", vcore=1000) for number in range(6)]))
    cluster.do(UpdateAllocations([ask("b", f"k{number}", vcore=1000) for number in range(6)]))
    cluster.do(UpdateAllocations([ask("c", f"k{number}", vcore=1000) for number in range(6)]))
    assert [len(cluster.placed(name)) for name in "abc"] == [6, 2, 2]
    assert allocations(cluster.release("c", "k0")) == [("c", "k2", "n")]  # b's own parent is full
    out = cluster.release("a", "k0")
    assert [app for app, _, _ in allocations(out)] in (["b"], ["c"])
    assert cluster.queue("root.p").allocated[0] == 10_000


def _long_run(queues: str, apps: dict[str, str], capacity: int, rounds: int = 1500) -> dict[str, float]:
    """The average share of each queue when all have pending asks and tasks end at random."""
    dice = random.Random(11)
    cluster = Cluster(queues)
    cluster.node("n", vcore=capacity)
    for name, queue in apps.items():
        cluster.app(name, queue)
        cluster.do(UpdateAllocations([ask(name, f"{name}{number}", vcore=1) for number in range(capacity + rounds)]))
    held = dict.fromkeys(apps, 0)
    for step in range(rounds):
        running = [(name, key) for name in apps for key in cluster.application(name).allocations]
        name, key = dice.choice(running)
        out = cluster.core.apply(
            UpdateAllocations((), [ReleaseItem("default", name, key, Termination.STOPPED_BY_RM)]), cluster.now_ns
        )
        cluster.core.cycle(cluster.now_ns, 1 << 30, out)
        if step >= rounds // 2:
            for each in apps:
                held[each] += len(cluster.application(each).allocations)
    total = sum(held.values())
    return {name: round(count / total, 2) for name, count in held.items()}


def test_in_the_long_run_equal_queues_share_equally_whichever_asks_more() -> None:
    queues = "{name: root, submitacl: '*', queues: [{name: a}, {name: b}, {name: c}]}"
    shares = _long_run(queues, {"a1": "root.a", "a2": "root.a", "b1": "root.b", "c1": "root.c"}, 30)
    assert shares["a1"] + shares["a2"] == pytest.approx(1 / 3, abs=0.02)
    assert shares["b1"] == pytest.approx(1 / 3, abs=0.02)


def test_in_the_long_run_guaranteed_decides_the_proportion() -> None:
    queues = (
        "{name: root, submitacl: '*', queues: ["
        "{name: a, resources: {guaranteed: {vcore: 6m}}}, {name: b, resources: {guaranteed: {vcore: 3m}}}, "
        "{name: c, resources: {guaranteed: {vcore: 1m}}}]}"
    )
    shares = _long_run(queues, {"a": "root.a", "b": "root.b", "c": "root.c"}, 40)
    assert shares == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.03)


def test_in_the_long_run_the_tree_shares_level_by_level() -> None:
    queues = "{name: root, submitacl: '*', queues: [{name: p, queues: [{name: a}, {name: b}]}, {name: c}]}"
    shares = _long_run(queues, {"a": "root.p.a", "b": "root.p.b", "c": "root.c"}, 40)
    assert shares == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.5}, abs=0.03)


def test_in_the_long_run_fair_applications_share_their_leaf() -> None:
    leaf = "{{name: root, submitacl: '*', queues: [{{name: a, properties: {{application.sort.policy: {}}}}}]}}"
    fair = _long_run(leaf.format("fair"), {"x": "root.a", "y": "root.a"}, 20)
    assert fair == pytest.approx({"x": 0.5, "y": 0.5}, abs=0.03)
    fifo = _long_run(leaf.format("fifo"), {"x": "root.a", "y": "root.a"}, 20)
    assert fifo == {"x": 1.0, "y": 0.0}


# ---- applications that may run -------------------------------------------------------------------------------------


def _limited(text: str) -> Cluster:
    cluster = Cluster(f"{{name: root, submitacl: '*', queues: [{text}]}}")
    cluster.node("n", vcore=100)
    return cluster


def _start(cluster: Cluster, *names: str, queue: str = "root.a") -> None:
    for name in names:
        cluster.app(name, queue)
        cluster.ask(name, "k", vcore=1)
        cluster.wait(0.001)


def _running(cluster: Cluster) -> list[str]:
    return [app.app_id for app in cluster.partition.apps.values() if app.counted]


def test_maxapplications_lets_the_next_run_when_one_ends() -> None:
    cluster = _limited("{name: a, maxapplications: 2}")
    _start(cluster, "w", "x", "y", "z")
    assert _running(cluster) == ["w", "x"]
    assert cluster.pending("y") == cluster.pending("z") == {"k": "QUEUE_MAX_APPLICATIONS"}
    cluster.release("w", "k")
    assert _running(cluster) == ["x", "y"]
    cluster.do(UpdateApplications((), (("default", "x"),)))
    assert _running(cluster) == ["y", "z"]
    assert cluster.queue("root.a").running_applications == 2


def test_priority_goes_first_among_those_that_wait_to_run() -> None:
    cluster = _limited("{name: a, maxapplications: 1}")
    _start(cluster, "w", "x", "y")
    cluster.app("z", "root.a")
    cluster.ask("z", "k", priority=1, vcore=1)
    cluster.ask("y", "urgent", priority=9, vcore=1)
    for ended, runs in (("w", "y"), ("y", "z"), ("z", "x")):
        cluster.do(UpdateApplications((), (("default", ended),)))
        assert _running(cluster) == [runs]


def test_one_that_cannot_start_does_not_keep_the_others_from_running() -> None:
    cluster = _limited("{name: a, maxapplications: 1}")
    _start(cluster, "w")
    for name, size in (("big", 1000), ("huge", 2000), ("small", 1)):
        cluster.app(name, "root.a")
        cluster.ask(name, "k", vcore=size)
    cluster.release("w", "k")
    assert _running(cluster) == ["small"]


def test_one_whose_asks_are_gone_does_not_take_the_turn() -> None:
    cluster = _limited("{name: a, maxapplications: 1}")
    _start(cluster, "w", "x", "y")
    cluster.release("x", "k")
    cluster.release("w", "k")
    assert _running(cluster) == ["y"]


def test_a_reported_allocation_runs_whatever_the_maximum() -> None:
    cluster = _limited("{name: a, maxapplications: 1}")
    _start(cluster, "x", "y")
    cluster.do(UpdateAllocations([replace(ask("y", "e", vcore=1), node_id="n")]))
    assert _running(cluster) == ["x", "y"]
    assert cluster.placed("y").keys() == {"k", "e"}
    assert cluster.application("y").reason is None


# ---- dynamic queues ------------------------------------------------------------------------------------------------


@pytest.fixture
def growing() -> Cluster:
    config, problems = load_queue_config(
        "partitions: [{placementrules: [{name: provided, create: true}], queues: "
        "[{name: root, submitacl: '*', queues: [{name: fixed, parent: true}]}]}]"
    )
    assert config is not None, problems
    cluster = Cluster("{name: root}")
    cluster.core = SchedulerCore(config)
    return cluster


def test_dynamic_queues_are_made_with_their_application_and_announced(growing: Cluster) -> None:
    out = growing.app("x", "root.fixed.team.Ann")
    made = [e for e in out.events if e.type is EventType.QUEUE and e.detail is EventDetail.QUEUE_DYNAMIC]
    assert [(e.change, e.object_id) for e in made] == [
        (EventChange.ADD, "root.fixed.team"),
        (EventChange.ADD, "root.fixed.team.ann"),
    ]
    queue = growing.queue("root.fixed.team.ann")
    assert (queue.leaf, queue.managed) == (True, False)


def test_dynamic_queues_work_like_others(growing: Cluster) -> None:
    growing.node("n", vcore=2)
    for name in ("x", "y"):
        growing.app(name, f"root.{name}")
    growing.do(UpdateAllocations([ask(name, f"{name}{n}", vcore=1) for name in "xy" for n in range(2)]))
    assert (len(growing.placed("x")), len(growing.placed("y"))) == (1, 1)


def test_empty_dynamic_queues_go_after_a_while_with_their_parents(growing: Cluster) -> None:
    growing.app("x", "root.fixed.team.ann")
    growing.app("y", "root.fixed.team.bob")
    growing.do(UpdateApplications((), (("default", "x"),)))
    growing.wait(9.9)
    assert "root.fixed.team.ann" in growing.partition.queues
    out = growing.wait(0.2)
    removed = [e.object_id for e in out.events if e.change is EventChange.REMOVE]
    assert removed == ["root.fixed.team.ann"]
    growing.do(UpdateApplications((), (("default", "y"),)))
    out = growing.wait(10)
    removed = [e.object_id for e in out.events if e.change is EventChange.REMOVE]
    assert removed == ["root.fixed.team.bob", "root.fixed.team"]
    assert list(growing.partition.queues) == ["root", "root.fixed"]
    assert growing.queue("root.fixed").children == {}


def test_a_finished_application_does_not_keep_its_queue(growing: Cluster) -> None:
    growing.node("n", vcore=1)
    growing.app("x", "root.q")
    growing.ask("x", "k", vcore=1)
    growing.release("x", "k")
    growing.wait(30)
    growing.wait(10)
    assert "root.q" not in growing.partition.queues
    assert growing.application("x").queue.path == "root.q"
    growing.node("later", gpu=1)  # a new type, with the queue's sums gone
    growing.wait(73 * 3600)
    assert growing.partition.apps == {}


def test_a_queue_that_goes_takes_its_reasons_along(growing: Cluster) -> None:
    growing.app("x", "root.q")
    growing.ask("x", "k", vcore=1)
    assert growing.pending("x") == {"k": "NO_NODES"}
    growing.do(UpdateApplications((), (("default", "x"),)))
    growing.wait(11)
    assert not growing.partition.waiting.no_node
    growing.app("x", "root.q")
    growing.do(nodes(NodeAction.CREATE, {"n": {"vcore": 1}}))
    assert allocations(growing.ask("x", "k", vcore=1)) == [("x", "k", "n")]
