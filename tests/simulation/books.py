"""The auditor's books: plain dictionaries and sums, made only of what goes into the core and what comes out of it.

Nothing here is taken from the core but the words of its commands. Slow and simple on purpose: what is asked is computed
from what is written down, level by level and node by node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SECOND_NS = 1_000_000_000
Amounts = dict[str, int]
Document = dict[str, Any]


class AuditFailure(AssertionError):
    """The auditor caught the core at something.

    :ivar check: the check's short name: what a failing seed has in common with its shrunken form.
    """

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"[{check}] {message}")
        self.check = check


def must(truth: bool, check: str, message: str) -> None:
    """Raises AuditFailure unless it is true."""
    if not truth:
        raise AuditFailure(check, message)


def read_amounts(texts: dict[str, str] | None) -> Amounts | None:
    """Configured quantities; all-zero ones are not set."""
    found = {
        name: int(text.removesuffix("m")) if name == "vcore" else int(text) for name, text in (texts or {}).items()
    }
    return found if any(found.values()) else None


def seconds_ns(text: str) -> int:
    """A duration as worlds.py writes it."""
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]] * SECOND_NS


# ---- what is configured --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class QueueRules:
    """One configured queue."""

    path: str
    leaf: bool
    guaranteed: Amounts | None
    maximum: Amounts | None
    max_applications: int
    properties: dict[str, str]
    submit: str
    admin: str
    template: Document | None
    limits: list[Document]


def configured_queues(partition: Document) -> dict[str, QueueRules]:
    """By path, parents first."""
    found: dict[str, QueueRules] = {}
    _collect(partition["queues"][0], "", {}, None, found)
    return found


def _collect(
    queue: Document, above: str, inherited: dict[str, str], template: Document | None, found: dict[str, QueueRules]
) -> None:
    name = queue["name"].lower()
    path = f"{above}.{name}" if above else name
    resources = queue.get("resources", {})
    properties = {**inherited, **queue.get("properties", {})}
    leaf = bool(above) and not queue.get("queues") and not queue.get("parent")
    own = queue.get("childtemplate", {})
    own_template = own if any(own.values()) else template  # one that says nothing is none
    found[path] = QueueRules(
        path,
        leaf,
        read_amounts(resources.get("guaranteed")),
        read_amounts(resources.get("max")),
        queue.get("maxapplications", 0),
        properties,
        queue.get("submitacl", ""),
        queue.get("adminacl", ""),
        None if leaf else own_template,
        queue.get("limits", []),
    )
    passed = {
        key: value
        for key, value in properties.items()
        if key not in ("priority.policy", "priority.offset")
        and (key != "preemption.policy" or value.lower() == "disabled")
    }
    for child in queue.get("queues", ()):
        _collect(child, path, passed, own_template, found)


# ---- what there is -------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class BookedQueue:
    """A queue. ``empty_since_ns``: since when a dynamic or draining one has nothing in it."""

    path: str
    leaf: bool
    managed: bool
    guaranteed: Amounts | None = None
    maximum: Amounts | None = None
    max_applications: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    draining: bool = False
    submit: str = ""
    admin: str = ""
    template: Document | None = None
    empty_since_ns: int = 0

    @property
    def priority_first(self) -> bool:
        return self.properties.get("application.sort.priority") != "disabled"

    @property
    def fair(self) -> bool:
        return self.leaf and self.properties.get("application.sort.policy") == "fair"

    @property
    def fence(self) -> bool:
        return self.properties.get("priority.policy") == "fence"

    @property
    def offset(self) -> int:
        return int(self.properties.get("priority.offset", "0"))

    @property
    def preemption(self) -> str:
        return self.properties.get("preemption.policy", "default")

    @property
    def preemption_delay_ns(self) -> int:
        return seconds_ns(self.properties.get("preemption.delay", "30s"))

    @property
    def quota_delay_ns(self) -> int:
        return seconds_ns(self.properties.get("quota.preemption.delay", "0s"))

    def parents(self) -> list[str]:
        """Its path and those above, leaf first, root last."""
        parts = self.path.split(".")
        return [".".join(parts[:size]) for size in range(len(parts), 0, -1)]


@dataclass(slots=True, eq=False)
class BookedNode:
    """A node; ``order``: of arrival; ``usable``: others than daemons may be placed there."""

    node_id: str
    capacity: Amounts
    reported: Amounts
    schedulable: bool
    order: int
    attributes: dict[str, str] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    occupied: Counter[str] = field(default_factory=Counter)
    reservations: list[BookedAsk] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return self.attributes.get("ready", "true") == "true"

    @property
    def usable(self) -> bool:
        return self.schedulable and self.ready

    def free(self, name: str) -> int:
        """What is left of a type."""
        return self.capacity.get(name, 0) - self.used[name] - self.occupied[name] - self.reported.get(name, 0)

    def has_room(self, amounts: Amounts) -> bool:
        return all(value <= self.free(name) for name, value in amounts.items())

    def could_hold(self, amounts: Amounts) -> bool:
        """When it was empty."""
        return all(value <= self.capacity.get(name, 0) for name, value in amounts.items())


@dataclass(slots=True, eq=False)
class BookedAsk:
    """What is still wanted. ``said``: all quantities in the RM's words, zeros too; ``wants``: without zeros."""

    app: BookedApp
    key: str
    said: Amounts
    wants: Amounts
    priority: int
    pending: int
    made: int
    created_ns: int
    order: int
    words: dict[str, Any]
    required: str = ""
    may_preempt: bool = False
    reserved: BookedNode | None = None
    reserved_ns: int = 0
    limited_ns: int = 0
    preempts: bool = False
    told_small: bool = False

    @property
    def kind(self) -> tuple[Any, ...]:
        """What makes asks of one application alike."""
        return (tuple(sorted(self.said.items())), self.priority, self.required, self.may_preempt)

    def __repr__(self) -> str:
        return f"ask {self.key} of {self.app.app_id} in {self.app.queue} {self.wants} priority {self.priority}"


@dataclass(slots=True, eq=False)
class BookedAllocation:
    """What is held. ``told``: what it was told to go for ("", "preempted", "timeout")."""

    app: BookedApp | None
    key: str
    ordinal: int
    said: Amounts
    wants: Amounts
    priority: int
    node_id: str
    order: int
    created_ns: int
    allocated_ns: int
    words: dict[str, Any]
    uuid: str = ""
    told: str = ""
    told_ns: int = 0
    reminded_ns: int = 0

    @property
    def app_id(self) -> str:
        return self.app.app_id if self.app is not None else ""

    def __repr__(self) -> str:
        return f"allocation {self.key}#{self.ordinal} of {self.app_id} on {self.node_id} {self.wants}"


@dataclass(slots=True, eq=False)
class BookedApp:
    """An application. ``group``: the one group that limits count it in, or ""."""

    app_id: str
    queue: str
    user: str
    groups: tuple[str, ...]
    tags: dict[str, str]
    order: int
    submitted_ns: int
    timeout_ms: int = 0
    placeholder_ask: Amounts | None = None
    state: str = "New"
    started_ns: int = 0
    finished_ns: int = 0
    deadline_ns: int = 0
    group: str = ""
    bounds: list[Bound] = field(default_factory=list)
    asks: dict[str, BookedAsk] = field(default_factory=dict)
    held: dict[tuple[str, int], BookedAllocation] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    waits_to_run: bool = False

    def ordinals(self, key: str) -> list[int]:
        return sorted(ordinal for each, ordinal in self.held if each == key)


@dataclass(slots=True, eq=False)
class Bound:
    """A limit of a user or group at a queue that an application must keep."""

    kind: str
    who: str
    path: str
    most: Amounts
    applications: int


TERMINAL = ("Completed", "Failed", "Rejected", "Expired")


class Books:
    """One partition.

    :ivar apps: that are not over; ``finished``: those that are, by the id under which they are still shown.
    :ivar rejected: what was said of those that were not let in, and until when it is kept.
    :ivar queue_used: by path; ``user_used``, ``group_used``: by path and name.
    """

    def __init__(self, document: Document) -> None:
        self.name: str = document["name"]
        self.nodes: dict[str, BookedNode] = {}
        self.foreign: dict[str, BookedAllocation] = {}
        self.apps: dict[str, BookedApp] = {}
        self.finished: dict[str, BookedApp] = {}
        self.rejected: dict[str, tuple[str, int]] = {}
        self.queues: dict[str, BookedQueue] = {}
        self.queue_used: dict[str, Counter[str]] = {}
        self.queue_preempting: dict[str, Counter[str]] = {}
        self.user_used: dict[tuple[str, str], Counter[str]] = {}
        self.group_used: dict[tuple[str, str], Counter[str]] = {}
        self.deciding = True
        self.document = document
        self.configured: dict[str, QueueRules] = {}
        self.read(document)

    # ---- configuration ---------------------------------------------------------------------------------------------

    def read(self, document: Document) -> None:
        """Takes what stands in a configuration, but for its queues."""
        self.document = document
        self.configured = configured_queues(document)
        self.node_policy: str = document["nodesortpolicy"]["type"]
        weights = document["nodesortpolicy"].get("resourceweights", {"vcore": 1, "memory": 1})
        self.node_weights = {name: float(weight) for name, weight in weights.items() if weight > 0}
        self.preemption_enabled: bool = document["preemption"]["enabled"]
        self.quota_enabled: bool = document["preemption"]["quotapreemptionenabled"]
        self.opted_out_last: bool = document["preemption"]["optout"] == "last"
        self.reservation_enabled: bool = document["reservation"]["enabled"]
        self.reservation_delay_ns = seconds_ns(document["reservation"]["delay"])
        self.reservation_timeout_ns = seconds_ns(document["reservation"]["timeout"])
        self.rules: list[Document] = document["placementrules"]

    def queue_of(self, rules: QueueRules) -> BookedQueue:
        """A queue as it is configured."""
        return BookedQueue(
            rules.path,
            rules.leaf,
            True,
            rules.guaranteed,
            rules.maximum,
            rules.max_applications,
            rules.properties,
            submit=rules.submit,
            admin=rules.admin,
            template=rules.template,
        )

    def children(self, path: str) -> Iterator[BookedQueue]:
        for queue in self.queues.values():
            if queue.path.rpartition(".")[0] == path:
                yield queue

    def apps_below(self, path: str) -> Iterator[BookedApp]:
        """The live applications in a queue and below it."""
        for app in self.apps.values():
            if app.queue == path or app.queue.startswith(f"{path}."):
                yield app

    def template_for(self, parent: str) -> Document | None:
        """What a dynamic leaf below gets: of the nearest configured queue upward that has one."""
        while parent:
            queue = self.queues[parent]
            if queue.managed:
                return queue.template
            parent = parent.rpartition(".")[0]
        return None

    # ---- limits ----------------------------------------------------------------------------------------------------

    def assign_limits(self, app: BookedApp) -> None:
        """Finds the application's group and its limits (core-features §2.7)."""
        levels = [self.configured[path] for path in self.queues[app.queue].parents() if path in self.configured]
        app.group = ""
        for level in levels:
            named = [group for limit in level.limits for group in limit.get("groups", ())]
            matches = [group for group in named if group in app.groups]
            if matches:
                app.group = matches[0]
            elif "*" in named:
                app.group = "*"
            if app.group:
                break
        app.bounds = []
        for level in levels:
            limit = _limit_for(level.limits, "users", app.user) or _limit_for(level.limits, "users", "*")
            if limit is not None:
                app.bounds.append(_bound("user", app.user, level.path, limit))
            if app.group:
                limit = _limit_for(level.limits, "groups", app.group)
                if limit is not None:
                    app.bounds.append(_bound("group", app.group, level.path, limit))

    # ---- sums ------------------------------------------------------------------------------------------------------

    def hold(self, held: BookedAllocation) -> None:
        """Writes down something that is held now."""
        node = self.nodes.get(held.node_id)
        app = held.app
        if app is None:
            self.foreign[held.key] = held
            if node is not None:
                node.occupied.update(held.wants)
            return
        must((held.key, held.ordinal) not in app.held, "twice", f"{held} is held already")
        app.held[held.key, held.ordinal] = held
        if node is not None:
            node.used.update(held.wants)
        self._count(app, held.wants, 1)
        if held.told == "preempted":
            self.count_preempting(app, held.wants, 1)

    def drop(self, held: BookedAllocation) -> None:
        """Writes down that it is gone."""
        node = self.nodes.get(held.node_id)
        app = held.app
        if app is None:
            del self.foreign[held.key]
            if node is not None:
                node.occupied.subtract(held.wants)
            return
        del app.held[held.key, held.ordinal]
        if node is not None:
            node.used.subtract(held.wants)
        self._count(app, held.wants, -1)
        if held.told == "preempted":
            self.count_preempting(app, held.wants, -1)

    def _count(self, app: BookedApp, wants: Amounts, sign: int) -> None:
        for name, value in wants.items():
            app.used[name] += sign * value
            for path in self.queues[app.queue].parents():
                self.queue_used.setdefault(path, Counter())[name] += sign * value
                self.user_used.setdefault((path, app.user), Counter())[name] += sign * value
                if app.group:
                    self.group_used.setdefault((path, app.group), Counter())[name] += sign * value

    def count_preempting(self, app: BookedApp, wants: Amounts, sign: int) -> None:
        for path in self.queues[app.queue].parents():
            for name, value in wants.items():
                self.queue_preempting.setdefault(path, Counter())[name] += sign * value

    def recount_groups(self) -> None:
        """After other limits: who counts in which group."""
        self.group_used = {}
        for app in self.apps.values():
            if app.group:
                for path in self.queues[app.queue].parents():
                    self.group_used.setdefault((path, app.group), Counter()).update(app.used)

    def check_sums(self) -> None:
        """That the running sums are what the allocations sum to: the auditor's own slips would show here."""
        queues: dict[str, Counter[str]] = {}
        nodes: dict[str, Counter[str]] = {}
        for app in self.apps.values():
            for held in app.held.values():
                nodes.setdefault(held.node_id, Counter()).update(held.wants)
                for path in self.queues[app.queue].parents():
                    queues.setdefault(path, Counter()).update(held.wants)
        for path, used in self.queue_used.items():
            must(+used == +queues.get(path, Counter()), "books", f"queue {path}")
        for node in self.nodes.values():
            must(+node.used == +nodes.get(node.node_id, Counter()), "books", f"node {node.node_id}")

    # ---- naive questions -------------------------------------------------------------------------------------------

    def used_at(self, bound: Bound) -> Counter[str]:
        sums = self.user_used if bound.kind == "user" else self.group_used
        return sums.get((bound.path, bound.who), Counter())

    def over(self, app: BookedApp, wants: Amounts) -> str:
        """Whose limit one more would go over, in words; "": nobody's. Root's max is the cluster: the nodes decide."""
        return self.over_some(app, wants, queue=False) or self.over_some(app, wants, queue=True)

    def over_some(self, app: BookedApp, wants: Amounts, *, queue: bool) -> str:
        """The same, of queues or of users and groups."""
        for bound in () if queue else app.bounds:
            used = self.used_at(bound)
            for name, value in wants.items():
                if name in bound.most and used[name] + value > bound.most[name]:
                    return (
                        f"{bound.kind} {bound.who} at {bound.path}: {used[name]}+{value} of {bound.most[name]} {name}"
                    )
        for path in self.queues[app.queue].parents()[:-1] if queue else ():
            text = self.over_queue(path, wants)
            if text:
                return text
        return ""

    def over_queue(self, path: str, wants: Amounts) -> str:
        most, used = self.queues[path].maximum or {}, self.queue_used.get(path, Counter())
        for name, value in wants.items():
            if name in most and used[name] + value > most[name]:
                return f"queue {path}: {used[name]}+{value} of {most[name]} {name}"
        return ""

    def running_in(self, path: str) -> int:
        return sum(app.state == "Running" for app in self.apps_below(path))

    def running_of(self, bound: Bound) -> int:
        return sum(
            app.state == "Running" and (app.user if bound.kind == "user" else app.group) == bound.who
            for app in self.apps_below(bound.path)
        )

    def full(self, app: BookedApp) -> str:
        """Who runs as many applications as it may, so that this one may not run; "": it may, or it runs already."""
        if app.state == "Running":
            return ""
        for bound in app.bounds:
            if bound.applications and self.running_of(bound) >= bound.applications:
                return f"{bound.kind} {bound.who} at {bound.path} runs {bound.applications}"
        for path in self.queues[app.queue].parents():
            most = self.queues[path].max_applications
            if most and self.running_in(path) >= most:
                return f"queue {path} runs {most}"
        return ""

    def listed(self) -> list[BookedNode]:
        """The nodes that anybody may be placed on."""
        return [node for node in self.nodes.values() if node.usable and not node.reservations]

    def rooms(self, ask: BookedAsk, *, but: frozenset[str] = frozenset()) -> list[BookedNode]:
        """The nodes that the ask may be placed on now; ``but``: nodes to leave aside."""
        if ask.required:
            node = self.nodes.get(ask.required)
            return [node] if node is not None and node.has_room(ask.wants) else []
        found = [node for node in self.listed() if node.node_id not in but and node.has_room(ask.wants)]
        own = ask.reserved
        if own is not None and own.usable and own.has_room(ask.wants):
            found.append(own)
        return found

    def capacity(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for node in self.nodes.values():
            total.update(node.capacity)
        return total

    def share(self, path: str, capacity: Counter[str]) -> float:
        """A queue's fair share: its most used type, of its guaranteed, else of the nearest max on the way up."""
        queue = self.queues[path]
        best = 0.0
        for name, used in self.queue_used.get(path, Counter()).items():
            if used <= 0:
                continue
            total = (queue.guaranteed or {}).get(name)
            if total is None:
                total = capacity[name]
                for above in queue.parents():
                    if name in (self.queues[above].maximum or {}):
                        total = (self.queues[above].maximum or {})[name]
                        break
            best = max(best, used / total if total > 0 else 1.0)
        return best

    def app_shares(self, app: BookedApp) -> tuple[float, ...]:
        """An application's shares of its leaf's guaranteed, largest first."""
        guaranteed = self.queues[app.queue].guaranteed or {}
        shares = []
        for name, used in app.used.items():
            if used > 0:
                total = guaranteed.get(name, 0)
                shares.append(used / total if total > 0 else float(used))
        return tuple(sorted(shares, reverse=True))


def _limit_for(limits: list[Document], kind: str, name: str) -> Document | None:
    for limit in limits:
        if name in limit.get(kind, ()):
            return limit
    return None


def limit_at(queue: QueueRules, kind: str, name: str) -> Bound:
    """The limit of a user or group (``kind``: users or groups) that a queue names; of two the first counts."""
    limit = _limit_for(queue.limits, kind, name)
    assert limit is not None, f"{queue.path} has no limit of {name}"
    return _bound(kind, name, queue.path, limit)


def _bound(kind: str, who: str, path: str, limit: Document) -> Bound:
    most = {
        name: int(text.removesuffix("m")) if name == "vcore" else int(text)
        for name, text in limit.get("maxresources", {}).items()
    }
    return Bound(kind, who, path, most, limit.get("maxapplications", 0))
