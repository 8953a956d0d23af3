"""A core that another one has replaced frees its memory at once, without the garbage collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest
from builders import Cluster
from muster_core.model.steps import finish
from simulation.circles import unreachable

KINDS = ("Node", "Application", "Ask", "AskGroup", "Allocation", "Demand", "Queue", "QueueConfig", "Waitlist")


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _living() -> Counter[str]:
    return Counter(name for each in gc.get_objects() if (name := type(each).__name__) in KINDS)


def _lived() -> Cluster:
    """Full nodes, some of them reserved, a rejected application, and asks that wait for room or for a limit."""
    cluster = Cluster("{name: root, queues: [{name: a, submitacl: '*'}, {name: b, resources: {max: {vcore: 5}}}]}")
    cluster.having({f"node-{number}": {"vcore": 20} for number in range(10)}, {"full": "root.a", "limited": "root.b"})
    cluster.app("nowhere", "root.c")
    for number in range(30):
        cluster.ask("full", f"ask-{number}", vcore=7)
    cluster.ask("full", "repeated", vcore=1, wanted=5)
    cluster.ask("full", "far-too-much", vcore=900)
    cluster.ask("limited", "above-its-limit", vcore=6)
    cluster.wait(40)
    cluster.release("full", "ask-2")
    return cluster


@pytest.mark.usefixtures("no_collector")
def test_what_an_ended_core_had_is_freed_without_a_collection() -> None:
    before = _living()
    cluster = _lived()
    lived = _living() - before
    assert lived["Ask"] >= 10
    assert lived["Allocation"] >= 20
    assert lived["Node"] == 10
    assert lived["Queue"] == 3
    assert lived["Waitlist"] >= 2
    cluster.core.end(cluster.now_ns)
    cluster.outcomes.clear()
    finish(cluster.core.dispose())
    del cluster
    assert _living() - before <= Counter(Queue=1, QueueConfig=1), "those of the blank core, which is made once"
    assert not unreachable(), "some of it waits for a collection of garbage"


@pytest.mark.usefixtures("no_collector")
def test_what_was_recorded_of_it_stays_whole() -> None:
    cluster = _lived()
    out = cluster.core.end(cluster.now_ns)
    told = [(event.object_id, event.reference_id, event.message) for event in out.events]
    finish(cluster.core.dispose())
    assert [(event.object_id, event.reference_id, event.message) for event in out.events] == told
    assert told
