"""What the auditor writes down: plain records of what is configured and of what there is.

Nothing here is taken from the core but the words of its commands.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SECOND_NS = 1_000_000_000
Amounts = dict[str, int]
Document = dict[str, Any]


class AuditFailure(AssertionError):
    """The auditor noticed a violation.

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


def positive(amounts: Amounts | None) -> Amounts:
    return {name: value for name, value in (amounts or {}).items() if value}


def covers(large: Amounts, small: Amounts) -> bool:
    """No type of the small one is more than that of the large one."""
    return all(value <= large.get(name, 0) for name, value in small.items())


def seconds_ns(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]] * SECOND_NS


# ---- what is configured --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class QueueRules:
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
        return self.capacity.get(name, 0) - self.used[name] - self.occupied[name] - self.reported.get(name, 0)

    def has_room(self, amounts: Amounts) -> bool:
        return all(value <= self.free(name) for name, value in amounts.items())

    def could_hold(self, amounts: Amounts) -> bool:
        return all(value <= self.capacity.get(name, 0) for name, value in amounts.items())


@dataclass(slots=True, eq=False)
class BookedAsk:
    """A pending ask. ``said``: all quantities in the RM's words, zeros too; ``wants``: without zeros.

    ``leaving``: the placeholders that were told to go for it; ``mismatched``: none was as large.
    """

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
    planned_ns: int = 0
    told_small: bool = False
    leaving: list[BookedAllocation] = field(default_factory=list)
    mismatched: bool = False

    @property
    def task_group(self) -> str:
        return str(self.words["task_group"])

    @property
    def placeholder(self) -> bool:
        return bool(self.words["placeholder"])

    @property
    def open(self) -> int:
        return self.pending - len(self.leaving)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What makes asks of one application alike."""
        return (tuple(sorted(self.said.items())), self.priority, self.required, self.may_preempt)

    def __repr__(self) -> str:
        return f"ask {self.key} of {self.app.app_id} in {self.app.queue} {self.wants} priority {self.priority}"


@dataclass(slots=True, eq=False)
class BookedAllocation:
    """What is held. ``told``: what it was told to go for ("", "preempted", "timeout", "replaced").

    ``preempted_for``: application and key of the ask for which it goes.

    ``heir``: the key of the real ask for which a placeholder goes; that ask may be gone, and may come again.
    ``promised_ns``: the end for which it was backfilled; 0: it was not.
    """

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
    heir: str = ""
    preempted_for: tuple[str, str] = ("", "")
    promised_ns: int = 0

    @property
    def end_ns(self) -> int:
        """When its own time is up; 0: never."""
        timeout_ns = self.words["timeout_ms"] * 1_000_000
        ends = [self.promised_ns, self.allocated_ns + timeout_ns if timeout_ns > 0 else 0]
        return min([end_ns for end_ns in ends if end_ns], default=0)

    @property
    def app_id(self) -> str:
        return self.app.app_id if self.app is not None else ""

    @property
    def task_group(self) -> str:
        return str(self.words["task_group"])

    @property
    def placeholder(self) -> bool:
        return bool(self.words["placeholder"])

    @property
    def free(self) -> bool:
        """Whether it is a placeholder that is not releasing."""
        return self.placeholder and not self.told

    @property
    def age(self) -> tuple[int, int, int]:
        """The smallest is the oldest: by when it came, then as the asks came."""
        return (self.allocated_ns, self.order, self.ordinal)

    def __repr__(self) -> str:
        return f"allocation {self.key}#{self.ordinal} of {self.app_id} on {self.node_id} {self.wants}"


@dataclass(slots=True)
class Counts:
    """A task group's placeholders that were asked for: what became of them. (What is pending or held is counted.)"""

    asked: int = 0
    replaced: int = 0
    timed_out: int = 0
    lost: int = 0


@dataclass(slots=True)
class Gang:
    """An application's gang. ``phase``: "" (it has none), WAITING, FORMING, FORMED, USED, OVER.

    ``awaits``: a placeholder came after its last real allocation ended: it is to be used. ``too_large``: it waits, its
    clock runs, and that only because a limit is smaller than all of it. ``ended``: what those placeholders wanted that
    are neither pending nor held any more.
    """

    timeout_ns: int = 0
    style: str = ""
    total: Amounts | None = None
    phase: str = ""
    deadline_ns: int = 0
    awaits: bool = False
    too_large: bool = False
    groups: dict[str, Counts] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)


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
    gang: Gang = field(default_factory=Gang)

    @property
    def counted(self) -> bool:
        """It counts against the maxima of applications."""
        forms = self.state == "Accepted" and self.gang.phase in ("FORMING", "FORMED")
        return not self.independent and (self.state == "Running" or forms)

    @property
    def has_real(self) -> bool:
        return any(not each.placeholder for each in self.held.values())

    @property
    def independent(self) -> bool:
        return self.queue == INDEPENDENT

    @property
    def said_id(self) -> str:
        """Its id as the RM says it."""
        return "" if self.independent else self.app_id

    def ordinals(self, key: str) -> list[int]:
        return sorted(ordinal for each, ordinal in self.held if each == key)

    def counts_of(self, task_group: str) -> Counts:
        """What became of its placeholders; with the first one the application has a gang."""
        gang = self.gang
        gang.phase = gang.phase or ("USED" if self.has_real else "WAITING")
        return gang.groups.setdefault(task_group, Counts())

    def made(self, key: str) -> int:
        """Of how many allocations of a key the last one is."""
        return max((ordinal + 1 for each, ordinal in self.held if each == key), default=0)

    def pending(self, task_group: str) -> int:
        """The number of pending placeholders of a task group."""
        return sum(ask.pending for ask in self.asks.values() if ask.placeholder and ask.task_group == task_group)

    def placeholders(self, task_group: str) -> list[BookedAllocation]:
        return [each for each in self.held.values() if each.placeholder and each.task_group == task_group]

    def free(self, task_group: str) -> list[BookedAllocation]:
        """The placeholders of a task group that are not releasing."""
        return [each for each in self.placeholders(task_group) if not each.told]

    def placed(self) -> Counter[str]:
        """What placeholders hold that are not going for nothing."""
        sums: Counter[str] = Counter()
        for each in self.held.values():
            if each.placeholder and each.told in ("", "replaced"):
                sums.update(each.wants)
        return sums

    def to_come(self) -> Counter[str]:
        """What its gang announced and has not placed, as far as placeholders are pending, or may still be asked for."""
        pending: Counter[str] = Counter()
        for ask in self.asks.values():
            if ask.placeholder:
                pending.update({name: value * ask.pending for name, value in ask.wants.items()})
        came = Counter(pending)
        came.update(self.gang.ended)
        for held in self.held.values():
            if held.placeholder:
                came.update(held.wants)
        placed, found = self.placed(), Counter[str]()
        for name, total in (self.gang.total or {}).items():
            found[name] = min(total - placed[name], pending[name] + max(0, total - came[name]))
        return +found

    @property
    def is_forming(self) -> bool:
        """Its gang, which starts as a whole, is not formed and may still get a placeholder: its real asks wait."""
        return self.gang.phase in ("WAITING", "FORMING") and bool(self.to_come())


@dataclass(slots=True, eq=False)
class Bound:
    """A limit of a queue, or of a user or group at one, that an application must keep."""

    kind: str
    who: str
    path: str
    most: Amounts
    applications: int

    def __str__(self) -> str:
        return f"queue {self.path}" if self.kind == "queue" else f"{self.kind} {self.who} at {self.path}"


# The scheduler's own application, of what belongs to none, and its queue.
OWN = "@independent@"
INDEPENDENT = f"root.{OWN}"
TERMINAL = ("Completed", "Failed", "Rejected", "Expired")


def suits(ask: BookedAsk, held: BookedAllocation) -> bool:
    """Whether the ask may take the placeholder's place.

    (Some of an ask with repeats may have found none as large, and look for no other: what leaves for it is its own.)
    """
    return not ask.placeholder and ask.task_group == held.task_group and covers(held.wants, ask.wants)


def end_placeholders(what: BookedAsk | BookedAllocation, became: str, count: int) -> None:
    """Books the end of that many placeholders, pending ones of an ask or one that is held."""
    assert what.app is not None
    counts = what.app.gang.groups[what.task_group]
    setattr(counts, became, getattr(counts, became) + count)
    what.app.gang.ended.update({name: value * count for name, value in what.wants.items()})
