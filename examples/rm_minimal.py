"""A resource manager in a page: one node, one application, three tasks.

Start Muster (`muster up --data-dir /tmp/muster`), then: `python examples/rm_minimal.py [host:port]`
"""

import asyncio
import sys

from muster_client import Access, Callbacks, RmClient, application, ask, node, release

QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: batch
"""


async def main(address: str) -> None:
    running: dict[str, str] = {}  # allocationKey -> nodeID
    three_run, one_ended = asyncio.Event(), asyncio.Event()

    def on_allocated(allocations) -> None:
        for item in allocations:
            running[item.allocationKey] = item.nodeID
            print(f"run {item.allocationKey} on {item.nodeID}")
        if len(running) == 3:
            three_run.set()

    def on_released(releases) -> None:
        for item in releases:
            print(f"{item.allocationKey} has ended on {running.pop(item.allocationKey)}")
        one_ended.set()

    def on_application(accepted, rejected, updated) -> None:
        for item in rejected:
            print(f"{item.applicationID} was rejected: {item.reason}")

    callbacks = Callbacks(on_allocated=on_allocated, on_released=on_released, on_application=on_application)
    access = Access.of_environment()  # MUSTER_TOKEN, MUSTER_TLS_CA ...
    async with (
        RmClient(address, "minimal", config=QUEUES, callbacks=callbacks, access=access) as rm,
        asyncio.timeout(120),
    ):
        await rm.register()
        await rm.send_nodes([node("node-1", {"vcore": 4_000, "memory": 16 * 2**30})])
        await rm.nodes_answered()
        await rm.send_applications([application("app-1", "root.batch", user="me")])
        await rm.applications_answered()
        await rm.send_asks([ask(f"task-{n}", "app-1", {"vcore": 1_000, "memory": 2**30}) for n in range(3)])
        await three_run.wait()
        await rm.send_releases([release("app-1", "task-0")])
        await one_ended.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9090"))
