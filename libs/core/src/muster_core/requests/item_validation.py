"""Shared by requests of all kinds: checks of numbers, rejections, and the start of an application."""

from __future__ import annotations

from muster_core.model.application import Application
from muster_core.model.commands import AskItem
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome, RejectedAsk
from muster_core.model.states import AppState
from muster_core.partition import Partition
from muster_core.queues.limits import link_event

SHOWN_MAX = 200  # characters of a name in an answer


class NegativeQuantity(ValueError):
    """A quantity below zero."""


def refuse_negative(subject: str, *resources: dict[str, int]) -> None:
    for quantities in resources:
        for name, value in quantities.items():
            if value < 0:
                raise NegativeQuantity(f"{subject} contains negative resources: {name} {value}")


def reject(item: AskItem, reason: str, out: Outcome) -> None:
    """Rejects an item with its own names. In both generations, an item with a node is an allocation."""
    is_ask = item.previous_generation and not item.node_id
    out.facts.append(RejectedAsk(item.key, item.app_id, reason, is_ask))


def begin(partition: Partition, app: Application, out: Outcome, now_ns: int) -> None:
    """Adds a new application to its queue."""
    app.state_log.append((now_ns, AppState.NEW))
    partition.lifecycle.free_id(app, out)
    partition.lifecycle.add_application(app)
    out.mark_changed(app, partition.name)


def announce(app: Application, reason: str, out: Outcome, now_ns: int) -> None:
    """Adds the events of a new application. ``reason``: why it was accepted differently from what it asked for; "":
    it was not.
    """
    out.add_event(EventType.APP, EventChange.ADD, EventDetail.NONE, app.app_id, message=reason, now_ns=now_ns)
    out.add_event(EventType.APP, EventChange.SET, EventDetail.APP_NEW, app.app_id, now_ns=now_ns)
    out.add_event(EventType.QUEUE, EventChange.ADD, EventDetail.QUEUE_APP, app.queue.path, app.app_id, now_ns=now_ns)
    link_event(app, app.user_group, EventChange.SET, out, now_ns)
