"""Brokers, Redis, PostgreSQL and Muster's services as local processes, with a proxy on each way between them."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import servers
from brokers import NODES, Brokers, out_of_sync
from chaos.harness import supervising
from chaos.storm.course import Course
from chaos.storm.plan import CLOCKS, PROCESSES, Fault
from chaos.storm.proxy import Link
from e2e.external_rig import settings_text
from e2e.wall_clock import WallClock, library
from muster_bus.settings import LogSettings
from muster_replay.local_process import LocalProcess, free_ports, muster_command

PARTITIONS = 4
DOORS = {"GATEWAYS": "gateways-brokers", "SCHEDULERS": "schedulers-brokers", "FOLLOWERS": "followers-brokers"}
STOP_S = 60.0  # then SIGKILL


@dataclass
class Storm:
    """See the module.

    :param directory: of logs.
    :param work: of the servers' data; PostgreSQL's user gets through.
    :ivar links: by the plan's names.
    :ivar operations: where each process answers /health.
    :ivar restarts: how often a process ended by itself and was started again.
    """

    directory: Path
    work: Path
    rm_of_source: str
    brokers: Brokers
    links: dict[str, list[Link]] = field(default_factory=dict)
    processes: dict[str, LocalProcess] = field(default_factory=dict)
    operations: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, WallClock] = field(default_factory=dict)
    servers: dict[servers.Kind, servers.Server] = field(default_factory=dict)
    restarts: int = 0
    prefix: str = field(default_factory=lambda: f"storm-{secrets.token_hex(4)}")
    _calls: set[asyncio.Future[Any]] = field(default_factory=set)
    _down: set[str] = field(default_factory=set)
    _paused_brokers: set[int] = field(default_factory=set)
    _dead_brokers: set[int] = field(default_factory=set)
    _broker_turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def log_settings(self) -> LogSettings:
        """The auditor's own way to the log: no proxy is in it."""
        return LogSettings(
            backend="kafka",
            partitions=PARTITIONS,
            replication=3,
            kafka_bootstrap_servers=self.brokers.address,
            topic_prefix=f"{self.prefix}.",
        )

    @property
    def source(self) -> Path:
        return self.directory / "hosts.json"

    @property
    def schema(self) -> str:
        return self.prefix.replace("-", "_")

    def gateways(self, first: int) -> str:
        """A gRPC target with both gateways, one of them first."""
        ports = [self.links[f"rms-gateway-{number}"][0].address for number in (1, 2)]
        return f"ipv4:{','.join(ports[first % 2 :] + ports[: first % 2])}"

    # ---- start and stop --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._call(self._start_servers)
        self._down |= set(PROCESSES)  # (else the supervisor starts what is not started yet)
        self._make_processes()
        for links in self.links.values():
            for link in links:
                await link.start()
        for name, process in self.processes.items():
            process.start()
            self._down.discard(name)

    def _start_servers(self) -> None:
        self.brokers.start()
        kinds: tuple[servers.Kind, ...] = ("redis", "postgres")
        for kind in kinds:
            self.servers[kind] = servers.own_local(kind, self.work)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls in a thread. Whoever is cancelled meanwhile leaves the call to :meth:`stop`."""
        call = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await asyncio.shield(call)

    async def stop(self) -> None:
        """Ends all that was started, whatever became of it, and removes the servers' data."""
        await asyncio.gather(*self._calls, return_exceptions=True)
        for name in self.processes:
            with suppress(ProcessLookupError):
                self._signal(name, signal.SIGCONT)
        for node in self._paused_brokers:
            with suppress(ProcessLookupError):
                self.brokers.send(node, signal.SIGCONT)
        try:
            await self.stop_process(*self.processes)
            for links in self.links.values():
                for link in links:
                    await link.stop()
        finally:
            for server in self.servers.values():
                servers.stop(server)
            self.brokers.stop()
            for log in self.work.glob("**/output.log"):
                shutil.copyfile(log, self.directory / f"{log.parent.name}.log")
            shutil.rmtree(self.work, ignore_errors=True)

    def _make_processes(self) -> None:
        ports = iter(free_ports(24))
        for door, name in DOORS.items():
            self.links[name] = [
                Link(f"{name}-{node}", f"127.0.0.1:{own}", shown)
                for node, (own, shown) in self.brokers.doors[door].items()
            ]
        redis, postgres = self.servers["redis"].address, self.servers["postgres"].address
        self.links["gateways-redis"] = [Link("gateways-redis", _place(redis), next(ports))]
        self.links["publisher-postgres"] = [Link("publisher-postgres", _place(postgres), next(ports))]
        view, publisher, events = (f"127.0.0.1:{next(ports)}" for _ in range(3))
        settings = self.directory / "settings.toml"
        informer = {"kind": "file", "rm": self.rm_of_source, "path": str(self.source), "poll_s": 0.2, "settle_s": 0.0}
        text = settings_text({"vms": informer}, 60.0)
        settings.write_text("\n".join(line for line in text.splitlines() if not _of_log(line)))
        common = {
            "MUSTER_LOG__BACKEND": "kafka",
            "MUSTER_LOG__TOPIC_PREFIX": f"{self.prefix}.",
            "MUSTER_LOG__PARTITIONS": str(PARTITIONS),
            "MUSTER_LOG__REPLICATION": "3",
            "MUSTER_LOG__KAFKA_MIN_INSYNC_REPLICAS": "2",
            "TMPDIR": str(self.work),
        }
        gateways = common | {
            "MUSTER_LOG__KAFKA_BOOTSTRAP_SERVERS": self._bootstrap("gateways-brokers"),
            "MUSTER_GATEWAY__SESSIONS_URL": redis.replace(_place(redis), self.links["gateways-redis"][0].address),
            "MUSTER_GATEWAY__SESSIONS_PREFIX": f"{self.prefix}:",
            "MUSTER_GATEWAY__VIEW_URL": f"http://{view}",
            "MUSTER_GATEWAY__PUBLISHER_URL": f"http://{publisher}",
            "MUSTER_GATEWAY__PUBLISHER_GRPC_URL": f"grpc://{events}",
        }
        schedulers = common | {
            "MUSTER_LOG__KAFKA_BOOTSTRAP_SERVERS": self._bootstrap("schedulers-brokers"),
            # Longer than the default: on a busy machine a living scheduler is silent for three seconds.
            "MUSTER_SCHEDULER__SESSION_TIMEOUT_S": "8",
        }
        dsn = postgres.replace(_place(postgres), self.links["publisher-postgres"][0].address)
        followers = common | {
            "MUSTER_LOG__KAFKA_BOOTSTRAP_SERVERS": self._bootstrap("followers-brokers"),
            "MUSTER_VIEW__HTTP_ADDRESS": view,
            "MUSTER_PUBLISHER__HTTP_ADDRESS": publisher,
            "MUSTER_PUBLISHER__GRPC_ADDRESS": events,
            "MUSTER_PUBLISHER__POSTGRES_DSN": dsn,
            "MUSTER_PUBLISHER__POSTGRES_SCHEMA": self.schema,
            "MUSTER_PUBLISHER__RETRY_MAX_S": "2",
        }
        self.operations |= {"view": f"http://{view}", "event-publisher": f"http://{publisher}"}
        environments = {"view": followers, "event-publisher": followers}
        for number in (1, 2):
            http, grpc, own = (f"127.0.0.1:{next(ports)}" for _ in range(3))
            environments[f"gateway-{number}"] = gateways | {
                "MUSTER_GATEWAY__HTTP_ADDRESS": http,
                "MUSTER_GATEWAY__GRPC_ADDRESS": grpc,
            }
            environments[f"scheduler-{number}"] = schedulers | {"MUSTER_SCHEDULER__HTTP_ADDRESS": own}
            self.operations |= {f"gateway-{number}": f"http://{http}", f"scheduler-{number}": f"http://{own}"}
            self.links[f"rms-gateway-{number}"] = [Link(f"rms-gateway-{number}", grpc, next(ports))]
        for name in PROCESSES:
            more = ("--settings", str(settings)) if name.startswith("scheduler") else ()
            environment = environments[name] | (self.clocks[name].environment if name in self.clocks else {})
            command = muster_command(name.rstrip("-12"), *more)
            self.processes[name] = LocalProcess(command, self.directory / f"{name}.log", environment)

    def _bootstrap(self, name: str) -> str:
        return ",".join(link.address for link in self.links[name])

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Starts a process that ends by itself again."""

        def start_dead() -> None:
            for name, process in self.processes.items():
                if name not in self._down and not process.running:
                    self.restarts += 1
                    process.start()

        async with supervising(start_dead):
            yield

    async def well(self, course: Course) -> None:
        """Returns when every process is healthy. Tells the course which ones are not, and why."""
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            while wrong := await self._unwell(client):
                course.waits_for = "; ".join(f"{name}: {what}" for name, what in wrong.items())
                await asyncio.sleep(0.3)

    async def _unwell(self, client: httpx.AsyncClient) -> dict[str, str]:
        said: dict[str, str] = {}
        for name, address in self.operations.items():
            try:
                answer = await client.get(f"{address}/health")
                if answer.status_code != 200:
                    said[name] = answer.text[:500]
            except httpx.HTTPError as error:
                said[name] = repr(error)
        return said

    async def in_sync(self, course: Course) -> None:
        """Returns when all copies of all partitions are in sync again. Tells the course which ones are not."""
        while lacking := await out_of_sync(self.brokers.address):
            course.waits_for = f"{len(lacking)} partitions with too few copies in sync: {', '.join(lacking[:6])}"
            await asyncio.sleep(0.5)

    async def stop_process(self, *names: str) -> None:
        """Ends processes for good: the auditor looks at what they left."""
        self._down.update(names)
        await asyncio.gather(*(self._call(self.processes[name].stop, STOP_S) for name in names))

    # ---- faults ----------------------------------------------------------------------------------------------------

    def turn(self, fault: Fault) -> AbstractAsyncContextManager[object]:
        """Returns what a fault holds while it lasts. A broker's fault waits until the broker before it is back: on a
        busy machine a start takes longer than the plan knows, and at most one broker is away at a time.
        """
        return self._broker_turn if fault.kind in ("kill-broker", "pause-broker") else nullcontext()

    async def begin(self, fault: Fault) -> None:
        target = fault.target
        match fault.kind:
            case "kill":
                self._down.add(target)
                await self._call(self.processes[target].kill)
            case "restart":
                self._down.add(target)
                await self._call(self.processes[target].stop, STOP_S)
                self._start(target)
            case "pause":
                self._signal(target, signal.SIGSTOP)
            case "cut" | "stall" | "delay":
                for link in self.links[target]:
                    _disturb(link, fault)
            case "flush":
                await self._call(_flush, self.servers["redis"].address)
            case "step":
                if target in self.clocks:
                    self.clocks[target].set(int(fault.amount))
            case "kill-redis" | "kill-postgres":
                await self._call(servers.kill, self.servers[_kind(target)])
            case "kill-broker":
                self._dead_brokers.add(_node(target))
                await self._call(self.brokers.kill, _node(target))
            case "pause-broker":
                self._paused_brokers.add(_node(target))
                self.brokers.send(_node(target), signal.SIGSTOP)

    async def end(self, fault: Fault) -> None:
        target = fault.target
        match fault.kind:
            case "kill":
                self._start(target)
            case "pause":
                with suppress(ProcessLookupError):
                    self._signal(target, signal.SIGCONT)
            case "cut" | "stall" | "delay":
                for link in self.links[target]:
                    link.mend()
            case "step":
                if target in self.clocks:
                    self.clocks[target].set(0)
            case "kill-redis" | "kill-postgres":
                kind = _kind(target)
                await self._call(self._start_again, kind)
            case "kill-broker":
                await self._call(self.brokers.start_again, _node(target))
                self._dead_brokers.discard(_node(target))
            case "pause-broker":
                self.brokers.send(_node(target), signal.SIGCONT)
                self._paused_brokers.discard(_node(target))

    def _start(self, name: str) -> None:
        if not self.processes[name].running:
            self.processes[name].start()
        self._down.discard(name)

    def _start_again(self, kind: servers.Kind) -> None:
        self.servers[kind] = servers.start_again(self.servers[kind], self.work)

    def _signal(self, name: str, what: signal.Signals) -> None:
        if self.processes[name].running:
            os.kill(self.processes[name].pid, what)


def prepared(directory: Path, rm_of_source: str) -> Storm:
    """A deployment that is not started yet. Without libfaketime it has no clocks to step."""
    ports = iter(free_ports(6 * len(NODES)))
    doors = {door: {node: (next(ports), next(ports)) for node in NODES} for door in DOORS}
    # (As docs/scaling.md says, so that schedulers notice a dead one after three seconds.)
    settings = {
        "group.min.session.timeout.ms": "1000",
        # Brokers that share two cores with all else, and are paused, are not dead so soon.
        "broker.session.timeout.ms": "6000",
        "controller.quorum.fetch.timeout.ms": "2000",
    }
    work = Path(tempfile.mkdtemp(prefix="muster-storm-"))
    work.chmod(0o711)
    storm = Storm(directory, work, rm_of_source, Brokers(work, doors, settings))
    storm.source.write_text("[]")  # (a scheduler is not ready before its sources have listed)
    with suppress(pytest.skip.Exception):
        library()
        storm.clocks = {name: WallClock(directory / f"{name}.clock") for name in CLOCKS}
    return storm


def _disturb(link: Link, fault: Fault) -> None:
    if fault.kind == "cut":
        link.cut()
    elif fault.kind == "stall":
        link.stall()
    else:
        link.delay(fault.amount)


def _place(url: str) -> str:
    """host:port of a URL."""
    return url.partition("//")[2].rpartition("@")[2].partition("/")[0]


def _kind(target: str) -> servers.Kind:
    return "redis" if target == "redis" else "postgres"


def _node(target: str) -> int:
    return int(target.rpartition("-")[2])


def _of_log(line: str) -> bool:
    """Lines of the embedded log's table in the informers' settings."""
    return line in ("[log]", "partitions = 1", 'sqlite_synchronous = "normal"')


def _flush(url: str) -> None:
    import redis

    with suppress(redis.RedisError):
        redis.Redis.from_url(url).flushall()
