"""muster.v1.Metrics over real gRPC, in front of a real view that follows a log in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from builders import ask
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from integration.gateway_rig import rig
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_core.model.commands import AppItem, UpdateAllocations, UpdateApplications
from muster_gateway.metrics_codec import RmStatus
from muster_gateway.metrics_service import SERVICE, MetricsServicer
from muster_gateway.settings import GatewaySettings
from muster_gateway.view_client import ViewClient
from muster_proto.muster.v1 import metrics_pb2 as pb
from muster_proto.muster.v1.metrics_pb2_grpc import MetricsStub
from muster_state.tally import Tally
from starlette.types import Receive, Scope, Send
from unit.view.recorded import Bench, Recorded
from virtual.plugin import advance, now_s

Code = grpc.StatusCode
Request, Watch = pb.MetricsRequest, pb.WatchMetricsRequest
PATIENCE_S = 60.0
STREAMS = (1, 2, 3)  # an attribute, so that snapshots are long


class Door:
    """Stands before the view: counts requests, delays them while it is closed, may refuse them."""

    def __init__(self, view: Any) -> None:
        self._view = view
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.status = 0  # instead of the view's answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["query_string"].decode())
        await self.open.wait()
        if not self.status:
            await self._view(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"what?", "more_body": False})


class World:
    """A gateway's metrics on a port, the view behind it, and an RM whose state the test writes."""

    def __init__(self, bench: Bench, door: Door, servicer: MetricsServicer, target: str, channel: Any) -> None:
        self.bench, self.door, self.servicer, self.target, self.channel = bench, door, servicer, target, channel
        self.stub: Any = MetricsStub(channel)

    async def rm(self, rm_id: str = "rm1") -> Recorded:
        """Write an RM with a node, an allocation and a pending ask to the log."""
        rm = self.bench.rm(rm_id)
        rm.cluster.node("n1", vcore=10_000)
        rm.do(UpdateApplications((AppItem("x", "root.a", "default", "u"),)))
        rm.do(UpdateAllocations([ask("x", "k1", vcore=3_000), ask("x", "k2", vcore=2_000)]))
        rm.info.tally = Tally(allocated=1, decisions=3, deciding_us=700)
        await self.bench.write(rm)
        return rm

    async def refused(self, call: Awaitable[Any]) -> tuple[Code, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        return caught.value.code(), caught.value.details() or ""


@asynccontextmanager
async def world(rm_status: Any = None, **settings: Any) -> AsyncIterator[World]:
    topics, clock = Topics(partitions=2), SystemClock()
    log = MemoryLog(topics.specs(), clock)
    await log.start()
    bench = Bench(log, topics, clock)
    server = grpc.aio.server()
    async with bench.view() as view:
        door = Door(view.asgi)
        servicer = MetricsServicer(
            GatewaySettings.model_validate(settings), clock, ViewClient(door, 5.0, 1 << 24), STREAMS, rm_status
        )
        server.add_generic_rpc_handlers((servicer.handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            target = f"127.0.0.1:{port}"
            async with grpc.aio.insecure_channel(target) as channel:
                yield World(bench, door, servicer, target, channel)
        finally:
            door.open.set()
            await servicer.stop()
            await server.stop(0)
    await log.close()


async def first(call: Any) -> pb.MetricsSnapshot:
    async with asyncio.timeout(PATIENCE_S):
        found: pb.MetricsSnapshot = await anext(aiter(call))
        return found


# ---- Get -------------------------------------------------------------------------------------------------------------


async def test_everything_at_once() -> None:
    async with world() as it:
        await it.rm()
        found = await it.stub.Get(Request())
    assert found.taken_ns > 0
    assert found.rm_id == "rm1"
    scheduler = found.scheduler
    assert (scheduler.nodes, scheduler.allocations, scheduler.asks_pending) == (1, 1, 1)
    assert scheduler.pending_by_reason == {"QUEUE_MAX": 1}
    assert scheduler.tally == pb.Tally(allocated=1, decisions=3, deciding_us=700)
    assert (scheduler.capacity, scheduler.allocated, scheduler.pending) == (
        {"vcore": 10_000}, {"vcore": 3_000}, {"vcore": 2_000},
    )  # fmt: skip
    assert [queue.path for queue in found.queues] == ["root", "root.a", "root.b"]
    assert found.queues[1].max == {"vcore": 4_000}
    (node,) = found.nodes
    assert (node.node_id, node.used_percent, node.available) == ("n1", 30, {"vcore": 7_000})
    (process,) = found.runtime.processes
    assert (process.name, process.streams_open) == ("gateway, view", len(STREAMS))
    assert process.memory_bytes > 1 << 20
    assert process.cpu_seconds > 0


async def test_the_state_of_the_rm_is_that_of_its_session() -> None:
    """While no scheduler decides, nobody writes to the log that an RM is away."""
    asked: list[tuple[str, bool]] = []

    async def status(rm_id: str, paused: bool) -> RmStatus:
        asked.append((rm_id, paused))
        return RmStatus("DISCONNECTED", 5, "All its streams were lost.")

    async with world(status) as it:
        await it.rm()
        found = await it.stub.Get(Request(sections=[Request.SCHEDULER]))
        assert (found.state, found.state_since_ns, found.description) == await status("rm1", False)
    assert asked[0] == ("rm1", False)


async def test_only_what_is_asked_for() -> None:
    life = ("state", "description")  # (every answer has the RM's own figures)
    async with world() as it:
        await it.rm()
        found = await it.stub.Get(Request(sections=[Request.QUEUES], queue="root.a"))
        assert [name.name for name, _ in found.ListFields()] == ["taken_ns", "rm_id", "queues", *life]
        assert [queue.path for queue in found.queues] == ["root.a"]
        found = await it.stub.Get(
            Request(sections=[Request.NODES, Request.SCHEDULER], nodes_max=1, partition="DEFAULT")
        )
        assert [name.name for name, _ in found.ListFields()] == ["taken_ns", "rm_id", "scheduler", "nodes", *life]


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (
            Request(sections=[0]),
            Code.INVALID_ARGUMENT,
            "sections[0]: 0, expected some of SCHEDULER, QUEUES, NODES, RUNTIME",
        ),
        (Request(nodes_max=10_001), Code.INVALID_ARGUMENT, "nodes_max: 10001, expected at most 10000, or 0 for 1000"),
        (Request(rm_id="x" * 300), Code.INVALID_ARGUMENT, "rm_id: 'xxx"),
        (Request(queue="root..a"), Code.INVALID_ARGUMENT, "Invalid queue name 'root..a'"),
        (Request(queue="root.nope"), Code.NOT_FOUND, "Queue not found: 'root.nope'"),
        (Request(partition="nope"), Code.NOT_FOUND, "Partition not found: 'nope'"),
        (Request(rm_id="nope"), Code.NOT_FOUND, "Resource manager not found: 'nope'"),
    ],
)
async def test_a_wrong_question_is_answered_clearly(request_: Request, code: Code, message: str) -> None:
    async with world() as it:
        await it.rm()
        found, said = await it.refused(it.stub.Get(request_))
        assert (found, said[: len(message)]) == (code, message)
        if code is Code.INVALID_ARGUMENT and "queue" not in message:
            assert not it.door.asked
        assert (await it.stub.Get(Request())).rm_id == "rm1", "it goes on"


async def test_of_several_rms_one_must_be_named() -> None:
    async with world() as it:
        await it.rm()
        await it.rm("rm2")
        code, said = await it.refused(it.stub.Get(Request()))
        assert code is Code.INVALID_ARGUMENT
        assert "rm1, rm2" in said
        assert (await it.stub.Get(Request(rm_id="rm2"))).rm_id == "rm2"


async def test_bytes_that_are_no_request() -> None:
    async with world() as it:
        call = it.channel.unary_unary(f"/{SERVICE}/Get")
        code, said = await it.refused(call(b"\xff\xff\xff"))
    assert (code, said) == (Code.INVALID_ARGUMENT, "not a muster.v1.MetricsRequest: 3 bytes that do not decode")


@pytest.mark.parametrize("status", [500, 503, 418])
async def test_a_view_that_does_not_answer_is_unavailable(status: int) -> None:
    async with world() as it:
        it.door.status = status
        code, _ = await it.refused(it.stub.Get(Request()))
        assert code is Code.UNAVAILABLE


async def test_a_view_of_another_version_is_unavailable() -> None:
    async with world() as it:
        it.door.status = 200
        code, said = await it.refused(it.stub.Get(Request()))
        assert (code, "of another version" in said) == (Code.UNAVAILABLE, True)


# ---- Watch -----------------------------------------------------------------------------------------------------------


async def test_one_at_once_then_one_each_interval() -> None:
    async with world() as it:
        rm = await it.rm()
        call = aiter(it.stub.Watch(Watch(what=Request(sections=[Request.SCHEDULER]), interval_ms=100)))
        found = [await anext(call) for _ in range(3)]
        rm.info.tally.allocated += 5
        await it.bench.write(rm)
        async with asyncio.timeout(PATIENCE_S):
            while (last := await anext(call)).scheduler.tally.allocated != 6:
                found.append(last)
    for before, after in itertools.pairwise([*found, last]):
        assert after.taken_ns > before.taken_ns
    assert not last.queues


async def test_many_watchers_of_one_query_share_one_question() -> None:
    async with world() as it:
        await it.rm()
        calls = [aiter(it.stub.Watch(Watch(interval_ms=100))) for _ in range(20)]
        seen: set[int] = set()
        began_s = now_s()
        for _ in range(5):
            seen |= {found.taken_ns for found in await asyncio.gather(*(anext(call) for call in calls))}
        intervals = (now_s() - began_s) / 0.1
        assert len(seen) <= len(it.door.asked)
        assert len(it.door.asked) <= intervals + 2, "watchers share requests to the view"


async def test_watchers_of_other_queries_get_other_answers() -> None:
    async with world() as it:
        await it.rm()
        watched = [Request(sections=[Request.QUEUES], queue=queue) for queue in ("root.a", "root.b")]
        found = await asyncio.gather(*(first(it.stub.Watch(Watch(what=what, interval_ms=100))) for what in watched))
        assert [snapshot.queues[0].path for snapshot in found] == ["root.a", "root.b"]


async def known(it: World) -> None:
    """Wait until the view knows an RM: it reads large configurations in the background."""
    async with asyncio.timeout(60):
        while True:
            try:
                await it.stub.Get(Request(sections=[Request.SCHEDULER]))
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not Code.NOT_FOUND:
                    raise
            await asyncio.sleep(0.01)


async def test_a_slow_reader_gets_fewer_and_no_old_ones() -> None:
    """A client that does not read blocks the gateway's writes. Later it gets the buffered snapshots, then new ones."""
    queues = ", ".join(f"{{name: q{number}, resources: {{max: {{vcore: 1}}}}}}" for number in range(2_000))
    watch = Watch(what=Request(sections=[Request.QUEUES]), interval_ms=100)
    async with world() as it:
        await it.bench.write(it.bench.rm(queues=f"{{name: root, submitacl: '*', queues: [{queues}]}}"))
        await known(it)
        # Without bandwidth probes, gRPC's window is 64 KiB: less than one of these snapshots.
        narrow = grpc.aio.insecure_channel(it.target, [("grpc.http2.bdp_probe", 0)])
        slow, quick = aiter(MetricsStub(narrow).Watch(watch)), aiter(it.stub.Watch(watch))
        await anext(slow)
        seen = [(await anext(quick)).taken_ns for _ in range(20)]
        late = [(await anext(slow)).taken_ns for _ in range(4)]
        await narrow.close()
    assert late == sorted(set(late))
    assert late[-1] >= seen[-1], "up to date again"
    assert sum(at < seen[-1] for at in late) <= 3, "only buffered ones of the 20 unread snapshots came"


async def test_an_interval_that_is_too_short() -> None:
    async with world() as it:
        code, said = await it.refused(first(it.stub.Watch(Watch(interval_ms=99))))
        assert (code, said) == (Code.INVALID_ARGUMENT, "interval_ms: 99, expected at least 100, or 0 for a second")
        code, said = await it.refused(first(it.stub.Watch(Watch(what=Request(sections=[9])))))
        assert (code, said[:19]) == (Code.INVALID_ARGUMENT, "what.sections[0]: 9")


async def test_only_so_many_may_watch() -> None:
    async with world(max_metrics_watchers=2) as it:
        await it.rm()
        calls = [it.stub.Watch(Watch(interval_ms=100)) for _ in range(2)]
        await asyncio.gather(*map(first, calls))
        code, said = await it.refused(first(it.stub.Watch(Watch())))
        assert (code, said) == (
            Code.RESOURCE_EXHAUSTED,
            "2 calls watch metrics here, expected at most 2: try another gateway",
        )
        assert (await it.stub.Get(Request())).rm_id == "rm1", "Get does not count as a watch"
        calls[0].cancel()
        again: list[pb.MetricsSnapshot] = []

        async def tried() -> None:
            while not again:
                try:
                    again.append(await first(it.stub.Watch(Watch())))
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.01)

        async with asyncio.timeout(PATIENCE_S):
            await tried()  # a place is free again


async def test_a_watcher_that_leaves_leaves_nothing_open() -> None:
    async with world() as it:
        await it.rm()
        calls = [it.stub.Watch(Watch(interval_ms=100)) for _ in range(3)]
        await asyncio.gather(*map(first, calls))
        for call in calls:
            call.cancel()
        await advance()
        assert not it.servicer._shared._watched, "everything that was watched is forgotten"
        await advance()
        assert it.servicer._watchers == 0, "their places are free"
        asked = len(it.door.asked)
        await asyncio.sleep(0.35)
        assert len(it.door.asked) == asked, "without watchers the view gets no requests"


async def test_a_watcher_gets_the_reason_of_the_end() -> None:
    async with world() as it:
        await it.rm()
        call = aiter(it.stub.Watch(Watch(interval_ms=100)))
        await anext(call)
        it.door.status = 500

        async def last() -> None:
            while True:
                await anext(call)

        code, _ = await it.refused(last())
        assert code is Code.UNAVAILABLE
        it.door.status = 0
        assert (await first(it.stub.Watch(Watch()))).rm_id == "rm1", "the next one begins anew"


@pytest.mark.parametrize("waiting", [False, True], ids=["between-two", "for-the-view"])
async def test_stopping_ends_each_watch(waiting: bool) -> None:
    async with world() as it:
        await it.rm()
        call = aiter(it.stub.Watch(Watch(interval_ms=100 if waiting else 60_000)))
        await anext(call)
        if waiting:
            it.door.open.clear()
            asked = len(it.door.asked)
            await advance()
            assert len(it.door.asked) > asked, "it waits for the view"
        async with asyncio.timeout(PATIENCE_S):
            await it.servicer.stop()
            code, said = await it.refused(anext(call))
        assert (code, said.split(":")[0]) == (Code.UNAVAILABLE, "this gateway is stopping")
        assert (await it.refused(it.stub.Get(Request())))[0] is Code.UNAVAILABLE
        assert (await it.refused(first(it.stub.Watch(Watch()))))[0] is Code.UNAVAILABLE


# ---- to be found -----------------------------------------------------------------------------------------------------


async def test_a_gateway_lists_it_in_reflection_and_health() -> None:
    topics = Topics(partitions=1)
    log = MemoryLog(topics.specs(), SystemClock())
    await log.start()
    async with rig(log, topics) as it:
        gateway = await it.gateway(health_interval_s=0.02, view_url="http://127.0.0.1:9")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
            listed = reflection_pb2.ServerReflectionRequest(list_services="")
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            answers = [answer async for answer in stub.ServerReflectionInfo(iter([listed]))]
            assert SERVICE in {service.name for service in answers[0].list_services_response.service}
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            # There is no view behind the address.
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await MetricsStub(channel).Get(Request())
            assert caught.value.code() is Code.UNAVAILABLE
    await log.close()
