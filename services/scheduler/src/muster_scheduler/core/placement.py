"""Which queue an application goes to: the placement rules in their order (core-features §2.5).

A rule names a queue, names none (then the next one is asked), or finds a fault (then the application is rejected).
A queue that is named must be an active leaf that lets the user in; one that is not there may be made by a rule with
``create``, below a queue that lets the user in. Last comes the recovery queue, for applications that must be taken
in, then ``root.default``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from muster_si.constants import APP_TAG_CREATE_FORCE

from muster_scheduler.core import acl
from muster_scheduler.core.config import QUEUE_DEPTH_MAX, RECOVERY_PATH, ROOT, PlacementRuleConfig
from muster_scheduler.core.objects import Queue
from muster_scheduler.core.states import QueueState

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition

DEFAULT_PATH = f"{ROOT}.default"
DOT_IN_A_NAME = "_dot_"
# Of a user and of a group: no directory knows longer ones (a service account's has up to 340). Filters go through them.
NAME_CHARACTERS_MAX = 512

_QUALIFIED = f"{ROOT}."
_SHOWN_MAX = 200  # characters of a queue's name in an answer
_TRUE = frozenset({"1", "t", "T", "true", "True", "TRUE"})


class _Rejected(Exception):
    """A rule found a fault; no further rule is asked."""


class _Application(NamedTuple):
    """What the rules look at."""

    requested: str
    user: str
    groups: tuple[str, ...]
    tags: Mapping[str, str]


def is_forced(tags: Mapping[str, str]) -> bool:
    """Whether an application must be taken in, since what it stands for runs already."""
    return _tag(tags, APP_TAG_CREATE_FORCE) in _TRUE


def place(
    partition: Partition, requested: str, user: str, groups: tuple[str, ...], tags: Mapping[str, str]
) -> tuple[str, str]:
    """The path of an application's leaf, and ""; or "" and why there is none. The leaf may have to be made."""
    for name in (user, *groups):
        if len(name) > NAME_CHARACTERS_MAX:
            return "", f"user or group name of {len(name)} characters, expected at most {NAME_CHARACTERS_MAX}"
    application = _Application(requested, user, groups, tags)
    try:
        for rule in partition.config.placement_rules:
            path = _named(partition, rule, application)
            if path and _takes(partition, path, application):
                return path, ""
    except _Rejected as why:
        return "", str(why)
    if is_forced(tags):
        return RECOVERY_PATH, ""
    if DEFAULT_PATH in partition.queues and _takes(partition, DEFAULT_PATH, application):
        return DEFAULT_PATH, ""
    return "", "application rejected: no placement rule matched" + (
        f" (queue {requested[:_SHOWN_MAX]!r}: it must exist or may be created, be an active leaf, and "
        f"allow user {user!r})"
        if requested
        else ""
    )


def path_of(partition: Partition, queue: str) -> tuple[str, str]:
    """The path of the leaf that a source names for its application, and ""; or "" and why it cannot go there.

    No rule is asked, and no ACL: who runs it is known elsewhere. The leaf is made where there may be one.
    """
    path = queue.lower()
    path = path if path.startswith(_QUALIFIED) or path == ROOT else f"{ROOT}.{path}"
    found = partition.queues.get(path)
    if found is None:
        try:
            _check_path(path)
        except _Rejected as why:
            return "", str(why)
        found = _nearest(partition, path)
        if found.leaf:
            return "", f"queue {path}: {found.path} is a leaf"
    elif not found.leaf:
        return "", f"queue {path} is not a leaf"
    return (path, "") if found.state is QueueState.ACTIVE else ("", f"queue {found.path} is {found.state.lower()}")


# ---- rules -----------------------------------------------------------------------------------------------------------


def _named(partition: Partition, rule: PlacementRuleConfig, application: _Application) -> str:
    """The path that a rule names; "" when it names none. Raises _Rejected."""
    if rule.filter is not None and not rule.filter.lets_in(application.user, application.groups):
        return ""
    name = _name(rule, application).lower()
    if not name:
        return ""
    fixed = rule.name == "fixed"
    if rule.name != "user" and (name.startswith(_QUALIFIED) or (fixed and name == ROOT)):
        path = name
    else:
        above = ROOT if rule.parent is None else _parent(partition, rule.parent, application)
        if not above:
            return ""
        path = f"{above}.{name if fixed else name.replace('.', DOT_IN_A_NAME)}"
    if path == RECOVERY_PATH:  # comes last, by itself
        return ""
    if path in partition.queues:
        return path
    _check_path(path)
    return path if rule.create else ""


def _name(rule: PlacementRuleConfig, application: _Application) -> str:
    match rule.name:
        case "provided":
            return application.requested
        case "user":
            return application.user
        case "fixed":
            return rule.value
        case "tag":
            return _tag(application.tags, rule.value)
        case "test":  # the real core's own tests: what is asked for, else "test"
            return application.requested or "test"
    raise AssertionError(f"unknown placement rule {rule.name!r}")


def _parent(partition: Partition, rule: PlacementRuleConfig, application: _Application) -> str:
    path = _named(partition, rule, application)
    queue = partition.queues.get(path)
    if queue is not None and queue.leaf:
        raise _Rejected(f"parent rule returned a leaf queue: {path}")
    return path


def _tag(tags: Mapping[str, str], wanted: str) -> str:
    """A tag's value by its name in any case; "" when there is none."""
    found = tags.get(wanted)
    if found is not None:
        return found
    wanted = wanted.lower()
    # In order, since two names may differ in capitals only and a map has no order that all agree on.
    return next((tags[name] for name in sorted(tags) if name.lower() == wanted), "")


def _check_path(path: str) -> None:
    """Raises _Rejected when no such queue can be."""
    parts = path.split(".", QUEUE_DEPTH_MAX)
    problem = ""
    if len(parts) > QUEUE_DEPTH_MAX:
        problem = f"expected at most {QUEUE_DEPTH_MAX} levels"
    elif path.startswith(f"{RECOVERY_PATH}."):
        problem = f"{RECOVERY_PATH} is for applications that must be taken in, and a leaf"
    elif not all(acl.QUEUE_NAME.match(part) for part in parts):
        problem = "invalid queue name, expected 1 to 64 of letters, digits and _ : # / @ - in each part"
    if problem:
        raise _Rejected(f"queue {path[:_SHOWN_MAX]!r}: {problem}")


# ---- queues ----------------------------------------------------------------------------------------------------------


def _takes(partition: Partition, path: str, application: _Application) -> bool:
    """Whether the application may go there, or may have the queue made. Raises _Rejected."""
    queue = partition.queues.get(path)
    if queue is not None:
        return queue.leaf and queue.state is QueueState.ACTIVE and _may_submit(queue, application)
    nearest = _nearest(partition, path)
    if not _may_submit(nearest, application):
        return False
    if nearest.leaf:
        raise _Rejected(f"creation of queue {path[:_SHOWN_MAX]} failed, parent is already a leaf: {nearest.path}")
    return True


def _may_submit(queue: Queue, application: _Application) -> bool:
    user, groups = application.user, application.groups
    return any(
        (each.submit_acl and acl.allows(each.submit_acl, user, groups))
        or (each.admin_acl and acl.allows(each.admin_acl, user, groups))
        for each in queue.ancestry
    )


def _nearest(partition: Partition, path: str) -> Queue:
    while path:
        path = path.rpartition(".")[0]
        found = partition.queues.get(path)
        if found is not None:
            return found
    return partition.root
