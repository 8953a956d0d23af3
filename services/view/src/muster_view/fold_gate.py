"""Folding and long answers take turns on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator

from muster_bus.clock import Clock


class TimeSlice:
    """Time that one piece of work may keep the event loop.

    ::

        slice_ = Slice(clock, 0.005)
        for each in work:
            ...
            if slice_.used_up():
                await slice_.rest()

    :ivar length_s: of the slices behind the present one.
    """

    def __init__(self, clock: Clock, length_s: float) -> None:
        self._monotonic, self.length_s = clock.monotonic, length_s
        self._since_s = self._monotonic()
        self._until_s = self._since_s + length_s
        self._before_s = 0.0

    def is_over(self) -> bool:
        """Whether other tasks must get a turn now."""
        return self._monotonic() >= self._until_s

    async def yield_loop(self, pause_s: float = 0.0) -> None:
        """Gives other tasks a turn; ``pause_s``: for so long."""
        self._before_s += self._monotonic() - self._since_s
        await asyncio.sleep(pause_s)
        self._since_s = self._monotonic()
        self._until_s = self._since_s + self.length_s

    @property
    def worked_s(self) -> float:
        """The time of the work itself, without the turns of other tasks."""
        return self._before_s + self._monotonic() - self._since_s


class FoldGate:
    """Holds folding back while an answer of several slices is rendered, so that the answer is of one moment.

    The hold is bounded: ``hold_s`` after the first of overlapping holders began, folding continues beside them. What
    the fold drops stays whole until all answers that may read it have ended.
    """

    def __init__(self, clock: Clock, hold_s: float) -> None:
        self._clock, self._hold_s = clock, hold_s
        self._holders = 0
        self._until_s = 0.0
        self._free = asyncio.Event()
        self._answering: dict[int, None] = {}  # by number, oldest first
        self._answers = 0
        self._awaiting: dict[int, float] = {}  # by number, when they began: the first one is the oldest
        self._waits = 0

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Is around each answer, from its first look at the state to its last."""
        self._answers = number = self._answers + 1
        self._answering[number] = None
        try:
            yield
        finally:
            del self._answering[number]

    @property
    def answers(self) -> int:
        """How many answers have begun so far: all later ones see only what is there now."""
        return self._answers

    def ended(self, answers: int) -> bool:
        """Whether the first so many answers have ended."""
        return next(iter(self._answering), answers + 1) > answers

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        """Is around the wait of a read for what a partition has not folded yet."""
        self._waits = number = self._waits + 1
        self._awaiting[number] = self._clock.monotonic()
        try:
            yield
        finally:
            del self._awaiting[number]

    def is_awaited(self, for_s: float = 0.0) -> bool:
        """Whether a read has waited for so long for what any partition has not folded yet."""
        began_s = next(iter(self._awaiting.values()), math.inf)
        return self._clock.monotonic() - began_s >= for_s

    @property
    def is_blocked(self) -> bool:
        """Whether an answer is being rendered."""
        return self._holders > 0

    @contextlib.contextmanager
    def block_folding(self) -> Iterator[None]:
        """Holds folding back, within the limit."""
        if not self._holders:
            self._until_s = self._clock.monotonic() + self._hold_s
            self._free.clear()
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                self._free.set()

    async def wait_open(self) -> None:
        """Returns when folding may continue."""
        if not self._holders:
            return
        left_s = self._until_s - self._clock.monotonic()
        if left_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._free.wait()


async def cooperate(steps: Iterator[None], clock: Clock, slice_s: float) -> None:
    """Exhausts steps of work, with turns for others in between."""
    slice_ = TimeSlice(clock, slice_s)
    for _ in steps:
        if slice_.is_over():
            await slice_.yield_loop()
