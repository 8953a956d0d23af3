"""A Muster of several processes in one event loop: gateways, schedulers, a view, an event publisher, and RMs.

Each process is an :class:`Incarnation` at a time. All have one log (a store in memory), one session store, one store of
history, and a network. Nothing here decides what a service decides: each is the product's, made as ``muster up`` makes
it, with other handles.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from chaos.storm.workload import SOURCE
from muster_bus.backends.memory import MemoryStore
from muster_bus.backends.memory_group import MemoryGroups, SharedMemoryLog
from muster_bus.clock import SystemClock
from muster_bus.errors import BusError
from muster_bus.log import Log, Record
from muster_bus.settings import LogSettings
from muster_bus.worker_settings import WorkerSettings
from muster_event_publisher.history.sink import FlushPolicy
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.doors import GrpcOffer
from muster_gateway.service import Gateway
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.settings import GatewaySettings
from muster_informers.settings import ExternalSettings, InformerTable
from muster_queue_config.sandboxed_parser import SandboxedParser
from muster_runtime.watchdog import Usage
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from muster_view import ViewService
from muster_view.settings import ViewSettings
from unit.publisher.memory_sink import MemorySink, MemoryTarget

from virtual import module_state
from virtual.calls import Channel, Network, Server, later
from virtual.faults import ProcessFaults, Rates
from virtual.http import Site, Web
from virtual.incarnations import Incarnation
from virtual.inventory import KIND, Inventory, register
from virtual.loop import VirtualLoop
from virtual.sandbox import InlineReading
from virtual.sessions import SessionsOfProcess

BEGAN_NS = 1_750_000_000_000_000_000
PARTITIONS = 2
RESEND_WINDOW_S = 9.0  # nothing that was sent is under way for so long (trouble.py)
_AGAIN_S = (0.2, 2.0)  # a supervisor starts a process again after so long


class HostClock(SystemClock):
    """The clock of one process's host: elapsed time is the loop's."""

    def __init__(self, loop: VirtualLoop, host: Host) -> None:
        super().__init__(
            wall_ns=lambda: BEGAN_NS + round(loop.time() * 1e9) + host.step_ns,
            elapsed_ns=lambda: round(loop.time() * 1e9),
            boot_id=host.name,
            monotonic_s=loop.time,
            processor_s=loop.time,  # (it is the only thing that runs)
        )


class Host:
    """What outlives a process.

    :ivar step_ns: how far its clock was set.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.step_ns = 0


class VirtualDoors:
    """See ``muster_gateway.doors.Doors``."""

    def __init__(self, world: World, name: str, life: Incarnation) -> None:
        self._world, self._name, self._life = world, name, life
        self.server = Server(world.network, life.task)
        self.site: Site | None = None
        life.on_death(self._vanish)

    async def open_grpc(self, offer: GrpcOffer) -> tuple[int, int]:
        self.server.start(offer.interceptors, offer.handlers)
        self._world.network.servers[self._name] = self.server
        return 1, 0

    def open_http(self, app: Any) -> Site:
        self.site = self._world.web.sites[self._name] = Site(app, self._life.task)
        return self.site

    async def stop_grpc(self, grace_s: float | None) -> None:
        await self.server.stop(grace_s or 0.0)

    async def close(self) -> None:
        """Nothing is left."""

    def _vanish(self) -> None:
        self.server.vanish()
        if self.site is not None:
            self.site.vanish()


Build = Callable[["World", "Process", Log, SystemClock], Any]


class Process:
    """A service that a supervisor keeps running.

    :ivar life: the present incarnation.
    :ivar service: of it; None: there is none now.
    :ivar lives: so many so far.
    """

    def __init__(self, world: World, name: str, build: Build) -> None:
        self.world, self.name, self._build = world, name, build
        self.host = Host(name)
        self.faults = ProcessFaults(world, name)
        self.life: Incarnation | None = None
        self.service: Any = None
        self.log: SharedMemoryLog | None = None
        self.lives = 0
        self.is_up = False
        self.is_wanted = True

    def chance(self) -> random.Random:
        """The generator of ids of the present life."""
        return random.Random(f"{self.world.seed}/{self.name}#{self.lives}")

    def start(self) -> None:
        """Begins a life, unless there is one."""
        if self.life is not None or not self.is_wanted:
            return
        world = self.world
        self.lives += 1
        life = self.life = Incarnation(world.loop, f"{self.name}#{self.lives}")
        clock = HostClock(world.loop, self.host)
        log = self.log = SharedMemoryLog(
            world.settings.topics().specs(), clock, world.store, world.groups, faults=self.faults
        )
        life.on_death(log.cut)
        life.task(self._run(life, log, clock))
        world.say(f"{life.name} starts")

    def kill(self, again_s: float | None = None) -> None:
        """Ends the life at once, with all its memory."""
        life, self.life = self.life, None
        if life is None:
            return
        self.service, self.is_up = None, False
        life.die()
        module_state.reset()
        self.world.say(f"{life.name} is dead")
        self.again(again_s)

    def again(self, after_s: float | None = None) -> None:
        """Starts it again after a while."""
        if after_s is None:
            after_s = self.world.dice.uniform(*_AGAIN_S)
        later(after_s, self.start)

    async def stop(self) -> None:
        """Asks it to end, as SIGTERM does, and waits for that. It is not started again."""
        self.is_wanted = False
        life, service = self.life, self.service
        if life is None or service is None:
            self.kill()
            return
        stopping = life.task(service.stop())
        await asyncio.wait({stopping}, timeout=30.0)
        self.kill()

    async def _run(self, life: Incarnation, log: SharedMemoryLog, clock: SystemClock) -> None:
        why = "ended"
        try:
            await log.start()
            service = self.service = self._build(self.world, self, log, clock)
            await service.start()
            self.is_up = True
            self.world.say(f"{life.name} serves")
            await service.wait()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self.world.ended(self, error)
        self.world.say(f"{life.name} ended by itself: {why}")
        later(0.0, self._bury, life)

    def _bury(self, life: Incarnation) -> None:
        if self.life is life:
            self.kill()


def _gateway(world: World, process: Process, log: Log, clock: SystemClock) -> Gateway:
    assert process.life is not None
    settings = GatewaySettings(
        gateway_id=f"{process.name}-{process.lives}",
        view_url="http://view:1",
        publisher_url="http://publisher:1",
        resend_window_s=RESEND_WINDOW_S,
        cursor_flush_ms=500.0,
        health_interval_s=5.0,  # (each asks the view and the publisher, which costs more than most that is decided)
    )
    doors = VirtualDoors(world, process.name, process.life)
    sessions = SessionsOfProcess(world.sessions, process.faults)
    process.life.on_death(sessions.cut)
    return Gateway(
        settings,
        log,
        world.settings.topics(),
        sessions,
        clock,
        view=world.web.target("view"),
        publisher=world.web.target("event-publisher"),
        events=_NoEvents(),
        doors=doors,
        judge=SandboxedParser(settings.queue_config, InlineReading),
        chance=process.chance(),
    )


def _scheduler(world: World, process: Process, log: Log, clock: SystemClock) -> SchedulerService:
    settings = SchedulerSettings(
        check_invariants_every_s=world.check_every_s,
        worker=WorkerSettings(max_output_records=4000, idle_wait_s=5.0),
        external=world.external,
    )
    return SchedulerService(settings, log, world.settings.topics(), clock, chance=process.chance(), usage=Usage)


def _view(world: World, process: Process, log: Log, clock: SystemClock) -> ViewService:
    assert process.life is not None
    settings = ViewSettings(http_address="", publisher_url="", idle_interval_s=1.0, poll_s=5.0)
    service = ViewService(settings, log, world.settings.topics(), clock, with_others=True)
    site = world.web.sites["view"] = Site(service.asgi, process.life.task)
    process.life.on_death(site.vanish)
    return service


def _publisher(world: World, process: Process, log: Log, clock: SystemClock) -> PublisherService:
    assert process.life is not None
    sink = _History(world)
    service = PublisherService(
        PublisherSettings(http_address="", grpc_address="", view_url="", poll_s=5.0, backfill_records_max=2000),
        log,
        world.settings.topics(),
        clock,
        sinks=[(sink, FlushPolicy(500, 1 << 20, 1.0))],
        view=world.web.target("view"),
    )
    site = world.web.sites["event-publisher"] = Site(service.asgi, process.life.task)
    process.life.on_death(site.vanish)
    return service


class _History(MemorySink):
    """The store of history, as a publisher reaches it."""

    def __init__(self, world: World) -> None:
        self._world = world
        super().__init__(world.history)

    def _check(self) -> None:
        self.down = self._world.is_history_down
        super()._check()


class _NoEvents:
    """muster.v1.Events is not served here."""

    def handlers(self) -> Any:
        import grpc

        return grpc.method_handlers_generic_handler("muster.v1.Events", {})

    async def stop(self) -> None:
        """Nothing runs."""


class World:
    """See the module's docstring.

    :param seed: of all draws.
    :param rm_of_source: the RM that has an external source.
    :ivar counts: what happened, by kind.
    :ivar lines: the log of the run: what happened, with its virtual time.
    """

    def __init__(
        self, seed: int, loop: VirtualLoop, rates: Rates, *, rm_of_source: str, gateways: int = 2, schedulers: int = 2
    ) -> None:
        self.seed, self.loop, self.rates = seed, loop, rates
        self.dice = random.Random(f"{seed}/world")
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self.failures: list[str] = []
        self.check_every_s = 60.0
        self.settings = LogSettings(backend="memory", partitions=PARTITIONS, derived_topics=False)
        self.store = MemoryStore()
        self.groups = MemoryGroups(later)
        self.host = Host("stores")
        self.sessions = MemorySessions(HostClock(loop, self.host))
        self.history = MemoryTarget()
        self.is_history_down = False
        self.rm_of_source, self.inventory = rm_of_source, Inventory()
        register()
        table = InformerTable(kind=KIND, rm=rm_of_source, inventory=self.inventory)  # type: ignore[call-arg]
        self.external = ExternalSettings(own_process=False, informers={SOURCE: table})
        self.network = Network(lambda: self.dice.uniform(0.0, 0.02))
        self.web = Web()
        self.began_s = loop.now_s
        builders: dict[str, Build] = {f"scheduler-{number + 1}": _scheduler for number in range(schedulers)}
        builders |= {"view": _view, "event-publisher": _publisher}
        builders |= {f"gateway-{number + 1}": _gateway for number in range(gateways)}
        self.processes = {name: Process(self, name, build) for name, build in builders.items()}
        self.gateways = [name for name in builders if name.startswith("gateway")]
        self.channels: list[Channel] = []

    @property
    def now_s(self) -> float:
        """Virtual seconds from the begin."""
        return self.loop.now_s - self.began_s

    def say(self, what: str) -> None:
        """Writes a line of the log of the run."""
        self.lines.append(f"{self.now_s:12.6f} {what}")

    def ended(self, process: Process, error: Exception) -> None:
        """A service ended by itself."""
        self.counts[f"ended: {type(error).__name__}"] += 1
        known = ("Fenced", "LogUnavailable", "LogFull", "SessionStoreDown", "SessionStoreFull", "LogClosed")
        if type(error).__name__ not in known:
            self.failures.append(f"{self.now_s:.3f} {process.name}: {type(error).__name__}: {error}")

    def unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error that nobody took. (What a dead process waited for is nobody's.)"""
        error = context.get("exception")
        self.counts["nobody took an error"] += 1
        if not isinstance(error, BusError):
            self.failures.append(f"{self.now_s:.3f} {context['message']}: {error!r}")

    def channel(self, number: int, host: int, without: frozenset[str] = frozenset()) -> Channel:
        """Returns a channel to the gateways, beginning with one of them.

        :param without: metadata that its calls do not have.
        """
        names = [self.gateways[(number + step) % len(self.gateways)] for step in range(len(self.gateways))]
        channel = Channel(self.network, names, f"ipv4:127.0.0.{host}", without=without)
        self.channels.append(channel)
        return channel

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Starts all processes. At the end all die."""
        for process in self.processes.values():
            process.start()
        compacting = self.loop.create_task(self._compact())
        try:
            yield
        finally:
            compacting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await compacting
            for process in self.processes.values():
                process.is_wanted = False
                process.kill()

    async def until(self, true: Callable[[], bool | Awaitable[bool]], what: str, within_s: float = 120.0) -> None:
        """Waits in virtual time. Raises AssertionError."""
        until_s = self.loop.now_s + within_s
        while True:
            found = true()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            if self.loop.now_s > until_s:
                raise AssertionError(f"not within {within_s:g} s of virtual time: {what}")
            await asyncio.sleep(0.05)

    def records(self, topic: str, partition: int) -> list[Record]:
        """All visible records of a partition; of a compacted one the newest of each key."""
        tail, compacted = self.store.tails[topic, partition], self.store.compacted.get((topic, partition))
        older = compacted.records if compacted is not None else []
        return [*older, *(tail.slice(tail.base, tail.end - tail.base) or ())]

    async def _compact(self) -> None:
        state, ends = self.settings.topics().state, [0] * PARTITIONS
        while True:
            await asyncio.sleep(60.0)
            for partition in range(PARTITIONS):  # (what is younger than a minute, a follower may not have read)
                self.store.compact(state, partition, ends[partition])
            ends = [self.store.tails[state, partition].end for partition in range(PARTITIONS)]
