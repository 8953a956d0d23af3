"""muster.v1.Events at a gateway, which passes calls to a separate publisher, in memory and on Kafka."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import grpc
import pytest
from integration.events_apart import Apart, apart
from muster_bus.settings import LogSettings
from muster_proto.muster.v1 import events_pb2 as pb
from waiting import eventually

Code = grpc.StatusCode


PATIENCE_S = 60.0


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[Apart]:
    settings = LogSettings(backend="memory", partitions=2)
    if request.param == "kafka":
        settings = LogSettings(
            backend="kafka",
            partitions=2,
            topic_prefix=f"events-{uuid.uuid4().hex[:12]}.",
            kafka_bootstrap_servers=request.getfixturevalue("kafka_bootstrap"),
        )
    async with apart(settings) as it:
        yield it


async def test_through_the_gateway_each_event_comes_once_over_breaks_and_a_publisher_that_restarts(
    world: Apart,
) -> None:
    await world.happen(*[f"e{n}" for n in range(500)])
    publisher = await world.publisher(ring_capacity=100)
    # (Kafka acknowledges a commit a moment before everybody sees it.)
    await eventually(lambda: (ring := publisher.rings.get("rm")) is not None and ring.next_id == 500)
    gateway = await world.gateway(publisher)
    port = publisher.grpc_port or 0
    # 1. once
    stub = world.stub(gateway)
    first = await stub.Batch(pb.EventBatchRequest(rm_id="rm", count=10), timeout=PATIENCE_S)
    assert [each.id for each in first.events] == list(range(10))
    assert (first.source, first.next_id, first.end_id) == (pb.EventBatch.LOG, 10, 500)
    # 2. again and again
    watch = world.watch(gateway, from_=pb.EventsFrom(id=10), request_events=True)
    await watch.until(499)
    await world.happen("k1", "k2", tracked=False)
    await world.happen("live")
    assert await watch.until_asks(2) == ["k1", "k2"]
    assert await watch.until(500) == list(range(10, 501))
    # 3. the publisher stops and comes back
    next_id, instance = watch.got[-1].next_id, watch.got[-1].instance
    position = watch.got[-1].request_position
    await publisher.stop()
    code, story, trailing = await watch.end()
    assert (code, story) == (Code.UNAVAILABLE, "the event publisher is stopping: call again")
    assert trailing["muster-next-id"] == str(next_id) == "501"
    code, story, _ = await world.watch(gateway, from_=pb.EventsFrom(id=next_id)).end()
    assert (code, story) == (Code.UNAVAILABLE, "the event publisher is not reachable, or broke off: call again")
    await world.happen("while it was away")
    await world.happen("k3", tracked=False)
    await world.publisher(port)
    async with asyncio.timeout(PATIENCE_S):
        while True:  # the gateway reconnects
            again = world.watch(
                gateway,
                from_=pb.EventsFrom(id=next_id),
                instance=instance,
                request_events=True,
                request_events_after=position,
            )
            try:
                await again.take()
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)
    assert await again.until(501) == [501]
    assert await again.until_asks(1) == ["k3"]
