"""After an operator's pause, everything that came in the meantime is decided."""

from __future__ import annotations

import random

import pytest
from builders import Cluster
from muster_core import invariants
from muster_core.model.commands import SetSchedulingEnabled
from muster_core.model.outcome import EventChange, EventDetail, Outcome
from preempting import told
from unit.core import test_gangs as gangs
from unit.core import test_preemption_quota as quotas


def pause(cluster: Cluster) -> None:
    cluster.do(SetSchedulingEnabled(False))


def resume(cluster: Cluster) -> Outcome:
    return cluster.do(SetSchedulingEnabled(True))


@pytest.mark.parametrize("waits_s", [0, 1])
def test_a_max_whose_time_came_is_enforced_when_the_pause_ends(waits_s: int) -> None:
    arena = quotas.filled(quotas.leaf(10))
    arena.reload(quotas.root(quotas.leaf(7)))
    pause(arena)
    out = arena.wait(61)
    assert told(out) == []
    assert arena.queue("root.a").quota_ns
    found = told(resume(arena)) + told(arena.wait(waits_s))
    assert found == [("x", "k9"), ("x", "k8"), ("x", "k7")]
    assert arena.queue("root.a").quota_ns == 0


def test_a_placeholder_that_goes_meanwhile_leaves_its_ask_to_be_placed() -> None:
    cluster = gangs.small()
    gangs.gang(cluster, "x", 2)
    gangs.asks(cluster, "x", "p1 p2", placeholder=True)
    out = gangs.asks(cluster, "x", "real")
    ((going, _),) = gangs.told(out)
    pause(cluster)
    gangs.confirm(cluster, "x", going)
    assert "real" not in cluster.placed("x")
    resume(cluster)
    # It was to have the place of the one that went; with that gone, the other one makes room for it.
    (other,) = {"p1", "p2"} - {going}
    gangs.confirm(cluster, "x", other)
    assert cluster.placed("x") == {"real": "n1"}
    invariants.check(cluster.core, exhausted=True)


def test_a_reservation_and_a_reason_from_before_hold_on() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}").having({"n1": {"m": 4}}, {"x": "root.a"})
    cluster.ask("x", "held", m=4)
    cluster.ask("x", "waits", m=4)
    cluster.wait(5)
    pause(cluster)
    cluster.release("x", "held")
    cluster.wait(100)
    assert cluster.placed("x") == {}
    resume(cluster)
    assert cluster.placed("x") == {"waits": "n1"}


@pytest.mark.parametrize("seed", range(30))
def test_after_the_last_pause_all_that_fits_is_placed(seed: int) -> None:
    """Random work with pauses: at the end no ask that fits is pending."""
    dice = random.Random(seed)
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a, resources: {max: {m: 12}}}, {name: b}]}")
    for number in range(3):
        cluster.node(f"n{number}", m=8)
    for app, queue in (("x", "root.a"), ("y", "root.b")):
        cluster.app(app, queue)
    running = True
    for step in range(60):
        match dice.choice(["ask", "ask", "ask", "release", "pause", "resume", "wait", "node"]):
            case "ask":
                cluster.ask(dice.choice("xy"), f"k{step}", m=dice.randint(1, 5), priority=dice.choice([0, 0, 5]))
            case "release":
                cluster.release(dice.choice("xy"), f"k{dice.randint(0, step)}")
            case "pause":
                running = False
                pause(cluster)
            case "resume":
                running = True
                resume(cluster)
            case "wait":
                cluster.wait(dice.choice([1, 30, 700]))
            case "node":
                cluster.node(f"m{step}", m=dice.randint(1, 6))
        invariants.check(cluster.core, exhausted=running)
        if not running:
            made = [(event.detail, event.change) for event in cluster.outcomes[-1].events]
            assert (EventDetail.NODE_ALLOC, EventChange.ADD) not in made
    resume(cluster)
    cluster.wait(1)
    invariants.check(cluster.core, exhausted=True)
