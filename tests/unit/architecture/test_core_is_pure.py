"""The core gets time, order and ids as arguments. import-linter forbids modules by name. This test allows a list of
modules only, and finds calls that read the outside world without an import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = Path(__file__).parents[3] / "libs/core/src/muster_core"

ALLOWED = frozenset(
    {
        "__future__",
        "abc",
        "array",
        "bisect",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "decimal",
        "enum",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "json",
        "math",
        "muster_si",
        "numpy",
        "operator",
        "re",
        "re2",
        "sortedcontainers",
        "string",
        "struct",
        "types",
        "typing",
        "unicodedata",
        "weakref",
    }
)
IMPURE_CALLS = frozenset({"open", "print", "input", "eval", "exec", "__import__", "hash"})


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""


def impurities(source: str) -> list[str]:
    """Return the impure imports and calls of a module, as "line: what"."""
    tree = ast.parse(source)
    found = [
        f"{line}: imports {name}"
        for line, name in _imports(tree)
        if name.partition(".")[0] not in ALLOWED and not name.startswith("muster_core")
    ]
    found += [
        f"{node.lineno}: calls {node.func.id}()"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    ]
    return found


def test_every_module_of_the_core_is_pure() -> None:
    modules = sorted(CORE.rglob("*.py"))
    assert modules
    found = {str(path.relative_to(CORE)): impurities(path.read_text()) for path in modules}
    assert not {path: what for path, what in found.items() if what}


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from datetime import datetime",
        "import os.path",
        "from random import random",
        "import muster_bus.clock",
        "print('x')",
        "key = hash(name)",  # the hash of a text differs between runs
    ],
)
def test_the_check_sees_impurity(line: str) -> None:
    assert impurities(line)


def test_the_check_lets_the_pure_parts_through() -> None:
    assert not impurities("from sortedcontainers import SortedDict\nfrom .states import X\nimport heapq\n")
