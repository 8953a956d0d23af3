"""The events of everything that ends when an RM registers again, or is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from muster_core.allocation.allocation_facts import AllocationFacts
from muster_core.model.allocation_order import asks_in_steps, ordered_in_steps
from muster_core.model.application import Application, Ask
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome
from muster_core.model.resources import Shape, Vector, add
from muster_core.model.steps import LIGHT_STEP, Pace, Steps, emptied
from muster_core.partition import Partition
from muster_core.queues.limits import usage_events

# Up to this number of asks and allocations that end with a registration, each has its own events. All events are in the
# registration's transaction, which must not take too long.
ENDED_ONE_BY_ONE_MAX = 100_000

# Why an RM's objects end with its registration.
ANEW = "the resource manager registered again"

FORGOTTEN = "an operator had the resource manager forgotten"


def emit_app_ended(app: Application, out: Outcome, now_ns: int, reason: str, pace: Pace) -> Steps:
    """Adds the events of an application's asks and allocations, which all end.

    :param pace: counts the asks and allocations of all applications that end together: many small ones are a step, too.
    """
    asks = yield from asks_in_steps(app.asks.values())
    for ask in emptied(asks):
        _end_reservation(ask, out, now_ns, reason)
        AllocationFacts.ask_event(EventChange.REMOVE, EventDetail.REQUEST_CANCEL, ask, out, now_ns, reason)
        if pace.is_over():
            yield
    allocations = yield from ordered_in_steps(app.allocations.values())
    for allocation in emptied(allocations):
        key, shape = allocation.key, allocation.shape
        out.add_event(
            EventType.APP, EventChange.REMOVE, EventDetail.ALLOC_CANCEL, app.app_id, key, shape, reason, now_ns=now_ns
        )
        out.add_event(
            EventType.NODE,
            EventChange.REMOVE,
            EventDetail.NODE_ALLOC,
            allocation.node_id,
            key,
            shape,
            reason,
            now_ns=now_ns,
        )
        usage_events(app, EventChange.REMOVE, shape, out, now_ns)
        if pace.is_over():
            yield


def emit_totals_ended(
    partition: Partition, apps: Sequence[Application], out: Outcome, now_ns: int, reason: str
) -> Steps:
    """Adds the events of everything reserved, pending and allocated: one event for each sum, without ask or allocation
    ids.
    """
    sums: dict[tuple[EventType, EventDetail, str, str], Vector] = {}

    def count(about: EventType, detail: EventDetail, object_id: str, reference_id: str, shape: Shape) -> None:
        key = (about, detail, object_id, reference_id)
        add(sums.get(key) or sums.setdefault(key, partition.types.vector()), shape.items)

    pace, light = Pace(), Pace(LIGHT_STEP)
    for app in apps:
        for ask in app.asks.values():
            _end_reservation(ask, out, now_ns, reason)
            if light.is_over():
                yield
        if pace.is_over():
            yield
        if any(app.pending):
            sums[EventType.APP, EventDetail.REQUEST_CANCEL, app.app_id, ""] = app.pending
        # (Not the applications' and nodes' own sums: these may include proposals.)
        for allocation in app.allocations.values():
            if pace.is_over():
                yield
            count(EventType.APP, EventDetail.ALLOC_CANCEL, app.app_id, "", allocation.shape)
            count(EventType.NODE, EventDetail.NODE_ALLOC, allocation.node_id, "", allocation.shape)
            if app.user:
                count(EventType.USERGROUP, EventDetail.UG_USER_RESOURCE, app.user, app.queue.path, allocation.shape)
            if app.user_group:
                count(
                    EventType.USERGROUP, EventDetail.UG_GROUP_RESOURCE, app.user_group, app.queue.path, allocation.shape
                )
    for (about, detail, object_id, reference_id), vector in sums.items():
        message = "" if about is EventType.USERGROUP else reason
        quantities = partition.types.quantities(vector)
        out.add_event(about, EventChange.REMOVE, detail, object_id, reference_id, quantities, message, now_ns=now_ns)
        if pace.is_over():
            yield


def _end_reservation(ask: Ask, out: Outcome, now_ns: int, reason: str) -> None:
    if ask.reserved_node:
        change, detail, node_id = EventChange.REMOVE, EventDetail.NODE_RESERVATION, ask.reserved_node
        out.add_event(EventType.NODE, change, detail, node_id, ask.key, ask.shape, reason, now_ns=now_ns)
