"""A configuration written as YAML is read back unchanged, and an accepted one can be activated."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from muster_core import invariants
from muster_core.config.config_diff import diff
from muster_core.config.properties import KEYS, duration_text
from muster_core.config.queue_config import (
    BACKFILLS,
    ChildTemplateConfig,
    ClusterConfig,
    FilterConfig,
    LimitConfig,
    PartitionConfig,
    PlacementRuleConfig,
    PreemptionConfig,
    QueueConfig,
    ReservationConfig,
    quantity_text,
)
from muster_core.model.commands import AppItem, UpdateApplications
from muster_core.model.outcome import AcceptedApplication, RejectedApplication
from muster_core.model.resources import INT64_MAX
from muster_core.nodes.policies.registry import SHIPPED
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config

# ---- writing (JSON is YAML) ------------------------------------------------------------------------------------------


def _quantities(quantities: dict[str, int] | None) -> dict[str, str] | None:
    return None if quantities is None else {name: quantity_text(name, value) for name, value in quantities.items()}


def _amounts(config: QueueConfig | ChildTemplateConfig) -> dict[str, Any]:
    return {
        "resources": {"guaranteed": _quantities(config.guaranteed), "max": _quantities(config.maximum)},
        "maxapplications": config.max_applications,
        "properties": config.properties,
    }


def _limit(config: LimitConfig) -> dict[str, Any]:
    return {
        "limit": config.text,
        "users": list(config.users),
        "groups": list(config.groups),
        "maxapplications": config.max_applications,
        "maxresources": _quantities(config.max_resources),
    }


def _queue(config: QueueConfig) -> dict[str, Any]:
    return {
        "name": config.name,
        "parent": config.parent,
        "queues": [_queue(child) for child in config.queues],
        "submitacl": config.submit_acl,
        "adminacl": config.admin_acl,
        "childtemplate": None if config.child_template is None else _amounts(config.child_template),
        "limits": [_limit(limit) for limit in config.limits],
        **_amounts(config),
    }


def _rule(config: PlacementRuleConfig) -> dict[str, Any]:
    given = config.filter
    return {
        "name": config.name,
        "create": config.create,
        "value": config.value,
        "parent": None if config.parent is None else _rule(config.parent),
        "filter": given and {"type": "deny" if given.deny else "", "users": given.users, "groups": given.groups},
    }


def _partition(config: PartitionConfig) -> dict[str, Any]:
    return {
        "name": config.name,
        "queues": [_queue(config.root)],
        "placementrules": [_rule(rule) for rule in config.placement_rules],
        "nodesortpolicy": {"type": config.node_sort_policy, "resourceweights": config.node_sort_weights},
        "preemption": {
            "enabled": config.preemption.enabled,
            "quotapreemptionenabled": config.preemption.quota_enabled,
            "optout": "last" if config.preemption.opted_out_last else "never",
        },
        "reservation": {
            "enabled": config.reservation.enabled,
            "delay": duration_text(config.reservation.delay_ns),
            "timeout": duration_text(config.reservation.timeout_ns),
        },
        "backfill": config.backfill,
        "usergroupresolver": {"type": config.user_group_resolver},
    }


def _written(config: ClusterConfig) -> str:
    return json.dumps({"partitions": [_partition(partition) for partition in config.partitions]})


# ---- valid configurations --------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z0-9_:#/@-]{1,8}", fullmatch=True).filter(lambda name: name not in ("root", "@recovery@"))
USERS = st.lists(st.from_regex(r"[a-z_][a-z0-9:#/_.@-]{0,6}", fullmatch=True), max_size=3, unique=True).map(tuple)
GROUPS = st.lists(st.from_regex(r"[a-z_][a-z0-9:_.-]{0,6}", fullmatch=True), max_size=3, unique=True).map(tuple)
TYPES = st.sampled_from(["vcore", "memory", "nvidia.com/gpu"])
PROPERTIES = st.dictionaries(
    st.sampled_from([name for name in KEYS if not KEYS[name].note]), st.none(), max_size=3
).map(lambda names: {name: KEYS[name].default for name in names})
ACLS = st.sampled_from(["", "*", "ann", "ann,bob ops", " ops,dev", "a:b,c/d x.y"])


@st.composite
def _amounts_of(draw: st.DrawFn) -> tuple[dict[str, int] | None, dict[str, int] | None]:
    """Draw a guarantee or max that is valid beside any others: all guarantees together are below any max."""
    most = draw(st.none() | st.dictionaries(TYPES, st.just(INT64_MAX - 1), min_size=1))
    least = draw(st.none() | st.dictionaries(TYPES, st.integers(1, 10**6), min_size=1))
    return least, most


@st.composite
def _templates(draw: st.DrawFn) -> ChildTemplateConfig:
    least, most = draw(_amounts_of())
    return ChildTemplateConfig(draw(st.integers(1, 1 << 63)), draw(PROPERTIES), least, most)


@st.composite
def _limits(draw: st.DrawFn) -> tuple[LimitConfig, ...]:
    users, groups = draw(USERS), draw(GROUPS)
    if not users and not groups:
        return ()
    users += ("*",) if users else ()
    groups += ("*",) if groups else ()
    quantities = draw(st.none() | st.dictionaries(TYPES, st.integers(1, 10**9), min_size=1))
    applications = draw(st.integers(0 if quantities else 1, 1000))
    return (LimitConfig(users, groups, applications, quantities, draw(st.text("ab c", max_size=5))),)


@st.composite
def _leaves(draw: st.DrawFn, name: str) -> QueueConfig:
    most = draw(st.none() | st.dictionaries(TYPES, st.integers(10**9, INT64_MAX - 1), min_size=1))
    least = draw(st.none() | st.dictionaries(TYPES, st.integers(1, 10**6), min_size=1))
    return QueueConfig(
        name, False, (), least, most, draw(st.integers(0, 1 << 63) if most else st.just(0)), draw(PROPERTIES),
        draw(ACLS), draw(ACLS), None, draw(_limits()) if not most else (),
    )  # fmt: skip


@st.composite
def _parents(draw: st.DrawFn, name: str) -> QueueConfig:
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    return QueueConfig(
        name, True, tuple(draw(_leaves(each)) for each in names), None, None, 0, draw(PROPERTIES),
        draw(ACLS), draw(ACLS), draw(st.none() | _templates()), (),
    )  # fmt: skip


@st.composite
def _rules(draw: st.DrawFn, depth: int = 3) -> PlacementRuleConfig:
    name = draw(st.sampled_from(["provided", "user", "tag"]))
    filtered = draw(st.none() | st.builds(FilterConfig, st.booleans(), st.just(("ann",)), GROUPS))
    parent = draw(st.none() | _rules(depth - 1)) if depth else None
    return PlacementRuleConfig(name, draw(st.booleans()), draw(NAMES) if name == "tag" else "", filtered, parent)


@st.composite
def _partitions(draw: st.DrawFn, name: str) -> PartitionConfig:
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    children = tuple(draw(_parents(each) | _leaves(each)) for each in names)
    root = QueueConfig("root", True, children, submit_acl=draw(ACLS))
    return PartitionConfig(
        name,
        root,
        tuple(draw(st.lists(_rules(), min_size=1, max_size=3))),
        draw(st.sampled_from([policy.name for policy in SHIPPED])),
        draw(st.dictionaries(TYPES, st.floats(0, 1e9), min_size=1)),
        draw(st.builds(PreemptionConfig, st.booleans(), st.booleans(), st.booleans())),
        draw(st.builds(ReservationConfig, st.booleans(), st.integers(0, 10**18), st.integers(1, 10**18))),
        backfill=draw(st.sampled_from(BACKFILLS)),
        user_group_resolver=draw(st.sampled_from(["", "os", "ldap"])),
    )


CONFIGS = st.tuples(_partitions("default"), _partitions("gpu")).map(ClusterConfig)


@settings(max_examples=60)
@given(CONFIGS)
def test_written_configurations_are_read_back(config: ClusterConfig) -> None:
    read, problems = load_queue_config(_written(config))
    assert problems == []
    assert read == config


@settings(max_examples=60)
@given(CONFIGS, st.sampled_from(["", "root", "root.a.b", "x.y", "root.@recovery@"]), st.sampled_from(["", "true"]))
def test_accepted_configurations_can_be_activated(config: ClusterConfig, queue: str, forced: str) -> None:
    core = SchedulerCore(config)
    core.start(1)
    item = AppItem("x", queue, "gpu", "ann", ("ops",), tags={"ns": "dev", "application.create.force": forced})
    out = core.apply(UpdateApplications((item,)), 2)
    (answer,) = out.facts
    assert isinstance(answer, AcceptedApplication | RejectedApplication)
    invariants.check(core)


@settings(max_examples=60)
@given(CONFIGS, CONFIGS)
def test_a_difference_is_one_both_ways(old: ClusterConfig, new: ClusterConfig) -> None:
    forth = {(change.partition, change.path, change.what): (change.old, change.new) for change in diff(old, new)}
    back = {(change.partition, change.path, change.what): (change.new, change.old) for change in diff(new, old)}
    assert forth == back
    assert all(was != becomes for was, becomes in forth.values())
    assert diff(old, old) == []
