"""One go of the core decides little, however many items a request has; the pauses change no decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from builders import SECOND_NS, Cluster, ask, snapshot
from muster_core.allocation.escalation import REPORTS_MAX
from muster_core.model.commands import (
    AppItem,
    Command,
    NodeAction,
    NodeItem,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import Outcome, ScaleUpHint
from muster_core.model.steps import FEW, SOME, finish

ITEMS = 300
TREE = "{name: root, submitacl: '*', queues: [{name: a}]}"


def _cluster() -> Cluster:
    return Cluster(TREE).having({f"n{number}": {"vcore": 100} for number in range(5)}, {"app": "root.a"})


def _longest(steps: Iterator[None], done: list[int], out: Outcome, what: str) -> int:
    """The most facts of one go."""
    longest = before = 0
    for _ in steps:
        now = _done(out, what)
        longest, before = max(longest, now - before), now
    now = _done(out, what)
    done.append(now)
    return max(longest, now - before)


def _done(out: Outcome, what: str) -> int:
    return sum(type(fact).__name__ == what for fact in out.facts)


@pytest.mark.parametrize(
    ("command", "what", "most"),
    [
        (
            UpdateApplications(tuple(AppItem(f"a{number}", "root.a", "default", "alice") for number in range(ITEMS))),
            "AcceptedApplication",
            FEW,
        ),
        (
            UpdateNodes(tuple(NodeItem(f"m{number}", NodeAction.CREATE) for number in range(ITEMS))),
            "AcceptedNode",
            FEW,
        ),
        (
            UpdateAllocations([ask("nobody", f"k{number}", vcore=1) for number in range(ITEMS)]),
            "RejectedAsk",
            SOME,
        ),
    ],
)
def test_a_request_of_many_items_goes_in_short_goes(command: Command, what: str, most: int) -> None:
    cluster, out, done = _cluster(), Outcome(), []
    longest = _longest(cluster.core.apply_in_steps(command, cluster.now_ns, out), done, out, what)
    assert done == [ITEMS]
    assert longest <= most


def test_the_search_goes_in_short_goes_and_decides_the_same() -> None:
    asks = UpdateAllocations([ask("app", f"k{number}", priority=number % 7, vcore=1) for number in range(ITEMS)])
    found = []
    for paused in (True, False):
        cluster, out, done = _cluster(), Outcome(), []
        finish(cluster.core.apply_in_steps(asks, cluster.now_ns, out))
        if paused:
            steps = cluster.core.cycle_in_steps(cluster.now_ns, 1_000, out)
            assert _longest(steps, done, out, "NewAllocation") <= SOME
            assert done == [ITEMS]
        else:
            cluster.core.cycle(cluster.now_ns, 1_000, out)
        found.append((snapshot(cluster.core), *([repr(each) for each in told] for told in (out.facts, out.events))))
    assert found[0] == found[1]


def test_asks_that_fit_nowhere_are_tried_in_short_goes() -> None:
    leaves = ", ".join(f"{{name: q{number}}}" for number in range(ITEMS))
    cluster = Cluster(f"{{name: root, submitacl: '*', queues: [{leaves}]}}").having({"n": {"vcore": 1}}, {})
    for number in range(ITEMS):
        cluster.app(f"app-{number}", f"root.q{number}")
    out = Outcome()
    asks = [ask(f"app-{number}", "k", vcore=9) for number in range(ITEMS)]
    finish(cluster.core.apply_in_steps(UpdateAllocations(asks), cluster.now_ns, out))
    goes = sum(1 for _ in cluster.core.cycle_in_steps(cluster.now_ns, 1_000, out))
    assert goes >= ITEMS // SOME


def _reported(cluster: Cluster) -> list[list[tuple[str, str]]]:
    """The reports of each cycle (application, ask) until all are reported. None comes before its time."""
    cluster.core.cycle(cluster.now_ns, 1_000)
    cluster.now_ns += 2 * SECOND_NS
    reported: list[list[tuple[str, str]]] = []
    while (due_ns := cluster.core.next_deadline_ns()) is not None and due_ns < cluster.now_ns + SECOND_NS:
        cluster.now_ns = max(cluster.now_ns, due_ns)
        out, done = Outcome(), []
        assert _longest(cluster.core.cycle_in_steps(cluster.now_ns, 1_000, out), done, out, "ScaleUpHint") <= SOME
        reported.append([(fact.app_id, fact.key) for fact in out.facts if isinstance(fact, ScaleUpHint)])
        assert cluster.core.exhausted, "the rest is due later"
    return reported


def test_many_asks_that_are_too_large_are_reported_in_several_cycles_each_once() -> None:
    leaves = ", ".join(f"{{name: q{number}}}" for number in range(ITEMS))
    cluster = Cluster(f"{{name: root, submitacl: '*', queues: [{leaves}]}}").having({"n": {"vcore": 1}}, {})
    for number in range(ITEMS):
        cluster.app(f"app-{number}", f"root.q{number}")
    cluster.core.apply(
        UpdateAllocations([ask(f"app-{number}", "k", vcore=9) for number in range(ITEMS)]), cluster.now_ns
    )
    reported = [[app_id for app_id, _ in each] for each in _reported(cluster)]
    assert max(map(len, reported)) <= REPORTS_MAX
    assert sorted(app_id for each in reported for app_id in each) == sorted(f"app-{number}" for number in range(ITEMS))


def test_asks_of_one_group_that_are_too_large_are_reported_in_several_cycles_each_once() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: q}]}").having({"n": {"vcore": 1}}, {})
    for app_id in ("plain", "labelled"):
        cluster.app(app_id, "root.q")
    labels = {f"label-{number}": "x" for number in range(1_000)}
    plain = [ask("plain", f"k{number}", vcore=9) for number in range(2 * REPORTS_MAX)]
    labelled = [replace(ask("labelled", f"k{number}", vcore=9), tags=labels) for number in range(30)]
    cluster.core.apply(UpdateAllocations([*plain, *labelled]), cluster.now_ns)
    reported = _reported(cluster)
    assert max(map(len, reported)) <= REPORTS_MAX
    # (What is reported is written, tags included.)
    assert max(sum(app_id == "labelled" for app_id, _ in each) for each in reported) <= 9
    told = sorted(each for cycle in reported for each in cycle)
    assert told == sorted((item.app_id, item.key) for item in plain + labelled)
