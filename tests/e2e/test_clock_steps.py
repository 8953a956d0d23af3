"""`muster up` while somebody sets the clock (libfaketime): time-outs count what elapses, in both directions and over
restarts; a step is an event, a warning and a problem in health; events have the time of day.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from e2e.wall_clock import WallClock
from muster_proto.si.v1 import si_pb2
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from up import Up

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 90.0
DAY_S = 86_400
# A placeholder's time-out: the time that must elapse, whatever the clock says.
TIMEOUT_S = 3
CONFIG = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"


class SteppedUp(Up):
    """A `muster up` whose wall clock the test sets. Its monotonic clock is the machine's."""

    def __init__(self, directory: Path) -> None:
        self._clock = WallClock(directory / "faketime")
        super().__init__(directory, environment=self._clock.environment)
        self.set(0)

    async def start(self) -> None:
        self.process.start()
        await self.process.serving(self.grpc, 2 * PATIENCE_S)

    def set(self, days: int) -> None:
        """Sets the clock so many days off."""
        self._clock.set(days)
        self.off_s = float(days * DAY_S)

    def set_s(self, seconds: float) -> None:
        """Sets the clock so many seconds off."""
        self._clock.set_s(seconds)
        self.off_s = seconds

    def json(self, path: str) -> Any:
        return json.loads(self.get(path)[1])

    def events(self, rm_id: str) -> list[dict[str, Any]]:
        try:
            return list(self.json(f"/ws/v1/events/batch?rm={rm_id}&count=10000")["EventRecords"] or ())
        except urllib.error.HTTPError:  # the publisher does not know the RM yet
            return []

    def is_of_now(self, event: dict[str, Any]) -> bool:
        """Whether an event's time of day is that of the clock, within the test's own patience."""
        return abs(event["timestampNano"] / 1e9 - time.time() - self.off_s) < 2 * PATIENCE_S


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(what) from None


@asynccontextmanager
async def gang(up: Up, rm_id: str, timeout_s: int = TIMEOUT_S) -> AsyncIterator[None]:
    """An RM with an application whose placeholder nobody replaces: it must time out. Its streams stay open inside."""
    app = si_pb2.AddApplicationRequest(
        applicationID="app",
        queueName="root.a",
        partitionName="default",
        ugi=si_pb2.UserGroupInformation(user="alice"),
        executionTimeoutMilliSeconds=timeout_s * 1000,
        placeholderAsk=si_pb2.Resource(resources={"vcore": si_pb2.Quantity(value=1)}),
        gangSchedulingStyle="Soft",
    )
    placeholder = si_pb2.Allocation(
        allocationKey="ph",
        applicationID="app",
        partitionName="default",
        resourcePerAlloc=si_pb2.Resource(resources={"vcore": si_pb2.Quantity(value=1)}),
        placeholder=True,
        taskGroupName="group",
    )
    node = si_pb2.NodeInfo(
        nodeID="node",
        action=si_pb2.NodeInfo.CREATE,
        schedulableResource=si_pb2.Resource(resources={"vcore": si_pb2.Quantity(value=8)}),
    )
    async with grpc.aio.insecure_channel(up.grpc) as channel:
        stub = SchedulerStub(channel)
        request = si_pb2.RegisterResourceManagerRequest(rmID=rm_id, version="1", policyGroup="queues", config=CONFIG)
        await stub.RegisterResourceManager(request, timeout=PATIENCE_S)
        calls = [stub.UpdateNode(), stub.UpdateApplication(), stub.UpdateAllocation()]
        await calls[0].write(si_pb2.NodeRequest(rmID=rm_id, nodes=[node]))
        await calls[0].read()
        await calls[1].write(si_pb2.ApplicationRequest(rmID=rm_id, new=[app]))
        await calls[1].read()
        await calls[2].write(si_pb2.AllocationRequest(rmID=rm_id, allocations=[placeholder]))
        await calls[2].read()
        yield
        for call in calls:
            call.cancel()


def timed_out(up: SteppedUp, rm_id: str) -> bool:
    """Whether the gang's time-out was decided: the application goes on without placeholders."""
    return any("ResourceReservationTimeout" in event.get("message", "") for event in up.events(rm_id))


def steps(up: SteppedUp, rm_id: str) -> list[dict[str, Any]]:
    return [event for event in up.events(rm_id) if "the system clock was set" in event.get("message", "")]


async def test_time_outs_count_what_elapses_whoever_sets_the_clock(tmp_path: Path) -> None:
    up = SteppedUp(tmp_path)
    try:
        await up.start()
        for number, days in enumerate((400, 0, -400, 0)):
            rm_id = f"rm-{number}"
            # 1. the clock steps while a time-out runs: neither at once, nor never
            began_s = time.monotonic()
            async with gang(up, rm_id):
                up.set(days)
                await until(lambda rm_id=rm_id: bool(steps(up, rm_id)), f"no event of the step to {days} days")  # type: ignore[misc]
                assert not timed_out(up, rm_id) or time.monotonic() - began_s >= TIMEOUT_S
                await until(lambda rm_id=rm_id: timed_out(up, rm_id), f"no time-out at {days} days")  # type: ignore[misc]
            assert time.monotonic() - began_s >= TIMEOUT_S
            # 2. what it says
            assert all(up.is_of_now(event) for event in up.events(rm_id)[-1:])
            await until(lambda: b"the system clock was set" in up.get("/health")[1], "health does not say so")
            assert up.get("/health")[0] == 200, "it serves all the same"
        assert "clock.stepped" in up.process.log_file.read_text()
    finally:
        up.process.kill()


@pytest.mark.parametrize("step_s", [1.9, -1.9])
async def test_small_steps_in_a_row_neither_fire_a_time_out_nor_stop_it(tmp_path: Path, step_s: float) -> None:
    """The clock is set by 1.9 s again and again until the time-out comes, at least as long as it lasts."""
    up = SteppedUp(tmp_path)
    try:
        await up.start()
        began_s = time.monotonic()
        async with gang(up, "rm", 3 * TIMEOUT_S):
            stepping = asyncio.create_task(_step_again_and_again(up, step_s))
            await until(lambda: timed_out(up, "rm"), "the time-out never came")
            assert time.monotonic() - began_s >= 3 * TIMEOUT_S * 0.999
            await until(lambda: bool(steps(up, "rm")), "no event of the steps")
            stepping.cancel()
        await until(lambda: b"the system clock was set" in up.get("/health")[1], "health does not say so")
        metrics = up.get("/metrics")[1].decode()
        (line,) = [
            each for each in metrics.splitlines() if each.startswith("muster_scheduler_clock_difference_seconds ")
        ]
        assert float(line.split()[1]) * step_s > 0, "on the side to which the clock was set"
    finally:
        up.process.kill()


async def _step_again_and_again(up: SteppedUp, step_s: float) -> None:
    while True:
        up.set_s(up.off_s + step_s)
        await asyncio.sleep(1.5)  # libfaketime looks at its file once a second


async def test_time_outs_and_times_of_day_over_restarts(tmp_path: Path) -> None:
    up = SteppedUp(tmp_path)
    try:
        await up.start()
        for number, days in enumerate((400, 0, -400)):
            rm_id = f"rm-{number}"
            async with gang(up, rm_id):
                pass
            up.process.kill()
            up.set(days)
            await up.start()
            await until(lambda rm_id=rm_id: timed_out(up, rm_id), f"no time-out after a start at {days} days")  # type: ignore[misc]
            assert len(steps(up, rm_id)) == 1
            assert up.is_of_now(up.events(rm_id)[-1])
            # an RM that comes now
            async with gang(up, f"new-{number}"):
                await until(lambda n=number: timed_out(up, f"new-{n}"), f"no time-out of a new RM at {days} days")  # type: ignore[misc]
    finally:
        up.process.kill()
