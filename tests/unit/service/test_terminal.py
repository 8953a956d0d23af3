"""Foreign text cannot control a terminal, act as markup or hide. JSON keeps its meaning."""

from __future__ import annotations

import io
import json
import sys

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from muster_runtime import logs, terminal
from muster_runtime.invisible import first_invisible, is_invisible, visible, visible_json
from muster_runtime.terminal import Screen, escape_invisible, marked, print_json, print_lines, styled, write_data
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

ESC, RLO, ZWSP, CSI, FILLER = "\x1b]0;owned\x07", "a\u202eb", "a\u200bb", "\x9b31m", "a\u3164b"
HOSTILE = [
    ESC,
    RLO,
    ZWSP,
    CSI,
    FILLER,
    "\r",
    "\x7f",
    "\u2028",
    "\ufeff",
    "\U000e0041",
    "\x00",
    "\u2066x\u2069",
    "\ud800",
]


def printed(*what: object) -> str:
    out = io.StringIO()
    Screen(file=out, width=200).print(*what)
    return out.getvalue()


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_whatever_prints_it_shows_it(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(text, title=text)
    table.add_row(text)
    table.add_row(Text(text, style="red"))
    tree = Tree(text)
    tree.add(marked("[bold]{}[/]", text))
    outputs = [printed(text), printed(Text(text)), printed(table), printed(tree), printed(styled(text, "red"))]
    print_lines(text)
    print_lines(text, error=True)
    print_json({text: text})
    captured = capsys.readouterr()
    assert printed(text).strip()
    for output in (*outputs, captured.out, captured.err):
        assert not [each for each in output if is_invisible(each) and each != "\n"], ascii(output)


@given(st.text(max_size=30))
def test_any_text_is_visible_once_and_for_all(text: str) -> None:
    seen = escape_invisible(text)
    assert first_invisible(seen) is None
    assert visible(seen) == seen
    assert seen == text or any(map(is_invisible, text))


@given(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3), max_leaves=5))
def test_json_keeps_its_meaning(value: object) -> None:
    text = visible_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert first_invisible(text) is None


@pytest.mark.parametrize("text", ["[/]", "[bold]x[/bold]", "a[/red]b", ":smile:", "[link=x]y[/link]", "x\\", "[", "{}"])
def test_brackets_are_brackets(text: str) -> None:
    table = Table("name", show_header=False, box=None)
    table.add_row(text)
    for output in (
        printed(text),
        printed(table),
        printed(marked("[red]{}[/]", text)),
        printed(marked("{}[red]{}", text, 1)),
    ):
        assert text in output


def test_a_template_has_its_styles() -> None:
    found = marked("[red]{} is away[/]: {}", "[n1]", "why")
    assert found.plain == "[n1] is away: why"
    red = {place for span in found.spans if str(span.style) == "red" for place in range(span.start, span.end)}
    assert red == set(range(len("[n1] is away")))


def test_data_is_exact_for_a_program_and_visible_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(ESC)
    assert capsys.readouterr().out == ESC
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_data(ESC)
    assert capsys.readouterr().out == r"\x1b]0;owned\x07"


def test_a_traceback_is_visible_and_has_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    terminal.guard_tracebacks()
    error = ValueError(f"{ESC} password=hunter2")
    sys.excepthook(ValueError, error, None)
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "hunter2" not in said
    assert "ValueError" in said


@pytest.mark.usefixtures("logs_as_before")
def test_logs_on_a_terminal_show_it_too() -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Tty()
    logs.configure("info", "auto", out)
    structlog.get_logger("x").info(f"seen {RLO}", rm=ESC, many=[CSI], error=ValueError(ZWSP))
    try:
        raise ValueError(ESC)
    except ValueError:
        structlog.get_logger("x").exception("failed")
    assert "\x1b]0" not in out.getvalue()
    for each in (CSI[0], RLO[1], ZWSP[1], "\x07"):
        assert each not in out.getvalue()
