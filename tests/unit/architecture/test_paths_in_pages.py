"""Every file and folder that README and ARCHITECTURE name exists, so that a move updates the pages, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = {path.name: path for path in ROOT.glob("*/*/src/muster_*")} | {
    path.name: path for path in ROOT.glob("proto/src/muster_*")
}
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "docs/where-to-add-what.md"]
PAGES += sorted(ROOT.glob("libs/*/README.md")) + sorted(ROOT.glob("services/*/README.md"))
PAGES += sorted(ROOT.glob("apps/*/README.md")) + sorted(ROOT.glob("docs/decisions/*.md"))
# A path in backticks: with a slash, or the name of a module. Not paths: a topic, a setting, an address.
PATH = re.compile(r"`((?:[\w.*-]+/)+[\w.*-]*|[\w*]+\.py)`")
# First folders of our paths. Texts that begin otherwise (/ws/v1, application/json) are no paths of ours.
FIRST = {"apps", "deploy", "docs", "examples", "libs", "proto", "scripts", "services", "tests", ".ci"}


def named(text: str) -> list[str]:
    """The paths that a page names, in their order, without blocks of code."""
    return PATH.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def is_there(path: str, page: Path) -> bool:
    """Whether the path exists: from the root, beside the page, in a package that it names, or in its own."""
    first, _, rest = path.partition("/")
    if first in FIRST and "/" in path:
        return any(ROOT.glob(path.rstrip("/")))
    if first in PACKAGES:
        return any(PACKAGES[first].glob(rest.rstrip("/"))) if rest else True
    if (page.parent / path).exists():
        return True
    own = list((page.parent / "src").glob("muster_*"))
    if not own and rest:
        return True  # no path of ours: an endpoint, a type of content
    return any(True for package in own or PACKAGES.values() for _ in package.rglob(path.rstrip("/")))


def test_paths_named_by_a_page_exist() -> None:
    assert PAGES
    missing = [
        (str(page.relative_to(ROOT)), path)
        for page in PAGES
        for path in named(page.read_text(encoding="utf-8"))
        if not is_there(path, page)
    ]
    assert missing == []


@pytest.mark.parametrize("path", ["libs/nowhere/x.py", "muster_core/nowhere.py", "nowhere.py"])
def test_the_check_sees_a_path_that_leads_nowhere(path: str) -> None:
    assert named(f"see `{path}`.") == [path]
    assert not is_there(path, ROOT / "ARCHITECTURE.md")
