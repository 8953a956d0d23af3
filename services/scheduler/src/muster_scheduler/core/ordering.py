"""The orders: applications in a leaf, queues under a parent, nodes in a search (core-features §2.11).

A key sorts ascending; ties end in the order of submission or in a unique name, so that no order is left to chance.
"""

from __future__ import annotations

from typing import Any

from muster_scheduler.core.objects import Application, Ask, AskGroup, Node, Queue


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
    guaranteed = app.queue.guaranteed or {}
    shares = [
        used / total if (total := guaranteed.get(number, 0)) > 0 else float(used)
        for number, used in enumerate(app.allocated)
        if used > 0
    ]
    shares.sort(reverse=True)
    return tuple(shares)


def queue_key(queue: Queue) -> tuple[Any, ...]:
    """The queue's place under its parent: priority of its best application, fair share, path."""
    best = queue.ready_apps[0] if queue.leaf else queue.ready[0]
    priority = best[0] if queue.priority_first else best[-2]
    share = queue_share(queue)
    assert queue.parent is not None
    return (priority, share, queue.path) if queue.parent.priority_first else (share, queue.path, priority)


def queue_share(queue: Queue) -> float:
    """The queue's fair share: its most used type, of its guaranteed, else of its fair max (core-features §2.4)."""
    guaranteed, fair_max = queue.guaranteed, queue.fair_max
    best = 0.0
    for number, used in enumerate(queue.allocated):
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
