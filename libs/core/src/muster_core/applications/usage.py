"""The past use of an application: resource-seconds of its ended allocations.

Usage is kept by kind (ordinary, placeholder, preempted), by the node's instance type, and by resource type, in whole
seconds from allocation to release. Running allocations are not included.

The record also has the peak: the largest amounts that the application held at once. The peak is recorded when an
allocation ends. Until then, the peak is the larger of the recorded and the present amounts.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster_si.constants import INSTANCE_TYPE

from muster_core.model.application import Allocation, Application
from muster_core.model.node import Node

UNKNOWN_INSTANCE_TYPE = "UNKNOWN"
USED, PREEMPTED, PLACEHOLDER = "resourceUsage", "preemptedResource", "placeholderResource"

# Kind → instance type → resource type → quantity × seconds.
UsageHistory = dict[str, dict[str, dict[str, int]]]


def account(history: UsageHistory, ended: Allocation, node: Node | None, now_ns: int) -> bool:
    """Adds the use of an allocation that ends now, or that changes its size. Returns whether the record changed.

    An allocation that lasted less than a second counts with 0, as in YuniKorn, so that it can be seen.
    """
    seconds = max((now_ns - (ended.demand.changed_ns or ended.allocated_ns)) // 1_000_000_000, 0)
    kind = PREEMPTED if ended.preempted is not None else PLACEHOLDER if ended.demand.placeholder else USED
    attributes = node.attributes if node is not None else {}
    used = history.setdefault(kind, {}).setdefault(attributes.get(INSTANCE_TYPE) or UNKNOWN_INSTANCE_TYPE, {})
    quantities = ended.demand.shape.quantities
    changes = seconds > 0 or not quantities.keys() <= used.keys()
    for name, quantity in quantities.items():
        used[name] = used.get(name, 0) + quantity * seconds
    return changes


def record_peak(app: Application, ending: Allocation) -> bool:
    """Records the peak of the application before one of its allocations ends. Returns whether the peak grew.

    For each type of this allocation: the sum of allocations like it, real ones or placeholders (YuniKorn counts the two
    separately).
    """
    more = False
    names, taken = app.queue.types.names, app.gang.taken if app.gang is not None else {}
    for number, _ in ending.demand.shape.items:
        allocated = taken[number] if ending.demand.placeholder else app.allocated[number] - taken.get(number, 0)
        if allocated > app.most_used.get(names[number], 0):
            app.most_used[names[number]] = allocated
            more = True
    return more


def allocated_by_type(app: Application) -> dict[str, int]:
    """The amounts that its real allocations hold now, by type name, without zeros."""
    taken = app.gang.taken if app.gang is not None else {}
    amounts = {name: value - taken.get(number, 0) for number, (name, value) in enumerate(_named(app))}
    return {name: value for name, value in amounts.items() if value}


def peak_by_type(app: Application) -> dict[str, int]:
    """By type name, the largest amount that its real allocations or its placeholders have held at once."""
    taken = app.gang.taken if app.gang is not None else {}
    peaks = dict(app.most_used)
    for number, (name, value) in enumerate(_named(app)):
        holds = taken.get(number, 0)
        if (now := max(value - holds, holds)) > peaks.get(name, 0):
            peaks[name] = now
    return peaks


def _named(app: Application) -> Iterable[tuple[str, int]]:
    # (A rejected application has no vectors that grow with the types.)
    return zip(app.queue.types.names, app.allocated, strict=False)
