"""Notices: events that no decision caused and that an RM's history must have (docs/events.md).

They are about the RM as a whole. The scheduler interface has no such type of event, so they are of its root queue.
"""

from __future__ import annotations

from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome
from muster_core.scheduler import SchedulerCore

from muster_scheduler.deregistration import published_objects

_ROOT = "root"


def apply_notice(message: str, core: SchedulerCore, now_ns: int, out: Outcome, *, records_lost: bool) -> None:
    """Takes a gateway's notice."""
    if records_lost:  # consumers of the state topic drop the RM's objects at a new InstanceUUID
        for partition, obj in published_objects(core):
            out.mark_changed(obj, partition)
    add_event(message, now_ns, out)


def add_event(message: str, now_ns: int, out: Outcome) -> None:
    """Adds the event of a notice, if the RM's events are tracked."""
    out.add_event(EventType.QUEUE, EventChange.NONE, EventDetail.NONE, _ROOT, message=message, now_ns=now_ns)
