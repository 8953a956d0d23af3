"""What became of mutants, as text and as JSON."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from mutation.mutants import Mutant, path_of


class Fate(StrEnum):
    """KILLED: a test failed. TIMED_OUT: one used many times its processor time, or memory without end, which counts as
    killed. SURVIVED: all tests passed that run the function. UNTESTED: none runs it, which counts as survived. VOID: no
    mutant, Python compiles it to the same or not at all. NOT_REACHED: the time was over."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    UNTESTED = "untested"
    VOID = "void"
    NOT_REACHED = "not reached"


NOTICED = (Fate.KILLED, Fate.TIMED_OUT)
LEFT = (Fate.SURVIVED, Fate.UNTESTED)


@dataclass(frozen=True, slots=True)
class Told:
    """One mutant's fate. ``by``: the test that failed, or what stopped it; ``tests``: how many ran; ``cpu_s``: their
    processor time."""

    mutant: Mutant
    fate: Fate
    by: str = ""
    tests: int = 0
    cpu_s: float = 0.0


def rates(told: Sequence[Told]) -> dict[str, tuple[int, int]]:
    """By package: how many were noticed, of how many that were tried."""
    found: dict[str, tuple[int, int]] = {}
    for each in sorted(told, key=lambda one: one.mutant.module):
        if each.fate in NOTICED + LEFT:
            package = ".".join(each.mutant.module.split(".")[:2])
            noticed, tried = found.get(package, (0, 0))
            found[package] = (noticed + (each.fate in NOTICED), tried + 1)
    return found


def as_text(told: Sequence[Told]) -> str:
    """Survivors by file, then rates and counts."""
    lines: list[str] = []
    by_file: dict[str, list[Told]] = defaultdict(list)
    for each in told:
        if each.fate in LEFT:
            by_file[path_of(each.mutant.module)].append(each)
    if by_file:
        lines.append("survivors:")
    for file in sorted(by_file):
        for each in sorted(by_file[file], key=lambda one: one.mutant.line):
            tests = f"{each.tests} tests" if each.tests else "no test runs it"
            lines.append(f"  {each.mutant} ({tests})")
    found = rates(told)
    width = max((len(package) for package in found), default=0)
    lines += [
        f"{package:{width}}  {noticed:4} of {tried:4}  {noticed / tried:4.0%}"
        for package, (noticed, tried) in found.items()
    ]
    counts = Counter(each.fate for each in told)
    lines.append(", ".join(f"{counts[fate]} {fate.value}" for fate in Fate if counts[fate]) or "no mutants")
    return "\n".join(lines)


def as_json(told: Sequence[Told], **drawn: Any) -> str:
    """All of it; ``drawn``: how the mutants were chosen."""
    counts = Counter(each.fate.value for each in told)
    mutants = [
        {
            "file": path_of(each.mutant.module),
            "line": each.mutant.line,
            "module": each.mutant.module,
            "function": each.mutant.function,
            "operator": each.mutant.operator,
            "before": each.mutant.before,
            "after": each.mutant.after,
            "fate": each.fate.value,
            "by": each.by,
            "tests": each.tests,
            "cpu_s": round(each.cpu_s, 2),
        }
        for each in told
    ]
    return json.dumps({"drawn": drawn, "counts": counts, "mutants": mutants}, indent=1, ensure_ascii=False) + "\n"


def write(path: Path, told: Sequence[Told], **drawn: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(told, **drawn))
