"""The one cause of an end: of a stream, a call, a service, a process.

Several causes may end the same thing at nearly the same time, and most of them follow from the first: a log that fails
ends a stream, the client sees that and leaves, the call is cancelled. Everybody is told the first one. Later ones are
for the log of who looks into it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)

C = TypeVar("C")


class Ending(Generic[C]):
    """Keeps the first cause. It belongs to one event loop.

    :param what: what ends, for logs; None: later causes are not logged.
    :ivar cause: None: it goes on.
    """

    def __init__(self, subject: str | None = None) -> None:
        self.what = subject
        self.cause: C | None = None
        self._begun = asyncio.Event()

    def by(self, cause: C) -> C:
        """Notes a cause. Returns the first one."""
        if self.cause is None:
            self.cause = cause
            self._begun.set()
        elif cause is not self.cause and self.what is not None:
            log.info("another cause of an end", what=self.what, cause=str(self.cause), later=str(cause))
        return self.cause

    async def wait(self) -> C:
        """Returns the first cause when there is one."""
        await self._begun.wait()
        assert self.cause is not None
        return self.cause

    def watch(self, task: asyncio.Future[Any], cause_of: Callable[[asyncio.Future[Any]], C | None]) -> None:
        """Notes the cause that a task's end is. Tasks that end in one turn of the loop are taken in their order.

        :param cause_of: None: it ends nothing.
        """

        def ended(task: asyncio.Future[Any]) -> None:
            cause = cause_of(task)
            if cause is not None:
                self.by(cause)

        task.add_done_callback(ended)


async def first_of(*tasks: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """Returns the task that ended first; of those that end in one turn of the loop, the one that did so first."""
    first: Ending[asyncio.Future[Any]] = Ending()
    for task in tasks:
        first.watch(task, lambda task: task)
    return await first.wait()


def error_of(task: asyncio.Future[Any]) -> BaseException | None:
    """Returns the error that ended a task; None: it has none, or was cancelled."""
    return None if task.cancelled() else task.exception()
