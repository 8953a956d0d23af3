"""Applications and allocations whose time is up (the scheduler interface, 001): told to go, gone when the RM says
so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import Cluster, ask
from muster_core.model.commands import (
    AppItem,
    AskItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
)
from muster_core.model.outcome import Outcome, ReleasedAllocation
from muster_core.model.states import AppState

QUEUES = "{name: root, submitacl: '*', queues: [{name: q, properties: {preemption.delay: 1s}}]}"


def told(out: Outcome) -> list[tuple[str, str]]:
    return [(fact.key, fact.termination.name) for fact in out.facts if isinstance(fact, ReleasedAllocation)]


def free(cluster: Cluster) -> dict[str, int]:
    return cluster.partition.types.quantities(cluster.the_node("n").available)


@pytest.fixture
def failing() -> Cluster:
    """An application whose execution time is over, with one releasing allocation."""
    cluster = Cluster(QUEUES)
    cluster.node("n", memory=10)
    item = AppItem("x", "root.q", "default", "ann", execution_timeout_ms=5_000)
    cluster.do(UpdateApplications((item,)))
    cluster.ask("x", "k", memory=4)
    assert told(cluster.wait(4.9)) == []
    assert told(cluster.wait(0.1)) == [("k", "TIMEOUT")]
    assert cluster.application("x").state is AppState.FAILING
    return cluster


@pytest.mark.parametrize("termination", [Termination.TIMEOUT, Termination.STOPPED_BY_RM])
def test_a_failing_application_has_failed_when_the_last_is_gone(failing: Cluster, termination: Termination) -> None:
    failing.release("x", "k", termination)
    assert failing.application("x").state is AppState.FAILED


def test_a_reported_allocation_of_a_failing_application_is_released(failing: Cluster) -> None:
    out = failing.do(UpdateAllocations([AskItem("late", "x", "default", {"memory": 1}, node_id="n")]))
    assert told(out) == [("late", "TIMEOUT")]
    failing.release("x", "k", Termination.TIMEOUT)
    failing.release("x", "late", Termination.TIMEOUT)
    assert failing.application("x").state is AppState.FAILED


def test_an_application_removed_while_it_fails_is_gone(failing: Cluster) -> None:
    failing.do(UpdateApplications((), (("default", "x"),)))
    assert "x" not in failing.partition.apps
    assert not failing.the_node("n").allocations


def test_the_id_of_a_failed_application_may_be_used_again_at_once(failing: Cluster) -> None:
    confirmed = UpdateAllocations((), [ReleaseItem("default", "x", "k", Termination.TIMEOUT)])
    failing.do(confirmed, UpdateApplications((AppItem("x", "root.q", "default", "ann"),)))
    failing.ask("x", "k", memory=1)
    assert failing.placed("x") == {"k": "n"}


@pytest.fixture
def timed() -> Cluster:
    """An allocation with an execution time of one second, which is over."""
    cluster = Cluster(QUEUES).having({"n": {"memory": 10}}, {"x": "root.q"})
    item = replace(ask("x", "k", memory=10), execution_timeout_ms=1_000, allow_preempt_self=True)
    cluster.do(UpdateAllocations([item]))
    assert told(cluster.wait(1)) == [("k", "TIMEOUT")]
    return cluster


def test_it_counts_until_the_rm_says_that_it_went(timed: Cluster) -> None:
    assert free(timed) == {}
    assert told(timed.wait(100)) == []
    timed.release("x", "k", Termination.TIMEOUT)
    assert free(timed) == {"memory": 10}


def test_an_allocation_that_never_started_in_time_is_not_requested_again(timed: Cluster) -> None:
    timed.release("x", "k", Termination.SCHEDULING_FAILED_ON_RM)
    assert timed.application("x").state is AppState.COMPLETING


def test_a_releasing_allocation_is_no_victim(timed: Cluster) -> None:
    timed.app("y", "root.q")
    timed.do(UpdateAllocations([replace(ask("y", "k", memory=5, priority=9), allow_preempt_other=True)]))
    assert told(timed.wait(60)) == []


def test_a_releasing_allocation_stays_so_when_the_rm_reports_it_with_another_size(timed: Cluster) -> None:
    timed.do(UpdateAllocations([AskItem("k", "x", "default", {"memory": 3}, node_id="n")]))
    assert timed.application("x").allocations["k"].timed_out


def test_an_allocation_that_could_not_start_is_asked_for_again_under_a_key_of_its_own() -> None:
    """Ordinals 1 and 0 return while 2 runs. Their new allocations must not replace 2."""
    cluster = Cluster(QUEUES).having({"n": {"memory": 10}}, {"x": "root.q"})
    cluster.do(UpdateAllocations([replace(ask("x", "k", wanted=3, memory=1), previous_generation=True)]))
    uuids = {held.ordinal: held.uuid for held in cluster.application("x").allocations.values()}
    for ordinal in (1, 0):
        back = ReleaseItem("default", "x", "k", Termination.SCHEDULING_FAILED_ON_RM, uuids[ordinal])
        cluster.core.apply(UpdateAllocations((), [back]), cluster.now_ns)
    cluster.do()
    held = cluster.application("x").allocations
    assert (len(held), cluster.application("x").asks) == (3, {})
    assert len({each.uuid for each in held.values()}) == 3
    assert free(cluster) == {"memory": 7}


def test_an_ask_that_was_preempted_for_and_is_sent_again_preempts_no_more() -> None:
    cluster = Cluster(QUEUES, partition="reservation: {enabled: false},").having({"n": {"memory": 10}}, {"x": "root.q"})
    cluster.do(UpdateAllocations([replace(ask("x", f"k{n}", memory=1), allow_preempt_self=True) for n in range(10)]))
    cluster.app("y", "root.q")
    wanted = replace(ask("y", "k", memory=2, priority=5), allow_preempt_other=True)
    cluster.do(UpdateAllocations([wanted]))
    assert len(told(cluster.wait(1))) == 2
    cluster.do(UpdateAllocations([replace(wanted, priority=6)]))
    assert told(cluster.wait(60)) == []
