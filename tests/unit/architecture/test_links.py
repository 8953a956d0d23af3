"""Every link between pages has an existing target: a page or a heading."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [ROOT / line for line in listed.splitlines() if (ROOT / line).exists()]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings of a page as GitHub names them, and the anchors that it sets by hand."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number, name = 0, slug
        while name in found:
            number += 1
            name = f"{slug}-{number}"
        found.add(name)
    return frozenset(found)


def dead_links(page: Path, text: str) -> list[str]:
    """The links of a page's text without a target."""
    dead = []
    for target, anchor in LINK.findall(FENCE.sub("", text)):
        to = (page.parent / target).resolve() if target else page
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
            dead.append(f"{target}#{anchor}" if anchor else target)
    return dead


def test_every_link_leads_somewhere() -> None:
    found = {str(page.relative_to(ROOT)): dead_links(page, page.read_text(encoding="utf-8")) for page in _pages()}
    assert found
    assert {page: dead for page, dead in found.items() if dead} == {}


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](README.md#no-such-heading)", "[x](#no-such-heading)"])
def test_the_check_sees_a_dead_link(link: str) -> None:
    assert len(dead_links(ROOT / "README.md", link)) == 1
