"""How far a gang is, what of it an ask waits for, and who took whose place (seed 003, docs/explain.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from muster_scheduler.core.gang import Gang, TaskGroup, timeout_ns
from muster_scheduler.core.objects import Allocation, Application, Ask, Ledger, Queue
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.reasons import Reason, ReasonCode
from muster_scheduler.core.resources import saturated
from muster_scheduler.core.states import GangPhase
from muster_scheduler.core.words import count, listed
from muster_scheduler.view.dao import LackingDao, Quantities
from muster_scheduler.view.explain_dao import AwaitedDao, ClosedDao, GangDao, ReplacementDao, TaskGroupDao, WhyDao

# Reasons that nobody records: they follow from where the gang is, and are made anew for each who asks.
MADE_WHEN_ASKED = frozenset({ReasonCode.GANG_FORMING, ReasonCode.PLACEHOLDER_LEAVING, ReasonCode.PLACEHOLDER_STUCK})

_PHASES = {
    GangPhase.WAITING: "Its gang waits to start.",
    GangPhase.FORMING: "Its gang forms.",
    GangPhase.FORMED: "Its gang is formed.",
    GangPhase.USED: "Its gang is in use.",
    GangPhase.OVER: "The time of its placeholders was up before anything real was allocated.",
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
    """How many nodes are closed by whom."""
    return [ClosedDao(by=by.value, source=source, nodes=nodes) for by, source, nodes in reason.closed]


def why(reason: Reason) -> WhyDao:
    """A reason alone."""
    return WhyDao(**figures(reason), message=reason.sentence())


def awaited(reason: Reason) -> AwaitedDao | None:
    """What of its gang an ask waits for that has this reason; None: it waits for something else."""
    if reason.code not in MADE_WHEN_ASKED:
        return None
    return AwaitedDao(
        task_group=reason.task_group,
        placed=reason.placed,
        members=reason.members,
        placeholder=reason.placeholder,
        because=why(reason.because) if reason.because is not None else None,
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
        promised={names[number]: saturated(value) for number, value in gang.still_to_take.items()},
        timeout=timeout_ns(app),
        deadline=gang.deadline_ns,
        task_groups=groups,
        message=_sentence(gang, groups),
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
        because=why(reason_of(pending)) if pending is not None else None,
    )


def _sentence(gang: Gang, groups: list[TaskGroupDao]) -> str:
    parts = []
    for one, several, number in (
        ("is pending", "are pending", sum(group.pending for group in groups)),
        ("holds room", "hold room", sum(group.held - group.leaving for group in groups)),
        ("was told to go", "were told to go", sum(group.leaving for group in groups)),
        ("was replaced", "were replaced", sum(group.replaced for group in groups)),
        ("timed out", "timed out", sum(group.timed_out for group in groups)),
        ("was lost", "were lost", sum(group.lost for group in groups)),
    ):
        if number:
            parts.append(count(number, one, several))
    asked = sum(group.asked for group in groups)
    said = _PHASES[gang.phase]
    if not asked:
        return f"{said} No placeholder was asked for."
    return f"{said} Of {count(asked, 'placeholder')} {listed(parts)}."


def replacements(app: Application) -> Iterator[Allocation]:
    """In the order of time: who took a placeholder's place, and placeholders that are leaving for somebody."""
    found = [held for held in app.allocations.values() if held.replaces is not None or held.replaced_by]
    found.sort(key=lambda held: (_since_ns(held), held.submission, held.ordinal))
    for held in found:
        if not held.gone:
            yield held


def replacement(held: Allocation) -> ReplacementDao:
    """One of them."""
    for_key = held.replaced_by or ""
    placeholder = held.replaces.key if held.replaces is not None else held.key
    key = for_key or held.key
    leaving = f"Placeholder {placeholder} on node {held.node_id} was told to make room for {key}."
    return ReplacementDao(
        allocation_key=key,
        placeholder=placeholder,
        task_group=held.task_group,
        node=held.node_id,
        state="LEAVING" if for_key else "DONE",
        since=_since_ns(held),
        message=leaving if for_key else f"{key} took the place of placeholder {placeholder}, on node {held.node_id}.",
    )


def _since_ns(held: Allocation) -> int:
    return held.told_ns if held.replaced_by else held.allocated_ns


# ---- of a queue ------------------------------------------------------------------------------------------------------


def promised_in(partition: Partition, queue: Queue) -> Quantities:
    """What gangs in a queue and below have started with and will still take.

    (The scheduler keeps the sum in its ledgers, for its decisions; it is not in the records.)
    """
    total: dict[int, int] = {}
    for app in _applications(queue):
        for number, value in app.gang.still_to_take.items() if app.gang is not None else ():
            total[number] = total.get(number, 0) + value
    return {partition.types.names[number]: saturated(value) for number, value in sorted(total.items())}


def promised_at(partition: Partition, ledger: Ledger, number: int) -> int:
    """What they will still take of one type below a queue's, a user's or a group's limit."""
    queue = partition.queues.get(ledger.path)
    return sum(
        app.gang.still_to_take.get(number, 0)
        for app in (_applications(queue) if queue is not None else ())
        if app.gang is not None and (not ledger.who or any(each is ledger for each in app.trackers))
    )


def waiting_for_placeholders(app: Application) -> Iterator[Ask]:
    """The asks that are in no group, because placeholders are leaving for all that they want."""
    for key in list(app.gang.replacing) if app.gang is not None else ():
        wanted = app.asks.get(key)
        if wanted is not None and wanted.group is None and wanted.pending:
            yield wanted


def _applications(queue: Queue) -> Iterator[Application]:
    if queue.leaf:
        yield from queue.applications.values()
        return
    for child in queue.children.values():
        yield from _applications(child)
