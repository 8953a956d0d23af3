"""A gang in a page: three workers that are of use only together, on two nodes.

Placeholders hold room for all of them first. When all three have it, the real workers are asked for, and each takes a
placeholder's place: the scheduler says which one must go, and starts the worker when that is confirmed.

Start Muster (`muster up --data-dir /tmp/muster`), then: `python examples/gang.py [host:port]`
"""

import asyncio
import sys

from muster_client import Access, Callbacks, RmClient, application, ask, confirmation, node
from muster_proto.si.v1 import si_pb2 as si

QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: gangs
"""
WORKER = {"vcore": 2_000, "memory": 4 * 2**30}
MEMBERS = 3


async def main(address: str) -> None:
    placeholders: set[str] = set()
    workers: set[str] = set()
    formed, all_work = asyncio.Event(), asyncio.Event()

    def on_allocated(allocations) -> None:
        for item in allocations:
            print(f"{'hold room for' if item.placeholder else 'run'} {item.allocationKey}")
            (placeholders if item.placeholder else workers).add(item.allocationKey)
        if len(placeholders) == MEMBERS:
            formed.set()
        if len(workers) == MEMBERS:
            all_work.set()

    async def on_released(releases) -> None:
        gone = [item for item in releases if item.terminationType == si.PLACEHOLDER_REPLACED]
        for item in gone:  # here a real resource manager would delete the placeholder's pod first
            print(f"end {item.allocationKey}: {item.message}")
        await rm.send_releases([confirmation(item) for item in gone])

    callbacks = Callbacks(on_allocated=on_allocated, on_released=on_released)
    access = Access.of_environment()  # MUSTER_TOKEN, MUSTER_TLS_CA ...
    async with RmClient(address, "gang", config=QUEUES, callbacks=callbacks, access=access) as rm, asyncio.timeout(120):
        await rm.register()
        await rm.send_nodes([node("node-1", {name: 2 * size for name, size in WORKER.items()}), node("node-2", WORKER)])
        await rm.nodes_answered()
        total = {name: MEMBERS * size for name, size in WORKER.items()}
        await rm.send_applications([application("training", "root.gangs", user="me", placeholder_ask=total)])
        await rm.applications_answered()
        of = {"task_group": "workers"}
        await rm.send_asks([ask(f"room-{n}", "training", WORKER, placeholder=True, **of) for n in range(MEMBERS)])
        await formed.wait()
        await rm.send_asks([ask(f"worker-{n}", "training", WORKER, **of) for n in range(MEMBERS)])
        await all_work.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9090"))
