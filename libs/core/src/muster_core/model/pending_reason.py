"""Why asks are pending: their group waits, their gang holds them back, or the RM is being asked."""

from __future__ import annotations

from muster_core.model.application import Ask, AskGroup, Gang
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.task_group import TaskGroup


def ask_reason(ask: Ask) -> Reason | None:
    """Why the ask is pending; None: the scheduler has not tried it yet."""
    if ask.asked is not None:
        return ask.asked.reason
    if ask.group is not None:
        return group_reason(ask.group)
    if ask.asking:
        return ask.asking[0].reason
    gang = ask.app.gang
    return _leaving_reason(gang, ask) if gang is not None else None


def group_reason(group: AskGroup) -> Reason | None:
    """Why the group's asks are pending; None: the scheduler has not tried them yet."""
    if group.app.reason is not None:
        return group.app.reason
    gang_reason = _hold_reason(group.app.gang, group) if group.app.gang is not None else None
    if gang_reason is not None:
        return gang_reason
    waitlist = group.app.queue.waitlists.get(group.wait_key)
    return waitlist.reason if waitlist is not None else None


def _hold_reason(gang: Gang, group: AskGroup) -> Reason | None:
    """Why the gang holds these asks back; None: the gang does not hold them back."""
    if group.placeholder:
        return None
    own = gang.groups.get(group.task_group)
    if gang.whole and gang.expects:
        incomplete = own if own is not None and own.pending else None
        if incomplete is None:
            incomplete = next((task_group for task_group in gang.groups.values() if task_group.pending), None)
        if incomplete is None:
            return _not_announced(gang, _since_ns(group))
        return _incomplete(gang, incomplete, _since_ns(group))
    if own is None:
        return None
    if gang.can_be_replaced_by(group):
        first = next(own.free.covering(group.shape), None) or own.free.first()
        return Reason(
            ReasonCode.PLACEHOLDER_STUCK,
            task_group=own.name,
            placeholder=first.key,
            node=first.node_id,
            since_ns=_since_ns(group),
        )
    return _incomplete(gang, own, _since_ns(group)) if gang.awaits(own) else None


def _incomplete(gang: Gang, group: TaskGroup, since_ns: int) -> Reason:
    oldest = gang.oldest_pending(group.name)
    because = ask_reason(oldest) if oldest is not None else None
    return Reason(
        ReasonCode.GANG_FORMING,
        task_group=group.name,
        placed=group.held,
        members=group.held + group.pending,
        because=because,
        since_ns=since_ns,
    )


def _not_announced(gang: Gang, since_ns: int) -> Reason:
    """The reason if all placeholder asks are placed, but the application announced more."""
    assert gang.total is not None, "only announced gangs form as a whole"
    names = gang.app.queue.types.names
    for number, value in gang.total.items:
        placed = gang.placed.get(number, 0)
        if placed < value:
            return Reason(
                ReasonCode.GANG_FORMING, resource_type=names[number], asked=value, used=placed, since_ns=since_ns
            )
    return Reason(ReasonCode.GANG_FORMING, since_ns=since_ns)


def _leaving_reason(gang: Gang, ask: Ask) -> Reason | None:
    """Why an ask waits after placeholders were released for it; None: none were released."""
    released = [gang.app.allocations.get(key) for key in gang.replacing.get(ask.demand.key, ())]
    leaving = [allocation for allocation in released if allocation is not None]
    if not leaving:
        return None
    placeholder = min(
        leaving,
        key=lambda allocation: (
            allocation.releasing_since_ns,
            allocation.allocated_ns,
            allocation.submission,
            allocation.ordinal,
        ),
    )
    return Reason(
        ReasonCode.PLACEHOLDER_LEAVING,
        task_group=placeholder.task_group,
        placeholder=placeholder.key,
        node=placeholder.node_id,
        since_ns=placeholder.releasing_since_ns,
    )


def _since_ns(group: AskGroup) -> int:
    """When the first of the group's asks was created: its gang has held it since then."""
    head = group.head()
    return head.created_ns if head is not None else 0
