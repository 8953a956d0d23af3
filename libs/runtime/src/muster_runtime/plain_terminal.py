"""The part of the door to a terminal (``terminal.py``) that needs no rich, for commands that must load little."""

from __future__ import annotations

import sys
from typing import TextIO

from muster_runtime.invisible import visible


def write(text: str, *, error: bool = False) -> None:
    """Writes a text as it is, but for invisible characters.

    :param error: on standard error.
    """
    write_to(sys.stderr if error else sys.stdout, visible(text))


def write_to(out: TextIO, text: str) -> None:
    """Writes a text that is visible already."""
    try:
        out.write(text)
    except UnicodeEncodeError:  # a terminal without UTF-8
        out.write(text.encode(out.encoding or "ascii", "backslashreplace").decode(out.encoding or "ascii"))
    out.flush()
