"""Renames classes, functions and methods as `classes.txt` and `functions.txt` say, by types (pyright).

    PYRIGHT=… .venv/bin/python scripts/vocabulary/rename_symbols.py classes|functions [PACKAGE...] [--list]

All places are found first, in the tree as it is; then all are written. What the plan names and the tree lacks is
listed. In docstrings and pages, names in backticks follow where the old name was the only one of its kind.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import plan
from language_server import LanguageServer
from mend_functions import rename_name
from rename_modules import ROOT, dotted, folder_of, tracked


class Symbol(NamedTuple):
    """A definition to rename. Line and column begin with 0."""

    package: str
    owner: str
    old: str
    new: str
    file: Path
    line: int
    column: int


@cache
def new_path(package: str, module: str) -> str:
    """A module as the plan names it, under its present name."""
    known = {old: new for of, old, new in plan.modules() if of == package}
    if module in known:
        return known[module]
    return next((new for old, new in known.items() if old.endswith(f"/{module}")), module)


@cache
def modules_of(package: str) -> dict[Path, ast.Module]:
    root = folder_of(package)
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(root.rglob("*.py"))}


def place_of_name(file: Path, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    line = file.read_text(encoding="utf-8").split("\n")[node.lineno - 1]
    match = re.compile(rf"(?:class|def)\s+({re.escape(node.name)})\b").search(line, 0)
    assert match is not None, (file, node.lineno, node.name)
    return node.lineno - 1, match.start(1)


def symbols(file_name: str, wanted: set[str]) -> Iterator[Symbol]:
    classes = {(package, old): new for package, _, old, new in plan.names("classes.txt")}
    for package, owner, old, new in plan.names(file_name):
        if wanted and package not in wanted:
            continue
        found = modules_of(package)
        is_module = file_name == "classes.txt" or owner.endswith("()")
        if is_module:
            module = owner.removesuffix("()")
            names = {module, new_path(package, module)}
            bodies = [
                (file, tree.body)
                for file, tree in found.items()
                if any(
                    name in {file.stem, file.relative_to(folder_of(package)).with_suffix("").as_posix()}
                    for name in names
                )
                or (file.name == "__init__.py" and file.parent.name in names)
            ]
        else:
            names = {owner, classes.get((package, owner), owner)}
            bodies = [
                (file, node.body)
                for file, tree in found.items()
                for node in ast.walk(tree)
                if isinstance(node, ast.ClassDef) and node.name in names
            ]
        places = [
            Symbol(package, owner, old, new, file, *place_of_name(file, node))
            for file, body in bodies
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == old
        ]
        if not places:
            print(f"{package}: {owner}: no {old} (> {new})")
        yield from places[:1] if file_name == "classes.txt" else places


def main(arguments: list[str]) -> int:
    kind, *rest = arguments
    wanted = {each for each in rest if not each.startswith("-")}
    found = list(symbols(f"{kind}.txt", wanted))
    print(f"{len(found)} names")
    if "--list" in rest:
        return 0
    edits: dict[Path, dict[tuple[int, int, int, int], str]] = {}
    server = LanguageServer(ROOT)
    begun = time.monotonic()
    for count, symbol in enumerate(found, 1):
        changes = server.rename(symbol.file, symbol.line, symbol.column, symbol.new)
        if not changes:
            print(f"not renamed: {symbol.package} {symbol.owner} {symbol.old}")
        for path, each in changes.items():
            if ".venv" in path.parts:
                continue
            of_file = edits.setdefault(path, {})
            for *where, text in each:
                key = (where[0], where[1], where[2], where[3])
                if of_file.setdefault(key, text) != text:
                    print(f"{path.relative_to(ROOT)}:{where[0] + 1}: {of_file[key]} or {text}")
        if not count % 20:
            print(f"{count} of {len(found)}, {time.monotonic() - begun:.0f} s", flush=True)
    server.close()
    for path, of_file in edits.items():
        apply(path, of_file)
    if kind == "classes":
        by_imports(found)
    in_texts(found)
    print(f"{sum(map(len, edits.values()))} places in {len(edits)} files")
    return 0


def apply(path: Path, edits: dict[tuple[int, int, int, int], str]) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    for (line, begin, last, end), text in sorted(edits.items(), reverse=True):
        assert line == last, (path, line)
        lines[line] = lines[line][:begin] + text + lines[line][end:]
    path.write_text("\n".join(lines), encoding="utf-8")


def by_imports(found: list[Symbol]) -> None:
    """Renames what pyright left: classes that a file imports under their old names."""
    wanted: dict[tuple[str, str], str] = {}
    for symbol in found:
        path = symbol.file.relative_to(folder_of(symbol.package)).with_suffix("").as_posix()
        wanted[dotted(symbol.package, path), symbol.old] = symbol.new
    for file in tracked():
        if file.suffix != ".py":
            continue
        text = file.read_text(encoding="utf-8")
        names = {
            alias.name: wanted[node.module or "", alias.name]
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and not node.level
            for alias in node.names
            if (node.module or "", alias.name) in wanted
        }
        if not names:
            continue
        for old, new in names.items():
            rename_name(file, old, new)
        print(f"{file.relative_to(ROOT)}: by its imports: {', '.join(names)}")


def in_texts(found: list[Symbol]) -> None:
    """Renames in backticks what is named there: `Class`, `Class.method`, `method` behind :meth:."""
    plain: dict[str, set[str]] = {}
    for symbol in found:
        if symbol.old[0].isupper() or symbol.old.startswith("_"):
            plain.setdefault(symbol.old, set()).add(symbol.new)
    unique = {old: new.copy().pop() for old, new in plain.items() if len(new) == 1}
    others = {
        node.name
        for file in tracked()
        if file.suffix == ".py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    unique = {old: new for old, new in unique.items() if old not in others}
    if not unique:
        return
    pattern = re.compile(
        r"(?<=`)((?:[~\w.]+\.)?)(" + "|".join(map(re.escape, sorted(unique, key=len, reverse=True))) + r")(?=[`.(])"
    )
    for file in tracked():
        if file.suffix not in {".py", ".md", ".toml"}:
            continue
        before = file.read_text(encoding="utf-8")
        text = pattern.sub(lambda match: match[1] + unique[match[2]], before)
        if text != before:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
