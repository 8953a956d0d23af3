"""Placement: the rules that find the queue of an application, in order.

A rule names a queue, names none (then the next rule is tried), or finds a fault (then the application is rejected). A
named queue must be an active leaf that admits the user. If the queue does not exist, a rule with ``create`` may create
it below a queue that admits the user. After the rules comes the recovery queue, for applications that must be accepted,
then ``root.default``. An application that must be accepted goes to the recovery queue even if a rule finds a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from muster_si.tags import is_forced, tag_value

from muster_core.config import acl
from muster_core.config.queue_config import (
    INDEPENDENT_PATH,
    QUEUE_DEPTH_MAX,
    RECOVERY_PATH,
    ROOT,
    PlacementRuleConfig,
)
from muster_core.model.queue import Queue
from muster_core.model.states import QueueState

if TYPE_CHECKING:
    from muster_core.model.partition_state import PartitionState

DEFAULT_PATH = f"{ROOT}.default"
DOT_IN_A_NAME = "_dot_"
# Limit of a user's or group's name. No directory has longer ones (a service account's name has up to 340). Filters
# match against such names.
NAME_CHARACTERS_MAX = 512

_QUALIFIED = f"{ROOT}."
_SHOWN_MAX = 200  # characters of a queue's name in an answer


class _Rejected(Exception):
    """A rule found a fault; no further rule is tried."""


class _Application(NamedTuple):
    """The data that rules read."""

    requested: str
    user: str
    groups: tuple[str, ...]
    tags: Mapping[str, str]


class Placement(NamedTuple):
    """The place of an application.

    :param path: the path of its leaf, which may have to be created; "": there is none.
    :param problem: why there is none, or why it is the recovery queue.
    """

    path: str
    problem: str = ""


def resolve_queue(
    state: PartitionState, requested: str, user: str, groups: tuple[str, ...], tags: Mapping[str, str]
) -> Placement:
    """Finds the place of an application by the rules."""
    last = RECOVERY_PATH if is_forced(tags) else ""
    for name in (user, *groups):
        if len(name) > NAME_CHARACTERS_MAX:
            return Placement(
                last, f"user or group name of {len(name)} characters, expected at most {NAME_CHARACTERS_MAX}"
            )
    application = _Application(requested, user, groups, tags)
    try:
        for rule in state.config.placement_rules:
            path = _named(state, rule, application)
            if path and _takes(state, path, application):
                return Placement(path)
        if not last and DEFAULT_PATH in state.queues and _takes(state, DEFAULT_PATH, application):
            return Placement(DEFAULT_PATH)
    except _Rejected as rejection:
        return Placement(last, str(rejection))
    hint = (
        f" (queue {requested[:_SHOWN_MAX]!r}: it must exist or may be created, be an active leaf, and "
        f"allow user {user!r})"
    )
    rejected = "" if last else "application rejected: "
    return Placement(last, f"{rejected}no placement rule matched" + (hint if requested else ""))


def path_of(state: PartitionState, queue: str) -> tuple[str, str]:
    """Returns the path of the leaf that a source names for its application, and ""; or "" and why it cannot go there.

    Neither rules nor ACLs are consulted: the source decides who runs the application. The leaf may have to be created.
    """
    path = queue.lower()
    path = path if path.startswith(_QUALIFIED) or path == ROOT else f"{ROOT}.{path}"
    target = state.queues.get(path)
    if target is None or path == INDEPENDENT_PATH:
        try:
            _check_path(path)
        except _Rejected as rejection:
            return "", str(rejection)
        target = _nearest(state, path)
        if target.leaf:
            return "", f"queue {path}: {target.path} is a leaf"
    elif not target.leaf:
        return "", f"queue {path} is not a leaf"
    return (path, "") if target.state is QueueState.ACTIVE else ("", f"queue {target.path} is {target.state.lower()}")


# ---- rules -----------------------------------------------------------------------------------------------------------


def _named(state: PartitionState, rule: PlacementRuleConfig, application: _Application) -> str:
    """Returns the path that a rule names; "": it names none. Raises _Rejected."""
    if rule.filter is not None and not rule.filter.matches(application.user, application.groups):
        return ""
    name = _name(rule, application).lower()
    if not name:
        return ""
    fixed = rule.name == "fixed"
    if rule.name != "user" and (name.startswith(_QUALIFIED) or (fixed and name == ROOT)):
        path = name
    else:
        if not fixed:
            name = name.replace(".", DOT_IN_A_NAME)
            _check_path(name)  # first, because a wrong name stops the rules even if the parent rule finds no queue
        above = ROOT if rule.parent is None else _parent(state, rule.parent, application)
        if not above:
            return ""
        path = f"{above}.{name}"
    if path in (RECOVERY_PATH, INDEPENDENT_PATH):  # recovery comes last; the other one is for no application
        return ""
    if path in state.queues:
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
            return tag_value(application.tags, rule.value)
        case "test":  # YuniKorn's own tests: the requested queue, else "test"
            return application.requested or "test"
    raise AssertionError(f"unknown placement rule {rule.name!r}")


def _parent(state: PartitionState, rule: PlacementRuleConfig, application: _Application) -> str:
    path = _named(state, rule, application)
    queue = state.queues.get(path)
    if queue is not None and queue.leaf:
        raise _Rejected(f"parent rule returned a leaf queue: {path}")
    return path


def _check_path(path: str) -> None:
    """Raises _Rejected if such a queue cannot exist."""
    parts = path.split(".", QUEUE_DEPTH_MAX)
    problem = ""
    if len(parts) > QUEUE_DEPTH_MAX:
        problem = f"expected at most {QUEUE_DEPTH_MAX} levels"
    elif path.startswith(f"{RECOVERY_PATH}."):
        problem = f"{RECOVERY_PATH} is for applications that must be taken in, and a leaf"
    elif f"{path}.".startswith(f"{INDEPENDENT_PATH}."):
        problem = f"{INDEPENDENT_PATH} is a leaf for independent allocations"
    elif not all(acl.QUEUE_NAME.match(part) for part in parts):
        problem = "invalid queue name, expected 1 to 64 of letters, digits and _ : # / @ - in each part"
    if problem:
        raise _Rejected(f"queue {path[:_SHOWN_MAX]!r}: {problem}")


# ---- queues ----------------------------------------------------------------------------------------------------------


def _takes(state: PartitionState, path: str, application: _Application) -> bool:
    """Whether the application may go to the queue, or may have it created. Raises _Rejected."""
    queue = state.queues.get(path)
    if queue is not None:
        return queue.leaf and queue.state is QueueState.ACTIVE and _may_submit(queue, application)
    nearest = _nearest(state, path)
    if not _may_submit(nearest, application):
        return False
    if nearest.leaf:
        raise _Rejected(f"creation of queue {path[:_SHOWN_MAX]} failed, parent is already a leaf: {nearest.path}")
    return True


def _may_submit(queue: Queue, application: _Application) -> bool:
    user, groups = application.user, application.groups
    return any(
        (ancestor.submit_acl and acl.allows(ancestor.submit_acl, user, groups))
        or (ancestor.admin_acl and acl.allows(ancestor.admin_acl, user, groups))
        for ancestor in queue.ancestry
    )


def _nearest(state: PartitionState, path: str) -> Queue:
    while path:
        path = path.rpartition(".")[0]
        queue = state.queues.get(path)
        if queue is not None:
            return queue
    return state.root
