"""Limits of users and groups (core-features §2.7): which ledgers an application counts in, beside its queues.

A *limit* stands at a queue, for named users or groups or for ``*``. A *tracker* is the ledger of one user, or one
group, below one queue where a limit holds for it. An application is in the trackers of its user and of its one group,
on the way from its leaf to root; where nobody limits it there are none, and limits cost nothing.

* A user's limit at a queue: the one that names the user, else the queue's ``*``, of which each user gets an own copy.
* An application has at most one group: from the leaf upward, the first queue that limits a group of the user decides
  (in the configuration's order), or that queue's ``*``. The ``*`` of groups is one tracker for all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator

from muster_scheduler.core.config import LimitConfig, QueueConfig
from muster_scheduler.core.objects import Application, Queue, Tracker
from muster_scheduler.core.resources import Types

WILDCARD = "*"


class _AtQueue:
    """The limits that stand at one queue."""

    __slots__ = ("groups", "users")

    def __init__(self, limits: tuple[LimitConfig, ...]) -> None:
        self.users: dict[str, LimitConfig] = {}
        self.groups: dict[str, LimitConfig] = {}
        for limit in limits:
            for user in limit.users:
                self.users.setdefault(user, limit)
            for group in limit.groups:
                self.groups.setdefault(group, limit)


class Limits:
    """The limits of one partition, and the trackers in use."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self._at: dict[str, _AtQueue] = {}
        self._trackers: dict[tuple[str, str, bool], Tracker] = {}

    def configure(self, root: QueueConfig) -> None:
        """Takes the limits of a configuration. Nobody may be in a tracker at that time."""
        assert not self._trackers, "limits change under applications that count in them"
        self._at = dict(_stand(root, ""))

    def __iter__(self) -> Iterator[Tracker]:
        return iter(self._trackers.values())

    def join(self, app: Application) -> None:
        """Finds the application's trackers; what it holds and whether it runs counts there from now on."""
        app.user_group = self.group_of(app.queue, app.groups_of_user)
        app.trackers = trackers = tuple(
            self._tracker(path, who, limit, group=group)
            for path, who, limit, group in self._found(app.queue, app.user, app.user_group)
        )
        app.bounds = (*trackers, *app.queue.line)
        app.ledgers = (*trackers, *app.queue.ancestry)
        for waiting in app.groups.values():
            waiting.wait_key = (waiting.shape, trackers, waiting.required_node, waiting.apart)
        for tracker in trackers:
            tracker.applications += 1
            tracker.running_applications += app.counted
            for number, value in enumerate(app.allocated):
                tracker.allocated[number] += value

    def leave(self, app: Application) -> None:
        """The application counts no more in its trackers."""
        for tracker in app.trackers:
            tracker.applications -= 1
            tracker.running_applications -= app.counted
            for number, value in enumerate(app.allocated):
                tracker.allocated[number] -= value
            if not tracker.applications:
                del self._trackers[tracker.path, tracker.who, tracker.group]
                self._types.release(tracker.allocated, tracker.limit)
        app.trackers, app.bounds, app.ledgers = (), app.queue.line, app.queue.ancestry

    def group_of(self, leaf: Queue, groups: tuple[str, ...]) -> str:
        """The group that an application of a user with these groups counts in; "": none."""
        for queue in leaf.ancestry:
            at = self._at.get(queue.path)
            if at is None:
                continue
            for name in at.groups:
                if name in groups:
                    return name
            if WILDCARD in at.groups:
                return WILDCARD
        return ""

    def trackers_of(self, leaf: Queue, user: str, group: str) -> tuple[Tracker, ...] | None:
        """The trackers in use of a user ("": not limited) and a group (likewise); None when they are not."""
        found = []
        for path, who, _, is_group in self._found(leaf, user, group):
            tracker = self._trackers.get((path, who, is_group))
            if tracker is None:
                return None
            found.append(tracker)
        return tuple(found)

    def limits_on(
        self, leaf: Queue, user: str, groups: tuple[str, ...]
    ) -> Iterator[tuple[str, str, LimitConfig, bool]]:
        """The limits that an application of the user would be under: (queue's path, who, limit, whether a group's)."""
        return self._found(leaf, user, self.group_of(leaf, groups))

    def _found(self, leaf: Queue, user: str, group: str) -> Iterator[tuple[str, str, LimitConfig, bool]]:
        for queue in leaf.ancestry:
            at = self._at.get(queue.path)
            if at is None:
                continue
            limit = (at.users.get(user) or at.users.get(WILDCARD)) if user else None
            if limit is not None:
                yield queue.path, user, limit, False
            limit = at.groups.get(group) if group else None
            if limit is not None:
                yield queue.path, group, limit, True

    def _tracker(self, path: str, who: str, limit: LimitConfig, *, group: bool) -> Tracker:
        tracker = self._trackers.get((path, who, group))
        if tracker is None:
            self._trackers[path, who, group] = tracker = Tracker(self._types, path, who, group=group)
            named = limit.max_resources or {}
            tracker.set_limit({self._types.number(name): value for name, value in named.items()})
            tracker.max_applications = limit.max_applications
        return tracker


def _stand(queue: QueueConfig, above: str) -> Iterator[tuple[str, _AtQueue]]:
    path = f"{above}.{queue.name.lower()}" if above else queue.name.lower()
    if queue.limits:
        yield path, _AtQueue(queue.limits)
    for child in queue.queues:
        yield from _stand(child, path)
