"""muster.v1.Events at a gateway, which passes calls to a separate publisher, in memory and on Kafka."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from in_virtual_time.test_events_grpc import Watching
from integration.events_apart import Apart, apart
from integration.gateway_rig import rig
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from muster_proto.muster.v1 import events_pb2 as pb
from muster_proto.muster.v1.events_pb2_grpc import EventsStub
from unit.publisher.feeding import Feeder, event, headers
from virtual.plugin import advance

Code = grpc.StatusCode


PATIENCE_S = 60.0


@pytest.fixture
async def quick() -> AsyncIterator[Apart]:
    async with apart(LogSettings(backend="memory", partitions=2)) as it:
        yield it


async def test_refusals_come_as_the_publisher_says_them(quick: Apart) -> None:
    await quick.happen("a")
    gateway = await quick.gateway(await quick.publisher())
    stub = quick.stub(gateway)
    for request, code, story in [
        (pb.EventBatchRequest(rm_id="nope"), Code.NOT_FOUND, "rm_id: no events of 'nope'; known RMs: 'rm'"),
        (
            pb.EventBatchRequest(rm_id="rm", filter=pb.EventFilter(queue="x")),
            Code.INVALID_ARGUMENT,
            "filter.queue: 'x', expected a full path, such as root.default",
        ),
    ]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Batch(request, timeout=PATIENCE_S)
        assert (caught.value.code(), caught.value.details()) == (code, story)
    raw = quick.rig.channel(gateway).grpc.unary_unary("/muster.v1.Events/Batch")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(b"\xff", timeout=PATIENCE_S)
    assert caught.value.code() is Code.INVALID_ARGUMENT


async def test_without_a_publisher_it_is_unavailable_and_everything_else_goes_on(quick: Apart) -> None:
    gateway = await quick.gateway(None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await quick.stub(gateway).Batch(pb.EventBatchRequest(rm_id="rm"), timeout=PATIENCE_S)
    assert (caught.value.code(), caught.value.details()) == (
        Code.UNAVAILABLE,
        "the event publisher is not reachable, or broke off: call again",
    )
    await quick.rig.registered(gateway)


async def test_a_deadline_is_the_caller_s(quick: Apart) -> None:
    await quick.happen("a")
    gateway = await quick.gateway(await quick.publisher())
    call = quick.stub(gateway).Watch(pb.WatchEventsRequest(rm_id="rm"), timeout=0.3)
    watch = Watching(call)
    assert (await watch.end())[0] is Code.DEADLINE_EXCEEDED
    await advance()
    assert quick.publishers[0].open_watches == 0, "nothing is left behind"


async def test_a_caller_that_leaves_leaves_no_call_open(quick: Apart) -> None:
    await quick.happen("a")
    publisher = await quick.publisher()
    gateway = await quick.gateway(publisher)
    watches = [quick.watch(gateway, from_=pb.EventsFrom(id=0)) for _ in range(5)]
    for watch in watches:
        await watch.until(0)
    assert publisher.open_watches == 5
    for watch in watches:
        watch.call.cancel()
    await advance()
    assert publisher.open_watches == 0, "the publisher has noticed"


async def test_limits_per_host_count_callers_not_the_gateway(quick: Apart) -> None:
    await quick.happen("a")
    publisher = await quick.publisher(max_streams_per_host=1, trusted_proxies=("127.0.0.1",))
    gateway = await quick.gateway(publisher)
    await quick.watch(gateway).take()
    assert (await quick.watch(gateway).end())[0] is Code.RESOURCE_EXHAUSTED
    # a caller's claim to be another host has no effect
    forged = (("x-forwarded-for", "127.0.0.2"),)
    call = quick.stub(gateway).Watch(pb.WatchEventsRequest(rm_id="rm"), metadata=forged)
    assert (await Watching(call).end())[0] is Code.RESOURCE_EXHAUSTED


async def test_a_call_without_an_rm_uses_the_gateways_default(quick: Apart) -> None:
    for rm_id in ("one", "two"):
        await quick.rig.scheduler.happen(rm_id, "a")
    publisher = await quick.publisher()
    await advance()
    assert publisher.rings.rm_ids() == ["one", "two"], "the publisher has them"
    gateway = await quick.gateway(publisher, default_rm="two")
    # a caller's own header has no effect
    forged = (("x-muster-default-rm", "one"),)
    found = await quick.stub(gateway).Batch(pb.EventBatchRequest(), metadata=forged)
    assert found.rm_id == "two"
    call = quick.stub(gateway).Watch(pb.WatchEventsRequest(**{"from": pb.EventsFrom(id=0)}), metadata=forged)
    watch = Watching(call)
    quick.watches.append(watch)
    assert (await watch.take()).rm_id == "two"
    # without a default, the call must name one
    with pytest.raises(grpc.aio.AioRpcError, match="expected an RM's id") as refused:
        await quick.stub(await quick.gateway(publisher)).Batch(pb.EventBatchRequest(), metadata=forged)
    assert refused.value.code() is Code.INVALID_ARGUMENT


async def test_a_publisher_in_the_gateway_s_process_takes_no_caller_s_word_for_the_default() -> None:
    settings = LogSettings(backend="memory", partitions=2)
    log = make_log(settings, SystemClock())
    await log.start()
    async with rig(log, settings.topics()) as it:
        for rm_id in ("one", "two"):
            await it.scheduler.happen(rm_id, "a")
        chosen = PublisherSettings(http_address="", grpc_address="127.0.0.1:0")
        publisher = PublisherService(chosen, log, settings.topics(), SystemClock(), sinks=(), default_rm="two")
        await publisher.start()
        try:
            await advance()
            assert publisher.rings.rm_ids() == ["one", "two"], "the publisher has them"
            async with grpc.aio.insecure_channel(f"127.0.0.1:{publisher.grpc_port}") as channel:
                stub: Any = EventsStub(channel)
                found = await stub.Batch(pb.EventBatchRequest(), metadata=(("x-muster-default-rm", "one"),))
            assert found.rm_id == "two"
        finally:
            await publisher.stop()
    await log.close()


async def test_a_stopping_gateway_ends_each_watch(quick: Apart) -> None:
    await quick.happen("a")
    gateway = await quick.gateway(await quick.publisher())
    watch = quick.watch(gateway, from_=pb.EventsFrom(id=0))
    await watch.until(0)
    stopping = asyncio.create_task(gateway.stop())
    code, story, _ = await watch.end()
    assert (code, story.split(":")[0]) == (Code.UNAVAILABLE, "this gateway is stopping")
    await stopping


async def test_a_slow_caller_is_held_up_at_the_publisher_and_dropped_there(quick: Apart) -> None:
    feeder = Feeder(quick.rig.log, quick.rig.topics)
    publisher = await quick.publisher(stream_stall_s=0.3)
    gateway = await quick.gateway(publisher)

    async def fat(first: int, count: int) -> None:
        await feeder.write(
            "fat", [(event(n, message="x" * 900), headers("fat", n)) for n in range(first, first + count)]
        )

    await fat(0, 10_000)
    await advance()
    assert "fat" in publisher.rings.rm_ids(), "the publisher has them"
    narrow = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.grpc_port}", [("grpc.http2.bdp_probe", 0)])
    request: Any = {"rm_id": "fat", "from": pb.EventsFrom(id=0)}
    stub: Any = EventsStub(narrow)
    slow = Watching(stub.Watch(pb.WatchEventsRequest(**request)))
    await slow.take()
    await advance()
    assert publisher.open_watches == 0, "it was dropped"
    code, story, _ = await slow.end()
    assert code is Code.ABORTED
    assert "has read nothing for" in story
    assert slow.ids == list(range(len(slow.ids)))
    assert slow.got[-1].next_id < 10_000
    ids, next_id = list(slow.ids), slow.got[-1].next_id
    while next_id < 10_000:  # (With so little patience, a busy machine may get this caller dropped, too.)
        rest = Watching(stub.Watch(pb.WatchEventsRequest(**{**request, "from": pb.EventsFrom(id=next_id)})))
        with contextlib.suppress(grpc.aio.AioRpcError):
            await rest.until(9_999)
        rest.call.cancel()
        ids, next_id = ids + rest.ids, rest.got[-1].next_id if rest.got else next_id
    assert ids == list(range(10_000))
    await narrow.close()


async def test_a_gateway_lists_it_in_reflection_and_health(quick: Apart) -> None:
    gateway = await quick.gateway(None)
    channel = quick.rig.channel(gateway).grpc
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="muster.v1.Events")
    (answer,) = [each async for each in stub.ServerReflectionInfo(iter([asked]))]
    assert answer.WhichOneof("message_response") == "file_descriptor_response"
    health: Any = health_pb2_grpc.HealthStub(channel)
    said = await health.Check(health_pb2.HealthCheckRequest(service="muster.v1.Events"))
    assert said.status == health_pb2.HealthCheckResponse.SERVING


async def test_an_identity_gets_its_rms_events_only(quick: Apart, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    await asyncio.to_thread(policy.write_text, '[[rule]]\nidentities = ["tenant"]\nread = [{rm = "one"}]\n')
    token = "tenant-token-0123456789"
    for rm_id in ("one", "two"):
        await quick.rig.scheduler.happen(rm_id, "a")
    publisher = await quick.publisher()
    await advance()
    assert publisher.rings.rm_ids() == ["one", "two"], "the publisher has them"
    tokens = {"tenant": {"role": "admin", "token": token}}
    gateway = await quick.gateway(publisher, tokens=tokens, policy_file=policy)
    stub = quick.stub(gateway)
    # a caller's claim about its own reach has no effect
    mine = (("authorization", f"Bearer {token}"), ("x-muster-reach", "*/*"))
    assert (await stub.Batch(pb.EventBatchRequest(), metadata=mine)).rm_id == "one", "the only RM that it may read"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Batch(pb.EventBatchRequest(rm_id="two"), metadata=mine)
    assert raised.value.code() is Code.PERMISSION_DENIED
    # behind the gateway
    async with grpc.aio.insecure_channel(f"127.0.0.1:{publisher.grpc_port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await EventsStub(channel).Batch(pb.EventBatchRequest(rm_id="two"), metadata=(("x-muster-reach", "one/*"),))
    assert raised.value.code() is Code.NOT_FOUND
    assert "two" not in (raised.value.details() or "").partition("known RMs")[2]
    transport = httpx.ASGITransport(publisher.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://publisher") as client:
        for reach, rm_id, status in (
            ("one/*", "", 200),
            ("one/*", "one", 200),
            ("one/*", "two", 404),
            ("one/default", "one", 404),  # events have no partition
            ("three/*", "", 404),
        ):
            for path in ("batch", "stream") if status != 200 else ("batch",):
                asked = await client.get(
                    f"/ws/v1/events/{path}", params={"rm": rm_id} if rm_id else {}, headers={"x-muster-reach": reach}
                )
                assert asked.status_code == status, (reach, rm_id, path)
                assert rm_id == "two" or "two" not in asked.text
