"""Far more asks than can be decided: flow control slows the RMs, memory stays bounded, and nothing is lost.

Eight RMs send messages of asks as fast as they are taken, and end what they get, for MUSTER_OVERLOAD_S (8) seconds.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest
from chaos.harness import Deployment, embedded, on_kafka
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from waiting import eventually

OVERLOAD_S = float(os.environ.get("MUSTER_OVERLOAD_S", "8"))
RMS = 8
ASKS = 200  # of a message
# What all processes may take more than before: queues, undecided requests, garbage. It does not grow with the time.
MEMORY_MAX_BYTES = 600 << 20
CONFIG = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400 + 10 * OVERLOAD_S),
    pytest.mark.usefixtures("not_forked"),  # (it counts its processes' memory)
]


def quantity(vcore: int) -> si.Resource:
    return si.Resource(resources={"vcore": si.Quantity(value=vcore)})


class FloodingRm:
    """Sends as fast as its stream takes messages.

    :ivar sent: asks; ``times``: allocations of each ask; ``ended``: confirmed ends.
    """

    def __init__(self, channel: grpc.aio.Channel, rm_id: str) -> None:
        self._stub, self.rm_id = SchedulerStub(channel), rm_id
        self.sent, self.ended = 0, 0
        self.times: Counter[str] = Counter()

    async def begin(self) -> None:
        metadata = (("muster-rm-id", self.rm_id),)
        request = si.RegisterResourceManagerRequest(rmID=self.rm_id, version="1", config=CONFIG)
        await self._stub.RegisterResourceManager(request, timeout=60)
        nodes = self._stub.UpdateNode(metadata=metadata)
        new = si.NodeInfo(nodeID="n", action=si.NodeInfo.CREATE, schedulableResource=quantity(1 << 50))
        await nodes.write(si.NodeRequest(rmID=self.rm_id, nodes=[new]))
        assert (await nodes.read()).accepted
        apps = self._stub.UpdateApplication(metadata=metadata)
        app = si.AddApplicationRequest(
            applicationID="app", queueName="root.a", partitionName="default", ugi=si.UserGroupInformation(user="u")
        )
        await apps.write(si.ApplicationRequest(rmID=self.rm_id, new=[app]))
        assert (await apps.read()).accepted
        self._asks = self._stub.UpdateAllocation(metadata=metadata)
        self._ends: asyncio.Queue[list[str]] = asyncio.Queue()
        self._writing = asyncio.Lock()
        self._tasks = [asyncio.create_task(self._hear()), asyncio.create_task(self._end()), *map(_drain, (nodes, apps))]

    async def ask(self, count: int) -> None:
        """Returns when the stream has taken the message."""
        asks = [
            si.Allocation(
                allocationKey=f"a{self.sent + number}", applicationID="app", partitionName="default",
                resourcePerAlloc=quantity(1),
            )
            for number in range(count)
        ]  # fmt: skip
        self.sent += count
        async with self._writing:
            await self._asks.write(si.AllocationRequest(rmID=self.rm_id, allocations=asks))

    async def flood(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            await self.ask(ASKS)

    async def _hear(self) -> None:
        while (answer := await self._asks.read()) is not grpc.aio.EOF:
            assert not answer.rejectedAllocations, answer.rejectedAllocations[0]
            new = [made.allocationKey for made in answer.new]
            self.times.update(new)
            self.ended += len(answer.released)
            if new:
                self._ends.put_nowait(new)

    async def _end(self) -> None:
        while True:
            keys = await self._ends.get()
            ends = [
                si.AllocationRelease(
                    allocationKey=key, applicationID="app", partitionName="default",
                    terminationType=si.TerminationType.STOPPED_BY_RM,
                )
                for key in keys
            ]  # fmt: skip
            releases = si.AllocationReleasesRequest(allocationsToRelease=ends)
            async with self._writing:
                await self._asks.write(si.AllocationRequest(rmID=self.rm_id, releases=releases))

    def is_over(self) -> bool:
        """Tells whether each ask was allocated, and has ended."""
        self.failed()
        return self.ended == self.sent

    def failed(self) -> None:
        """Raises what ended a task of the RM."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def latency_s(self) -> float:
        """The time of a single ask until its allocation."""
        key, began_s = f"a{self.sent}", time.monotonic()
        await self.ask(1)
        await eventually(lambda: self.times[key], "a single ask is allocated")
        return time.monotonic() - began_s

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _drain(call: grpc.aio.StreamStreamCall) -> asyncio.Task[None]:
    async def read() -> None:
        while await call.read() is not grpc.aio.EOF:
            pass

    return asyncio.create_task(read())


def memory_bytes(deployment: Deployment) -> int:
    """What all processes have in memory now, their children included."""
    parents = {process.pid for process in deployment.processes.values()}
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has ended
            continue
        if int(status.parent.name) in parents or int(fields["PPid"]) in parents:
            found += int(fields.get("VmRSS", "0 kB").split()[0]) << 10
    return found


async def overloaded(deployment: Deployment) -> None:
    async with deployment.running(), grpc.aio.insecure_channel(deployment.gateway) as channel:
        rms = [FloodingRm(channel, f"rm-{number}") for number in range(RMS)]
        try:
            for rm in rms:
                await rm.begin()
            quiet_s = sorted([await rms[0].latency_s() for _ in range(5)])[2]
            before, most = memory_bytes(deployment), 0
            until_s = time.monotonic() + OVERLOAD_S
            floods = [asyncio.create_task(rm.flood(until_s)) for rm in rms]
            while not all(flood.done() for flood in floods):
                for rm in rms:
                    rm.failed()
                most = max(most, memory_bytes(deployment))
                await asyncio.sleep(0.5)
            await asyncio.gather(*floods)
            sent, heard = sum(rm.sent for rm in rms), sum(rm.times.total() for rm in rms)
            began_s = time.monotonic()
            for rm in rms:
                await eventually(
                    lambda rm=rm: rm.ended == rm.sent, f"all asks of {rm.rm_id} are over", 180 + 4 * OVERLOAD_S
                )
            drained_s = time.monotonic() - began_s
            normal_s = sorted([await rms[0].latency_s() for _ in range(5)])[2]
            print(
                f"{sent / OVERLOAD_S:.0f} asks/s taken, {heard / OVERLOAD_S:.0f}/s allocated; "
                f"{sent - heard} under way at the end, over after {drained_s:.1f} s; "
                f"memory {before >> 20} + {most - before >> 20} MiB; "
                f"a single ask {1000 * quiet_s:.0f} ms before, {1000 * normal_s:.0f} ms after"
            )
            for rm in rms:
                assert set(rm.times) == {f"a{number}" for number in range(rm.sent)}
                assert max(rm.times.values()) == 1, "an ask was allocated twice"
            assert most - before < MEMORY_MAX_BYTES
        finally:
            for rm in rms:
                await rm.stop()


async def test_an_embedded_muster_slows_the_rms(tmp_path: Path) -> None:
    await overloaded(embedded(tmp_path))


@pytest.mark.kafka
@pytest.mark.redis
async def test_services_on_kafka_slow_the_rms(tmp_path: Path, kafka_bootstrap: str, redis_url: str) -> None:
    await overloaded(on_kafka(tmp_path, kafka_bootstrap, redis_url))
