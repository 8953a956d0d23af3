"""One word for one thing (docs/glossary.md): a retired word does not come back.

To retire a word, change all its places, then add it below with its replacement.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRODUCT = ("apps", "libs", "services", "proto/src/muster_si", "scripts", "examples", "deploy")
PROSE = (*PRODUCT, "docs", "proto", "tests", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "Makefile")
SUFFIXES = {".css", ".go", ".html", ".js", ".md", ".proto", ".py", ".pyi", ".toml", ""}

# In any text: code, comments, documentation, the page. Scenarios (YAML) may cite a section by number.
TEXT = {
    r"\b[Ss]eeds? 00\d": "the document's name (docs/requirements.md)",
    r"\bthe seed's?\b(?= (mix|words|figures|table))": "the document's name (docs/requirements.md)",
    r"\bcore-features\b": "YuniKorn",
    r"\b[Tt]he real core\b": "YuniKorn, or YuniKorn's core",
    r"\brest-readers\b": "docs/rest.md",
    r"\b[Dd]esign §": "the document's name (docs/requirements.md)",
    r"§[24]\.\d": "the document's name (docs/requirements.md)",
}
# In texts for readers: documentation, the command line, the page.
READ = {
    r"\btold to go\b": "released",
    r"\basks? nobody\b": "has no authentication, or does not authenticate",
    r"\b[Ii]nquir(y|ies)\b": "predicate, question",
    r"\bcourted\b": "candidate",
    r"\bcomes? to (its|their) rights\b": "may reserve or preempt",
    r"\b[Ww]hoever\b": "the actor: any client, a user, an operator",
    r"\b(is|are|was|were) told\b": "gets a message, is notified",
    r"\bhears? (of|nothing)\b": "gets a message",
    r"\b(lends|lent)\b": "offers, an offer",
}
READ_IN = (
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "apps/cli",
    "services/gateway/src/muster_gateway/page",
)
# Texts for users: the page's and the command line's.
SHOWN = {
    r"[\"'`>]Asks that wait\b": "Pending",
    r"[\"'`>](Hold|Go on)[\"'`<]": "Pause, Resume",
    r"[\"'`>]Kept free for\b": "Reserved for",
}
# Between two words of a phrase: a space, or the end of a line and the beginning of the next comment line.
BREAK = r"(?: |\n[ #/*]*)"
SHOWN_IN = ("apps/cli/src", "services/gateway/src/muster_gateway/page")
# Names of modules, functions, classes, arguments and attributes: folder, retired name, name to use.
NAMES = {
    ("libs/core", "telling.py"): "ask_events.py",
    ("libs/core", "claims.py"): "escalation.py",
    ("libs/core", "adoption.py"): "recovery.py",
    ("libs/core", "telling"): "notifications",
    ("libs/core", "Telling"): "Notifications",
    ("libs/core", "claims"): "long_wait",
    ("libs/core", "Claims"): "Escalation",
    ("libs/core", "adoption"): "recovery",
    ("libs/core", "Adoption"): "Recovery",
    ("libs/core", "courted"): "candidates",
    ("libs/core", "stirred"): "has_wakeups, changed_nodes",
    ("libs/core", "told"): "releasing (an allocation), notified (an ask)",
    ("libs/core", "lend"): "ready_priorities",
    ("libs/core", "story"): "state_log",
    ("libs/core", "file_stores.py"): "wait_points.py",
    ("libs/core", "required_place"): "required_wait_point",
    ("libs/core", "inquiries.py"): "predicate_checks.py",
    ("libs/core", "Inquiry"): "PredicateCheck",
    ("libs/core", "inquiry"): "check",
    ("libs/core", "inquiries"): "checks",
    ("libs/core", "closing.py"): "cordons.py",
    ("libs/core", "come"): "on_deadline",
    ("libs/core", "_hear"): "_apply_source",
    ("services/scheduler", "_hear"): "_apply_source",
    ("libs/core", "lent"): "offer",
    ("libs/core", "_lent"): "_offered",
    ("libs/core", "lends"): "has_offers",
    ("libs/core", "_told_to_go"): "_releasing",
    ("services/view", "story"): "preempted",
    ("services/view", "halt"): "pause",
    ("services/view", "halts"): "pauses",
    ("services/view", "lent_priority"): "effective_priority",
}


def files(*roots: str) -> Iterator[Path]:
    """The files of the repository below these folders, without this one."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *roots],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in listed.splitlines():
        path = ROOT / line
        if path.suffix in SUFFIXES and path != Path(__file__) and path.is_file():
            yield path


def found_in_text(text: str, words: dict[str, str]) -> list[str]:
    """The retired words in a text, as "line: word; use …"."""
    return [
        f"{text.count(chr(10), 0, match.start()) + 1}: {match[0].strip()}; use {instead}"
        for pattern, instead in words.items()
        for match in re.finditer(pattern.replace(" ", BREAK), text)
    ]


def names_of(source: str) -> set[str]:
    """The names that a module gives: of functions, classes, arguments, variables and attributes."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.arg():
                names.add(node.arg)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                names.add(node.attr)
    return names


def problems(paths: Iterator[Path], words: dict[str, str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{each}"
        for path in paths
        for each in found_in_text(path.read_text(encoding="utf-8", errors="replace"), words)
    ]


def test_no_retired_word_stands_in_a_text() -> None:
    assert problems(files(*PROSE), TEXT) == []


def test_no_retired_word_is_read() -> None:
    assert problems(files(*READ_IN), READ) == []


def test_no_retired_word_is_shown() -> None:
    assert problems(files(*SHOWN_IN), SHOWN) == []


def test_nothing_has_a_retired_name() -> None:
    found = []
    for path in files(*PRODUCT):
        if path.suffix != ".py":
            continue
        below = {name for folder, name in NAMES if path.is_relative_to(ROOT / folder)}
        given = {path.name} | (names_of(path.read_text(encoding="utf-8")) if below else set())
        found += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(below & given)]
    assert found == []


@pytest.mark.parametrize("text", ["as seed 002 says", "# the real\n    # core's way", "(core-features)"])
def test_the_check_sees_a_retired_word(text: str) -> None:
    assert len(found_in_text(text, TEXT)) == 1


def test_the_check_sees_a_retired_name() -> None:
    source = "class A:\n    def told(self, lent): self.story = lent\n"
    assert names_of(source) == {"A", "told", "self", "lent", "story"}
