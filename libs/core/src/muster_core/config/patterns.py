"""Regular expressions in bounded time, by RE2. RE2 has Go's syntax, which YuniKorn's filters use.

Python's own engine backtracks: on a name of forty letters, ``(a+)+$`` takes years. RE2 looks at each character a
bounded number of times, whatever the expression.
"""

from __future__ import annotations

import re
from typing import Any

import re2

PATTERN_CHARACTERS_MAX = 256
# Limit of one compiled expression; a larger one is refused. A configuration may have 100 of them.
_MEMORY_BYTES_MAX = 1 << 20
# RE2 reads ``\C`` as one byte; Go refuses it.
_ONE_BYTE = re.compile(r"(?<!\\)(?:\\\\)*(\\C)")


class InvalidPattern(ValueError):
    """A text is not a regular expression, or is too large; the message says why."""


class Pattern:
    """A compiled expression.

    :ivar text: the expression as written.
    """

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str, compiled: Any) -> None:
        self.text = text
        self._compiled = compiled

    def search(self, subject: str) -> bool:
        """Whether the expression matches anywhere in the subject, in time linear in the subject's length."""
        return self._compiled.search(subject.encode("utf-8", "replace")) is not None


def compile_pattern(text: str) -> Pattern:
    """Compiles an expression in Go's syntax. Raises InvalidPattern."""
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise InvalidPattern(
            f"the regular expression has {len(text)} characters; expected at most {PATTERN_CHARACTERS_MAX}"
        )
    if _ONE_BYTE.search(text):
        raise InvalidPattern(r"invalid escape sequence: \C")
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES_MAX
    options.log_errors = False
    try:
        return Pattern(text, re2.compile(text.encode(), options))
    except UnicodeEncodeError:
        raise InvalidPattern("the regular expression is not valid Unicode text") from None
    except re2.error as error:
        (message,) = error.args
        raise InvalidPattern(message.decode("utf-8", "replace")) from None
