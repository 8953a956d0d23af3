"""A gateway and a publisher apart, for the tests of muster.v1.Events behind a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from in_virtual_time.test_events_grpc import Watching
from integration.gateway_rig import Rig, rig
from muster_bus.clock import SystemClock
from muster_bus.log import Log
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.service import Gateway
from muster_proto.muster.v1 import events_pb2 as pb
from muster_proto.muster.v1.events_pb2_grpc import EventsStub


@dataclass
class Apart:
    """A gateway and a publisher that share only a log."""

    rig: Rig
    publishers: list[PublisherService] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    log_settings: LogSettings | None = None
    watches: list[Watching] = field(default_factory=list)

    async def publisher(self, port: int = 0, **settings: Any) -> PublisherService:
        """A publisher, with its own log connection if the log has connections."""
        log = self.rig.log
        if self.log_settings is not None:
            log = make_log(self.log_settings, SystemClock())
            await log.start()
            self.logs.append(log)
        chosen = PublisherSettings(
            http_address="", grpc_address=f"127.0.0.1:{port}", request_push_interval_s=0.05, **settings
        )
        publisher = PublisherService(chosen, log, self.rig.topics, SystemClock(), sinks=())
        await publisher.start()
        self.publishers.append(publisher)
        return publisher

    async def gateway(self, publisher: PublisherService | None, **settings: Any) -> Gateway:
        port = publisher.grpc_port if publisher is not None else 9
        return await self.rig.gateway(publisher_grpc_url=f"grpc://127.0.0.1:{port}", **settings)

    def stub(self, gateway: Gateway) -> Any:
        return EventsStub(self.rig.channel(gateway).grpc)

    def watch(self, gateway: Gateway, **fields: Any) -> Watching:
        place = fields.pop("from_", None)
        request = pb.WatchEventsRequest(**{"rm_id": "rm", **fields, **({"from": place} if place else {})})
        self.watches.append(Watching(self.stub(gateway).Watch(request)))
        return self.watches[-1]

    async def happen(self, *names: str, tracked: bool = True, padding: str = "") -> None:
        await self.rig.scheduler.happen("rm", *names, tracked=tracked, padding=padding)


@asynccontextmanager
async def apart(settings: LogSettings) -> AsyncIterator[Apart]:
    log = make_log(settings, SystemClock())
    await log.start()
    async with rig(log, settings.topics()) as it:
        found = Apart(it, log_settings=settings if settings.backend == "kafka" else None)
        yield found
        for watch in found.watches:
            watch.call.cancel()
        for publisher in found.publishers:
            await publisher.stop()
    for each in [*found.logs, log]:
        await each.close()
