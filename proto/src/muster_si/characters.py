"""Characters that no name may have: a reader does not see them, or sees another name.

Letters and signs of every script are fine. Not fine are controls, which command a terminal; bidirectional controls,
which reorder what is shown; zero-width and other ignorable characters, which make two names look alike.
"""

from __future__ import annotations

import re
import unicodedata

# Printable by Unicode's categories, but without a glyph: combining grapheme joiner, Hangul fillers, Khmer inherent
# vowels, Mongolian and other variation selectors, Braille blank.
IGNORABLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
_IS_IGNORABLE = re.compile(f"[{IGNORABLE}]").search
# Controls, formats (bidirectional and zero-width ones are of them), lone surrogates, separators of lines.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def first_hidden(name: str) -> str | None:
    """Returns the first character that no name may have; None: there is none."""
    if name.isprintable() and (name.isascii() or _IS_IGNORABLE(name) is None):
        return None
    return next((character for character in name if _is_hidden(character)), None)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN_CATEGORIES or _IS_IGNORABLE(character) is not None


def code_point(character: str) -> str:
    """Returns a character's name for messages: ``U+202E``."""
    return f"U+{ord(character):04X}"
