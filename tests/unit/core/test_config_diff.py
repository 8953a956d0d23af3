"""The changes of a new configuration (core.config_diff), and their texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_core.config.config_diff import ConfigChange, diff
from muster_core.config.properties import duration_text, parse_duration_ns
from muster_core.config.queue_config import (
    DEFAULT_CONFIG,
    ClusterConfig,
    FilterConfig,
    PlacementRuleConfig,
    QueueConfig,
    effective_queues,
    rule_text,
)
from muster_queue_config.queue_yaml import load_queue_config

BASE = """
partitions:
- name: default
  queues:
  - name: a
    resources: {max: {memory: 10Gi, vcore: 4}}
    properties: {priority.offset: 1}
  - {name: P, submitacl: ann, queues: [{name: inner}, {name: other}]}
"""


def _config(text: str) -> ClusterConfig:
    config, problems = load_queue_config(text)
    assert config is not None, problems
    return config


def _changes(old: str, new: str) -> list[tuple[str, str, str, str]]:
    """Also checks that the reverse diff removes what the diff adds."""
    forth, back = diff(_config(old), _config(new)), diff(_config(new), _config(old))
    assert sorted((c.path, c.what, c.new, c.old) for c in back) == sorted((c.path, c.what, c.old, c.new) for c in forth)
    return [(change.path, change.what, change.old, change.new) for change in forth]


def test_a_configuration_does_not_differ_from_itself() -> None:
    assert diff(_config(BASE), _config(BASE)) == []
    assert diff(DEFAULT_CONFIG, DEFAULT_CONFIG) == []


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("name: other}", "name: OTHER}", None),
        ("memory: 10Gi", "memory: 10240Mi", None),
        ("vcore: 4", "vcore: 4000m", None),
        ("submitacl: ann,", "submitacl: ann, limits: [],", None),
        (", {name: other}", "", ("root.p.other", "queue", "leaf", "")),
        ("{name: inner}", "{name: inner, parent: true}", ("root.p.inner", "queue", "leaf", "parent")),
        ("memory: 10Gi", "memory: 20Gi", ("root.a", "resources.max.memory", "10Gi", "20Gi")),
        ("memory: 10Gi, ", "", ("root.a", "resources.max.memory", "10Gi", "")),
        ("{max:", "{guaranteed: {gpu: 2}, max:", ("root.a", "resources.guaranteed.gpu", "", "2")),
        ("vcore: 4", "vcore: 4, gpu: 0", ("root.a", "resources.max.gpu", "", "0")),
        ("offset: 1", "offset: 2", ("root.a", "properties.priority.offset", "1", "2")),
        ("submitacl: ann", "submitacl: bob", ("root.p", "submitacl", "ann", "bob")),
        ("submitacl: ann", "submitacl: ann, adminacl: bob", ("root.p", "adminacl", "", "bob")),
        ("submitacl: ann", "submitacl: ann, childtemplate: {maxapplications: 3}",
         ("root.p", "childtemplate.maxapplications", "", "3")),
        ("submitacl: ann", "submitacl: ann, childtemplate: {resources: {max: {memory: 1Ki}}}",
         ("root.p", "childtemplate.resources.max.memory", "", "1Ki")),
        ("submitacl: ann", "submitacl: ann, childtemplate: {properties: {x: y}}",
         ("root.p", "childtemplate.properties.x", "", "y")),
        ("submitacl: ann", "submitacl: ann, limits: [{users: [bob], maxapplications: 5, maxresources: {memory: 1Gi}}]",
         ("root.p", "limits.user bob", "", "max {memory 1Gi}, at most 5 applications")),
        ("submitacl: ann", "submitacl: ann, limits: [{groups: [ops], maxapplications: 5}]",
         ("root.p", "limits.group ops", "", "at most 5 applications")),
        ("name: default", "name: default\n  limits: [{users: ['*'], maxapplications: 5}]",
         ("root", "limits.user *", "", "at most 5 applications")),
        ("name: default", "name: default\n  placementrules: [{name: user, create: true}]",
         ("", "placementrules", "provided", "user (create)")),
        ("name: default", "name: default\n  nodesortpolicy: {type: binpacking}",
         ("", "nodesortpolicy.type", "fair", "binpacking")),
        ("name: default", "name: default\n  nodesortpolicy: {resourceweights: {vcore: 1}}",
         ("", "nodesortpolicy.resourceweights.memory", "1", "")),
        ("memory: 10Gi", "memory: 10Gi, x: 1", ("root.a", "resources.max.x", "", "1")),
        ("name: default", "name: default\n  preemption: {enabled: false}", ("", "preemption.enabled", "true", "false")),
        ("name: default", "name: default\n  preemption: {quotapreemptionenabled: true}",
         ("", "preemption.quotapreemptionenabled", "false", "true")),
        ("name: default", "name: default\n  preemption: {optout: last}", ("", "preemption.optout", "never", "last")),
        ("name: default", "name: default\n  reservation: {enabled: false}",
         ("", "reservation.enabled", "true", "false")),
        ("name: default", "name: default\n  reservation: {delay: 90s}", ("", "reservation.delay", "2s", "1m30s")),
        ("name: default", "name: default\n  reservation: {timeout: 2h}", ("", "reservation.timeout", "1h", "2h")),
        ("name: default", "name: default\n  usergroupresolver: {type: os}", ("", "usergroupresolver.type", "", "os")),
        ("name: default", "name: DEFAULT", None),
    ],
)  # fmt: skip
def test_one_change(old: str, new: str, change: tuple[str, str, str, str] | None) -> None:
    assert BASE.count(old) == 1
    assert _changes(BASE, BASE.replace(old, new)) == ([change] if change else [])


def test_weights_that_look_alike_differ() -> None:
    one, other = (
        f"partitions: [{{queues: [], nodesortpolicy: {{resourceweights: {{x: {weight}}}}}}}]"
        for weight in ("0.1234567", "0.1234568")
    )
    assert _changes(one, other) == [("", "nodesortpolicy.resourceweights.x", "0.1234567", "0.1234568")]


def test_queues_that_come_and_go_come_with_all_that_is_below() -> None:
    assert _changes(BASE, BASE.replace("name: P,", "name: Q,")) == [
        ("root.p", "queue", "parent", ""),
        ("root.p.inner", "queue", "leaf", ""),
        ("root.p.other", "queue", "leaf", ""),
        ("root.q", "queue", "", "parent"),
        ("root.q.inner", "queue", "", "leaf"),
        ("root.q.other", "queue", "", "leaf"),
    ]


def test_partitions_come_and_go() -> None:
    changes = diff(_config(BASE), _config(BASE.replace("name: default", "name: gpu")))
    assert changes == [
        ConfigChange("", "partition", "partition", "", "default"),
        ConfigChange("", "partition", "", "partition", "gpu"),
    ]


def test_the_order_of_groups_counts_and_that_of_users_does_not() -> None:
    def limits(*entries: str) -> str:
        return f"partitions: [{{queues: [{{name: a, limits: [{', '.join(entries)}]}}]}}]"

    ops, dev = (f"{{groups: [{name}], maxapplications: 1}}" for name in ("ops", "dev"))
    assert _changes(limits(ops, dev), limits(dev, ops)) == [
        ("root.a", "limits.order of groups", "ops, dev", "dev, ops")
    ]
    ann, bob = (f"{{users: [{name}], maxapplications: 1}}" for name in ("ann", "bob"))
    assert _changes(limits(ann, bob), limits(bob, ann)) == []


def test_a_change_as_a_line() -> None:
    assert (
        str(ConfigChange("root.a", "maxapplications", "", "3", "default"))
        == "[default] root.a maxapplications: not set -> 3"
    )
    assert (
        str(ConfigChange("", "preemption.enabled", "true", "false", "gpu")) == "[gpu] preemption.enabled: true -> false"
    )


def test_a_line_is_short_whatever_is_in_it() -> None:
    change = ConfigChange("root.a", "submitacl", "a," * 5_000, "b," * 5_000, "default")
    assert len(str(change)) < 500
    assert change.old == "a," * 5_000


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (PlacementRuleConfig("provided"), "provided"),
        (PlacementRuleConfig("tag", True, "namespace"), "tag namespace (create)"),
        (PlacementRuleConfig("user", filter=FilterConfig()), "user"),
        (PlacementRuleConfig("user", filter=FilterConfig(deny=True)), "user (for nobody)"),
        (
            PlacementRuleConfig("user", True, filter=FilterConfig(True, ("ann", "bob"), ("^o",))),
            "user (create; not user ann, user bob, group ^o)",
        ),
        (
            PlacementRuleConfig(
                "user",
                filter=FilterConfig(groups=("ops",)),
                parent=PlacementRuleConfig("tag", True, "ns", parent=PlacementRuleConfig("fixed", value="root.p")),
            ),
            "user (only group ops) below tag ns (create) below fixed root.p",
        ),
    ],
)
def test_a_rule_in_a_line(rule: PlacementRuleConfig, text: str) -> None:
    assert rule_text(rule) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0s"), (2 * 10**9, "2s"), (5_400 * 10**9, "1h30m"), (1_500_000_001, "1s500ms1ns"), (-1, "-1ns")],
)
def test_a_duration_in_text(ns: int, text: str) -> None:
    assert duration_text(ns) == text


@given(st.integers(-(1 << 62), 1 << 62))
def test_a_duration_that_is_written_is_read_back(ns: int) -> None:
    assert parse_duration_ns(duration_text(ns)) == ns


def test_the_effective_settings_of_a_queue_include_those_above_and_below() -> None:
    (partition,) = _config("""
partitions:
- queues:
  - name: root
    maxapplications: 9
    queues:
    - name: P
      resources: {max: {x: 10, y: 5}}
      maxapplications: 7
      childtemplate: {maxapplications: 1}
      queues:
      - {name: a, maxapplications: 7, resources: {max: {x: 4, z: 2}, guaranteed: {x: 1}}}
      - {name: b, maxapplications: 3, parent: true, resources: {max: {v: 0}, guaranteed: {v: 0}},
         queues: [{name: c, maxapplications: 1, resources: {guaranteed: {x: 2, w: 1}}}]}
""").partitions
    found = {
        queue.path: (queue.leaf, queue.guaranteed, queue.maximum, queue.max_applications)
        for queue in effective_queues(partition.root)
    }
    assert found == {
        "root": (False, {"x": 3, "w": 1}, {}, 9),
        "root.p": (False, {"x": 3, "w": 1}, {"x": 10, "y": 5}, 7),
        "root.p.a": (True, {"x": 1}, {"x": 4, "y": 5, "z": 2}, 7),
        "root.p.b": (False, {"x": 2, "w": 1}, {"x": 10, "y": 5}, 3),
        "root.p.b.c": (True, {"x": 2, "w": 1}, {"x": 10, "y": 5}, 1),
    }
    templates = [queue.child_template is not None for queue in effective_queues(partition.root)]
    assert templates == [False, True, True, True, True]


@given(st.recursive(st.just(()), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=12))
def test_effective_queues_are_all_queues_parents_first(shape: tuple[object, ...]) -> None:
    def build(number: int, children: tuple[object, ...]) -> QueueConfig:
        return QueueConfig(f"q{number}", queues=tuple(build(n, child) for n, child in enumerate(children)))  # type: ignore[arg-type]

    def size(queue: QueueConfig) -> int:
        return 1 + sum(size(child) for child in queue.queues)

    root = build(0, shape)
    paths = [queue.path for queue in effective_queues(root)]
    assert len(paths) == len(set(paths)) == size(root)
    for number, path in enumerate(paths[1:], start=1):
        assert path.rpartition(".")[0] in paths[:number]
