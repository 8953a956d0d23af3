"""Wraps the paragraphs of comments and docstrings that a renaming made too long (ruff: E501)."""

from __future__ import annotations

import io
import re
import subprocess
import textwrap
import tokenize
from pathlib import Path

WIDTH = 120
_START = re.compile(r"\s*(?:# |#: )?(?::(?:ivar|param|return|returns|raises)|- |\* |\d+\. |[|=+]|``)")


def main() -> None:
    listed = subprocess.run(
        [".venv/bin/ruff", "check", ".", "--select", "E501", "--output-format", "concise"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    places: dict[str, list[int]] = {}
    for match in re.finditer(r"^([^:\n]+):(\d+):\d+: E501", listed, re.MULTILINE):
        places.setdefault(match[1], []).append(int(match[2]))
    for name, numbers in places.items():
        text = Path(name).read_text(encoding="utf-8")
        lines, prose = text.split("\n"), prose_of(text)
        for number in sorted(prose & set(numbers), reverse=True):
            wrap(lines, number - 1)
        Path(name).write_text("\n".join(lines), encoding="utf-8")


def prose_of(text: str) -> set[int]:
    """Returns the lines that are comments, or a part of a text in triple quotes."""
    prose = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING and token.string.startswith('"""'):
            prose.update(range(token.start[0], token.end[0] + 1))
        elif token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            prose.add(token.start[0])
    return prose


def wrap(lines: list[str], at: int) -> None:
    """Wraps the paragraph from a line on, where it is one."""
    line = lines[at]
    if len(line) <= WIDTH:
        return
    prefix = re.match(r"\s*(?:#:? )?", line)
    assert prefix is not None
    is_comment = "#" in prefix[0]
    quotes = line.lstrip().startswith('"""')
    starts = bool(_START.match(line))
    if not is_comment and quotes and line.rstrip().endswith('"""'):
        line = line.rstrip().removesuffix('"""')
        lines[at : at + 1] = [line, prefix[0] + '"""']
    indent = prefix[0] + ("    " if starts and not is_comment else "")
    end = at + 1
    while end < len(lines):
        following = lines[end]
        same = re.match(r"\s*(?:#:? )?", following)
        if not following.strip() or _START.match(following) or following.strip().startswith('"""'):
            break
        if same is None or (same[0] != indent and not (quotes and same[0] == prefix[0])):
            break
        if not is_comment and following.rstrip().endswith('"""'):
            break
        end += 1
    rest = [each.strip().lstrip("#: " if is_comment else "") for each in lines[at + 1 : end]]
    text = " ".join([line[len(prefix[0]) :], *rest])
    lines[at:end] = textwrap.wrap(
        text, WIDTH, initial_indent=prefix[0], subsequent_indent=indent if not quotes else prefix[0],
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
