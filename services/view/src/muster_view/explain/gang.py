"""Explains a gang: its state, the part for which an ask waits, and replacements (the gang design, docs/explain.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from muster_core.gangs.placeholders import timeout_ns
from muster_core.model.application import Allocation, Application, Ask, Gang
from muster_core.model.queue import Ledger, Queue
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.resources import saturated
from muster_core.model.states import GangPhase
from muster_core.model.task_group import TaskGroup
from muster_core.model.text_format import join_words, pluralize
from muster_core.partition import Partition
from muster_rest.shapes.base import Quantities
from muster_rest.shapes.explain import AwaitedDao, ClosedDao, GangDao, ReplacementDao, TaskGroupDao, WhyDao
from muster_rest.shapes.state import LackingDao

# Not recorded: the view derives these reasons from the gang's state for each answer.
MADE_WHEN_ASKED = frozenset({ReasonCode.GANG_FORMING, ReasonCode.PLACEHOLDER_LEAVING, ReasonCode.PLACEHOLDER_STUCK})

_PHASES = {
    GangPhase.WAITING: "Its gang waits to start.",
    GangPhase.FORMING: "Its gang forms.",
    GangPhase.FORMED: "Its gang is formed.",
    GangPhase.USED: "Its gang is in use.",
    GangPhase.OVER: "Its placeholders timed out before any real allocation.",
}


# ---- of an ask -------------------------------------------------------------------------------------------------------


def figures(reason: Reason) -> dict[str, Any]:
    """A reason's own fields, as in :class:`WhyDao`; without ``message``."""
    return {
        "reason": reason.code.value,
        "resource_type": reason.resource_type,
        "asked": saturated(reason.asked),
        "used": saturated(reason.used),
        "limit": saturated(reason.limit),
        "free": saturated(reason.free),
        "promised": saturated(reason.promised),
        "limit_queue": reason.queue,
        "who": reason.who,
        "node": reason.node,
        "nodes": reason.nodes,
        "reserved_nodes": reason.reserved,
        "lacking": [LackingDao(resource_type=name, nodes=lack) for name, lack in reason.lacking],
        "closed": closed(reason),
        "since": reason.since_ns,
    }


def closed(reason: Reason) -> list[ClosedDao]:
    """The number of closed nodes, by closer."""
    return [ClosedDao(by=by.value, source=source, nodes=nodes) for by, source, nodes in reason.closed]


def reason_dao(reason: Reason) -> WhyDao:
    """A reason without its ask."""
    return WhyDao(**figures(reason), message=reason.sentence())


def missing_item(reason: Reason) -> AwaitedDao | None:
    """The part of its gang that an ask with this reason waits for; None: it waits for something else."""
    if reason.code not in MADE_WHEN_ASKED:
        return None
    return AwaitedDao(
        task_group=reason.task_group,
        placed=reason.placed,
        members=reason.members,
        placeholder=reason.placeholder,
        because=reason_dao(reason.because) if reason.because is not None else None,
    )


# ---- of an application -----------------------------------------------------------------------------------------------


def of_application(partition: Partition, app: Application, reason_of: Callable[[Ask], Reason]) -> GangDao | None:
    """The application's gang: O(its groups of asks); None: it has none.

    :param reason_of: why an ask is pending.
    """
    gang = app.gang
    if gang is None:
        return None
    names = partition.types.names
    groups = [_task_group(gang, group, reason_of) for group in gang.groups.values()]
    return GangDao(
        phase=gang.phase.value,
        style="Hard" if gang.is_hard else "Soft",
        start="whole" if gang.whole else "incremental",
        asked=dict(gang.total.quantities) if gang.total is not None else {},
        placed={names[number]: saturated(value) for number, value in sorted(gang.placed.items()) if value},
        promised={names[number]: saturated(value) for number, value in gang.unplaced_by_type.items()},
        timeout=timeout_ns(app),
        deadline=gang.deadline_ns,
        task_groups=groups,
        message=_sentence(gang, groups) + _too_large(partition, gang),
    )


def _task_group(gang: Gang, group: TaskGroup, reason_of: Callable[[Ask], Reason]) -> TaskGroupDao:
    pending = gang.oldest_pending(group.name) if group.pending else None
    return TaskGroupDao(
        task_group=group.name,
        resource=group.shape.quantities,
        asked=group.asked,
        pending=group.pending,
        held=group.held,
        leaving=group.held - len(group.free),
        replaced=group.replaced,
        timed_out=group.timed_out,
        lost=group.lost,
        because=reason_dao(reason_of(pending)) if pending is not None else None,
    )


def _sentence(gang: Gang, groups: list[TaskGroupDao]) -> str:
    parts = []
    for singular, plural, number in (
        ("is pending", "are pending", sum(group.pending for group in groups)),
        ("holds room", "hold room", sum(group.held - group.leaving for group in groups)),
        ("is being released", "are being released", sum(group.leaving for group in groups)),
        ("was replaced", "were replaced", sum(group.replaced for group in groups)),
        ("timed out", "timed out", sum(group.timed_out for group in groups)),
        ("was lost", "were lost", sum(group.lost for group in groups)),
    ):
        if number:
            parts.append(pluralize(number, singular, plural))
    requested = sum(group.asked for group in groups)
    phase = _PHASES[gang.phase]
    if not requested:
        return f"{phase} It has asked for no placeholder."
    return f"{phase} Of {pluralize(requested, 'placeholder')} {join_words(parts)}."


def _too_large(partition: Partition, gang: Gang) -> str:
    """The limit that is smaller than the whole gang; its time-out is in ``deadline``."""
    below = partition.room.unsatisfiable_limit(gang.app) if gang.too_large_since_ns else None
    if below is None:
        return ""
    smaller = partition.room.smaller_limit(*below)
    return f" It cannot start: {smaller}; its time-out runs until the limit is raised."


def replacements(app: Application) -> Iterator[Allocation]:
    """Completed and pending replacements of placeholders, in the order of time."""
    allocations = [
        allocation
        for allocation in app.allocations.values()
        if allocation.replaces is not None or allocation.replaced_by
    ]
    allocations.sort(key=lambda allocation: (_since_ns(allocation), allocation.submission, allocation.ordinal))
    for allocation in allocations:
        if not allocation.gone:
            yield allocation


def replacement(allocation: Allocation) -> ReplacementDao:
    """One replacement."""
    for_key = allocation.replaced_by or ""
    placeholder = allocation.replaces.key if allocation.replaces is not None else allocation.key
    key = for_key or allocation.key
    leaving = f"Placeholder {placeholder} on node {allocation.node_id} is being released for {key}."
    return ReplacementDao(
        allocation_key=key,
        placeholder=placeholder,
        task_group=allocation.task_group,
        node=allocation.node_id,
        state="LEAVING" if for_key else "DONE",
        since=_since_ns(allocation),
        message=leaving if for_key else f"{key} replaced placeholder {placeholder} on node {allocation.node_id}.",
    )


def _since_ns(allocation: Allocation) -> int:
    return allocation.releasing_since_ns if allocation.replaced_by else allocation.allocated_ns


# ---- of a queue ------------------------------------------------------------------------------------------------------


def promised_in(partition: Partition, queue: Queue) -> Quantities:
    """The amounts that started gangs in a queue and its descendants will still take.

    (The scheduler keeps the sum in its ledgers for its decisions, but does not record it.)
    """
    total: dict[int, int] = {}
    for app in partition.apps_below(queue):
        for number, value in app.gang.unplaced_by_type.items() if app.gang is not None else ():
            total[number] = total.get(number, 0) + value
    return {partition.types.names[number]: saturated(value) for number, value in sorted(total.items())}


def promised_at(partition: Partition, ledger: Ledger, number: int) -> int:
    """The amount of one type that started gangs will still take below the limit of a queue, user or group."""
    queue = partition.queues.get(ledger.path)
    return sum(
        app.gang.unplaced_by_type.get(number, 0)
        for app in (partition.apps_below(queue) if queue is not None else ())
        if app.gang is not None and (not ledger.who or any(tracker is ledger for tracker in app.trackers))
    )


def waiting_for_placeholders(app: Application) -> Iterator[Ask]:
    """The asks without a group, because placeholders are being released for all their allocations."""
    for key in list(app.gang.replacing) if app.gang is not None else ():
        ask = app.asks.get(key)
        if ask is not None and ask.group is None and ask.pending:
            yield ask
