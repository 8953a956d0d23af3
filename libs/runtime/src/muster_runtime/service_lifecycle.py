"""A service's life: its tasks, its failure and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any

import structlog

from muster_runtime.ending import Ending

log = structlog.get_logger(__name__)

# A task normally ends within milliseconds.
_CANCEL_AGAIN_S = 1.0


async def gather_all(work: Iterable[Awaitable[None]]) -> None:
    """Awaits all of it at once. Raises the error that came first, but only when all of it has ended.

    (``asyncio.gather`` would raise while others still run, and the caller would free what they use.)
    """
    ending: Ending[BaseException] = Ending("work in parts")
    doing = [asyncio.ensure_future(awaitable) for awaitable in work]
    for future in doing:
        ending.watch(future, lambda task: asyncio.CancelledError() if task.cancelled() else task.exception())
    await asyncio.gather(*doing, return_exceptions=True)
    if ending.cause is not None:
        raise ending.cause


async def run_until(work: Coroutine[Any, Any, None], over: Coroutine[Any, Any, object]) -> bool:
    """Runs ``work`` until ``over`` returns, which cancels it. Returns whether ``work`` ended first; raises its error
    then.

    Both have ended when this returns or raises.
    """
    doing, waiting = asyncio.create_task(work), asyncio.create_task(over)
    ending: Ending[asyncio.Future[Any]] = Ending()
    for task in (doing, waiting):
        ending.watch(task, lambda task: task)
    try:
        await ending.wait()
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)
    if ending.cause is not doing:
        return False
    doing.result()
    return True


async def wait_disconnected(receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
    """Returns when an HTTP client has left.

    :param receive: ASGI's, with the request's body read.
    """
    while (await receive())["type"] != "http.disconnect":
        pass


class ServiceLifecycle:
    """A service's life. Its owner begins it. Its owner or a failure ends it.

    The watched tasks run until the service stops. If one ends earlier, with or without an error, the service ends.

    :param service: its name, for logs.
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._over: asyncio.Future[None] | None = None
        self._ending: Ending[BaseException] = Ending(service)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        """Begins the life. Call this first, in the running event loop."""
        self._over = asyncio.get_running_loop().create_future()

    @property
    def alive(self) -> bool:
        """Whether the life has begun and nothing has failed. True also while the service is being stopped."""
        return self._over is not None and not self._over.done()

    @property
    def stopping(self) -> bool:
        """Whether the service is being stopped, or is stopped."""
        return self._stopping

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs ``work`` in a task. If the task ends before the service is being stopped, the service ends."""
        task = asyncio.create_task(work, name=f"{self._service}: {name}")
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    async def wait(self) -> None:
        """Returns when the service has stopped. Raises the error that ended it."""
        assert self._over is not None, "start comes first"
        await asyncio.shield(self._over)

    def begin_stop(self) -> bool:
        """Allows tasks to end. Returns False if the life has not begun, or if it is being stopped already."""
        if self._stopping or self._over is None:
            return False
        self._stopping = True
        return True

    async def cancel_tasks(self) -> None:
        """Cancels the watched tasks. Returns when all have ended.

        A library may swallow a cancellation, for example while a connection is refused. So this method repeats it.
        """
        while remaining := [task for task in self._tasks if not task.done()]:
            for task in remaining:
                task.cancel()
            await asyncio.wait(remaining, timeout=_CANCEL_AGAIN_S)
        await asyncio.gather(*self._tasks, return_exceptions=True)  # retrieves their errors

    def finish(self) -> None:
        """Ends the life: :meth:`wait` returns. Call this last."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._stopping or self._over is None:
            return
        error = task.exception() or RuntimeError(f"{task.get_name()} ended")
        if self._ending.by(error) is not error:
            return
        log.error("service died", service=self._service, task=task.get_name(), exc_info=error)
        self._over.set_exception(error)
        self._over.exception()  # marks the error as retrieved: perhaps no task waits
