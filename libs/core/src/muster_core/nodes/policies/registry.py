"""The node sort policies, by the names that the configuration gives them.

Muster's own policies stand in :data:`SHIPPED`. Another package offers its policy as an entry point of the group
``muster.node_policies``. The core does no I/O, so the configuration's reader loads the policy and calls
:func:`register` (``muster_queue_config/node_policies.py``). Muster's own policies are a table and not entry points, so
that the core works without installed metadata.
"""

from __future__ import annotations

from muster_core.nodes.policies import binpacking, dotproduct, fair, fragmentation
from muster_core.nodes.policies.policy import NodePolicy

SHIPPED: tuple[NodePolicy, ...] = (fair.POLICY, binpacking.POLICY, fragmentation.POLICY, dotproduct.POLICY)

_policies: dict[str, NodePolicy] = {policy.name: policy for policy in SHIPPED}


def register(policy: NodePolicy) -> None:
    """Adds a policy. Registering the same policy again changes nothing. Raises ValueError for another policy of that
    name.
    """
    if _policies.setdefault(policy.name, policy) is not policy:
        raise ValueError(f"node sort policy {policy.name} is there already")


def names() -> list[str]:
    """The names of all policies: Muster's own first."""
    return list(_policies)


def policy_named(name: str) -> NodePolicy:
    """The policy with this name. Raises KeyError; the configuration's reader admits only registered names."""
    return _policies[name]
