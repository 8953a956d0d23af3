"""The admission of an application: its owner, its gang, and whether its leaf can take both.

An application that must be accepted (``application.create.force``) is accepted whatever this module finds. The findings
then say what was changed for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from muster_core.config import acl, namespace
from muster_core.config.queue_config import RECOVERY_PATH
from muster_core.model.commands import AppItem
from muster_core.model.outcome import Outcome
from muster_core.model.queue import Queue
from muster_core.model.quotas import QuotaKind, text_bytes
from muster_core.model.resources import TooManyTypes
from muster_core.model.text_format import format_quantities
from muster_core.queues.placement_rules import NAME_CHARACTERS_MAX

if TYPE_CHECKING:
    from muster_core.partition import Partition

NOBODY, NO_GROUPS = "nobody", ("nogroup",)
_SHOWN_MAX = 200  # characters of a name in an answer
_QUEUE_MAX = 4096  # characters of a queue's name that are kept; no queue's path is so long
_GROUPS_MAX = 1024
# Characters that break a log line or a terminal: controls, lone surrogates, line and paragraph separators.
_ILLEGIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


class ResolvedLeaf(NamedTuple):
    """A leaf that takes an application.

    :param created: the queues that were created for it and have to be announced; the last one is the leaf.
    :param quota: the quota that the application brings for the leaf; None: nothing.
    """

    queue: Queue
    created: list[Queue]
    quota: namespace.NamespaceQuota | None


def owner_problem(item: AppItem) -> str:
    """Why the application has no owner who may submit; "": it has one."""
    if item.refused:
        return item.refused
    if not item.user:
        return "empty user cannot resolve: ugi.user must name the owner"
    if item.groups and not acl.USER_NAME.match(item.user):
        return f"invalid username, it contains invalid characters: {item.user[:_SHOWN_MAX]!r}"
    return ""


def owner_of(item: AppItem, reasons: list[str]) -> tuple[str, tuple[str, ...]]:
    """The user and the groups for which an application counts. If these are not the named ones, adds the reason to
    ``reasons``.
    """
    if not item.user:
        return NOBODY, NO_GROUPS
    if problem := owner_problem(item):
        reasons.append(problem)
    return item.user, item.groups or (item.user,)  # the RM resolved no groups: the user's own group


def sanitize(item: AppItem, reasons: list[str]) -> AppItem:
    """Makes the texts of an application that must be accepted safe to keep and show. Adds each fault to the reasons.
    (The gateway refuses such texts of other applications.)
    """
    queue = _legible(item.queue)[:_QUEUE_MAX]
    if queue != item.queue:
        reasons.append(f"queueName: {queue[:_SHOWN_MAX]!r} is not a queue name")
        queue += "?"  # (No queue's name has a "?": a cut or corrected name must not be that of another queue.)
    user, groups = item.user, item.groups
    if user != _legible(user) or len(user) > NAME_CHARACTERS_MAX:
        reasons.append(f"ugi.user: {_legible(user)[:_SHOWN_MAX]!r} is not a user's name")
        user, groups = "", ()
    kept = tuple(group for group in groups if group and len(group) <= NAME_CHARACTERS_MAX and group == _legible(group))
    if kept[:_GROUPS_MAX] != groups:
        reasons.append(f"ugi.groups: {len(groups) - len(kept[:_GROUPS_MAX])} of {len(groups)} are left out")
    return replace(
        item, queue=queue, user=user, groups=kept[:_GROUPS_MAX], gang_style=_legible(item.gang_style)[:_SHOWN_MAX]
    )


def quota_problem(
    partition: Partition, partitions: Iterable[Partition], item: AppItem, user: str, out: Outcome, now_ns: int
) -> str:
    """Why there is no room for the application in the RM's quotas; "": there is.

    Finished applications leave for it: first those of the partition, the oldest first. An application that must be
    accepted needs room, too.
    """
    quotas = partition.quotas
    for candidate in (partition, *partitions):
        while quotas.is_full(QuotaKind.APPLICATIONS) and candidate.lifecycle.expire_oldest(out, now_ns):
            pass
    problem = quotas.problem(QuotaKind.APPLICATIONS, 1)
    if not problem and user not in partition.users:
        problem = quotas.problem(QuotaKind.USERS, 1)
    if not problem and item.tags:
        problem = quotas.problem(QuotaKind.TEXT_BYTES, text_bytes(item.tags))
    return f"application {item.app_id}: {problem}" if problem else ""


def gang_of(item: AppItem) -> tuple[dict[str, int] | None, str]:
    """Returns the amounts that all placeholders of the application ask for, and ""; or no amounts, and the problem.

    (Empty, not None: the application still has a gang, and its time-out is the placeholders' time-out.)
    """
    placeholder_ask = item.placeholder_ask
    for name, value in (placeholder_ask or {}).items():
        if value < 0:
            return {}, f"placeholderAsk contains negative resources: {name} {value}"
    return placeholder_ask, ""


def leaf_for(
    partition: Partition,
    path: str,
    item: AppItem,
    placeholder_ask: Mapping[str, int] | None,
    user: str,
    groups: tuple[str, ...],
) -> ResolvedLeaf | str:
    """Returns the leaf of a path, created if necessary; or why the leaf cannot take the application."""
    missing = partition.queue_tree.missing(path) if path != RECOVERY_PATH else 0
    if problem := partition.quotas.problem(QuotaKind.QUEUES, missing):
        return f"failed to place application {item.app_id}: queue {path[:_SHOWN_MAX]!r}: {problem}"
    queue, created, reason = partition.queue_tree.create_queue(path)
    if queue is None:
        return f"failed to place application {item.app_id}: {reason}"
    quota = namespace.quota_of(item.tags) if not queue.managed and path != RECOVERY_PATH else None
    if quota and _uncountable(partition, dict.fromkeys([*(quota.guaranteed or ()), *(quota.maximum or ())])):
        quota = None  # a quota in types that cannot be counted is no quota
    if placeholder_ask and any(placeholder_ask.values()):
        most = quota.maximum if quota else None
        reason = ""
        if path != RECOVERY_PATH:  # this leaf must take everything
            reason = gang_problem(partition, queue, item.app_id, placeholder_ask, user, groups, most)
        if reason := reason or _uncountable(partition, placeholder_ask):
            for new in reversed(created):
                partition.queue_tree.remove_queue(new)
            return reason
    return ResolvedLeaf(queue, created, quota)


def leaf_for_recovery(partition: Partition) -> ResolvedLeaf:
    """The leaf for applications that must be accepted."""
    queue, created, problem = partition.queue_tree.create_queue(RECOVERY_PATH)
    assert queue is not None, problem  # below root, which is active and no leaf; nobody may configure it
    return ResolvedLeaf(queue, created, None)


def countable(partition: Partition, placeholder_ask: dict[str, int] | None) -> dict[str, int] | None:
    """The amounts that all placeholders ask for; empty if the partition cannot count them."""
    return {} if _uncountable(partition, placeholder_ask or ()) else placeholder_ask


def _uncountable(partition: Partition, types: Iterable[str]) -> str:
    """Reserves numbers for these types. Returns why the partition cannot count them; "": it can."""
    try:
        partition.types.reserve(types)
    except TooManyTypes as error:
        return str(error)
    return ""


def _legible(text: str) -> str:
    return _ILLEGIBLE.sub("?", text)


def gang_problem(
    partition: Partition,
    leaf: Queue,
    app_id: str,
    placeholder_ask: Mapping[str, int],
    user: str,
    groups: tuple[str, ...],
    quota: Mapping[str, int] | None,
) -> str:
    """Why an application with this placeholderAsk can never run in the leaf (the gang design, "Application submit
    handling"); "": it can.

    :param quota: by type name, the max that the application brings for the leaf; None: the leaf's own max holds.
    """
    policy = leaf.policy.app_sort
    if leaf.leaf and not policy.gangs:
        return (
            f"queue {leaf.path} cannot run application {app_id} with gang request: unsupported sort type {policy.name}"
        )
    # By type, the smallest max on the way up. Root's, the cluster's capacity, may still grow.
    most: dict[str, int] = {}
    for queue in leaf.line:
        own = quota if queue is leaf and quota is not None else queue.by_name(queue.maximum)
        for name, value in (own or {}).items():
            most[name] = min(value, most.get(name, value))
    if any(value > most.get(name, value) for name, value in placeholder_ask.items()):
        return (
            f"task group request {format_quantities(placeholder_ask)} larger than max queue allocation "
            f"{format_quantities(most)} of queue {leaf.path}"
        )
    for path, who, limit, group in partition.limits.limits_on(leaf, user, groups):
        allowed = limit.max_resources or {}
        if any(value > allowed.get(name, value) for name, value in placeholder_ask.items()):
            whose = "group" if group else "user"
            return (
                f"task group request {format_quantities(placeholder_ask)} larger than the limit of {whose} {who} "
                f"in queue {path}, {format_quantities(allowed)}"
            )
    return ""
