"""Another configuration while the RM runs, from the operator's call to the RM's streams and the view."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from integration.gateway_rig import eventually
from muster_bus.clock import SystemClock
from muster_bus.engines import make_log
from muster_bus.log import Log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_client import Callbacks, RmClient, application, ask, node
from muster_client.admin import AdminClient, ConfigurationAnswer
from muster_client.errors import AdminRefused
from muster_gateway.service import Gateway
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.settings import GatewaySettings
from muster_scheduler.app import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from muster_view import ViewService
from muster_view.settings import ViewSettings

RM = "rm1"
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
"""
LARGER = QUEUES.replace("vcore: 3", "vcore: 5")
# A broker's first transaction ever takes it ten seconds and more.
PATIENCE_S = 60.0
_PARTITION = "/ws/v1/partition/default"


@dataclass
class Told:
    """What the RM was told on its streams.

    :ivar streams: (name, opened) as they happened.
    """

    allocated: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    streams: list[tuple[str, bool]] = field(default_factory=list)

    def callbacks(self) -> Callbacks:
        def on_application(accepted: Any, rejected: Any, _: Any) -> None:
            self.accepted += [item.applicationID for item in accepted]
            self.rejected += [item.applicationID for item in rejected]

        return Callbacks(
            on_allocated=lambda new: self.allocated.extend(item.allocationKey for item in new),
            on_application=on_application,
            on_stream=lambda name, opened: self.streams.append((name, opened)),
        )


@dataclass
class World:
    log: Log
    topics: Topics
    gateway: Gateway
    scheduler: SchedulerService
    http: httpx.AsyncClient
    admin: AdminClient
    rm: RmClient
    told: Told

    async def update(self, config: str) -> ConfigurationAnswer:
        return await self.admin.update_configuration(RM, config, timeout_s=PATIENCE_S)

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        await eventually(condition, what, PATIENCE_S)

    async def queue(self, name: str) -> dict[str, Any]:
        answer = await self.http.get(f"{_PARTITION}/queue/root.{name}")
        found: dict[str, Any] = answer.json()
        return found

    async def shown(self, name: str, field: str, wanted: object) -> None:
        """Returns when the view, which follows, shows it."""

        async def shows() -> bool:
            return (await self.queue(name)).get(field) == wanted

        await eventually(shows, f"the view shows {field} {wanted} of {name}", PATIENCE_S)

    async def restart_scheduler(self) -> None:
        """Another scheduler takes over, with nothing but the log."""
        await self.scheduler.stop()
        self.scheduler = SchedulerService(SchedulerSettings(), self.log, self.topics, SystemClock())
        await self.scheduler.start()


@pytest.fixture(params=["memory", "sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    settings = LogSettings(backend=request.param, partitions=2, sqlite_path=tmp_path / "log.db")
    if request.param == "kafka":
        changes = {
            "kafka_bootstrap_servers": request.getfixturevalue("kafka_bootstrap"),
            "topic_prefix": f"reload-{uuid.uuid4().hex[:12]}.",
        }
        settings = settings.model_copy(update=changes)
    topics, clock = settings.topics(), SystemClock()
    log = make_log(settings, clock)
    await log.start()
    scheduler = SchedulerService(SchedulerSettings(), log, topics, clock)
    view = ViewService(
        ViewSettings(http_address="127.0.0.1:0", fresh_wait_s=PATIENCE_S, whole_wait_s=PATIENCE_S), log, topics, clock
    )
    chosen = GatewaySettings(
        grpc_address="127.0.0.1:0", http_address="", registration_timeout_s=PATIENCE_S, stop_grace_s=0.5
    )
    gateway = Gateway(chosen, log, topics, MemorySessions(clock), clock)
    await scheduler.start()
    await view.start()
    await gateway.start()
    address, told = f"127.0.0.1:{gateway.grpc_port}", Told()
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{view.http_port}") as http,
        AdminClient(address) as admin,
        RmClient(address, RM, config=QUEUES, callbacks=told.callbacks()) as rm,
    ):
        it = World(log, topics, gateway, scheduler, http, admin, rm, told)
        try:
            await rm.register()
            await _furnish(it)
            yield it
        finally:
            await rm.close()
            await gateway.stop()
            await view.stop()
            await view.wait()
            await it.scheduler.stop()
            await log.close()


async def _furnish(world: World) -> None:
    """A node, an application in each queue, one ask that runs and one that is over the max of root.a."""
    await world.rm.send_nodes([node("n1", {"vcore": 10_000})])
    await world.rm.send_applications([application("x", "root.a"), application("y", "root.b")])
    await world.until(lambda: sorted(world.told.accepted) == ["x", "y"], "the applications are accepted")
    await world.rm.send_asks([ask("k1", "x", {"vcore": 2000}), ask("k2", "x", {"vcore": 2000})])
    await world.rm.send_asks([ask("k3", "y", {"vcore": 1000})])
    await world.until(lambda: sorted(world.told.allocated) == ["k1", "k3"], "what fits is allocated")
    await world.until(lambda: len(world.told.streams) == 3, "the three streams are open")


async def test_a_larger_max_is_used_at_once_and_no_stream_notices(world: World) -> None:
    answer = await world.update(LARGER)
    assert answer == ConfigurationAnswer(True, (), ("[default] root.a resources.max.vcore: 3 -> 5",))
    await world.until(lambda: "k2" in world.told.allocated, "the ask that waited is allocated")
    await world.shown("a", "maxResource", {"vcore": 5000})
    again = await world.update(LARGER)
    assert again == ConfigurationAnswer(True, (), ())
    await world.rm.send_asks([ask("k4", "y", {"vcore": 1000})])
    await world.until(lambda: "k4" in world.told.allocated, "the streams go on")
    assert [opened for _, opened in world.told.streams] == [True, True, True]
    assert world.rm.missing_sequences() == []


async def test_what_is_wrong_is_answered_with_its_places_and_changes_nothing(world: World) -> None:
    await world.shown("a", "pendingResource", {"vcore": 2000})
    before = await world.queue("a")
    answer = await world.update(QUEUES.replace("vcore: 3", "vcore: lots").replace("name: b", "nmae: b"))
    assert not answer.accepted
    assert not answer.changes
    errors = [problem for problem in answer.problems if problem.severity == "error"]
    assert {problem.line for problem in errors} == {9, 10}
    assert all(problem.column for problem in errors)
    assert any("lots" in problem.message for problem in errors)
    # What is right as a text, and not possible now, has no place in the text, but says why.
    elsewhere = await world.update(QUEUES.replace("name: default", "name: other"))
    assert not elsewhere.accepted
    assert any("nodes" in problem.message for problem in elsewhere.problems), elsewhere
    await world.rm.send_asks([ask("k4", "y", {"vcore": 1000})])
    await world.shown("b", "allocatedResource", {"vcore": 2000})  # behind both updates
    assert await world.queue("a") == before
    assert sorted(world.told.allocated) == ["k1", "k3", "k4"]


async def test_a_queue_that_vanishes_drains_and_a_new_one_takes_applications(world: World) -> None:
    answer = await world.update(QUEUES.replace("name: b", "name: c"))
    assert answer.accepted
    assert len(answer.changes) == 2
    await world.shown("b", "status", "Draining")
    await world.rm.send_applications([application("z", "root.b"), application("w", "root.c")])
    await world.until(lambda: "z" in world.told.rejected and "w" in world.told.accepted, "each is answered")
    await world.rm.send_asks([ask("k5", "y", {"vcore": 1000}), ask("k6", "w", {"vcore": 1000})])
    await world.until(lambda: {"k5", "k6"} <= set(world.told.allocated), "what is there runs on")


async def test_a_scheduler_that_takes_over_has_the_new_configuration(world: World) -> None:
    assert (await world.update(LARGER)).accepted
    await world.restart_scheduler()
    assert world.scheduler is not None
    await world.rm.send_asks([ask("k7", "x", {"vcore": 1000})])
    await world.until(lambda: {"k2", "k7"} <= set(world.told.allocated), "up to the new max")
    assert (await world.update(LARGER)) == ConfigurationAnswer(True, (), ())


async def test_of_an_rm_that_nobody_knows_there_is_nothing_to_configure(world: World) -> None:
    with pytest.raises(AdminRefused, match="rmID 'nobody' is not registered"):
        await world.admin.update_configuration("nobody", QUEUES)
