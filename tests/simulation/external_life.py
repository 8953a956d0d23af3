"""One life of a scheduler beside other managers: a machine, its records as on the compacted topic, an auditor.

The machine is the scheduler's own, from the records of the requests to those that it writes; so are its restarts.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain, islice

from muster_bus.log import OutRecord, Record
from muster_core import invariants
from muster_core.external.model import SourceState
from muster_core.model.commands import Command, SetCallbacks
from muster_core.model.outcome import Event, Fact, Outcome
from muster_core.scheduler import SchedulerCore
from muster_informers.sync_gate import SyncGate
from muster_scheduler.callback_ingest import policy_of
from muster_scheduler.machine import SchedulerMachine
from muster_state import state_codec
from muster_state.state_folder import StateFolder
from simulation import external_wire as wire
from simulation import small_worlds, worlds
from simulation.books import SECOND_NS, Amounts, must
from simulation.callbacks_laws import Laws as CallbackLaws
from simulation.common_laws import History, in_flight
from simulation.external_books import Books, Held
from simulation.external_chain import Chain
from simulation.external_informer import Informer, manners
from simulation.external_laws import Laws
from simulation.external_world import Lender, LicenceServer, Manager, RackManager, VmManager, World
from simulation.manager import CALLBACKS, EXTERNAL, GANGS, ResourceManager
from simulation.records import as_folded, difference, published, sums
from simulation.run import TOLD_MAX, Law

BEGIN_NS = 5_000 * SECOND_NS
BUDGETS = (1, 3, 2000, 2000)
REST_EVERY, COMPARE_EVERY = 3, 8
TICKS_MAX = 2_000


class Ear(Law):
    """Passes the core's messages to the RM."""

    def __init__(self, hear: Callable[[list[Fact]], None]) -> None:
        self._hear = hear

    def taken(self, run: object, command: Command, facts: list[Fact], events: list[Event]) -> None:
        self._hear(facts)

    def decided(self, run: object, facts: list[Fact], events: list[Event], budget: int) -> None:
        self._hear(facts)


class ExternalLife:
    """A life with random steps.

    :param asks: the RM wants to be asked, and has gangs too.
    :param informed: False: nobody tells the scheduler what other managers do. (The RM and they do the same.)
    :param check_core: look at the core's own invariants too; not where the auditor alone must notice.
    :ivar digest: of everything that came out.
    :ivar over_commits: placements by which a host had more on it than it has.
    :ivar story: what happened, when it is to be told.
    """

    def __init__(
        self,
        seed: int,
        tally: Counter[str] | None = None,
        *,
        informed: bool = True,
        asks: bool = False,
        check_core: bool = True,
    ) -> None:
        self.dice = dice = random.Random(seed)
        self.tally: Counter[str] = tally if tally is not None else Counter()
        self.now_ns = BEGIN_NS
        self.number = 0
        self.over_commits: list[str] = []
        self.story: list[str] | None = None
        self.digest = hashlib.sha256()
        self.topic: dict[bytes, bytes] = {}
        self._chained = seed % 3 == 2
        self._another = partial(small_worlds.shared_world, dice.randrange(small_worlds.SHARED_WORLDS), gangs=asks)
        self.document = self._another(0)
        self.books = Books(self.document)
        self.laws = Laws(self.books, self.tally, alone=not asks)
        self.laws.placed = self._placed
        self.world = World(dice, self._containers)
        self.managers: list[Manager] = [VmManager(self.world, dice, self.tally)]
        self.lender: Lender | None = None
        if dice.random() < 0.4:
            self.managers.append(RackManager(self.world, dice, self.tally))
        if dice.random() < 0.5:
            self.lender = Lender(self.world, dice, self.tally)
            self.managers.append(self.lender)
        if dice.random() < 0.5:
            self.managers.append(LicenceServer(dice, self.tally))
        self._loop = asyncio.new_event_loop()
        self.informers = [self._informer(each) for each in self.managers] if informed else []
        features = {EXTERNAL, *((GANGS, CALLBACKS) if asks else ())}
        self.rm = ResourceManager(dice, random.Random(f"turns {seed}"), self, features, world=self.world)
        self._asked = self.rm.answering
        assert self.rm.hosts is not None
        self._hosts = self.rm.hosts
        self._core_laws: list[Law] = [CallbackLaws(self.tally), Ear(self.rm.hear)] if asks else []
        self._budget = dice.choice(BUDGETS)
        self._check_core = check_core
        self._offset = 0
        self._life = 1
        self._uuids = 0
        self._follower = StateFolder()
        self._history = History(self.tally)
        self._follower.build()
        self._registered = False
        self._machine = self._new_machine()
        self._machine.finish_fold(self.now_ns)

    def _informer(self, manager: Manager) -> Informer | Chain:
        """The real informer in every third life, else one that reports in any order and in pieces."""
        if self._chained:
            return Chain(manager, self.dice, manners(self.dice), self.tally, self._loop)
        return Informer(manager, self.dice, manners(self.dice), self.tally)

    def _containers(self, host_id: str) -> Amounts:
        return self.books.containers(host_id)

    # ---- processes -------------------------------------------------------------------------------------------------

    def _new_machine(self) -> SchedulerMachine:
        names = tuple(each.name for each in self.informers)
        life = f"life-{self._life}"
        gate = SyncGate(life, {wire.RM: tuple(("default", name) for name in names)}) if names else SyncGate()
        self.laws.gate = (life, names)
        for each in self.informers:
            if each.life != life:
                each.begin(life)
        return SchedulerMachine(wire.TOPICS, self._uuid, "", self._budget, gate=gate)

    @property
    def core(self) -> SchedulerCore:
        return self._machine.rms[wire.RM].core

    def _observe(self) -> None:
        """Lets the rules for predicates check each command and each cycle."""
        core, laws = self.core, self._core_laws
        apply, cycle = core.apply, core.cycle

        def observed_apply(command: Command, now_ns: int, out: Outcome | None = None) -> Outcome:
            out = out if out is not None else Outcome()
            for law in laws:
                law.hears(self, command, None)
            facts, events = len(out.facts), len(out.events)
            apply(command, now_ns, out)
            for law in laws:
                law.taken(self, command, out.facts[facts:], out.events[events:])
            return out

        def observed_cycle(now_ns: int, budget: int, out: Outcome | None = None) -> Outcome:
            out = out if out is not None else Outcome()
            for law in laws:
                law.decides(self)
            facts, events = len(out.facts), len(out.events)
            cycle(now_ns, budget, out)
            for law in laws:
                law.decided(self, out.facts[facts:], out.events[events:], budget)
            return out

        if laws:
            core.apply, core.cycle = observed_apply, observed_cycle  # type: ignore[method-assign]
            policy = policy_of(self._machine.rms[wire.RM].info)
            for law in laws:
                law.taken(self, SetCallbacks(policy), [], [])

    def _uuid(self) -> str:
        self._uuids += 1
        return f"uuid-{self._uuids}"

    def _begin(self) -> None:
        """Starts sources and RM, in either order."""
        first = self.dice.random() < 0.5
        if first:
            self._sources()
        self._register()
        self._do(*self._hosts.begin(self.core.partitions["default"]))
        if not first:
            self._sources()

    def _register(self) -> None:
        self._say("  the RM registers")
        self.books.registered(self.document)
        self.laws.registered()
        self._registered = True
        for law in self._core_laws:
            law.registers(self)
        policy = self._asked.manners.policy if self._asked is not None else None
        self._apply([], wire.registration(worlds.text_of(self.document), policy))
        self._observe()

    def _register_anew(self) -> None:
        self.tally["RM: registered anew"] += 1
        report = self.rm.report()
        self._register()
        for command in report:
            self._do(command)
        left = list(self.books.reported)
        must(not left, "answer", f"{left} were reported, and are neither known nor refused")
        if self._asked is not None:
            self._do(self._asked.connect(connected=True))

    def _restart(self, *, another_life: bool) -> None:
        """Replaces the scheduler by a new one, which has only the records."""
        self._say(f"  a restart{', of the informers too' if another_life else ''}")
        self.tally[f"restart: {'of everything' if another_life else 'informers go on'}"] += 1
        self.compare()
        for law in self._core_laws if self._registered else ():
            law.restarts(self)
        if another_life:
            self._life += 1
        machine = self._new_machine()
        for key, value in self._shuffled():
            machine.fold(Record(wire.TOPICS.state, 0, 0, 0, key, value))
        machine.finish_fold(self.now_ns)
        self._machine = machine
        if self._registered:
            for law in self._core_laws:
                law.restarted(self, machine.rms[wire.RM].info)
            self._observe()
        self._settle()

    def _shuffled(self) -> list[tuple[bytes, bytes]]:
        records = list(self.topic.items())
        random.Random(self.number).shuffle(records)
        return records

    # ---- one step --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        dice = self.dice
        self.number += 1
        self.now_ns += dice.choice([0, 1, 1, 5, 20, 31]) * SECOND_NS
        self._say(f"step {self.number}, {self.now_ns / SECOND_NS:g} s:")
        self._settle()
        for manager in self.managers:
            manager.plan()
        self._hear_returned()
        fate = dice.random()
        if fate < 0.015:
            self._register_anew()
        elif fate < 0.03:
            self._reconfigure()
        words = [word for each in self.informers for word in each.words(self.now_ns)]
        commands = self.rm.commands(None)
        first = list(islice(commands, None if self._asked is None else 1))
        if any(isinstance(command, SetCallbacks) for command in first):
            # (What is agreed to as the stream goes is placed at once: before what is said later in the same batch.)
            commands, first = chain(first, commands), []
        if dice.random() < 0.5:
            self._do(*self._mixed(words, first))
        elif dice.random() < 0.7:
            self._do(*words)
            self._do(*first)
        else:
            self._do(*first)
            self._do(*words)  # (too late for what was decided first)
        for command in chain(commands, self.rm.answers()):
            self._do(command)
        self._settle()
        if self.number % REST_EVERY == 0:
            self.laws.check_rest()
        if self.number % COMPARE_EVERY == 0:
            self.compare()
        if fate > 0.97:
            self._restart(another_life=fate > 0.98)

    def _mixed(self, words: list[Command], commands: list[Command]) -> list[Command]:
        queues = [list(words), list(commands)]
        found: list[Command] = []
        while any(queues):
            found.append(self.dice.choice([each for each in queues if each]).pop(0))
        return found

    def _sources(self) -> None:
        self._do(*(word for each in self.informers for word in each.words(self.now_ns)))

    def _hear_returned(self) -> None:
        if self.lender is not None:
            states = self.books.offer_states.items()
            self.lender.hear(
                {offer for (name, offer), state in states if name == self.lender.name and state == "RETURNED"}
            )

    def _reconfigure(self) -> None:
        self._say("  another configuration")
        self.document = self._another(self.dice.randrange(small_worlds.VARIANTS))
        self.books.configure(self.document)
        self._apply([], wire.configuration(worlds.text_of(self.document)))

    def _do(self, *commands: Command) -> None:
        if not commands:
            return
        for command in commands:
            self._say(f"  {command}")
            self.laws.taken(command)
        self._apply([wire.value_of(command, self._offset + 1) for command in commands])

    def _apply(self, values: list[bytes], *more: bytes) -> None:
        records = []
        for value in (*values, *more):
            records.append(wire.record(self._offset, value))
            self._offset += 1
        self._heard(self._machine.apply(records, self.now_ns))
        self._settle()

    def _settle(self) -> None:
        for _ in range(TICKS_MAX):
            due_ns = self._machine.next_deadline_ns()
            if due_ns is None or due_ns > self.now_ns:
                return
            self._heard(self._machine.tick(self.now_ns))
        must(False, "rest", "the machine does not come to rest")

    def _heard(self, outputs: list[OutRecord]) -> None:
        for output in outputs:
            self.digest.update(wire.canonical(output))
            if output.topic == wire.TOPICS.events:
                self._history.take_record(output)
            if output.topic != wire.TOPICS.state:
                continue
            assert output.key is not None
            if output.value is None:
                self.topic.pop(output.key, None)
            else:
                self.topic[output.key] = output.value
            self._follower.fold(Record(wire.TOPICS.state, 0, 0, 0, output.key, output.value))
        self.laws.now_ns = self.now_ns
        self.laws.heard(outputs)
        if outputs and wire.RM in self._follower.rms:
            followed = self._follower.rms[wire.RM]
            self._history.compare_events(followed.core)
            counted = followed.info.tally
            runs = sum(each.running for each in followed.core.partitions.values())
            must(counted.allocated + counted.reported - counted.ended == runs, "history", f"{runs} run: {counted}")
        if self._check_core:
            for state in self._machine.rms.values():
                invariants.check(state.core, exhausted=state.core.exhausted)

    def _placed(self, held: Held) -> None:
        """Checks a new container against the real host."""
        host = self.world.hosts.get(held.node_id)
        if host is None or not host.managed:
            return
        room = self.world.room(held.node_id)
        wants = {name: 0 for name in held.quantities if name in host.physical}
        if all(room.get(name, 0) >= 0 for name in wants):
            return
        self.over_commits.append(f"{held}: {room} is really free")
        if self.informers:
            told = all(self._is_told(each.manager, held.node_id) for each in self.informers)
            must(not told, "over-commit", f"{held}: {room} is really free, and the scheduler had been told")
            self.tally["over-commit: not told in time"] += 1

    def _is_told(self, manager: Manager, host_id: str) -> bool:
        """Whether the scheduler has every report of a manager about a host."""
        source = self.books.sources.get(manager.name)
        if source is None or source.state is not SourceState.LIVE:
            return False
        about = {key: what for key, what in manager.objects.items() if getattr(what, "node_id", None) == host_id}
        said = {
            key: (each.what, each.stale)
            for key, each in source.objects.items()
            if getattr(each.what, "node_id", None) == host_id
        }
        return said == {key: (what, False) for key, what in about.items()}

    # ---- the records -----------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Fails unless the fold, the follower and the machine have the same state."""
        folder = StateFolder()
        for key, value in self._shuffled():
            folder.fold(Record(wire.TOPICS.state, 0, 0, 0, key, value))
        folder.build()
        asked = self._registered and any(each.questions.open for each in self.core.partitions.values())
        for name, each in (("fold", folder), ("follow", self._follower)):
            left = in_flight(self.core, wire.RM) if self._asked is not None and self._registered else set()
            found = {key: value for key, value in _published(each).items() if key not in left}
            records = ((key, as_folded(key, value)) for key, value in self.topic.items())
            topic = {key: value for key, value in records if not _is_of_rm(key) and key not in left}
            must(found == topic, name, difference(found, topic))
            if wire.RM in each.rms and not asked:
                core, live = each.rms[wire.RM].core, self.core
                must(sums(core) == sums(live), name, difference(sums(core), sums(live)))

    def live(self, steps: int) -> None:
        """Runs that many steps and the end. Raises AuditFailure, or the core's error."""
        try:
            self._begin()
            for _ in range(steps):
                self.step()
            self.end()
        finally:
            for each in self.informers:
                each.close()
            self._loop.close()

    def end(self) -> None:
        """Reports everything, confirms all releases, then ends everything."""
        asked = self._asked
        self.rm.patient = True
        if asked is not None:
            self._do(asked.connect(connected=True))
        for number in range(6):
            self.number += 1
            self.now_ns += 31 * SECOND_NS
            self._say(f"end {number}:")
            self._settle()
            self._hear_returned()
            self._do(*(word for each in self.informers for word in each.everything(self.now_ns)))
            self._do(*self.rm.confirmations())
            for answers in self.rm.answers():
                self._do(answers)
        self._check_told()
        self.laws.check_offers_are_back()
        self.laws.check_rest()
        self._do(*self.rm.wind_up())
        self.now_ns += 100 * SECOND_NS
        self._settle()
        self._do(*self.rm.wind_up())
        self._settle()
        self.compare()
        self.laws.check_end()

    def _check_told(self) -> None:
        """Fails unless the scheduler has every object of the managers unchanged."""
        for each in self.informers:
            source = self.books.sources[each.name]
            must(source.state is SourceState.LIVE, "told", f"{each.name} is {source.state}")
            said = {key: (said.what, said.stale) for key, said in source.objects.items() if not said.withdrawn}
            is_so = {key: (what, False) for key, what in each.manager.objects.items()}
            must(said == is_so, "told", f"{each.name}: {difference(said, is_so)}")

    def _say(self, line: str) -> None:
        if self.story is not None:
            self.story.append(line[:TOLD_MAX])


def _is_of_rm(key: bytes) -> bool:
    return key.split(b"/")[1] in (b"rm", b"reg")


def _published(folder: StateFolder) -> dict[bytes, bytes]:
    found = published(folder.rms[wire.RM].core) if wire.RM in folder.rms else {}
    for source in folder.books_of(wire.RM).all_sources():
        for each in (source, *source.entries.values()):
            found[state_codec.key_of(wire.RM, source.partition, each)] = state_codec.encode(source.partition, each)
    return found
