"""What a client was told is in each read that is given its position: in the view, on each log, through take-overs.

The view here shows nothing by itself that it has not folded yet, and folds late: a read without a position is often
behind.
"""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from muster_bus.clock import SystemClock
from muster_bus.log import Log, LogReader, Record
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_client import Callbacks, RmClient, application, ask, node, previous_ask, release
from muster_client.access import Access
from muster_client.admin import AdminClient
from muster_client.audit_client import AuditClient, AuditQuery
from muster_client.errors import AdminFailed, AdminRefused
from muster_client.events_client import EventsClient
from muster_client.metrics_client import MetricsClient
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.derive.transactional_driver import PlainDerive
from muster_event_publisher.derive.usage_rest import UsageRest
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.service import Gateway
from muster_gateway.sessions import make_sessions
from muster_gateway.settings import GatewaySettings
from muster_proto.muster.v1 import callbacks_pb2
from muster_rest import openapi
from muster_rest.route_table import through_the_gateway
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from muster_si.positions import Position, Stamp, log_digest
from muster_view import ViewService
from muster_view.settings import ViewSettings
from scenario.operated import LOGS, log_settings
from waiting import PATIENCE_S, eventually

RM = "rm1"
QUEUES = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}, {name: b}]}]}]"
P = "/ws/v1/partition/default"


class LateReader:
    """A reader of what followers read: each read begins a drawn time later."""

    def __init__(self, reader: LogReader, rng: random.Random, delay_s: float) -> None:
        self._reader, self._rng, self._delay_s = reader, rng, delay_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def cached_end(self) -> int:
        return self._reader.position

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        await asyncio.sleep(self._rng.random() * self._delay_s)
        return await self._reader.read(max_records, timeout_s)


class LateLog:
    """A log whose readers are late."""

    def __init__(self, log: Log, seed: int, delay_s: float = 0.1) -> None:
        self._log, self._rng, self._delay_s = log, random.Random(seed), delay_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def reader(self, topic: str, partition: int, *rest: Any, **more: Any) -> Any:
        return LateReader(await self._log.reader(topic, partition, *rest, **more), self._rng, self._delay_s)


class World:
    """A Muster whose followers are late, with an operator and readers of REST.

    :ivar log: of what decides; followers have a late one.
    """

    log: Log
    topics: Topics
    scheduler: SchedulerService
    view: ViewService
    publisher: PublisherService
    gateway: Gateway
    admin: AdminClient
    http: httpx.AsyncClient

    async def start_scheduler(self) -> None:
        self.scheduler = SchedulerService(SchedulerSettings(), self.log, self.topics, SystemClock())
        await self.scheduler.start()

    async def restart(self) -> None:
        await self.scheduler.stop()
        await self.start_scheduler()

    async def take_over(self) -> None:
        """Another scheduler takes the partitions from a living one, which is fenced."""
        before = self.scheduler
        await self.start_scheduler()
        await asyncio.gather(before.stop(), return_exceptions=True)

    async def get(self, path: str, after: str = "", status: int = 200, **parameters: str) -> Any:
        headers = {"Muster-After": after} if after else {}
        answer = await self.http.get(path, params={"rm": RM, **parameters}, headers=headers)
        assert answer.status_code == status, (path, answer.text)
        return answer.json()

    async def allocated(self, app: str, after: str) -> set[str]:
        found = await self.get(f"{P}/queue/root.a/application/{app}", after)
        return {each["allocationKey"] for each in found["allocations"] or ()}


class Rm:
    """A resource manager that notes the position with which it learnt each thing."""

    def __init__(self, world: World, generation: str = "current") -> None:
        self.generation = generation
        self.allocated: dict[str, str] = {}
        self.accepted: dict[str, str] = {}
        self.nodes: dict[str, str] = {}
        self.released: dict[str, str] = {}
        self.client = RmClient(f"127.0.0.1:{world.gateway.grpc_port}", RM, config=QUEUES, callbacks=self._callbacks())

    def _callbacks(self) -> Callbacks:
        def note(into: dict[str, str], names: Sequence[str]) -> None:
            into.update(dict.fromkeys(names, self.client.position))

        return Callbacks(
            on_allocated=lambda new: note(self.allocated, [each.allocationKey for each in new]),
            on_application=lambda accepted, *_: note(self.accepted, [each.applicationID for each in accepted]),
            on_node=lambda accepted, _: note(self.nodes, [each.nodeID for each in accepted]),
            on_released=lambda gone: note(self.released, [each.allocationKey for each in gone]),
        )

    async def asks(self, app: str, *keys: str) -> None:
        made = ask if self.generation == "current" else previous_ask
        await self.client.send_asks([made(key, app, {"vcore": 1}) for key in keys])


@asynccontextmanager
async def world_on(
    settings: LogSettings, tmp_path: Path, *, seed: int = 0, view: dict[str, Any] | None = None
) -> AsyncIterator[World]:
    it, clock = World(), SystemClock()
    it.topics = settings.topics()
    async with AsyncExitStack() as stack:
        it.log = make_log(settings, clock)
        await it.log.start()
        stack.push_async_callback(it.log.close)
        late: Any = LateLog(it.log, seed)
        await it.start_scheduler()
        chosen = {"fresh_wait_s": 0, "whole_wait_s": 0, "positions": {"wait_s": PATIENCE_S}, **(view or {})}
        it.view = ViewService(ViewSettings(http_address="", **chosen), late, it.topics, clock)
        await it.view.start()
        derived = DeriveSettings(batch_wait_s=0.0, fan_out=False)
        derive, usage = PlainDerive(derived, late, it.topics, clock), UsageRest(derived, late, it.topics)
        it.publisher = PublisherService(
            PublisherSettings(http_address="", positions=chosen["positions"]),
            late,
            it.topics,
            clock,
            default_rm="",
            usage=usage,
        )
        await it.publisher.start()
        for part in (derive, usage):
            await part.start()
            stack.push_async_callback(part.stop)
        gateway = GatewaySettings(
            grpc_address="127.0.0.1:0",
            http_address="127.0.0.1:0",
            sessions_url=f"sqlite:///{tmp_path / 'sessions.db'}",
            sessions_prefix=f"positions-{uuid.uuid4().hex[:12]}:",
            registration_timeout_s=PATIENCE_S,
            stop_grace_s=0.05,
        )
        it.gateway = Gateway(
            gateway,
            it.log,
            it.topics,
            make_sessions(gateway, clock),
            clock,
            view=it.view.asgi,
            publisher=it.publisher.asgi,
            events=it.publisher.events_service,
        )
        await it.gateway.start()
        it.admin = await stack.enter_async_context(AdminClient(f"127.0.0.1:{it.gateway.grpc_port}"))
        it.http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{it.gateway.http_port}", timeout=PATIENCE_S)
        )
        try:
            yield it
        finally:
            await it.gateway.stop()
            await it.publisher.stop()
            await it.view.stop()
            await asyncio.gather(it.scheduler.stop(), return_exceptions=True)


@pytest.fixture(params=["sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world_on(log_settings(request, tmp_path), tmp_path) as it:
        yield it


def stamps_in(position: str) -> list[Stamp]:
    return list(Position.parse(position).stamps.values())


async def allocations_counted(world: World, app: str, after: str) -> int:
    """The allocations in an application's usage."""
    found = await world.get("/ws/v1/usage", after, kind="application", name=app)
    return sum(window["allocations"] for each in found["usage"] for window in each["windows"])


async def audited(world: World, action: str, after: str) -> int:
    """The number of an action's entries, which a page and a call have."""
    page = await world.get("/ws/v1/audit", after, action=action)
    async with AuditClient(f"127.0.0.1:{world.gateway.grpc_port}", access=Access(after=after)) as client:
        read = [entry["id"] async for entries in client.read(AuditQuery(action=action)) for entry in entries]
    assert [each["id"] for each in page["entries"]] == read
    return len(read)


@pytest.fixture
def log_settings_of(request: pytest.FixtureRequest, tmp_path: Path) -> LogSettings:
    return log_settings(request, tmp_path)


on_every_log = pytest.mark.parametrize("world", LOGS, indirect=True)


async def _events(world: World, after: str) -> set[tuple[str, str]]:
    found = await world.get("/ws/v1/events/batch", after, count="10000")
    return {(each["objectID"], each.get("referenceID", "")) for each in found["EventRecords"]}


@on_every_log
@pytest.mark.parametrize("generation", ["current", "previous"])
async def test_a_read_shows_what_its_client_was_told(world: World, generation: str) -> None:
    """Each kind of answer, in the view and in the events, on each log; a new scheduler goes on."""
    rm = Rm(world, generation)
    async with rm.client as client:
        # 1. a registration
        await client.register()
        registered = client.position
        assert registered
        assert await world.get(f"{P}/queues", registered)
        for turn, change in enumerate((world.restart, world.take_over, None)):
            # 2. nodes and applications
            app, host = f"app{turn}", f"n{turn}"
            await client.send_nodes([node(host, {"vcore": 100_000})])
            await eventually(lambda host=host: host in rm.nodes)
            assert host in {each["nodeID"] for each in await world.get(f"{P}/nodes", rm.nodes[host])}
            await client.send_applications([application(app, "root.a")])
            await eventually(lambda app=app: app in rm.accepted)
            assert (await world.get(f"{P}/queue/root.a/application/{app}", rm.accepted[app]))["applicationID"] == app
            # 3. allocations, and their events
            keys = [f"{turn}.{number}" for number in range(5)]
            await rm.asks(app, *keys)
            await eventually(lambda keys=keys: set(keys) <= rm.allocated.keys())
            for key in keys:
                assert key in await world.allocated(app, rm.allocated[key])
            assert {(app, key) for key in keys} <= await _events(world, rm.allocated[keys[-1]])
            assert await allocations_counted(world, app, rm.allocated[keys[-1]]) == len(keys)
            # 4. releases
            await client.send_releases([release(app, keys[0])])
            await eventually(lambda keys=keys: keys[0] in rm.released)
            assert keys[0] not in await world.allocated(app, rm.released[keys[0]])
            if change is not None:
                await change()
        # 5. a position from before the restarts
        assert await world.get(f"{P}/queues", registered)


@on_every_log
async def test_an_operators_change_is_in_the_reads_after_it(world: World) -> None:
    async with Rm(world).client as client:
        await client.register()
        for number, paused in enumerate((True, True, False)):  # the second one changes nothing
            await (world.admin.pause(RM, "x") if paused else world.admin.resume(RM))
            world.admin.after = world.admin.position
            (shown,) = await world.admin.list_resource_managers(RM)
            assert shown.held is paused
            action, expected = ("pause", number + 1) if paused else ("resume", 1)
            assert await audited(world, action, world.admin.position) == expected
        operated = await world.http.post(
            "/ws/v1/operate/pause", params={"rm": RM, "reason": "y"}, headers={"X-Muster-Operate": "1"}
        )
        position = operated.headers["Muster-Position"]
        assert operated.json()["position"] == position
        (manager,) = await world.get("/ws/v1/resource-managers", position)
        assert (manager["held"], manager["heldReason"]) == (True, "y")
        answer = await world.admin.update_configuration(RM, QUEUES.replace("{name: b}", "{name: b}, {name: c}"))
        assert answer.accepted
        names = {each["queuename"] for each in (await world.get(f"{P}/queues", world.admin.position))["children"]}
        assert "root.c" in names
    await world.admin.forget(RM, force=True)
    found = await world.http.get("/ws/v1/resource-managers", headers={"Muster-After": world.admin.position})
    assert found.json() == []
    before = world.admin.position
    await world.admin.forget(RM)  # is forgotten already
    assert world.admin.position != before
    assert (
        await world.http.get("/ws/v1/resource-managers", headers={"Muster-After": world.admin.position})
    ).json() == []


async def test_grpc_reads_take_a_position(world: World) -> None:
    rm, address = Rm(world), f"127.0.0.1:{world.gateway.grpc_port}"
    async with rm.client as client:
        await client.register()
        await client.send_nodes([node("n1", {"vcore": 1000})])
        await client.send_applications([application("x", "root.a")])
        await eventually(lambda: "x" in rm.accepted)
        await rm.asks("x", "k1", "k2")
        await eventually(lambda: len(rm.allocated) == 2)
        world.admin.after = rm.allocated["k1"]
        explained = await world.admin.explain_application(RM, "x")
        assert explained.value["applicationID"] == "x"
        async with EventsClient(address, access=Access(after=rm.allocated["k1"])) as events:
            batch = await events.batch(RM)
            assert "k1" in str(batch)
        async with MetricsClient(address, access=Access(after=rm.allocated["k2"])) as metrics:
            assert (await metrics.get(RM)).scheduler.allocations == 2
            async with aclosing(metrics.watch(RM)) as snapshots:
                async for snapshot in snapshots:
                    assert snapshot.scheduler.allocations == 2
                    break
        assert "k1" in b"".join([piece async for piece in world.admin.dump_state(RM)]).decode()
        # wrong positions, and one that is not reached in time
        world.admin.after = "nonsense"
        with pytest.raises(AdminRefused, match="Muster-After: must be a position that Muster gave") as refused:
            await world.admin.list_resource_managers()
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
        partition = world.topics.partition_of(RM)
        end = Position.parse(client.position).stamps[partition]
        digest = log_digest(await world.log.identity())
        world.admin.after = Position(digest, {partition: Stamp(end.before, 2**40)}).text()
        with pytest.raises(AdminFailed, match=r"has not reached Muster-After in [\d.]+ s: it lacks") as failed:
            await world.admin.list_resource_managers(timeout_s=1.0)
        assert failed.value.code is grpc.StatusCode.UNAVAILABLE


async def test_what_is_no_position_of_this_log_is_refused(world: World) -> None:
    async with Rm(world).client as client:
        await client.register()
        partition = world.topics.partition_of(RM)
        here = await world.log.identity()
        other = Position(log_digest("another"), {partition: Stamp(1)}).text()
        future = Position(log_digest(here), {partition: Stamp(10_000)}).text()
        reads = ("/ws/v1/events/batch", "/ws/v1/events/stream", "/ws/v1/usage", "/ws/v1/ended", "/ws/v1/audit")
        for path in (f"{P}/queues", *reads):
            for after, why in (("?", "a position that Muster gave"), (other, "another log"), (future, "of the future")):
                found = await world.get(path, after, status=400)
                assert "Muster-After: must be a position" in found["message"]
                assert why in found["message"]


async def test_what_the_callback_stream_tells_has_a_position(world: World) -> None:
    """Questions and events have one; a read that is given it shows the ask, and the allocation."""
    rm = Rm(world)
    async with rm.client as client, grpc.aio.insecure_channel(f"127.0.0.1:{world.gateway.grpc_port}") as channel:
        await client.register()
        await client.send_nodes([node("n1", {"vcore": 1000})])
        await client.send_applications([application("x", "root.a")])
        await eventually(lambda: "x" in rm.accepted)
        stream = channel.stream_stream(
            "/muster.v1.Callbacks/Connect",
            request_serializer=callbacks_pb2.FromResourceManager.SerializeToString,
            response_deserializer=callbacks_pb2.ToResourceManager.FromString,
        )()
        hello = callbacks_pb2.Hello(rm_id=RM, predicates=True, events=True)
        await stream.write(callbacks_pb2.FromResourceManager(hello=hello))
        async with asyncio.timeout(PATIENCE_S):
            assert not (await stream.read()).position  # of the gateway itself
            for key in ("k1", "k2"):
                await rm.asks("x", key)
                asked = told = False
                while not (asked and told):
                    message = await stream.read()
                    assert message.position, message
                    for question in message.predicates:
                        found = await world.get(f"{P}/queue/root.a/application/x", message.position)
                        assert key in {each["allocationKey"] for each in found["requests"]}
                        asked = True
                        answer = callbacks_pb2.PredicatesAnswer(id=question.id, fits=True)
                        await stream.write(callbacks_pb2.FromResourceManager(predicates=[answer]))
                    records = [each.record for each in message.events.events]
                    if any(each.eventChangeDetail == each.APP_ALLOC and each.referenceID == key for each in records):
                        assert key in await world.allocated("x", message.position)
                        told = True
        stream.cancel()


async def test_every_read_takes_a_position(world: World) -> None:
    """All that the reference (OpenAPI) names. The others are of the present, or show no state."""
    others = set()
    for route in through_the_gateway():
        if route.method != "GET" or not route.path.startswith("/ws/v1/") or not route.handler:
            continue
        if not openapi.takes_position(route):
            others.add(route.path)
            continue
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        refused = await world.http.get(path, headers={"Muster-After": "?"})
        assert refused.status_code == 400, (path, refused.text)
        assert "Muster-After: must be a position that Muster gave" in refused.json()["message"]
    assert others == {
        "/ws/v1/events/streams",
        "/ws/v1/health",
        "/ws/v1/loglevel",
        "/ws/v1/openapi.json",
        "/ws/v1/whoami",
    }


async def test_a_read_without_a_position_is_as_it_was(world: World) -> None:
    """Clients of YuniKorn's interface get the same bytes, and no header of positions."""
    rm = Rm(world)
    async with rm.client as client:
        await client.register()
        await client.send_nodes([node("n1", {"vcore": 1000})])
        await client.send_applications([application("x", "root.a")])
        await eventually(lambda: "x" in rm.accepted)
        await rm.asks("x", "k1")
        await eventually(lambda: "k1" in rm.allocated)
        app = f"{P}/queue/root.a/application/x"
        for path in ("/ws/v1/partitions", f"{P}/queues", f"{P}/nodes", app, f"{P}/usage/users", "/ws/v1/events/batch"):
            included, plain = [
                await world.http.get(path, params={"rm": RM}, headers=headers)
                for headers in ({"Muster-After": rm.allocated["k1"]}, {})
            ]
            assert (plain.status_code, plain.content) == (included.status_code, included.content), path
            assert plain.headers.keys() == included.headers.keys()
            assert not [name for name in plain.headers if name.startswith("muster-")]


async def test_a_stream_of_events_begins_behind_its_position(world: World) -> None:
    rm = Rm(world)
    async with rm.client as client:
        await client.register()
        await client.send_nodes([node("n1", {"vcore": 100_000})])
        await client.send_applications([application("x", "root.a")])
        await eventually(lambda: "x" in rm.accepted)
        for number in range(5):
            await rm.asks("x", f"k{number}")
            await eventually(lambda key=f"k{number}": key in rm.allocated)
            headers = {"Muster-After": rm.allocated[f"k{number}"]}
            stream = world.http.stream("GET", "/ws/v1/events/stream", params={"rm": RM}, headers=headers)
            async with stream as answer:
                first = int(answer.headers["X-Muster-Next-ID"])
            batch = await world.get("/ws/v1/events/batch", count=str(first))
            assert f"k{number}" in {each.get("referenceID") for each in batch["EventRecords"]}


LIVES = [
    *(("memory", seed) for seed in range(5)),
    ("sqlite", 5),
    pytest.param("kafka", 6, marks=pytest.mark.kafka),
]


@pytest.mark.parametrize(("log_settings_of", "seed"), LIVES, indirect=["log_settings_of"])
async def test_each_answer_is_shown_in_any_life(log_settings_of: LogSettings, seed: int, tmp_path: Path) -> None:
    """Random requests, commands, restarts and take-overs; after each answer, a read with its position shows it."""
    rng = random.Random(seed)
    async with world_on(log_settings_of, tmp_path, seed=seed) as world:
        rm, checked = Rm(world, rng.choice(("current", "previous"))), 0
        async with rm.client as client:
            await client.register()
            await client.send_nodes([node("n0", {"vcore": 10_000_000})])
            await eventually(lambda: "n0" in rm.nodes)
            apps: list[str] = []
            asked, drains = Counter[str](), 0
            for turn in range(25):
                match rng.randrange(7):
                    case 0 | 1 if len(apps) < 5:
                        apps.append(f"a{turn}")
                        await client.send_applications([application(apps[-1], "root.a")])
                        await eventually(lambda: apps[-1] in rm.accepted)
                        path = f"{P}/queue/root.a/application/{apps[-1]}"
                        assert (await world.get(path, rm.accepted[apps[-1]]))["applicationID"] == apps[-1]
                    case 2 | 3 | 4 if apps:
                        app, keys = rng.choice(apps), [f"k{turn}.{each}" for each in range(rng.randrange(1, 20))]
                        await rm.asks(app, *keys)
                        await eventually(lambda keys=keys: set(keys) <= rm.allocated.keys())
                        key = rng.choice(keys)
                        assert key in await world.allocated(app, rm.allocated[key])
                        assert (app, key) in await _events(world, rm.allocated[key])
                        asked[app] += len(keys)
                        newest = max((rm.allocated[each] for each in keys), key=stamps_in)
                        assert await allocations_counted(world, app, newest) == asked[app]
                    case 5:
                        drained = rng.random() < 0.5
                        await world.admin.drain_node(RM, "n0", schedulable=not drained)
                        (shown,) = await world.get(f"{P}/nodes", world.admin.position)
                        assert shown["schedulable"] is not drained
                        drains += drained
                        assert await audited(world, "drain", world.admin.position) == drains
                        await world.admin.drain_node(RM, "n0", schedulable=True)
                    case _:
                        await (world.take_over() if rng.random() < 0.5 else world.restart())
                        continue
                checked += 1
        assert checked > 5


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[World]:
    settings = LogSettings(backend="sqlite", partitions=2, sqlite_path=tmp_path / "log.db")
    few = {"waiting_per_caller_max": 2, "wait_s": PATIENCE_S}
    async with world_on(settings, tmp_path, view={"positions": few}) as it:
        yield it


async def test_waiting_reads_are_bounded_and_hinder_no_others(strict: World) -> None:
    async with Rm(strict).client as client:
        await client.register()
        partition = strict.topics.partition_of(RM)
        stamp = Position.parse(client.position).stamps[partition]
        digest = log_digest(await strict.log.identity())
        later = Position(digest, {partition: Stamp(stamp.before, 2**40)}).text()
        waits = strict.view.waits
        # (It waits, too, as long as the view is behind. What has been shown stays.)
        assert await strict.get(f"{P}/queues", client.position)
        waiting = [asyncio.create_task(strict.get(f"{P}/queues", later)) for _ in range(2)]
        await eventually(lambda: waits.waiting == 2)
        refused = await strict.http.get(f"{P}/queues", params={"rm": RM}, headers={"Muster-After": later})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert "2 reads of this caller wait for a position already" in refused.json()["message"]
        for _ in range(3):
            assert await strict.get(f"{P}/queues", client.position)
            assert await strict.get(f"{P}/queues")
        given = {"Muster-After": later, "Muster-Wait": "-1"}
        assert (await strict.http.get(f"{P}/queues", headers=given)).status_code == 400
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await eventually(lambda: waits.waiting == 0)
        given = {"Muster-After": later, "Muster-Wait": "0.01"}
        late = await strict.http.get(f"{P}/queues", params={"rm": RM}, headers=given)
        assert (late.status_code, late.headers["Retry-After"]) == (503, "1")
        assert "the view has not reached Muster-After in 0.01 s" in late.json()["message"]
