"""The past use of an application: whole seconds of ended allocations, by kind, instance type and resource."""

from __future__ import annotations

from builders import Cluster
from muster_core.applications import usage
from muster_core.model.commands import AskItem, NodeAction, NodeItem, Termination, UpdateAllocations, UpdateNodes
from muster_si.constants import INSTANCE_TYPE


def _cluster() -> Cluster:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
    attributes = {INSTANCE_TYPE: "m5"}
    cluster.do(UpdateNodes((NodeItem("n", NodeAction.CREATE, attributes, capacity={"vcore": 10, "memory": 100}),)))
    cluster.app("x", "root.a")
    return cluster


def test_seconds_count_when_the_allocation_ends() -> None:
    cluster = _cluster()
    cluster.ask("x", "k1", vcore=2, memory=5)
    cluster.wait(10.9)
    assert cluster.application("x").usage == {}
    cluster.release("x", "k1")
    assert cluster.application("x").usage == {"resourceUsage": {"m5": {"vcore": 20, "memory": 50}}}


def test_they_add_up_over_allocations_and_kinds() -> None:
    cluster = _cluster()
    for key in ("k1", "k2"):
        cluster.ask("x", key, vcore=1)
    cluster.wait(3)
    cluster.release("x", "k1")
    cluster.release("x", "k2", Termination.TIMEOUT)
    assert cluster.application("x").usage == {"resourceUsage": {"m5": {"vcore": 6}}}


def test_less_than_a_second_is_there_with_nothing() -> None:
    cluster = _cluster()
    for key in ("k1", "k2"):
        cluster.ask("x", key, vcore=1)
        cluster.wait(0.9)
        cluster.release("x", key)
        assert cluster.application("x").usage == {"resourceUsage": {"m5": {"vcore": 0}}}
    assert [app for _, app, _ in cluster.outcomes[-1].objects() if app is cluster.application("x")], "its state changed"


def test_a_node_that_says_nothing_of_its_type_is_unknown() -> None:
    cluster = _cluster()
    cluster.node("plain", gpu=1)
    cluster.ask("x", "k1", gpu=1)
    cluster.wait(2)
    cluster.release("x", "k1")
    assert cluster.application("x").usage == {"resourceUsage": {"UNKNOWN": {"gpu": 2}}}


def test_the_most_that_was_held_stays_when_it_ends() -> None:
    cluster = _cluster()
    app = cluster.application("x")
    cluster.ask("x", "k1", vcore=2, memory=5)
    cluster.ask("x", "k2", vcore=3)
    assert (app.most_used, usage.peak_by_type(app), usage.allocated_by_type(app)) == (
        {},
        {"vcore": 5, "memory": 5},
        {"vcore": 5, "memory": 5},
    )
    # (Recorded with the application's record, also where nothing was used for as long as a second.)
    ended = cluster.release("x", "k1")
    assert ("default", app, True) in list(ended.objects())
    assert app.most_used == {"vcore": 5, "memory": 5}
    cluster.ask("x", "k3", vcore=1)
    assert usage.peak_by_type(app) == {"vcore": 5, "memory": 5}
    # (No more than before: nothing to record.)
    less = cluster.release("x", "k3")
    assert app not in [what for _, what, _ in less.objects()]
    cluster.ask("x", "k4", vcore=4)
    assert (usage.peak_by_type(app), usage.allocated_by_type(app)) == ({"vcore": 7, "memory": 5}, {"vcore": 7})


def test_placeholders_count_apart_from_what_is_real() -> None:
    cluster = _cluster()
    app = cluster.application("x")
    asks = [AskItem(f"p{n}", "x", "default", {"vcore": 3}, task_group="g", placeholder=True) for n in range(2)]
    cluster.do(UpdateAllocations(asks))
    cluster.ask("x", "driver", vcore=1)
    assert (usage.allocated_by_type(app), usage.peak_by_type(app)) == ({"vcore": 1}, {"vcore": 6})
    cluster.release("x", "p0")
    cluster.release("x", "driver")
    assert (app.most_used, usage.allocated_by_type(app), usage.peak_by_type(app)) == ({"vcore": 6}, {}, {"vcore": 6})
