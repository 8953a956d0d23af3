"""Three brokers, three copies of each partition: a broker is killed and comes back, then the controller, under load.

Nothing is lost or doubled, and decisions go on with the two others, within seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from brokers import NODES, Brokers, all_in_sync, leaders, three_brokers
from chaos.harness import Deployment, assert_each_task_once, on_kafka
from chaos.test_outages import CHUNK, OPENB, RM_ID, TASKS, newest_event, options, said
from muster_proto.si.v1 import si_pb2
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from muster_replay.replay import replay
from waiting import eventually

COPIES = {"MUSTER_LOG__REPLICATION": "3", "MUSTER_LOG__KAFKA_MIN_INSYNC_REPLICAS": "2"}
BROKER_AT, CONTROLLER_AT = 1_500, 5_000  # asks sent
# The pace of asks while a broker is away, so that its whole absence is under load.
PAUSE_S = CHUNK * 30 / 3_000

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.redis, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with three_brokers() as them:
        yield them


async def test_a_broker_and_then_the_controller_go_and_come_back(
    tmp_path: Path, brokers: Brokers, redis_url: str
) -> None:
    deployment = on_kafka(tmp_path, brokers.address, redis_url, COPIES)
    async with deployment.running(), deployment.supervised():
        on_sent, outages = breaking(deployment, brokers)
        report = await replay(OPENB, options(deployment), on_sent=on_sent)
        pauses = await asyncio.gather(*outages)
        assert len(pauses) == 2, "not every broker went: the test has shown nothing"
        print(f"no decision after the broker's end for {pauses[0]:.1f} s, after the controller's for {pauses[1]:.1f} s")
        for name in deployment.operations:
            await said(deployment, name, 200, "")
        await assert_each_task_once(deployment, report, RM_ID, TASKS)


def breaking(
    deployment: Deployment, brokers: Brokers
) -> tuple[Callable[[int], Awaitable[None]], list[asyncio.Task[float]]]:
    """A hook for the replay, and the outages that it has begun."""
    due = [(BROKER_AT, False), (CONTROLLER_AT, True)]
    begun: list[asyncio.Task[float]] = []

    async def on_sent(sent: int) -> None:
        last = sent == TASKS or bool(due and sent >= due[0][0])
        if begun and not begun[-1].done():
            await asyncio.wait(begun[-1:], timeout=None if last else PAUSE_S)
        if begun and begun[-1].done():
            begun[-1].result()
        if due and sent >= due[0][0]:
            begun.append(asyncio.create_task(outage(deployment, brokers, wants_controller=due.pop(0)[1])))

    return on_sent, begun


async def outage(deployment: Deployment, brokers: Brokers, *, wants_controller: bool) -> float:
    """A broker is away until decisions go on. Returns the seconds until then."""
    controller = await asyncio.to_thread(brokers.controller)
    topics = deployment.log_settings.topics()
    leader = (await leaders(brokers.address, topics.requests))[topics.partition_of(RM_ID)]
    node = controller if wants_controller else leader
    await asyncio.to_thread(brokers.kill, node)
    began_s = time.monotonic()
    before = await newest_event(deployment)

    async def decided() -> bool:
        return await newest_event(deployment) > before + 1

    await eventually(decided, f"decisions go on without broker {node}", within_s=180)
    pause_s = time.monotonic() - began_s
    await asyncio.to_thread(brokers.start_again, node)
    await eventually(lambda: all_in_sync(brokers.address), f"the copies of broker {node} catch up", within_s=180)
    return pause_s


async def test_too_few_copies_are_said_in_words(tmp_path: Path, brokers: Brokers, redis_url: str) -> None:
    deployment = on_kafka(
        tmp_path, brokers.address, redis_url, {**COPIES, "MUSTER_LOG__KAFKA_MIN_INSYNC_REPLICAS": "3"}
    )
    async with deployment.running():
        brokers.kill(NODES[0])
        words = "expected at least 3 (log.kafka_min_insync_replicas), 2 brokers answer. Nothing is written there"
        await said(deployment, "gateway", 503, words)
        async with grpc.aio.insecure_channel(deployment.gateway) as channel:
            request = si_pb2.RegisterResourceManagerRequest(rmID="rm", version="1", policyGroup="queues")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await SchedulerStub(channel).RegisterResourceManager(request, timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "(NotEnoughReplicas)" in str(refused.value.details())
            brokers.start_again(NODES[0])
            await said(deployment, "gateway", 200, "")
            # What was refused is tried again by the RM.
            await SchedulerStub(channel).RegisterResourceManager(request, timeout=60)
