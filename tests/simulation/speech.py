"""How a resource manager speaks of what there is: items about the core's own asks and allocations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.commands import AppItem, AskItem, ReleaseItem, Termination
from muster_core.model.states import APP_TERMINAL
from muster_core.partition import Partition

OTHER_WORDS = (
    Termination.STOPPED_BY_RM,
    Termination.TIMEOUT,
    Termination.PREEMPTED_BY_SCHEDULER,
    Termination.PLACEHOLDER_REPLACED,
    Termination.SCHEDULING_FAILED_ON_RM,
    Termination.UNKNOWN,
)


def live(partition: Partition) -> list[Application]:
    apps = partition.apps.values()
    return [app for app in apps if app.state not in APP_TERMINAL and app.state != "Failing" and not app.source]


def held(apps: list[Application]) -> list[Allocation]:
    return [each for app in apps for each in app.allocations.values()]


def asks(apps: list[Application]) -> list[Ask]:
    return [ask for app in apps for ask in app.asks.values()]


def told(partition: Partition) -> Iterator[Allocation]:
    """What was told to go, and counts until the RM confirms."""
    for app in partition.apps.values():
        for each in app.allocations.values():
            if each.releasing and not each.source:
                yield each


def id_of(app: Application | None) -> str:
    """Its id as the RM says it."""
    return "" if app is None or app.independent else app.app_id


def submitted(partition: Partition, app: Application) -> AppItem:
    return AppItem(
        app.app_id,
        app.queue.path,
        partition.name,
        app.user,
        app.groups_of_user,
        tags=dict(app.tags),
        execution_timeout_ms=app.execution_timeout_ms,
        placeholder_ask=app.placeholder_ask,
        gang_style=app.gang_style,
    )


def said(partition: Partition, what: Ask | Allocation) -> AskItem:
    """What was asked for, in the words in which it was."""
    demand = what.demand
    wanted = what.pending + what.allocated if isinstance(what, Ask) else 1
    return AskItem(
        demand.key,
        id_of(what.app),
        partition.name,
        dict(sorted(demand.shape.quantities.items())),  # (a fold has them in no useful order)
        wanted=wanted,
        priority=demand.priority,
        tags=dict(demand.tags),
        task_group=demand.task_group,
        placeholder=demand.placeholder,
        originator=demand.originator,
        allow_preempt_self=demand.allow_preempt_self,
        allow_preempt_other=demand.allow_preempt_other,
        has_preemption_policy=demand.has_preemption_policy,
        execution_timeout_ms=demand.execution_timeout_ms,
        previous_generation=demand.previous_generation,
    )


def reported(partition: Partition, each: Allocation) -> AskItem:
    uuid = each.uuid if each.previous_generation else ""
    return replace(said(partition, each), node_id=each.node_id, uuid=uuid)


def cancelled(partition: Partition, ask: Ask) -> ReleaseItem:
    return ReleaseItem(partition.name, id_of(ask.app), ask.key, Termination.STOPPED_BY_RM, ask_only=True)


def stopped(partition: Partition, each: Allocation, kind: Termination = Termination.STOPPED_BY_RM) -> ReleaseItem:
    return ReleaseItem(partition.name, id_of(each.app), each.key, kind, each.uuid)


def confirmed(partition: Partition, each: Allocation) -> ReleaseItem:
    kind = Termination.PLACEHOLDER_REPLACED
    if each.preempted is not None:
        kind = Termination.PREEMPTED_BY_SCHEDULER
    elif each.timed_out:
        kind = Termination.TIMEOUT
    return stopped(partition, each, kind)
