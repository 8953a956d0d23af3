"""Pages outside of the reference are short: one subject, at most 1,500 words.

Words are those that a reader sees: without code blocks, comments and the targets of links. ``python
tests/unit/architecture/test_pages.py`` prints the longest pages.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WORDS_MAX = 1_500
FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
# The reference is looked up, not read; so is the list of the decisions.
LOOKED_UP = {"Reference", "Decisions"}


def words(text: str) -> int:
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)
    return len(re.findall(r"[^\W_][\w'.-]*", re.sub(r"\]\([^)]*\)", "]", text)))


def sections() -> dict[str, list[str]]:
    """The pages of the navigation in mkdocs.yml, by section."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].splitlines():
        if heading := re.match(r"  - ([\w -]+):", line):
            section = heading[1]
        if page := re.search(r"([\w./-]+\.md)$", line):
            found.setdefault(section, []).append(page[1])
    return found


READ = [page for section, pages in sections().items() if section not in LOOKED_UP for page in pages]


def place(page: str) -> Path:
    return ROOT / page.removeprefix("repository/") if page.startswith("repository/") else ROOT / "docs" / page


@pytest.mark.parametrize("page", READ)
def test_a_page_to_read_is_short(page: str) -> None:
    assert words(place(page).read_text(encoding="utf-8")) <= WORDS_MAX


def test_every_page_is_in_the_navigation() -> None:
    known = {page for pages in sections().values() for page in pages}
    assert {"index.md", "tutorials/index.md", "concepts/index.md"} <= known
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages - known if not page.startswith("decisions/0")} == set()


def test_an_installation_names_this_version() -> None:
    """The public index has another package of this name."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    commands = re.findall(
        r"pip install --find-links dist ('?)(\S+)\1", place("installing.md").read_text(encoding="utf-8")
    )
    assert len(commands) >= 4
    assert [wanted for _, wanted in commands if not wanted.rstrip("'`.").endswith(f"=={version}")] == []


def test_words_are_those_that_are_read() -> None:
    assert words("# One two\n\n[three](four.md#five) | six |\n<!-- seven -->\n```sh\neight\n```\n") == 4


if __name__ == "__main__":
    counted = ((words(place(page).read_text(encoding="utf-8")), page) for page in READ)
    for count, page in sorted(counted, reverse=True)[:10]:
        print(f"{count:>6,}  {page}")
