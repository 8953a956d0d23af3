"""The orders: applications in a leaf, queues under a parent, nodes in a search (core-features §2.11).

A key sorts ascending; ties end in the order of submission or in a unique name, so that no order is left to chance.
"""

from __future__ import annotations

from typing import Any

from muster_scheduler.core.objects import Application, Ask, AskGroup, Node, Queue
from muster_scheduler.core.properties import INT32_MAX, INT32_MIN
from muster_scheduler.core.resources import Vector


def app_key(app: Application) -> tuple[Any, ...]:
    """The application's place in its leaf: priority and (fair: its shares, then) submission."""
    queue = app.queue
    priority = app.ready[0][0] if app.ready else 0
    order = (app.submitted_ns, app.submission)
    if queue.fair_apps:
        share = app_share(app)
        return (priority, share, *order) if queue.priority_first else (share, *order, priority)
    return (priority, *order) if queue.priority_first else (*order, priority)


def group_key(group: AskGroup, head: Ask) -> tuple[Any, ...]:
    """The place of a group among those of its shape in its leaf: where its application would be with it alone."""
    app, queue = group.app, group.app.queue
    order: tuple[Any, ...] = (app.submitted_ns, app.submission)
    if queue.fair_apps:
        order = (app_share(app), *order)
    own = (head.created_ns, head.submission)
    return (-group.priority, *order, *own) if queue.priority_first else (*order, -group.priority, *own)


def app_share(app: Application) -> tuple[float, ...]:
    """Its shares of the queue's guaranteed, largest first (raw quantities where there is none)."""
    if app.share is not None:
        return app.share
    guaranteed = app.queue.guaranteed or {}
    shares = [
        used / total if (total := guaranteed.get(number, 0)) > 0 else float(used)
        for number, used in enumerate(app.allocated)
        if used > 0
    ]
    shares.sort(reverse=True)
    app.share = tuple(shares)
    return app.share


def queue_key(queue: Queue) -> tuple[Any, ...]:
    """The queue's place under its parent: the priority that it lends, fair share, path."""
    parent = queue.parent
    assert parent is not None
    share = queue_share(queue)
    if queue.priority_first:
        priority = queue.ready_apps[0][0] if queue.leaf else queue.ready[0][0]
    else:
        priority = min(queue.lent)
    policy = queue.policy
    if policy.priority_fence:
        priority = -policy.priority_offset
    elif policy.priority_offset:
        # (A sum beyond 32 bits stays at the edge, as on the wire; keys hold priorities with the sign turned.)
        priority = max(-INT32_MAX, min(-INT32_MIN, priority - policy.priority_offset))
    return (priority, share, queue.path) if parent.priority_first else (share, queue.path, priority)


def lend(queue: Queue, old: tuple[Any, ...] | None, new: tuple[Any, ...] | None) -> None:
    """Keeps count of the priorities that are ready in a queue where they do not come first (in ``queue.lent``)."""
    if queue.priority_first:
        return
    lent = queue.lent
    if old is not None:
        left = lent[old[-1]] - 1
        if left:
            lent[old[-1]] = left
        else:
            del lent[old[-1]]
    if new is not None:
        lent[new[-1]] = lent.get(new[-1], 0) + 1


def queue_share(queue: Queue) -> float:
    """The queue's fair share: its most used type, of its guaranteed, else of its fair max (core-features §2.4)."""
    return share_of(queue, queue.allocated)


def share_of(queue: Queue, allocated: Vector) -> float:
    """The fair share that the queue would have with so much allocated."""
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


def node_score(node: Node, weights: list[tuple[int, float]], *, binpacking: bool) -> float:
    """Place in the order of nodes: the weighted used share, ascending for fair, descending for binpacking."""
    total = score = 0.0
    capacity, available = node.capacity, node.available
    for number, weight in weights:
        full = capacity[number]
        if full > 0:
            total += weight
            score += weight * (1.0 - available[number] / full)
    used = score / total if total else 0.0
    return -used if binpacking else used
