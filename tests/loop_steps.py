"""Measures the single steps of an event loop: the processor time of each callback, and what it was."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class LoopSteps:
    """The longest steps since the last :meth:`clear`.

    :ivar found: (processor time in s, what ran) of each step of at least ``least_s``, in their order.
    """

    least_s: float = 0.005
    count: int = 0
    found: list[tuple[float, str]] = field(default_factory=list)

    _last: int = 0
    _call: Callable[[], None] | None = None

    def before(self, count: int, call: Callable[[], None]) -> None:
        """Calls so many steps from now, right before the next one."""
        self._last, self._call = self.count + count, call

    def begin(self) -> None:
        """A step begins."""
        if self._call is not None and self.count >= self._last:
            self._call()

    def clear(self) -> None:
        self.count = 0
        self.found.clear()

    @property
    def longest_s(self) -> float:
        return max((seconds for seconds, _ in self.found), default=0.0)

    def longest(self, count: int = 3) -> list[tuple[float, str]]:
        """The longest ones, in ms, with what ran."""
        return [(round(seconds * 1000, 1), what) for seconds, what in sorted(self.found, reverse=True)[:count]]


@contextlib.contextmanager
def measured_steps(least_s: float = 0.005) -> Iterator[LoopSteps]:
    """Measures every step of the loops of this thread's process while the context is open.

    Processor time of the thread, so other load does not change it.
    """
    steps = LoopSteps(least_s)
    run = asyncio.events.Handle._run  # type: ignore[attr-defined]

    def timed(handle: asyncio.Handle) -> None:
        steps.begin()
        began_s = time.thread_time()
        run(handle)
        used_s = time.thread_time() - began_s
        steps.count += 1
        if used_s >= least_s:
            steps.found.append((used_s, _name(handle)))

    asyncio.events.Handle._run = timed  # type: ignore[attr-defined]
    try:
        yield steps
    finally:
        asyncio.events.Handle._run = run  # type: ignore[attr-defined]


def _name(handle: asyncio.Handle) -> str:
    call = handle._callback  # type: ignore[attr-defined]
    task = getattr(call, "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"task {task.get_name()} {getattr(task.get_coro(), '__qualname__', '')}"
    return getattr(call, "__qualname__", repr(call))
