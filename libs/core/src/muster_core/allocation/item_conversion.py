"""Makes demands and allocations from items of the RM or a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster_si.constants import CREATION_TIME, K8S_CREATION_TIME_TAG, REQUIRED_NODE_TAG
from muster_si.tags import time_ns

from muster_core.model.allocation import made_uuid
from muster_core.model.application import Allocation
from muster_core.model.demand import Demand

if TYPE_CHECKING:
    from muster_core.model.application import Application
    from muster_core.model.commands import AskItem
    from muster_core.model.resources import Shape


def demand_of(item: AskItem, shape: Shape, submission: int, now_ns: int) -> Demand:
    """Makes a demand from the RM's ask. (A placeholder without a task group is an ordinary ask.)"""
    return Demand(
        key=item.key,
        shape=shape,
        priority=item.priority,
        submission=submission,
        created_ns=_created_ns(item.tags, now_ns) if item.tags else now_ns,
        tags=item.tags,
        task_group=item.task_group,
        placeholder=item.placeholder and bool(item.task_group),
        originator=item.originator,
        allow_preempt_self=item.allow_preempt_self,
        allow_preempt_other=item.allow_preempt_other,
        has_preemption_policy=item.has_preemption_policy,
        execution_timeout_ms=item.execution_timeout_ms,
        previous_generation=item.previous_generation,
        required_node=item.tags.get(REQUIRED_NODE_TAG, "") if item.tags else "",
        admitted_ns=item.admitted_ns,
    )


def allocation_of(item: AskItem, app: Application | None, shape: Shape, submission: int, now_ns: int) -> Allocation:
    """Makes an allocation from the RM's report."""
    demand = demand_of(item, shape, submission, now_ns)
    uuid = item.uuid or (made_uuid(submission, 0, now_ns) if item.previous_generation else "")
    return Allocation(app, demand, item.node_id, now_ns, 0, uuid)


def _created_ns(tags: Mapping[str, str], now_ns: int) -> int:
    """The creation time of the ask: the tag creationTime (seconds since the epoch), else now. An invalid tag is
    ignored.
    """
    said_ns = time_ns(tags.get(CREATION_TIME) or tags.get(K8S_CREATION_TIME_TAG))
    return now_ns if said_ns is None else min(said_ns, now_ns)
