"""Limits of users and groups (core-features §2.7): which ledgers an application counts in, beside its queues.

A *limit* stands at a queue, for named users or groups or for ``*``. A *tracker* is the ledger of one user, or one
group, below one queue where a limit holds for it. An application is in the trackers of its user and of its one group,
on the way from its leaf to root; where nobody limits it there are none, and limits cost nothing.

* A user's limit at a queue: the one that names the user, else the queue's ``*``, of which each user gets an own copy.
* An application has at most one group: from the leaf upward, the first queue that limits a group of the user decides
  (in the configuration's order), or that queue's ``*``. The ``*`` of groups is one tracker for all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from muster_scheduler.core.config import LimitConfig, QueueConfig
from muster_scheduler.core.objects import Application, Queue, Tracker
from muster_scheduler.core.outcome import Change, Detail, Event, EventType, Outcome, Quantities
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

    def standing(self) -> dict[tuple[str, str, bool], LimitConfig]:
        """All limits: (queue's path, who, whether a group's) and what they say, in the configuration's order."""
        found: dict[tuple[str, str, bool], LimitConfig] = {}
        for path, at in self._at.items():
            found.update(((path, user, False), limit) for user, limit in at.users.items())
            found.update(((path, group, True), limit) for group, limit in at.groups.items())
        return found

    def limit_of(self, path: str, who: str, *, group: bool) -> LimitConfig | None:
        """The limit that holds for a user, or for a group, at a queue; None: none."""
        at = self._at.get(path)
        if at is None:
            return None
        return at.groups.get(who) if group else at.users.get(who) or at.users.get(WILDCARD)

    def __iter__(self) -> Iterator[Tracker]:
        return iter(self._trackers.values())

    def join(self, app: Application) -> None:
        """Finds the application's trackers; what it holds and whether it runs counts there from now on."""
        app.user_group = self.group_of(app.queue, app.groups_of_user)
        app.trackers = trackers = tuple(
            self._tracker(path, who, limit, group=group)
            for path, who, limit, group in self._found(app.queue, app.user, app.user_group)
        )
        app.ledgers = (*trackers, *app.queue.ancestry)
        self.bind(app)
        for waiting in app.groups.values():
            waiting.wait_key = (waiting.shape, trackers, waiting.required_node, waiting.apart)
        for tracker in trackers:
            tracker.applications += 1
            tracker.running_applications += app.counted
            for number, value in enumerate(app.allocated):
                tracker.allocated[number] += value

    def bind(self, app: Application) -> None:
        """Says whose limits its asks must keep: root has one while anything is pooled."""
        app.bounds = app.ledgers if self._types.pooled else (*app.trackers, *app.queue.line)

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


def limit_events(
    before: Mapping[tuple[str, str, bool], LimitConfig],
    after: Mapping[tuple[str, str, bool], LimitConfig],
    out: Outcome,
    now_ns: int,
) -> None:
    """The events of limits that end, come, or say something else now."""
    for path, who, group in [key for key in before if key not in after]:
        detail = Detail.UG_GROUP_LIMIT if group else Detail.UG_USER_LIMIT
        out.track(EventType.USERGROUP, Change.REMOVE, detail, who, path, now_ns=now_ns)
    for (path, who, group), limit in after.items():
        old = before.get((path, who, group))
        if old is not None and _terms(old) == _terms(limit):
            continue
        detail = Detail.UG_GROUP_LIMIT if group else Detail.UG_USER_LIMIT
        most, resources = limit.max_applications, dict(limit.max_resources or {})
        message = f"maxapplications: {most}" if most else ""
        out.track(EventType.USERGROUP, Change.SET, detail, who, path, resources, message, now_ns=now_ns)


def _terms(limit: LimitConfig) -> tuple[int, Mapping[str, int]]:
    return limit.max_applications, limit.max_resources or {}


def usage_events(app: Application, change: Change, resource: Quantities, out: Outcome, now_ns: int) -> None:
    """The events of what the application's user, and its group, use more (ADD) or less (REMOVE) of its leaf.

    (Whether anybody wants events, the caller has looked: this is on the hottest path.)
    """
    path = app.queue.path
    if app.user:
        out.events.append(
            Event(EventType.USERGROUP, change, Detail.UG_USER_RESOURCE, app.user, path, resource, "", now_ns)
        )
    if app.user_group:
        out.events.append(
            Event(EventType.USERGROUP, change, Detail.UG_GROUP_RESOURCE, app.user_group, path, resource, "", now_ns)
        )


def link_event(app: Application, group: str, change: Change, out: Outcome, now_ns: int) -> None:
    """The event of an application that counts in a group (SET), or does no more (REMOVE)."""
    if group:
        out.track(EventType.USERGROUP, change, Detail.UG_APP_LINK, group, app.app_id, now_ns=now_ns)


def regrouped(app: Application, before: str, allocated: Quantities, out: Outcome, now_ns: int) -> None:
    """The events of an application that counted in the group ``before`` until now, and may count in another."""
    if app.user_group == before:
        return
    for group, change in ((before, Change.REMOVE), (app.user_group, Change.ADD)):
        link = Change.SET if change is Change.ADD else Change.REMOVE
        link_event(app, group, link, out, now_ns)
        if group and allocated:
            detail, path = Detail.UG_GROUP_RESOURCE, app.queue.path
            out.track(EventType.USERGROUP, change, detail, group, path, allocated, now_ns=now_ns)


def _stand(queue: QueueConfig, above: str) -> Iterator[tuple[str, _AtQueue]]:
    path = f"{above}.{queue.name.lower()}" if above else queue.name.lower()
    if queue.limits:
        yield path, _AtQueue(queue.limits)
    for child in queue.queues:
        yield from _stand(child, path)
