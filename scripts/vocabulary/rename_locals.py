"""Renames locals and parameters of functions as a list says, one line a function.

    python3.13 scripts/vocabulary/rename_locals.py LIST         renames
    python3.13 scripts/vocabulary/rename_locals.py --left PATH…  prints what is left: FILE::FUNCTION: name name …

    libs/core/src/muster_core/queues/rank.py::Rank.order: each>queue found>position
    libs/core/src/muster_core/queues/rank.py::: each>queue                              (the module's own names)

A function's list is for it and for what it contains, up to an inner function with a line of its own. What keyword
arguments name a renamed parameter shows mypy; the programs list them. Python 3.12 or later: it knows the places of
names in f-strings.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# docs/glossary.md and the plan of names: no local and no parameter is called that.
CATCH_ALL = frozenset(
    {"found", "each", "what", "place", "why", "held", "known", "wanted", "said", "told", "given", "left", "rest", "one"}
    | {"other", "here", "there", "asked", "seen", "made"}
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def scopes(node: ast.AST, path: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yields the functions of a module with their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            name = f"{path}.{child.name}" if path else child.name
            if isinstance(child, _FUNCTIONS):
                yield name, child
            yield from scopes(child, name)
        else:
            yield from scopes(child, path)


def names_of(function: ast.AST) -> Iterator[tuple[str, int, int]]:
    """Yields each use of a name in a function, with its line (from 1) and its column in bytes."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno, node.col_offset
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno, node.col_offset


def bound(function: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def rename(file: Path, function: str, pairs: dict[str, str]) -> list[str]:
    """Renames the names of one function. Returns what is in the way."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = [node for name, node in scopes(tree) if name == function] if function else [tree]
    if len(found) != 1:
        return [f"{file}::{function}: {len(found)} functions of that name"]
    node, lines = found[0], text.split("\n")
    present = {name for name, _, _ in names_of(node)} | bound(node)
    problems = [f"{file}::{function}: {old} is not bound there" for old in pairs if old not in bound(node)]
    problems += [
        f"{file}::{function}: {new} is there already ({old}>{new})"
        for old, new in pairs.items()
        if new in present and new not in pairs
    ]
    if len(set(pairs.values())) != len(pairs):
        problems.append(f"{file}::{function}: one new name for two")
    if problems:
        return problems
    places = [(line, column, name) for name, line, column in names_of(node) if name in pairs]
    # Names that are no nodes: of patterns and of handlers, and those that nonlocal and global list.
    extra: list[tuple[int, int, str]] = []
    for inner in ast.walk(node):
        names: list[str] = []
        if isinstance(inner, (ast.MatchAs, ast.MatchStar, ast.ExceptHandler)) and inner.name in pairs:
            names = [inner.name]
        elif isinstance(inner, ast.MatchMapping) and inner.rest in pairs:
            names = [inner.rest]
        elif isinstance(inner, ast.Nonlocal):
            names = [name for name in inner.names if name in pairs]
        extra += [(inner.lineno, inner.end_lineno or inner.lineno, name) for name in names]
    for line, column, name in sorted(places, reverse=True):
        raw = lines[line - 1].encode()
        if raw[column : column + len(name)] != name.encode():
            return [f"{file}:{line}: {name} is not at column {column}"]
        lines[line - 1] = (raw[:column] + pairs[name].encode() + raw[column + len(name) :]).decode()
    for first, last, name in extra:
        for number in range(first, last + 1):
            changed = re.sub(
                rf"(\bas |\bnonlocal |, |\*\*?|case |[(\[|] ?){name}\b(?!=)", rf"\g<1>{pairs[name]}", lines[number - 1]
            )
            if changed != lines[number - 1]:
                lines[number - 1] = changed
                break
        else:
            return [f"{file}:{first}: {name} of a pattern was not found"]
    _rename_in_docstring(node, lines, pairs)
    file.write_text("\n".join(lines), encoding="utf-8")
    return []


def _rename_in_docstring(node: ast.AST, lines: list[str], pairs: dict[str, str]) -> None:
    if isinstance(node, _FUNCTIONS) and ast.get_docstring(node, clean=False) is not None:
        begin, end = node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno
        for number in range(begin - 1, end):
            for old, new in pairs.items():
                lines[number] = re.sub(
                    rf"(:param ){old}:|``{old}``", lambda m, o=old, n=new: m[0].replace(o, n), lines[number]
                )


def left(paths: list[str]) -> None:
    for path in paths:
        for file in sorted(Path(path).rglob("*.py")) if Path(path).is_dir() else [Path(path)]:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for name, node in scopes(tree):
                names = sorted(bound(node) & CATCH_ALL)
                if names:
                    print(f"{file}::{name}: {' '.join(names)}")


def main(arguments: list[str]) -> int:
    if arguments[0] == "--left":
        left(arguments[1:])
        return 0
    problems = []
    for line in Path(arguments[0]).read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        where, _, listed = line.rpartition(": ")
        file, _, function = where.partition("::")
        pairs = dict(pair.split(">") for pair in listed.split())
        problems += rename(Path(file), function, pairs)
    print("\n".join(problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
