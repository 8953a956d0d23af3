"""Makes a failing life short: steps, commands and items are left out as long as it still fails in the same way."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

from simulation.books import AuditFailure, Document
from simulation.run import EVERYTHING, Step


def what_failed(error: BaseException) -> str:
    """What two failures have in common that are one defect: the auditor's check, or where it was raised."""
    if isinstance(error, AuditFailure):
        return error.check
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {frames[-1].name}" if frames else type(error).__name__


Play = Callable[[Document, Sequence[Step]], tuple[object, Exception | None]]


def shrunken(
    document: Document,
    steps: Sequence[Step],
    error: BaseException,
    seconds: float,
    play: Play,
) -> tuple[list[Step], BaseException]:
    """The shortest form found within some seconds, and how that fails.

    :param play: plays steps again, and says what went wrong.
    """
    wanted, until = what_failed(error), time.monotonic() + seconds
    best: list[Step] = list(steps)
    found = error

    def still_fails(tried: list[Step]) -> bool:
        nonlocal best, found
        if time.monotonic() > until:
            return False
        _, failure = play(document, tried)
        if failure is None or what_failed(failure) != wanted:
            return False
        best, found = tried, failure
        return True

    if not still_fails(best):  # not made by these steps alone: tell them as they are
        return best, error
    _halve(len(best), lambda place, size: still_fails(_without_steps(best, place, size)), lambda: len(best))
    for number, step in enumerate(best):
        if step.restart:
            still_fails([*best[:number], replace(step, restart=False), *best[number + 1 :]])
        if step.budget < EVERYTHING:
            still_fails([*best[:number], replace(best[number], budget=EVERYTHING), *best[number + 1 :]])
    _halve(
        len(_atoms(best)),
        lambda place, size: still_fails(_without_atoms(best, _atoms(best)[place : place + size])),
        lambda: len(_atoms(best)),
    )
    _halve(1, lambda place, size: still_fails(_without_steps(best, place, size)), lambda: len(best))
    return best, found


def _halve(size: int, leave_out: Callable[[int, int], bool], length: Callable[[], int]) -> None:
    """Tries to leave out everything, half of it, a quarter … one."""
    while size:
        place = 0
        while place < length():
            if not leave_out(place, size):
                place += size
        size //= 2


def _without_steps(steps: list[Step], place: int, size: int) -> list[Step]:
    """What is left out must not take its time with it: the next step comes so much later."""
    gone, rest = steps[place : place + size], steps[place + size :]
    if rest:
        rest = [replace(rest[0], advance_ns=rest[0].advance_ns + sum(step.advance_ns for step in gone)), *rest[1:]]
    return [*steps[:place], *rest]


# The items of commands that can do without some of them.
_ITEMS = ("asks", "releases", "nodes", "new", "remove")
_Atom = tuple[int, int, str, int]


def _atoms(steps: list[Step]) -> list[_Atom]:
    """(step, command, field, item) of each item; a command without items is one itself."""
    found: list[_Atom] = []
    for number, step in enumerate(steps):
        for place, (command, _) in enumerate(step.commands):
            items = [(name, spot) for name in _ITEMS for spot in range(len(getattr(command, name, ())))]
            found += [(number, place, name, spot) for name, spot in items] or [(number, place, "", 0)]
    return found


def _without_atoms(steps: list[Step], atoms: list[_Atom]) -> list[Step]:
    gone = set(atoms)
    found: list[Step] = []
    for number, step in enumerate(steps):
        commands = []
        for place, (command, offered) in enumerate(step.commands):
            if (number, place, "", 0) in gone:
                continue
            kept = {
                name: tuple(item for spot, item in enumerate(items) if (number, place, name, spot) not in gone)
                for name in _ITEMS
                if (items := getattr(command, name, ()))
            }
            if kept and not any(kept.values()):
                continue
            commands.append((replace(command, **kept) if kept else command, offered))
        found.append(replace(step, commands=commands))
    return found
