"""What keeps a service going, and how its end is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any

import structlog

log = structlog.get_logger(__name__)

# A task that ends as it should takes milliseconds.
_CANCEL_AGAIN_S = 1.0


async def together(work: Iterable[Awaitable[None]]) -> None:
    """Does all of it at once. Raises the first error, but only when all of it has ended.

    (``asyncio.gather`` lets the others go on behind its back, with what the caller takes back by then.)
    """
    for ended in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


async def until(work: Coroutine[Any, Any, None], over: Coroutine[Any, Any, object]) -> bool:
    """Does work, but only until ``over`` returns, which cancels it. Gives whether it came to its end; raises its error.

    Both have ended when this returns or raises.
    """
    doing, waiting = asyncio.create_task(work), asyncio.create_task(over)
    try:
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)
    if doing.cancelled():
        return False
    doing.result()
    return True


class Life:
    """A service's life: begun, then ended by its owner or by what fails within it.

    The tasks that it watches do not end by themselves; one that does, with an error or without, is the service's end.

    :param service: its name, for logs.
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._over: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def begin(self) -> None:
        """First of all, in the running event loop."""
        self._over = asyncio.get_running_loop().create_future()

    @property
    def alive(self) -> bool:
        """Begun, and nothing has failed; also while it is being stopped."""
        return self._over is not None and not self._over.done()

    @property
    def stopping(self) -> bool:
        """Being stopped, or stopped."""
        return self._stopping

    def watch(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Does work in a task whose end is the service's, until it is being stopped."""
        task = asyncio.create_task(work, name=f"{self._service}: {name}")
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    async def wait(self) -> None:
        """Returns when the service was stopped; raises what killed it."""
        assert self._over is not None, "start comes first"
        await asyncio.shield(self._over)

    def begin_stop(self) -> bool:
        """From now on tasks may end. False: there is nothing to stop, or somebody does it already."""
        if self._stopping or self._over is None:
            return False
        self._stopping = True
        return True

    async def cancel_tasks(self) -> None:
        """Ends what is watched; returns when all of it has ended.

        A library may swallow a cancellation (a connection that is refused at that very moment): it is said again.
        """
        left = set(self._tasks)
        while left:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)
        await asyncio.gather(*self._tasks, return_exceptions=True)  # so that their errors are seen

    def end(self) -> None:
        """Last of all: whoever waits returns."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._stopping or self._over is None or self._over.done():
            return
        error = task.exception() or RuntimeError(f"{task.get_name()} ended")
        log.error("service died", service=self._service, task=task.get_name(), exc_info=error)
        self._over.set_exception(error)
        self._over.exception()  # seen: nobody may be waiting
