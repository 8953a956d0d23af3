"""What an application has used so far: resource-seconds of the allocations that ended (core-features §2.4).

By what they were (ordinary, placeholder, preempted), the instance type of their node, and resource type; whole seconds
from when they were allocated to when they were released. What still runs is not in it.
"""

from __future__ import annotations

from muster_si.constants import INSTANCE_TYPE

from muster_scheduler.core.objects import Allocation, Node

UNKNOWN_INSTANCE_TYPE = "UNKNOWN"
USED, PREEMPTED, PLACEHOLDER = "resourceUsage", "preemptedResource", "placeholderResource"

# Kind → instance type → resource type → quantity × seconds.
UsageHistory = dict[str, dict[str, dict[str, int]]]


def account(history: UsageHistory, ended: Allocation, node: Node | None, now_ns: int) -> bool:
    """Adds what an allocation used that ends now, or has another size from now on; says whether that was anything."""
    seconds = (now_ns - (ended.demand.changed_ns or ended.allocated_ns)) // 1_000_000_000
    if seconds <= 0:
        return False
    kind = PREEMPTED if ended.preempted is not None else PLACEHOLDER if ended.demand.placeholder else USED
    attributes = node.attributes if node is not None else {}
    used = history.setdefault(kind, {}).setdefault(attributes.get(INSTANCE_TYPE) or UNKNOWN_INSTANCE_TYPE, {})
    for name, quantity in ended.demand.shape.quantities.items():
        used[name] = used.get(name, 0) + quantity * seconds
    return True
