"""A core and its records as on the compacted topic, step by step, with laws beside it: lives at the core are these."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from muster_bus.log import Record
from muster_core.model.commands import Command, SetCallbacks, SetEvents, SetSchedulingEnabled, UpdateConfiguration
from muster_core.model.outcome import ConfigurationResult, Event, Fact, Outcome
from muster_core.model.scopes import CallbackPolicy
from muster_core.scheduler import SchedulerCore
from muster_state import state_codec
from muster_state.state_folder import RmEntry, RmInfo, StateFolder, encode_registration, encode_rm, new_core
from simulation import worlds
from simulation.books import SECOND_NS, Document, must
from simulation.hearing_asks import plain
from simulation.records import RM

BEGIN_NS = 3_000 * SECOND_NS
EVERYTHING = 1 << 30
# All events are made, so that all are audited.
TELLS_REQUESTS = {"event.requestEventsEnabled": "true"}
# Of what is told of a fact: so many characters.
TOLD_MAX = 300


@dataclass(slots=True)
class Step:
    """What happened in one step: enough to play it again.

    :ivar commands: each with the configuration that it carries, if it carries one.
    :ivar restart: afterwards another core is folded from the records, and goes on.
    :ivar registers: first the RM registers anew; what it reports is among the commands.
    """

    advance_ns: int
    commands: list[tuple[Command, Document | None]] = field(default_factory=list)
    budget: int = EVERYTHING
    restart: bool = False
    registers: bool = False


class Law:
    """What must be true of a life. Each method is called in its moment; a broken law raises AuditFailure."""

    def registers(self, run: Run) -> None:
        """The RM registers, for the first time or anew: nothing is there any more."""

    def ends(self, run: Run, out: Outcome) -> None:
        """Before that: this came out as what there was ended."""

    def began(self, run: Run, out: Outcome) -> None:
        """This came out as the core was started for the RM."""

    def hears(self, run: Run, command: Command, offered: Document | None) -> None:
        """The core takes a command next."""

    def taken(self, run: Run, command: Command, facts: list[Fact], events: list[Event]) -> None:
        """The core took it, and this came out."""

    def decides(self, run: Run) -> None:
        """The core runs a cycle next."""

    def decided(self, run: Run, facts: list[Fact], events: list[Event], budget: int) -> None:
        """The core ran a cycle, and this came out; it is on the records."""

    def wrote(self, run: Run, out: Outcome) -> None:
        """Thereafter: all that came out since the cycle before."""

    def restarts(self, run: Run) -> None:
        """Another core is folded from the records next."""

    def restarted(self, run: Run, info: RmInfo) -> None:
        """It is in place."""

    def inform(self, info: RmInfo) -> None:
        """Adds what it knows to the RM's own record."""

    def record(self, key: bytes, value: bytes | None) -> None:
        """One record was written."""

    def over(self, run: Run) -> None:
        """The life is over."""


class Run:
    """A core with laws beside it, step by step.

    :param follows: a follower takes each record. (Lives that are many and long do without.)
    :ivar topic: what the compacted state topic holds.
    :ivar follower: what follows it.
    :ivar digest: of everything that came out.
    :ivar listen: who else hears each fact.
    :ivar story: what happened, when it is to be told.
    :ivar policy: how the RM wants to be asked; None: it never said.
    """

    def __init__(
        self, document: Document, laws: Sequence[Law], tally: Counter[str] | None = None, *, follows: bool = True
    ) -> None:
        self.document = document
        self.laws = list(laws)
        self.tally: Counter[str] = tally if tally is not None else Counter()
        self.now_ns = BEGIN_NS
        self.steps: list[Step] = []
        self.digest = hashlib.sha256()
        self.story: list[str] | None = None
        self.listen: Callable[[list[Fact]], None] = lambda facts: None
        self.policy: CallbackPolicy | None = None
        self._follows = follows
        self._registrations = 0
        self._submission = 1

    # ---- registrations ---------------------------------------------------------------------------------------------

    def register(self) -> None:
        """The RM registers: a core begins with the configuration, and nothing else."""
        self.topic: dict[bytes, bytes] = {}
        self.follower = StateFolder()
        self.decided_ns = self.now_ns
        self._registrations += 1
        self._life = "RUNNING"
        self.policy = None
        config = worlds.read(worlds.text_of(self.document))
        assert config is not None
        before = getattr(self, "core", None)
        self.core = SchedulerCore(config, rm_id=RM)
        self.core.apply(SetEvents(requests=True), self.now_ns)
        self.core.next_submission = self._submission
        for law in self.laws:
            law.registers(self)
        self._follow(self._registration())
        self.follower.build()
        out = self.core.start(self.now_ns, before=before)
        self._write(out)
        for law in self.laws:
            law.began(self, out)

    def _register_anew(self) -> None:
        self.say("  the RM registers anew")
        self.tally["RM: registered anew"] += 1
        out = self.core.end(self.now_ns)
        for law in self.laws:
            law.ends(self, out)
        self._submission = self.core.next_submission
        self.register()

    def _info(self) -> RmInfo:
        text = worlds.text_of(self.document)
        info = RmInfo(
            RM, config=text, registrations=self._registrations, life=self._life, last_decided_ns=self.decided_ns
        )
        info.extra_config = TELLS_REQUESTS
        for law in self.laws:
            law.inform(info)
        return info

    def _registration(self) -> list[Record]:
        if not self._follows:
            return []
        info = self._info()
        return [
            Record("state", 0, 0, 0, f"{RM}/rm/-".encode(), encode_rm(info, self.core.next_submission)),
            Record("state", 0, 0, 0, f"{RM}/reg/-".encode(), encode_registration(info)),
        ]

    # ---- restarts --------------------------------------------------------------------------------------------------

    def folded(self, order: random.Random | None = None) -> SchedulerCore:
        """Another core with what stands on the topic, in some order, not yet active."""
        return self.fold(order).core

    def fold(self, order: random.Random | None = None) -> RmEntry:
        """The same, with what is recorded of the RM."""
        folder = StateFolder()
        if self._follows:
            for record in self._registration():
                folder.fold(record)
        else:  # (A configuration is not read again: it takes longer than a step.)
            info = self._info()
            info.next_submission = self.core.next_submission
            folder.rms[RM] = RmEntry(info, new_core(info, searching=False, config=worlds.read(info.config)))
        records = list(self.topic.items())  # a compacted topic has them in no useful order
        (order or random.Random(len(self.steps))).shuffle(records)
        for number, (key, value) in enumerate(records):
            folder.fold(Record("state", 0, number, 0, key, value))
        folder.build()
        return folder.rms[RM]

    def _restart(self) -> None:
        self.say("  a restart")
        for law in self.laws:
            law.restarts(self)
        state = self.fold()
        state.core.activate(self.now_ns, self.decided_ns)
        self.core = state.core
        for law in self.laws:
            law.restarted(self, state.info)
        if self.policy is not None:
            out = Outcome()
            self._apply(SetCallbacks(self.policy), None, out)
            self._cycle(EVERYTHING, out)

    # ---- one step --------------------------------------------------------------------------------------------------

    def execute(
        self,
        advance_ns: int,
        commands: Iterable[tuple[Command, Document | None]],
        budget: int,
        *,
        restart: bool = False,
        registers: bool = False,
    ) -> None:
        """Commands, a cycle, all laws, and perhaps a restart. Raises AuditFailure, or what the core raises."""
        self.steps.append(step := Step(advance_ns, budget=budget, restart=restart, registers=registers))
        self.now_ns += advance_ns
        self.say(f"step {len(self.steps)}, {self.now_ns / SECOND_NS:g} s:")
        if registers:
            self._register_anew()
        out = Outcome()
        for command, offered in commands:
            step.commands.append((command, offered))
            self._apply(command, offered, out)
        self._cycle(budget, out)
        if restart:
            self._restart()

    def _apply(self, command: Command, offered: Document | None, out: Outcome) -> None:
        configures = isinstance(command, UpdateConfiguration)
        self.say("  configuration" if configures else f"  {command}")
        if configures:
            self._write(out)
        for law in self.laws:
            law.hears(self, command, offered)
        facts, events = len(out.facts), len(out.events)
        self.core.apply(command, self.now_ns, out)
        new = out.facts[facts:]
        self._tell(new)
        for law in self.laws:
            law.taken(self, command, new, out.events[events:])
        self.listen(new)
        if isinstance(command, SetSchedulingEnabled):
            self._life = "RUNNING" if command.deciding else "STOPPED"
            self._follow(self._registration()[:1])
        elif isinstance(command, SetCallbacks):
            self.policy = command.policy
        elif configures:
            self._answer(offered, out)

    def _answer(self, offered: Document | None, out: Outcome) -> None:
        """A configuration was answered: its record comes before those of what it changed."""
        answer = next(fact for fact in out.facts if isinstance(fact, ConfigurationResult))
        if not answer.obstacles:
            assert offered is not None
            self.document = offered
        out.facts.remove(answer)
        self._follow(self._registration())

    def _cycle(self, budget: int, out: Outcome) -> None:
        facts, events = len(out.facts), len(out.events)
        for law in self.laws:
            law.decides(self)
        self.core.cycle(self.now_ns, budget, out)
        new = out.facts[facts:]
        self._tell(new)
        if out:
            self.decided_ns = self.now_ns
        self._write(out)
        for law in self.laws:
            law.decided(self, new, out.events[events:], budget)
        for law in self.laws:
            law.wrote(self, out)
        self.listen(new)
        for fact in out.facts:
            self.digest.update(repr(plain(fact)).encode())

    # ---- the topic -------------------------------------------------------------------------------------------------

    def _write(self, out: Outcome) -> None:
        records: list[Record] = []
        for partition, what, alive in out.objects():
            key = state_codec.key_of(RM, partition, what)
            value = state_codec.encode(partition, what) if alive else None
            if value is not None:
                self.topic[key] = value
            else:
                must(self.topic.pop(key, None) is not None, "record", f"tombstone of what was never written: {key!r}")
            self.digest.update(key + (value or b""))
            for law in self.laws:
                law.record(key, value)
            if self._follows:
                records.append(Record("state", 0, 0, 0, key, value))
        self._follow(records)

    def _follow(self, records: list[Record]) -> None:
        for record in records:
            self.follower.fold(record)

    @property
    def followed(self) -> SchedulerCore:
        """What a follower has; without one, what the core has."""
        return self.follower.rms[RM].core if self._follows else self.core

    def over(self) -> None:
        """The life is over: what must be true in the end?"""
        for law in self.laws:
            law.over(self)

    # ---- telling ---------------------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        if self.story is not None:
            self.story.append(line[:TOLD_MAX])

    def _tell(self, facts: list[Fact]) -> None:
        if self.story is not None:
            for fact in facts:
                words = plain(fact)
                self.say(f"    -> {words if len(words) > 1 else fact} {getattr(fact, 'message', '')}")
