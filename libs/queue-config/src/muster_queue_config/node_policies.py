"""Finds the node sort policy that a configuration names: one of Muster's own, or an installed package's.

A package offers a policy as an entry point of the group ``muster.node_policies``. The entry point's name is the
policy's name, its object a :class:`~muster_core.nodes.policies.policy.NodePolicy`. Only policies that a configuration
names are imported. Every process that reads the configuration needs the package: the scheduler, its followers and the
command line.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from muster_core.nodes.policies import registry
from muster_core.nodes.policies.policy import NodePolicy

from muster_queue_config.yaml_reader import truncate

GROUP = "muster.node_policies"


def find(name: str) -> str:
    """Makes the policy known to the core. Returns "", or the reason why that failed, in one sentence."""
    if name in registry.names():
        return ""
    points = entry_points(group=GROUP)
    offers = [point for point in points if point.name == name]
    if not offers:
        names = [*registry.names(), *sorted({point.name for point in points} - set(registry.names()))]
        return f"undefined policy: {truncate(name)}; expected one of {', '.join(names)}"
    if len(offers) > 1:
        return f"undefined policy: {truncate(name)} is offered by {' and '.join(sorted(map(_source, offers)))}"
    return _load(offers[0])


def _load(point: EntryPoint) -> str:
    try:
        policy = point.load()
    except Exception as error:
        return f"undefined policy: {truncate(point.name)} of {_source(point)} cannot be loaded: {error!r}"
    if not isinstance(policy, NodePolicy) or policy.name != point.name:
        return f"undefined policy: {_source(point)} is no NodePolicy with the name {truncate(point.name)}"
    registry.register(policy)
    return ""


def _source(point: EntryPoint) -> str:
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"
    return f"{package} ({point.value})"
