"""The meaning of events for usage. Only this module knows which details of the event history design matter. Pure."""

from __future__ import annotations

from muster_event_publisher.derive.usage_fold import FactKind, SubjectKind, UsageFact
from muster_event_publisher.event_decoding import EventRecord

_STEPS: dict[tuple[int, int, int], tuple[FactKind, SubjectKind]] = {
    (EventRecord.APP, EventRecord.ADD, EventRecord.APP_ALLOC): (FactKind.GAIN, SubjectKind.APPLICATION),
    (EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_CANCEL): (FactKind.LOSS, SubjectKind.APPLICATION),
    (EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_PREEMPT): (FactKind.LOSS, SubjectKind.APPLICATION),
    (EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_TIMEOUT): (FactKind.LOSS, SubjectKind.APPLICATION),
    (EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_REPLACED): (FactKind.LOSS, SubjectKind.APPLICATION),
    (EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_NODEREMOVED): (FactKind.LOSS, SubjectKind.APPLICATION),
    (EventRecord.QUEUE, EventRecord.ADD, EventRecord.QUEUE_APP): (FactKind.JOIN, SubjectKind.APPLICATION),
    (EventRecord.QUEUE, EventRecord.REMOVE, EventRecord.QUEUE_APP): (FactKind.LEAVE, SubjectKind.APPLICATION),
    (EventRecord.USERGROUP, EventRecord.ADD, EventRecord.UG_USER_RESOURCE): (FactKind.GAIN, SubjectKind.USER),
    (EventRecord.USERGROUP, EventRecord.REMOVE, EventRecord.UG_USER_RESOURCE): (FactKind.LOSS, SubjectKind.USER),
    (EventRecord.USERGROUP, EventRecord.ADD, EventRecord.UG_GROUP_RESOURCE): (FactKind.GAIN, SubjectKind.GROUP),
    (EventRecord.USERGROUP, EventRecord.REMOVE, EventRecord.UG_GROUP_RESOURCE): (FactKind.LOSS, SubjectKind.GROUP),
}


def fact_of(event: EventRecord) -> UsageFact | None:
    """The event's meaning for usage; None: none. Quantities that are not positive are ignored (the event history
    design).
    """
    meaning = _STEPS.get((event.type, event.eventChangeType, event.eventChangeDetail))
    if meaning is None:
        return None
    step, kind = meaning
    if step is FactKind.JOIN or step is FactKind.LEAVE:
        return UsageFact(step, kind, event.referenceID, queue=event.objectID)
    quantities = {name: quantity.value for name, quantity in event.resource.resources.items() if quantity.value > 0}
    return UsageFact(step, kind, event.objectID, quantities)
