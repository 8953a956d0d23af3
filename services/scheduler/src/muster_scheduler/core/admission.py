"""Which gangs a queue can take at all (seed 003, "Application submit handling")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster_scheduler.core.gangs import as_map
from muster_scheduler.core.objects import Queue

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


def gang_refused(
    partition: Partition,
    leaf: Queue,
    app_id: str,
    asked: Mapping[str, int],
    user: str,
    groups: tuple[str, ...],
    quota: Mapping[str, int] | None,
) -> str:
    """Why an application with this placeholderAsk can never run in the leaf; "": it can.

    :param quota: by type name, the leaf's max that the application brings with it; None: the leaf's own holds.
    """
    policy = leaf.policy.app_sort
    if leaf.leaf and not policy.gangs:
        return (
            f"queue {leaf.path} cannot run application {app_id} with gang request: unsupported sort type {policy.name}"
        )
    # The least of the maxima on the way up; the cluster (root's) may still grow.
    most: dict[str, int] = {}
    for queue in leaf.line:
        own = quota if queue is leaf and quota is not None else queue.by_name(queue.maximum)
        for name, value in (own or {}).items():
            most[name] = min(value, most.get(name, value))
    if any(value > most.get(name, value) for name, value in asked.items()):
        return (
            f"task group request {as_map(asked)} larger than max queue allocation {as_map(most)} of queue {leaf.path}"
        )
    for path, who, limit, group in partition.limits.limits_on(leaf, user, groups):
        allowed = limit.max_resources or {}
        if any(value > allowed.get(name, value) for name, value in asked.items()):
            whose = "group" if group else "user"
            return (
                f"task group request {as_map(asked)} larger than the limit of {whose} {who} "
                f"in queue {path}, {as_map(allowed)}"
            )
    return ""
