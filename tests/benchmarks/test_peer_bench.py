"""The tables of the measurements from socket to socket show the measured figures."""

from __future__ import annotations

from typing import Any

from bench import compare_bench, peer_bench


def result(runs: dict[str, Any]) -> dict[str, Any]:
    machine = {"cores": 2, "architecture": "x86_64", "python": "3.11", "commit": "abc", "load_before": 0.1}
    return {"machine": machine, "measured_at": "2026-11-26T00:00:00Z", "rounds": 3, "revision": "def", "runs": runs}


def test_a_row_has_medians_ratios_and_goals() -> None:
    peer = [{"allocations_per_s": value} for value in (1_000.0, 900.0, 2_000.0)]
    own = [{"allocations_per_s": value} for value in (1_500.0, 1_600.0, 1_400.0)]
    made = peer_bench.table(result({"front": {"peer": peer, "embedded": own}}) | {"systems": ["peer", "embedded"]})
    (row,) = [line for line in made.splitlines() if "10,000 asks up front" in line]
    assert row.split(" | ")[1:] == ["1,000 (900-2,000)", "1,500 (1,400-1,600)", "1.50", "≥ 1.5 x |"]
    assert "Medians of 3 rounds" in made


def test_the_table_stands_between_its_marks() -> None:
    page = peer_bench.PAGE.read_text()
    made = peer_bench.between_marks(page, "| the table |")
    assert "| the table |" in made
    assert peer_bench.between_marks(made, "| another |") == peer_bench.between_marks(page, "| another |")


def test_what_is_worse_by_more_than_ten_percent_is_a_warning() -> None:
    before = [{"allocations_per_s": 1_000.0, "latency_p50_ms": 1.0, "latency_p99_ms": 5.0}]
    now = [{"allocations_per_s": 850.0, "latency_p50_ms": 1.05, "latency_p99_ms": 6.0}]
    made, warnings = compare_bench.table(result({"front": {"before": before, "now": now}}))
    assert "| front | latency_p50_ms | 1.00 (1.00-1.00) | 1.05 (1.05-1.05) | 1.05 |" in made
    assert [each.split(":")[1].split(" is")[0].strip() for each in warnings] == ["allocations_per_s", "latency_p99_ms"]
    assert "worse by 15 %" in warnings[0]
    assert "worse by 20 %" in warnings[1]
