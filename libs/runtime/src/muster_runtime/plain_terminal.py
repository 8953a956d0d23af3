"""Plain lines for a terminal, without rich: what ``terminal.py`` offers and needs, for commands that must load little.

A text from elsewhere cannot command the terminal: invisible characters are written out (``invisible.py``).
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any, TextIO

from muster_runtime.invisible import visible, visible_json


def say(text: str = "", *, error: bool = False) -> None:
    """Prints lines of text.

    :param error: on standard error.
    """
    write(f"{text}\n", error=error)


def say_json(value: Any, *, indent: int | None = 2, separators: tuple[str, str] | None = None) -> None:
    """Prints one JSON text on standard output."""
    write_json(json.dumps(value, indent=indent, separators=separators, ensure_ascii=False) + "\n")


def write(text: str, *, error: bool = False) -> None:
    """Writes a text as it is, but for invisible characters."""
    _write(sys.stderr if error else sys.stdout, visible(text))


def write_json(text: str) -> None:
    """Writes a part of a JSON text; parts of it may follow."""
    _write(sys.stdout, visible_json(text))


def write_data(text: str) -> None:
    """Writes data that a program reads: exact in a pipe or a file, made visible on a terminal."""
    _write(sys.stdout, visible(text) if sys.stdout.isatty() else text)


def write_json_bytes(data: bytes) -> None:
    """Writes a part of a JSON text in UTF-8: exact in a pipe or a file, made visible on a terminal.

    (A character that is cut in two is written out as bytes then.)
    """
    if sys.stdout.isatty():
        _write(sys.stdout, visible_json(data.decode(errors="backslashreplace")))
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


def _write(out: TextIO, text: str) -> None:
    try:
        out.write(text)
    except UnicodeEncodeError:  # a terminal without UTF-8
        out.write(text.encode(out.encoding or "ascii", "backslashreplace").decode(out.encoding or "ascii"))
    out.flush()
