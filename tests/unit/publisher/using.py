"""Random lives of an RM as events of usage, and their sums by brute force."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from muster_bus.log import Record
from muster_event_publisher.derive.usage_fold import S_IN_NS
from muster_proto.si.v1.si_pb2 import EventRecord, Quantity, Resource
from unit.publisher.feeding import INSTANCE, START_NS, headers, shim_headers

QUEUES = ("root.a", "root.a.deep", "root.b")
USERS = ("alice", "bob")
_ENDS = (
    EventRecord.ALLOC_CANCEL,
    EventRecord.ALLOC_PREEMPT,
    EventRecord.ALLOC_TIMEOUT,
    EventRecord.ALLOC_REPLACED,
    EventRecord.ALLOC_NODEREMOVED,
)

Subject = tuple[str, str]


def usage_event(
    kind: EventRecord.Type.ValueType,
    change: EventRecord.ChangeType.ValueType,
    detail: EventRecord.ChangeDetail.ValueType,
    name: str,
    reference: str,
    at_ns: int,
    amounts: dict[str, int] | None = None,
) -> bytes:
    resource = Resource(resources={name: Quantity(value=value) for name, value in (amounts or {}).items()})
    return EventRecord(
        type=kind,
        eventChangeType=change,
        eventChangeDetail=detail,
        objectID=name,
        referenceID=reference,
        timestampNano=at_ns,
        resource=resource if amounts is not None else None,
    ).SerializeToString()


@dataclass
class _App:
    name: str
    user: str
    queue: str = ""
    held: dict[str, dict[str, int]] = field(default_factory=dict)


class Life:
    """Events of one RM, and every change of the quantities that each subject holds."""

    def __init__(self, seed: int, rm_id: str = "rm-1", partition: int = 0, window_s: int = 60) -> None:
        self.rm_id, self._partition, self._window_s = rm_id, partition, window_s
        self.records: list[Record] = []
        self.changes: dict[Subject, list[tuple[int, Counter[str], int]]] = defaultdict(list)  # (ns, delta, allocations)
        self.now_ns = START_NS
        self.at_ns = START_NS  # the latest time of an event
        self._next_id = 0
        self._instance = INSTANCE
        self._chance = random.Random(seed)
        self._apps: list[_App] = []
        self._made = 0

    def live(self, steps: int) -> Life:
        for _ in range(steps):
            self._pass_time()
            self._step()
        return self

    @property
    def live_applications(self) -> set[str]:
        return {app.name for app in self._apps}

    def wait(self, windows: int) -> Life:
        """Let time pass, then write an event without usage."""
        self.now_ns += windows * self._window_s * S_IN_NS
        at_ns = self._said_ns()
        self._write(usage_event(EventRecord.QUEUE, EventRecord.SET, EventRecord.QUEUE_MAX, "root", "", at_ns))
        return self

    def renew(self) -> None:
        """Register the RM at a log that has forgotten it: another instance, ids from 0, nothing held."""
        self._pass_time()
        self.at_ns = max(self.at_ns, self.now_ns)
        for subject, changes in self.changes.items():
            total: Counter[str] = Counter()
            for _, delta, _ in changes:
                total.update(delta)
            if any(total.values()):
                self.changes[subject].append((self.at_ns, Counter({k: -v for k, v in total.items()}), 0))
        self._apps.clear()
        self._next_id, self._instance = 0, INSTANCE[:-1] + chr(ord(self._instance[-1]) + 1)
        self._write(usage_event(EventRecord.QUEUE, EventRecord.ADD, EventRecord.DETAILS_NONE, "root", "", self.now_ns))

    def _pass_time(self) -> None:
        window_ns = self._window_s * S_IN_NS
        match self._chance.randrange(12):
            case 0:
                self.now_ns += self._chance.randrange(40 * window_ns)
            case 1:
                self.now_ns += window_ns - self.now_ns % window_ns  # exactly at the beginning of a window
            case 2 | 3:
                pass
            case _:
                self.now_ns += self._chance.randrange(window_ns // 4)

    def _step(self) -> None:
        chance = self._chance
        holders = [app for app in self._apps if app.held]
        roll = chance.random()
        if roll < 0.12 or not self._apps:
            app = _App(f"app-{chance.randrange(30)}-{self._made % 3}", chance.choice(USERS), chance.choice(QUEUES))
            self._made += 1
            if any(other.name == app.name for other in self._apps):
                return
            self._apps.append(app)
            self._queue_app(app, EventRecord.ADD)
        elif roll < 0.5:
            self._allocate(chance.choice(self._apps))
        elif roll < 0.85 and holders:
            app = chance.choice(holders)
            self._release(app, chance.choice(sorted(app.held)))
        elif roll < 0.9:
            app = chance.choice(self._apps)
            for key in sorted(app.held):
                self._release(app, key)
            self._queue_app(app, EventRecord.REMOVE)
            self._apps.remove(app)
        elif roll < 0.93:
            self._move(chance.choice(self._apps), chance.choice(QUEUES))
        elif roll < 0.97:
            self._write(
                usage_event(
                    EventRecord.NODE, EventRecord.ADD, EventRecord.NODE_ALLOC, "n", "k", self._said_ns(), {"x": 5}
                )
            )
        else:
            self._shim()

    def _allocate(self, app: _App) -> None:
        chance = self._chance
        amounts = {"memory": chance.randrange(1, 1 << 40)}
        if chance.random() < 0.7:
            amounts["vcore"] = chance.randrange(1, 10_000)
        key = f"{app.name}-{self._next_id}"
        app.held[key] = amounts
        self._usage(app, amounts, 1, EventRecord.APP_ALLOC, key)

    def _release(self, app: _App, key: str) -> None:
        self._usage(app, app.held.pop(key), -1, self._chance.choice(_ENDS), key)

    def _usage(
        self, app: _App, amounts: dict[str, int], sign: int, detail: EventRecord.ChangeDetail.ValueType, key: str
    ) -> None:
        change = EventRecord.ADD if sign > 0 else EventRecord.REMOVE
        at_ns = self._said_ns()
        self._write(usage_event(EventRecord.APP, change, detail, app.name, key, at_ns, amounts))
        self._write(
            usage_event(
                EventRecord.USERGROUP, change, EventRecord.UG_USER_RESOURCE, app.user, app.queue, at_ns, amounts
            )
        )
        self._write(
            usage_event(
                EventRecord.USERGROUP, change, EventRecord.UG_GROUP_RESOURCE, "staff", app.queue, at_ns, amounts
            )
        )
        delta = Counter({name: sign * value for name, value in amounts.items()})
        subjects = [("application", app.name), ("user", app.user), ("group", "staff")]
        for subject in [*subjects, *(("queue", path) for path in above(app.queue))]:
            self.changes[subject].append((self.at_ns, delta, max(sign, 0)))

    def _queue_app(self, app: _App, change: EventRecord.ChangeType.ValueType) -> None:
        at_ns = self._said_ns()
        self._write(usage_event(EventRecord.QUEUE, change, EventRecord.QUEUE_APP, app.queue, app.name, at_ns))

    def _move(self, app: _App, queue: str) -> None:
        held: Counter[str] = Counter()
        for amounts in app.held.values():
            held.update(amounts)
        self._queue_app(app, EventRecord.REMOVE)
        before, app.queue = above(app.queue), queue
        self._queue_app(app, EventRecord.ADD)
        for path in set(before) ^ set(above(queue)):
            sign = -1 if path in before else 1
            self.changes["queue", path].append((self.at_ns, Counter({k: sign * v for k, v in held.items()}), 0))

    def _said_ns(self) -> int:
        """Return the time of an event. Sometimes it is earlier than the one before."""
        said_ns = self.now_ns - (self._chance.randrange(10**9) if self._chance.random() < 0.1 else 0)
        self.at_ns = max(self.at_ns, said_ns)
        return said_ns

    def _shim(self) -> None:
        value = EventRecord(type=EventRecord.REQUEST, objectID="k", referenceID="a").SerializeToString()
        self._append(value, shim_headers(self.rm_id))

    def _write(self, value: bytes) -> None:
        self._append(value, headers(self.rm_id, self._next_id, self._instance))
        self._next_id += 1

    def _append(self, value: bytes, given: tuple[tuple[str, bytes], ...]) -> None:
        offset = len(self.records) * 2  # holes, as Kafka's transaction markers leave them
        self.records.append(Record("si.events.v1", self._partition, offset, 0, self.rm_id.encode(), value, given))


def above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


@dataclass
class Sum:
    quantity_ns: Counter[str] = field(default_factory=Counter)
    peak: Counter[str] = field(default_factory=Counter)
    allocations: int = 0


def integrate(changes: list[tuple[int, Counter[str], int]], window_ns: int, until_ns: int) -> dict[int, Sum]:
    """Sum a subject's changes in each window, step by step. Windows without usage are left out."""
    sums: dict[int, Sum] = defaultdict(Sum)
    held: Counter[str] = Counter()
    changes = sorted(changes, key=lambda change: change[0])
    for index, (at_ns, delta, allocations) in enumerate(changes):
        held.update(delta)
        assert min(held.values(), default=0) >= 0, "the test's life is inconsistent"
        start_ns = at_ns - at_ns % window_ns
        sums[start_ns].allocations += allocations
        next_ns = changes[index + 1][0] if index + 1 < len(changes) else until_ns
        while at_ns < next_ns:
            start_ns = at_ns - at_ns % window_ns
            end_ns = min(start_ns + window_ns, next_ns)
            for name, value in held.items():
                sums[start_ns].quantity_ns[name] += value * (end_ns - at_ns)
                sums[start_ns].peak[name] = max(sums[start_ns].peak[name], value)
            at_ns = end_ns
    if changes and changes[-1][0] // window_ns == until_ns // window_ns:  # held now: counts for the peak
        last = sums[until_ns - until_ns % window_ns]
        last.peak |= held
    return {start: one for start, one in sums.items() if any(one.quantity_ns.values()) or one.allocations}
