"""Who may submit where, and which queue an application goes to (core-features §2.5, §2.6)."""

from __future__ import annotations

import pytest
from muster_scheduler.core import acl, placement
from muster_scheduler.core.config import QUEUE_DEPTH_MAX, PartitionConfig, PlacementRuleConfig, QueueConfig
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.states import QueueState


@pytest.mark.parametrize(
    ("text", "user", "groups", "allowed"),
    [
        ("", "ann", (), False),
        ("   ", "ann", (), False),
        ("*", "ann", (), True),
        (" *", "ann", (), True),
        ("* team", "ann", (), True),
        ("ann", "ann", (), True),
        ("ann", "bob", (), False),
        ("ann,bob", "bob", (), True),
        ("ann team", "bob", ("team",), True),
        (" team", "bob", ("other", "team"), True),
        (" team", "team", (), False),
        ("team", "bob", ("team",), False),
        ("*,ann", "bob", (), False),
        ("*,ann", "ann", (), True),
        ("ann ", "ann", (), True),
        ("ann  team", "bob", ("team",), True),
        ("a:b", "a:b", (), True),
        (" team/x,t.y", "bob", ("t.y",), True),
        ("ann\n", "ann", (), True),
    ],
)
def test_an_access_list_allows(text: str, user: str, groups: tuple[str, ...], allowed: bool) -> None:
    assert acl.allows(text, user, groups) is allowed


def test_an_access_list_has_two_parts_at_most() -> None:
    assert acl.problem("ann team") == ""
    assert acl.problem("  ann   team ") == ""
    assert "multiple spaces" in acl.problem("ann team more")


@pytest.mark.parametrize("name", ["a", "A_b:#/@-9", "x" * 64])
def test_queue_names(name: str) -> None:
    assert acl.QUEUE_NAME.match(name)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65, "é", "a\n", "a\0", "*"])
def test_what_is_no_queue_name(name: str) -> None:
    assert not acl.QUEUE_NAME.match(name)


def _partition(*rules: PlacementRuleConfig, open_root: bool = True) -> Partition:
    leaf = QueueConfig("leaf")
    closed = QueueConfig("closed", submit_acl="bob ops")
    parent = QueueConfig("parent", queues=(QueueConfig("inner"), QueueConfig("mine", admin_acl="ann")))
    root = QueueConfig("root", True, (leaf, closed, parent), submit_acl="*" if open_root else "")
    return Partition(PartitionConfig("default", root, placement_rules=rules))


def _place(partition: Partition, queue: str = "", user: str = "ann", groups: tuple[str, ...] = (), **tags: str) -> str:
    path, reason = placement.place(partition, queue, user, groups, tags)
    assert bool(path) != bool(reason)
    return path or f"no: {reason}"


PROVIDED, CREATING = PlacementRuleConfig("provided"), PlacementRuleConfig("provided", create=True)


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("root.leaf", "root.leaf"),
        ("ROOT.Leaf", "root.leaf"),
        ("leaf", "root.leaf"),
        ("root.parent.inner", "root.parent.inner"),
    ],
)
def test_provided(asked: str, path: str) -> None:
    assert _place(_partition(PROVIDED), asked) == path


@pytest.mark.parametrize("asked", ["", "root.ghost", "root", "root.parent", "root.leaf.below"])
def test_provided_without_create_needs_a_leaf_that_is_there(asked: str) -> None:
    assert _place(_partition(PROVIDED), asked).startswith("no: application rejected: no placement rule matched")


@pytest.mark.parametrize("asked", ["root.a b", "root..leaf", "root.", "root.leaf\n", "root." + "x" * 65])
def test_a_bad_name_stops_the_rules(asked: str) -> None:
    rules = _partition(CREATING, PlacementRuleConfig("fixed", value="root.leaf"))
    assert "invalid queue name" in _place(rules, asked)


def test_a_path_has_an_end() -> None:
    partition = _partition(CREATING)
    deepest = "root" + ".d" * (QUEUE_DEPTH_MAX - 1)
    assert _place(partition, deepest) == deepest
    assert f"at most {QUEUE_DEPTH_MAX} levels" in _place(partition, deepest + ".d")
    assert len(_place(partition, "root" + ".d" * 200_000)) < 1_000


def test_a_provided_name_without_root_is_one_name_dots_and_all() -> None:
    assert _place(_partition(CREATING), "parent.inner") == "root.parent_dot_inner"
    assert _place(_partition(CREATING), ".leaf") == "root._dot_leaf"


def test_user_and_tag_make_dots_part_of_the_name() -> None:
    partition = _partition(
        PlacementRuleConfig("tag", create=True, value="Namespace"), PlacementRuleConfig("user", True)
    )
    assert _place(partition, user="ann.b") == "root.ann_dot_b"
    assert _place(partition, namespace="dev.one") == "root.dev_dot_one"
    assert _place(partition, NAMESPACE="root.parent.New") == "root.parent.new"
    assert _place(partition, user="root") == "root.root"


def test_fixed_and_the_order_of_rules() -> None:
    partition = _partition(
        PlacementRuleConfig("tag", value="team"),
        PlacementRuleConfig("fixed", value="Parent.Inner"),
        PlacementRuleConfig("provided"),
    )
    assert _place(partition, "root.leaf") == "root.parent.inner"
    assert _place(partition, "root.leaf", team="leaf") == "root.leaf"
    assert _place(partition, "root.leaf", team="ghost") == "root.parent.inner"


def test_a_queue_under_a_leaf_is_refused_by_the_tree() -> None:
    partition = _partition(CREATING)
    path = _place(partition, "root.leaf.below")
    queue, created, reason = partition.create_queue(path)
    assert (queue, created) == (None, [])
    assert "root.leaf is a leaf" in reason
    assert "root.leaf.below" not in partition.queues


def test_made_queues_are_dynamic_and_all_or_nothing() -> None:
    partition = _partition(CREATING)
    queue, created, reason = partition.create_queue(_place(partition, "root.p.q.r"))
    assert queue is not None
    assert (queue.path, reason) == ("root.p.q.r", "")
    assert [(each.path, each.leaf, each.managed) for each in created] == [
        ("root.p", False, False),
        ("root.p.q", False, False),
        ("root.p.q.r", True, False),
    ]
    partition.queues["root.parent"].state = QueueState.DRAINING
    assert partition.create_queue("root.parent.new.queue")[2].endswith("root.parent is draining")
    assert "root.parent.new" not in partition.queues


def test_access_is_that_of_the_queue_or_of_any_ancestor() -> None:
    partition = _partition(PROVIDED, open_root=False)
    assert _place(partition, "root.closed", user="bob") == "root.closed"
    assert _place(partition, "root.closed", user="zoe", groups=("ops",)) == "root.closed"
    assert "allow user 'ann'" in _place(partition, "root.closed")
    assert _place(partition, "root.parent.mine") == "root.parent.mine"
    assert _place(partition, "root.leaf").startswith("no: ")


def test_a_new_queue_needs_access_at_what_is_there() -> None:
    partition = _partition(CREATING, open_root=False)
    assert _place(partition, "root.new", user="bob").startswith("no: ")
    assert _place(partition, "root.closed.new", user="bob") == "root.closed.new"


def test_a_draining_leaf_takes_nobody_new() -> None:
    partition = _partition(PROVIDED)
    partition.queues["root.leaf"].state = QueueState.DRAINING
    assert _place(partition, "root.leaf").startswith("no: ")
