"""The part of a resource manager that wants to be asked: how it answers, and how its stream comes and goes.

It knows the questions from what it was sent. It answers late, twice, in any order, never, with ids that nobody gave;
what it refuses changes with time. Its stream breaks and comes back. At the end it agrees to everything.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from muster_core.model.application import Application
from muster_core.model.commands import (
    AskItem,
    Command,
    PredicateAnswer,
    PredicateAnswers,
    SetCallbacks,
    SetSchedulingEnabled,
    UpdateApplications,
)
from muster_core.model.outcome import Fact, PredicateRequested, PreemptionPredicateRequested
from muster_core.model.scopes import CallbackPolicy, Scope
from muster_core.partition import Partition
from simulation.books import SECOND_NS
from simulation.callbacks_laws import check_settled
from simulation.callbacks_turns import TAG
from simulation.speech import live

if TYPE_CHECKING:
    from simulation.manager import ResourceManager

# Left alone, with an RM that agrees to all, everything has found its place after so many minutes.
LAST_MINUTES = 12


@dataclass(slots=True)
class Manners:
    """How the RM of one life is.

    :param refuses: how much of (ask, node) it refuses; ``moods_ns``: after how long it thinks otherwise.
    :param whole_nodes: it refuses nodes for all, not for single asks.
    :param late: in how many steps it answers. ``silent``: how much it never answers.
    :param alone: where its hello wants one proposal at a time; ``tagged``: how many of its asks say so themselves.
    """

    predicates: bool
    preemption: bool
    states: bool
    refuses: float
    moods_ns: int
    whole_nodes: bool
    late: int
    silent: float
    breaks: bool
    waits: bool
    timeout_ns: int
    retry_ns: int
    grace_ns: int
    alone: Scope
    tagged: float

    @property
    def policy(self) -> CallbackPolicy:
        """What a registration says of how long things take."""
        return CallbackPolicy(
            timeout_ns=self.timeout_ns, retry_ns=self.retry_ns, grace_ns=self.grace_ns, waits=self.waits
        )

    @property
    def takes_turns(self) -> bool:
        """Whether it wants one open proposal at a time in some scope."""
        return bool(self.alone or self.tagged)


SCOPES = (Scope.NODE, Scope.TASK_GROUP, Scope.APPLICATION, Scope.ONE)
TAGS = ("node", "task-group", "application", "one", "all")


def manners(dice: random.Random, turning: random.Random) -> Manners:
    turns = turning.choice(["none", "none", "hello", "tags", "both"])
    return Manners(
        dice.random() < 0.9,
        dice.random() < 0.6,
        dice.random() < 0.5,
        dice.choice([0.0, 0.1, 0.3, 0.3, 0.6, 0.9]),
        dice.choice([3, 10, 30, 1_000]) * SECOND_NS,
        dice.random() < 0.3,
        dice.choice([0, 0, 1, 3, 8]),
        dice.choice([0.0, 0.0, 0.1, 0.4]),
        dice.random() < 0.4,
        dice.random() < 0.3,
        dice.choice([2, 10, 10]) * SECOND_NS,
        dice.choice([3, 10, 10]) * SECOND_NS,
        dice.choice([0, 5, 30]) * SECOND_NS,
        turning.choice(SCOPES) if turns in ("hello", "both") else Scope.ALL,
        turning.choice([0.1, 0.5, 1.0]) if turns in ("tags", "both") else 0.0,
    )


class Answering:
    """Of one RM.

    :ivar policy: how it wants to be asked, as it said last.
    """

    def __init__(self, rm: ResourceManager, turning: random.Random) -> None:
        self._rm = rm
        self._turning = turning
        self.manners = manners(rm.dice, turning)
        self.policy = CallbackPolicy()
        self._begins = rm.maybe(0.9)
        self._step = 0
        self._due: list[tuple[int, Fact]] = []
        rm.kinds["stream"] = 4.0
        rm.makers["stream"] = self._stream

    def item(self, item: AskItem) -> AskItem:
        """An ask, which may name its own scope for single proposals."""
        if not self.manners.takes_turns:
            return item
        tags = {name: each for name, each in item.tags.items() if name != TAG}
        if self._turning.random() < self.manners.tagged:
            tags[TAG] = self._turning.choice(TAGS)
        return replace(item, tags=tags, task_group=self._turning.choice(["", "", "a", "b"]))

    # ---- answers ---------------------------------------------------------------------------------------------------

    def hear(self, facts: list[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, PredicateRequested | PreemptionPredicateRequested):
                self._due.append(
                    (self._step + (0 if self._rm.patient else self._rm.dice.randint(0, self.manners.late)), fact)
                )

    def answers(self) -> list[Command]:
        dice, now_ns, self._step = self._rm.dice, self._rm.run.now_ns, self._step + 1
        due = [fact for step, fact in self._due if step <= self._step]
        self._due = [each for each in self._due if each[0] > self._step]
        if not self.policy.connected:
            if due and dice.random() < 0.5:
                return []  # lost with the stream
            if due and not self._rm.patient:
                self._due += [(self._step + 1, fact) for fact in due]
                return []
        found: list[PredicateAnswer] = []
        for fact in due:
            assert isinstance(fact, PredicateRequested | PreemptionPredicateRequested)
            if not self._rm.patient and dice.random() < self.manners.silent:
                self._rm.tally["RM: a question is never answered"] += 1
                continue
            no = self.refuses(fact, now_ns)
            last = -1
            if isinstance(fact, PreemptionPredicateRequested) and dice.random() < 0.5:
                last = dice.randrange(-1, len(fact.victims) + 1)
                self._rm.tally["RM: wants further victims gone"] += fact.least <= last
            found.append(PredicateAnswer(fact.question, not no, f"{fact.node_id} will not do" if no else "", last))
            self._rm.tally[f"RM: says {'no' if no else 'yes'} to {type(fact).__name__}"] += 1
            if dice.random() < 0.05:
                found.append(found[-1]._replace(fits=dice.random() < 0.5))
                self._rm.tally["RM: answers twice"] += 1
        if dice.random() < 0.03:
            found.append(PredicateAnswer(dice.choice([0, 1, 1 << 40]), True))
        if dice.random() < 0.5:
            dice.shuffle(found)
        if found and dice.random() < 0.3:
            return [PredicateAnswers([each]) for each in found]
        return [PredicateAnswers(found)] if found else []

    def refuses(self, fact: PredicateRequested | PreemptionPredicateRequested, now_ns: int) -> bool:
        """Its mood: by node, ask and time."""
        if self._rm.patient or not self.manners.refuses:
            return False
        about = (fact.node_id, "" if self.manners.whole_nodes else fact.key, now_ns // self.manners.moods_ns)
        return zlib.crc32(repr(about).encode()) % 1000 < self.manners.refuses * 1000

    # ---- its stream ------------------------------------------------------------------------------------------------

    def begins(self, report: list[Command] | None) -> Iterator[Command]:
        """Opens its stream, at first and after a registration."""
        if self._begins or report is not None:
            self._begins = False
            yield self.connect(connected=True)

    def forget(self) -> None:
        self.policy = CallbackPolicy()

    def _stream(self, partition: Partition, apps: list[Application]) -> Command | None:
        if self.policy.connected and not self.manners.breaks:
            return None
        return self.connect(connected=not self.policy.connected)

    def connect(self, *, connected: bool) -> SetCallbacks:
        how = self.manners
        wanting = connected or self.policy.since_ns > 0
        self.policy = CallbackPolicy(
            predicates=(how.predicates and wanting) or (how.waits and not connected),
            preemption=how.preemption and wanting,
            states=how.states and wanting,
            connected=connected,
            since_ns=self._rm.run.now_ns,
            timeout_ns=how.timeout_ns,
            retry_ns=how.retry_ns,
            grace_ns=how.grace_ns,
            waits=how.waits,
            alone=self._alone() if wanting else Scope.ALL,
        )
        self._rm.tally[f"stream: {'comes' if connected else 'goes'}"] += 1
        return SetCallbacks(self.policy)

    def _alone(self) -> Scope:
        how, turning = self.manners, self._turning
        return turning.choice((Scope.ALL, *SCOPES)) if how.alone and turning.random() < 0.2 else how.alone

    # ---- the end ---------------------------------------------------------------------------------------------------

    def ending(self) -> Iterator[tuple[int | None, Iterable[Command]]]:
        """Agrees to everything while time passes, until everything that fits is placed. Then ends all allocations."""
        rm = self._rm
        yield SECOND_NS, self._say([SetSchedulingEnabled(True), self.connect(connected=True)])
        for number in range(1, LAST_MINUTES * 2):
            yield (31 if number % 2 else 1) * SECOND_NS, self._say(rm.confirmations())
        for _ in range(200):
            if not any(each.questions.open for each in rm.run.core.partitions.values()):
                break
            yield 0, self._say(())
        check_settled(rm.run.core)
        yield SECOND_NS, self._say(rm.confirmations())
        for _ in range(3):
            yield SECOND_NS, self._say(self._gone())

    def _say(self, commands: Iterable[Command]) -> Iterator[Command]:
        yield from commands
        yield from self.answers()

    def _gone(self) -> Iterator[Command]:
        yield from self._rm.confirmations()
        for partition in self._rm.run.core.partitions.values():
            yield UpdateApplications((), tuple((partition.name, app.app_id) for app in live(partition)))
