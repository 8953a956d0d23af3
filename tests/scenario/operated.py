"""A scheduler and a view on each log; a gateway with two RMs and an operator."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from muster_bus.clock import SystemClock
from muster_bus.log import Log
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_client import Callbacks, RmClient, application, ask, node
from muster_client.admin import AdminClient
from muster_gateway.service import Gateway
from muster_gateway.sessions import make_sessions
from muster_gateway.settings import GatewaySettings
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from muster_view import ViewService
from muster_view.settings import ViewSettings
from waiting import PATIENCE_S, eventually

RM, OTHER = "rm1", "rm/2"
QUEUES = """\
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: a
            resources:
              max: {vcore: 3}
          - name: b
            properties: {my.token: hunter2}
"""
LARGER = QUEUES.replace("vcore: 3", "vcore: 5")
LOGS = ["memory", "sqlite", pytest.param("kafka", marks=pytest.mark.kafka)]
# For the tests in which a service starts again, or two RMs are served; the others are the same on every log.
on_every_log = pytest.mark.parametrize("world", LOGS, indirect=True)


def log_settings(request: pytest.FixtureRequest, tmp_path: Path, partitions: int = 2) -> LogSettings:
    """Settings of the log that ``request.param`` names, with topics of its own."""
    changes: dict[str, Any] = {"topic_prefix": f"scenario-{uuid.uuid4().hex[:12]}."}
    if request.param == "kafka":
        changes["kafka_bootstrap_servers"] = request.getfixturevalue("kafka_bootstrap")
    settings = LogSettings(backend=request.param, partitions=partitions, sqlite_path=tmp_path / "log.db")
    return settings.model_copy(update=changes)


@dataclass
class Services:
    log: Log
    topics: Topics
    scheduler: SchedulerService
    view: ViewService

    async def restart_scheduler(self) -> None:
        """Replaces the scheduler by a new one, which has only the log."""
        await self.scheduler.stop()
        self.scheduler = SchedulerService(SchedulerSettings(), self.log, self.topics, SystemClock())
        await self.scheduler.start()


@asynccontextmanager
async def scheduler_and_view(settings: LogSettings) -> AsyncIterator[Services]:
    """Runs both. At the end it stops them, then the log."""
    topics, clock = settings.topics(), SystemClock()
    log = make_log(settings, clock)
    await log.start()
    scheduler = SchedulerService(SchedulerSettings(), log, topics, clock)
    chosen = ViewSettings(http_address="127.0.0.1:0", fresh_wait_s=PATIENCE_S, whole_wait_s=PATIENCE_S)
    it = Services(log, topics, scheduler, ViewService(chosen, log, topics, clock))
    try:
        await it.scheduler.start()
        await it.view.start()
        yield it
    finally:
        await it.view.stop()
        await it.view.wait()
        await it.scheduler.stop()
        await log.close()


@dataclass
class Told:
    """What an RM received on its streams.

    :ivar streams: (name, opened) as they happened.
    """

    allocated: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    streams: list[tuple[str, bool]] = field(default_factory=list)

    def callbacks(self) -> Callbacks:
        def on_application(accepted: Any, rejected: Any, _: Any) -> None:
            self.accepted += [item.applicationID for item in accepted]
            self.rejected += [item.applicationID for item in rejected]

        return Callbacks(
            on_allocated=lambda new: self.allocated.extend(item.allocationKey for item in new),
            on_application=on_application,
            on_node=lambda accepted, rejected: self.nodes.extend(item.nodeID for item in (*accepted, *rejected)),
            on_stream=lambda name, opened: self.streams.append((name, opened)),
        )


@dataclass
class World:
    services: Services
    gateway: Gateway
    admin: AdminClient
    http: httpx.AsyncClient
    rm: RmClient
    told: Told
    other: RmClient
    other_told: Told

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.gateway.grpc_port}"

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        await eventually(condition, what)

    async def dump(self, rm_id: str = RM) -> tuple[dict[str, Any], list[bytes]]:
        pieces = [piece async for piece in self.admin.dump_state(rm_id, timeout_s=PATIENCE_S)]
        found: dict[str, Any] = json.loads(b"".join(pieces))
        return found, pieces


@pytest.fixture(params=["sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    sessions_url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path / 'sessions.db'}"}.get(request.param)
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(scheduler_and_view(log_settings(request, tmp_path)))
        view_url = f"http://127.0.0.1:{services.view.http_port}"
        chosen = GatewaySettings(
            grpc_address="127.0.0.1:0",
            http_address="",
            view_url=view_url,
            sessions_url=sessions_url or request.getfixturevalue("redis_url"),
            sessions_prefix=f"admin-{uuid.uuid4().hex[:12]}:",
            registration_timeout_s=PATIENCE_S,
            stop_grace_s=0.05,
        )
        # In one process the view is asked as it is, else by its URL.
        here = services.view.asgi if request.param == "memory" else None
        clock = SystemClock()
        gateway = Gateway(chosen, services.log, services.topics, make_sessions(chosen, clock), clock, view=here)
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        address, told, other_told = f"127.0.0.1:{gateway.grpc_port}", Told(), Told()
        extra = {"db.password": "hunter2", "log.level": "DEBUG"}
        enter = stack.enter_async_context
        it = World(
            services,
            gateway,
            await enter(AdminClient(address)),
            await enter(httpx.AsyncClient(base_url=view_url, params={"rm": RM}, timeout=PATIENCE_S)),
            await enter(RmClient(address, RM, config=QUEUES, extra_config=extra, callbacks=told.callbacks())),
            told,
            await enter(RmClient(address, OTHER, config=QUEUES, callbacks=other_told.callbacks())),
            other_told,
        )
        for client, heard in ((it.rm, told), (it.other, other_told)):
            await client.register()
            await _furnish(client, heard)
        yield it


async def _furnish(rm: RmClient, told: Told) -> None:
    """Adds a node, an application in each queue, an ask that is placed, and one that exceeds the max of root.a."""
    await rm.send_nodes([node("n/1", {"vcore": 10_000})])
    await rm.send_applications([application("x", "root.a"), application("y", "root.b")])
    await eventually(lambda: sorted(told.accepted) == ["x", "y"], "the applications are accepted")
    await rm.send_asks([ask("k1", "x", {"vcore": 2000}), ask("k/2", "x", {"vcore": 2000})])
    await eventually(lambda: told.allocated == ["k1"], "what fits is allocated")
    await eventually(lambda: told.nodes == ["n/1"], "the node is accepted")
    await eventually(lambda: len(told.streams) >= 3, "the streams are open")
