"""A publisher on a log in memory, with HTTP clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from muster_bus.backends.memory import MemoryLog, MemoryStore
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_event_publisher.service import PublisherService, SinkPlan
from muster_event_publisher.settings import PublisherSettings
from starlette.routing import BaseRoute
from starlette.types import ASGIApp
from unit.publisher.feeding import Feeder

TOPICS = Topics(partitions=2)


@dataclass
class Running:
    """A started publisher.

    :param http: asks the application directly.
    :param url: where it listens, when it does.
    """

    service: PublisherService
    log: MemoryLog
    feeder: Feeder
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.service.http_port}"


@asynccontextmanager
async def running(
    *,
    store: MemoryStore | None = None,
    sinks: Sequence[SinkPlan] = (),
    extra_routes: Sequence[BaseRoute] = (),
    listen: bool = False,
    view: ASGIApp | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    log = MemoryLog(TOPICS.specs(), SystemClock(), store=store)
    await log.start()
    address = "127.0.0.1:0" if listen else ""
    wanted = PublisherSettings(http_address=address, **{"stop_timeout_s": 60.0, **settings})
    service = PublisherService(wanted, log, TOPICS, SystemClock(), sinks=sinks, extra_routes=extra_routes, view=view)
    transport = httpx.ASGITransport(service.asgi)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://publisher") as http:
        running = Running(service, log, Feeder(log, TOPICS), http)
        try:
            yield running
        finally:
            await service.stop()
            await log.close()


async def until_next(running: Running, rm_id: str, next_id: int) -> None:
    """Waits until the ring has taken everything before ``next_id``."""
    while (ring := running.service.rings.get(rm_id)) is None or ring.next_id < next_id:
        await (running.service.rings.changed if ring is None else ring.changed).wait(10)
