"""Incarnations: lives of services in one process, each of which may end as a process does when it is killed.

A death first cuts the handles of the incarnation: its log, its sessions, its streams. Then it drops the tasks: each is
closed where it waits, so that its ``finally`` runs now, and reaches nothing. What they schedule then never runs.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from virtual.loop import OWNER, VirtualLoop, VirtualTask, silence

_CLOSES = 50  # a coroutine may wait in a ``finally`` so often
_TIDY_ABOVE = 256


class Incarnation:
    """One life of a service.

    :ivar dead: nothing of it runs any more.
    """

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.dead = False
        self._loop = loop
        self._tasks: dict[VirtualTask, None] = {}
        self._tidy_above = _TIDY_ABOVE
        self._cuts: list[Callable[[], None]] = []
        self._context = contextvars.copy_context()
        self._context.run(OWNER.set, self)

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Calls a function as a part of this life."""
        return self._context.run(call, *args)

    def task(self, work: Coroutine[Any, Any, Any], name: str = "") -> VirtualTask:
        """Makes a task of this life."""
        task = self._loop.create_task(work, context=self._context.copy(), name=name or self.name)
        assert isinstance(task, VirtualTask)
        return task

    def on_death(self, cut: Callable[[], None]) -> None:
        """Adds a handle to cut at the death."""
        self._cuts.append(cut)

    def adopt(self, task: VirtualTask) -> None:
        self._tasks[task] = None
        if len(self._tasks) > self._tidy_above:
            self._tasks = {each: None for each in self._tasks if not each.done()}
            self._tidy_above = 2 * len(self._tasks) + _TIDY_ABOVE

    def die(self) -> None:
        """Ends the life at once. Call it from outside of it."""
        if self.dead:
            return
        self.dead = True
        for cut in self._cuts:
            cut()
        self._loop.forget(self)
        while self._tasks:
            task, _ = self._tasks.popitem()
            if not task.done():
                silence(task)
                self._context.run(_close, task.get_coro())
        self._cuts.clear()


def _close(work: Any) -> None:
    for _ in range(_CLOSES):
        try:
            work.close()
        except RuntimeError:  # it waits again, in a ``finally``; or it runs
            continue
        except Exception:
            return
        return
