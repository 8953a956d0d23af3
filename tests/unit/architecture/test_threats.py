"""docs/security-….md as a threat model: each attack has a test of its own, and each test that it names is there."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs").glob("security*.md"))
# A file of tests in backticks, with or without a test in it.
NAMED = re.compile(r"`((?:[\w./-]+/)?test_\w+\.py)(?:::(\w+))?`")


@lru_cache
def functions_of(file: Path) -> frozenset[str]:
    """The names of a file's functions and methods."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(each.name for each in ast.walk(tree) if isinstance(each, functions))


def missing(text: str) -> list[str]:
    """What a text names and is not there."""
    found = []
    for file, name in NAMED.findall(text):
        path = ROOT / file
        if not path.is_file() or (name and name not in functions_of(path)):
            found.append(f"{file}::{name}" if name else file)
    return found


def without_a_test(text: str) -> list[str]:
    """The rows of tables with a column "test" that name no test."""
    found, column = [], None
    for line in text.splitlines():
        if not line.startswith("|"):
            column = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if "test" in cells:
            column = cells.index("test")
        elif column is not None and set(cells) != {"---"} and not any(name for _, name in NAMED.findall(cells[column])):
            found.append(line)
    return found


def test_each_test_that_the_threat_model_names_is_there() -> None:
    for page in PAGES:
        assert missing(page.read_text(encoding="utf-8")) == [], page.name


def test_each_attack_has_a_test() -> None:
    text = "\n\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(NAMED.findall(text)) > 80
    assert without_a_test(text) == []


@pytest.mark.parametrize("name", ["tests/nowhere/test_x.py", "tests/unit/architecture/test_threats.py::test_nothing"])
def test_a_test_that_is_not_there_is_noticed(name: str) -> None:
    assert missing(f"| a | `{name}` |") == [name]


def test_an_attack_without_a_test_is_noticed() -> None:
    table = "| attack | test |\n|---|---|\n| a | `tests/unit/architecture/test_threats.py` |\n"
    assert without_a_test(table) == ["| a | `tests/unit/architecture/test_threats.py` |"]
