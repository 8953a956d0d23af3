"""The books of the auditor of gangs: plain records and naive sums, made of commands and facts only.

Amounts are triples (vcore, memory, gpu): lives of gangs are many and long, and each step is audited.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulation.books import Amounts, AuditFailure, Document, QueueRules, configured_queues, must

SECOND_NS = 1_000_000_000
TYPES = ("vcore", "memory", "gpu")
Vector = tuple[int, int, int]
NOTHING: Vector = (0, 0, 0)
ANY = 1 << 60
NO_MAX: Vector = (ANY, ANY, ANY)
PLACEHOLDERS_WAIT_NS = 900 * SECOND_NS
COMPLETING_NS = 30 * SECOND_NS
REMINDER_NS = 300 * SECOND_NS

__all__ = ["Amounts", "AuditFailure", "Document", "must"]


def vector(amounts: Amounts) -> Vector:
    """The amounts as a triple."""
    return (amounts.get("vcore", 0), amounts.get("memory", 0), amounts.get("gpu", 0))


def limit(amounts: Amounts | None) -> Vector:
    """A max as a triple; what it does not name is not limited."""
    if not amounts:
        return NO_MAX
    return (amounts.get("vcore", ANY), amounts.get("memory", ANY), amounts.get("gpu", ANY))


def covers(large: Vector, small: Vector) -> bool:
    """No type of the small one is more than that of the large one."""
    return small[0] <= large[0] and small[1] <= large[1] and small[2] <= large[2]


@dataclass(slots=True, eq=False)
class Limit:
    """What may be used somewhere, and is: by a queue with all below it, or by a user in it."""

    name: str
    most: Vector = NO_MAX
    used: list[int] = field(default_factory=lambda: [0, 0, 0])

    def over(self, wants: Vector, promised: Vector = NOTHING) -> bool:
        """Whether so much more would go over, in a type that is wanted."""
        used, most = self.used, self.most
        for number in (0, 1, 2):
            want = wants[number]
            if want and used[number] + promised[number] + want > most[number]:
                return True
        return False


@dataclass(slots=True, eq=False)
class Queue(Limit):
    """A queue. ``levels``: itself and those above, root last."""

    leaf: bool = False
    levels: list[Queue] = field(default_factory=list)
    rules: QueueRules | None = None
    max_applications: int = 0
    pending: list[int] = field(default_factory=lambda: [0, 0, 0])

    def property(self, name: str, otherwise: str) -> str:
        assert self.rules is not None
        return self.rules.properties.get(name, otherwise)


@dataclass(slots=True, eq=False)
class Node:
    """A node."""

    node_id: str
    capacity: Vector
    schedulable: bool
    used: list[int] = field(default_factory=lambda: [0, 0, 0])

    def fits(self, wants: Vector) -> bool:
        capacity, used = self.capacity, self.used
        for number in (0, 1, 2):
            want = wants[number]
            if want and used[number] + want > capacity[number]:
                return False
        return True


@dataclass(slots=True, eq=False)
class Ask:
    """What is wanted. ``leaving``: the placeholders that were told to go for it; ``mismatched``: none was as large."""

    order: int
    app: App
    key: str
    said: Amounts
    wants: Vector
    pending: int
    made: int
    priority: int
    task_group: str
    placeholder: bool
    previous: bool
    may_preempt: bool
    may_go: bool
    leaving: list[Held] = field(default_factory=list)
    mismatched: bool = False

    @property
    def open(self) -> int:
        return self.pending - len(self.leaving)

    def __repr__(self) -> str:
        what = f"{'placeholder' if self.placeholder else 'real'} of {self.task_group!r}"
        return f"ask {self.key} ({what}) {self.wants} of {self.app.app_id}"


@dataclass(slots=True, eq=False)
class Held:
    """An allocation. ``told``: what for it was told to go: "", "preempted", "timeout", "replaced".

    ``order``: by when it came, then as the asks came. ``heir``: the key of the real ask for which a placeholder goes;
    that ask may be gone, and may come again.
    """

    app: App
    key: str
    uuid: str
    said: Amounts
    wants: Vector
    node: Node
    priority: int
    task_group: str
    placeholder: bool
    previous: bool
    may_go: bool
    may_preempt: bool
    order: tuple[int, int, int]
    told: str = ""
    told_ns: int = 0
    heir: str = ""

    @property
    def free(self) -> bool:
        return self.placeholder and not self.told

    def __repr__(self) -> str:
        what = f"{'placeholder' if self.placeholder else 'real'} of {self.task_group!r}"
        return f"allocation {self.key} ({what}) {self.wants} of {self.app.app_id} on {self.node.node_id} {self.told}"


def suits(ask: Ask, held: Held) -> bool:
    """Whether the ask may take the placeholder's place.

    (Some of an ask with repeats may have found none as large, and look for no other: what leaves for it is its own.)
    """
    return not ask.placeholder and ask.task_group == held.task_group and covers(held.wants, ask.wants)


@dataclass(slots=True)
class Counts:
    """A task group's placeholders: what became of them."""

    asked: int = 0
    pending: int = 0
    held: int = 0
    replaced: int = 0
    timed_out: int = 0
    lost: int = 0


@dataclass(slots=True, eq=False)
class App:
    """An application. ``phase``: of its gang: "" (it has none), WAITING, FORMING, FORMED, USED, OVER."""

    app_id: str
    queue: Queue
    user: str
    timeout_ns: int
    style: str
    total: Vector | None
    state: str = "New"
    phase: str = ""
    deadline_ns: int = 0
    completing_ns: int = 0
    limits: list[Limit] = field(default_factory=list)
    asks: dict[str, Ask] = field(default_factory=dict)
    held: dict[tuple[str, str], Held] = field(default_factory=dict)
    groups: dict[str, Counts] = field(default_factory=dict)
    # A placeholder came after its last real allocation ended: it is to be used.
    awaits: bool = False

    @property
    def whole(self) -> bool:
        return self.total is not None and self.queue.property("gang.start", "whole") == "whole"

    @property
    def awaits_placeholders(self) -> bool:
        """Real asks of a task group wait while placeholders of it are asked for, and none is free."""
        return not self.whole and (self.phase not in ("USED", "OVER") or self.deadline_ns > 0)

    @property
    def counted(self) -> bool:
        """It counts against the maxima of applications."""
        return self.state == "Running" or (self.state == "Accepted" and self.phase in ("FORMING", "FORMED"))

    @property
    def has_real(self) -> bool:
        return any(not each.placeholder for each in self.held.values())

    def made(self, key: str) -> int:
        """Of how many allocations of a key the last one is."""
        return max((held.order[2] + 1 for held in self.held.values() if held.key == key), default=0)

    def placed(self) -> Vector:
        """What placeholders hold that are not going for nothing."""
        sums = [0, 0, 0]
        for each in self.held.values():
            if each.placeholder and each.told in ("", "replaced"):
                for number in (0, 1, 2):
                    sums[number] += each.wants[number]
        return (sums[0], sums[1], sums[2])

    def free(self, task_group: str) -> list[Held]:
        """The placeholders of a group that were not told to go."""
        return [each for each in self.held.values() if each.free and each.task_group == task_group]


class Books:
    """One partition.

    :ivar apps: those that are not over.
    """

    def __init__(self, document: Document) -> None:
        self.queues: dict[str, Queue] = {}
        self.users: dict[tuple[str, str], Limit] = {}
        self.nodes: dict[str, Node] = {}
        self.apps: dict[str, App] = {}
        self.configure(document)

    def configure(self, document: Document) -> None:
        """Takes a configuration with the same queues as before."""
        self.partition: Document = document["partitions"][0]
        for path, rules in configured_queues(self.partition).items():
            queue = self.queues.get(path)
            if queue is None:
                self.queues[path] = queue = Queue(path)
                queue.levels = [queue]
                above = path.rpartition(".")[0]
                if above:
                    queue.levels += self.queues[above].levels
            queue.rules, queue.leaf = rules, rules.leaf
            queue.most, queue.max_applications = limit(rules.maximum), rules.max_applications
        for app in self.apps.values():
            self.assign_limits(app)

    def assign_limits(self, app: App) -> None:
        """Whose limits the application must keep."""
        app.limits = list(app.queue.levels[:-1])
        for queue in app.queue.levels:
            tracked = self.user_at(queue, app.user)
            assert queue.rules is not None
            found = next((each for each in queue.rules.limits if app.user in each["users"]), None)
            if found is None:
                found = next((each for each in queue.rules.limits if "*" in each["users"]), None)
            tracked.most = NO_MAX
            if found is not None:
                said = found["maxresources"]
                amounts = {kind: int(text.removesuffix("m")) for kind, text in said.items()}
                tracked.most = limit(amounts)
                app.limits.append(tracked)

    def user_at(self, queue: Queue, user: str) -> Limit:
        """What a user uses in a queue."""
        found = self.users.get((queue.name, user))
        if found is None:
            self.users[queue.name, user] = found = Limit(f"user {user} in {queue.name}")
        return found

    # ---- changes ---------------------------------------------------------------------------------------------------

    def hold(self, held: Held) -> None:
        """Writes down what is held."""
        key = (held.key, held.uuid)
        must(key not in held.app.held, "twice", f"{held} is held already")
        held.app.held[key] = held
        self._count(held, 1)
        if held.placeholder:
            self.group(held.app, held.task_group).held += 1

    def drop(self, held: Held, became: str) -> None:
        """Writes down that it is gone; ``became``: which count of its group grows."""
        del held.app.held[held.key, held.uuid]
        self._count(held, -1)
        heir = held.app.asks.get(held.heir)
        if heir is not None:
            heir.leaving.remove(held)
        if held.placeholder:
            counts = held.app.groups[held.task_group]
            counts.held -= 1
            setattr(counts, became, getattr(counts, became) + 1)

    def resize(self, held: Held, said: Amounts, wants: Vector) -> None:
        """Writes down that it takes another amount. Whoever it was to make room for may not fit in it any more."""
        self._count(held, -1)
        held.said, held.wants = said, wants
        self._count(held, 1)
        heir = held.app.asks.get(held.heir)
        if heir is not None and not suits(heir, held):
            heir.leaving.remove(held)
            held.heir = ""

    def _count(self, held: Held, sign: int) -> None:
        app = held.app
        sums = [held.node.used]
        for queue in app.queue.levels:
            sums.append(queue.used)
            sums.append(self.users[queue.name, app.user].used)
        for number in (0, 1, 2):
            value = sign * held.wants[number]
            if value:
                for each in sums:
                    each[number] += value

    def pend(self, ask: Ask, count: int) -> None:
        """Writes down that so many more of an ask are pending (or fewer)."""
        ask.pending += count
        for queue in ask.app.queue.levels:
            pending = queue.pending
            for number in (0, 1, 2):
                pending[number] += count * ask.wants[number]
        if ask.placeholder:
            self.group(ask.app, ask.task_group).pending += count

    def group(self, app: App, task_group: str) -> Counts:
        found = app.groups.get(task_group)
        if found is None:
            app.groups[task_group] = found = Counts()
            app.phase = app.phase or ("USED" if app.has_real else "WAITING")
        return found

    def add_ask(self, ask: Ask, count: int) -> None:
        """Writes down an ask. Placeholders that leave for one of its key leave for it, when it fits in them."""
        ask.app.asks[ask.key] = ask
        self.pend(ask, count)
        for held in ask.app.held.values():
            if held.heir == ask.key:
                if suits(ask, held):
                    ask.leaving.append(held)
                else:
                    held.heir = ""

    def remove_ask(self, ask: Ask, became: str) -> None:
        """Writes down that an ask is gone; ``became``: which count of its group grows by what was pending."""
        count = ask.pending
        self.pend(ask, -count)
        del ask.app.asks[ask.key]
        ask.leaving = []
        if ask.placeholder and became:
            counts = ask.app.groups[ask.task_group]
            setattr(counts, became, getattr(counts, became) + count)

    # ---- naive questions -------------------------------------------------------------------------------------------

    def running_in(self, queue: Queue) -> int:
        return sum(app.counted for app in self.apps.values() if queue in app.queue.levels)

    def full(self, app: App) -> str:
        """Which queue runs as many applications as it may, so that this one may not run."""
        if app.counted:
            return ""
        for queue in app.queue.levels:
            if queue.max_applications and self.running_in(queue) >= queue.max_applications:
                return queue.name
        return ""

    def over(self, app: App, wants: Vector) -> str:
        """Whose limit so much more would go over."""
        for each in app.limits:
            if each.over(wants):
                return f"{each.name}: {each.used} of {each.most}, {wants} more"
        return ""

    def lacks_room(self, app: App) -> str:
        """Whose limit the whole gang would go over, beside what others that have started will still take."""
        assert app.total is not None
        for each in app.limits:
            promised = self.promised(each, app)
            for number, want in enumerate(app.total):
                over = want and each.used[number] + promised[number] + want > each.most[number]
                if over and want > self.owed(app.queue, each, number):
                    return f"{each.name}: {each.used} and {promised} promised, of {each.most}; {app.total} more"
        return ""

    def owed(self, leaf: Queue, at: Limit, number: int) -> int:
        """How much of a type a gang may start with above a queue that is full, because a queue below guarantees it."""
        if not self.partition["preemption"]["enabled"] or not isinstance(at, Queue):
            return 0
        for queue in leaf.levels[:-1]:
            if queue is at or queue.property("preemption.policy", "default") == "fence":
                return 0
            assert queue.rules is not None
            least = (queue.rules.guaranteed or {}).get(TYPES[number])
            if least is not None:
                return least - queue.used[number] - self.promised(queue)[number]
        return 0

    def promised(self, at: Limit, but: App | None = None) -> Vector:
        """What gangs that have started as a whole will still take there."""
        sums = [0, 0, 0]
        for app in self.apps.values():
            if app.phase == "FORMING" and app is not but and app.whole and at in app.limits:
                placed = app.placed()
                assert app.total is not None
                for number in (0, 1, 2):
                    sums[number] += max(0, app.total[number] - placed[number])
        return (sums[0], sums[1], sums[2])

    def check_sums(self) -> None:
        """That the running sums are what the allocations sum to: the auditor's own slips would show here."""
        nodes: dict[str, list[int]] = {}
        queues: dict[str, list[int]] = {}
        users: dict[tuple[str, str], list[int]] = {}
        for app in self.apps.values():
            for held in app.held.values():
                sums = [nodes.setdefault(held.node.node_id, [0, 0, 0])]
                for queue in app.queue.levels:
                    sums.append(queues.setdefault(queue.name, [0, 0, 0]))
                    sums.append(users.setdefault((queue.name, app.user), [0, 0, 0]))
                for each in sums:
                    for number in (0, 1, 2):
                        each[number] += held.wants[number]
        nothing = [0, 0, 0]
        for node in self.nodes.values():
            must(node.used == nodes.get(node.node_id, nothing), "books", f"node {node.node_id}")
        for queue in self.queues.values():
            must(queue.used == queues.get(queue.name, nothing), "books", f"queue {queue.name}")
        for key, user in self.users.items():
            must(user.used == users.get(key, nothing), "books", user.name)
