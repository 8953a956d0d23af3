"""The reasons why the fold makes the windows of usage, not Faust: each case in Faust alone and in the fold.

Usage is a held quantity multiplied by its duration. Faust's windowed tables change only while an event of the window
is processed. They are exact for counts of events (``examples/python/faust_consumer.py``), not for durations between
events.
"""

from __future__ import annotations

from typing import Any

import faust
import pytest
from muster_event_publisher.derive.usage_fold import S_IN_NS, FactKind, RmUsage, SubjectKind, UsageFact

MINUTE_NS = 60 * S_IN_NS
START_NS = 1_750_000_020 * S_IN_NS  # a window begins


async def held_by_faust(changes: list[tuple[int, int]]) -> dict[int, float]:
    """Return vcore-seconds by window, as an agent with a windowed table would sum them.

    :param changes: time in ns, and the quantity that is held from then on.
    """
    app = faust.App("windows", store="memory://", autodiscover=False, web_enabled=False)
    held = app.Table("held", default=float)
    sums = app.Table("sums", default=float).tumbling(60.0)

    async def agent(stream: Any) -> None:
        async for value in stream:
            now_s = value["at_s"]
            sums["app"] += held["vcore"] * (now_s - held["since_s"]) if held["since_s"] else 0.0
            held["vcore"], held["since_s"] = value["vcore"], now_s

    async with app.agent(name="sum")(agent).test_context() as feeding:
        for at_ns, vcore in changes:
            at_s = at_ns / S_IN_NS  # (Kafka and Faust have times as milliseconds and as floats)
            await feeding.put({"vcore": vcore, "at_s": at_s}, timestamp=at_s)
    return {int(window[0]): value for (_, window), value in sums.table.data.items()}


def held_by_the_fold(changes: list[tuple[int, int]]) -> dict[int, int]:
    fold, held, shown = RmUsage(MINUTE_NS, 60), 0, {}
    fold.flush()
    for number, (at_ns, vcore) in enumerate(changes):
        step = FactKind.GAIN if vcore > held else FactKind.LOSS
        fold.apply(number, at_ns, UsageFact(step, SubjectKind.USER, "app", {"vcore": abs(vcore - held)}))
        held = vcore
        shown |= {one.start_ns // S_IN_NS: one for one in fold.flush().windows}
    return {start_s: one.quantity_ns.get("vcore", 0) for start_s, one in shown.items()}


async def test_usage_across_windows_falls_into_its_last_window() -> None:
    changes = [(START_NS + 50 * S_IN_NS, 1), (START_NS + 190 * S_IN_NS, 0)]  # 10, 60, 60 and 10 seconds
    start_s = START_NS // S_IN_NS
    assert await held_by_faust(changes) == {start_s: 0.0, start_s + 180: 140.0}
    # (The two in between follow from the quantity at the end of the first one: docs/usage.md.)
    assert held_by_the_fold(changes) == {start_s: 10 * S_IN_NS, start_s + 180: 10 * S_IN_NS}


async def test_times_are_floats_and_an_event_falls_into_the_next_window() -> None:
    last_ns = START_NS + MINUTE_NS - 1
    start_s = START_NS // S_IN_NS
    assert await held_by_faust([(last_ns, 1)]) == {start_s + 60: 0.0}
    assert held_by_the_fold([(last_ns, 1)]) == {start_s: 1}


@pytest.mark.parametrize("held_ns", [1, 100])
async def test_sums_are_floats_and_lose_what_is_short(held_ns: int) -> None:
    changes = [(START_NS + S_IN_NS, 7), (START_NS + S_IN_NS + held_ns, 0)]
    start_s = START_NS // S_IN_NS
    assert (await held_by_faust(changes))[start_s] * S_IN_NS != 7 * held_ns
    assert held_by_the_fold(changes) == {start_s: 7 * held_ns}


async def test_an_older_time_opens_a_window_that_was_written_already() -> None:
    changes = [(START_NS, 1), (START_NS + 70 * S_IN_NS, 2), (START_NS + 50 * S_IN_NS, 0)]
    start_s = START_NS // S_IN_NS
    # Minus two times twenty seconds: time goes back between the two events, and so does the sum.
    assert await held_by_faust(changes) == {start_s: -40.0, start_s + 60: 70.0}
    assert held_by_the_fold(changes) == {start_s: 60 * S_IN_NS, start_s + 60: 10 * S_IN_NS}


def test_a_windows_key_in_its_changelog_is_not_the_one_of_the_topic() -> None:
    """A table's changes also lack the headers by which readers of ``si.usage`` drop older versions."""
    app = faust.App("windows", store="memory://", autodiscover=False, web_enabled=False)
    table: Any = app.Table("sums", default=float, key_type=str)
    assert "headers" not in type(table).send_changelog.__code__.co_varnames
    windowed = table.tumbling(60.0)
    assert windowed.table is table
    start_s, end_s = table.window.current(START_NS / S_IN_NS)
    assert (start_s, end_s) == (START_NS / S_IN_NS, START_NS / S_IN_NS + 59.9)  # the last tenth belongs to no window
