"""Characters that a reader does not see as themselves, and a way to show them.

A terminal obeys control characters: ESC sequences move the cursor, set the title, or hide what was printed before.
Bidirectional controls reorder a line, so that an id reads as another one. Zero-width and other ignorable characters
make two different ids look the same.
"""

from __future__ import annotations

import re

from muster_si.characters import IGNORABLE

_IS_IGNORABLE = re.compile(f"[{IGNORABLE}]")
_BREAKS = "\n\t"


def is_invisible(character: str) -> bool:
    """Tells whether a character is a control, a format, a separator other than a blank, unassigned, a lone surrogate,
    for private use, or has no glyph.
    """
    return not character.isprintable() or _IS_IGNORABLE.match(character) is not None


def first_invisible(text: str) -> str | None:
    """Returns the first such character; None: there is none."""
    if text.isascii():
        return None if text.isprintable() else next(character for character in text if not character.isprintable())
    if text.isprintable() and _IS_IGNORABLE.search(text) is None:
        return None
    return next(character for character in text if is_invisible(character))


def visible(text: str, *, breaks: bool = True) -> str:
    r"""Returns a text in which each invisible character is written out: ``\x1b``, ``\u202e``.

    :param breaks: keep line breaks and tabs, because the text is the caller's own; False for a value.
    """
    if first_invisible(text) is None:
        return text
    kept = _BREAKS if breaks else ""
    return "".join(
        character if character in kept or not is_invisible(character) else _written(character) for character in text
    )


def visible_json(text: str) -> str:
    r"""Returns a JSON text with the same meaning, in which invisible characters are escapes: ``\u202e``."""
    if first_invisible(text) is None:
        return text
    return "".join(
        character if character == "\n" or not is_invisible(character) else _escaped(character) for character in text
    )


def _written(character: str) -> str:
    if character in "\n\r\t":
        return repr(character)[1:-1]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
