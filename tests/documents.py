"""The pages of docs/ as tests read them: tables, and the fields that a table explains."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import msgspec

DOCS = Path(__file__).parents[1] / "docs"


def page(*names: str) -> str:
    """The text of a page, or of several that belong together."""
    return "\n".join((DOCS / name).read_text(encoding="utf-8") for name in names)


def section(text: str, heading: str) -> str:
    """What stands under a heading of the second level. Raises ValueError if there is none."""
    return text[text.index(f"\n## {heading}\n") :].split("\n## ")[1]


def tables(text: str) -> list[list[list[str]]]:
    """All tables of a text: their rows without the head, as cells."""
    found: list[list[list[str]]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.fullmatch(r"(\|[ :-]*-[ :-]*)+\|", line):
            rows = takewhile(lambda row: row.startswith("|"), lines[number + 1 :])
            found.append([[cell.strip() for cell in row.strip("|").split("|")] for row in rows])
    return found


def table(text: str, behind: str) -> list[list[str]]:
    """The first table behind some words. Raises ValueError if the words are not there."""
    return tables(text[text.index(behind) :])[0]


def has_the_fields_of(text: str, shape: type[msgspec.Struct]) -> None:
    """The table behind the comment with the name of a shape has each of its fields, and no other. Asserts."""
    cells = [row[0] for row in table(text, f"<!-- {shape.__name__} -->")]
    assert {name for cell in cells for name in re.findall(r"`([A-Za-z]+)`", cell)} == {
        field.encode_name for field in msgspec.structs.fields(shape)
    }
