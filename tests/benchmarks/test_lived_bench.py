"""The figures of a Muster that has lived, and of pauses."""

from __future__ import annotations

from bench.lived_bench import HOUR_OPERATIONS, LARGE, operations, ratios
from bench.pauses import Pause
from bench.pauses_bench import rows


def figures(rate: float, cpu_s: float) -> dict[str, float]:
    return {"allocations_per_s": rate, "releases_per_s": rate, "cpu_s": cpu_s, "cpu_asking_s": cpu_s}


def test_ratios_are_those_to_what_is_usual_of_new_ones_and_one_is_as_fast() -> None:
    new = [figures(100.0, 4.0), figures(110.0, 2.0), figures(90.0, 3.0)]
    found = ratios([figures(100.0, 3.0), figures(80.0, 6.0), figures(120.0, 3.0)], new)
    assert found["allocations_per_s"] == {"median": 1.0, "worst": 0.8}
    assert found["cpu_s"] == {"median": 1.0, "worst": 0.5}


def test_a_life_has_an_hour_of_operations() -> None:
    assert operations(LARGE) == 110_200
    assert HOUR_OPERATIONS == 3_600_000


def test_a_pause_is_a_row_with_what_ran_where_and_its_collections() -> None:
    pause = Pause(at_s=7.4, what="task X.run", ms=12.5, cpu_ms=9.0, where=["a.b:1", "c.d:2"], collections=[(1, 2.5)])
    head, _, row, _, kinds = rows([pause], 25)
    assert head.startswith("| at, s |")
    assert row == "| 7 | 12.5 | 9.0 | `task X.run` | `a.b:1` | middle 2.5 ms |"
    assert kinds == "Of the 1 longest: 1 `task X.run`"
