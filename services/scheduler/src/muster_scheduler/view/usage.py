"""What users and groups use, queue by queue (core-features §2.7, §2.19: ``/usage/*``).

Counted from the applications at the time of the question. An application counts for its user while it holds, asks for
or runs something; for its group, if a limit named one for it. What each may use stands in the trackers that its
applications count in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from muster_scheduler.core.objects import Application, Tracker
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.resources import UNLIMITED, Types, Vector, add, saturated
from muster_scheduler.view.dao import Quantities

ByName = dict[str, list[Application]]


class UsageDao(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """Of one user or group, in one queue and all below it."""

    queue_path: str
    resource_usage: Quantities = {}
    running_applications: list[str] = []
    max_resources: Quantities = {}
    max_applications: int = 0
    children: list[UsageDao] = []


class UserUsageDao(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """Of one user. ``groups``: application → the group that it counts in."""

    user_name: str
    groups: dict[str, str] = {}
    queues: UsageDao | None = None


class GroupUsageDao(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """Of one group."""

    group_name: str
    applications: list[str] = []
    queues: UsageDao | None = None


def by_user(partition: Partition) -> ByName:
    """The applications that count, by user: O(applications), at the speed of looking at each."""
    found: ByName = {}
    for app in _counting(partition):
        found.setdefault(app.user, []).append(app)
    return found


def by_group(partition: Partition) -> ByName:
    """The same by group; applications without a limited group are in none."""
    found: ByName = {}
    for app in _counting(partition):
        if app.user_group:
            found.setdefault(app.user_group, []).append(app)
    return found


def of_user(partition: Partition, user: str, apps: Iterable[Application]) -> UserUsageDao:
    """What a user uses with these applications."""
    live = [app for app in apps if not app.gone]
    return UserUsageDao(
        user_name=user,
        groups={app.app_id: app.user_group for app in live if app.user_group},
        queues=_tree(partition.types, live, group=False),
    )


def of_group(partition: Partition, group: str, apps: Iterable[Application]) -> GroupUsageDao:
    """What a group uses with these applications."""
    live = [app for app in apps if not app.gone]
    return GroupUsageDao(
        group_name=group,
        applications=[app.app_id for app in live],
        queues=_tree(partition.types, live, group=True),
    )


def _counting(partition: Partition) -> Iterator[Application]:
    for app in partition.apps.values():
        if app.allocations or app.asks or app.counted:
            yield app


class _Level:
    """One queue, with what is used in it and below."""

    def __init__(self, size: int) -> None:
        self.used: Vector = [0] * size
        self.running: list[str] = []
        self.tracker: Tracker | None = None
        self.children: dict[str, str] = {}


def _tree(types: Types, apps: list[Application], *, group: bool) -> UsageDao | None:
    levels: dict[str, _Level] = {}
    root = ""
    for app in apps:
        below = ""
        for queue in app.queue.ancestry:
            level = levels.get(queue.path)
            if level is None:
                levels[queue.path] = level = _Level(len(types.names))
            add(level.used, enumerate(app.allocated))
            if app.counted:
                level.running.append(app.app_id)
            if below:
                level.children[below] = below
            below = queue.path
        root = below
        for tracker in app.trackers:
            if tracker.group is group and tracker.path in levels:
                levels[tracker.path].tracker = tracker
    return _dao(types, root, levels) if root else None


def _dao(types: Types, path: str, levels: dict[str, _Level]) -> UsageDao:
    level, tracker = levels[path], levels[path].tracker
    return UsageDao(
        queue_path=path,
        resource_usage=types.quantities(level.used),
        running_applications=level.running,
        max_resources=_limit(types, tracker) if tracker is not None else {},
        max_applications=tracker.max_applications if tracker is not None else 0,
        children=[_dao(types, child, levels) for child in sorted(level.children)],
    )


def _limit(types: Types, tracker: Tracker) -> Quantities:
    """A type that the limit does not name is unlimited."""
    named = zip(types.names, tracker.limit, strict=True)
    return {name: saturated(most) for name, most in named if most != UNLIMITED}
