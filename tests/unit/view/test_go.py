"""What readers see of Go: escapes, durations, query unescaping."""

from __future__ import annotations

import pytest
from muster_scheduler.view import go
from muster_service.go_json import go_json


@pytest.mark.parametrize(("value", "shown"), [(1.0, b"1"), (0.5, b"0.5"), (0.0, b"0"), (-3.0, b"-3")])
def test_a_float_without_fraction_prints_without(value: float, shown: bytes) -> None:
    assert go_json(go.number(value)) == shown


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("30s", "30s"),
        ("5m", "5m0s"),
        ("1h", "1h0m0s"),
        ("90m", "1h30m0s"),
        ("1h30m5s", "1h30m5s"),
        ("1.5s", "1.5s"),
        ("20ms", "20ms"),
        ("1500us", "1.5ms"),
        ("250ns", "250ns"),
        ("7µs", "7µs"),
        ("0", "0s"),
        ("-2s", "-2s"),
        (" 10s ", "10s"),
    ],
)
def test_durations_are_read_and_printed_as_go_does(text: str, printed: str) -> None:
    value_ns = go.parse_duration(text)
    assert value_ns is not None
    assert go.duration(value_ns) == printed


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "1d", "abc", "1h-5m", "\u0665s"])
def test_what_is_no_duration(text: str) -> None:
    assert go.parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "unescaped"),
    [("root.a", "root.a"), ("a%40b", "a@b"), ("a+b", "a b"), ("%", None), ("%4", None), ("%zz", None)],
)
def test_query_unescape(text: str, unescaped: str | None) -> None:
    assert go.query_unescape(text) == unescaped
