"""One life of a cluster: a core, what the state topic would hold, an auditor; made by dice, or played again."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from muster_bus.log import Record
from muster_bus.topics import parse_state_key
from muster_proto.muster.bus.v1 import state_pb2 as pb
from muster_scheduler import state_codec
from muster_scheduler.core import invariants
from muster_scheduler.core.commands import Command, SetDeciding, SetEvents, UpdateConfiguration
from muster_scheduler.core.outcome import ConfigurationAnswer, Outcome, Primary
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.follower import RmInfo, StateFolder, encode_registration, encode_rm
from simulation import worlds
from simulation.auditor import Auditor
from simulation.books import SECOND_NS, Document, must
from simulation.hearing import plain
from simulation.workload import BUDGETS, ResourceManager

BEGIN_NS = 1_000 * SECOND_NS
RM = "rm"
# All events are made, so that all are audited.
TELLS_REQUESTS = {"event.requestEventsEnabled": "true"}
_MESSAGES: dict[str, Any] = {
    "node": pb.NodeObject,
    "queue": pb.QueueObject,
    "app": pb.ApplicationObject,
    "rejected": pb.ApplicationObject,
    "ask": pb.AskObject,
    "alloc": pb.AllocationObject,
    "why": pb.ReasonObject,
}
# So many steps between two comparisons of everything.
COMPARE_EVERY = 8


@dataclass(slots=True)
class Step:
    """What happened in one step: enough to play it again.

    :ivar commands: each with the configuration that it carries, if it carries one.
    :ivar restart: afterwards another core is folded from the records, and goes on.
    :ivar registers: first the RM registers anew, and reports what there is (in lives of gangs).
    """

    advance_ns: int
    commands: list[tuple[Command, Document | None]] = field(default_factory=list)
    budget: int = 1 << 30
    restart: bool = False
    registers: bool = False


class Run:
    """A core with an auditor beside it, step by step.

    :param check_invariants: look at the core's own invariants too; not where the auditor alone must notice.
    :ivar topic: what the compacted state topic holds.
    :ivar digest: of everything that came out.
    """

    def __init__(self, document: Document, tally: Counter[str] | None = None, *, check_invariants: bool = True) -> None:
        self.document = document
        self.auditor = Auditor(document, tally)
        self.topic: dict[bytes, bytes] = {}
        self.records: dict[str, dict[tuple[str, ...], Any]] = {kind: {} for kind in _MESSAGES}
        self.now_ns = BEGIN_NS
        self.steps: list[Step] = []
        self.digest = hashlib.sha256()
        self._check_invariants = check_invariants
        self._life = "RUNNING"
        self._decided_ns = BEGIN_NS
        self._follower = StateFolder()
        config = worlds.read(worlds.text_of(document))
        assert config is not None
        self.core = SchedulerCore(config)
        self.core.apply(SetEvents(requests=True), self.now_ns)
        for record in self._registration():
            self._follower.take(record)
        self._follower.settle()
        out = self.core.start(self.now_ns)
        self._write(out)
        self.auditor.started(out.events)

    # ---- one step --------------------------------------------------------------------------------------------------

    def execute(
        self, advance_ns: int, commands: Iterable[tuple[Command, Document | None]], budget: int, *, restart: bool
    ) -> None:
        """Commands, a cycle, all checks, and perhaps a restart. Raises AuditFailure, or what the core raises."""
        self.steps.append(step := Step(advance_ns, budget=budget, restart=restart))
        self.now_ns += advance_ns
        out = Outcome()
        for command, offered in commands:
            step.commands.append((command, offered))
            self.auditor.tally[f"command: {type(command).__name__}"] += 1
            if isinstance(command, UpdateConfiguration):
                self._write(out)
                self.auditor.hearing.offered = offered
            facts, events = len(out.facts), len(out.events)
            self.core.apply(command, self.now_ns, out)
            self.auditor.applied(command, out.facts[facts:], out.events[events:], self.now_ns)
            if isinstance(command, SetDeciding):
                self._life = "RUNNING" if command.deciding else "STOPPED"
                self._follow(self._registration()[:1])
            if isinstance(command, UpdateConfiguration):
                self._answer(out)
        facts, events = len(out.facts), len(out.events)
        self.core.cycle(self.now_ns, budget, out)
        if out:
            self._decided_ns = self.now_ns
        self._write(out)
        exhausted = self.core.exhausted
        self.auditor.cycled(out.facts[facts:], out.events[events:], self.now_ns, budget, exhausted, self.records)
        if self._check_invariants:
            invariants.check(self.core, exhausted=exhausted)
        if exhausted:
            self._check_rest()
        if len(self.steps) % COMPARE_EVERY == 0 or restart:
            self.auditor.compare(self.records, self.now_ns)
        for fact in out.facts:
            self.digest.update(repr(plain(fact)).encode())
        if restart:
            self._restart()

    def _answer(self, out: Outcome) -> None:
        """A configuration was answered: its record comes before those of what it changed."""
        answer = next(fact for fact in out.facts if isinstance(fact, ConfigurationAnswer))
        if not answer.obstacles:
            self.document = self.auditor.hearing.document
        out.facts.remove(answer)
        self._follow(self._registration())

    def _check_rest(self) -> None:
        """After a cycle that ran to its end nothing is due, and another cycle has nothing to say."""
        due_ns = self.core.next_deadline_ns()
        must(due_ns is None or due_ns > self.now_ns, "rest", f"a deadline {due_ns} is due at {self.now_ns}")
        if len(self.steps) % 3 == 0:
            self.auditor.tally["cycle: nothing new, nothing said"] += 1
            again = self.core.cycle(self.now_ns, 1 << 30)
            said = [*map(plain, again.facts), *again.events, *again.objects()]
            must(not said, "rest", f"with nothing new, another cycle says {said[:3]}")
            must(self.core.exhausted, "rest", "another cycle does not end")

    # ---- the topic -------------------------------------------------------------------------------------------------

    def _write(self, out: Outcome) -> None:
        records: list[Record] = []
        for partition, what, alive in out.objects():
            key = state_codec.key_of(RM, partition, what)
            value = state_codec.encode(partition, what) if alive else None
            records.append(Record("state", 0, 0, 0, key, value))
            self.digest.update(key + (value or b""))
            _, kind, parts = parse_state_key(key)
            if value is not None:
                self.topic[key] = value
                self.records[kind][parts] = _MESSAGES[kind].FromString(value)
            else:
                must(key in self.topic, "record", f"tombstone of what was never written: {key!r}")
                del self.topic[key]
                del self.records[kind][parts]
        self._follow(records)

    def _follow(self, records: list[Record]) -> None:
        for record in records:
            self._follower.take(record)

    def _registration(self) -> list[Record]:
        text = worlds.text_of(self.document)
        info = RmInfo(RM, config=text, registrations=1, life=self._life, last_decided_ns=self._decided_ns)
        info.extra_config = TELLS_REQUESTS
        number = self.core.next_submission if hasattr(self, "core") else 1
        return [
            Record("state", 0, 0, 0, f"{RM}/rm/-".encode(), encode_rm(info, number)),
            Record("state", 0, 0, 0, f"{RM}/reg/-".encode(), encode_registration(info)),
        ]

    # ---- restarts --------------------------------------------------------------------------------------------------

    def folded(self, order: random.Random) -> SchedulerCore:
        """Another core, folded from the topic in some order, not yet active."""
        folder = StateFolder()
        for record in self._registration():
            folder.take(record)
        records = list(self.topic.items())  # a compacted topic has them in no useful order
        order.shuffle(records)
        for number, (key, value) in enumerate(records):
            folder.take(Record("state", 0, number, 0, key, value))
        folder.settle()
        return folder.rms[RM].core

    def _restart(self) -> None:
        core = self.folded(random.Random(len(self.steps)))
        self._tally_restart()
        must(published(core) == self.topic, "fold", difference(published(core), self.topic))
        core.activate(self.now_ns, self._decided_ns)
        if self._check_invariants:
            invariants.check(core)
        self.core = core
        self.auditor.restarted(self.now_ns)

    def _tally_restart(self) -> None:
        """In the middle of what a restart came."""
        tally = self.auditor.tally
        for books in self.auditor.books.values():
            asks = [ask for app in books.apps.values() for ask in app.asks.values()]
            held = [held for app in books.apps.values() for held in app.held.values()]
            tally["restart: with pending asks"] += bool(asks)
            tally["restart: with reservations"] += any(ask.reserved is not None for ask in asks)
            tally["restart: with preempted allocations"] += any(each.told == "preempted" for each in held)
            tally["restart: with timed out allocations"] += any(each.told == "timeout" for each in held)
            tally["restart: with draining queues"] += any(queue.draining for queue in books.queues.values())

    def end(self) -> None:
        """What must be true in the end: folded, followed and lived, the state is the same."""
        self.auditor.compare(self.records, self.now_ns)
        core = self.folded(random.Random(0))
        must(published(core) == self.topic, "fold", difference(published(core), self.topic))
        followed = self._follower.rms[RM].core
        must(published(followed) == self.topic, "follow", difference(published(followed), self.topic))
        must(sums(core) == sums(self.core), "fold", difference(sums(core), sums(self.core)))
        must(sums(followed) == sums(self.core), "follow", difference(sums(followed), sums(self.core)))


def published(core: SchedulerCore) -> dict[bytes, bytes]:
    """Everything that a core would have on the state topic."""
    found: dict[bytes, bytes] = {}
    for name, partition in core.partitions.items():
        objects: list[Primary] = [*partition.queues.values(), *partition.nodes.values(), *partition.foreign.values()]
        objects += partition.rejected.values()
        for queue in partition.queues.values():
            objects += queue.waitlists.values()
        for app in partition.apps.values():
            objects += [app, *app.asks.values(), *app.allocations.values()]
        for what in objects:
            found[state_codec.key_of(RM, name, what)] = state_codec.encode(name, what)
    return found


def sums(core: SchedulerCore) -> dict[Any, Any]:
    """What a core computed and does not record, by type name: a fold may meet the types in another order."""
    found: dict[Any, Any] = {}
    for name, partition in core.partitions.items():
        names = partition.types.names
        for node in partition.nodes.values():
            found[name, "node", node.node_id] = [
                _named(vector, names) for vector in (node.allocated, node.occupied, node.available)
            ]
        for queue in partition.queues.values():
            found[name, "queue", queue.path] = (
                [_named(vector, names) for vector in (queue.allocated, queue.pending, queue.preempting)],
                queue.running_applications,
                queue.policy,
                sorted(queue.applications),
            )
        for tracker in partition.limits:
            found[name, tracker.path, tracker.who, tracker.group] = (
                _named(tracker.allocated, names),
                tracker.running_applications,
                tracker.applications,
            )
    return found


def _named(vector: list[int], names: list[str]) -> dict[str, int]:
    return {name: value for name, value in zip(names, vector, strict=True) if value}


def difference(left: dict[Any, Any], right: dict[Any, Any]) -> str:
    keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    return "; ".join(f"{key!r}: {_shown(key, left.get(key))} and {_shown(key, right.get(key))}" for key in keys[:3])


def _shown(key: Any, value: Any) -> str:
    if isinstance(key, bytes) and isinstance(value, bytes):
        kind = parse_state_key(key)[1]
        messages = {**_MESSAGES, "source": pb.SourceObject, "ext": pb.ExternalRecord}
        return " ".join(str(messages[kind].FromString(value)).split())
    return repr(value)


class Life:
    """A run whose steps the dice make.

    :param policy: of the nodes, to begin with; else any.
    :ivar run: the run.
    """

    def __init__(
        self, seed: int, tally: Counter[str] | None = None, *, policy: str = "", check_invariants: bool = True
    ) -> None:
        self.dice = random.Random(seed)
        self.run = Run(worlds.world(self.dice, policy), tally, check_invariants=check_invariants)
        self._rm = ResourceManager(self.dice, self.run.auditor.hearing)

    def step(self) -> None:
        """One more step."""
        dice = self.dice
        advance_ns = self._rm.advance_ns()
        due_ns = self.run.core.next_deadline_ns()
        if due_ns is not None and dice.random() < 0.2:
            advance_ns = min(max(due_ns - self.run.now_ns - dice.choice([0, 0, 1]), 0), 600 * SECOND_NS)
        commands = ((command, self._rm.offered) for command in self._rm.commands())
        self.run.execute(advance_ns, commands, dice.choice(BUDGETS), restart=dice.random() < 0.03)

    def live(self, steps: int) -> None:
        """Many steps, and the end."""
        for _ in range(steps):
            self.step()
        self.run.end()


def play(document: Document, steps: Iterable[Step], *, check_invariants: bool = True) -> tuple[Run, Exception | None]:
    """Plays steps again; gives the run, and what went wrong."""
    run = Run(document, check_invariants=check_invariants)
    try:
        for step in steps:
            run.execute(step.advance_ns, step.commands, step.budget, restart=step.restart)
        run.end()
    except Exception as error:
        return run, error
    return run, None
