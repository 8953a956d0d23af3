"""What the events add up to: whoever follows them must come to the same cluster (the event history design)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from muster_core.model.outcome import Event, EventChange, EventDetail, EventType
from muster_core.model.resources import Shape
from simulation.books import Amounts, AuditFailure, must
from simulation.partition_books import Books, limit_at

_GONE = (
    EventDetail.ALLOC_CANCEL,
    EventDetail.ALLOC_PREEMPT,
    EventDetail.ALLOC_TIMEOUT,
    EventDetail.ALLOC_REPLACED,
    EventDetail.ALLOC_NODEREMOVED,
)


# Whether it begins, and what it is about.
_MAXIMA = {
    EventDetail.APP_CANNOTRUN_QUEUE: (True, EventDetail.APP_CANNOTRUN_QUEUE),
    EventDetail.APP_RUNNABLE_QUEUE: (False, EventDetail.APP_CANNOTRUN_QUEUE),
    EventDetail.APP_CANNOTRUN_QUOTA: (True, EventDetail.APP_CANNOTRUN_QUOTA),
    EventDetail.APP_RUNNABLE_QUOTA: (False, EventDetail.APP_CANNOTRUN_QUOTA),
}
# Behind what it comes: an allocation's events stand together. (A group's also behind the link of an application.)
_BEHIND = {
    EventDetail.NODE_ALLOC: (EventDetail.APP_ALLOC, *_GONE),
    EventDetail.UG_USER_RESOURCE: (EventDetail.NODE_ALLOC,),
    EventDetail.UG_GROUP_RESOURCE: (EventDetail.UG_USER_RESOURCE,),
}
_WORDS = (
    (" does not fit in queue ", " has become schedulable in queue "),
    (" exceeds the available user quota ", " fits in the available user quota"),
)


class EventSums:
    """Sums of all events so far."""

    def __init__(self) -> None:
        self.apps: dict[str, Counter[str]] = {}
        self.keys: dict[str, Counter[str]] = {}
        self.nodes: dict[str, Counter[str]] = {}
        self.capacity: dict[str, Amounts] = {}
        self.occupied: dict[str, Amounts] = {}
        self.schedulable: dict[str, bool] = {}
        self.ready: dict[str, bool] = {}
        self.queues: Counter[str] = Counter()
        self.members: Counter[tuple[str, str]] = Counter()
        self.reservations: Counter[tuple[str, str]] = Counter()
        # By (user or group, queue): what they use; by (queue, user or group): the limits; by (group, application).
        self.users: dict[tuple[str, str], Counter[str]] = {}
        self.groups: dict[tuple[str, str], Counter[str]] = {}
        self.limits: dict[tuple[str, str, bool], tuple[Amounts, str]] = {}
        self._last: Event | None = None
        self._partitions = 0  # (most at a time: queues of two may have one path, so their limits cannot be told apart)
        self.links: dict[str, str] = {}
        # Who may not run, and why; who was told that an ask of theirs does not fit.
        self.held_back: dict[str, EventDetail] = {}
        self.told: dict[tuple[str, str], set[str]] = {}

    def take(self, event: Event) -> None:
        last, self._last = self._last, event
        behind = _BEHIND.get(event.detail)
        if behind is not None and last is not None and last.detail is not EventDetail.UG_APP_LINK:
            same = (last.change, last.resource) == (event.change, event.resource)
            must(last.detail in behind and same, "event sum", f"{event} behind {last}")
        sign = {EventChange.ADD: 1, EventChange.REMOVE: -1}.get(event.change, 0)
        amounts = amounts_of(event)
        match (event.type, event.detail):
            case (EventType.USERGROUP, _):
                self._take_usergroup(event, sign, amounts)
            case (EventType.REQUEST, _):
                self._take_request(event)
            case (EventType.APP, detail) if detail in _MAXIMA:
                self._take_runnable(event, *_MAXIMA[detail])
            case (EventType.APP, EventDetail.APP_ALLOC):
                _add(self.apps, event.object_id, amounts, 1)
                self.keys.setdefault(event.object_id, Counter())[event.reference_id] += 1
            case (EventType.APP, detail) if detail in _GONE:
                _add(self.apps, event.object_id, amounts, -1)
                self.keys[event.object_id][event.reference_id] -= 1
            case (EventType.APP, EventDetail.APP_REQUEST | EventDetail.REQUEST_CANCEL):
                # (What is asked for is summed by common_laws.py.)
                if event.change is EventChange.REMOVE and event.message != "the request changed":
                    self.told.pop((event.object_id, event.reference_id), None)
            case (EventType.NODE, EventDetail.NODE_ALLOC):
                _add(self.nodes, event.object_id, amounts, sign)
            case (EventType.NODE, EventDetail.NODE_RESERVATION):
                self.reservations[event.object_id, event.reference_id] += sign
            case (EventType.NODE, EventDetail.NODE_CAPACITY):
                self.capacity[event.object_id] = amounts
            case (EventType.NODE, EventDetail.NODE_OCCUPIED):
                self.occupied[event.object_id] = amounts
            case (EventType.NODE, EventDetail.NODE_SCHEDULABLE):
                self.schedulable[event.object_id] = event.message == "schedulable: true"
            case (EventType.NODE, EventDetail.NODE_READY):
                self.ready[event.object_id] = event.message == "ready: true"
            case (EventType.NODE, EventDetail.NONE):
                must(event.change is EventChange.ADD, "event sum", f"{event}")
                self.capacity[event.object_id] = amounts
                self.occupied[event.object_id] = {}
            case (EventType.NODE, EventDetail.NODE_DECOMISSION):
                del self.capacity[event.object_id], self.occupied[event.object_id]
                self.schedulable.pop(event.object_id, None)
                self.ready.pop(event.object_id, None)
            case (EventType.QUEUE, EventDetail.NONE | EventDetail.QUEUE_DYNAMIC):
                self.queues[event.object_id] += sign
            case (EventType.APP, EventDetail.NONE):
                self.held_back.pop(event.object_id, None)
                for key in [key for key in self.told if key[0] == event.object_id]:
                    del self.told[key]
            case (EventType.QUEUE, EventDetail.QUEUE_APP):
                self.members[event.object_id, event.reference_id] += sign

    def _take_usergroup(self, event: Event, sign: int, amounts: Amounts) -> None:
        who, about = event.object_id, event.reference_id
        must(bool(who and about), "event sum", f"{event} is about nobody or nothing")
        match event.detail:
            case EventDetail.UG_USER_RESOURCE:
                _add_pair(self.users, (who, about), amounts, sign)
            case EventDetail.UG_GROUP_RESOURCE:
                _add_pair(self.groups, (who, about), amounts, sign)
            case EventDetail.UG_APP_LINK if event.change is EventChange.SET:
                must(about not in self.links, "event sum", f"{event}: it is in {self.links.get(about)}")
                self.links[about] = who
            case EventDetail.UG_APP_LINK:
                must(self.links.pop(about, None) == who, "event sum", f"{event}: it was not")
            case EventDetail.UG_USER_LIMIT | EventDetail.UG_GROUP_LIMIT:
                key = (about, who, event.detail is EventDetail.UG_GROUP_LIMIT)
                if event.change is EventChange.SET:
                    said = (amounts, event.message)
                    must(self._partitions > 1 or self.limits.get(key) != said, "event sum", f"{event}: it was so")
                    self.limits[key] = said
                else:
                    there = self.limits.pop(key, None) is not None
                    must(self._partitions > 1 or there, "event sum", f"{event}: there was none")

    def _take_runnable(self, event: Event, begins: bool, which: EventDetail) -> None:
        app_id, before = event.object_id, self.held_back.get(event.object_id)
        if begins:
            must(before is None, "event sum", f"{event} after {before!r}")
            self.held_back[app_id] = which
        else:
            must(before is which, "event sum", f"{event} after {before!r}")
            del self.held_back[app_id]

    def _take_request(self, event: Event) -> None:
        """Fails if a request's event repeats, or its end precedes it."""
        told = self.told.setdefault((event.reference_id, event.object_id), set())
        for begins, ends in _WORDS:
            if begins in event.message:
                must(begins not in told, "event sum", f"{event} again")
                told.add(begins)
            if ends in event.message:
                must(begins in told, "event sum", f"{event} of what was not said")
                told.discard(begins)

    def note_partitions(self, count: int) -> None:
        """Notes the number of partitions, before their events."""
        self._partitions = max(self._partitions, count)

    def compare(self, books: dict[str, Books]) -> None:
        """Raises AuditFailure if events and books differ."""
        self.compare_used(books)
        self.compare_limits(books)
        kept = Counter(
            (node.node_id, ask.key)
            for each in books.values()
            for node in each.nodes.values()
            for ask in node.reservations
        )
        _same("reservations", self.reservations, kept)

    def compare_used(self, books: dict[str, Books]) -> None:
        """Compares nodes, queues and applications' allocations."""
        nodes = {node.node_id: node for each in books.values() for node in each.nodes.values()}
        apps = {app.app_id: app for each in books.values() for app in each.apps.values()}
        for app_id, used in self.apps.items():
            holder = apps.get(app_id)
            _same(f"allocated to {app_id}", used, holder.used if holder is not None else Counter())
            keys = Counter(key for key, _ in holder.held) if holder is not None else Counter[str]()
            _same(f"keys of {app_id}", self.keys[app_id], keys)
        for node_id, used in self.nodes.items():
            _same(f"allocated on {node_id}", used, nodes[node_id].used if node_id in nodes else Counter())
        must(self.capacity.keys() == nodes.keys(), "event sum", f"nodes {self.capacity.keys() ^ nodes.keys()}")
        for node_id, node in nodes.items():
            _same(f"capacity of {node_id}", self.capacity[node_id], node.capacity)
            occupied = Counter(node.reported)
            occupied.update(node.occupied)
            _same(f"occupied on {node_id}", self.occupied[node_id], occupied)
            must(self.ready.get(node_id, True) == node.ready, "event sum", f"{node_id}: ready")
            if node_id in self.schedulable:
                must(self.schedulable[node_id] == node.schedulable, "event sum", f"{node_id}: schedulable")
        # (Queues of two partitions may have one path.)
        queues = Counter(path for each in books.values() for path in each.queues)
        _same("queues", self.queues, queues)
        _same("members", self.members, Counter((app.queue, app.app_id) for app in apps.values()))

    def compare_limits(self, books: dict[str, Books]) -> None:
        """Compares users, groups and their limits."""
        self.note_partitions(len(books))
        users: dict[tuple[str, str], Counter[str]] = {}
        groups: dict[tuple[str, str], Counter[str]] = {}
        limits: dict[tuple[str, str, bool], tuple[Amounts, str]] = {}
        for each in books.values():
            for app in each.apps.values():
                if app.user:
                    users.setdefault((app.user, app.queue), Counter()).update(app.used)
                if app.group:
                    groups.setdefault((app.group, app.queue), Counter()).update(app.used)
                must(self.links.get(app.app_id, "") == app.group, "event sum", f"{app.app_id} counts in {app.group}")
            for queue in each.configured.values():
                for kind, is_group in (("users", False), ("groups", True)):
                    for who in [who for limit in queue.limits for who in limit.get(kind, ())]:
                        bound = limit_at(queue, kind, who)
                        message = f"maxapplications: {bound.applications}" if bound.applications else ""
                        limits[queue.path, who, is_group] = (bound.most, message)
        for known, said in ((users, self.users), (groups, self.groups)):
            for who in {**known, **said}:
                _same(f"what {who} use", said.get(who, Counter()), known.get(who, Counter()))
        if self._partitions == 1:
            _same("limits", self.limits, limits)
        alive = {app.app_id for each in books.values() for app in each.apps.values()}
        must(self.links.keys() <= alive, "event sum", f"links of {self.links.keys() - alive}")


def _same(what: str, said: Mapping[Any, Any], known: Mapping[Any, Any]) -> None:
    left, right = ({key: value for key, value in each.items() if value} for each in (said, known))
    if left != right:
        raise AuditFailure("event sum", f"{what}: events add up to {left}, there is {right}")


def _add_pair(sums: dict[tuple[str, str], Counter[str]], key: tuple[str, str], amounts: Amounts, sign: int) -> None:
    found = sums.setdefault(key, Counter())
    for name, value in amounts.items():
        found[name] += sign * value
        must(found[name] >= 0, "event sum", f"{key} would use {found[name]} {name}")


def _add(sums: dict[str, Counter[str]], key: str, amounts: Amounts, sign: int) -> None:
    found = sums.setdefault(key, Counter())
    for name, value in amounts.items():
        found[name] += sign * value


def amounts_of(event: Event) -> Amounts:
    """The event's resource by type name, with zeros."""
    resource = event.resource
    if isinstance(resource, Shape):
        return dict(resource.quantities)
    return dict(resource or {})
