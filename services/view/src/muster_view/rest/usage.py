"""The usage of users and groups, by queue (``/usage/*``).

Usage is counted from the applications at each request. An application counts for its user while it has asks or
allocations, and for its group if a limit names one. As in YuniKorn, a user or group that a limit names appears without
any application, too, with the queues of the limit. So readers see a user's limits before the user has any usage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from muster_core.model.application import Application
from muster_core.model.resources import Vector, add, saturated
from muster_core.partition import Partition
from muster_core.queues.limits import WILDCARD
from muster_rest.shapes.usage import GroupUsageDao, UsageDao, UserUsageDao


@dataclass(slots=True)
class SubjectUsage:
    """One user or group: its applications, and the queues where a limit names it."""

    apps: list[Application] = field(default_factory=list)
    limited: list[str] = field(default_factory=list)


ByName = dict[str, SubjectUsage]


def by_user(partition: Partition) -> ByName:
    """All users, by name: O(applications + limits)."""
    subjects = _limited(partition, group=False)
    subjects.pop(WILDCARD, None)  # each user has a copy of its own
    for app in _counting(partition):
        if not app.independent:  # which belongs to no user
            _of(subjects, app.user).apps.append(app)
    return subjects


def by_group(partition: Partition) -> ByName:
    """All groups that a limit names, likewise; an application without a group is in none."""
    subjects = _limited(partition, group=True)
    for app in _counting(partition):
        if app.user_group:
            _of(subjects, app.user_group).apps.append(app)
    return subjects


def of_user(partition: Partition, user: str, counted: SubjectUsage) -> UserUsageDao:
    """A user's usage and limits."""
    live = [app for app in counted.apps if not app.gone]
    return UserUsageDao(
        user_name=user,
        groups={app.app_id: app.user_group for app in live if app.user_group},
        queues=_tree(partition, user, live, counted.limited, group=False),
    )


def of_group(partition: Partition, group: str, counted: SubjectUsage) -> GroupUsageDao:
    """A group's usage and limits."""
    live = [app for app in counted.apps if not app.gone]
    return GroupUsageDao(
        group_name=group,
        applications=[app.app_id for app in live],
        queues=_tree(partition, group, live, counted.limited, group=True),
    )


def _limited(partition: Partition, *, group: bool) -> ByName:
    subjects: ByName = {}
    for path, who, of_group in partition.limits.all_limits():
        if of_group is group:
            _of(subjects, who).limited.append(path)
    return subjects


def _of(subjects: ByName, name: str) -> SubjectUsage:
    counted = subjects.get(name)
    if counted is None:
        counted = subjects[name] = SubjectUsage()
    return counted


def _counting(partition: Partition) -> Iterator[Application]:
    for app in partition.apps.values():
        if app.allocations or app.asks or app.counted:
            yield app


class _QueueLevel:
    """One queue, with the usage in it and its descendants."""

    def __init__(self, size: int) -> None:
        self.used: Vector = [0] * size
        self.running: list[str] = []
        self.children: dict[str, None] = {}


def _tree(
    partition: Partition, who: str, apps: list[Application], limited: list[str], *, group: bool
) -> UsageDao | None:
    levels: dict[str, _QueueLevel] = {}
    ways: dict[str, list[_QueueLevel]] = {}
    for app in apps:
        path = app.queue.path
        way = ways.get(path)
        if way is None:
            way = ways[path] = _way(partition, levels, path)
        for level in way:
            add(level.used, enumerate(app.allocated))
            if app.counted:
                level.running.append(app.app_id)
    for path in limited:
        _way(partition, levels, path)
    root = next(iter(levels), "")
    return _dao(partition, who, root, levels, group=group) if root else None


def _way(partition: Partition, levels: dict[str, _QueueLevel], path: str) -> list[_QueueLevel]:
    """The levels from root to a queue; missing ones are created."""
    path_levels: list[_QueueLevel] = []
    below = ""
    for name in path.split("."):
        above, below = below, f"{below}.{name}" if below else name
        level = levels.get(below)
        if level is None:
            levels[below] = level = _QueueLevel(len(partition.types.names))
            if above:
                levels[above].children[below] = None
        path_levels.append(level)
    return path_levels


def _dao(partition: Partition, who: str, path: str, levels: dict[str, _QueueLevel], *, group: bool) -> UsageDao:
    level, limit = levels[path], partition.limits.limit_of(path, who, group=group)
    most = (limit.max_resources if limit is not None else None) or {}
    return UsageDao(
        queue_path=path,
        resource_usage=partition.types.quantities(level.used),
        running_applications=level.running,
        max_resources={name: saturated(value) for name, value in most.items()},
        max_applications=limit.max_applications if limit is not None else 0,
        children=[_dao(partition, who, child, levels, group=group) for child in sorted(level.children)],
    )
