"""The judgement of all watchdogs, over readings."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
from muster_runtime.watchdog import LATE_MAX_S, Activity, Reading, Usage, Watchdog, patiently, until_stuck

BUSY, ASLEEP, BLOCKED, STOPPED = Activity.RUNNABLE, Activity.ASLEEP, Activity.BLOCKED, Activity.STOPPED
ALLOWED_S = 20.0


@dataclass(frozen=True)
class Second:
    """What happens between two looks.

    :param used_s: processor time that it used; ``waited_s``: its waits that ended; None: this kernel counts none.
    :param passed_s: the watcher's time, of which it was late for ``late_s``.
    """

    used_s: float = 0.0
    waited_s: float | None = 0.0
    activity: Activity = ASLEEP
    late_s: float = 0.0
    passed_s: float = 1.0
    moves: bool = False


def readings(seconds: Iterable[Second]) -> Iterable[tuple[int, Reading]]:
    """Yields a mark and a reading for each look; the first look is before all of them."""
    now_s, used_s, waited_s, mark = 100.0, 7.0, 3.0, 0
    yield mark, Reading(now_s, 0.0, Usage(used_s, waited_s))
    for each in seconds:
        now_s += each.passed_s
        used_s += each.used_s
        waited_s += each.waited_s or 0.0
        mark += each.moves
        usage = Usage(used_s, None if each.waited_s is None else waited_s, each.activity)
        yield mark, Reading(now_s, each.late_s, usage)


def stuck_after(seconds: Sequence[Second]) -> int | None:
    """Returns after how many of them it is stuck; None: it is not."""
    watchdog = Watchdog()
    watchdog.moves(0)
    for count, (mark, reading) in enumerate(readings(seconds)):
        if not watchdog.moves(mark) and watchdog.look(reading, ALLOWED_S):
            return count
    return None


STARVED = Second(used_s=1 / 64, waited_s=63 / 64, activity=BUSY)
NEVER_RUN = Second(activity=BUSY)
LATE = Second(late_s=3.0, passed_s=4.0)


@pytest.mark.parametrize(
    ("seconds", "after"),
    [
        # One that hangs
        ([Second(used_s=1.0, activity=BUSY)] * 30, 20),
        ([Second(used_s=0.5, waited_s=0.5, activity=BUSY)] * 60, 40),
        ([Second(used_s=3.0, activity=BUSY)] * 30, 20),  # (with three threads)
        ([Second()] * 30, 20),
        ([Second(activity=BLOCKED)] * 30, 20),
        ([Second(waited_s=0.5)] * 60, 40),
        ([Second(), *[STARVED] * 512, *[Second()] * 30], 1 + 512 + 11),  # (it slept 1 s, and used 8 s)
        # One that is starved
        ([STARVED] * 600, None),
        ([NEVER_RUN] * 600, None),
        ([*[NEVER_RUN] * 300, Second(used_s=0.01, waited_s=300.99, moves=True)], None),
        ([*[NEVER_RUN] * 300, Second(used_s=0.01, waited_s=300.99), *[Second()] * 19], None),
        ([*[NEVER_RUN] * 300, Second(used_s=0.01, waited_s=300.99), *[Second()] * 21], 321),
        ([Second(used_s=0.01, waited_s=2.5, activity=BUSY)] * 600, None),  # (several threads wait)
        ([*[Second(waited_s=8.0, activity=BUSY)] * 100, *[Second()] * 30], 120),
        # One that is stopped
        ([Second(activity=STOPPED)] * 600, None),
        ([*[Second()] * 10, *[Second(activity=STOPPED)] * 20, *[Second()] * 9], None),
        ([*[Second()] * 10, *[Second(activity=STOPPED)] * 20, *[Second()] * 12], 10 + 20 + 11),
        # A watcher that is late
        ([LATE] * 600, None),
        ([Second(late_s=LATE_MAX_S, activity=ASLEEP)] * 30, 20),
        ([*[Second()] * 19, Second(late_s=60.0, passed_s=61.0)], None),
        ([*[Second()] * 19, Second(late_s=60.0, passed_s=61.0), Second()], 21),
        ([*[LATE, Second()] * 19], None),
        # One that moves
        ([*[Second()] * 19, Second(moves=True), *[Second()] * 20], None),
        ([*[Second()] * 19, Second(moves=True), *[Second()] * 21], 41),
        ([*[Second(used_s=1.0, activity=BUSY)] * 19, Second(moves=True)] * 10, None),
        # A kernel without schedstat
        ([Second(waited_s=None)] * 30, 20),
        ([Second(used_s=1.0, waited_s=None, activity=BUSY)] * 30, 20),
        ([Second(used_s=0.01, waited_s=None, activity=BUSY)] * 600, None),
        ([Second(used_s=0.5, waited_s=None, activity=BUSY)] * 60, 40),
        ([Second(waited_s=None, activity=STOPPED)] * 600, None),
    ],
)
def test_what_had_time_and_did_not_move_is_stuck(seconds: Sequence[Second], after: int | None) -> None:
    assert stuck_after(seconds) == after


@pytest.mark.parametrize("seed", range(50))
def test_a_thread_is_judged_by_what_it_used_and_slept_whenever_it_is_looked_at(seed: int) -> None:
    """A thread's life of running, waiting and sleeping, looked at once a second: the kernel tells of a wait when it
    ends.
    """
    dice = random.Random(seed)
    share = dice.random()
    now_s = used_s = waited_s = slept_s = 0.0
    pending_s: float | None = None
    look_s, watchdog = 1.0, Watchdog()
    watchdog.moves(0)
    watchdog.look(Reading(0.0, 0.0, Usage()), ALLOWED_S)
    while now_s < 300:
        what = dice.choices((BUSY, ASLEEP, None), (1.0, share, 4.0))[0]
        length_s = dice.expovariate(1 / dice.choice((0.01, 0.3, 3.0)))
        while length_s > 0:
            step_s = min(length_s, look_s - now_s)
            now_s += step_s
            length_s -= step_s
            if what is None:
                pending_s = (pending_s or 0.0) + step_s
            else:
                waited_s, pending_s = waited_s + (pending_s or 0.0), None
                used_s += step_s if what is BUSY else 0.0
                slept_s += step_s if what is ASLEEP else 0.0
            if look_s - now_s < 1e-9:
                activity = ASLEEP if what is ASLEEP else BUSY
                watchdog.look(Reading(now_s, 0.0, Usage(used_s, waited_s, activity)), ALLOWED_S)
                look_s += 1.0
                # (The wait that goes on is known to a second, and less is counted only for what has ended.)
                true_s = used_s + slept_s
                assert true_s - 0.001 <= watchdog.available_s + 1e-6
                assert watchdog.available_s <= true_s + (pending_s or 0.0) + 0.001
                if pending_s is not None and pending_s > 2.0:
                    assert watchdog.available_s <= true_s + 1.001


def test_it_says_what_it_judged() -> None:
    watchdog = Watchdog()
    watchdog.moves(0)
    for _, reading in readings([Second(activity=BLOCKED)] * 21):
        watchdog.look(reading, ALLOWED_S)
    text = "did not move in 21 s of processor time that it could have had (blocked in the kernel)"
    assert str(watchdog) == text


async def test_what_moves_is_watched_for_ever_and_its_usage_is_not_asked() -> None:
    marks = itertools.count()

    def usage() -> Usage:
        raise AssertionError

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await until_stuck(lambda: next(marks), usage, lambda: 0.04)


async def test_work_that_is_stuck_is_cancelled_and_the_reason_told() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError, match=r"did not move in 0 s .* \(asleep\)"):
        await patiently(work(), until_stuck(lambda: 0, Usage, lambda: 0.04))
    assert cancelled.is_set()


async def test_work_that_ends_first_returns_or_raises_what_it_did() -> None:
    async def ends(result: int) -> int:
        if not result:
            raise ValueError("none")
        return result

    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    assert await patiently(ends(7), never()) == 7
    with pytest.raises(ValueError, match="none"):
        await patiently(ends(0), never())
