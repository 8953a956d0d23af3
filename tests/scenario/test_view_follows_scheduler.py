"""The scheduler decides, the view shows it: both services on one log, requests in, HTTP out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from muster_bus.clock import SystemClock
from muster_bus.log import Log, LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_core import invariants
from muster_proto.muster.bus.v1 import envelope_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_view import ViewService
from muster_view.settings import ViewSettings
from scenario.operated import LOGS, log_settings, scheduler_and_view
from unordered import unordered
from waiting import PATIENCE_S, eventually

RM = "rm1"
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: limited
            resources:
              max: {vcore: 3}
          - name: free
"""
P = "/ws/v1/partition/default"


class Running:
    """Both services, and an RM's side that writes its requests straight to the log."""

    def __init__(self, log: Log, topics: Topics, writer: LogWriter, view: ViewService) -> None:
        self._log, self._topics, self._writer = log, topics, writer
        self.view = view
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{view.http_port}", timeout=PATIENCE_S)

    async def send(self, **body: object) -> None:
        envelope = envelope_pb2.RequestEnvelope(rm_id=RM, **body)  # type: ignore[arg-type]
        partition = self._topics.partition_of(RM)
        await self._writer.append(
            OutRecord(self._topics.requests, partition, RM.encode(), envelope.SerializeToString())
        )

    async def register(self) -> None:
        request = si.RegisterResourceManagerRequest(rmID=RM, version="1", policyGroup="queues", config=QUEUES)
        await self.send(register=request.SerializeToString())
        await self.live("RUNNING")

    async def live(self, state: str) -> None:
        await self.send(lifecycle=envelope_pb2.RmLifecycle(state=envelope_pb2.RmLifecycle.State.Value(state)))

    async def nodes(self, *items: si.NodeInfo) -> None:
        await self.send(node=si.NodeRequest(rmID=RM, nodes=items).SerializeToString())

    async def applications(self, **queue_by_id: str) -> None:
        user = si.UserGroupInformation(user="bob", groups=["dev"])
        new = [
            si.AddApplicationRequest(applicationID=app, queueName=queue, partitionName="default", ugi=user)
            for app, queue in queue_by_id.items()
        ]
        await self.send(application=si.ApplicationRequest(rmID=RM, new=new).SerializeToString())

    async def asks(self, app: str, *keys: str, vcore: int) -> None:
        items = [
            si.Allocation(
                allocationKey=key, applicationID=app, partitionName="default", resourcePerAlloc=resource(vcore=vcore)
            )
            for key in keys
        ]
        await self.send(allocation=si.AllocationRequest(rmID=RM, allocations=items).SerializeToString())

    async def release(self, app: str, key: str) -> None:
        release = si.AllocationRelease(
            partitionName="default", applicationID=app, allocationKey=key, terminationType=si.STOPPED_BY_RM
        )
        releases = si.AllocationReleasesRequest(allocationsToRelease=[release])
        await self.send(allocation=si.AllocationRequest(rmID=RM, releases=releases).SerializeToString())

    async def get(self, path: str, status: int = 200) -> object:
        answer = await self.http.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def until(self, path: str, wanted: object) -> None:
        """Polls until the answer equals (or contains) the expected value."""
        found: object = None

        async def is_so() -> bool:
            nonlocal found
            found = (await self.http.get(path)).json()
            if isinstance(found, dict) and isinstance(wanted, dict):
                found = {name: found.get(name) for name in wanted}
            return found == wanted

        try:
            await eventually(is_so)
        except AssertionError:
            raise AssertionError(f"{path} says {found}, wanted {wanted}") from None


def resource(**quantities: int) -> si.Resource:
    return si.Resource(resources={name: si.Quantity(value=value) for name, value in quantities.items()})


@pytest.fixture(params=LOGS)
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    async with scheduler_and_view(log_settings(request, tmp_path)) as both:
        it = Running(both.log, both.topics, await both.log.writer("test"), both.view)
        yield it
        await it.http.aclose()


async def test_the_life_of_a_cluster_as_rest_shows_it(running: Running) -> None:
    # 1. nobody is registered
    assert await running.get("/ws/v1/partitions") == []
    # 2. a cluster with two nodes
    await running.register()
    await running.nodes(
        *(
            si.NodeInfo(
                nodeID=f"n{number}",
                action=si.NodeInfo.CREATE,
                attributes={"si/hostname": f"host{number}"},
                schedulableResource=resource(vcore=4_000, memory=100),
            )
            for number in (1, 2)
        )
    )
    await running.applications(first="root.limited", second="root.free", third="root.nope")
    await running.asks("first", "f1", "f2", "f3", "f4", vcore=1_000)
    await running.asks("second", "s1", vcore=1_000)
    await running.asks("second", "big", vcore=9_000)
    # 3. what was decided, and why the rest was not
    counts = {"QUEUE_MAX": 1, "LARGER_THAN_ANY_NODE": 1}
    await running.until("/ws/v1/explain/summary", {"rm": RM, "allocated": 4, "pending": 2, "counts": counts})
    (partition,) = await running.get("/ws/v1/partitions")  # type: ignore[misc]
    assert partition["clusterId"] == RM
    assert partition["applications"] == {"Running": 2, "Rejected": 1, "total": 3}
    assert (partition["totalNodes"], partition["totalContainers"]) == (2, 4)
    assert partition["capacity"]["usedCapacity"] == {"vcore": 4_000}
    tree = await running.get(f"{P}/queues")
    by_path = {child["queuename"]: child for child in tree["children"]}  # type: ignore[index]
    assert by_path["root.limited"]["allocatedResource"] == {"vcore": 3_000}
    assert by_path["root.limited"]["pendingResource"] == {"vcore": 1_000}
    assert by_path["root.limited"]["headroom"]["vcore"] == 0
    nodes = await running.get(f"{P}/nodes")
    assert sum(len(node["allocations"]) for node in nodes) == 4  # type: ignore[attr-defined]
    assert [node["hostName"] for node in nodes] == ["host1", "host2"]  # type: ignore[attr-defined]
    app = await running.get(f"{P}/queue/root.limited/application/first")
    assert [wanted["allocationKey"] for wanted in app["requests"]] == ["f4"]  # type: ignore[index]
    assert app["requests"][0]["pendingReason"]["queue"] == "root.limited"  # type: ignore[index]
    # 4. a release lets the next one in
    await running.release("first", "f1")
    await running.until("/ws/v1/explain/summary", {"allocated": 4, "counts": {"LARGER_THAN_ANY_NODE": 1}})
    # 5. the view's sums are right, and its health says so
    for state in running.view.states().values():
        invariants.check(state.core)
    assert (await running.get("/ws/v1/scheduler/healthcheck"))["Healthy"] is True  # type: ignore[index]
    # 6. a node goes, with what is on it
    await running.nodes(si.NodeInfo(nodeID="n1", action=si.NodeInfo.DECOMISSION))
    await running.until(f"{P}/node/n1", {"status_code": 404, "message": "Node not found"})
    # 7. the RM stops: asks without a verdict say so
    await running.live("STOPPED")
    await running.until("/ws/v1/explain/summary", {"life": "STOPPED"})
    # 8. it registers again, and starts afresh
    await running.register()
    await running.until("/ws/v1/explain/summary", {"life": "RUNNING", "allocated": 0, "pending": 0})
    assert await running.get(f"{P}/nodes") == []


async def test_a_view_that_starts_later_shows_the_same(running: Running) -> None:
    await running.register()
    await running.nodes(
        si.NodeInfo(nodeID="n1", action=si.NodeInfo.CREATE, schedulableResource=resource(vcore=100_000))
    )
    await running.applications(first="root.limited", second="root.free")
    await running.asks("first", *(f"f{number}" for number in range(6)), vcore=1_000)
    await running.asks("second", *(f"s{number}" for number in range(6)), vcore=500)
    await running.asks("second", "huge", vcore=1_000_000)
    await running.until("/ws/v1/explain/summary", {"allocated": 9, "pending": 4})
    await running.release("second", "s0")
    await running.until("/ws/v1/explain/summary", {"allocated": 8, "pending": 4})
    # The last thing that happens by itself: within a second the RM is told that the cluster is too small.
    await running.until("/ws/v1/explain/ask/second/huge", {"scaledUp": True})
    fresh = ViewSettings(http_address="", fresh_wait_s=PATIENCE_S, whole_wait_s=PATIENCE_S)
    late = ViewService(fresh, running._log, running._topics, SystemClock())
    await late.start()
    try:
        await eventually(late.healthy, "the later one has read the log")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(late.asgi), base_url="http://late") as client:
            for path in ("/ws/v1/partitions", f"{P}/queues", f"{P}/queue/root.free/applications", f"{P}/nodes"):
                here, there = (await running.http.get(path)).json(), (await client.get(path)).json()
                assert unordered(here) == unordered(there)
    finally:
        await late.stop()
