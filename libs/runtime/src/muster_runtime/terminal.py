"""The one door to a terminal: everything that commands print goes through it.

A text from elsewhere (an id, a message, a version) cannot command the terminal and is no markup: invisible characters
are written out (``invisible.py``), brackets are brackets. Only :func:`marked` reads rich's markup, of its template.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from muster_runtime.invisible import visible, visible_json
from muster_runtime.plain_terminal import write, write_to
from muster_runtime.secrets import masked_text


class Screen(Console):
    """A console on which no string is markup, an emoji's name or a command to the terminal.

    :param options: those of rich's Console, but for markup, emoji and highlight.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Strings, also those in the cells of tables, are plain."""
        options |= {"emoji": False, "markup": False, "highlight": False}
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Texts that did not come as strings are made visible behind the layout."""
        for segment in super().render(renderable, options):
            text = segment.text
            yield (
                segment
                if segment.control or (visible_text := visible(text)) == text
                else Segment(visible_text, segment.style)
            )

    def on_broken_pipe(self) -> None:
        """Drops the output, because its reader is gone. Raises BrokenPipeError, where rich exits with 1."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise BrokenPipeError from None


def marked(template: str, *values: object) -> Text:
    """Returns a text with rich's markup: that of the template. Values take the places of ``{}`` as they are.

    ::

        marked("[red]{} is not applied[/]: {}", file, problem)
    """
    text, remaining = Text(), list(values)
    for piece in Text.from_markup(template, emoji=False).split("{}", include_separator=True, allow_blank=True):
        if not piece.plain.endswith("{}"):
            text.append_text(piece)
            continue
        value = Text(escape_invisible(remaining.pop(0)))
        for span in piece[-2:-1].spans:
            value.stylize(span.style)
        text.append_text(piece[:-2]).append_text(value)
    assert not remaining, f"{template!r} has too few places"
    return text


def styled(text: object, style: str | Style) -> Text:
    """Returns a value in a style."""
    return Text(escape_invisible(text), style)


def escape_invisible(value: object) -> str:
    """Returns a value's text on one line, with invisible characters written out."""
    return visible(str(value), breaks=False)


def print_lines(text: str = "", *, error: bool = False) -> None:
    """Prints lines of text.

    :param error: on standard error.
    """
    write(f"{text}\n", error=error)


def print_json(value: Any, *, indent: int | None = 2, separators: tuple[str, str] | None = None) -> None:
    """Prints one JSON text on standard output."""
    write_json(json.dumps(value, indent=indent, separators=separators, ensure_ascii=False) + "\n")


def write_json(text: str) -> None:
    """Writes a part of a JSON text; parts of it may follow."""
    write_to(sys.stdout, visible_json(text))


def write_data(text: str) -> None:
    """Writes data that a program reads: exact in a pipe or a file, made visible on a terminal."""
    write_to(sys.stdout, visible(text) if sys.stdout.isatty() else text)


def write_json_bytes(data: bytes) -> None:
    """Writes a part of a JSON text in UTF-8: exact in a pipe or a file, made visible on a terminal.

    (A character that is cut in two is written out as bytes then.)
    """
    if sys.stdout.isatty():
        write_to(sys.stdout, visible_json(data.decode(errors="backslashreplace")))
        return
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def is_terminal() -> bool:
    """Tells whether standard output is a terminal."""
    return sys.stdout.isatty()


def give_up_output() -> None:
    """After the reader of the output is gone: nothing is written at the end of the process either."""
    sys.stderr.close()


def drop_output() -> None:
    """After standard output could not be written: what waits there is dropped, also at the end of the process."""
    with suppress(OSError):
        sys.stdout.close()


def standard_error() -> TextIO:
    """Standard error, for logs; ``logs.py`` makes their texts visible."""
    return sys.stderr


def guard_tracebacks() -> None:
    """From now on an uncaught error's traceback goes through this door, too, and without secrets."""

    def hook(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        write(masked_text("".join(traceback.format_exception(kind, error, at))), error=True)

    sys.excepthook = hook
