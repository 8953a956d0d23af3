"""What an application has used so far: resource-seconds of the allocations that ended (core-features §2.4).

By what they were (ordinary, placeholder, preempted), the instance type of their node, and resource type; whole seconds
from when they were allocated to when they were released. What still runs is not in it.

And the most that it held at once. That can only be lost when something ends, so it is recorded then; in between it is
the larger of what was recorded and what is held.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster_si.constants import INSTANCE_TYPE

from muster_scheduler.core.objects import Allocation, Application, Node

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


def most(app: Application, ending: Allocation) -> bool:
    """Takes in what the application holds at most, before one of its allocations ends; says whether that is more.

    Of each type of this allocation: the sum of those like it, real ones or placeholders (the real core counts the two
    apart, §2.17).
    """
    more = False
    names, taken = app.queue.types.names, app.gang.taken if app.gang is not None else {}
    for number, _ in ending.demand.shape.items:
        held = taken[number] if ending.demand.placeholder else app.allocated[number] - taken.get(number, 0)
        if held > app.most_used.get(names[number], 0):
            app.most_used[names[number]] = held
            more = True
    return more


def held(app: Application) -> dict[str, int]:
    """What its real allocations hold now, by type name; what they hold nothing of is left out."""
    taken = app.gang.taken if app.gang is not None else {}
    left = {name: value - taken.get(number, 0) for number, (name, value) in enumerate(_named(app))}
    return {name: value for name, value in left.items() if value}


def most_held(app: Application) -> dict[str, int]:
    """The most that its real ones or its placeholders held at once, up to now, by type name."""
    taken = app.gang.taken if app.gang is not None else {}
    found = dict(app.most_used)
    for number, (name, value) in enumerate(_named(app)):
        holds = taken.get(number, 0)
        if (now := max(value - holds, holds)) > found.get(name, 0):
            found[name] = now
    return found


def _named(app: Application) -> Iterable[tuple[str, int]]:
    # (Who was refused has no vectors that grow with the types.)
    return zip(app.queue.types.names, app.allocated, strict=False)
