"""``fair``: the emptiest node first, so that load spreads."""

from __future__ import annotations

from muster_core.nodes.policies.policy import NodePolicy, used_share

POLICY: NodePolicy = NodePolicy("fair", score=used_share)
