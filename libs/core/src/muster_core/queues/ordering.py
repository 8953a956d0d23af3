"""The orders of applications in a leaf, and of queues under a parent.

A key sorts ascending. Ties end in the order of submission or in a unique name, so that chance decides no order.
"""

from __future__ import annotations

from typing import Any

from muster_core.config.properties import INT32_MAX, INT32_MIN
from muster_core.model.application import Application, Ask, AskGroup
from muster_core.model.queue import Queue
from muster_core.model.resources import Vector


def app_key(app: Application) -> tuple[Any, ...]:
    """The application's place in its leaf: by priority and submission; in fair order, by its shares before
    submission.
    """
    queue = app.queue  # (in order of decayed use: its place in its user's line)
    priority = app.ready[0][0] if app.ready else 0
    if queue.fair_apps:
        share = app.share
        if share is None:
            share = app_share(app)
        if queue.priority_first:
            return priority, share, app.submitted_ns, app.submission
        return share, app.submitted_ns, app.submission, priority
    if queue.priority_first:
        return priority, app.submitted_ns, app.submission
    return app.submitted_ns, app.submission, priority


def group_key(group: AskGroup, head: Ask) -> tuple[Any, ...]:
    """The place of a group among groups of its shape in the leaf: the place that its application would have with this
    group alone.
    """
    app, queue = group.app, group.app.queue
    order: tuple[Any, ...] = (app.submitted_ns, app.submission)
    if queue.fair_apps:
        order = (app_share(app), *order)
    own = (head.created_ns, head.submission)
    return (-group.priority, *order, *own) if queue.priority_first else (*order, -group.priority, *own)


def app_share(app: Application) -> tuple[float, ...]:
    """The application's shares of the queue's guaranteed amounts, largest first (raw quantities where none is
    guaranteed).
    """
    if app.share is not None:
        return app.share
    guaranteed = app.queue.guaranteed or {}
    shares: list[float] = []
    for number, used in enumerate(app.allocated):
        if used > 0:
            total = guaranteed.get(number, 0)
            shares.append(used / total if total > 0 else float(used))
    shares.sort(reverse=True)
    app.share = tuple(shares)
    return app.share


def queue_key(queue: Queue) -> tuple[Any, ...]:
    """The queue's place under its parent: by its ready priority, fair share and path."""
    parent = queue.parent
    assert parent is not None
    share = queue_share(queue)
    if queue.priority_first:
        priority = queue.ready_apps.first()[0] if queue.leaf else queue.ready[0][0]
    else:
        priority, _ = queue.ready_priorities.best()
    policy = queue.policy
    if policy.priority_fence:
        priority = -policy.priority_offset
    elif policy.priority_offset:
        # (A sum beyond 32 bits is cut to the nearest 32-bit value, as on the wire. Keys hold negated priorities.)
        priority = max(-INT32_MAX, min(-INT32_MIN, priority - policy.priority_offset))
    return (priority, share, queue.path) if parent.priority_first else (share, queue.path, priority)


def queue_share(queue: Queue) -> float:
    """The queue's fair share: the share of its most used type, of the guaranteed amount, else of the fair max."""
    return share_of(queue, queue.allocated)


def share_of(queue: Queue, allocated: Vector) -> float:
    """The fair share that the queue would have with these amounts allocated."""
    guaranteed, fair_max = queue.guaranteed, queue.fair_max
    best = 0.0
    for number, used in enumerate(allocated):
        if used > 0:
            total = guaranteed.get(number) if guaranteed else None
            if total is None:
                total = fair_max[number]
            share = used / total if total > 0 else 1.0
            if share > best:
                best = share
    return best
