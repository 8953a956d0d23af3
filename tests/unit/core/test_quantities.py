"""The text form of quantities (core-features §2.4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_scheduler.core.config import InvalidQuantity, parse_quantity
from muster_scheduler.core.resources import INT64_MAX

DECIMAL = {letter: 1000**power for power, letter in enumerate(["", "k", "M", "G", "T", "P", "E"])}
BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}


@pytest.mark.parametrize(("suffix", "factor"), [*DECIMAL.items(), *BINARY.items()])
def test_every_suffix(suffix: str, factor: int) -> None:
    assert parse_quantity("memory", f"7{suffix}") == 7 * factor
    assert parse_quantity("memory", f"7 {suffix}") == 7 * factor
    assert parse_quantity("memory", f"  0{suffix}\t") == 0


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2000), ("500m", 500), ("0m", 0), ("1k", 1_000_000), ("1Ki", 1_024_000), ("007", 7000)]
)
def test_vcore_is_in_thousandths(text: str, value: int) -> None:
    assert parse_quantity("vcore", text) == value


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("memory", "", "invalid quantity"),
        ("memory", "1.5", "invalid quantity"),
        ("memory", "-1", "invalid quantity"),
        ("memory", "+1", "invalid quantity"),
        ("memory", "1e3", "invalid quantity"),
        ("memory", "1 0", "invalid quantity"),
        ("memory", "0x10", "invalid quantity|invalid suffix"),
        ("memory", "1_000", "invalid quantity"),
        ("memory", "Gi", "invalid quantity"),
        ("memory", "١٢", "invalid quantity"),
        ("memory", "1\n2", "invalid quantity"),
        ("memory", "1K", "invalid suffix 'K'"),
        ("memory", "1ki", "invalid suffix 'ki'"),
        ("memory", "1mi", "invalid suffix 'mi'"),
        ("memory", "1gi", "invalid suffix 'gi'"),
        ("memory", "1GiB", "invalid suffix 'GiB'"),
        ("memory", "1m", "invalid suffix 'm'"),
        ("cpu", "500m", "thousandths exist for vcore only"),
        ("vcore", "1mi", "invalid suffix 'mi'"),
        ("memory", "9223372036854775808", "is over"),
        ("memory", "10E", "is over"),
        ("memory", "8Ei", "is over"),
        ("vcore", "9223372036854776", "is over"),
        ("memory", "9" * 5000, "is over"),
    ],
)
def test_errors_say_what_was_expected(kind: str, text: str, why: str) -> None:
    with pytest.raises(InvalidQuantity, match=why) as raised:
        parse_quantity(kind, text)
    assert len(str(raised.value)) < 300


def test_the_largest() -> None:
    assert parse_quantity("memory", "9223372036854775807") == INT64_MAX
    assert parse_quantity("memory", "7Ei") == 7 << 60
    assert parse_quantity("vcore", "9223372036854775807m") == INT64_MAX


@given(st.text(max_size=40), st.sampled_from(["vcore", "memory"]))
def test_any_text_is_a_quantity_or_an_error_of_its_kind(text: str, kind: str) -> None:
    try:
        value = parse_quantity(kind, text)
    except InvalidQuantity:
        return
    assert 0 <= value <= INT64_MAX
