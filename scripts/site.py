"""Hooks of mkdocs.yml: docs/ is the site's source as it is, and these add what lives elsewhere.

- A page that links to a file outside of docs/ gets that file as a page of the site, in ``repository/``: pages as pages,
  sources with numbered lines. So no link leaves the site, and a strict build checks all of them.
- The navigation of the decisions follows the table of docs/decisions/README.md.
- ``reference_pages`` makes pages from the code.
- Pages with diagrams, and only those, load the Mermaid library of docs/assets.
- A page that would fetch something from another host fails the build.
"""

from __future__ import annotations

import posixpath
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

sys.path.insert(0, str(Path(__file__).parent))
import reference_pages

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = "repository/"
LINK = re.compile(r"(?P<before>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<target>(?![a-z]+:)[^)\s#]+)(?P<anchor>#[^)\s]+)?\)")
FENCE = re.compile(r"^(```.*?^```[ \t]*$)", re.MULTILINE | re.DOTALL)
DECISION = re.compile(r"^\| (?P<area>[^|]+) \| \[(?P<title>[^]]+)\]\((?P<page>[^)]+)\)", re.MULTILINE)
FOREIGN = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]* src=\"(?:https?:)?//[^>]*>"
    r"|<link\b(?=[^>]* rel=\"(?:stylesheet|preload|preconnect|icon)\")[^>]* href=\"(?:https?:)?//[^>]*>"
    r"|url\(['\"]?(?:https?:)?//[^)]*\)|@import [^;]*//[^;]*;"
)
MERMAID = "assets/mermaid.tiny.js"


def place_of(source: str) -> Path:
    """The file in the repository behind a page of the site."""
    if not source.startswith(ELSEWHERE):
        return ROOT / "docs" / source
    path = ROOT / source.removeprefix(ELSEWHERE)
    behind = path.with_suffix("")
    return behind if path.suffix == ".md" and behind.is_file() else path


def source_of(path: Path) -> str | None:
    """The page of the site for a file or folder of the repository; None if there is nothing to show."""
    if not path.exists() or not path.is_relative_to(ROOT):
        return None
    if path.is_dir():
        path = path / "README.md"
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    name = ELSEWHERE + path.relative_to(ROOT).as_posix()
    return name if path.suffix in {".md", ".svg", ".png"} else f"{name}.md"


def links(page: Path, text: str) -> list[Path]:
    """Everything of the repository that a page links to."""
    plain = FENCE.sub("", text)
    return [(page.parent / match["target"]).resolve() for match in LINK.finditer(plain)]


@cache
def generated() -> dict[str, str]:
    """The pages that are made from the code."""
    return reference_pages.pages()


@cache
def elsewhere() -> dict[str, Path]:
    """The pages of the site whose files are outside of docs/: all that a page of the site links to."""
    found: dict[str, Path] = {}
    made = {ROOT / "docs" / name: text for name, text in generated().items()}
    todo = [*(ROOT / "docs").rglob("*.md"), ROOT / "ARCHITECTURE.md", *made]
    while todo:
        page = todo.pop()
        text = made[page] if page in made else page.read_text(encoding="utf-8")
        for target in [page, *links(page, text)]:
            source = source_of(target)
            if source is None or not source.startswith(ELSEWHERE) or source in found:
                continue
            found[source] = target / "README.md" if target.is_dir() else target
            if found[source].suffix == ".md" and found[source].exists():
                todo.append(found[source])
    return found


def text_of(path: Path) -> str:
    """The text of a page of ``repository/``."""
    if not path.exists():  # a folder without a README.md: a list of its files
        files = [each for each in sorted(path.parent.rglob("*")) if each.is_file() and "__pycache__" not in each.parts]
        rows = "".join(f"- `{each.relative_to(path.parent).as_posix()}`\n" for each in files)
        return f"# `{path.parent.relative_to(ROOT).as_posix()}`\n\n{rows}"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    shown = highlight(text, lexer, HtmlFormatter(lineanchors="L", anchorlinenos=True, linenos="inline"))
    name = path.relative_to(ROOT).as_posix()
    return f"---\ntitle: {name}\nsearch:\n  exclude: true\n---\n\n# `{name}`\n\n{shown}\n"


def rewritten(text: str, source: str) -> str:
    """The text of a page with the links as the site needs them."""
    page, here = place_of(source), posixpath.dirname(source)

    def link(match: re.Match[str]) -> str:
        target = source_of((page.parent / match["target"]).resolve())
        if target is None:
            return match[0]  # the strict build names it
        anchor = re.sub(r"^#L(\d+)$", r"#L-\1", match["anchor"] or "")
        return f"{match['before']}{posixpath.relpath(target, here or '.')}{anchor})"

    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in FENCE.split(text))


def decisions() -> list[Any]:
    """The navigation of the decisions: the overview, then a section for each area."""
    areas: dict[str, list[Any]] = {}
    for match in DECISION.finditer((ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")):
        area = match["area"][0].upper() + match["area"][1:]
        areas.setdefault(area, []).append({match["title"]: f"decisions/{match['page']}"})
    return ["decisions/README.md", *({area: pages} for area, pages in areas.items())]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = [{"Decisions": decisions()} if "Decisions" in entry else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, path in elsewhere().items():
        if path.suffix in {".svg", ".png"}:
            files.append(File.generated(config, source, content=path.read_bytes()))
        else:
            files.append(File.generated(config, source, content=text_of(path)))
    for source, text in generated().items():
        files.append(File.generated(config, source, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return rewritten(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    # (Docstrings are reStructuredText where it differs from Markdown.)
    return re.sub(r":(?:class|func|meth):(?=<code>)|<p>::</p>\n?", "", html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    if 'class="mermaid"' not in output:
        return output
    script = f'<script src="{get_relative_url(MERMAID, page.url)}"></script>\n'
    return output.replace("</head>", f"{script}</head>", 1)


def on_post_build(config: MkDocsConfig) -> None:
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in {".html", ".css"} and (found := FOREIGN.search(path.read_text(encoding="utf-8"))):
            raise PluginError(f"{path.relative_to(config.site_dir)} fetches from another host: {found[0]}")
