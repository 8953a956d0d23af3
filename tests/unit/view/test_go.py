"""Go's formats in answers: escapes, durations, query unescaping."""

from __future__ import annotations

import pytest
from muster_core.config.properties import parse_duration_ns
from muster_runtime.go_json import go_json
from muster_view.rest import go_format


@pytest.mark.parametrize(("value", "shown"), [(1.0, b"1"), (0.5, b"0.5"), (0.0, b"0"), (-3.0, b"-3")])
def test_a_float_without_fraction_prints_without(value: float, shown: bytes) -> None:
    assert go_json(go_format.number(value)) == shown


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
    ],
)
def test_durations_are_printed_as_go_does(text: str, printed: str) -> None:
    assert go_format.duration(parse_duration_ns(text)) == printed


@pytest.mark.parametrize(
    ("text", "unescaped"),
    [("root.a", "root.a"), ("a%40b", "a@b"), ("a+b", "a b"), ("%", None), ("%4", None), ("%zz", None)],
)
def test_query_unescape(text: str, unescaped: str | None) -> None:
    assert go_format.query_unescape(text) == unescaped
