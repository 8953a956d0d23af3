"""One life with gangs: a core, its records as on the compacted topic, an auditor, a resource manager; then its end."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from typing import Any

from muster_bus.log import Record
from muster_scheduler import state_codec
from muster_scheduler.core import invariants
from muster_scheduler.core.commands import Command, UpdateConfiguration
from muster_scheduler.core.outcome import Fact, Outcome
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.follower import RmInfo, RmState, StateFolder, new_core
from simulation import gangs_worlds, worlds
from simulation.books import SECOND_NS, AuditFailure, must
from simulation.gangs_auditor import Auditor
from simulation.gangs_manager import ResourceManager
from simulation.hearing import plain
from simulation.life import RM, difference, published, sums

BEGIN_NS = 3_000 * SECOND_NS
EVERYTHING = 1 << 30
# So many steps between two looks of that kind.
REST_EVERY, LEFT_EVERY, SUMS_EVERY, INVARIANTS_EVERY = 6, 3, 16, 40
# Left alone, a life has ended after so many times of looking what is next.
END_STEPS = 80


class GangLife:
    """A life whose steps the dice make.

    :param check_core: look at the core's own invariants too; not where the auditor alone must notice.
    :ivar digest: of everything that came out.
    """

    def __init__(self, seed: int, tally: Counter[str] | None = None, *, check_core: bool = True) -> None:
        self.dice = random.Random(seed)
        self.tally: Counter[str] = tally if tally is not None else Counter()
        world = seed % gangs_worlds.WORLDS
        document = gangs_worlds.world(world, self.dice.randrange(gangs_worlds.VARIANTS))
        self.auditor = Auditor(document, self.tally)
        self.manager = ResourceManager(self.dice, self.auditor, world)
        self.digest = hashlib.sha256()
        self.now_ns = BEGIN_NS
        self.steps = 0
        self.story: list[str] | None = None
        self._check_core = check_core
        self._register()

    # ---- registration, restarts ------------------------------------------------------------------------------------

    def _register(self) -> None:
        self.topic: dict[bytes, bytes] = {}
        self._decided_ns = self.now_ns
        config = worlds.read(worlds.text_of(self.auditor.document))
        assert config is not None
        self.core = SchedulerCore(config)
        out = self.core.start(self.now_ns)
        self._write(out)

    def register_again(self) -> None:
        """The RM comes back, and reports what runs: another core, from nothing."""
        self.tally["RM: registered anew"] += 1
        commands = self.manager.report(self.auditor.books)
        self.auditor.begin_again()
        self._register()
        self._say("-- registered anew")
        out = Outcome()
        for command in commands:
            self._apply(command, out)
        self._write(out)

    def restart(self) -> None:
        """Another core, folded from the records, goes on."""
        must(published(self.core) == self.topic, "record", difference(published(self.core), self.topic))
        core = self.folded()
        must(published(core) == self.topic, "fold", difference(published(core), self.topic))
        must(sums(core) == sums(self.core), "fold", difference(sums(core), sums(self.core)))
        core.activate(self.now_ns, self._decided_ns)
        self.core = core
        self.auditor.restarted()
        self._say("-- restarted")
        if self._check_core:
            invariants.check(core)
        self.auditor.compare(core)

    def folded(self) -> SchedulerCore:
        """Another core with what stands on the topic, not yet active."""
        text = worlds.text_of(self.auditor.document)
        info = RmInfo(RM, config=text, registrations=1, life="RUNNING", last_decided_ns=self._decided_ns)
        info.next_submission = self.core.next_submission
        folder = StateFolder()
        folder.rms[RM] = RmState(info, new_core(info, searching=False, config=worlds.read(text)))
        records = list(self.topic.items())  # a compacted topic has them in no useful order
        random.Random(self.steps).shuffle(records)
        for number, (key, value) in enumerate(records):
            folder.take(Record("state", 0, number, 0, key, value))
        folder.settle()
        return folder.rms[RM].core

    # ---- one step --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One more step."""
        dice = self.dice
        advance_ns = self.manager.advance_ns()
        if dice.random() < 0.15:
            due_ns = self.core.next_deadline_ns()
            if due_ns is not None:
                advance_ns = min(max(due_ns - self.now_ns - dice.choice([0, 0, 1]), 0), 600 * SECOND_NS)
        out = self._begin(advance_ns)
        for _ in range(dice.choice((0, 1, 1, 2, 3))):
            command = self.manager.command()
            if command is not None:
                self._apply(command, out)
        self._cycle(out, dice.choice((1, 3, *(EVERYTHING,) * 6)))
        fate = dice.random()
        if fate < 0.008:
            self.restart()
        elif fate < 0.011:
            self.register_again()

    def _begin(self, advance_ns: int) -> Outcome:
        self.steps += 1
        self.now_ns += advance_ns
        self._say(f"step {self.steps}, {self.now_ns / SECOND_NS:g} s:")
        out = Outcome()
        for command in self.manager.confirmations():
            self._apply(command, out)
        return out

    def _apply(self, command: Command, out: Outcome) -> None:
        facts, events = len(out.facts), len(out.events)
        self._say(f"  {command}" if not isinstance(command, UpdateConfiguration) else "  configuration")
        self.core.apply(command, self.now_ns, out)
        self._tell(out.facts[facts:])
        self.auditor.heard(command, out.facts[facts:], out.events[events:], self.now_ns)
        self.manager.hear(out.facts[facts:])

    def _cycle(self, out: Outcome, budget: int) -> None:
        facts, events = len(out.facts), len(out.events)
        auditor = self.auditor
        self.core.cycle(self.now_ns, budget, out)
        self._tell(out.facts[facts:])
        if out:
            self._decided_ns = self.now_ns
        self._write(out)
        auditor.cycled(out.facts[facts:], out.events[events:], self.now_ns, budget)
        auditor.compare(self.core)
        self.manager.hear(out.facts[facts:])
        if self.core.exhausted:
            due_ns = self.core.next_deadline_ns()
            must(due_ns is None or due_ns > self.now_ns, "rest", f"a deadline {due_ns} is due at {self.now_ns}")
            if self.steps % LEFT_EVERY == 0:
                auditor.nothing_is_left()
            if self.steps % REST_EVERY == 0:
                again = self.core.cycle(self.now_ns, EVERYTHING)
                said = [*map(plain, again.facts), *again.events, *again.objects()]
                must(not said, "rest", f"with nothing new, another cycle says {said[:3]}")
        if self.steps % SUMS_EVERY == 0:
            auditor.books.check_sums()
        if self._check_core and self.steps % INVARIANTS_EVERY == 0:
            invariants.check(self.core, exhausted=self.core.exhausted)

    def _write(self, out: Outcome) -> None:
        topic, digest = self.topic, self.digest
        for fact in out.facts:
            digest.update(repr(plain(fact)).encode())
        for partition, what, alive in out.objects():
            key = state_codec.key_of(RM, partition, what)
            if alive:
                topic[key] = value = state_codec.encode(partition, what)
                digest.update(key + value)
            else:
                must(topic.pop(key, None) is not None, "record", f"tombstone of what was never written: {key!r}")
                digest.update(key)

    # ---- a whole life ----------------------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        """Many steps, and the end. Raises AuditFailure, or what the core raises."""
        for _ in range(steps):
            self.step()
        self.end()

    def end(self) -> None:
        """Left alone, everything comes to its end, and nothing is counted any more."""
        manager, auditor = self.manager, self.auditor
        manager.patient = True
        for number in range(END_STEPS):
            if not auditor.books.apps:
                break
            due_ns = self.core.next_deadline_ns()
            advance_ns = (SECOND_NS, 31 * SECOND_NS, 0, 900 * SECOND_NS)[number % 4]
            if due_ns is not None and number % 4 == 2:
                advance_ns = min(max(due_ns - self.now_ns, SECOND_NS), 900 * SECOND_NS)
            out = self._begin(advance_ns)
            for command in manager.wind_up(auditor.books, number):
                self._apply(command, out)
            self._cycle(out, EVERYTHING)
        self.tally["end: steps"] += 1
        auditor.check_end(self.core)
        must(published(self.core) == self.topic, "record", difference(published(self.core), self.topic))
        core = self.folded()
        must(published(core) == self.topic, "fold", difference(published(core), self.topic))
        if self._check_core:
            invariants.check(self.core)

    # ---- telling ---------------------------------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        if self.story is not None:
            self.story.append(line)

    def _tell(self, facts: list[Fact]) -> None:
        if self.story is not None:
            self.story += [f"    -> {_told(fact)}" for fact in facts]


def _told(fact: Any) -> str:
    message = getattr(fact, "message", "")
    return f"{plain(fact)}{f' {message!r}' if message else ''}"


__all__ = ["AuditFailure", "GangLife"]
