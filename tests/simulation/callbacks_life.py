"""One life of a scheduler that asks: a core, its records as on the compacted topic, a follower, an auditor."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from muster_bus.log import Record
from muster_bus.topics import parse_state_key
from muster_proto.muster.bus.v1 import state_pb2
from muster_scheduler import state_codec
from muster_scheduler.core import invariants
from muster_scheduler.core.commands import Command, SetCallbacks, SetDeciding, SetEvents, UpdateConfiguration
from muster_scheduler.core.outcome import ConfigurationAnswer, Fact, Outcome
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.follower import RmInfo, StateFolder, encode_registration, encode_rm
from simulation import gangs_worlds, worlds
from simulation.books import SECOND_NS, Document, must
from simulation.callbacks_laws import Laws
from simulation.callbacks_manager import ResourceManager, manners
from simulation.hearing import plain
from simulation.life import RM, TELLS_REQUESTS, difference, published, sums

BEGIN_NS = 3_000 * SECOND_NS
EVERYTHING = 1 << 30
BUDGETS = (1, 3, *(EVERYTHING,) * 6)
REST_EVERY, COMPARE_EVERY = 3, 8
# Left alone, with an RM that agrees to all, everything has found its place after so many minutes.
LAST_MINUTES = 12


class CallbackLife:
    """A life whose steps the dice make.

    :param check_core: look at the core's own invariants too; not where the auditor alone must notice.
    :ivar digest: of everything that came out.
    :ivar story: what happened, when it is to be told.
    """

    def __init__(self, seed: int, tally: Counter[str] | None = None, *, check_core: bool = True) -> None:
        self.dice = random.Random(seed)
        self.tally: Counter[str] = tally if tally is not None else Counter()
        # (Two in three are small worlds, in which gangs, limits and preemption meet often; one has queues of any kind.)
        number = None if seed % 3 == 2 else seed % gangs_worlds.WORLDS
        self.document = _general(worlds.world(self.dice)) if number is None else gangs_worlds.world(number, 0)
        self.laws = Laws(self.tally)
        another = partial(self._another, number)
        self.rm = ResourceManager(self.dice, manners(self.dice), another, self.tally)
        self.digest = hashlib.sha256()
        self.now_ns = BEGIN_NS
        self.steps = 0
        self.story: list[str] | None = None
        self.listen: Callable[[list[Fact]], None] = lambda facts: None
        self._check_core = check_core
        self._submission = 1
        self._registrations = 0
        self._life = "RUNNING"
        self._register()
        if self.dice.random() < 0.9:
            self._apply(self.rm.connect(self.now_ns, connected=True), Outcome())

    @property
    def partition(self) -> Partition:
        """The only one."""
        return self.core.partitions["default"]

    def _another(self, number: int | None) -> Document:
        """Another configuration, valid in itself."""
        if number is not None:
            return gangs_worlds.world(number, self.dice.randrange(gangs_worlds.VARIANTS))
        while True:
            document = _general(worlds.another(self.dice, self.document))
            if worlds.read(worlds.text_of(document)) is not None:
                return document

    # ---- registration, restarts ------------------------------------------------------------------------------------

    def _register(self) -> None:
        self.topic: dict[bytes, bytes] = {}
        self._decided_ns = self.now_ns
        self._registrations += 1
        self._life = "RUNNING"
        config = worlds.read(worlds.text_of(self.document))
        assert config is not None
        self.core = SchedulerCore(config)
        self.core.apply(SetEvents(requests=True), self.now_ns)
        self.core.next_submission = self._submission
        self._follower = StateFolder()
        for record in self._registration():
            self._follower.take(record)
        self._follower.settle()
        self.laws.registered()
        out = self.core.start(self.now_ns)
        self.core.apply(SetCallbacks(self.rm.policy), self.now_ns, out)
        self._write(out)

    def _registration(self) -> list[Record]:
        text = worlds.text_of(self.document)
        info = RmInfo(
            RM, config=text, registrations=self._registrations, life=self._life, last_decided_ns=self._decided_ns
        )
        info.extra_config = TELLS_REQUESTS
        return [
            Record("state", 0, 0, 0, f"{RM}/rm/-".encode(), encode_rm(info, self.core.next_submission)),
            Record("state", 0, 0, 0, f"{RM}/reg/-".encode(), encode_registration(info)),
        ]

    def folded(self) -> SchedulerCore:
        """Another core with what stands on the topic, not yet active."""
        folder = StateFolder()
        for record in self._registration():
            folder.take(record)
        records = list(self.topic.items())
        random.Random(self.steps).shuffle(records)
        for number, (key, value) in enumerate(records):
            folder.take(Record("state", 0, number, 0, key, value))
        folder.settle()
        return folder.rms[RM].core

    def _restart(self) -> None:
        self._say("  a restart")
        self.compare()
        questions = self.partition.questions.open
        self.tally["restart: with open questions"] += bool(questions)
        self.tally["restart: with refusals"] += any(node.refused_by for node in self.partition.nodes.values())
        core = self.folded()
        core.activate(self.now_ns, self._decided_ns)
        self.core = core
        if self._check_core:
            invariants.check(core)
        out = Outcome()
        core.apply(SetCallbacks(self.rm.policy), self.now_ns, out)
        self.laws.restarted(core)
        self.laws.taken(core, SetCallbacks(self.rm.policy), set(), out.facts, self.now_ns)
        self._heard(out.facts)
        self.laws.note_over(core)
        self._cycle(EVERYTHING, out, len(out.facts))

    def compare(self) -> None:
        """The records are what there is, and a fold and a follower have the same."""
        now = published(self.core)
        stale = [key for key in now if _as_folded(key, self.topic.get(key, b"")) == _as_folded(key, now[key])]
        now.update((key, self.topic[key]) for key in stale)  # (after a restart a record may still say how many)
        must(now == self.topic, "record", difference(now, self.topic))
        core = self.folded()
        topic = {key: _as_folded(key, value) for key, value in self.topic.items()}
        folded, follower = published(core), self._follower.rms[RM].core
        followed = published(follower)
        for key in self._in_flight(core):
            del topic[key], followed[key]
        must(folded == topic, "fold", difference(folded, topic))
        must(followed == topic, "follow", difference(followed, topic))
        if not self.partition.questions.open:
            must(sums(core) == sums(self.core), "fold", difference(sums(core), sums(self.core)))
            must(sums(follower) == sums(self.core), "follow", difference(sums(follower), sums(self.core)))

    def _in_flight(self, core: SchedulerCore) -> set[bytes]:
        """Lists that nobody is on, of users that are gone: they go with the next cycle that is not cut short."""
        lists = [each for queue in self.partition.queues.values() for each in queue.waitlists.values()]
        empty = {state_codec.key_of(RM, "default", each) for each in lists if not each.groups and each.place is None}
        return empty - set(published(core))

    # ---- one step --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One more step."""
        dice, rm = self.dice, self.rm
        advance_ns = rm.advance_ns()
        due_ns = self.core.next_deadline_ns()
        if due_ns is not None and dice.random() < 0.2:
            advance_ns = min(max(due_ns - self.now_ns - dice.choice([0, 0, 1]), 0), 600 * SECOND_NS)
        self._begin_step(advance_ns)
        fate = dice.random()
        if fate < 0.004:
            self._register_anew()
        out = Outcome()
        for command in rm.commands(self.core, self.now_ns):
            self._apply(command, out)
        self._answer(out)
        self._cycle(dice.choice(BUDGETS), out, len(out.facts))
        if 0.004 <= fate < 0.02:
            self._restart()

    def _begin_step(self, advance_ns: int) -> None:
        self.steps += 1
        self.now_ns += advance_ns
        self._say(f"step {self.steps}, {self.now_ns / SECOND_NS:g} s:")

    def _register_anew(self) -> None:
        self._say("  the RM registers anew")
        self.tally["RM: registered anew"] += 1
        self._submission = self.core.next_submission
        report = self.rm.report(self.partition)
        self._register()
        out = Outcome()
        for command in [*report, self.rm.connect(self.now_ns, connected=True)]:
            self._apply(command, out)
        self.laws.note_over(self.core)
        self._cycle(EVERYTHING, out, len(out.facts))

    def _answer(self, out: Outcome) -> None:
        self.laws.note_over(self.core)
        for answers in self.rm.answers(self.now_ns):
            self._apply(answers, out)

    def _apply(self, command: Command, out: Outcome) -> None:
        if isinstance(command, UpdateConfiguration):
            self._say("  configuration")
            self._write(out)
        else:
            self._say(f"  {command}")
        before = set(self.partition.questions.open)
        facts = len(out.facts)
        self.core.apply(command, self.now_ns, out)
        self.laws.taken(self.core, command, before, out.facts[facts:], self.now_ns)
        self._heard(out.facts[facts:])
        if isinstance(command, SetDeciding):
            self._life = "RUNNING" if command.deciding else "STOPPED"
            self._follow(self._registration()[:1])
        if isinstance(command, UpdateConfiguration):
            (answer,) = (fact for fact in out.facts if isinstance(fact, ConfigurationAnswer))
            out.facts.remove(answer)
            if not answer.obstacles:
                assert self.rm.offered is not None
                self.document = self.rm.offered
            self._follow(self._registration())

    def _cycle(self, budget: int, out: Outcome, facts: int) -> None:
        core, laws = self.core, self.laws
        before = set(self.partition.questions.open)
        core.cycle(self.now_ns, budget, out)
        laws.cycled(core, before, out.facts[facts:], self.now_ns)
        self._heard(out.facts[facts:])
        if out:
            self._decided_ns = self.now_ns
        self._write(out)
        laws.check_over(core)
        if self._check_core:
            invariants.check(core, exhausted=core.exhausted)
        laws.check_leaks(core)
        if core.exhausted:
            due_ns = core.next_deadline_ns()
            must(due_ns is None or due_ns > self.now_ns, "rest", f"a deadline {due_ns} is due at {self.now_ns}")
            laws.check_rest(core)
            if self.steps % REST_EVERY == 0:
                again = core.cycle(self.now_ns, EVERYTHING)
                said = [*map(plain, again.facts), *again.events, *again.objects()]
                must(not said, "rest", f"with nothing new, another cycle says {said[:3]}")
        if self.steps % COMPARE_EVERY == 0:
            self.compare()

    def _heard(self, facts: list[Fact]) -> None:
        if self.story is not None:
            self.story += [f"    -> {_told(fact)}" for fact in facts]
        self.rm.hear(facts)

    def _say(self, line: str) -> None:
        if self.story is not None:
            self.story.append(line)

    def _write(self, out: Outcome) -> None:
        records = []
        for fact in out.facts:
            self.digest.update(repr(plain(fact)).encode())
        for partition, what, alive in out.objects():
            key = state_codec.key_of(RM, partition, what)
            value = state_codec.encode(partition, what) if alive else None
            if value is not None:
                self.topic[key] = value
            else:
                must(self.topic.pop(key, None) is not None, "record", f"tombstone of what was never written: {key!r}")
            self.digest.update(key + (value or b""))
            records.append(Record("state", 0, 0, 0, key, value))
        self._follow(records)

    def _follow(self, records: list[Record]) -> None:
        for record in records:
            self._follower.take(record)

    # ---- to the end ------------------------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        """Many steps, and the end. Raises AuditFailure, or what the core raises."""
        for _ in range(steps):
            self.step()
        self.end()

    def end(self) -> None:
        """The RM agrees to everything, and time passes: whatever fits is placed. Then all of it goes."""
        rm = self.rm
        rm.patient = True
        first = [rm.decide(), rm.connect(self.now_ns, connected=True)]
        for number in range(LAST_MINUTES * 2):
            self._begin_step((31 if number % 2 else 1) * SECOND_NS)
            out = Outcome()
            for command in first if not number else rm.wind_up(self.partition, 0):
                self._apply(command, out)
            self._answer(out)
            self._cycle(EVERYTHING, out, len(out.facts))
        self._settle()
        for number in range(4):
            self._begin_step(SECOND_NS)
            out = Outcome()
            for command in rm.wind_up(self.partition, number):
                self._apply(command, out)
            self._answer(out)
            self._cycle(EVERYTHING, out, len(out.facts))
        self.compare()
        self.laws.check_end(self.core)

    def _settle(self) -> None:
        """Answers until nobody asks: then nothing is refused any more that fits."""
        for _ in range(200):
            if not self.partition.questions.open:
                break
            self._begin_step(0)
            out = Outcome()
            self._answer(out)
            self._cycle(EVERYTHING, out, len(out.facts))
        must(not self.partition.questions.open, "settled", f"{self.partition.questions.open} is asked for ever")
        for app in self.partition.apps.values():
            for ask in app.asks.values():
                refused = ask.refusals.nodes if ask.refusals is not None else {}
                must(not refused, "settled", f"{ask}: {refused} refused, and the RM agrees to all")


def _general(document: Document) -> Document:
    """With one partition."""
    return {"partitions": document["partitions"][:1]}


def _as_folded(key: bytes, value: bytes) -> bytes:
    """Of many refused nodes the last ones are recorded, and how many there were."""
    if parse_state_key(key)[1] == state_codec.ASK:
        ask = state_pb2.AskObject.FromString(value)
        if ask.refused_nodes > state_codec.REFUSALS_KEPT:
            ask.refused_nodes = state_codec.REFUSALS_KEPT
            return ask.SerializeToString(deterministic=True)
    return value


def _told(fact: Fact) -> str:
    if type(fact).__module__.endswith("outcome") and len(plain(fact)) == 1:
        return str(fact)
    return f"{plain(fact)} {getattr(fact, 'message', '')}"
