"""The page shows the state of Muster that the gateway made (docs/decisions/0289-readers-show-one-state.md)."""

from __future__ import annotations

import re
from pathlib import Path

import muster_gateway.page

PAGE = Path(muster_gateway.page.__file__).with_name("files")
# Words that say that all is well.
GREEN = re.compile(r"up to date|\"good\"|all parts|still placed", re.IGNORECASE)


def test_the_page_says_that_all_is_well_only_if_the_state_is_ok() -> None:
    said = {
        (path.name, line.strip())
        for path in PAGE.glob("*.js")
        for line in path.read_text(encoding="utf-8").splitlines()
        if GREEN.search(line) and "health.ok ?" not in line
    }
    assert said == set()


def test_one_file_of_the_page_asks_for_the_state() -> None:
    asked = {path.name for path in PAGE.glob("*.js") if "/health" in path.read_text(encoding="utf-8")}
    assert asked == {"system-health.js"}
