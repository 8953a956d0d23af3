"""Measures one command about many allocations: the loop's longest steps, and another RM's wait. One JSON line.

.venv/bin/python -m bench.commands_bench [--allocations 100000] [--only remove] [--backend sqlite] [--followers]

The scheduler and the log run in this process, without a gateway. An RM reports so many allocations of one application,
on one node. Then comes the command:

remove       it removes the application
release      it releases all allocations of the application
decommission it removes the node
register     it registers again
forget       an operator has the RM forgotten
remove_1000  the allocations are in 1,000 applications, which one message removes

With ``--followers``, the view and the event publisher follow in this process, too. Their own process has the same
steps, and reads the file.

``steps_ms`` are the longest steps of the event loop (processor time), until the log has published everything that
follows from the command. ``total_ms`` is the processor time of the loop's thread. Two other RMs ask for one allocation
each 20 ms, one of the same partition of the log and one of another: ``near_ms`` and ``far_ms`` are their longest waits
(by the clock).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from loop_steps import LoopSteps, measured_steps  # noqa: E402
from muster_bus.clock import SystemClock  # noqa: E402
from muster_bus.log import Log, LogWriter, OutRecord  # noqa: E402
from muster_bus.log_factory import make_log  # noqa: E402
from muster_bus.settings import LogSettings  # noqa: E402
from muster_bus.topics import Topics  # noqa: E402
from muster_cli import gc_tuning  # noqa: E402
from muster_event_publisher.service import PublisherService  # noqa: E402
from muster_event_publisher.settings import PublisherSettings  # noqa: E402
from muster_proto.muster.bus.v1 import envelope_pb2 as pb  # noqa: E402
from muster_proto.si.v1 import si_pb2 as si  # noqa: E402
from muster_scheduler.service import SchedulerService  # noqa: E402
from muster_scheduler.settings import SchedulerSettings  # noqa: E402
from muster_view import ViewService  # noqa: E402
from muster_view.settings import ViewSettings  # noqa: E402
from waiting import eventually  # noqa: E402

COMMANDS = ("remove", "release", "decommission", "register", "forget", "remove_1000")
QUEUES = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
PATIENCE_S = 600.0
_PER_MESSAGE = 500
_ASK_EVERY_S = 0.02


class Rm:
    """An RM that writes its requests to the log, and reads the answers there."""

    def __init__(self, log: Log, topics: Topics, writer: LogWriter, rm_id: str) -> None:
        self._log, self._topics, self._writer = log, topics, writer
        self.rm_id, self.partition = rm_id, topics.partition_of(rm_id)
        self.registrations = self.admin = 0
        self.allocated = self.released = 0
        self.applications: set[str] = set()
        self.ended: set[str] = set()
        self._reading = asyncio.create_task(self._read())

    async def send(self, **body: object) -> int:
        """Appends a request. Returns its offset."""
        envelope = pb.RequestEnvelope(rm_id=self.rm_id, request_id=secrets.token_hex(8), **body)  # type: ignore[arg-type]
        await self._writer.wait_writable()
        value = envelope.SerializeToString()
        return await self._writer.append(OutRecord(self._topics.requests, self.partition, self.rm_id.encode(), value))

    async def register(self) -> int:
        before = self.registrations
        request = si.RegisterResourceManagerRequest(rmID=self.rm_id, version="1", policyGroup="q", config=QUEUES)
        offset = await self.send(register=request.SerializeToString())
        await eventually(lambda: self.registrations > before, f"{self.rm_id} is registered", PATIENCE_S)
        return offset

    async def start(self, apps: Sequence[str]) -> None:
        """Registers, with one node and these applications."""
        await self.register()
        node = si.NodeInfo(nodeID="n", action=si.NodeInfo.CREATE, schedulableResource=_vcore(1 << 40))
        await self.send(node=si.NodeRequest(rmID=self.rm_id, nodes=[node]).SerializeToString())
        ugi = si.UserGroupInformation(user="ann")
        for at in range(0, len(apps), _PER_MESSAGE):
            new = [
                si.AddApplicationRequest(applicationID=app, queueName="root.a", partitionName="default", ugi=ugi)
                for app in apps[at : at + _PER_MESSAGE]
            ]
            await self.send(application=si.ApplicationRequest(rmID=self.rm_id, new=new).SerializeToString())
        await eventually(lambda: len(self.applications) == len(apps), "the applications", PATIENCE_S)

    async def report(self, count: int, apps: Sequence[str]) -> None:
        """Reports so many allocations on the node, in the applications by turns."""
        before = self.allocated
        for at in range(0, count, _PER_MESSAGE):
            items = [
                si.Allocation(
                    allocationKey=f"k{number}",
                    applicationID=apps[number % len(apps)],
                    partitionName="default",
                    nodeID="n",
                    resourcePerAlloc=_vcore(1),
                )
                for number in range(at, min(count, at + _PER_MESSAGE))
            ]
            await self.send(allocation=si.AllocationRequest(rmID=self.rm_id, allocations=items).SerializeToString())
        await eventually(lambda: self.allocated - before >= count, "the reported allocations", PATIENCE_S, every_s=0.05)

    async def ask_and_release(self, waits: list[float]) -> None:
        """Asks for one allocation at a time, until it is cancelled."""
        number = 0
        while True:
            number += 1
            item = si.Allocation(
                allocationKey=f"q{number}", applicationID="app", partitionName="default", resourcePerAlloc=_vcore(1)
            )
            began_s, before = time.monotonic(), self.allocated
            waits.append(0.0)
            asking = asyncio.create_task(
                self.send(allocation=si.AllocationRequest(rmID=self.rm_id, allocations=[item]).SerializeToString())
            )
            while self.allocated == before:
                await asyncio.sleep(0.001)
                waits[-1] = time.monotonic() - began_s
            await asking
            gone = si.AllocationRelease(partitionName="default", applicationID="app", allocationKey=f"q{number}")
            releases = si.AllocationReleasesRequest(allocationsToRelease=[gone])
            await self.send(allocation=si.AllocationRequest(rmID=self.rm_id, releases=releases).SerializeToString())
            await asyncio.sleep(_ASK_EVERY_S)

    async def stop(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        reader = await self._log.reader(self._topics.responses, self.partition)
        while True:
            for record in await reader.read(20, 1.0):
                if record.key == self.rm_id.encode():
                    self._take(pb.ResponseEnvelope.FromString(record.value or b""))
                await asyncio.sleep(0)

    def _take(self, envelope: pb.ResponseEnvelope) -> None:
        if envelope.HasField("registration"):
            assert envelope.registration.accepted
            self.registrations += 1
        elif envelope.HasField("admin"):
            self.admin += 1
        elif envelope.stream == pb.STREAM_ALLOCATION:
            # (Counted, not decoded: 256 KiB are a step of their own.)
            response = envelope.response
            self.allocated += response.count(b"default") if b"q" in response or b"k" in response else 0
            self.released += 1
        elif envelope.stream == pb.STREAM_APPLICATION:
            told = si.ApplicationResponse.FromString(envelope.response)
            self.applications |= {each.applicationID for each in told.accepted}
            self.ended |= {each.applicationID for each in told.updated if each.state == "Completing"}


def _vcore(amount: int) -> si.Resource:
    return si.Resource(resources={"vcore": si.Quantity(value=amount)})


@asynccontextmanager
async def followers_on(log: Log, topics: Topics) -> AsyncIterator[None]:
    """The followers of a started log."""
    clock = SystemClock()
    view = ViewService(ViewSettings(http_address=""), log, topics, clock)
    publisher = PublisherService(PublisherSettings(http_address=""), log, topics, clock)
    for service in (view, publisher):
        await service.start()
    try:
        yield
    finally:
        for service in (publisher, view):
            await service.stop()


@asynccontextmanager
async def scheduler_on(log: Log, topics: Topics) -> AsyncIterator[SchedulerService]:
    """A scheduler on a started log."""
    service = SchedulerService(SchedulerSettings(http_address=""), log, topics, SystemClock())
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


def ids_by_place(topics: Topics) -> tuple[str, str, str]:
    """Ids of the loud RM, of an RM of its partition of the log, and of one of another."""
    loud = "loud"
    names = [f"quiet-{number}" for number in range(1000)]
    near = next(name for name in names if topics.partition_of(name) == topics.partition_of(loud))
    far = next(name for name in names if topics.partition_of(name) != topics.partition_of(loud))
    return loud, near, far


async def run_command(name: str, rm: Rm, apps: Sequence[str]) -> int:
    """Sends the command. Returns the offset of its request."""
    if name in ("remove", "remove_1000"):
        gone = [si.RemoveApplicationRequest(applicationID=app, partitionName="default") for app in apps]
        return await rm.send(application=si.ApplicationRequest(rmID=rm.rm_id, remove=gone).SerializeToString())
    if name == "release":
        releases = si.AllocationReleasesRequest(
            allocationsToRelease=[si.AllocationRelease(partitionName="default", applicationID=apps[0])]
        )
        return await rm.send(allocation=si.AllocationRequest(rmID=rm.rm_id, releases=releases).SerializeToString())
    if name == "decommission":
        node = si.NodeInfo(nodeID="n", action=si.NodeInfo.DECOMISSION)
        return await rm.send(node=si.NodeRequest(rmID=rm.rm_id, nodes=[node]).SerializeToString())
    if name == "register":
        request = si.RegisterResourceManagerRequest(rmID=rm.rm_id, version="1", policyGroup="q", config=QUEUES)
        return await rm.send(register=request.SerializeToString())
    assert name == "forget", name
    return await rm.send(admin=pb.AdminCommand(forget=pb.AdminCommand.Forget(force=True)))


async def decided(log: Log, topics: Topics, partition: int, offset: int, start: int) -> None:
    """Waits until the scheduler has reported that the request at this offset is decided, and all is published."""
    reader = await log.reader(topics.responses, partition, start)
    try:
        while True:
            for record in await reader.read(20, 1.0):
                if record.key is None and pb.ResponseEnvelope.FromString(record.value or b"").decided > offset:
                    return
                await asyncio.sleep(0)
    finally:
        await reader.close()


async def measure(
    name: str, count: int, settings: LogSettings, steps: LoopSteps, *, followers: bool = False
) -> dict[str, object]:
    """One command on a new log."""
    topics, log = settings.topics(), make_log(settings, SystemClock())
    await log.start()
    async with scheduler_on(log, topics), AsyncExitStack() as stack:
        if followers:
            await stack.enter_async_context(followers_on(log, topics))
        writer = await log.writer("bench")
        loud_id, near_id, far_id = ids_by_place(topics)
        loud, near, far = (Rm(log, topics, writer, rm_id) for rm_id in (loud_id, near_id, far_id))
        apps = [f"app-{number}" for number in range(1000 if name == "remove_1000" else 1)]
        await loud.start(apps)
        for quiet in (near, far):
            await quiet.start(["app"])
        await loud.report(count, apps)
        gc.collect()
        gc.freeze()
        waits: dict[str, list[float]] = {"near": [], "far": []}
        asking = [
            asyncio.create_task(quiet.ask_and_release(waits[place])) for place, quiet in (("near", near), ("far", far))
        ]
        await asyncio.sleep(0.5)
        end = await log.reader(topics.responses, loud.partition)
        start = await end.end_offset()
        before_ms = [max(each) * 1000 for each in waits.values()]
        steps.clear()
        for each in waits.values():
            each.clear()
            each.append(0.0)
        began_s, used_s = time.monotonic(), time.thread_time()
        offset = await run_command(name, loud, apps)
        await decided(log, topics, loud.partition, offset, start)
        took_s, used_s = time.monotonic() - began_s, time.thread_time() - used_s
        await asyncio.sleep(5 if followers else 0.5)
        found = {
            "command": name,
            "steps_ms": steps.longest(4),
            "total_ms": round(used_s * 1000),
            "decided_after_ms": round(took_s * 1000),
            **{f"{place}_ms": round(max(each) * 1000) for place, each in waits.items()},
            "near_before_ms": round(before_ms[0]),
        }
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for rm in (loud, near, far):
            await rm.stop()
    await log.close()
    return found


async def measure_all(names: Sequence[str], count: int, backend: str, *, followers: bool) -> None:
    with measured_steps() as steps:
        for name in names:
            with tempfile.TemporaryDirectory() as directory:
                settings = LogSettings(backend=backend, sqlite_path=Path(directory) / "log.db")  # type: ignore[arg-type]
                found = await measure(name, count, settings, steps, followers=followers)
                print(json.dumps({"allocations": count, **found}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocations", type=int, default=100_000)
    parser.add_argument("--only", default=",".join(COMMANDS))
    parser.add_argument("--backend", default="sqlite", choices=("sqlite", "memory"))
    parser.add_argument("--followers", action="store_true")
    arguments = parser.parse_args()
    gc_tuning.collect_young()
    names = arguments.only.split(",")
    asyncio.run(measure_all(names, arguments.allocations, arguments.backend, followers=arguments.followers))


if __name__ == "__main__":
    main()
