"""Reads the plan of names: `modules.txt`, `classes.txt` and `functions.txt` beside this file.

# PACKAGE                    what follows is of this package
old > new                    a module or folder (a path below the package; a new name without "/" stays in its folder)
module: Old>New Old2>New2    classes of the module
Class: old>new               methods of the class, by its old name; module(): functions of the module
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent


def _lines(name: str) -> Iterator[tuple[str, str]]:
    package = ""
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            package = line[2:].strip()
        elif line.strip():
            yield package, line.strip()


def modules() -> Iterator[tuple[str, str, str]]:
    """Package, old path, new path; both below the package, without a suffix."""
    for package, line in _lines("modules.txt"):
        old, new = (part.strip() for part in line.split(">"))
        folder = old.rpartition("/")[0]
        yield package, old, new if "/" in new or not folder else f"{folder}/{new}"


def names(file: str) -> Iterator[tuple[str, str, str, str]]:
    """Package, owner, old name, new name."""
    for package, line in _lines(file):
        owner, _, pairs = line.partition(": ")
        for pair in pairs.split():
            old, new = pair.split(">")
            yield package, owner, old, new
