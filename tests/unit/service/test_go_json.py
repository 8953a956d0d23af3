"""JSON byte for byte as Go's encoding/json writes it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_runtime.go_json import error_body, go_json, go_text


def test_json_is_compact_with_sorted_keys() -> None:
    assert go_json({"vcore": 1000, "memory": 5}) == b'{"memory":5,"vcore":1000}'


def test_json_escapes_what_html_or_javascript_would_read() -> None:
    assert go_json("<b>&\u2028\u2029") == b'"\\u003cb\\u003e\\u0026\\u2028\\u2029"'
    assert go_json({"a&b": 'é"\\\n'}) == b'{"a\\u0026b":"' + "é".encode() + b'\\"\\\\\\n"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", '"plain"'),
        ("<a&b>", '"\\u003ca\\u0026b\\u003e"'),
        ('q"b\\s/', '"q\\"b\\\\s/"'),
        ("\b\f\n\r\t\x00\x1f", '"\\b\\f\\n\\r\\t\\u0000\\u001f"'),
        ("\x7f", '"\x7f"'),
        ("\u2028\u2029", '"\\u2028\\u2029"'),
        ("é😀", '"é😀"'),
    ],
)
def test_texts_are_escaped_as_in_go(text: str, expected: str) -> None:
    assert go_text(text) == expected


@given(st.text())
def test_texts_come_back(text: str) -> None:
    written = go_text(text)
    assert json.loads(written) == text
    assert not set("<>&\u2028\u2029") & set(written)


def test_an_errors_texts_are_equal() -> None:
    assert error_body(400, "a<b") == b'{"status_code":400,"message":"a\\u003cb","description":"a\\u003cb"}\n'
