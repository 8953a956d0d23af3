"""An RM of the same log partition that asks for much."""

from __future__ import annotations

from muster_client import application, ask, node
from muster_proto.si.v1 import si_pb2 as si

from bench.driver import queue_config
from bench.neighbours.rm import Stream, connected, register
from bench.neighbours.rows import Row, Target, begin, neighbour

ASKS_PER_MESSAGE, MESSAGES = 20_000, 10
QUANTITIES = {"vcore": 1000, "memory": 1 << 30}


async def ask_for_much(target: Target) -> None:
    rm_id = neighbour()
    async with connected(target) as channel:
        await register(channel, rm_id, queue_config(10))
        nodes, apps, asks = (Stream(channel, f"Update{what}", rm_id) for what in ("Node", "Application", "Allocation"))
        room = {"vcore": 1 << 40, "memory": 1 << 50}
        await nodes.write(si.NodeRequest(rmID=rm_id, nodes=[node(f"n-{number}", room) for number in range(500)]))
        new = [application(f"app-{number}", f"root.q{number % 10}", user="x") for number in range(100)]
        await apps.write(si.ApplicationRequest(rmID=rm_id, new=new))
        messages = [
            si.AllocationRequest(
                rmID=rm_id,
                allocations=[
                    ask(f"a-{message}-{number}", f"app-{number % 100}", QUANTITIES, tags={"creationTime": "1"})
                    for number in range(ASKS_PER_MESSAGE)
                ],
            ).SerializeToString()
            for message in range(MESSAGES)
        ]
        begin()
        for message in messages:
            await asks.write(message)
        await asks.ended()


ROWS = (Row("asks", f"an RM that sends messages of {ASKS_PER_MESSAGE:,} asks", ask_for_much),)
