"""An event loop whose time is virtual.

Time jumps to the next timer when nothing is ready. There are no sockets, no threads and no sleeping. The order in which
ready tasks run is drawn from a seed; what one task makes ready keeps its order. Work of executors runs inline, at a
drawn moment. Each reading of the clock costs some drawn microseconds, so that slices and budgets run out.

A task belongs to an incarnation (``incarnations.py``), by its context. What a dead incarnation scheduled never runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import sys
import threading
from asyncio import events
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

READING_S = (1e-6, 5e-6)  # what a reading of the clock costs
EXECUTOR_S = (1e-5, 5e-3)  # after so long, work of an executor is done
_COSTS = 4096
_CANCELLED_MAX = 1000


class Owner(Protocol):
    """What a task belongs to."""

    dead: bool

    def adopt(self, task: VirtualTask) -> None:
        """Takes note of a new task."""
        ...


OWNER: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("OWNER", default=None)


class Stuck(Exception):
    """Nothing is ready, and nothing ever will be."""


class VirtualFuture(asyncio.Future[Any]):
    """A future with a number, so that sets of futures are in the same order in each run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualTask(asyncio.Task[Any]):
    """A task with a number."""

    def __init__(self, work: Any, loop: asyncio.AbstractEventLoop, context: Any, number: int) -> None:
        self.number = number  # (asyncio keeps the task, by its hash, while it is made)
        super().__init__(work, loop=loop, context=context)

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module's docstring.

    :param seed: of all draws.
    :ivar turns: iterations so far.
    """

    def __init__(self, seed: object) -> None:
        super().__init__()
        self.dice = random.Random(f"{seed}/loop")
        self._now = 1000.0
        self._costs = [self.dice.uniform(*READING_S) for _ in range(_COSTS)]
        self._cost = 0
        self._count = 0
        # By time, and then in the order in which they were set.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._tidy_above = _CANCELLED_MAX
        self._batch: list[Any] = []  # what runs in this turn
        self.turns = 0
        self.reordered = 0
        self.executed = 0
        self.set_task_factory(self._make_task)

    # ---- time --------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        self._cost = cost = (self._cost + 1) % _COSTS
        self._now += self._costs[cost]
        return self._now

    @property
    def now_s(self) -> float:
        """The time, without a reading's cost."""
        return self._now

    # ---- one turn ----------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        self.turns += 1
        # 1. time
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Stuck("nothing is ready, and no timer is set")
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            if not timer._cancelled:
                ready.append(timer)
        if len(timers) > self._tidy_above:
            self._timers = timers = [each for each in timers if not each[2]._cancelled]
            heapq.heapify(timers)
            self._tidy_above = 2 * len(timers) + _CANCELLED_MAX
        # 2. what is ready now; tasks in a drawn order, in the places of tasks
        count = len(ready)
        if count == 1:
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
            return
        batch = self._batch = [ready.popleft() for _ in range(count)]
        self._reorder(batch)
        for handle in batch:
            if not handle._cancelled:
                handle._run()
        self._batch = []

    def _reorder(self, batch: list[Any]) -> None:
        places = [
            place
            for place, handle in enumerate(batch)
            if isinstance(getattr(handle._callback, "__self__", None), VirtualTask)
        ]
        if len(places) < 2:
            return
        random_ = self.dice.random
        drawn = sorted(places, key=lambda _: random_())
        steps = [batch[place] for place in drawn]
        for place, handle in zip(places, steps, strict=True):
            batch[place] = handle
        self.reordered += 1

    # ---- what belongs to an incarnation ------------------------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        if context is None:
            context = contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        owner = context.get(OWNER)
        if owner is not None and owner.dead:
            handle._cancelled = True
        else:
            self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        if context is None:
            context = contextvars.copy_context()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        owner = context.get(OWNER)
        if owner is not None and owner.dead:
            timer._cancelled = True
        else:
            self._timer_count = count = self._timer_count + 1
            heapq.heappush(self._timers, (when, count, timer))
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> VirtualFuture:
        future = VirtualFuture(loop=self)
        self._count = future.number = self._count + 1
        return future

    def _make_task(
        self,
        _: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        context: contextvars.Context | None = None,
    ) -> VirtualTask:
        owner = context.get(OWNER) if context is not None else OWNER.get()
        self._count += 1
        task = VirtualTask(work, self, context, self._count)
        if owner is not None:
            if owner.dead:
                silence(task)
                work.close()
            else:
                owner.adopt(task)
        return task

    def forget(self, owner: Owner) -> None:
        """Drops everything that a dead incarnation has scheduled."""
        timers = [timer for _, _, timer in self._timers]
        for handle in (*self._batch, *self._ready, *timers):  # type: ignore[attr-defined]
            if not handle._cancelled and handle._context.get(OWNER) is owner:
                handle.cancel()

    # ---- what a loop has ---------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Runs the work inline, at a drawn moment."""
        done = self.create_future()

        def work() -> None:
            self.executed += 1
            if done.cancelled():
                return
            try:
                result = func(*args)
            except StopIteration as error:
                done.set_exception(RuntimeError(f"StopIteration in an executor: {error}"))
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self.call_later(self.dice.uniform(*EXECUTOR_S), work)
        return done

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Raises ConnectionRefusedError: whatever wants a socket finds nobody."""
        raise ConnectionRefusedError(f"{address} in virtual time")

    def run_forever(self) -> None:
        self._check_closed()  # type: ignore[attr-defined]
        self._check_running()  # type: ignore[attr-defined]
        hooks = sys.get_asyncgen_hooks()
        self._thread_id = threading.get_ident()
        sys.set_asyncgen_hooks(firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook)  # type: ignore[attr-defined]
        events._set_running_loop(self)
        try:
            while True:
                self._run_once()
                if self._stopping:  # type: ignore[has-type]
                    break
        finally:
            self._stopping = False
            self._thread_id = None  # type: ignore[assignment]
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _write_to_self(self) -> None:
        """There is nothing to wake."""

    def _process_events(self, event_list: Any) -> None:
        """There are none."""


def silence(task: asyncio.Task[Any]) -> None:
    """Says nothing when a task that never ends is freed."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
