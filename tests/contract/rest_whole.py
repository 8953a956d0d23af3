"""The relations between the parts of a state dump: they show that a required field is absent.

Of a dump of one moment, without anything from outside of the RM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from contract import rest_shapes as shapes
from contract.rest_shapes import added, same

HOST, RACK, PARTITION = "si/hostname", "si/rackname", "si/node-partition"


def hold_together(dump: shapes.StateDump) -> None:
    """Raises AssertionError."""
    partitions = [each.name for each in dump.partitions or []]
    nodes_of, queues, rules = dump.nodes or [], dump.queues or [], dump.placement_rules or []
    assert [each.partition_name for each in nodes_of] == partitions
    assert [each.partition for each in dump.cluster_info or []] == partitions
    assert [each.partition for each in rules] == partitions
    assert [each.name for each in dump.config.partitions] == partitions
    assert [each.partition for each in queues] == partitions
    ran, held = dump.app_history or [], dump.container_history or []
    assert [each.timestamp for each in ran] == [each.timestamp for each in held]
    assert {each.partition for each in dump.applications or []} <= set(partitions)
    if partitions:
        assert dump.config.checksum
    for number, partition in enumerate(dump.partitions or []):
        apps = [each for each in dump.applications or [] if each.partition == partition.name]
        nodes = nodes_of[number].nodes_info or []
        config = dump.config.partitions[number]
        assert config.queues[0].parent is True, "root is a parent"
        _nodes(nodes, apps, f"[{partition.cluster_id}]{partition.name}")
        _partition(partition, queues[number], nodes, apps)
        _queue(queues[number], apps, None)
        _configured(queues[number], config.queues[0], dict(config.queues[0].properties or {}))
        _rules(rules[number].rules, config.placement_rules or [])


def _held(apps: Sequence[shapes.Application]) -> Iterator[shapes.Allocation]:
    for app in apps:
        yield from app.allocations or []


def _partition(
    shown: shapes.Partition, root: shapes.Queue, nodes: Sequence[shapes.Node], apps: Sequence[shapes.Application]
) -> None:
    assert (shown.total_nodes or 0) == len(nodes)
    assert (shown.total_containers or 0) == len(list(_held(apps)))
    assert shown.applications == {**Counter(app.application_state for app in apps), "total": len(apps)}
    assert same(shown.capacity.capacity, added(node.capacity or {} for node in nodes))
    assert same(shown.capacity.used_capacity, added(each.resource for each in _held(apps)))
    _percent(shown.capacity.utilization, shown.capacity.used_capacity, shown.capacity.capacity)
    assert same(root.max_resource, shown.capacity.capacity)


def _nodes(nodes: Sequence[shapes.Node], apps: Sequence[shapes.Application], partition: str) -> None:
    def alike(held: shapes.Allocation) -> bytes:
        return msgspec.json.encode(held)

    for node in nodes:
        here = list(node.allocations or [])
        assert sorted(map(alike, here)) == sorted(alike(each) for each in _held(apps) if each.node_id == node.node_id)
        assert same(node.allocated, added(each.resource for each in here)), node.node_id
        foreign = list(node.foreign_allocations or [])
        # (An RM may say what else is occupied.)
        by_foreign = added(each.resource for each in foreign)
        assert all((node.occupied or {}).get(name, 0) >= value for name, value in by_foreign.items()), node.node_id
        assert {each.node_id for each in foreign} <= {node.node_id}
        for each in foreign:
            assert bool(each.preemptable) == (each.allocation_tags.get("foreign") != "static")
        _percent(node.utilized, node.allocated, node.capacity)
        assert node.attributes[PARTITION] == partition
        assert (node.host_name or "", node.rack_name or "") == (
            node.attributes.get(HOST, ""),
            node.attributes.get(RACK, ""),
        )
    kept = Counter(key for node in nodes for key in node.reservations or [])
    assert kept == Counter(key for app in apps for key in app.reservations or [])


def _percent(shown: Any, used: Any, most: Any) -> None:
    used, most = dict(used or {}), dict(most or {})
    expected = {name: max(value, 0) * 100 // most[name] for name, value in used.items() if most.get(name, 0) > 0}
    assert {name: value for name, value in dict(shown or {}).items() if most.get(name, 0) > 0} == expected


def _queue(shown: shapes.Queue, apps: Sequence[shapes.Application], above: shapes.Queue | None) -> None:
    below = list(shown.children or [])
    assert [child.queuename for child in below] == list(shown.child_names or [])
    own = [
        app
        for app in apps
        if (app.queue_name == shown.queuename or app.queue_name.startswith(f"{shown.queuename}."))
        and app.application_state not in {"Completed", "Failed", "Expired", "Rejected"}
    ]
    assert same(shown.allocated_resource, added(each.resource for each in _held(own))), shown.queuename
    assert same(shown.pending_resource, added(app.pending_resource or {} for app in own)), shown.queuename
    assert same(shown.preempting_resource, added(each.resource for each in _held(own) if each.preempted))
    _percent(shown.abs_used_capacity, shown.allocated_resource, shown.max_resource)
    for of_child, of_all in (
        (lambda child: child.running_apps or 0, shown.running_apps or 0),
        (lambda child: len(child.allocating_accepted_apps or []), len(shown.allocating_accepted_apps or [])),
    ):
        number: Callable[[shapes.Queue], int] = of_child
        assert not below or sum(map(number, below)) == of_all, shown.queuename
    forming = [app.application_id for app in own if app.application_state == "Accepted" and app.allocations]
    assert set(shown.allocating_accepted_apps or []) >= set(forming), shown.queuename
    most, left = shown.max_resource or {}, dict((above.headroom if above is not None else {}) or {})
    for name, value in most.items():
        room = value - (shown.allocated_resource or {}).get(name, 0)
        left[name] = min(left.get(name, room), room)
    assert dict(shown.headroom or {}) == left, shown.queuename
    for child in below:
        _queue(child, apps, shown)


def _configured(shown: shapes.Queue, config: shapes.ConfigQueue, inherited: dict[str, str]) -> None:
    """Of a queue what its configuration says of it; only static ones are in the configuration."""
    properties = dict(shown.properties or {})
    own = dict(config.properties or {})
    assert {name: properties.get(name) for name in own} == own, shown.queuename
    assert properties.keys() <= own.keys() | inherited.keys(), shown.queuename
    assert (shown.max_running_apps or 0) == (config.max_applications or 0), shown.queuename
    if shown.parent:
        assert set(shown.max_resource or {}) == set(config.resources.max or {}), shown.queuename
    assert set(shown.guaranteed_resource or {}) == set(config.resources.guaranteed or {}), shown.queuename
    offset = int(properties.get("priority.offset", "0"))
    assert (shown.priority_offset or 0) == offset, shown.queuename
    template, wanted = shown.template or None, config.child_template
    told = [wanted.max_applications, wanted.properties, wanted.resources.max, wanted.resources.guaranteed]
    if any(told):
        assert template is not None, shown.queuename
        assert (template.max_applications or 0) == (wanted.max_applications or 0)
        assert dict(template.properties or {}) == dict(wanted.properties or {})
        assert set(template.max_resource or {}) == set(wanted.resources.max or {})
        assert set(template.guaranteed_resource or {}) == set(wanted.resources.guaranteed or {})
    children = {child.queuename: child for child in shown.children or []}
    for each in config.queues or []:
        child = children.get(f"{shown.queuename}.{each.name.lower()}")
        assert child is not None, f"{each.name} below {shown.queuename}"
        assert child.is_managed
        _configured(child, each, {**inherited, **own})


def _rules(shown: Sequence[shapes.Rule], config: Sequence[shapes.ConfigRule]) -> None:
    assert shown[-1].name == "recovery"
    if config:
        assert len(shown) == len(config) + 1
    for rule, wanted in zip(shown, config, strict=False):
        _rule(rule, wanted)


def _rule(rule: shapes.Rule, wanted: shapes.ConfigRule) -> None:
    assert rule.name == wanted.name.lower()
    assert rule.parameters.get("create") == ("true" if wanted.create else "false")
    by_name = {"fixed": {"create", "queue", "qualified"}, "tag": {"create", "tagName"}}
    assert set(rule.parameters) == by_name.get(rule.name, {"create"})
    if wanted.filter.users or wanted.filter.groups:
        assert rule.filter
        for names, expression, of in (
            (rule.filter.user_list, rule.filter.user_exp, wanted.filter.users),
            (rule.filter.group_list, rule.filter.group_exp, wanted.filter.groups),
        ):
            assert [*(names or []), *([expression] if expression else [])] == list(of or [])
    assert bool(rule.parent_rule) == bool(wanted.parent)
    if rule.parent_rule and wanted.parent:
        _rule(rule.parent_rule, wanted.parent)
