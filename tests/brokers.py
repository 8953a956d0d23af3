"""Three Kafka brokers of a test's own, each also a controller, to be killed and started again one by one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import servers
from aiokafka.admin import AIOKafkaAdminClient
from muster_replay.local_process import free_ports
from wanting import server_wanted

NODES = (1, 2, 3)
_CLUSTER = "TXVzdGVyVGhyZWVCcm9rZXI"
_TOOL_TIMEOUT_S = 180.0


@dataclass
class Brokers:
    """See the module.

    :param doors: further listeners by name. A broker says of each an address that is another one than its own: that of
        a proxy in front of it. By node: (port of the listener, port that it says).
    :param settings: further properties of each broker.
    :ivar address: of all brokers, as a client's bootstrap servers.
    """

    directory: Path
    doors: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    _running: dict[int, servers.Server] = field(default_factory=dict)
    _commands: dict[int, list[str]] = field(default_factory=dict)
    _ports: dict[int, int] = field(default_factory=dict)
    _tool: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Starts all of them. Raises NoServer."""
        ports = free_ports(2 * len(NODES))
        self._ports = dict(zip(NODES, ports, strict=False))
        controllers = dict(zip(NODES, ports[len(NODES) :], strict=True))
        self.address = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
        for node in NODES:
            work = self._work(node)
            work.mkdir(parents=True)
            settings = {
                "node.id": str(node),
                "process.roles": "broker,controller",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[node]},CONTROLLER://127.0.0.1:{controllers[node]}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._ports[node]}",
                "controller.quorum.voters": voters,
                "log.dirs": str(work / "data"),
                "auto.create.topics.enable": "false",
                "offsets.topic.num.partitions": "3",
                "offsets.topic.replication.factor": "3",
                "transaction.state.log.num.partitions": "3",
                "transaction.state.log.replication.factor": "3",
                "transaction.state.log.min.isr": "2",
                "group.initial.rebalance.delay.ms": "0",
                # How soon the controller gives a dead broker's partitions to the others (Kafka's default is 9 s). If it
                # was the controller, its successor counts anew.
                "broker.session.timeout.ms": "4000",
                "broker.heartbeat.interval.ms": "1000",
                "controller.quorum.fetch.timeout.ms": "1000",
                "controller.quorum.election.backoff.max.ms": "500",
                "replica.lag.time.max.ms": "6000",
                **self.settings,
            }
            for door, ports_of in self.doors.items():
                settings["listener.security.protocol.map"] += f",{door}:PLAINTEXT"
                settings["listeners"] += f",{door}://127.0.0.1:{ports_of[node][0]}"
                settings["advertised.listeners"] += f",{door}://127.0.0.1:{ports_of[node][1]}"
            self._tool, self._commands[node] = servers.broker_program(
                work, settings, _CLUSTER, ("-Xms128m", "-Xmx512m")
            )
        # The first one answers only when another one is there to elect it.
        processes = {node: self._launch(node) for node in NODES}
        for node, process in processes.items():
            self._running[node] = process
        for node in NODES:
            self._await(node)

    def _work(self, node: int) -> Path:
        return self.directory / f"broker-{node}"

    def _launch(self, node: int) -> servers.Server:
        with (self._work(node) / "output.log").open("ab") as output:
            process = subprocess.Popen(
                self._commands[node], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        return servers.Server(
            "kafka", f"127.0.0.1:{self._ports[node]}", "local", process.pid, servers.started_ticks(process.pid)
        )

    def _await(self, node: int) -> None:
        servers.await_kafka(self._running[node])

    def kill(self, node: int) -> None:
        """kill -9."""
        servers.kill(self._running.pop(node))

    def send(self, node: int, what: signal.Signals) -> None:
        """Sends a signal to a running broker."""
        os.kill(self._running[node].pid, what)

    def start_again(self, node: int) -> None:
        """Starts a killed broker with what it has written; returns when it answers."""
        self._running[node] = self._launch(node)
        self._await(node)

    def controller(self) -> int:
        """Returns the active controller."""
        asked = [*self._tool, "org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-server", self.address]
        shown = subprocess.run(
            [*asked, "describe", "--status"], check=True, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S
        ).stdout
        (leader,) = [line.split()[-1] for line in shown.splitlines() if line.startswith("LeaderId:")]
        return int(leader)

    def stop(self) -> None:
        for server in self._running.values():
            servers.stop(server)


@contextlib.contextmanager
def three_brokers() -> Iterator[Brokers]:
    """Started, and ended."""
    with tempfile.TemporaryDirectory(prefix="muster-brokers-", ignore_cleanup_errors=True) as directory:
        brokers = Brokers(Path(directory))
        try:
            with server_wanted():
                brokers.start()
            yield brokers
        finally:
            brokers.stop()


async def leaders(address: str, topic: str) -> list[int]:
    """Returns the broker that leads each partition of a topic."""
    async with _admin(address) as admin:
        (found,) = await admin.describe_topics([topic])
    return [each["leader"] for each in sorted(found["partitions"], key=lambda each: int(each["partition"]))]


async def all_in_sync(address: str) -> bool:
    """Tells whether each partition of each topic has all its copies in sync."""
    return not await out_of_sync(address)


async def out_of_sync(address: str) -> list[str]:
    """Returns the partitions that lack copies in sync, each with the brokers that should have one and those that do."""
    async with _admin(address) as admin:
        topics = await admin.describe_topics()
    return [
        f"{topic['topic']}/{each['partition']}: {sorted(each['isr'])} of {sorted(each['replicas'])}"
        for topic in topics
        for each in topic["partitions"]
        if len(each["isr"]) != len(each["replicas"])
    ]


@contextlib.asynccontextmanager
async def _admin(address: str) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()
