"""Which queue an application goes to: the placement rules in their order (core-features §2.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster_scheduler.core import acl
from muster_scheduler.core.config import QUEUE_DEPTH_MAX, ROOT
from muster_scheduler.core.objects import Queue
from muster_scheduler.core.states import QueueState

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


_SHOWN_MAX = 200  # characters of a queue's name in an answer


def place(
    partition: Partition, requested: str, user: str, groups: tuple[str, ...], tags: Mapping[str, str]
) -> tuple[str, str]:
    """The path of an application's leaf, and ""; or "" and why there is none."""
    lowered = {name.lower(): value for name, value in tags.items()}
    for rule in partition.config.placement_rules:
        match rule.name.lower():
            case "provided":
                wanted = requested
            case "user":
                wanted = user.replace(".", "_dot_")
            case "fixed":
                wanted = rule.value.lower()
            case "tag":
                wanted = lowered.get(rule.value.lower(), "")
            case _:
                wanted = ""
        if not wanted:
            continue
        path = f"{ROOT}.{wanted.lower()}" if rule.name.lower() == "user" else _qualified(wanted, rule.name.lower())
        problem = _path_problem(path)
        if problem:
            return "", f"queue {path[:_SHOWN_MAX]!r}: {problem}"
        queue = partition.queues.get(path)
        if queue is None and not rule.create:
            continue
        nearest = queue or _nearest(partition, path)
        if not any(acl.allows(text, user, groups) for q in nearest.ancestry for text in (q.submit_acl, q.admin_acl)):
            continue
        if queue is not None and (not queue.leaf or queue.state is not QueueState.ACTIVE):
            continue
        return path, ""
    return "", "application rejected: no placement rule matched" + (
        f" (queue {requested[:_SHOWN_MAX]!r}: it must exist or may be created, be an active leaf, and "
        f"allow user {user!r})"
        if requested
        else ""
    )


def _nearest(partition: Partition, path: str) -> Queue:
    while path:
        path = path.rpartition(".")[0]
        found = partition.queues.get(path)
        if found is not None:
            return found
    return partition.root


def _qualified(wanted: str, rule: str) -> str:
    lowered = wanted.lower()
    if lowered == ROOT or lowered.startswith(f"{ROOT}."):
        return lowered
    return f"{ROOT}.{lowered if rule == 'fixed' else lowered.replace('.', '_dot_')}"


def _path_problem(path: str) -> str:
    parts = path.split(".", QUEUE_DEPTH_MAX)
    if len(parts) > QUEUE_DEPTH_MAX:
        return f"expected at most {QUEUE_DEPTH_MAX} levels"
    for part in parts:
        if not acl.QUEUE_NAME.match(part):
            return "invalid queue name, expected 1 to 64 of letters, digits and _ : # / @ - in each part"
    return ""
