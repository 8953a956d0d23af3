"""The one judgement of all watchdogs: what could have moved for long enough, and did not, is stuck.

The terms:

mark
    Anything that is another value after each movement of what is watched: messages heard, a position in a log.
available time
    Processor time (seconds) that what is watched used, or could have had, since it last moved. Asleep, or blocked in
    the kernel, it could have had the processor. While it waits in the run queue (other programs have the processor, or
    its control group's share is used up) or is stopped (SIGSTOP, a debugger), it could not.
lateness
    How much later than planned the watcher itself got to look. A late watcher judges nobody: what is watched may have
    moved, and the watcher has not read it yet.

So a starved program has little available time however long it is silent, and one that hangs has a second of it in
each second of a machine that is not busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from muster_runtime.backoff import aligned_s

# How often a watcher looks (seconds).
LOOK_S = 1.0
# A watcher that is later was itself not run. A turn of a busy loop takes less.
LATE_MAX_S = 0.5
# Looks within the shortest limit.
_LOOKS_MIN = 4

T = TypeVar("T")


class Activity(StrEnum):
    """What a program did when it was looked at; the values end a sentence."""

    RUNNABLE = "busy"
    ASLEEP = "asleep"
    BLOCKED = "blocked in the kernel"
    STOPPED = "stopped"


class Usage(NamedTuple):
    """A program's use of the processor so far. Without arguments: of one that nothing is known about, which counts as
    asleep.

    :param used_s: processor time, of all its threads.
    :param waited_s: time in the run queue, of all its threads, up to when each last got the processor; None: unknown.
    """

    used_s: float = 0.0
    waited_s: float | None = 0.0
    activity: Activity = Activity.ASLEEP


class Reading(NamedTuple):
    """One look.

    :param now_s: of the watcher's clock.
    :param late_s: the watcher's lateness.
    """

    now_s: float
    late_s: float
    usage: Usage = Usage()


class Watchdog:
    """Judges one thing by readings. It has no clock and asks nobody.

    :ivar available_s: since it moved, as of the last look.
    :ivar activity: at the last look.
    """

    def __init__(self) -> None:
        self._mark: Hashable = _NONE
        self._last: Reading | None = None
        # Processor time that it used, and the same with what it could have had: less the wait that goes on.
        self._used_s = self._had_s = self.available_s = 0.0
        self._same_since_s = 0.0
        self.activity = Activity.ASLEEP

    def moves(self, mark: Hashable) -> bool:
        """Tells whether it has moved since the last call. Then all that was counted is forgotten."""
        if mark == self._mark:
            return False
        self._mark, self._last = mark, None
        self._used_s = self._had_s = self.available_s = 0.0
        return True

    def look(self, reading: Reading, allowed_s: float) -> bool:
        """Takes a reading of something that has not moved since the one before. Tells whether it is stuck: its
        available time is ``allowed_s`` or more. The first reading after a movement only begins the count.
        """
        last, self._last = self._last, reading
        now, self.activity = reading.usage, reading.usage.activity
        if last is None:
            self._same_since_s = reading.now_s
            return False
        before = last.usage
        passed_s = max(0.0, reading.now_s - last.now_s)
        used_s = min(passed_s, max(0.0, now.used_s - before.used_s))
        # 1. the wait that is over, which may have begun before the last look
        if now.waited_s is not None and before.waited_s is not None:
            waited_s = max(0.0, now.waited_s - before.waited_s)
        else:
            waited_s = passed_s - used_s if now.activity is Activity.RUNNABLE else 0.0
        # 2. the wait that goes on: since a look, it was runnable at all looks and never got the processor
        runnable = now.activity is before.activity is Activity.RUNNABLE
        if not runnable or now[:2] != before[:2]:
            self._same_since_s = reading.now_s
        # 3. nothing is available while it was stopped, or the watcher late
        is_late = reading.late_s > LATE_MAX_S
        if is_late or Activity.STOPPED in (now.activity, before.activity):
            waited_s = max(waited_s, passed_s)
        else:
            self._used_s += used_s
        self._had_s = max(self._used_s, self._had_s + passed_s - waited_s)
        self.available_s = max(self._used_s, self._had_s - (reading.now_s - self._same_since_s))
        return not is_late and self.available_s >= allowed_s

    def __str__(self) -> str:
        """Describes what was judged, after the name of what is watched."""
        available = f"{self.available_s:.0f} s of processor time that it could have had"
        return f"did not move in {available} ({self.activity.value})"


_NONE = object()


async def until_stuck(mark: Callable[[], Hashable], usage: Callable[[], Usage], allowed_s: Callable[[], float]) -> str:
    """Watches until it is stuck, by the running loop's time. Returns a sentence without its subject.

    :param usage: called only while nothing moves.
    """
    loop, watchdog = asyncio.get_running_loop(), Watchdog()
    while True:
        due_s = loop.time() + aligned_s(look_every_s(allowed_s()))
        await asyncio.sleep(due_s - loop.time())
        if not watchdog.moves(mark()):
            now_s = loop.time()
            if watchdog.look(Reading(now_s, now_s - due_s, usage()), allowed_s()):
                return str(watchdog)


def look_every_s(allowed_s: float) -> float:
    """Returns how often something is looked at that is stuck after ``allowed_s``."""
    return min(LOOK_S, allowed_s / _LOOKS_MIN)


async def patiently(work: Coroutine[Any, Any, T], stuck: Coroutine[Any, Any, str]) -> T:
    """Returns what ``work`` returns. Raises TimeoutError with the sentence of ``stuck`` if that returns first: then
    ``work`` was cancelled, and has ended.
    """
    doing, watching = asyncio.create_task(work), asyncio.create_task(stuck)
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (doing, watching):
            task.cancel()
        await asyncio.gather(doing, watching, return_exceptions=True)
    if doing.cancelled():
        raise TimeoutError(watching.result())
    return doing.result()
