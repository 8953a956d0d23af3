"""Commands about very many objects: the core pauses after each few of them, and decides the same as without pauses."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import pytest
from builders import Cluster, ask, snapshot
from muster_core.model.allocation_order import in_order, ordered_in_steps
from muster_core.model.commands import (
    AppItem,
    Command,
    EndApplication,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import Outcome
from muster_core.model.steps import FEW, LIGHT_STEP, STEP, clear_in_steps, finish, sorted_in_steps
from muster_core.scheduler import SchedulerCore
from muster_state import state_codec

# Each allocation that ends adds up to four events, a fact and two objects.
GROWTH_OF_ONE = 6
APPS = 100
T = TypeVar("T")
Steps = Callable[[SchedulerCore, int, Outcome], Iterator[None]]


def _applied(*commands: Command) -> Steps:
    def steps(core: SchedulerCore, now_ns: int, out: Outcome) -> Iterator[None]:
        for command in commands:
            yield from core.apply_in_steps(command, now_ns, out)

    return steps


def _all(steps: Generator[None, None, list[T]]) -> tuple[list[T], int]:
    """What the steps return, and their number."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[T] = end.value
            return found, pauses
        pauses += 1


def _ended(core: SchedulerCore, now_ns: int, out: Outcome) -> Iterator[None]:
    yield from core.end_in_steps(now_ns, out)


LONG: dict[str, Steps] = {
    "remove an application": _applied(UpdateApplications((), (("default", "app-0"),))),
    "remove many": _applied(UpdateApplications((), tuple(("default", f"app-{number}") for number in range(APPS)))),
    "release all of many": _applied(
        UpdateAllocations(
            (), tuple(ReleaseItem("default", f"app-{number}", "", Termination.STOPPED_BY_RM) for number in range(APPS))
        )
    ),
    "release all": _applied(UpdateAllocations((), (ReleaseItem("default", "app-0", "", Termination.STOPPED_BY_RM),))),
    "release one ask's": _applied(
        UpdateAllocations((), (ReleaseItem("default", "app-0", "k", Termination.STOPPED_BY_RM),))
    ),
    "could start none": _applied(
        UpdateAllocations((), (ReleaseItem("default", "app-0", "", Termination.SCHEDULING_FAILED_ON_RM),))
    ),
    "decommission": _applied(UpdateNodes((NodeItem("n", NodeAction.DECOMISSION),))),
    "end an application": _applied(EndApplication("default", "app-0", "an operator ends it")),
    "register again": _ended,
    "register again with many": _ended,
}


def _cluster(count: int, apps: int = 1, *, waiting: bool = True) -> Cluster:
    """So many allocations on one node, some asks that wait (``waiting``), and another application beside."""
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}, {name: b}]}").having({"n": {"vcore": 1 << 30}})
    names = [f"app-{number}" for number in range(apps)]
    cluster.do(UpdateApplications(tuple(AppItem(name, "root.a", "default", "alice") for name in names)))
    cluster.app("beside", "root.b")
    cluster.ask("beside", "k", vcore=1)
    asks = [ask(name, "k", wanted=count // apps, vcore=1) for name in names]
    cluster.do(UpdateAllocations(asks))
    if waiting:
        cluster.do(UpdateAllocations([ask(name, "large", wanted=2, vcore=1 << 40) for name in names]))
    return cluster


@pytest.mark.parametrize("name", LONG)
def test_a_step_has_few_objects_however_many_the_command_has(name: str) -> None:
    counts: dict[int, int] = {}
    for count in (1_000, 3_000, 10_000) if "many" in name else (1_000, 3_000):
        cluster, out = _cluster(count, APPS if "many" in name else 1), Outcome()
        before, longest = 0, 0
        for _ in LONG[name](cluster.core, cluster.now_ns, out):
            longest, before = max(longest, out.size - before), out.size
            counts[count] = counts.get(count, 0) + 1
        longest = max(longest, out.size - before)
        assert out.size > count, "each allocation left something"
        assert longest <= 2 * STEP * GROWTH_OF_ONE, "the work of one step"
    if "many" in name:
        assert counts[3_000] >= APPS // FEW
    else:
        assert counts[3_000] >= 1.8 * counts[1_000] > 0, "the number of steps grows with the objects"


@pytest.mark.parametrize("name", LONG)
def test_steps_decide_the_same_as_all_at_once(name: str) -> None:
    written, states, beside = [], [], _cluster(1)
    for all_at_once in (True, False):
        cluster, out = _cluster(500, APPS if "many" in name else 1), Outcome()
        if all_at_once:
            finish(LONG[name](cluster.core, cluster.now_ns, out))
        else:
            for _ in LONG[name](cluster.core, cluster.now_ns, out):
                beside.wait(1)  # (another RM's core decides between)
        states.append(snapshot(cluster.core))
        written.append(
            (
                [repr(fact) for fact in out.facts],
                [repr(event) for event in out.events],
                [(alive, state_codec.key_of("rm", part, what)) for part, what, alive in out.objects()],
            )
        )
    assert states[0] == states[1]
    assert written[0] == written[1]
    assert written[0][1]


def test_due_deadlines_are_handled_in_steps() -> None:
    cluster = _cluster(1_000)
    cluster.do(EndApplication("default", "app-0", "over"))  # (each allocation waits for the RM, which does not confirm)
    cluster.now_ns += 3_600 * 1_000_000_000
    out, count = Outcome(), 0
    for _ in cluster.core.cycle_in_steps(cluster.now_ns, 1, out):
        count += 1
    assert len(out.facts) >= 1_000, "a reminder for each"
    assert count >= 1_000 // STEP


def test_new_deadlines_are_collected_in_steps() -> None:
    cluster, out = _cluster(3_000), Outcome()
    new, before, longest = cluster.partition.deadlines, 0, 0
    for _ in cluster.core.apply_in_steps(EndApplication("default", "app-0", "over"), cluster.now_ns, out):
        longest, before = max(longest, before - len(new)), len(new)
    longest = max(longest, before - len(new))
    assert not new, "a reminder for each"
    assert 0 < longest <= 2 * STEP


def test_a_core_that_ended_is_taken_apart_in_steps() -> None:
    cluster = _cluster(3 * LIGHT_STEP)
    app, apps = cluster.application("app-0"), cluster.partition.apps
    lived = len(app.allocations)
    left = [len(app.allocations) for _ in cluster.core.dispose()]
    assert lived == 3 * LIGHT_STEP
    assert left[:3] == [2 * LIGHT_STEP, LIGHT_STEP, 0]
    assert not apps


def test_many_small_applications_are_taken_apart_in_steps() -> None:
    cluster = _cluster(2_000, APPS, waiting=False)
    apps = list(cluster.partition.apps.values())
    lived = before = sum(len(app.allocations) for app in apps)
    longest = 0
    for _ in cluster.core.dispose():
        left = sum(len(app.allocations) for app in apps)
        longest, before = max(longest, before - left), left
    longest = max(longest, before - sum(len(app.allocations) for app in apps))
    assert lived >= 2_000
    assert 0 < longest <= FEW * 2_000 // APPS, "what a step frees"


@pytest.mark.parametrize("seed", range(20))
def test_the_order_in_steps_is_that_of_all_at_once(seed: int) -> None:
    dice = random.Random(seed)
    items = [(dice.randrange(1 + dice.randrange(2_000)), number) for number in range(dice.randrange(6_000))]
    if dice.random() < 0.5:  # nearly in order, as allocations are
        items.sort()
        for _ in range(dice.randrange(20)):
            at = dice.randrange(len(items) + 1)
            items.insert(at, (dice.randrange(2_000), -at))

    def key(item: tuple[int, int]) -> int:
        return item[0]

    found, pauses = _all(sorted_in_steps(iter(items), key))
    assert found == sorted(items, key=key), "equal ones stay in their order, too"
    assert pauses >= len(items) // 1024


def test_allocations_end_in_one_order_whether_in_steps_or_not() -> None:
    held = list(_cluster(2_500).application("app-0").allocations.values())
    random.Random(5).shuffle(held)
    assert _all(ordered_in_steps(held))[0] == in_order(held)


def test_a_mapping_is_emptied_from_its_end() -> None:
    mapping = dict.fromkeys(range(2 * LIGHT_STEP + 5))
    left = [len(mapping) for _ in clear_in_steps(mapping)]
    assert left == [LIGHT_STEP + 5, 5]
    assert not mapping
