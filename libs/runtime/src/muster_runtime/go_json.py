"""JSON as Go's ``encoding/json`` writes it. YuniKorn's readers expect this form, which is safe within HTML."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_ESCAPES = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)
_PLAIN = re.compile(r"[^\x00-\x1f\"\\<>&\u2028\u2029]*").fullmatch
# Sorts maps by key; structs keep their field order. Omits fields at their default where the struct says so.
_encode = msgspec.json.Encoder(order="deterministic").encode


def go_json(value: Any) -> bytes:
    """Returns compact JSON of a struct, list, map, string or number, without a line feed.

    The escaped characters occur only within strings, so this function replaces them in the finished text.
    """
    text = _encode(value)
    for plain, escaped in _ESCAPES:
        if plain in text:
            text = text.replace(plain, escaped)
    return text


def go_text(text: str) -> str:
    """Returns :func:`go_json` of a string. Faster for a string that needs no escape."""
    return f'"{text}"' if _PLAIN(text) else go_json(text).decode()


def error_body(status: int, message: str) -> bytes:
    """Returns an error in the shape that YuniKorn's REST clients expect: both texts are equal."""
    text = go_text(message)
    return f'{{"status_code":{status},"message":{text},"description":{text}}}\n'.encode()
