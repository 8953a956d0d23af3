"""A group of schedulers as processes on Kafka, RMs that write to the log directly, and an auditor of what is answered.

There is no gateway: what a client sees of a take-over is the log's responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from muster_bus.clock import SystemClock
from muster_bus.log import Log, LogWriter, OutRecord
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.local_process import LocalProcess, free_ports, muster_command
from waiting import eventually

QUEUES = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
_HEALTH_TIMEOUT_S = 2.0
_ITEMS_PER_MESSAGE = 100


class Schedulers:
    """Scheduler processes 0, 1, … of one group.

    :param environment: of all of them.
    """

    def __init__(
        self, directory: Path, log_settings: LogSettings, count: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self._ports = free_ports(count)
        self.processes = [
            LocalProcess(
                muster_command("scheduler"),
                directory / f"scheduler-{number}.log",
                {
                    "MUSTER_LOG__BACKEND": "kafka",
                    "MUSTER_LOG__KAFKA_BOOTSTRAP_SERVERS": log_settings.kafka_bootstrap_servers,
                    "MUSTER_LOG__TOPIC_PREFIX": log_settings.topic_prefix,
                    "MUSTER_LOG__PARTITIONS": str(log_settings.partitions),
                    "MUSTER_SCHEDULER__HTTP_ADDRESS": f"127.0.0.1:{port}",
                    **(environment or {}),
                },
            )
            for number, port in enumerate(self._ports)
        ]

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.processes[number].start()

    def send(self, number: int, what: signal.Signals) -> None:
        os.kill(self.processes[number].pid, what)

    async def stop(self) -> None:
        """Ends what runs."""
        for process in self.processes:
            if process.running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
                await asyncio.to_thread(process.stop)

    async def health(self, number: int) -> dict[str, Any]:
        """What its /health says; {} if it does not answer."""

        def ask() -> dict[str, Any]:
            address = f"http://127.0.0.1:{self._ports[number]}/health"
            try:
                with urllib.request.urlopen(address, timeout=_HEALTH_TIMEOUT_S) as answer:
                    found = json.load(answer)
            except urllib.error.HTTPError as error:
                found = json.load(error)
            except (OSError, ValueError):
                return {}
            assert isinstance(found, dict)
            return found

        return await asyncio.to_thread(ask)

    async def owned(self, numbers: Iterable[int]) -> dict[int, set[int]]:
        """What each scheduler owns."""
        answers = {number: await self.health(number) for number in numbers}
        return {number: set(answer.get("scheduler", {}).get("partitions", ())) for number, answer in answers.items()}

    async def settled(self, numbers: Sequence[int], partitions: int) -> dict[int, set[int]]:
        """Waits until these share all partitions evenly, each has a warm standby, and all are ready."""

        async def look() -> dict[int, set[int]] | None:
            answers = {number: await self.health(number) for number in numbers}
            if any(answer.get("status") != "ready" for answer in answers.values()):
                return None
            facts = [answer["scheduler"] for answer in answers.values()]
            owned = sorted(partition for each in facts for partition in each["partitions"])
            warm = sorted({partition for each in facts for partition in each["warm"]})
            sizes = [len(each["partitions"]) for each in facts]
            is_even = max(sizes) - min(sizes) <= 1
            every = list(range(partitions))
            if owned != every or not is_even or (len(numbers) > 1 and warm != every):
                return None
            if any(each["schedulers"] != len(numbers) for each in facts):
                return None
            return {number: set(answers[number]["scheduler"]["partitions"]) for number in numbers}

        found: dict[int, set[int]] = await eventually(look, f"schedulers {numbers} settle", every_s=0.05)
        return found

    def logs(self) -> str:
        """The ends of all logs, for a failure's message."""
        return "\n".join(f"---- {number}\n{process.log_tail()}" for number, process in enumerate(self.processes))


class DirectRm:
    """An RM that writes its requests to the log, and reads its responses from there.

    :ivar sent: key → when it was asked for (monotonic seconds).
    :ivar allocated: key → when its allocation was visible.
    :ivar answers: how many allocations each key got.
    :ivar sequences: numbers of its responses, in order.
    """

    def __init__(self, log: Log, topics: Topics, writer: LogWriter, rm_id: str) -> None:
        self._log, self._topics, self._writer = log, topics, writer
        self.rm_id, self.partition = rm_id, topics.partition_of(rm_id)
        self.sent: dict[str, float] = {}
        self.allocated: dict[str, float] = {}
        self.answers: Counter[str] = Counter()
        self.rejected: list[str] = []
        self.sequences: list[int] = []
        self.registered = False
        self._number = 0
        self._reading: asyncio.Task[None] | None = None

    async def start(self, nodes: int, room: int) -> None:
        """Registers, with so many nodes that hold ``room`` asks each, and one application."""
        self._reading = asyncio.create_task(self._read())
        await self._send(
            register=si.RegisterResourceManagerRequest(
                rmID=self.rm_id, version="1", policyGroup="queues", config=QUEUES
            ).SerializeToString()
        )
        await eventually(lambda: self.registered, f"{self.rm_id} is registered")
        infos = [
            si.NodeInfo(
                nodeID=f"n{number}", action=si.NodeInfo.CREATE, schedulableResource=_resource(vcore=1000 * room)
            )
            for number in range(nodes)
        ]
        for some in _cut(infos):
            await self._send(node=si.NodeRequest(rmID=self.rm_id, nodes=some).SerializeToString())
        new = si.AddApplicationRequest(
            applicationID="app",
            queueName="root.a",
            partitionName="default",
            ugi=si.UserGroupInformation(user="alice"),
        )
        await self._send(application=si.ApplicationRequest(rmID=self.rm_id, new=[new]).SerializeToString())

    async def ask(self, count: int = 1) -> None:
        """Asks for so many allocations more."""
        assert self._reading is not None, "start comes first"
        if self._reading.done():
            self._reading.result()
        items = []
        for _ in range(count):
            self._number += 1
            key = f"k{self._number}"
            self.sent[key] = time.monotonic()
            items.append(
                si.Allocation(
                    allocationKey=key,
                    applicationID="app",
                    partitionName="default",
                    resourcePerAlloc=_resource(vcore=1000),
                )
            )
        for some in _cut(items):
            await self._send(allocation=si.AllocationRequest(rmID=self.rm_id, allocations=some).SerializeToString())

    @property
    def waiting(self) -> int:
        return len(self.sent) - len(self.allocated)

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _send(self, **body: bytes) -> None:
        envelope = pb.RequestEnvelope(rm_id=self.rm_id, request_id=secrets.token_hex(8), **body)  # type: ignore[arg-type]
        await self._writer.wait_writable()
        value = envelope.SerializeToString()
        await self._writer.append(OutRecord(self._topics.requests, self.partition, self.rm_id.encode(), value))

    async def _read(self) -> None:
        reader = await self._log.reader(self._topics.responses, self.partition)
        while True:
            for record in await reader.read(2000, 0.05):
                if record.key == self.rm_id.encode():
                    self._take(pb.ResponseEnvelope.FromString(record.value or b""))

    def _take(self, envelope: pb.ResponseEnvelope) -> None:
        now_s = time.monotonic()
        if envelope.HasField("registration"):
            self.registered = envelope.registration.accepted
            return
        self.sequences.append(envelope.sequence)
        if envelope.stream != pb.STREAM_ALLOCATION:
            return
        response = si.AllocationResponse.FromString(envelope.response)
        for new in response.new:
            self.answers[new.allocationKey] += 1
            self.allocated.setdefault(new.allocationKey, now_s)
        self.rejected += [each.allocationKey for each in response.rejected]


@asynccontextmanager
async def opened(bootstrap: str, name: str, partitions: int) -> AsyncIterator[tuple[LogSettings, Log]]:
    """Settings of a log of its own, and the test's own connection to it."""
    settings = LogSettings(
        backend="kafka",
        partitions=partitions,
        kafka_bootstrap_servers=bootstrap,
        topic_prefix=f"{name}-{secrets.token_hex(4)}.",
        kafka_fetch_max_wait_ms=50,
    )
    log = make_log(settings, SystemClock())
    await log.start()
    try:
        yield settings, log
    finally:
        await log.close()


def one_rm_per_partition(topics: Topics) -> list[str]:
    """RM ids such that each partition has one."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < topics.partitions:
        found.setdefault(topics.partition_of(f"rm-{number}"), f"rm-{number}")
        number += 1
    return [found[partition] for partition in sorted(found)]


def _resource(**quantities: int) -> si.Resource:
    return si.Resource(resources={name: si.Quantity(value=value) for name, value in quantities.items()})


def _cut(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    for start in range(0, len(items), _ITEMS_PER_MESSAGE):
        yield items[start : start + _ITEMS_PER_MESSAGE]
