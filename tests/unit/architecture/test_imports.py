"""No product files import each other in a circle (imports for types count), and no file is too long."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LINES_MAX = 750
# Files that may be longer, with their limits.
LONGER: dict[str, int] = {}


def sources() -> dict[str, Path]:
    """All product files but the generated ones, by module."""
    found = {}
    for path in sorted(ROOT.glob("*/*/src/muster_*/**/*.py")) + sorted(ROOT.glob("proto/src/muster_si/**/*.py")):
        package = next(each for each in path.parents if each.name == "src")
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, modules: dict[str, Path]) -> set[str]:
    """The product's modules that a file imports, at any place in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                found.add(below if below in modules else node.module)
    return found & modules.keys()


def circles(arrows: dict[str, set[str]]) -> Iterator[frozenset[str]]:
    """The sets of modules that import each other, directly or not."""
    reached: dict[str, set[str]] = {}
    for start, onward in arrows.items():
        seen: set[str] = set()
        ahead = list(onward)
        while ahead:
            module = ahead.pop()
            if module not in seen:
                seen.add(module)
                ahead += arrows[module]
        reached[start] = seen
    done: set[str] = set()
    for start, seen in reached.items():
        if start in seen and start not in done:
            circle = frozenset(each for each in seen if start in reached[each])
            done |= circle
            yield circle


def test_no_files_import_each_other_in_a_circle() -> None:
    modules = sources()
    arrows = {module: imported(path, modules) - {module} for module, path in modules.items()}
    assert set(circles(arrows)) == set(), "files that import each other in a circle"


def test_a_circle_would_be_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"e"}}
    assert set(circles(arrows)) == {frozenset({"b", "c"}), frozenset({"e"})}


def test_no_file_is_longer_than_one_can_read() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in sources().values()}
    long = {path: lines for path, lines in lengths.items() if lines > LINES_MAX}
    assert {path for path, lines in long.items() if lines > LONGER.get(path, LINES_MAX)} == set()
    assert long.keys() == LONGER.keys(), "LONGER lists a file that is short enough"
