"""The meaning of events for usage. Only this module knows which details of the event history design matter. Pure."""

from __future__ import annotations

from muster_event_publisher.derive.usage_fold import Fact, Kind, Step
from muster_event_publisher.event_decoding import EventRecord

_STEPS: dict[tuple[int, int, int], tuple[Step, Kind]] = {
    (EventRecord.APP, EventRecord.ADD, EventRecord.APP_ALLOC): (Step.GAIN, Kind.APPLICATION),
    (EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_CANCEL): (Step.LOSS, Kind.APPLICATION),
    (EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_PREEMPT): (Step.LOSS, Kind.APPLICATION),
    (EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_TIMEOUT): (Step.LOSS, Kind.APPLICATION),
    (EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_REPLACED): (Step.LOSS, Kind.APPLICATION),
    (EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_NODEREMOVED): (Step.LOSS, Kind.APPLICATION),
    (EventRecord.QUEUE, EventRecord.ADD, EventRecord.QUEUE_APP): (Step.JOIN, Kind.APPLICATION),
    (EventRecord.QUEUE, EventRecord.REMOVE, EventRecord.QUEUE_APP): (Step.LEAVE, Kind.APPLICATION),
    (EventRecord.USERGROUP, EventRecord.ADD, EventRecord.UG_USER_RESOURCE): (Step.GAIN, Kind.USER),
    (EventRecord.USERGROUP, EventRecord.REMOVE, EventRecord.UG_USER_RESOURCE): (Step.LOSS, Kind.USER),
    (EventRecord.USERGROUP, EventRecord.ADD, EventRecord.UG_GROUP_RESOURCE): (Step.GAIN, Kind.GROUP),
    (EventRecord.USERGROUP, EventRecord.REMOVE, EventRecord.UG_GROUP_RESOURCE): (Step.LOSS, Kind.GROUP),
}


def fact_of(event: EventRecord) -> Fact | None:
    """The event's meaning for usage; None: none. Quantities that are not positive are ignored (the event history
    design).
    """
    meaning = _STEPS.get((event.type, event.eventChangeType, event.eventChangeDetail))
    if meaning is None:
        return None
    step, kind = meaning
    if step is Step.JOIN or step is Step.LEAVE:
        return Fact(step, kind, event.referenceID, queue=event.objectID)
    quantities = {name: each.value for name, each in event.resource.resources.items() if each.value > 0}
    return Fact(step, kind, event.objectID, quantities)
