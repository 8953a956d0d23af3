"""Runs services in one process: starts them in order, watches them, and stops them in the reverse order.

Crash-only: if one service ends by itself, the others are stopped and the process ends with an error. Its supervisor
then starts it again. The log makes a restart safe; a process with only some of its services would not be.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import structlog
from muster_runtime.supervisor import STOPPING, notify

from muster_cli.errors import ServiceDied, StartFailed

log = structlog.get_logger(__name__)

READY_POLL_S = 0.05  # interval of the checks whether all services are ready


class Service(Protocol):
    """The interface of every service class."""

    async def start(self) -> None:
        """Returns when the service works or is trying to. Raises if it cannot start."""
        ...

    async def wait(self) -> None:
        """Returns when the service has stopped. Raises the error that ended it."""
        ...

    async def stop(self) -> None: ...

    async def healthy(self) -> bool: ...


class Part(NamedTuple):
    """A service and its name in messages."""

    name: str
    service: Service


class Opened(NamedTuple):
    """An object without a life of its own (the log, an HTTP server): opened before the parts, closed after them."""

    name: str
    start: Callable[[], Awaitable[None]]
    stop: Callable[[], Awaitable[None]]


async def run(
    opened: Sequence[Opened],
    parts: Sequence[Part],
    *,
    stop: asyncio.Event,
    stop_timeout_s: float,
    checks: Sequence[Callable[[], Awaitable[bool]]] = (),
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Runs everything until ``stop`` is set.

    :param stop_timeout_s: for each part; a part that takes longer is logged and abandoned.
    :param checks: all must be true for the process to be ready.
    :param on_ready: called once, when all checks are true.
    :raises StartFailed: a part could not start.
    :raises ServiceDied: a part ended by itself.
    """
    stops: list[tuple[str, Callable[[], Awaitable[None]]]] = []
    try:
        # 1. start in order; started parts are stopped even if the next one cannot start
        for name, start_it, stop_it in opened:
            stops.append((name, stop_it))
            if not await _start(start_it, stop):
                return
        for name, service in parts:
            stops.append((name, service.stop))
            try:
                if not await _start(service.start, stop):
                    return
            except Exception as error:
                raise StartFailed(name, error) from error
            log.info("started", service=name)
        # 2. run until stopped, or until a part ends
        await _stay(parts, stop, checks, on_ready)
    finally:
        # 3. stop in the reverse order
        for name, stop_it in reversed(stops):
            await _stop(name, stop_it, stop_timeout_s)


async def _start(start_it: Callable[[], Awaitable[None]], stop: asyncio.Event) -> bool:
    """Starts one part. Returns False if ``stop`` was set first: a start that waits for a server can take long."""
    asked = asyncio.create_task(stop.wait(), name="stop")
    started = asyncio.ensure_future(start_it())
    try:
        await asyncio.wait({asked, started}, return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            started.result()
        return started.done()
    finally:
        for task in (asked, started):
            task.cancel()
        await asyncio.gather(asked, started, return_exceptions=True)


async def _stay(
    parts: Sequence[Part],
    stop: asyncio.Event,
    checks: Sequence[Callable[[], Awaitable[bool]]],
    on_ready: Callable[[], None],
) -> None:
    asked = asyncio.create_task(stop.wait(), name="stop")
    lives = {asyncio.create_task(part.service.wait(), name=part.name): part.name for part in parts}
    ready = asyncio.create_task(_announce(checks, on_ready), name="ready")
    try:
        pending: set[asyncio.Task[Any]] = {asked, ready, *lives}
        while not stop.is_set():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if ready in done:
                ready.result()
            for life, name in lives.items():
                if life in done and not stop.is_set():
                    raise ServiceDied(name, life.exception()) from life.exception()
    finally:
        for task in (asked, ready, *lives):
            task.cancel()
        await asyncio.gather(asked, ready, *lives, return_exceptions=True)


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

    def take(number: signal.Signals) -> None:
        log.info("stopping", signal=number.name)
        notify(STOPPING)
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)  # restores the default action

    for one in handled:
        loop.add_signal_handler(one, take, one)
    try:
        yield
    finally:
        for one in handled:
            loop.remove_signal_handler(one)
