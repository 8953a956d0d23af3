"""Lawful but heavy: large messages about applications, releases and nodes, many registrations, many limited queues."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count

import grpc
from muster_client import application, ask, node
from muster_proto.si.v1 import si_pb2 as si

from bench.driver import queue_config
from bench.neighbours.rm import Stream, connected, register
from bench.neighbours.rows import Row, Target, begin, neighbour

APPLICATIONS, ASKS, NODES = 2_000, 5_000, 2_000
RMS, QUEUES = 20, 900
LIMITED = 800
QUANTITIES = {"vcore": 1000, "memory": 1 << 30}
ROOM = {"vcore": 1 << 40, "memory": 1 << 50}


async def add_and_remove_applications(target: Target) -> None:
    rm_id = neighbour()
    async with connected(target) as channel:
        await register(channel, rm_id, queue_config(10))
        stream = Stream(channel, "UpdateApplication", rm_id)
        begin()
        for turn in count(1):
            names = [f"app-{turn}-{number}" for number in range(APPLICATIONS)]
            new = [application(name, f"root.q{number % 10}", user="x") for number, name in enumerate(names)]
            await stream.write(si.ApplicationRequest(rmID=rm_id, new=new))
            gone = [si.RemoveApplicationRequest(applicationID=name, partitionName="default") for name in names]
            await stream.write(si.ApplicationRequest(rmID=rm_id, remove=gone))


async def ask_and_release_all(target: Target) -> None:
    rm_id = neighbour()
    async with connected(target) as channel:
        await register(channel, rm_id, queue_config(10))
        nodes, apps = (Stream(channel, f"Update{what}", rm_id) for what in ("Node", "Application"))
        asks = Stream(channel, "UpdateAllocation", rm_id, si.AllocationResponse)
        await nodes.write(si.NodeRequest(rmID=rm_id, nodes=[node(f"n-{number}", ROOM) for number in range(500)]))
        await apps.write(si.ApplicationRequest(rmID=rm_id, new=[application("app", "root.q1", user="x")]))
        release_all = si.AllocationReleasesRequest(
            allocationsToRelease=[
                si.AllocationRelease(
                    partitionName="default", applicationID="app", terminationType=si.TerminationType.STOPPED_BY_RM
                )
            ]
        )
        begin()
        for turn in count(1):
            items = [ask(f"a-{turn}-{number}", "app", QUANTITIES) for number in range(ASKS)]
            await asks.write(si.AllocationRequest(rmID=rm_id, allocations=items))
            await asks.reached("new", turn * ASKS)
            await asks.write(si.AllocationRequest(rmID=rm_id, releases=release_all))
            await asks.reached("released", turn * ASKS)


async def nodes_up_and_down(target: Target) -> None:
    rm_id = neighbour()
    async with connected(target) as channel:
        await register(channel, rm_id, queue_config(10))
        stream = Stream(channel, "UpdateNode", rm_id)
        begin()
        for turn in count(1):
            names = [f"n-{turn}-{number}" for number in range(NODES)]
            await stream.write(si.NodeRequest(rmID=rm_id, nodes=[node(name, QUANTITIES) for name in names]))
            for action in (si.NodeInfo.DRAIN_NODE, si.NodeInfo.DECOMISSION):
                changed = [si.NodeInfo(nodeID=name, action=action) for name in names]
                await stream.write(si.NodeRequest(rmID=rm_id, nodes=changed))


def many_queues(queues: int, turn: int) -> str:
    """Return a configuration with quotas, another one for each turn."""
    head = "partitions:\n- name: default\n  queues:\n  - name: root\n    submitacl: '*'\n    queues:\n"
    line = "    - {name: queue-%05d, resources: {max: {memory: %dGi, vcore: 10}}}\n"
    return head + "".join(line % (number, 10 + turn) for number in range(queues))


async def register_again_and_again(target: Target) -> None:
    async def one(number: int) -> None:
        for turn in count():
            with contextlib.suppress(grpc.aio.AioRpcError):
                await register(channel, f"many-{number}", many_queues(QUEUES, turn))

    async with connected(target) as channel:
        begin()
        await asyncio.gather(*(one(number) for number in range(RMS)))


def limited_queues() -> str:
    """Return many queues, each with a guarantee and a limit for each user, under one quota."""
    head = (
        "partitions:\n- name: default\n  preemption: {enabled: true}\n  queues:\n  - name: root\n    submitacl: '*'\n"
        "    queues:\n"
    )
    lines = [
        f"    - {{name: l{number}, resources: {{guaranteed: {{vcore: 1}}}}, "
        "properties: {preemption.delay: 1s}, limits: [{limit: l, users: ['*'], maxresources: {vcore: 50}}]}\n"
        for number in range(LIMITED)
    ]
    return head + "".join(lines)


async def ask_in_limited_queues(target: Target) -> None:
    rm_id = neighbour()
    async with connected(target) as channel:
        await register(channel, rm_id, limited_queues())
        nodes, apps = (Stream(channel, f"Update{what}", rm_id) for what in ("Node", "Application"))
        asks = Stream(channel, "UpdateAllocation", rm_id, si.AllocationResponse)
        room = {"vcore": 4_000, "memory": 1 << 36}
        await nodes.write(si.NodeRequest(rmID=rm_id, nodes=[node(f"n-{number}", room) for number in range(100)]))
        new = [application(f"app-{number}", f"root.l{number}", user=f"u{number}") for number in range(LIMITED)]
        await apps.write(si.ApplicationRequest(rmID=rm_id, new=new))
        begin()
        for turn in count(1):
            items = [
                ask(f"a-{turn}-{number}", f"app-{number}", {"vcore": 8_000, "memory": 1 << 30}, priority=turn % 100)
                for number in range(LIMITED)
            ]
            await asks.write(si.AllocationRequest(rmID=rm_id, allocations=items))
            await asyncio.sleep(0.5)


ROWS = (
    Row("applications", f"{APPLICATIONS:,} applications a message, added and removed", add_and_remove_applications),
    Row("releases", f"{ASKS:,} asks and *release all*", ask_and_release_all),
    Row("nodes", f"{NODES:,} nodes a message: up, drained, down", nodes_up_and_down),
    Row("registrations", f"registrations of {QUEUES} queues by {RMS} RMs at once", register_again_and_again),
    Row("limited", f"{LIMITED} limited queues with unplaceable asks, preemption on", ask_in_limited_queues),
)
