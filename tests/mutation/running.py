"""Runs tests on mutants: a pytest plugin, which collects once and then plays tests in forks of the session.

First all tests run without a mutant, and are noted with the functions that they run. Then each mutant is put in place
in a fork, and the tests that run its function are played until one fails.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import Phase, settings
from mutation.applying import NotApplicable, applied, function_of
from mutation.forks import cpu_limit, in_forks
from mutation.mutants import Mutant
from mutation.outcome import Fate, Told

# Tests that need what is not here; and those that look at the source's text, which a mutant leaves as it was.
LEFT_OUT_MARKS = {"kafka", "redis", "postgres", "docker", "kubernetes"}
# A test may use so many times the processor time that it took without a mutant, and some more.
TIMES = 10.0
# So many tests are noted by one process.
PART = 150
_OWN = Path(__file__).parent

Function = tuple[str, str, int]


@dataclass(slots=True)
class Noted:
    """A test without a mutant: its processor time, and the functions that it ran."""

    item: pytest.Item
    cpu_s: float
    functions: list[int]


@dataclass(slots=True, eq=False)  # (pytest has its plugins in sets.)
class MutationRun:
    """The plugin.

    :param mutants: in the order in which they are tried.
    :param until_s: on ``time.monotonic``: none is begun after it.
    :param tests_s: processor time of tests for one mutant, as they took without one.
    :param limit_s: what a test may use more than ten times its processor time without a mutant.
    :ivar told: what became of each mutant; ``broken``: tests that failed without one.
    """

    mutants: Sequence[Mutant]
    until_s: float
    jobs: int = 2
    tests_s: float = 20.0
    limit_s: float = 5.0
    say: Callable[[str], None] = print
    told: list[Told] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    _failed: str = ""

    # ---- what pytest calls -------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        # The same examples each time, and a failure is enough.
        settings.register_profile(
            "mutation",
            parent=settings.get_profile("muster"),
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
        )
        settings.load_profile("mutation")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [
            each
            for each in items
            if not LEFT_OUT_MARKS & {mark.name for mark in each.iter_markers()} and each.path.parent != _OWN
        ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            self.broken.append("collection")
            return True
        noted = self._note(session.items)
        if not self.broken:
            self._try(noted)
        return True

    # ---- without a mutant --------------------------------------------------------------------------------------

    def _note(self, items: Sequence[pytest.Item]) -> list[Noted]:
        """Plays all tests, and notes what each runs. Those that fail are in ``broken``."""
        begun = time.monotonic()
        codes: dict[CodeType, int] = {}
        functions = list(dict.fromkeys(_function(each) for each in self.mutants))
        one_of = {_function(each): each for each in self.mutants}
        for number, name in enumerate(functions):
            with suppress(NotApplicable):
                codes[function_of(one_of[name]).__code__] = number
        # (Neighbours, whose fixtures are made once; in parts, so that no process is left alone at the end.)
        order = sorted(range(len(items)), key=lambda number: (str(items[number].path), number))
        parts = [order[at : at + PART] for at in range(0, len(order), PART)]
        noted: list[Noted] = []
        pieces = [lambda _, part=part: self._noted_part(items, part, codes) for part in parts]
        for at, given, how in in_forks(pieces, self.jobs):
            if given is None:
                self.broken.append(f"the process of {items[parts[at][0]].nodeid} {how}")
                continue
            for number, cpu_s, failed, ran in given:
                if failed:
                    self.broken.append(failed)
                else:
                    noted.append(Noted(items[number], cpu_s, ran))
        spent_s = sum(each.cpu_s for each in noted)
        self.say(
            f"{len(noted)} tests without a mutant: {spent_s:.0f} s of processors in {time.monotonic() - begun:.0f} s"
        )
        return noted

    def _noted_part(
        self, items: Sequence[pytest.Item], part: Sequence[int], codes: dict[CodeType, int]
    ) -> list[tuple[int, float, str, list[int]]]:
        ran: set[CodeType] = set()
        add = ran.add

        def called(frame: FrameType, event: str, arg: Any) -> None:
            add(frame.f_code)

        found = []
        for at, number in enumerate(part):
            ran.clear()
            self._failed, begun = "", time.process_time()
            threading.settrace(called)
            sys.settrace(called)
            _play(items[number], items[part[at + 1]] if at + 1 < len(part) else None)
            sys.settrace(None)
            spent_s = time.process_time() - begun
            found.append((number, spent_s, self._failed, sorted(codes[each] for each in ran if each in codes)))
        return found

    # ---- with mutants ------------------------------------------------------------------------------------------

    def _try(self, noted: Sequence[Noted]) -> None:
        functions = {each: number for number, each in enumerate(dict.fromkeys(_function(one) for one in self.mutants))}
        running: dict[int, list[Noted]] = defaultdict(list)
        for each in noted:
            for number in each.functions:
                running[number].append(each)
        killers: dict[int, dict[str, Noted]] = defaultdict(dict)
        by_id = {each.item.nodeid: each for each in noted}
        plans: dict[int, list[Noted]] = {}

        def pieces() -> Iterator[Callable[[Path], Any]]:
            for number, mutant in enumerate(self.mutants):
                if time.monotonic() > self.until_s:
                    return
                of = functions[_function(mutant)]
                first = list(killers[of].values())[::-1]
                plans[number] = plan(running[of], first, self.tests_s)
                yield lambda folder, mutant=mutant, tests=plans[number]: self._tried(mutant, tests, folder)

        done: set[int] = set()
        for number, given, how in in_forks(pieces(), self.jobs):
            mutant, done = self.mutants[number], done | {number}
            if given is None:
                told = Told(mutant, Fate.TIMED_OUT, how)
            else:
                fate, by, tests, cpu_s = given
                told = Told(mutant, Fate(fate), by, tests, cpu_s)
                if told.fate is Fate.KILLED and by in by_id:
                    of = functions[_function(mutant)]
                    killers[of].pop(by, None)
                    killers[of][by] = by_id[by]
            self.told.append(told)
            if len(done) % 50 == 0:
                self.say(f"{len(done)} of {len(self.mutants)} mutants")
        self.told += [Told(each, Fate.NOT_REACHED) for n, each in enumerate(self.mutants) if n not in done]

    def _tried(self, mutant: Mutant, tests: Sequence[Noted], folder: Path) -> tuple[str, str, int, float]:
        begun = time.process_time()
        if not tests:
            try:
                with applied(mutant):
                    return Fate.UNTESTED.value, "", 0, 0.0
            except NotApplicable as error:
                return Fate.VOID.value, str(error), 0, 0.0
        try:
            with applied(mutant):
                for at, test in enumerate(tests):
                    self._failed = ""
                    cpu_limit(self.limit_s + TIMES * test.cpu_s)
                    _play(test.item, tests[at + 1].item if at + 1 < len(tests) else None)
                    if self._failed:
                        return Fate.KILLED.value, self._failed, at + 1, time.process_time() - begun
        except NotApplicable as error:
            return Fate.VOID.value, str(error), 0, 0.0
        except BaseException as error:  # (A mutant that ends the session is noticed, too.)
            return Fate.KILLED.value, type(error).__name__, 0, time.process_time() - begun
        finally:
            cpu_limit(0)
        return Fate.SURVIVED.value, "", len(tests), time.process_time() - begun


def plan(tests: Iterable[Noted], first: Sequence[Noted], tests_s: float) -> list[Noted]:
    """The tests for one mutant: those that noticed others of its function first, then from each file the shortest, from
    each the second, and so on, as long as there is time.
    """
    files: dict[Path, list[Noted]] = defaultdict(list)
    known = {id(each) for each in first}
    for each in sorted(tests, key=lambda one: one.cpu_s):
        if id(each) not in known:
            files[each.item.path].append(each)
    in_turn = [each for row in zip_longest(*files.values()) for each in row if each is not None]
    found: list[Noted] = []
    left_s = tests_s
    for each in [*first, *in_turn]:
        if each.cpu_s <= left_s or not found:
            found.append(each)
            left_s -= each.cpu_s
    return found


def _function(mutant: Mutant) -> Function:
    return mutant.module, mutant.function, mutant.first_line


def _play(item: pytest.Item, following: pytest.Item | None) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
