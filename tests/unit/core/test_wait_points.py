"""Wait points: which shapes fit what a wait point gained, and which list of a leaf is woken there."""

from __future__ import annotations

import random

import pytest
from builders import Cluster, ask
from muster_core.model.commands import ReleaseItem, Termination, UpdateAllocations
from muster_core.model.queue import Queue, Waitlist
from muster_core.model.resources import INT64_MAX, UNLIMITED, ResourceTypes, fits
from muster_core.model.wait_points import SHAPES_MANY, WaitPoint


@pytest.mark.parametrize("count", [3, SHAPES_MANY - 1, SHAPES_MANY + 1, 5 * SHAPES_MANY])
def test_the_shapes_that_fit_are_found_as_one_by_one(count: int) -> None:
    dice, types = random.Random(count), ResourceTypes()
    wait_point, leaf = WaitPoint(), Queue(types, "root", None, leaf=True, managed=True)
    held: dict[str, Waitlist] = {}
    for _ in range(40):
        while len(wait_point) < count:
            kinds = dice.sample(["a", "b", "c", "d"], dice.randint(1, 3))
            shape = types.shape({kind: dice.choice([0, 1, 5, 9, INT64_MAX]) + dice.randint(0, 300) for kind in kinds})
            if shape not in wait_point:
                held[shape.name] = waitlist = Waitlist(leaf, (shape, (), "", 0))
                waitlist.register(wait_point)
        free = [
            [dice.choice([-5, 0, 100, 300, UNLIMITED]) for _ in types.names] for _ in range(dice.choice([1, 2, 30]))
        ]
        wanted = {shape for shape in wait_point if any(fits(shape.items, each) for each in free)}
        found = wait_point.fitting(free)
        assert (len(found), set(found)) == (len(wanted), wanted)
        for name in dice.sample(sorted(held), min(len(held), dice.randint(1, 40))):
            held.pop(name).register(None)


USERS = (
    "{name: root, submitacl: '*', limits: [{limit: each, users: ['*'], maxresources: {memory: 12}}],"
    " queues: [{name: q}, {name: filler}]}"
)


def waiting_users(count: int) -> Cluster:
    """One full node; each user's application waits for 4, the second one's two are more urgent."""
    cluster = Cluster(USERS)
    cluster.node("n", memory=12)
    cluster.app("filler", "root.filler", user="filler")
    cluster.do(UpdateAllocations([ask("filler", f"f{number}", memory=4) for number in range(3)]))
    for number in range(count):
        cluster.app(f"x{number}", "root.q", user=f"u{number}")
        items = [ask(f"x{number}", f"k{each}", memory=4, priority=int(number == 1)) for each in range(2)]
        cluster.do(UpdateAllocations(items))
    return cluster


def go(cluster: Cluster, *keys: str, budget: int = 1 << 30) -> list[str]:
    """The lists that are woken for these shapes."""
    releases = [ReleaseItem("default", "filler", key, Termination.STOPPED_BY_RM) for key in keys]
    before = {app.app_id: len(app.allocations) for app in cluster.partition.apps.values()}
    cluster.do(UpdateAllocations((), releases), budget=budget)
    after = {app.app_id: len(app.allocations) for app in cluster.partition.apps.values()}
    return sorted(app_id for app_id in after for _ in range(after[app_id] - before[app_id]))


def test_the_first_of_all_users_is_served_and_then_the_next() -> None:
    cluster = waiting_users(5)
    assert go(cluster, "f0") == ["x1"]
    assert go(cluster, "f1", "f2") == ["x0", "x1"]


def test_with_a_cut_budget_no_list_is_lost_or_overtaken() -> None:
    cluster = waiting_users(5)
    cluster.app("late", "root.q", user="late")
    assert go(cluster, "f0", "f1", "f2", budget=1) == ["x1"]
    cluster.core.apply(UpdateAllocations([ask("late", "k", memory=4, priority=7)]), cluster.now_ns)
    assert go(cluster, budget=1) == ["late"]
    assert go(cluster, budget=1) == ["x1"]
    assert go(cluster) == []


def test_a_user_at_the_limit_lets_the_next_one_through() -> None:
    cluster = Cluster(USERS).having({"n": {"memory": 12}, "aside": {"gpu": 1}})
    for number in range(2):
        cluster.app(f"x{number}", "root.q", user=f"u{number}")
    cluster.ask("x0", "held", memory=12)
    for number in range(2):
        cluster.ask(f"x{number}", "k", memory=4)
    cluster.app("filler", "root.filler", user="filler")
    assert cluster.pending("x0") == {"k": "USER_LIMIT"}
    assert cluster.pending("x1") == {"k": "NO_NODE_HAS_ROOM"}
    cluster.node("m", memory=4)
    assert cluster.placed("x1") == {"k": "m"}
    cluster.release("x0", "held")
    assert cluster.placed("x0") == {"k": "n"}


def test_a_limit_of_the_leaf_is_the_reason_of_all_lists_and_its_release_serves_all() -> None:
    cluster = Cluster(USERS.replace("{name: q}", "{name: q, resources: {max: {memory: 8}}}"))
    cluster.node("n", memory=4)
    for number in range(4):
        cluster.app(f"x{number}", "root.q", user=f"u{number}")
        cluster.ask(f"x{number}", "k", memory=4)
    assert [cluster.pending(f"x{number}") for number in (1, 2, 3)] == [{"k": "NO_NODE_HAS_ROOM"}] * 3
    cluster.node("m", memory=40)
    assert cluster.placed("x1") == {"k": "m"}
    assert [cluster.pending(f"x{number}") for number in (2, 3)] == [{"k": "QUEUE_MAX"}] * 2
    cluster.release("x0")
    assert cluster.placed("x2")
    cluster.release("x1")
    assert cluster.placed("x3")
