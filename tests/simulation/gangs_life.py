"""One life with gangs: a core, its records as on the compacted topic, an auditor; made by dice, or played again."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from muster_bus.log import Record
from muster_scheduler import state_codec
from muster_scheduler.core import invariants
from muster_scheduler.core.commands import Command, SetEvents, UpdateConfiguration
from muster_scheduler.core.outcome import Fact, Outcome
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.follower import RmInfo, RmState, StateFolder, new_core
from simulation import gangs_worlds, worlds
from simulation.books import SECOND_NS, Document, must
from simulation.gangs_auditor import Auditor
from simulation.gangs_manager import ResourceManager
from simulation.hearing import plain
from simulation.life import RM, TELLS_REQUESTS, Step, difference, published, sums

BEGIN_NS = 3_000 * SECOND_NS
EVERYTHING = 1 << 30
# So many steps between two looks of that kind.
REST_EVERY, LEFT_EVERY, SUMS_EVERY, INVARIANTS_EVERY = 6, 3, 16, 40
# Left alone, a life has ended after so many times of looking what is next.
END_STEPS = 80
Said = tuple[Command, Document | None]


class GangRun:
    """A core with an auditor beside it, step by step.

    :param check_core: look at the core's own invariants too; not where the auditor alone must notice.
    :param often: look at everything after each step.
    :ivar digest: of everything that came out.
    :ivar listen: who else hears each fact.
    """

    def __init__(
        self, document: Document, tally: Counter[str] | None = None, *, check_core: bool = True, often: bool = False
    ) -> None:
        self.document = document
        self.tally: Counter[str] = tally if tally is not None else Counter()
        self.auditor = Auditor(document, self.tally)
        self.digest = hashlib.sha256()
        self.now_ns = BEGIN_NS
        self.steps: list[Step] = []
        self.story: list[str] | None = None
        self.listen: Callable[[list[Fact]], None] = lambda facts: None
        self._check_core = check_core
        self._often = often
        self._register()

    # ---- registration, restarts ------------------------------------------------------------------------------------

    def _register(self) -> None:
        self.topic: dict[bytes, bytes] = {}
        self._decided_ns = self.now_ns
        config = worlds.read(worlds.text_of(self.auditor.document))
        assert config is not None
        self.core = SchedulerCore(config, rm_id=RM)
        self.core.apply(SetEvents(requests=True), self.now_ns)
        out = self.core.start(self.now_ns)
        self._write(out)

    def _restart(self) -> None:
        """Another core, folded from the records, goes on."""
        self._check_records()
        core = self.folded()
        must(sums(core) == sums(self.core), "fold", difference(sums(core), sums(self.core)))
        core.activate(self.now_ns, self._decided_ns)
        self.core = core
        self.auditor.restarted()
        if self._check_core:
            invariants.check(core)
        self.auditor.compare(core)

    def _check_records(self) -> None:
        """All that the core has is on the topic as it is, and a fold has the same."""
        must(published(self.core) == self.topic, "record", difference(published(self.core), self.topic))
        core = self.folded()
        must(published(core) == self.topic, "fold", difference(published(core), self.topic))

    def folded(self) -> SchedulerCore:
        """Another core with what stands on the topic, not yet active."""
        text = worlds.text_of(self.auditor.document)
        info = RmInfo(RM, config=text, registrations=1, life="RUNNING", last_decided_ns=self._decided_ns)
        info.next_submission = self.core.next_submission
        info.extra_config = TELLS_REQUESTS
        folder = StateFolder()
        folder.rms[RM] = RmState(info, new_core(info, searching=False, config=worlds.read(text)))
        records = list(self.topic.items())  # a compacted topic has them in no useful order
        random.Random(len(self.steps)).shuffle(records)
        for number, (key, value) in enumerate(records):
            folder.take(Record("state", 0, number, 0, key, value))
        folder.settle()
        return folder.rms[RM].core

    # ---- one step --------------------------------------------------------------------------------------------------

    def execute(
        self, advance_ns: int, commands: Iterable[Said], budget: int, *, restart: bool = False, registers: bool = False
    ) -> None:
        """Commands, a cycle, all checks, and perhaps a restart. Raises AuditFailure, or what the core raises."""
        self.steps.append(step := Step(advance_ns, budget=budget, restart=restart, registers=registers))
        self.now_ns += advance_ns
        self._say(f"step {len(self.steps)}, {self.now_ns / SECOND_NS:g} s:")
        if registers:
            self._say("  the RM registers anew")
            self.tally["RM: registered anew"] += 1
            self.auditor.begin_again()
            self._register()
        out = Outcome()
        for command, offered in commands:
            step.commands.append((command, offered))
            self._apply(command, offered, out)
        self._cycle(budget, out)
        if restart:
            self._say("  a restart")
            self._restart()

    def _apply(self, command: Command, offered: Document | None, out: Outcome) -> None:
        facts, events = len(out.facts), len(out.events)
        self._say(f"  {command}" if not isinstance(command, UpdateConfiguration) else "  configuration")
        self.core.apply(command, self.now_ns, out)
        self._tell(out.facts[facts:])
        self.auditor.offered = offered
        self.auditor.heard(command, out.facts[facts:], out.events[events:], self.now_ns)
        self.listen(out.facts[facts:])

    def _cycle(self, budget: int, out: Outcome) -> None:
        facts, events = len(out.facts), len(out.events)
        auditor = self.auditor
        self.core.cycle(self.now_ns, budget, out)
        self._tell(out.facts[facts:])
        if out:
            self._decided_ns = self.now_ns
        self._write(out)
        auditor.cycled(out.facts[facts:], out.events[events:], self.now_ns, budget)
        auditor.compare(self.core)
        self.listen(out.facts[facts:])
        if self.core.exhausted:
            due_ns = self.core.next_deadline_ns()
            must(due_ns is None or due_ns > self.now_ns, "rest", f"a deadline {due_ns} is due at {self.now_ns}")
            if self._each(LEFT_EVERY):
                auditor.nothing_is_left()
            if self._each(REST_EVERY):
                again = self.core.cycle(self.now_ns, EVERYTHING)
                said = [*map(plain, again.facts), *again.events, *again.objects()]
                must(not said, "rest", f"with nothing new, another cycle says {said[:3]}")
        if self._each(SUMS_EVERY):
            auditor.books.check_sums()
        if self._check_core and self._each(INVARIANTS_EVERY):
            invariants.check(self.core, exhausted=self.core.exhausted)

    def _each(self, steps: int) -> bool:
        return self._often or len(self.steps) % steps == 0

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

    def check_end(self) -> None:
        """Nothing is left of what was asked for."""
        self.auditor.check_end(self.core)
        self._check_records()
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


class GangLife:
    """A run whose steps the dice make.

    :ivar run: the run.
    """

    def __init__(self, seed: int, tally: Counter[str] | None = None, *, check_core: bool = True) -> None:
        self.dice = random.Random(seed)
        world = seed % gangs_worlds.WORLDS
        document = gangs_worlds.world(world, self.dice.randrange(gangs_worlds.VARIANTS))
        self.run = GangRun(document, tally, check_core=check_core)
        self._manager = ResourceManager(self.dice, self.run.auditor, world)
        self.run.listen = self._manager.hear

    def step(self) -> None:
        """One more step."""
        dice, run, manager = self.dice, self.run, self._manager
        advance_ns = manager.advance_ns()
        if dice.random() < 0.15:
            due_ns = run.core.next_deadline_ns()
            if due_ns is not None:
                advance_ns = min(max(due_ns - run.now_ns - dice.choice([0, 0, 1]), 0), 600 * SECOND_NS)
        fate = dice.random()
        registers = fate < 0.003
        # (What it reports, it knows before anything is forgotten.)
        report = manager.report(run.auditor.books) if registers else None
        commands = ((command, manager.offered) for command in manager.commands(report))
        budget = dice.choice((1, 3, *(EVERYTHING,) * 6))
        run.execute(advance_ns, commands, budget, restart=0.003 <= fate < 0.011, registers=registers)

    def live(self, steps: int) -> None:
        """Many steps, and the end. Raises AuditFailure, or what the core raises."""
        for _ in range(steps):
            self.step()
        self.end()

    def end(self) -> None:
        """Left alone, everything comes to its end, and nothing is counted any more."""
        run, manager = self.run, self._manager
        books = run.auditor.books
        for number in range(END_STEPS):
            if not books.apps:
                break
            due_ns = run.core.next_deadline_ns()
            advance_ns = (SECOND_NS, 31 * SECOND_NS, 0, 900 * SECOND_NS)[number % 4]
            if due_ns is not None and number % 4 == 2:
                advance_ns = min(max(due_ns - run.now_ns, SECOND_NS), 900 * SECOND_NS)
            run.execute(advance_ns, ((command, None) for command in manager.wind_up(number)), EVERYTHING)
        run.check_end()


def play(document: Document, steps: Sequence[Step], *, often: bool = True) -> tuple[GangRun, Exception | None]:
    """Plays steps again; gives the run, and what went wrong."""
    run = GangRun(document, often=often)
    try:
        for step in steps:
            run.execute(step.advance_ns, step.commands, step.budget, restart=step.restart, registers=step.registers)
    except Exception as error:
        return run, error
    return run, None
