"""The event history design: REMOVE and ADD are deltas. So what the RM changes in a running allocation adds up in the
events too."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from builders import Cluster, ask
from muster_core.model.commands import UpdateAllocations
from muster_core.model.outcome import EventChange, EventDetail, EventType
from muster_core.model.resources import Shape


def _sums(cluster: Cluster) -> Counter[tuple[str, str]]:
    """(kind, object) → vcore, summed over the events of allocations."""
    found: Counter[tuple[str, str]] = Counter()
    for out in cluster.outcomes:
        for event in out.events:
            of_allocation = event.detail in (EventDetail.APP_ALLOC, EventDetail.NODE_ALLOC, EventDetail.ALLOC_REPLACED)
            if of_allocation and isinstance(event.resource, Shape):
                sign = 1 if event.change is EventChange.ADD else -1
                kind = "app" if event.type is EventType.APP else "node"
                found[kind, event.object_id] += sign * event.resource.quantities["vcore"]
    return found


def test_an_allocation_that_grows_and_moves_adds_up_and_keeps_its_uuid() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
    for node_id in ("n0", "n1"):
        cluster.node(node_id, vcore=10_000)
    cluster.app("app", "root.a")
    first = replace(ask("app", "k", vcore=1000), node_id="n0", uuid="u-1")
    cluster.do(UpdateAllocations([first]))
    cluster.do(UpdateAllocations([replace(first, quantities={"vcore": 3000}, uuid="")]))
    cluster.do(UpdateAllocations([replace(first, quantities={"vcore": 3000}, node_id="n1", uuid="")]))

    held = cluster.application("app").allocations
    assert [(a.key, a.node_id, a.uuid, a.shape.quantities) for a in held.values()] == [
        ("k", "n1", "u-1", {"vcore": 3000})
    ]
    assert _sums(cluster) == Counter({("app", "app"): 3000, ("node", "n0"): 0, ("node", "n1"): 3000})
