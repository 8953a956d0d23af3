"""Access lists, and the placement of applications in queues."""

from __future__ import annotations

import pytest
from muster_core.config import acl
from muster_core.config.queue_config import (
    QUEUE_DEPTH_MAX,
    RECOVERY_PATH,
    FilterConfig,
    PartitionConfig,
    PlacementRuleConfig,
    QueueConfig,
)
from muster_core.model.states import QueueState
from muster_core.partition import Partition
from muster_core.queues import placement_rules
from muster_si.constants import APP_TAG_CREATE_FORCE
from muster_si.tags import is_forced


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
        ("ann  team", "bob", ("team",), False),
        ("a:b", "a:b", (), True),
        (" team/x,t.y", "bob", ("t.y",), True),
        ("ann\n", "ann", (), False),
        ("*\n", "ann", (), True),
        ("*,", "ann", (), False),
    ],
)
def test_an_access_list_allows(text: str, user: str, groups: tuple[str, ...], allowed: bool) -> None:
    assert acl.allows(text, user, groups) is allowed


@pytest.mark.parametrize(
    ("text", "user", "groups", "allowed"),
    [
        # the names that limits know
        ("system:serviceaccount:ns:sa", "system:serviceaccount:ns:sa", (), True),
        ("team/ann,me#1", "me#1", (), True),
        ("build$", "build$", (), True),
        (" oidc:dev,a.b", "zoe", ("oidc:dev",), True),
        # more than one space admits nobody, another blank is part of a name
        ("  ann  team  ", "bob", ("team",), False),
        ("ann team ", "ann", (), False),
        ("ann\tteam", "ann", ("team",), False),
        # what is no name lets nobody in, the others are let in all the same
        ("1st,ann", "1st", (), False),
        ("1st,ann", "ann", (), True),
        (" team one", "zoe", ("one",), False),
        (" a@b", "zoe", ("a@b",), False),
        ("* 1st", "zoe", (), True),
    ],
)
def test_names_and_spaces_of_an_access_list(text: str, user: str, groups: tuple[str, ...], allowed: bool) -> None:
    assert acl.allows(text, user, groups) is allowed


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("ann,bob ops", ()),
        ("", ()),
        ("*", ()),
        (" *", ()),
        ("*,ann", ("*",)),
        ("9lives,a b$", ("9lives", "b$")),
        ("ann o@ps,ops", ("o@ps",)),
        ("* o@ps", ("o@ps",)),
    ],
)
def test_invalid_names_are_listed(text: str, refused: tuple[str, ...]) -> None:
    assert acl.read(text).refused == refused


def test_an_access_list_has_two_parts_and_an_end() -> None:
    assert acl.problem("ann team") == ""
    assert acl.problem(" team") == acl.problem("ann ") == acl.problem("ann\tteam") == ""
    for text in ("  ann   team ", " ann team", "ann team ", "ann  team", "ann team more"):
        assert "multiple spaces" in acl.problem(text)
    assert "multiple blanks" in acl.problem("ann\tteam more")
    assert acl.problem("a" * acl.ACL_CHARACTERS_MAX) == ""
    assert "expected at most" in acl.problem("a" * (acl.ACL_CHARACTERS_MAX + 1))


@pytest.mark.parametrize("name", ["a", "A_b:#/@-9", "x" * 64])
def test_queue_names(name: str) -> None:
    assert acl.QUEUE_NAME.match(name)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65, "é", "a\n", "a\0", "*"])
def test_invalid_queue_names(name: str) -> None:
    assert not acl.QUEUE_NAME.match(name)


def _partition(*rules: PlacementRuleConfig, open_root: bool = True) -> Partition:
    leaf = QueueConfig("leaf")
    closed = QueueConfig("closed", submit_acl="bob ops")
    parent = QueueConfig("parent", queues=(QueueConfig("inner"), QueueConfig("mine", admin_acl="ann")))
    root = QueueConfig("root", True, (leaf, closed, parent), submit_acl="*" if open_root else "")
    return Partition(PartitionConfig("default", root, placement_rules=rules))


def _place(partition: Partition, queue: str = "", user: str = "ann", groups: tuple[str, ...] = (), **tags: str) -> str:
    path, reason = placement_rules.resolve_queue(partition, queue, user, groups, tags)
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


def test_nothing_is_made_under_a_leaf() -> None:
    reason = _place(_partition(CREATING, PROVIDED), "root.leaf.below")
    assert reason == "no: creation of queue root.leaf.below failed, parent is already a leaf: root.leaf"


def test_made_queues_are_dynamic_and_all_or_nothing() -> None:
    partition = _partition(CREATING)
    queue, created, reason = partition.queue_tree.create_queue(_place(partition, "root.p.q.r"))
    assert queue is not None
    assert (queue.path, reason) == ("root.p.q.r", "")
    assert [(each.path, each.leaf, each.managed) for each in created] == [
        ("root.p", False, False),
        ("root.p.q", False, False),
        ("root.p.q.r", True, False),
    ]
    partition.queues["root.parent"].state = QueueState.DRAINING
    assert partition.queue_tree.create_queue("root.parent.new.queue")[2].endswith("root.parent is draining")
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
    assert "parent is already a leaf: root.closed" in _place(partition, "root.closed.new", user="bob")
    assert "no placement rule matched" in _place(partition, "root.closed.new")


def test_a_draining_leaf_takes_no_new_application() -> None:
    partition = _partition(PROVIDED)
    partition.queues["root.leaf"].state = QueueState.DRAINING
    assert _place(partition, "root.leaf").startswith("no: ")


# ---- user names, tags ------------------------------------------------------------------------------------------------


def test_a_users_name_must_make_a_queues_name() -> None:
    partition = _partition(PlacementRuleConfig("user", create=True), PlacementRuleConfig("fixed", value="root.leaf"))
    assert "invalid queue name" in _place(partition, user="build$")
    assert _place(partition, user="a" * 64) == "root." + "a" * 64
    assert "invalid queue name" in _place(partition, user="a" * 65)


def test_names_have_an_end_before_any_rule_sees_them() -> None:
    partition = _partition(PlacementRuleConfig("fixed", value="root.leaf"))
    long = "a" * placement_rules.NAME_CHARACTERS_MAX
    assert _place(partition, user=long, groups=(long,)) == "root.leaf"
    assert "expected at most 512" in _place(partition, user=long + "a")
    assert "expected at most 512" in _place(partition, groups=("ops", long + "a"))


def test_of_two_tags_that_differ_in_capitals_the_exact_one_counts_else_the_first_in_order() -> None:
    partition = _partition(PlacementRuleConfig("tag", create=True, value="Team"))
    assert _place(partition, team="b", Team="a", TEAM="c") == "root.a"
    assert _place(partition, team="b", TEAM="c") == "root.c"


def test_the_test_rule_takes_what_is_asked_for_else_test() -> None:
    partition = _partition(PlacementRuleConfig("test", create=True))
    assert _place(partition) == "root.test"
    assert _place(partition, "a.b") == "root.a_dot_b"


@pytest.mark.parametrize(("value", "path"), [("rootx", "root.rootx"), ("root.x", "root.x"), ("a.b", "root.a.b")])
def test_only_root_and_a_dot_make_a_fixed_queue_qualified(value: str, path: str) -> None:
    assert _place(_partition(PlacementRuleConfig("fixed", create=True, value=value))) == path


# ---- parents ---------------------------------------------------------------------------------------------------------


def _below(parent: PlacementRuleConfig, name: str = "user", *, create: bool = True) -> PlacementRuleConfig:
    return PlacementRuleConfig(name, create, value="namespace" if name == "tag" else "", parent=parent)


FIXED_PARENT = PlacementRuleConfig("fixed", value="Parent")
BY_NAMESPACE = PlacementRuleConfig("tag", create=True, value="namespace")


def test_a_parent_names_the_queue_above() -> None:
    assert _place(_partition(_below(FIXED_PARENT))) == "root.parent.ann"
    assert _place(_partition(_below(PlacementRuleConfig("fixed", value="root"))), user="zoe") == "root.zoe"
    chain = _below(_below(PlacementRuleConfig("fixed", value="root.parent"), "tag"))
    assert _place(_partition(chain), namespace="dev.one") == "root.parent.dev_dot_one.ann"


def test_a_fixed_name_below_a_parent_keeps_its_dots() -> None:
    rule = PlacementRuleConfig("fixed", create=True, value="a.B", parent=FIXED_PARENT)
    assert _place(_partition(rule)) == "root.parent.a.b"


# ---- filters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filtered", "user", "groups", "let_in"),
    [
        (FilterConfig(), "ann", (), True),
        (FilterConfig(deny=True), "ann", (), False),
        (FilterConfig(users=("ann",)), "ann", (), True),
        (FilterConfig(users=("ann",)), "anna", (), False),
        (FilterConfig(users=("ann", "bob")), "bob", (), True),
        (FilterConfig(users=("ann", "bob")), "zoe", ("ann",), False),
        (FilterConfig(deny=True, users=("ann",)), "ann", (), False),
        (FilterConfig(deny=True, users=("ann",)), "bob", (), True),
        (FilterConfig(groups=("ops",)), "ann", ("dev", "ops"), True),
        (FilterConfig(groups=("ops",)), "ops", ("dev",), False),
        (FilterConfig(deny=True, groups=("ops",)), "ann", ("ops",), False),
        (FilterConfig(users=("bob",), groups=("ops",)), "ann", ("ops",), True),
        (FilterConfig(users=("^a",)), "ann", (), True),
        (FilterConfig(users=("^a",)), "bea", (), False),
        (FilterConfig(users=("nn",)), "ann", (), False),
        (FilterConfig(users=("n+",)), "ann", (), True),
        (FilterConfig(groups=("^team-(a|b)$",)), "zoe", ("x", "team-b"), True),
        (FilterConfig(groups=("^team-(a|b)$",)), "zoe", ("team-bc",), False),
        (FilterConfig(users=("sys$",)), "mysys", (), True),
        # of several, each is a name; what is none is nobody
        (FilterConfig(users=("^a", "bob")), "ann", (), False),
        (FilterConfig(users=("^a", "bob")), "^a", (), False),
        (FilterConfig(deny=True, users=("^a", "^b")), "ann", (), True),
    ],
)
def test_a_filter_lets_in(filtered: FilterConfig, user: str, groups: tuple[str, ...], let_in: bool) -> None:
    assert filtered.matches(user, groups) is let_in
    rule = PlacementRuleConfig("fixed", value="root.leaf", filter=filtered)
    placed = _place(_partition(rule), user=user, groups=groups)
    assert placed == "root.leaf" if let_in else "no placement rule matched" in placed


# ---- the end of the rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "forced"), [("true", True), ("1", True), ("T", True), ("yes", False), ("", False)])
def test_a_forced_application_goes_to_recovery_when_no_rule_matches(value: str, forced: bool) -> None:
    tags = {APP_TAG_CREATE_FORCE: value}
    partition = _partition(PROVIDED, open_root=False)
    path, reason = placement_rules.resolve_queue(partition, "root.ghost", "ann", (), tags)
    assert (path == RECOVERY_PATH) == forced
    assert "no placement rule matched" in reason  # (a forced one is told it as the reason for where it is)
    assert is_forced({APP_TAG_CREATE_FORCE.upper(): value}) == forced


@pytest.mark.parametrize("rule", [CREATING, PlacementRuleConfig("fixed", create=True, value="x", parent=CREATING)])
def test_no_application_gets_into_recovery_by_asking(rule: PlacementRuleConfig) -> None:
    partition = _partition(rule)
    for asked in (RECOVERY_PATH, "@Recovery@"):
        assert _place(partition, asked).startswith("no: ")
    assert partition.queue_tree.create_queue(RECOVERY_PATH)[0] is not None
    assert _place(partition, RECOVERY_PATH).startswith("no: ")
    assert _place(partition, f"{RECOVERY_PATH}.below").startswith("no: ")


def test_an_unplaced_application_goes_to_root_default_if_it_exists_and_is_open() -> None:
    default = QueueConfig("Default", submit_acl="ann")
    partition = Partition(PartitionConfig("default", QueueConfig("root", True, (default, QueueConfig("shut")))))
    assert _place(partition) == "root.default"
    assert _place(partition, "root.ghost") == "root.default"
    assert _place(partition, "root.shut") == "root.default"
    assert _place(partition, user="bob").startswith("no: ")
    partition.queues["root.default"].state = QueueState.DRAINING
    assert _place(partition).startswith("no: ")


def test_a_draining_leaf_leads_to_the_next_rule() -> None:
    partition = _partition(PROVIDED, PlacementRuleConfig("fixed", value="root.parent.inner"))
    partition.queues["root.leaf"].state = QueueState.DRAINING
    assert _place(partition, "root.leaf") == "root.parent.inner"
