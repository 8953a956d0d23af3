"""Renames what pyright leaves of `functions.txt`: places that mypy names, and names in strings of tests and in texts.

    mend_functions.py mypy [MYPY ARGUMENT...]    again and again, until it mends no more
    mend_functions.py strings                    setattr(X, "old", …) of tests
    mend_functions.py texts                      :meth:`old`, `Class.old`, module:Class.old

What it cannot decide it lists.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plan
from rename_modules import ROOT, folder_of, tracked

_ERROR = re.compile(r"([^:]+):(\d+):(?:\d+:)? error: (.*)")
_ATTRIBUTE = re.compile(r'(?:Item )?"(?:type\[)?(\w+)[^"]*".* has no attribute "(\w+)"')
_OF_MODULE = re.compile(r'Module "([\w.]+)" has no attribute "(\w+)"')
_UNDEFINED = re.compile(r'Name "(\w+)" is not defined')


class Plan:
    """The names of functions, by their class under its new and old name, and by their old name alone."""

    def __init__(self) -> None:
        classes: dict[str, set[str]] = {}
        for _, _, old, new in plan.names("classes.txt"):
            classes.setdefault(old, set()).add(new)
        self.of_class: dict[str, dict[str, str]] = {}
        self.of_package: dict[str, dict[str, set[str]]] = {}
        self.new: dict[str, set[str]] = {}
        for package, owner, old, new in plan.names("functions.txt"):
            name = owner.removesuffix("()")
            for each in {name, *classes.get(name, ())}:
                self.of_class.setdefault(each, {})[old] = new
            self.of_package.setdefault(package, {}).setdefault(old, set()).add(new)
            self.new.setdefault(old, set()).add(new)

    def only(self, old: str, among: set[str]) -> str | None:
        """Returns the one new name of a function that is among others, or None."""
        found = self.new.get(old, set()) & among
        return found.pop() if len(found) == 1 else None


def names_in(text: str) -> set[str]:
    """Returns what a module defines or imports."""
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found


def rename_name(file: Path, old: str, new: str) -> bool:
    """Renames a name that is no attribute, in code and in the expressions of f-strings."""
    text = file.read_text(encoding="utf-8")
    lines, before = text.split("\n"), ""
    places: list[tuple[int, int]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and token.string == old and before != ".":
            places.append(token.start)
        if token.type not in {tokenize.NL, tokenize.COMMENT}:
            before = token.string
    for line, column in reversed(places):
        row = lines[line - 1]
        lines[line - 1] = row[:column] + new + row[column + len(old) :]
    changed = re.sub(rf"(?<![\w.]){old}(?=\()", new, "\n".join(lines))
    file.write_text(changed, encoding="utf-8")
    return changed != text


def rename_attribute(file: Path, line: int, old: str, new: str) -> bool:
    """Renames an attribute on a line, or on one of the six after it."""
    lines = file.read_text(encoding="utf-8").split("\n")
    for number in range(line - 1, min(line + 6, len(lines))):
        changed = re.sub(rf"(?<=\.){old}\b", new, lines[number])
        if changed != lines[number]:
            lines[number] = changed
            file.write_text("\n".join(lines), encoding="utf-8")
            return True
    return False


def file_of(module: str) -> Path:
    package, _, rest = module.partition(".")
    return folder_of(package) / f"{rest.replace('.', '/')}.py"


def by_mypy(arguments: list[str]) -> int:
    """Mends what one run of mypy names. Returns the number of places."""
    names, mended = Plan(), 0
    command = [".venv/bin/mypy", "--no-error-summary", *arguments]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    for match in filter(None, map(_ERROR.match, listed.splitlines())):
        file, line, message = ROOT / match[1], int(match[2]), match[3]
        old = new = None
        if found := _OF_MODULE.match(message):
            old = found[2]
            new = names.only(old, names_in(file_of(found[1]).read_text(encoding="utf-8")))
            mended += bool(new and rename_name(file, old, new))
        elif found := _UNDEFINED.match(message):
            old = found[1]
            new = names.only(old, names_in(file.read_text(encoding="utf-8")))
            mended += bool(new and rename_name(file, old, new))
        elif found := _ATTRIBUTE.match(message):
            old = found[2]
            new = names.of_class.get(found[1], {}).get(old) or names.only(old, names.new.get(old, set()))
            mended += bool(new and rename_attribute(file, line, old, new))
        if old in names.new and not new:
            print(match[0])
    return mended


def imported(tree: ast.Module, folder: Path) -> dict[str, Any]:
    """Runs the imports of a test."""
    namespace: dict[str, Any] = {}
    sys.path.insert(0, str(folder))
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            try:
                exec(compile(ast.Module([node], []), "imports", "exec"), namespace)
            except Exception as error:
                print(f"{folder}: {ast.unparse(node)}: {error}")
    sys.path.pop(0)
    return namespace


def patched(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.Constant]]:
    """Yields the object and the name of each setattr, getattr and delattr."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        name = node.args[1]
        if (
            called in {"setattr", "getattr", "delattr"}
            and isinstance(name, ast.Constant)
            and isinstance(name.value, str)
        ):
            yield node.args[0], name


def in_strings() -> None:
    names = Plan()
    for folder in ("tests", "tests/unit", "tests/simulation", "bench"):
        sys.path.insert(0, str(ROOT / folder))
    for file in tracked():
        if file.suffix != ".py" or file.relative_to(ROOT).parts[0] not in {"tests", "bench"}:
            continue
        text = file.read_text(encoding="utf-8")
        if "attr(" not in text:
            continue
        tree = ast.parse(text)
        objects, lines = imported(tree, file.parent), text.split("\n")
        for of, name in sorted(patched(tree), key=lambda pair: (pair[1].lineno, pair[1].col_offset), reverse=True):
            if name.value not in names.new:
                continue
            try:
                target = eval(compile(ast.Expression(of), "object", "eval"), objects)
            except Exception:
                print(f"{file.relative_to(ROOT)}:{name.lineno}: {ast.unparse(of)}, {name.value}")
                continue
            new = None if hasattr(target, name.value) else names.only(name.value, set(dir(target)))
            if new is not None:
                row, begin = lines[name.lineno - 1], name.col_offset + 1
                lines[name.lineno - 1] = row[:begin] + new + row[begin + len(name.value) :]
        file.write_text("\n".join(lines), encoding="utf-8")


def in_texts() -> None:
    names = Plan()
    for file in tracked():
        if file.suffix not in {".py", ".md"}:
            continue
        text = file.read_text(encoding="utf-8")
        changed = re.sub(
            r"([:`\".])([A-Z]\w+)\.([a-z_]\w*)\b(?=[`\"(]|<br>)",
            lambda match: f"{match[1]}{match[2]}.{names.of_class.get(match[2], {}).get(match[3], match[3])}",
            text,
        )
        package = next((part for part in file.parts if part.startswith("muster_")), "")
        own = names_in(text) if package and file.suffix == ".py" else set()

        def renamed(match: re.Match[str], package: str = package, own: set[str] = own) -> str:
            found = names.of_package.get(package, {}).get(match[2], set())
            found = (found & own) or found
            new = next(iter(found)) if len(found) == 1 and match[2] not in own else match[2]
            return f"{match[1]}{new}`"

        changed = re.sub(r"(:(?:meth|func):`~?(?:[\w.]*\.)?)(\w+)`", renamed, changed)
        if changed != text:
            file.write_text(changed, encoding="utf-8")


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "mypy":
        while mended := by_mypy(rest):
            print(f"{mended} places", flush=True)
    else:
        {"strings": in_strings, "texts": in_texts}[kind]()
