"""The data of the page's tests: a `muster up` with resource managers that follow a script."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import httpx
from muster_client import Callbacks, ClientSettings, RmClient, application, ask, confirmation, node, release
from muster_proto.si.v1 import si_pb2 as si
from waiting import eventually

PATIENCE_S = 60.0
QUICK = ClientSettings(backoff_min_ms=20, backoff_max_ms=200, close_timeout_s=1, linger_s=0.2)
GI = 1 << 30
# Applications of the large cluster, with four allocations each. (A full cluster has 5,000.)
APPLICATIONS = int(os.environ.get("MUSTER_PAGE_APPLICATIONS", "1000"))
NODES = 1_500

# Ids are the RM's: the page must not take any of them for more than text.
HOSTILE = '<img src=x onerror="window.hacked=1">'
HOSTILE_APP = f"app-{HOSTILE}&amp;'\"/../%2F#?"
HOSTILE_KEY = f"ask-{HOSTILE}"
HOSTILE_NODE = f"node-{HOSTILE}"

QUEUES = """
partitions:
  - name: default
    placementrules: [{name: provided, create: true}]
    limits: [{users: ['*'], maxapplications: 200}]
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: prod
            resources: {guaranteed: {vcore: 200, memory: 700Gi}, max: {vcore: 420, memory: 1700Gi}}
            queues:
              - {name: web, resources: {guaranteed: {vcore: 120, memory: 400Gi}}}
              - {name: payments, resources: {guaranteed: {vcore: 40, memory: 160Gi}, max: {vcore: 80, memory: 320Gi}}}
              - {name: batch, resources: {max: {vcore: 96, memory: 512Gi}}, maxapplications: 3}
          - name: research
            resources: {max: {vcore: 384, memory: 1500Gi, nvidia.com/gpu: 32}}
            limits: [{users: [ben], maxapplications: 50, maxresources: {vcore: 32}}]
            queues:
              - {name: training, resources: {guaranteed: {nvidia.com/gpu: 16}}}
              - {name: notebooks, resources: {max: {vcore: 64, memory: 256Gi}}}
          - {name: sandbox, resources: {max: {vcore: 16, memory: 64Gi}}}
"""
LARGE = """
partitions:
  - name: default
    placementrules: [{name: provided, create: true}]
    queues: [{name: root, submitacl: '*', queues: [{name: a}, {name: b}, {name: c}]}]
"""
# Two partitions, in which queues, nodes, an application and a user have the same names.
PAIR = """
partitions:
  - name: default
    placementrules: [{name: provided, create: true}]
    queues: [{name: root, submitacl: '*', queues: [{name: shared}, {name: cpu}]}]
  - name: accelerated
    placementrules: [{name: provided, create: true}]
    queues:
      - name: root
        submitacl: '*'
        limits:
          - {users: [ann], maxresources: {nvidia.com/gpu: 6}}
          - {groups: [ml], maxapplications: 3, maxresources: {vcore: 60, memory: 48Gi}}
        queues: [{name: shared}, {name: gpu}]
"""
# The queue rich takes all, until an ask in poor is a second old.
PREEMPTING = """
partitions:
  - name: default
    placementrules: [{name: provided, create: true}]
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: poor, resources: {guaranteed: {vcore: 4}}, properties: {preemption.delay: 1s}}
          - {name: rich}
"""


class Addresses(Protocol):
    """Where a Muster answers.

    :ivar grpc: host:port; ``http``: a URL.
    """

    @property
    def grpc(self) -> str: ...

    @property
    def http(self) -> str: ...


class Rm:
    """A resource manager that confirms each release at once.

    :ivar runs: allocations that are not released, by key.
    """

    def __init__(
        self,
        muster: Addresses,
        rm_id: str,
        queues: str,
        policy_group: str = "",
        extra_config: Mapping[str, str] | None = None,
    ) -> None:
        self.rm_id = rm_id
        self.runs: dict[str, si.Allocation] = {}
        self.states: dict[str, str] = {}
        callbacks = Callbacks(
            on_allocated=self._allocated, on_released=self._released, on_application=self._application
        )
        self.client = RmClient(
            muster.grpc, rm_id, policy_group=policy_group, config=queues, extra_config=extra_config,
            callbacks=callbacks, settings=QUICK,
        )  # fmt: skip
        self._http = httpx.AsyncClient(base_url=muster.http, timeout=PATIENCE_S)

    async def __aenter__(self) -> Rm:
        await self.client.register()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self._http.aclose()

    def _allocated(self, items: Sequence[si.Allocation]) -> None:
        self.runs.update({item.allocationKey: item for item in items})

    async def _released(self, items: Sequence[si.AllocationRelease]) -> None:
        for item in items:
            self.runs.pop(item.allocationKey, None)
        told = [confirmation(item) for item in items if item.terminationType != si.STOPPED_BY_RM]
        if told:
            await self.client.send_releases(told)

    def _application(
        self,
        accepted: Sequence[si.AcceptedApplication],
        rejected: Sequence[si.RejectedApplication],
        updated: Sequence[si.UpdatedApplication],
    ) -> None:
        self.states.update({item.applicationID: "Accepted" for item in accepted})
        self.states.update({item.applicationID: "Rejected" for item in rejected})
        self.states.update({item.applicationID: item.state for item in updated})

    async def app(self, app: str, queue: str, user: str, **more: Any) -> None:
        """Announce an application, and wait for the answer."""
        self.states.pop(app, None)
        await self.client.send_applications([application(app, queue, user=user, **more)])
        await eventually(lambda: app in self.states, f"an answer for {app}")

    async def asks(self, app: str, number: int, resources: dict[str, int], name: str = "", **more: Any) -> list[str]:
        """Send so many equal asks; return their keys."""
        keys = [f"{name or app}-{each}" for each in range(number)]
        await self.client.send_asks([ask(key, app, resources, **more) for key in keys])
        return keys

    async def has(self, keys: Sequence[str]) -> None:
        await eventually(lambda: self.runs.keys() >= set(keys), f"{keys} run")

    async def ends(self, keys: Sequence[str]) -> None:
        held = [self.runs[key] for key in keys]
        await self.client.send_releases([release(each.applicationID, each.allocationKey) for each in held])
        await eventually(lambda: self.runs.keys().isdisjoint(keys), f"the end of {keys}")

    async def shows(self, path: str, what: Callable[[Any], Any]) -> Any:
        """Wait until REST's answer meets the condition; return the answer."""

        async def look() -> Any:
            answer = await self._http.get(path, params={"rm": self.rm_id})
            return answer.status_code == 200 and what(answer.json()) and answer.json()

        return await eventually(look, path)


async def lives(rm: Rm) -> None:
    """Create queues, limits, gangs, and applications in every state. Return when all are in their states."""
    # 1. Nodes of three kinds, some with foreign allocations; one drains.
    nodes = [
        *(
            node(f"cpu-{n:02}", {"vcore": 32_000, "memory": 128 * GI}, occupied={"vcore": 1_000, "memory": 2 * GI})
            for n in range(16)
        ),
        *(node(f"mem-{n:02}", {"vcore": 16_000, "memory": 256 * GI}) for n in range(6)),
        *(node(f"gpu-{n:02}", {"vcore": 48_000, "memory": 192 * GI, "nvidia.com/gpu": 8}) for n in range(3)),
        node(HOSTILE_NODE, {"vcore": 1_000, "memory": GI}),
    ]
    await rm.client.send_nodes(nodes)
    async with asyncio.timeout(PATIENCE_S):
        await rm.client.nodes_answered()
    # 2. Short lives: an application that completes (30 s from now on), a gang that fails, one that is rejected.
    await rm.app("nightly-report", "root.prod.payments", "pay")
    report = await rm.asks("nightly-report", 6, {"vcore": 2_000, "memory": 4 * GI})
    await rm.has(report)
    await rm.ends(report)
    fails = {"execution_timeout_ms": 300, "gang_scheduling_style": "Hard", "placeholder_ask": {"vcore": 4_000}}
    await rm.app("etl-gang", "root.sandbox", "ann", **fails)
    await rm.asks("etl-gang", 4, {"vcore": 1_000}, "etl-ph", placeholder=True, task_group="loaders")
    await rm.app("lost", "root.prod", "ann")
    # 3. Services that run, some of whose pods come and go.
    for name, pods in (("storefront", 36), ("search", 24), ("checkout", 12)):
        await rm.app(name, "root.prod.payments" if name == "checkout" else "root.prod.web", name[:3])
        await rm.has(await rm.asks(name, pods, {"vcore": 2_000, "memory": 6 * GI}))
    await rm.ends([f"search-{n}" for n in range(0, 24, 3)])
    await rm.has(await rm.asks("search", 5, {"vcore": 2_000, "memory": 6 * GI}, "search-again"))
    # 4. A gang that runs, one without room (it waits longer than all tests may take); notebooks up to a user's limit.
    await rm.app("train-vision", "root.research.training", "ann", placeholder_ask={"nvidia.com/gpu": 16})
    gpus = {"vcore": 8_000, "memory": 32 * GI, "nvidia.com/gpu": 4}
    await rm.asks("train-vision", 4, gpus, "vision-ph", placeholder=True, task_group="workers")
    await rm.has(await rm.asks("train-vision", 4, gpus, "vision", task_group="workers"))
    waits = {"execution_timeout_ms": 86_400_000, "placeholder_ask": {"nvidia.com/gpu": 20}}
    await rm.app("train-speech", "root.research.training", "cleo", **waits)
    await rm.asks("train-speech", 5, gpus, "speech-ph", placeholder=True, task_group="workers")
    await rm.app("notebook-ben", "root.research.notebooks", "ben")
    await rm.has((await rm.asks("notebook-ben", 6, {"vcore": 8_000, "memory": 16 * GI}))[:4])
    # 5. Batches at their queue's max; one that fits on no node.
    for number in range(4):
        await rm.app(f"batch-{number}", "root.prod.batch", "bat")
        await rm.asks(f"batch-{number}", 20, {"vcore": 2_000, "memory": 8 * GI})
    await rm.app("giant", "root.prod.web", "ann")
    await rm.asks("giant", 2, {"vcore": 60_000, "memory": GI})
    # 6. Hostile names, in the state in which the page shows most of them.
    await rm.app(HOSTILE_APP, "root.sandbox", HOSTILE)
    await rm.has(await rm.asks(HOSTILE_APP, 1, {"vcore": 500}, HOSTILE_KEY))
    await rm.asks(HOSTILE_APP, 1, {"vcore": 30_000}, f"{HOSTILE_KEY}-waits")
    # 7. Wait until REST shows all of it.
    drained = node("cpu-15", {}, action=si.NodeInfo.DRAIN_NODE)
    await rm.client.send_nodes([drained])
    at = "/ws/v1/partition/default"
    await rm.shows(f"{at}/applications/rejected", lambda found: len(found) >= 1)
    await rm.shows(f"{at}/applications/completed", lambda found: any(a["applicationState"] == "Failed" for a in found))
    await rm.shows(f"{at}/node/cpu-15", lambda found: not found["schedulable"])
    wanted = {"QUEUE_MAX", "GANG_ROOM", "USER_LIMIT", "LARGER_THAN_ANY_NODE"}
    await rm.shows(
        "/ws/v1/explain/pending", lambda found: wanted <= found["counts"].keys() and sum(found["counts"].values()) == 42
    )
    await rm.shows(f"{at}/queue/root", lambda found: found["allocatedResource"]["vcore"] == 298_500)


async def parts(rm: Rm) -> None:
    """Create the objects of the two partitions of :data:`PAIR`."""
    plain, gpu = {"vcore": 16_000, "memory": 64 * GI}, {"vcore": 32_000, "memory": 128 * GI, "nvidia.com/gpu": 8}
    await rm.client.send_nodes([node(f"n-{n}", plain, partition="default") for n in range(3)])
    await rm.client.send_nodes([node(f"n-{n}", gpu, partition="accelerated") for n in (2, 3)])
    await rm.app("nightly", "root.shared", "ann")
    await rm.app("nightly", "root.shared", "ann", groups=["ml"], partition="accelerated")
    await rm.app("only-gpu", "root.gpu", "cleo", groups=["ml"], partition="accelerated")
    await rm.has(await rm.asks("nightly", 10, {"vcore": 2_000, "memory": 4 * GI}, "plain"))
    sized = {"vcore": 2_000, "memory": 4 * GI, "nvidia.com/gpu": 2}
    keys = await rm.asks("nightly", 4, sized, "wide", partition="accelerated")
    keys = keys[:3] + await rm.asks("only-gpu", 3, sized, partition="accelerated")
    await rm.has(keys)
    at = "/ws/v1/partition/accelerated/usage/group/ml"
    await rm.shows(at, lambda found: found["queues"].get("resourceUsage", {}).get("nvidia.com/gpu") == 12)


async def fills(rm: Rm, applications: int = APPLICATIONS, nodes: int = NODES) -> None:
    """Create a large cluster: many nodes, many applications with four allocations each."""
    sizes = [16_000, 32_000, 64_000]
    await rm.client.send_nodes(
        [node(f"node-{n:04}", {"vcore": sizes[n % 3], "memory": sizes[n % 3] // 250 * GI}) for n in range(nodes)]
    )
    names = [f"job-{n:05}" for n in range(applications)]
    await rm.client.send_applications(
        [application(name, f"root.{'abc'[n % 3]}", user=f"user-{n % 7}") for n, name in enumerate(names)]
    )
    # (Any number of them fills half of the cluster, some nodes more than others.)
    sized = [
        {"vcore": (500 + n % 11 * 700) * 2_000 // applications, "memory": (1 + n % 7) * 2_000 * GI // applications}
        for n in range(applications)
    ]
    await rm.client.send_asks([ask(f"{name}-{k}", name, sized[n]) for n, name in enumerate(names) for k in range(4)])
    await eventually(lambda: len(rm.runs) == 4 * applications, f"{4 * applications} run")
