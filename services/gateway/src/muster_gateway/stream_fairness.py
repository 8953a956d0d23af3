"""Turns between the streams of a gateway: by steps of work; and which RMs are active."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

from muster_runtime.elapsed import elapsed_s

T = TypeVar("T")

# A go ends with the step that is under way after so long.
_SLICE_S = 0.0005
# A go comes in one of so many passes: an ask of another RM needs a dozen. A pass without other work costs nothing.
_PASSES = 3
# An RM without a request and without a response for one to two of these times is not active.
ACTIVE_S = 60.0


class StepTurns:
    """Runs the steps of large messages between the other tasks of the loop: one go in a few passes, callers in turn.

    So many messages at the same time hold up the loop no longer than one. The messages of one caller wait for each
    other, not for other callers'.

    :param now_s: measures a go.
    """

    def __init__(self, now_s: Callable[[], float] = elapsed_s) -> None:
        self._now_s = now_s
        self._running = 0
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # by caller; the first one is next
        self._is_due = False
        self._passes = 0  # since the last go

    async def run(self, caller: str, steps: Generator[None, None, T]) -> T:
        """Returns the result of the steps. A message that is one step passes at once."""
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        self._running += 1
        try:
            while True:
                if self._running == 1:
                    for _ in range(_PASSES):
                        await asyncio.sleep(0)
                else:
                    await self._wait_in_line(caller)
                ends_s = self._now_s() + _SLICE_S
                while True:
                    next(steps)
                    if self._now_s() >= ends_s:
                        break
        except StopIteration as end:
            ended: T = end.value
            return ended
        finally:
            self._running -= 1

    async def _wait_in_line(self, caller: str) -> None:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._lines.setdefault(caller, deque()).append(waiting)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next)
        await waiting

    def _next(self) -> None:
        """Lets the next caller's first message go on. Its line comes after all others'."""
        self._passes += 1
        while self._lines and self._passes >= _PASSES:
            caller = next(iter(self._lines))
            line = self._lines.pop(caller)
            waiting = line.popleft()
            if line:
                self._lines[caller] = line
            if not waiting.done():  # a cancelled one is passed over
                waiting.set_result(None)
                self._passes = 0
        self._is_due = bool(self._lines)
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._next)


class ActiveRms:
    """The RMs of a partition that were active lately: through whichever gateway, since all read the same responses.

    :param lasts_s: one to two of these times is *lately*.
    """

    def __init__(self, now_s: float = 0.0, lasts_s: float = ACTIVE_S) -> None:
        self._since_s, self._lasts_s = now_s, lasts_s
        self._present: set[bytes] = set()
        self._before: set[bytes] = set()  # those of the time before
        self._all: set[bytes] = set()

    def record(self, key: bytes) -> None:
        """Notes a request of an RM, or a response to it. Cheap."""
        self._present.add(key)
        self._all.add(key)

    def expire(self, now_s: float) -> None:
        """Forgets RMs that have not been active for a while. The caller calls this now and then."""
        if now_s - self._since_s >= self._lasts_s:
            self._since_s = now_s
            self._before, self._present = self._present, set()
            self._all = set(self._before)

    def other_count(self, key: bytes) -> int:
        """Returns the number of active RMs beside this one."""
        return len(self._all) - (key in self._all)
