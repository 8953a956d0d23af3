"""docs/external-rest.md names every field of ours, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from muster_scheduler.view import dao, external

TEXT = (Path(__file__).parents[3] / "docs/external-rest.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("shape", [external.SourceDao, external.ObjectDao])
def test_every_field_has_a_row(shape: type[msgspec.Struct]) -> None:
    table = TEXT.split(f"<!-- {shape.__name__} -->\n", 1)[1].split("\n\n", 1)[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    rows = {name for cell in cells for name in re.findall(r"`([A-Za-z]+)`", cell)}
    assert rows == {field.encode_name for field in msgspec.structs.fields(shape)}


def test_what_the_rm_reported_is_named() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| node | `reported`"))
    for field in msgspec.structs.fields(dao.ReportedDao):
        assert f"`{field.encode_name}`" in row


def test_the_sizes_of_pages_are_those_of_the_code() -> None:
    assert f"{external.OBJECTS_DEFAULT:,} if not said, at most {external.OBJECTS_MAX:,}" in TEXT
