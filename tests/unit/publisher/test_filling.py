"""A publisher that fills its rings beside its other work: questions for events wait, all others are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_event_publisher.errors import Unavailable
from muster_event_publisher.history.exporter import FlushPolicy
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from muster_event_publisher.startup_gate import StartupFill
from muster_rest.publisher_routes import BATCH, OPEN_STREAMS, STREAM
from unit.publisher.feeding import Feeder
from unit.publisher.memory_sink import MemorySink
from unit.publisher.running import TOPICS

WITHIN_S = 60


@dataclass
class Held:
    """A started publisher whose rings are not filled until ``go_on`` is set."""

    service: PublisherService
    feeder: Feeder
    http: httpx.AsyncClient
    go_on: asyncio.Event


@asynccontextmanager
async def held(events: int) -> AsyncIterator[Held]:
    log = MemoryLog(TOPICS.specs(), SystemClock())
    await log.start()
    feeder = Feeder(log, TOPICS)
    await feeder.events("rm", range(events))
    service = PublisherService(
        PublisherSettings(http_address=""), log, TOPICS, SystemClock(), sinks=[], fills_beside=True
    )
    go_on, read = asyncio.Event(), service.rm_settings.start

    async def later() -> None:
        await go_on.wait()
        await read()

    service.rm_settings.start = later  # type: ignore[method-assign]
    transport = httpx.ASGITransport(service.asgi)  # type: ignore[arg-type]
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://publisher") as http:
            await service.start()
            yield Held(service, feeder, http, go_on)
    finally:
        await service.stop()
        await log.close()


async def test_a_question_for_events_waits_for_all_of_them_and_everything_else_is_answered() -> None:
    async with held(5_000) as it:
        asked = asyncio.create_task(it.http.get(BATCH.path + "?count=10000"))
        assert (await it.http.get("/health")).json()["healthy"] is True
        assert (await it.http.get(OPEN_STREAMS.path)).json() == []
        assert (await it.http.get("/metrics")).status_code == 200
        assert not asked.done()
        await it.feeder.events("rm", range(5_000, 5_010))  # (they come while the rings are filled)
        it.go_on.set()
        answer = json.loads((await asyncio.wait_for(asked, WITHIN_S)).content)
        assert answer["HighestID"] >= 4_999
        ids = [event["objectID"] for event in answer["EventRecords"]]
        assert ids == [f"app-{number}" for number in range(len(ids))]
        assert len(ids) == answer["HighestID"] + 1
        while (ring := it.service.rings.get("rm")) is None or ring.next_id < 5_010:
            await asyncio.wait_for(it.service.rings.all()[0].changed.wait(1), WITHIN_S)


@pytest.mark.parametrize("path", [BATCH.path, STREAM.path])
async def test_a_question_that_waits_is_refused_when_the_publisher_stops(path: str) -> None:
    async with held(10) as it:
        asked = asyncio.create_task(it.http.get(path))
        await it.http.get("/health")
        await asyncio.wait_for(it.service.stop(), WITHIN_S)
        answer = await asyncio.wait_for(asked, WITHIN_S)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["message"] == "the event publisher is stopping"


async def test_a_publisher_that_stops_before_it_exports_does_not_wait_for_its_stores() -> None:
    log = MemoryLog(TOPICS.specs(), SystemClock())
    await log.start()
    settings = PublisherSettings(http_address="", stop_timeout_s=600)
    plan = (MemorySink(), FlushPolicy(records=20, size_bytes=10**9, wait_s=0.01))
    service = PublisherService(settings, log, TOPICS, SystemClock(), sinks=[plan], fills_beside=True)
    await service.start()
    await asyncio.wait_for(service.stop(), WITHIN_S)
    await log.close()


class Call:
    """A call of gRPC that takes its status."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        raise AbortedError(code, details)


class AbortedError(Exception):
    """The status."""


@pytest.mark.parametrize("method", ["_batch", "_watch"])
async def test_a_call_waits_too(method: str) -> None:
    async with held(10) as it:
        call = asyncio.create_task(getattr(it.service.events_service, method)(b"", Call()))
        await it.http.get("/health")
        assert not call.done()
        it.service._filling.stop()
        with pytest.raises(AbortedError, match="the event publisher is stopping") as error:
            await asyncio.wait_for(call, WITHIN_S)
        assert error.value.args[0] is grpc.StatusCode.UNAVAILABLE


async def test_a_batch_by_grpc_has_all_events() -> None:
    async with held(10) as it:
        call = asyncio.create_task(it.service.events_service._batch(b"", Call()))
        await it.http.get("/health")
        it.go_on.set()
        assert b"app-9" in await asyncio.wait_for(call, WITHIN_S)


async def test_a_wait_that_takes_long_is_refused() -> None:
    with pytest.raises(Unavailable, match="still being read from the log, try again"):
        await StartupFill(over=False, wait_s=0.01).wait()


async def test_nothing_waits_once_the_rings_are_filled() -> None:
    filling = StartupFill(over=False)
    waiting = [asyncio.create_task(filling.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    filling.end()
    await asyncio.wait_for(asyncio.gather(*waiting), WITHIN_S)
    filling.stop()  # a publisher that stops answers what it can
    await filling.wait()
