"""The ledgers in which an application counts."""

from __future__ import annotations

import pytest
from builders import Cluster

CONFIG = """{name: root, submitacl: '*',
 limits: [{limit: ann, users: [ann], maxresources: {memory: 90}},
          {limit: each, users: ['*'], maxresources: {memory: 80}},
          {limit: staff, groups: [staff, ops], maxresources: {memory: 70}}],
 queues: [
  {name: p, limits: [{limit: ops, groups: [ops], maxapplications: 5}, {limit: rest, groups: ['*'], maxapplications: 4}],
   queues: [{name: a, limits: [{limit: each, users: ['*'], maxresources: {memory: 10}}]}, {name: b}]},
  {name: q}]}""".replace("\n", " ")


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(CONFIG)
    made.node("n", memory=1000)
    return made


@pytest.mark.parametrize(
    ("leaf", "groups", "group"),
    [
        ("root.p.a", ("ops", "staff"), "ops"),  # the nearest queue that limits groups decides
        ("root.p.b", ("staff",), "*"),  # there, in the rest: root's limit of staff does not concern it
        ("root.q", ("ops", "staff"), "staff"),  # in the configuration's order, not in the user's
        ("root.q", ("others",), ""),
    ],
)
def test_an_application_counts_in_one_group(cluster: Cluster, leaf: str, groups: tuple[str, ...], group: str) -> None:
    assert cluster.partition.limits.group_of(cluster.queue(leaf), groups) == group


@pytest.mark.parametrize(
    ("leaf", "user", "found"),
    [
        ("root.p.a", "ann", [("root.p.a", "ann"), ("root", "ann")]),
        ("root.p.a", "bob", [("root.p.a", "bob"), ("root", "bob")]),
        ("root.q", "ann", [("root", "ann")]),
    ],
)
def test_a_user_is_found_on_each_level(cluster: Cluster, leaf: str, user: str, found: list[tuple[str, str]]) -> None:
    cluster.app("x", leaf, user=user)
    trackers = [each for each in cluster.application("x").trackers if not each.group]
    assert [(each.path, each.who) for each in trackers] == found


def test_a_named_limit_is_stronger_than_the_star_of_its_queue(cluster: Cluster) -> None:
    limits = {}
    for user in ("ann", "bob"):
        cluster.app(user, "root.q", user=user)
        (tracker,) = cluster.application(user).trackers
        limits[user] = cluster.partition.types.quantities(tracker.limit)["memory"]
    assert limits == {"ann": 90, "bob": 80}


def test_trackers_go_with_their_last_application(cluster: Cluster) -> None:
    cluster.app("x", "root.p.a", user="ann")
    cluster.app("y", "root.p.a", user="ann")
    cluster.ask("x", "k", memory=4)
    assert {each.applications for each in cluster.partition.limits} == {2}
    cluster.release("x")
    cluster.wait(31)  # completed
    assert {(each.applications, sum(each.allocated)) for each in cluster.partition.limits} == {(1, 0)}
    cluster.wait(1)
    assert (
        cluster.partition.limits.trackers_of(cluster.queue("root.p.a"), "ann", "*") == cluster.application("y").trackers
    )
    assert cluster.partition.limits.trackers_of(cluster.queue("root.p.a"), "bob", "*") is None


def test_an_application_woken_at_one_maximum_and_stopped_at_another_lets_the_next_one_start() -> None:
    cluster = Cluster(
        "{name: root, submitacl: '*', limits: [{limit: u, users: [u], maxapplications: 1}],"
        " queues: [{name: q, maxapplications: 1}, {name: r}]}"
    )
    cluster.node("n", memory=100)
    for app_id, queue, user in (
        ("runs", "root.q", "z"),
        ("a", "root.q", "u"),
        ("b", "root.q", "v"),
        ("c", "root.q", "v"),
    ):
        cluster.app(app_id, queue, user=user)
        cluster.ask(app_id, "k", memory=1)
    cluster.app("elsewhere", "root.r", user="u")
    cluster.ask("elsewhere", "k", memory=1)
    cluster.release("runs")
    assert cluster.pending("a") == {"k": "USER_MAX_APPLICATIONS"}
    assert cluster.placed("b") == {"k": "n"}
    assert cluster.pending("c") == {"k": "QUEUE_MAX_APPLICATIONS"}
