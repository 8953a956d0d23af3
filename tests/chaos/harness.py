"""A Muster in processes that tests kill and start again, and checks of its log."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from muster_bus.clock import SystemClock
from muster_bus.log import Log, Record
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import HEADER_EVENT_ID, HEADER_RM_ID, Topics, parse_state_key
from muster_client.access import PLAIN, Access
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2
from muster_replay.local_process import LocalProcess, free_ports, muster_command
from muster_replay.report import ReplayReport

SERVING_TIMEOUT_S = 180.0  # four Python processes that start on two busy cores, behind a broker
SUPERVISION_S = 0.5
PARTITIONS = 4  # of each topic; all tests of a session share one broker
READ_RECORDS, READ_WAIT_S = 2_000, 0.5


class Deployment:
    """Processes by name, and the addresses of their gateway.

    :ivar processes: in the order of starting; the gateway comes last.
    :ivar operations: where each process answers /health and /metrics, by name.
    :ivar access: how to reach the gateway.
    :ivar second_gateway: host:port of a second gateway (``gateway-2``); "": there is none.
    """

    access = PLAIN
    second_gateway = ""

    def __init__(
        self,
        gateway: str,
        http: str,
        log_settings: LogSettings,
        processes: Mapping[str, LocalProcess],
        operations: Mapping[str, str],
    ) -> None:
        self.gateway, self.http = gateway, http
        self.log_settings, self.processes, self.operations = log_settings, dict(processes), dict(operations)

    async def start(self) -> None:
        """Starts every process and waits until the gateway serves."""
        for process in self.processes.values():
            process.start()
        await self.serving()

    async def serving(self) -> None:
        await list(self.processes.values())[-1].serving(self.gateway, SERVING_TIMEOUT_S, self.access)

    async def kill(self, name: str) -> None:
        """kill -9."""
        await asyncio.to_thread(self.processes[name].kill)

    async def restart(self, name: str) -> None:
        """Starts a killed process again and waits until the gateway serves."""
        self.processes[name].start()
        await self.serving()

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Starts processes that end by themselves again, as a supervisor does. Tests must not kill inside."""

        def start_dead() -> None:
            for process in self.processes.values():
                if not process.running:
                    process.start()

        async with supervising(start_dead):
            yield

    async def stop(self) -> None:
        """Stops all processes, the gateway first. Afterwards nothing writes to the log."""
        for process in reversed(self.processes.values()):
            await asyncio.to_thread(process.stop)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Starts all processes, and stops them at the end. After a failure it prints the ends of their logs."""
        try:
            await self.start()
            yield
        except BaseException:
            print(self.logs())
            raise
        finally:
            await self.stop()

    def logs(self) -> str:
        """The last lines of all logs, for the message of a failure."""
        return "\n".join(f"---- {name}\n{process.log_tail()}" for name, process in self.processes.items())


@asynccontextmanager
async def supervising(start_dead: Callable[[], None]) -> AsyncIterator[None]:
    """Calls a function regularly, which starts processes that have ended."""

    async def watch() -> None:
        while True:
            start_dead()
            await asyncio.sleep(SUPERVISION_S)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def embedded(directory: Path, environment: Mapping[str, str] | None = None, access: Access = PLAIN) -> Deployment:
    """`muster up`: one process, named "up", with its data in ``directory/data``.

    :param access: how to reach it, if the environment asks for TLS.
    """
    grpc_port, http_port = free_ports(2)
    gateway, http, data = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}", directory / "data"
    command = muster_command("up", "--data-dir", str(data), "--grpc-address", gateway, "--http-address", http)
    settings = LogSettings(backend="sqlite", sqlite_path=data / "log.db")
    processes = {"up": LocalProcess(command, directory / "up.log", environment)}
    url = f"{'https' if access.uses_tls else 'http'}://{http}"
    deployment = Deployment(gateway, url, settings, processes, {"up": url})
    deployment.access = access
    return deployment


def on_kafka(
    directory: Path,
    kafka: str,
    redis: str,
    environment: Mapping[str, str] | None = None,
    first: tuple[str, ...] = (),
) -> Deployment:
    """The four services, each in a process of its own, under a prefix that nobody else has.

    :param first: further services, started before the others; ``gateway-2`` is a second gateway.
    """
    grpc_port, http_port, scheduler_port, view_port, publisher_port, events_port = free_ports(6)
    gateway, http = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}"
    prefix = f"chaos-{secrets.token_hex(4)}"
    partitions = int((environment or {}).get("MUSTER_LOG__PARTITIONS", PARTITIONS))
    settings = {
        "MUSTER_LOG__BACKEND": "kafka",
        "MUSTER_LOG__PARTITIONS": str(partitions),
        "MUSTER_LOG__KAFKA_BOOTSTRAP_SERVERS": kafka,
        "MUSTER_LOG__TOPIC_PREFIX": f"{prefix}.",
        "MUSTER_GATEWAY__GRPC_ADDRESS": gateway,
        "MUSTER_GATEWAY__HTTP_ADDRESS": http,
        "MUSTER_GATEWAY__SESSIONS_URL": redis,
        "MUSTER_GATEWAY__SESSIONS_PREFIX": f"{prefix}:",
        "MUSTER_GATEWAY__VIEW_URL": f"http://127.0.0.1:{view_port}",
        "MUSTER_GATEWAY__PUBLISHER_URL": f"http://127.0.0.1:{publisher_port}",
        "MUSTER_GATEWAY__PUBLISHER_GRPC_URL": f"grpc://127.0.0.1:{events_port}",
        "MUSTER_SCHEDULER__HTTP_ADDRESS": f"127.0.0.1:{scheduler_port}",
        "MUSTER_VIEW__HTTP_ADDRESS": f"127.0.0.1:{view_port}",
        "MUSTER_PUBLISHER__HTTP_ADDRESS": f"127.0.0.1:{publisher_port}",
        "MUSTER_PUBLISHER__GRPC_ADDRESS": f"127.0.0.1:{events_port}",
        **(environment or {}),
    }
    names = (*first, "scheduler", "view", "event-publisher", "gateway")
    second_grpc, second_http = (f"127.0.0.1:{port}" for port in free_ports(2))
    second = settings | {"MUSTER_GATEWAY__GRPC_ADDRESS": second_grpc, "MUSTER_GATEWAY__HTTP_ADDRESS": second_http}
    deployment = Deployment(
        gateway,
        f"http://{http}",
        LogSettings(backend="kafka", kafka_bootstrap_servers=kafka, topic_prefix=f"{prefix}.", partitions=partitions),
        {
            name: LocalProcess(
                muster_command(name.removesuffix("-2")),
                directory / f"{name}.log",
                second if name == "gateway-2" else settings,
            )
            for name in names
        },
        {
            "gateway": f"http://{http}",
            "scheduler": f"http://127.0.0.1:{scheduler_port}",
            "view": f"http://127.0.0.1:{view_port}",
            "event-publisher": f"http://127.0.0.1:{publisher_port}",
        },
    )
    if "gateway-2" in names:
        deployment.second_gateway = second_grpc
        deployment.operations["gateway-2"] = f"http://{second_http}"
    return deployment


@dataclass(slots=True)
class Folded:
    """An RM's objects, as the records of si.state leave them."""

    nodes: dict[str, state_pb2.NodeObject] = field(default_factory=dict)
    allocations: dict[str, state_pb2.AllocationObject] = field(default_factory=dict)
    asks: dict[str, state_pb2.AskObject] = field(default_factory=dict)
    rm: state_pb2.RmObject | None = None

    def placements(self) -> Counter[str]:
        """allocationKey → how many allocations it has."""
        return Counter(item.demand.allocation_key for item in self.allocations.values())

    def waiting(self) -> set[str]:
        """Keys of asks of which something is pending."""
        return {item.demand.allocation_key for item in self.asks.values() if item.pending > 0}

    def overcommitted(self) -> list[str]:
        """Nodes with more allocated than their capacity, and unknown nodes that have allocations."""
        used: dict[str, Counter[str]] = defaultdict(Counter)
        for item in self.allocations.values():
            used[item.node_id].update(dict(item.demand.resource.values))
        wrong = []
        for node_id, sums in used.items():
            node = self.nodes.get(node_id)
            room = {} if node is None else dict(node.capacity.values)
            held = {} if node is None else dict(node.occupied.values)
            if any(quantity + held.get(name, 0) > room.get(name, 0) for name, quantity in sums.items()):
                wrong.append(node_id)
        return sorted(wrong)


@asynccontextmanager
async def opened_log(settings: LogSettings) -> AsyncIterator[tuple[Log, Topics]]:
    """Opens the deployment's log in the test's process."""
    log = make_log(settings, SystemClock())
    topics = settings.topics()
    await log.start()
    try:
        yield log, topics
    finally:
        await log.close()


async def records(log: Log, topic: str, partition: int) -> list[Record]:
    """Yields every visible record of a partition."""
    reader = await log.reader(topic, partition)
    found: list[Record] = []
    try:
        end = await reader.end_offset()
        async with asyncio.timeout(60):
            while reader.position < end:
                found += await reader.read(READ_RECORDS, READ_WAIT_S)
    finally:
        await reader.close()
    return found


async def folded_state(log: Log, topics: Topics, rm_id: str) -> Folded:
    """Folds the RM's records of si.state, oldest first."""
    latest: dict[bytes, bytes] = {}
    for record in await records(log, topics.state, topics.partition_of(rm_id)):
        assert record.key is not None
        if record.value is None:
            latest.pop(record.key, None)
        else:
            latest[record.key] = record.value
    state = Folded()
    for key, value in latest.items():
        owner, kind, parts = parse_state_key(key)
        if owner != rm_id:
            continue
        name = "/".join(parts)
        if kind == "node":
            state.nodes[parts[-1]] = state_pb2.NodeObject.FromString(value)
        elif kind == "alloc":
            state.allocations[name] = state_pb2.AllocationObject.FromString(value)
        elif kind == "ask":
            state.asks[name] = state_pb2.AskObject.FromString(value)
        elif kind == "rm":
            state.rm = state_pb2.RmObject.FromString(value)
    return state


async def event_ids(log: Log, topics: Topics, rm_id: str) -> list[int]:
    """Ids of the RM's events, in the log's order."""
    ids = []
    for record in await records(log, topics.events, topics.partition_of(rm_id)):
        headers = dict(record.headers)
        if headers[HEADER_RM_ID] == rm_id.encode():
            ids.append(int(headers[HEADER_EVENT_ID]))
    return ids


async def response_sequences(log: Log, topics: Topics, rm_id: str) -> list[int]:
    """Numbers of the RM's responses, in the log's order; answers to registrations have none."""
    envelopes = [
        envelope_pb2.ResponseEnvelope.FromString(record.value or b"")
        for record in await records(log, topics.responses, topics.partition_of(rm_id))
        if record.key == rm_id.encode()
    ]
    return [envelope.sequence for envelope in envelopes if not envelope.HasField("registration")]


def assert_counted_through(numbers: list[int], first: int, what: str) -> None:
    """Fails unless the numbers are first, first + 1, … in this order."""
    assert numbers, f"no {what} at all"
    wrong = [(place, number) for place, number in enumerate(numbers, start=first) if place != number]
    assert not wrong, f"{what}: at place {wrong[0][0]} there is {wrong[0][1]} ({len(wrong)} of {len(numbers)} are off)"


async def assert_each_task_once(deployment: Deployment, report: ReplayReport, rm_id: str, tasks: int) -> list[int]:
    """Each task of a replay is allocated once or has a reason; numbers on the log have no gap and no double.

    Gives the events' ids.
    """
    # 1. as the client was told
    assert report.good, (report.complaints, report.unaccounted, deployment.logs())
    assert report.placed + sum(report.pending.values()) == tasks
    async with opened_log(deployment.log_settings) as (log, topics):
        # 2. as the folded state says
        state = await folded_state(log, topics, rm_id)
        placements = state.placements()
        assert max(placements.values()) == 1
        assert len(placements) == report.placed
        assert len(state.waiting()) == sum(report.pending.values())
        assert not placements.keys() & state.waiting()
        assert state.overcommitted() == []
        assert len(state.nodes) == report.nodes
        # 3. as the numbers on the log say
        ids = await event_ids(log, topics, rm_id)
        assert_counted_through(ids, 0, "event ids")
        assert_counted_through(await response_sequences(log, topics, rm_id), 1, "response numbers")
    return ids
