"""One life of a cluster: a run whose steps the dice make; or the steps of one, played again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from muster_state.state_folder import RmInfo
from simulation import small_worlds, worlds
from simulation.auditor import Auditor
from simulation.books import SECOND_NS, Document
from simulation.callbacks_laws import Laws
from simulation.callbacks_turns import Wire
from simulation.common_laws import Common, History, Pace, Told
from simulation.gangs_auditor import Auditor as GangAuditor
from simulation.manager import CALLBACKS, GANGS, ResourceManager
from simulation.records import RM
from simulation.run import EVERYTHING, Law, Run, Step

ENDS_EVERY, ENDS_IN = 32, 22


@dataclass(frozen=True)
class Habits:
    """The chances that the next step is at a deadline, that the RM registers anew, and that the core restarts."""

    to_deadline: float
    registers: float
    restarts: float
    budgets: Sequence[int]


_HABITS = {
    "": Habits(0.2, 0, 0.03, (1, 3, *(EVERYTHING,) * 5)),
    GANGS: Habits(0.15, 0.003, 0.008, (1, 3, *(EVERYTHING,) * 6)),
    CALLBACKS: Habits(0.2, 0.004, 0.016, (1, 3, *(EVERYTHING,) * 6)),
}


def run_of(
    document: Document,
    features: Collection[str] = (),
    tally: Counter[str] | None = None,
    *,
    check_core: bool = True,
    often: bool = False,
    more: Iterable[Law] = (),
) -> Run:
    """A run with every law that such lives have.

    :param check_core: look at the core's own invariants too; not where the auditor alone must notice.
    :param often: look at everything after each step.
    """
    tally = tally if tally is not None else Counter()
    law: Law
    pace, history = Pace(), History(tally)
    if CALLBACKS in features:
        law = Laws(tally, Wire(RmInfo(RM), tally))
    elif GANGS in features:
        law = GangAuditor(document, tally)
        law.often = often
        if not often:
            pace, history.every = Pace(records=0, rest=6, invariants=40), 6
    else:
        law = Auditor(document, tally)
    run = Run(document, [Told(), law, history, Common(pace, check_core=check_core), *more], tally)
    run.register()
    return run


class Life:
    """A run with random steps.

    :param features: what is switched on in it.
    :param policy: of the nodes, to begin with; else any.
    :ivar run: the run; ``document``: the configuration that it began with; ``digest``: of everything that came out.
    :ivar story: what happened, when it is to be told.
    """

    def __init__(
        self,
        seed: int,
        features: Collection[str] = (),
        tally: Counter[str] | None = None,
        *,
        policy: str = "",
        check_core: bool = True,
        more: Iterable[Law] = (),
    ) -> None:
        self.dice = dice = random.Random(seed)
        self._habits = _HABITS[CALLBACKS if CALLBACKS in features else GANGS if GANGS in features else ""]
        # (With an RM that is asked two in three are small worlds, in which gangs, limits and preemption meet often.)
        small = seed % 3 != 2 if CALLBACKS in features else GANGS in features
        number = seed % small_worlds.WORLDS if small else None
        document = worlds.world(dice, policy)
        if number is not None:
            document = small_worlds.world(number, dice.randrange(small_worlds.VARIANTS))
        elif features:
            document = worlds.with_one_partition(document)
        self.document = document
        self.run = run_of(document, features, tally, check_core=check_core, more=more)
        turning = random.Random(f"turns {seed}")
        another = partial(self._another, number, one_partition=bool(features))
        # (Few lives have an operator who ends applications: the others stay as they were before.)
        ends = random.Random(f"ends {seed}") if seed % ENDS_EVERY == ENDS_IN else None
        lasting = random.Random(f"lasting {seed}") if not features else None
        self._rm = ResourceManager(dice, turning, self.run, features, another=another, ends=ends, lasting=lasting)
        self.run.listen = self._rm.hear
        self.digest = self.run.digest
        self.story: list[str] | None = None

    @property
    def number(self) -> int:
        return len(self.run.steps)

    def _another(self, number: int | None, *, one_partition: bool) -> Document:
        if number is not None:
            return small_worlds.world(number, self.dice.randrange(small_worlds.VARIANTS))
        while True:
            document = worlds.another(self.dice, self.run.document)
            if one_partition:
                document = worlds.with_one_partition(document)
            if worlds.read(worlds.text_of(document)) is not None:
                return document

    def step(self) -> None:
        dice, run, rm, habits = self.dice, self.run, self._rm, self._habits
        advance_ns = rm.advance_ns()
        due_ns = run.core.next_deadline_ns()
        if due_ns is not None and dice.random() < habits.to_deadline:
            advance_ns = min(max(due_ns - run.now_ns - dice.choice([0, 0, 1]), 0), 600 * SECOND_NS)
        budget, fate = dice.choice(habits.budgets), dice.random()
        registers, restart = fate < habits.registers, 0 <= fate - habits.registers < habits.restarts
        # (What it reports, it knows before anything is forgotten.)
        commands = chain(rm.commands(rm.report() if registers else None), rm.answers())
        run.execute(
            advance_ns, ((command, rm.offered) for command in commands), budget, restart=restart, registers=registers
        )

    def live(self, steps: int) -> None:
        """Runs that many steps and the end. Raises AuditFailure, or the core's error."""
        self.run.story = self.story
        for _ in range(steps):
            self.step()
        run = self.run
        for advance_ns, commands in self._rm.ending():
            if advance_ns is None:
                due_ns = run.core.next_deadline_ns()
                advance_ns = min(max(due_ns - run.now_ns, SECOND_NS), 900 * SECOND_NS) if due_ns is not None else 0
            run.execute(advance_ns, ((command, None) for command in commands), EVERYTHING)
        run.over()


def play(
    document: Document, steps: Sequence[Step], features: Collection[str] = (), *, often: bool = True
) -> tuple[Run, Exception | None]:
    """Repeats steps. Returns the run, and the error if there was one."""
    run = run_of(document, features, often=often)
    try:
        for step in steps:
            run.execute(step.advance_ns, step.commands, step.budget, restart=step.restart, registers=step.registers)
    except Exception as error:
        return run, error
    return run, None
