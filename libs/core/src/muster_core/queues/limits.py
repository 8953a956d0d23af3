"""Limits of users and groups: the ledgers in which an application counts, beside its queues.

A *limit* belongs to a queue and holds for named users or groups, or for ``*``. A *tracker* is the ledger of one user or
one group in a queue where a limit holds for it. An application counts in the trackers of its user and of its one group,
from its leaf up to root. Without limits there are no trackers, and limits cost nothing.

* A user's limit at a queue is the one that names the user, else the queue's ``*``. Each user has an own tracker for the
  ``*``.
* An application has at most one group. The first queue, from the leaf upward, that limits a group of the user decides
  (in the configuration's order), or that queue's ``*``. The ``*`` of groups is one tracker for all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from muster_core.config.queue_config import INDEPENDENT_PATH, LimitConfig, QueueConfig
from muster_core.model.application import Application
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome, Quantities, event_of
from muster_core.model.queue import Queue, Tracker
from muster_core.model.resources import ResourceTypes
from muster_core.model.steps import STEP, Steps

WILDCARD = "*"
_NO_LIMIT = LimitConfig()


class _QueueLimits:
    """The limits of one queue."""

    __slots__ = ("groups", "users")

    def __init__(self, limits: tuple[LimitConfig, ...]) -> None:
        self.users: dict[str, LimitConfig] = {}
        self.groups: dict[str, LimitConfig] = {}
        for limit in limits:
            for user in limit.users:
                self.users.setdefault(user, limit)
            for group in limit.groups:
                self.groups.setdefault(group, limit)


class UserLimits:
    """The limits of one partition, and the trackers in use.

    :param users: by name, the number of applications; applications that join and leave change it.
    """

    def __init__(self, types: ResourceTypes, users: dict[str, int] | None = None) -> None:
        self._types = types
        self._users = users if users is not None else {}
        self._at: dict[str, _QueueLimits] = {}
        self._trackers: dict[tuple[str, str, bool], Tracker] = {}

    def configure(self, root: QueueConfig) -> Steps:
        """Adopts the limits of a configuration, in steps. No application may count in a tracker meanwhile."""
        assert not self._trackers, "limits change under applications that count in them"
        at: dict[str, _QueueLimits] = {}
        for path, limits in _stand(root, ""):
            at[path] = limits
            if not len(at) % STEP:
                yield
        self._at = at

    def all_limits(self) -> dict[tuple[str, str, bool], LimitConfig]:
        """All limits, in the configuration's order: by (queue's path, name of user or group, whether it is a
        group's).
        """
        limits: dict[tuple[str, str, bool], LimitConfig] = {}
        for path, standing in self._at.items():
            limits.update(((path, user, False), limit) for user, limit in standing.users.items())
            limits.update(((path, group, True), limit) for group, limit in standing.groups.items())
        return limits

    def limit_of(self, path: str, who: str, *, group: bool) -> LimitConfig | None:
        """The limit that holds for a user or a group at a queue; None: there is none."""
        standing = self._at.get(path)
        if standing is None:
            return None
        return standing.groups.get(who) if group else standing.users.get(who) or standing.users.get(WILDCARD)

    def __iter__(self) -> Iterator[Tracker]:
        return iter(self._trackers.values())

    def attach(self, app: Application) -> None:
        """Finds the application's trackers. From now on they count what it holds and whether it runs."""
        self._users[app.user] = self._users.get(app.user, 0) + 1
        app.user_group = self.group_of(app.queue, app.groups_of_user)
        app.trackers = trackers = tuple(
            self._tracker(path, who, limit, group=group)
            for path, who, limit, group in self._ledgers(app.queue, app.user, app.user_group)
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
        """Sets the limits that the application's asks must keep. Root has a limit while any type is pooled."""
        app.bounds = app.ledgers if self._types.pooled else (*app.trackers, *app.queue.line)

    def detach(self, app: Application) -> None:
        """Ends the count of the application in its trackers."""
        if self._users[app.user] > 1:
            self._users[app.user] -= 1
        else:
            del self._users[app.user]
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
        """The group in which an application of a user with these groups counts; "": none."""
        if leaf.path == INDEPENDENT_PATH:  # (Not even in the ``*`` of groups.)
            return ""
        for queue in leaf.ancestry:
            standing = self._at.get(queue.path)
            if standing is None:
                continue
            for name in standing.groups:
                if name in groups:
                    return name
            if WILDCARD in standing.groups:
                return WILDCARD
        return ""

    def trackers_of(self, leaf: Queue, user: str, group: str) -> tuple[Tracker, ...] | None:
        """The trackers of a user ("": not limited) and a group ("": not limited); None: they are not in use."""
        trackers = []
        for path, who, _, is_group in self._ledgers(leaf, user, group):
            tracker = self._trackers.get((path, who, is_group))
            if tracker is None:
                return None
            trackers.append(tracker)
        return tuple(trackers)

    def limits_on(
        self, leaf: Queue, user: str, groups: tuple[str, ...]
    ) -> Iterator[tuple[str, str, LimitConfig, bool]]:
        """The limits that would hold for an application of the user: (queue's path, user or group, limit, whether a
        group's).
        """
        return self._found(leaf, user, self.group_of(leaf, groups))

    def _ledgers(self, leaf: Queue, user: str, group: str) -> Iterator[tuple[str, str, LimitConfig, bool]]:
        """The limits in which an application of the user counts. In order of decayed use, each user has a tracker in
        the leaf, with or without a limit, so that a waitlist has the asks of one user only.
        """
        if leaf.fair_uses is not None and user:
            standing = self._at.get(leaf.path)
            if standing is None or not (user in standing.users or WILDCARD in standing.users):
                yield leaf.path, user, _NO_LIMIT, False
        yield from self._found(leaf, user, group)

    def _found(self, leaf: Queue, user: str, group: str) -> Iterator[tuple[str, str, LimitConfig, bool]]:
        for queue in leaf.ancestry:
            standing = self._at.get(queue.path)
            if standing is None:
                continue
            limit = (standing.users.get(user) or standing.users.get(WILDCARD)) if user else None
            if limit is not None:
                yield queue.path, user, limit, False
            limit = standing.groups.get(group) if group else None
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
    """Adds the events of limits that end, that are new, or that changed."""
    for path, who, group in [key for key in before if key not in after]:
        detail = EventDetail.UG_GROUP_LIMIT if group else EventDetail.UG_USER_LIMIT
        out.add_event(EventType.USERGROUP, EventChange.REMOVE, detail, who, path, now_ns=now_ns)
    for (path, who, group), limit in after.items():
        old = before.get((path, who, group))
        if old is not None and _terms(old) == _terms(limit):
            continue
        detail = EventDetail.UG_GROUP_LIMIT if group else EventDetail.UG_USER_LIMIT
        most, resources = limit.max_applications, dict(limit.max_resources or {})
        message = f"maxapplications: {most}" if most else ""
        out.add_event(EventType.USERGROUP, EventChange.SET, detail, who, path, resources, message, now_ns=now_ns)


def _terms(limit: LimitConfig) -> tuple[int, Mapping[str, int]]:
    return limit.max_applications, limit.max_resources or {}


def usage_events(app: Application, change: EventChange, resource: Quantities, out: Outcome, now_ns: int) -> None:
    """Adds the events of the application's user and group, which use more (ADD) or less (REMOVE) of its leaf.

    (The caller has checked whether events are wanted: this is on the hottest path.)
    """
    path = app.queue.path
    if app.user:
        out.events.append(
            event_of((EventType.USERGROUP, change, EventDetail.UG_USER_RESOURCE, app.user, path, resource, "", now_ns))
        )
    if app.user_group:
        group, detail = app.user_group, EventDetail.UG_GROUP_RESOURCE
        out.events.append(event_of((EventType.USERGROUP, change, detail, group, path, resource, "", now_ns)))


def link_event(app: Application, group: str, change: EventChange, out: Outcome, now_ns: int) -> None:
    """Adds the event of an application that counts in a group now (SET), or does not any more (REMOVE)."""
    if group:
        out.add_event(EventType.USERGROUP, change, EventDetail.UG_APP_LINK, group, app.app_id, now_ns=now_ns)


def regrouped(app: Application, before: str, allocated: Quantities, out: Outcome, now_ns: int) -> None:
    """Adds the events of an application that counted in the group ``before`` and may count in another group now."""
    if app.user_group == before:
        return
    for group, change in ((before, EventChange.REMOVE), (app.user_group, EventChange.ADD)):
        link = EventChange.SET if change is EventChange.ADD else EventChange.REMOVE
        link_event(app, group, link, out, now_ns)
        if group and allocated:
            detail, path = EventDetail.UG_GROUP_RESOURCE, app.queue.path
            out.add_event(EventType.USERGROUP, change, detail, group, path, allocated, now_ns=now_ns)


def _stand(queue: QueueConfig, above: str) -> Iterator[tuple[str, _QueueLimits]]:
    path = f"{above}.{queue.name.lower()}" if above else queue.name.lower()
    if queue.limits:
        yield path, _QueueLimits(queue.limits)
    for child in queue.queues:
        yield from _stand(child, path)
