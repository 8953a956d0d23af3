"""Renames modules and folders as `modules.txt` says: files, imports, dotted names in any text, and paths of files.

    python scripts/vocabulary/rename_modules.py [PACKAGE...]        default: all packages of the plan

What it cannot decide (a name that is bound twice in a file) it lists, and imports the module under its old name there.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import plan

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("tests/frozen/", "CHANGELOG.md", "scripts/vocabulary/", "docs/decisions/")
TEXTS = {
    ".proto",
    ".py",
    ".pyi",
    ".toml",
    ".md",
    ".yaml",
    ".yml",
    ".json",
    ".sh",
    ".cfg",
    ".txt",
    ".ini",
    ".in",
    ".service",
    ".js",
    ".tpl",
    "",
}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    return [
        ROOT / name
        for name in listed
        if name and not name.startswith(KEPT) and Path(name).suffix in TEXTS and (ROOT / name).is_file()
    ]


@cache
def folder_of(package: str) -> Path:
    places = [
        *ROOT.glob(f"apps/*/src/{package}"),
        *ROOT.glob(f"libs/*/src/{package}"),
        *ROOT.glob(f"services/*/src/{package}"),
    ]
    return places[0] if places else ROOT / "proto/src" / package


def mapping(wanted: set[str]) -> tuple[dict[str, str], dict[Path, Path]]:
    """Old and new dotted names; old and new files."""
    names: dict[str, str] = {}
    files: dict[Path, Path] = {}
    plans: dict[str, list[tuple[str, str]]] = {}
    for package, old, new in plan.modules():
        plans.setdefault(package, []).append((old, new))
    for package, pairs in plans.items():
        if wanted and package not in wanted:
            continue
        root = folder_of(package)
        folders = {old[:-2]: new[:-2] for old, new in pairs if old.endswith("/*")}
        single = {old: new for old, new in pairs if not old.endswith("/*")}
        for folder in sorted(single):  # (a package that is renamed as a module)
            if (root / folder).is_dir():
                folders[folder] = single.pop(folder)
        missing = [old for old in single if not (root / f"{old}.py").exists()]
        if missing:
            print(f"{package}: not there: {', '.join(missing)}")
        for file in sorted(root.rglob("*.py")):
            path = file.relative_to(root).with_suffix("").as_posix()
            new = single.get(path)
            if new is None:
                for old_folder, new_folder in folders.items():
                    if path.startswith(f"{old_folder}/"):
                        new = new_folder + path[len(old_folder) :]
            if new is not None and new != path:
                target = root / f"{new}.py"
                files[file] = target
                names[dotted(package, path)] = dotted(package, new)
        for old_folder, new_folder in folders.items():
            names[f"{package}.{old_folder.replace('/', '.')}"] = f"{package}.{new_folder.replace('/', '.')}"
    return names, files


def dotted(package: str, path: str) -> str:
    return f"{package}.{path.replace('/', '.').removesuffix('.__init__')}"


def main(wanted: set[str]) -> int:
    names, files = mapping(wanted)
    taken = [new for new in files.values() if new.exists() and new not in files]
    if taken:
        sys.exit(f"taken: {taken}")
    packages = {name.split(".")[0] for name in names}
    pattern = re.compile(rf"\b(?:{'|'.join(sorted(packages))})(?:\.\w+)+")

    def dotted_in_text(match: re.Match[str]) -> str:
        parts = match[0].split(".")
        for end in range(len(parts), 1, -1):
            if (new := names.get(".".join(parts[:end]))) is not None:
                return ".".join([new, *parts[end:]])
        return match[0]

    by_tail: dict[str, set[tuple[Path, Path]]] = {}
    for file in [each for each in tracked() if each.suffix == ".py"]:
        parts = file.parts
        for begin in range(len(parts) - 1, max(len(parts) - 7, 0), -1):
            by_tail.setdefault("/".join(parts[begin:]), set()).add((file, files.get(file, file)))

    def path_in_text(match: re.Match[str], of: Path) -> str:
        token = match[0]
        found = by_tail.get(token.lstrip("./"), set())
        near = found
        for folder in of.parents:  # the nearest one
            if inside := {pair for pair in found if folder in pair[0].parents}:
                near = inside
                break
        if len(near) != 1:
            return token
        ((old, new),) = near
        if old == new:
            return token
        kept = token[: len(token) - len(token.lstrip("./"))]
        count = token.lstrip("./").count("/") + 1
        tail = new.parts[-count:]
        return kept + "/".join(tail)

    for file in tracked():
        try:
            before = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        text = before
        if file.suffix == ".py" or (text.startswith("#!") and "python" in text.split("\n", 1)[0]):
            text = imports(text, names, file)
        text = pattern.sub(dotted_in_text, text)
        text = re.sub(r"[\w./-]*\w\.py\b", lambda match, of=file: path_in_text(match, of), text)
        if text != before:
            file.write_text(text, encoding="utf-8")
    for old, new in files.items():
        new.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", str(old), str(new)], cwd=ROOT, check=True)
    return 0


def root_of(file: Path) -> Path:
    return next(parent for parent in file.parents if parent.parent.name == "src")


def imports(text: str, names: dict[str, str], file: Path) -> str:
    """Renames modules that are imported from their package by their own name."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    edits: list[tuple[int, int, int, str]] = []  # line, column, end column, text
    moved: list[tuple[ast.ImportFrom, ast.alias, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                new = names.get(f"{node.module}.{alias.name}")
                if new is not None:
                    moved.append((node, alias, new))
    lines = text.split("\n")
    for node, alias, new in moved:
        parent, _, base = new.rpartition(".")
        local = alias.asname or alias.name
        target = local
        if alias.asname is None and base != alias.name:
            same = sum(other.name == alias.name and other.asname is None and at == new for _, other, at in moved)
            if is_free(tree, base) and bound(tree, alias.name) == same:
                target = base
                edits += [
                    (each.lineno, each.col_offset, each.col_offset + len(alias.name), base)
                    for each in ast.walk(tree)
                    if isinstance(each, ast.Name) and each.id == alias.name
                ]
            else:
                print(f"{file.relative_to(ROOT)}:{alias.lineno}: {base} as {alias.name}")
        clause = base if target == base else f"{base} as {target}"
        old_parent = names.get(node.module or "", node.module)
        if parent == old_parent:
            edits.append((alias.lineno, alias.col_offset, alias.end_col_offset or 0, clause))
        elif len(node.names) == 1:
            if node.lineno != node.end_lineno:
                sys.exit(f"{file}:{node.lineno}: an import over several lines moves")
            lines[node.lineno - 1] = lines[node.lineno - 1][: node.col_offset] + f"from {parent} import {clause}"
        else:
            sys.exit(f"{file}:{node.lineno}: an import is split")
    for line, begin, end, new in sorted(set(edits), reverse=True):
        row = lines[line - 1].encode()
        lines[line - 1] = (row[:begin] + new.encode() + row[end:]).decode()
    return "\n".join(lines)


def bound(tree: ast.AST, name: str) -> int:
    """How often a name is bound in a file."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            count += (node.asname or node.name.split(".")[0]) == name
        elif isinstance(node, ast.arg):
            count += node.arg == name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            count += node.id == name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
            count += node.name == name
    return count


def is_free(tree: ast.AST, name: str) -> bool:
    return not bound(tree, name) and not any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


if __name__ == "__main__":
    sys.exit(main(set(sys.argv[1:])))
