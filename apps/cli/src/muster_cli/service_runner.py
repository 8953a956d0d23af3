"""Runs services in one process: starts them in order, watches them, and stops them in the reverse order.

Crash-only: if one service ends by itself, the others are stopped and the process ends with an error. Its supervisor
then starts it again. The log makes a restart safe; a process with only some of its services would not be.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog
from muster_runtime.ending import Ending, error_of
from muster_runtime.systemd import STOPPING, notify

from muster_cli.errors import ServiceDied, StartFailed

log = structlog.get_logger(__name__)

READY_POLL_S = 0.05  # interval of the checks whether all services are ready


class RunnableService(Protocol):
    """The interface of every service class."""

    async def start(self) -> None:
        """Returns when the service works or is trying to. Raises if it cannot start."""
        ...

    async def wait(self) -> None:
        """Returns when the service has stopped. Raises the error that ended it."""
        ...

    async def stop(self) -> None: ...

    async def healthy(self) -> bool: ...


class NamedService(NamedTuple):
    """A service and its name in messages."""

    name: str
    service: RunnableService


class ManagedResource(NamedTuple):
    """An object without a life of its own (the log, an HTTP server): opened before the parts, closed after them."""

    name: str
    start: Callable[[], Awaitable[None]]
    stop: Callable[[], Awaitable[None]]


class _StopRequested(Exception):
    """The process is asked to stop."""


async def run(
    opened: Sequence[ManagedResource],
    parts: Sequence[NamedService],
    *,
    stop: asyncio.Event,
    stop_timeout_s: float,
    checks: Sequence[Callable[[], Awaitable[bool]]] = (),
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Runs everything until ``stop`` is set. What ends it first is what it raises: one part's end mostly ends others.

    :param stop_timeout_s: for each part; a part that takes longer is logged and abandoned.
    :param checks: all must be true for the process to be ready.
    :param on_ready: called once, when all checks are true.
    :raises StartFailed: a part could not start.
    :raises ServiceDied: a part ended by itself, perhaps while others were starting.
    """
    stops: list[tuple[str, Callable[[], Awaitable[None]]]] = []
    try:
        # 1, 2
        cause = await _until_ended(opened, parts, stop, checks, on_ready, stops)
        if not isinstance(cause, _StopRequested):
            raise cause
    finally:
        # 3. stop in the reverse order; started parts are stopped even if the next one could not start
        for name, stop_it in reversed(stops):
            await _stop(name, stop_it, stop_timeout_s)


async def _until_ended(
    opened: Sequence[ManagedResource],
    parts: Sequence[NamedService],
    stop: asyncio.Event,
    checks: Sequence[Callable[[], Awaitable[bool]]],
    on_ready: Callable[[], None],
    stops: list[tuple[str, Callable[[], Awaitable[None]]]],
) -> BaseException:
    """Returns what ended it.

    :param stops: gets what must be stopped.
    """
    ending: Ending[BaseException] = Ending("the process")
    watched: list[asyncio.Future[Any]] = []

    def watch(work: Awaitable[Any], name: str, cause_of: Callable[[asyncio.Future[Any]], BaseException | None]) -> None:
        task = asyncio.ensure_future(work)
        if isinstance(task, asyncio.Task):
            task.set_name(name)
        ending.watch(task, cause_of)
        watched.append(task)

    try:
        watch(stop.wait(), "stop", lambda _: _StopRequested())
        # 1. start in order; a start that waits for a server can take long, and ends with the process
        for name, start_it, stop_it in opened:
            if ending.cause is None:
                stops.append((name, stop_it))
                await _start(start_it, ending, error_of)
        for name, service in parts:
            if ending.cause is None:
                stops.append((name, service.stop))
                await _start(service.start, ending, partial(_start_failed, name))
                if ending.cause is None:
                    log.info("started", service=name)
                    watch(service.wait(), name, partial(_died, name))
        # 2. run until stopped, or until a part ends
        if ending.cause is None:
            watch(_announce(checks, on_ready), "ready", error_of)
        return await ending.wait()
    finally:
        for task in watched:
            task.cancel()
        await asyncio.gather(*watched, return_exceptions=True)


async def _start(
    start_it: Callable[[], Awaitable[None]],
    ending: Ending[BaseException],
    cause_of: Callable[[asyncio.Future[Any]], BaseException | None],
) -> None:
    """Starts one part. Returns when it has started, or when there is a cause to end."""
    started, ended = asyncio.ensure_future(start_it()), asyncio.create_task(ending.wait())
    ending.watch(started, cause_of)
    try:
        await asyncio.wait({started, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (started, ended):
            task.cancel()
        await asyncio.gather(started, ended, return_exceptions=True)


def _start_failed(name: str, task: asyncio.Future[Any]) -> BaseException | None:
    return _with_cause(StartFailed(name, error), error) if (error := error_of(task)) is not None else None


def _died(name: str, task: asyncio.Future[Any]) -> BaseException | None:
    if task.cancelled():
        return None
    return _with_cause(ServiceDied(name, task.exception()), task.exception())


def _with_cause(error: BaseException, cause: BaseException | None) -> BaseException:
    error.__cause__ = cause
    return error


async def _announce(checks: Sequence[Callable[[], Awaitable[bool]]], on_ready: Callable[[], None]) -> None:
    for check in checks:
        while not await check():  # noqa: ASYNC110 - a question, not an event
            await asyncio.sleep(READY_POLL_S)
    on_ready()


async def _stop(name: str, stop_it: Callable[[], Awaitable[None]], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await stop_it()
    except TimeoutError:
        log.error("did not stop in time", service=name, timeout_s=timeout_s)
    except Exception:
        log.exception("failed while it stopped", service=name)
    else:
        log.info("stopped", service=name)


@contextlib.contextmanager
def signals(stop: asyncio.Event) -> Iterator[None]:
    """Makes SIGTERM and SIGINT set ``stop``. Further SIGTERMs, as some supervisors send them, change nothing.

    A second SIGINT ends the process at once, for an impatient user at a terminal.
    """
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGINT)

    def handle(number: signal.Signals) -> None:
        log.info("stopping", signal=number.name)
        notify(STOPPING)
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)  # restores the default action

    for signum in handled:
        loop.add_signal_handler(signum, handle, signum)
    try:
        yield
    finally:
        for signum in handled:
            loop.remove_signal_handler(signum)
