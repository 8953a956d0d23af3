"""``binpacking``: the fullest node first, so that whole nodes stay free."""

from __future__ import annotations

from muster_core.nodes.policies.policy import NodePolicy, minus_used_share

POLICY: NodePolicy = NodePolicy("binpacking", score=minus_used_share)
