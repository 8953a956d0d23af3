"""Runs services in one process: start in order, stay up, stop in the reverse order.

Crash-only: when one service ends by itself, the others are stopped and the process ends with an error, for its
supervisor to start it again. The log makes that safe; a half-alive process would not be.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import structlog

from muster_cli.errors import ServiceDied, StartFailed

log = structlog.get_logger(__name__)

READY_POLL_S = 0.05  # how soon a service that became ready is noticed; costs nothing


class Service(Protocol):
    """What every service class offers."""

    async def start(self) -> None:
        """Returns when the service works, or at least tries to; raises when it cannot."""
        ...

    async def wait(self) -> None:
        """Returns when the service was stopped; raises what killed it."""
        ...

    async def stop(self) -> None: ...

    async def healthy(self) -> bool: ...


class Part(NamedTuple):
    """A service and what it is called in messages."""

    name: str
    service: Service


class Opened(NamedTuple):
    """Something without a life of its own (the log, an HTTP server): opened before the parts, closed after them."""

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

    :param stop_timeout_s: for each of them; one that takes longer is left behind, and said so.
    :param checks: what must be true for the process to be ready.
    :param on_ready: called once, when all checks are.
    :raises StartFailed: a part could not start.
    :raises ServiceDied: a part ended by itself.
    """
    stops: list[tuple[str, Callable[[], Awaitable[None]]]] = []
    try:
        # 1. start, in order; what was started is stopped even when the next one cannot start
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
        # 2. stay up, until told or until a part ends
        await _stay(parts, stop, checks, on_ready)
    finally:
        # 3. stop, in the reverse order
        for name, stop_it in reversed(stops):
            await _stop(name, stop_it, stop_timeout_s)


async def _start(start_it: Callable[[], Awaitable[None]], stop: asyncio.Event) -> bool:
    """False when the process was told to stop first: a start that waits for a server can take long."""
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
    """SIGTERM and SIGINT set ``stop``. Repeating SIGTERM changes nothing: supervisors do, and it is being done.

    A SIGINT after that ends the process at once: at a terminal somebody has lost patience.
    """
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGINT)

    def take(number: signal.Signals) -> None:
        log.info("stopping", signal=number.name)
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)  # the default action is back

    for one in handled:
        loop.add_signal_handler(one, take, one)
    try:
        yield
    finally:
        for one in handled:
            loop.remove_signal_handler(one)
