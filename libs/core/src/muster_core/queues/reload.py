"""Changes the configuration of a running partition: as a whole, or not at all.

:func:`conflicts` first checks whether the configuration can be applied. If there is none,
:func:`reconfigure` applies it, and cannot fail. Queues that vanish drain: their applications continue, nothing new
comes in, and the queues go when they are empty. All waiting asks are tried again under the new rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from muster_core.config import properties
from muster_core.config.queue_config import BACKFILL_OFF, PartitionConfig, QueueConfig, types_named
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome
from muster_core.model.queue import Queue
from muster_core.model.resources import TYPES_MAX
from muster_core.model.states import DYNAMIC_QUEUE_LINGER_NS, QueueEvent, QueueState, next_queue_state
from muster_core.model.steps import FEW, SOME, Pace, Steps
from muster_core.queues import quota_enforcement
from muster_core.queues.limits import limit_events, regrouped

if TYPE_CHECKING:
    from muster_core.partition import Partition


def conflicts(partition: Partition, config: PartitionConfig) -> list[str]:
    """Why the configuration cannot be applied to the present partition; empty: it can."""
    problems: list[str] = []
    types = {*partition.types.names, *types_named(config)}
    if partition.types.bounded and len(types) > TYPES_MAX:
        problems.append(f"partition {partition.name}: {len(types)} resource types, expected at most {TYPES_MAX}")
    for path, queue_config, leaf in _walk(config.root, ""):
        queue = partition.queues.get(path)
        if queue is None or queue.leaf == leaf:
            continue
        busy = sum(len(below.applications) for below in _subtree(queue))
        if busy:
            kind = "a leaf" if leaf else "a parent"
            problems.append(f"queue {queue_config.name} ({path}) has {busy} applications and cannot become {kind}")
    return problems


def removal_obstacles(partition: Partition) -> list[str]:
    """Why a partition that the configuration omits cannot be removed; empty: it can."""
    nodes = sum(node.of_rm for node in partition.nodes.values())
    live = sum(not app.source for app in partition.apps_below(partition.root))
    if nodes or live or any(not foreign.source for foreign in partition.foreign.values()):
        return [f"partition {partition.name} has {nodes} nodes and {live} applications and cannot be removed"]
    return []  # (what sources say of it waits until the partition exists again)


def reconfigure(partition: Partition, config: PartitionConfig, out: Outcome, now_ns: int) -> Steps:
    """Applies a configuration without obstacles, in steps. Nothing else may use the partition between them."""
    apps = [app for queue in partition.queues.values() for app in partition.apps_in(queue)]
    # 1. No ask waits and no application counts while the rules change.
    for count, queue in enumerate(list(partition.queues.values()), 1):
        partition.waiting.suspend(queue, out, now_ns)
        if not count % SOME:
            yield
    groups = {app: app.user_group for app in apps}
    limits = partition.limits.all_limits()
    for count, app in enumerate(apps, 1):
        partition.gangs.remove_promises(app)
        partition.limits.detach(app)
        if not count % SOME:
            yield
    queues = {
        queue: (queue.maximum, quota_enforcement.delay_ns(partition, queue)) for queue in partition.queues.values()
    }
    yield
    # 2. The rules change.
    yield from _change_rules(partition, config, out, now_ns)
    limit_events(limits, partition.limits.all_limits(), out, now_ns)
    partition.root.backfills = config.backfill != BACKFILL_OFF
    yield
    for count, app in enumerate(apps, 1):
        for ask in list(app.asks.values()):
            if ask.group is not None and ask.group.apart != ask.apart:
                partition.asks.regroup(ask)
        if not count % FEW:
            yield
    # 3. Everything counts again, and is tried again.
    for count, (app, group) in enumerate(groups.items(), 1):
        partition.limits.attach(app)
        regrouped(app, group, partition.types.quantities(app.allocated), out, now_ns)
        partition.gangs.add_promises(app)
        if not count % SOME:
            yield
    partition.gangs.on_limits_changed(partition.root, out, now_ns)
    yield
    for count, (queue, (maximum, delay_ns)) in enumerate(queues.items(), 1):
        if not queue.gone:
            quota_enforcement.on_config_changed(partition, queue, maximum, delay_ns, out, now_ns)
        if not count % SOME:
            yield
    partition.version += 1
    partition.capacity_moved = True
    partition.node_books.reindex()
    yield
    partition.reservations.reconfigured(out, now_ns)
    if partition.searching:
        for count, queue in enumerate(list(partition.queues.values()), 1):
            partition.waiting.restart(queue)
            if not count % SOME:
                yield


def _change_rules(partition: Partition, config: PartitionConfig, out: Outcome, now_ns: int) -> Steps:
    partition.types.reserve(types_named(config))
    yield
    yield from partition.limits.configure(config.root)
    partition.set_policies(config)
    uses = {queue: queue.fair_uses for queue in partition.queues.values()}
    kept: dict[str, None] = {}
    yield from _update(partition, config.root, partition.root, {}, kept, out, now_ns)
    for queue, used in uses.items():
        if not queue.gone:
            partition.fair_shares.reconfigured(queue, used, out, now_ns)
    yield
    yield from _drain(partition, kept, out, now_ns)


def remove(partition: Partition, out: Outcome, now_ns: int) -> Steps:
    """Removes a partition without obstacles: first the objects of sources, then finished applications, then queues. In
    steps.
    """
    yield from partition.external.end(out, now_ns)
    pace = Pace()
    for app in list(partition.apps.values()):
        partition.lifecycle.forget_application(app)
        out.mark_changed(app, partition.name)
        if pace.is_over():
            yield
    for app in list(partition.rejected.values()):
        partition.lifecycle.forget_rejected(app, out)
        if pace.is_over():
            yield
    limit_events(partition.limits.all_limits(), {}, out, now_ns)
    for queue in reversed(list(partition.queues.values())):
        if queue.parent is not None:
            partition.queue_tree.drop_queue(queue, out, now_ns)
        if pace.is_over():
            yield
    root = partition.root
    root.gone = True
    out.add_event(EventType.QUEUE, EventChange.REMOVE, EventDetail.NONE, root.path, now_ns=now_ns)
    out.mark_changed(root, partition.name)


def _update(
    partition: Partition,
    config: QueueConfig,
    queue: Queue,
    inherited: dict[str, str],
    kept: dict[str, None],
    out: Outcome,
    now_ns: int,
) -> Steps:
    """Applies a configured queue and everything below it, in steps. Adds the paths that the configuration has."""
    kept[queue.path] = None
    if not len(kept) % SOME:
        yield
    if queue.parent is not None:
        _set_leaf(partition, queue, not (config.queues or config.parent), out, now_ns)
    before, others = (queue.guaranteed, queue.maximum), _others(queue)
    queue.managed = True
    partition.queue_tree.change_queue_state(queue, QueueEvent.START)
    partition.queue_tree.configure_queue(queue, config, inherited)
    partition.queue_tree.limit_events(queue, *before, out, now_ns)
    _config_event(queue, others, out, now_ns)
    out.mark_changed(queue, partition.name)
    passed_on = properties.inherited(queue.properties)
    for child_config in config.queues:
        name = child_config.name.lower()
        child = queue.children.get(name)
        if child is None:
            new = yield from partition.queue_tree.build_in_steps(child_config, queue, passed_on)
            for built in _subtree(new):
                partition.queue_tree.announce_queue(built, out, now_ns)
                kept[built.path] = None
                if not len(kept) % SOME:
                    yield
        else:
            yield from _update(partition, child_config, child, passed_on, kept, out, now_ns)


def _others(queue: Queue) -> dict[str, object]:
    """The settings of a queue that have no event of their own, by their names in a configuration.

    (Limits of users and groups have their own events. Properties are listed singly and by name, because a record does
    not keep their order.)
    """
    return {
        "managed": queue.managed,
        "state": queue.state,
        "maxapplications": queue.max_applications,
        "submitacl": queue.submit_acl,
        "adminacl": queue.admin_acl,
        "childtemplate": queue.template,
        **{f"properties.{name}": value for name, value in sorted(queue.properties.items())},
    }


def _config_event(queue: Queue, before: dict[str, object], out: Outcome, now_ns: int) -> None:
    """Adds the event of a configured queue whose settings without an own event changed.

    (It gives only names: values may be secret, and there may be many.)
    """
    after = _others(queue)
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if not changed:
        return
    gone = queue.state is QueueState.DRAINING
    message = "removed: the queue drains" if gone else f"changed: {', '.join(changed)}"
    out.add_event(
        EventType.QUEUE, EventChange.SET, EventDetail.QUEUE_CONFIG, queue.path, message=message, now_ns=now_ns
    )


def _set_leaf(partition: Partition, queue: Queue, leaf: bool, out: Outcome, now_ns: int) -> None:
    if queue.leaf == leaf:
        return
    for below in reversed(list(_subtree(queue))):
        if below is not queue:
            partition.queue_tree.drop_queue(below, out, now_ns)
    queue.leaf = leaf
    message = f"leaf queue: {'true' if leaf else 'false'}"
    out.add_event(EventType.QUEUE, EventChange.SET, EventDetail.QUEUE_TYPE, queue.path, message=message, now_ns=now_ns)


def _drain(partition: Partition, kept: dict[str, None], out: Outcome, now_ns: int) -> Steps:
    """Drains configured queues that the configuration does not have any more, with everything below. They go once they
    are empty. In steps.
    """
    for count, queue in enumerate(list(partition.queues.values()), 1):  # parents come before their children
        if not count % SOME:
            yield
        if queue.path in kept:
            continue
        if not queue.managed and not _is_below_draining(queue):
            _follow_parent(partition, queue, out)
            continue
        if next_queue_state(queue.path, queue.state, QueueEvent.REMOVE) is not queue.state:
            others = _others(queue)
            partition.queue_tree.change_queue_state(queue, QueueEvent.REMOVE)
            out.mark_changed(queue, partition.name)
            if queue.managed:
                _config_event(queue, others, out, now_ns)
        if not queue.applications and not queue.children:
            partition.deadlines.append((now_ns + DYNAMIC_QUEUE_LINGER_NS, queue))


def _follow_parent(partition: Partition, queue: Queue, out: Outcome) -> None:
    """Updates a dynamic queue after its parent: it is active again if the parent is, and a parent queue takes the
    template.
    """
    if queue.state is QueueState.DRAINING:
        partition.queue_tree.change_queue_state(queue, QueueEvent.START)
        out.mark_changed(queue, partition.name)
    if not queue.leaf and queue.parent is not None:
        queue.template = queue.parent.template


def _is_below_draining(queue: Queue) -> bool:
    return any(above.state is QueueState.DRAINING for above in queue.line[1:])


def _walk(config: QueueConfig, above: str) -> Iterator[tuple[str, QueueConfig, bool]]:
    """Yields (path, queue, whether it is a leaf), parents first."""
    path = f"{above}.{config.name.lower()}" if above else config.name.lower()
    yield path, config, bool(above) and not (config.queues or config.parent)
    for child in config.queues:
        yield from _walk(child, path)


def _subtree(queue: Queue) -> Iterator[Queue]:
    yield queue
    for child in queue.children.values():
        yield from _subtree(child)
