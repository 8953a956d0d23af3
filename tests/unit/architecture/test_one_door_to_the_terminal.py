"""Commands print through muster_runtime/terminal.py only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("apps/cli/src/muster_cli", "libs/client/src/muster_client", "libs/replay/src/muster_replay")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
# Modules may use rich's layouts, which Screen prints. Its consoles and markup are for terminal.py only.
RICH = {"rich.console": {"Group", "RenderableType"}, "rich.markup": set(), "rich": set()}


def bypasses(source: str) -> list[str]:
    """The places that print without terminal.py."""
    found = []
    for each in ast.walk(ast.parse(source)):
        match each:
            case ast.Call(func=ast.Name("print")):
                found.append(f"{each.lineno}: print")
            case ast.Attribute(ast.Name("sys"), "stdout" | "stderr" | "__stdout__" | "__stderr__" as name):
                found.append(f"{each.lineno}: sys.{name}")
            case ast.Attribute(_, "from_markup" | "print_exception" | "print_json" | "from_ansi" as name):
                found.append(f"{each.lineno}: {name}")
            case ast.ImportFrom(module="sys", names=names) if {"stdout", "stderr"} & {name.name for name in names}:
                found.append(f"{each.lineno}: from sys")
            case ast.ImportFrom(module=str(module), names=names) if module in RICH:
                found += [f"{each.lineno}: {module}.{name.name}" for name in names if name.name not in RICH[module]]
            case ast.Import(names=names) if any(name.name.partition(".")[0] == "rich" for name in names):
                found.append(f"{each.lineno}: import rich")
            case ast.Call(func=ast.Attribute(ast.Name("os"), "write")):
                found.append(f"{each.lineno}: os.write")
    return found


def test_no_module_prints_past_the_door() -> None:
    assert MODULES
    assert [(path.name, found) for path in MODULES if (found := bypasses(path.read_text(encoding="utf-8")))] == []


@pytest.mark.parametrize(
    "source",
    [
        "print(1)",
        "import sys\nsys.stdout.write('x')",
        "print(1, file=sys.stderr)",
        "from sys import stderr",
        "from rich.console import Console",
        "from rich.markup import escape",
        "from rich import print",
        "import rich.console",
        "Text.from_markup('x')",
        "import os\nos.write(1, b'x')",
    ],
)
def test_it_notices(source: str) -> None:
    assert bypasses(source)
