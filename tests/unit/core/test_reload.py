"""A new configuration while running: what changes, what stays, and the same state after a restart."""

from __future__ import annotations

import pytest
from builders import Cluster, ask
from muster_core.model.commands import UpdateAllocations
from muster_core.model.outcome import EventDetail
from muster_core.model.states import QueueState

CREATE = "placementrules: [{name: provided, create: true}],"


def root(*queues: str, limits: str = "") -> str:
    return f"{{name: root, submitacl: '*', {limits} queues: [{', '.join(queues)}]}}"


def test_dynamic_queues_follow_a_queue_that_is_configured_again() -> None:
    with_p, without = root("{name: p, parent: true}", "{name: z}"), root("{name: z}")
    cluster = Cluster(with_p, partition=CREATE)
    cluster.app("x", "root.p.made")
    assert cluster.reload(without, partition=CREATE) == ()
    assert (cluster.queue("root.p").state, cluster.queue("root.p.made").state) == (QueueState.DRAINING,) * 2
    cluster.reload(with_p, partition=CREATE)
    assert (cluster.queue("root.p").state, cluster.queue("root.p.made").state) == (QueueState.ACTIVE,) * 2
    cluster.app("y", "root.p.made")
    assert "y" in cluster.queue("root.p.made").applications


def test_dynamic_parents_hand_on_the_template_of_now() -> None:
    def tree(most: int) -> str:
        return root(f"{{name: p, parent: true, childtemplate: {{maxapplications: {most}}}}}")

    cluster = Cluster(tree(3), partition=CREATE)
    cluster.app("x", "root.p.made.old")
    cluster.reload(tree(7), partition=CREATE)
    cluster.app("y", "root.p.made.new")
    most = [cluster.queue(f"root.p.made.{name}").max_applications for name in ("old", "new")]
    assert most == [3, 7]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (root("{name: a}"), root("{name: a, parent: true}"), "cannot become a parent"),
        (root("{name: a, parent: true, queues: [{name: b}]}"), root("{name: a}"), "cannot become a leaf"),
    ],
)
def test_a_queue_with_applications_stays_what_it_is(before: str, after: str, said: str) -> None:
    cluster = Cluster(before)
    cluster.app("x", "root.a.b" if "name: b" in before else "root.a")
    (obstacle,) = cluster.reload(after)
    assert said in obstacle
    assert cluster.partition.config.root == cluster.core.config.partitions[0].root


def test_a_leaf_with_finished_applications_becomes_a_parent() -> None:
    cluster = Cluster(root("{name: a}")).having({"n": {"memory": 4}}, {"x": "root.a"})
    cluster.ask("x", "k", memory=1)
    cluster.release("x")
    cluster.wait(31)
    assert cluster.reload(root("{name: a, queues: [{name: b}]}")) == ()
    assert not cluster.queue("root.a").leaf
    cluster.wait(73 * 3600)
    assert "x" not in cluster.partition.apps


def test_capitals_name_the_same_queue() -> None:
    cluster = Cluster(root("{name: Team}"))
    cluster.app("x", "root.team")
    assert cluster.reload(root("{name: tEAM, maxapplications: 4}")) == ()
    assert (cluster.queue("root.team").max_applications, cluster.queue("root.team").state) == (4, QueueState.ACTIVE)


USERS = "limits: [{limit: each, users: ['*'], maxresources: {memory: %d}, maxapplications: %d}],"


def test_new_limits_count_running_allocations_and_removed_limits_stop_nothing() -> None:
    cluster = Cluster(root("{name: q}"))
    cluster.node("n", memory=100)
    for app_id in ("x", "y"):
        cluster.app(app_id, "root.q", user="ann")
        cluster.ask(app_id, "k", memory=3)
    cluster.reload(root("{name: q}", limits=USERS % (5, 1)))
    (tracker,) = cluster.partition.limits
    assert cluster.partition.types.quantities(tracker.allocated) == {"memory": 6}
    assert (tracker.running_applications, tracker.applications) == (2, 2)
    cluster.ask("x", "more", memory=1)
    cluster.app("z", "root.q", user="ann")
    cluster.ask("z", "k", memory=2)
    assert cluster.pending("x") == {"more": "USER_LIMIT"}
    assert cluster.pending("z") == {"k": "USER_MAX_APPLICATIONS"}
    cluster.reload(root("{name: q}"))
    assert not list(cluster.partition.limits)
    assert (set(cluster.placed("x")), set(cluster.placed("z"))) == ({"k", "more"}, {"k"})


def test_nodes_are_tried_in_the_new_order() -> None:
    cluster = Cluster(root("{name: q}"))
    cluster.app("x", "root.q")
    cluster.node("n1", vcore=10, memory=10)
    cluster.ask("x", "k1", vcore=1, memory=1)
    cluster.node("n2", vcore=10, memory=10)
    cluster.reload(root("{name: q}"), nodesort="binpacking")
    cluster.ask("x", "k2", vcore=1, memory=1)
    assert cluster.placed("x") == {"k1": "n1", "k2": "n1"}
    cluster.reload(root("{name: q}"))
    cluster.ask("x", "k3", vcore=1, memory=1)
    assert cluster.placed("x")["k3"] == "n2"


def test_waiting_asks_are_tried_under_the_new_rules_and_keep_their_node() -> None:
    cluster = Cluster(root("{name: q, resources: {max: {memory: 3}}}", "{name: other}")).having(
        {"n": {"memory": 10}}, {"x": "root.q"}
    )
    cluster.do(UpdateAllocations([ask("x", f"k{number}", memory=2) for number in range(3)]))
    assert len(cluster.placed("x")) == 1
    cluster.reload(root("{name: q, resources: {max: {memory: 4}}}", "{name: other}"))
    assert len(cluster.placed("x")) == 2
    assert set(cluster.pending("x").values()) == {"QUEUE_MAX"}


@pytest.mark.parametrize("order", [1, -1], ids=["as configured", "as a record may have them"])
def test_changed_properties_are_named_in_one_order_after_a_restart_too(order: int) -> None:
    cluster = Cluster(root("{name: a, properties: {preemption.delay: 5s, gang.start: whole}}"))
    queue = cluster.queue("root.a")
    queue.properties = dict(list(queue.properties.items())[::order])  # (a protobuf map keeps no order)
    cluster.reload(root("{name: a, properties: {preemption.delay: 7s, gang.start: incremental}}"))
    messages = [event.message for event in cluster.outcomes[-1].events if event.detail is EventDetail.QUEUE_CONFIG]
    assert messages == ["changed: properties.gang.start, properties.preemption.delay"]
