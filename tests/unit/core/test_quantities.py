"""The text form of quantities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_core.config.queue_config import InvalidQuantity, parse_quantity, quantity_text
from muster_core.model.resources import INT64_MAX

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


@given(st.integers(0, INT64_MAX), st.sampled_from(["vcore", "memory"]))
def test_a_quantity_that_is_written_is_read_back(value: int, kind: str) -> None:
    assert parse_quantity(kind, quantity_text(kind, value)) == value


@given(st.integers(0, 10**6), st.sampled_from([*DECIMAL, *BINARY]))
def test_a_vcore_is_a_thousand_of_what_others_are(value: int, suffix: str) -> None:
    text = f"{value}{suffix}"
    try:
        vcores = parse_quantity("vcore", text)
    except InvalidQuantity:
        assert value * 1000 * {**DECIMAL, **BINARY}[suffix] > INT64_MAX
    else:
        assert vcores == 1000 * parse_quantity("memory", text)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([*DECIMAL, *BINARY]))
def test_quantities_with_one_suffix_are_ordered_and_add_up(one: int, other: int, suffix: str) -> None:
    try:
        sum_ = parse_quantity("memory", f"{one + other}{suffix}")
    except InvalidQuantity:
        return
    first, second = parse_quantity("memory", f"{one}{suffix}"), parse_quantity("memory", f"{other}{suffix}")
    assert sum_ == first + second
    assert (first < second) == (one < other)
