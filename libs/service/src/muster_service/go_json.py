"""JSON as Go's ``encoding/json`` writes it, which is what YuniKorn's readers know: safe within HTML."""

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
# Maps by key, structs by field; fields at their default are left out where the struct says so.
_encode = msgspec.json.Encoder(order="deterministic").encode


def go_json(value: Any) -> bytes:
    """JSON of a struct, list, map, string or number: compact, without a line feed.

    Outside of strings none of the escaped characters occurs, so they are replaced in the finished text.
    """
    text = _encode(value)
    for plain, escaped in _ESCAPES:
        if plain in text:
            text = text.replace(plain, escaped)
    return text


def go_text(text: str) -> str:
    """A JSON string, quoted: the same, quicker for what needs no escape."""
    return f'"{text}"' if _PLAIN(text) else go_json(text).decode()


def error_body(status: int, message: str) -> bytes:
    """An error in the shape that YuniKorn's REST clients know: both texts are equal."""
    text = go_text(message)
    return f'{{"status_code":{status},"message":{text},"description":{text}}}\n'.encode()
