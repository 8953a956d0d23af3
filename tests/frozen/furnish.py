"""Fills a running Muster with objects of every kind, for a frozen sample of its version (README.md).

It speaks to Muster by gRPC stubs and REST only, so that it runs with the code of any version:

    python tests/frozen/furnish.py 127.0.0.1:9090 http://127.0.0.1:9080 > shown.json
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from queue import SimpleQueue
from typing import Any

import grpc
from muster_proto.muster.v1 import admin_pb2, admin_pb2_grpc
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1 import si_pb2_grpc

CURRENT, PREVIOUS, FORGOTTEN = "frozen-current", "frozen-previous", "frozen-forgotten"
TIMEOUT_S = 60.0
QUEUES = """
partitions:
  - name: default
    placementrules:
      - name: provided
        create: false
      - name: tag
        value: namespace
        create: true
    queues:
      - name: root
        submitacl: "*"
        queues:
          - name: a
            resources:
              guaranteed: {vcore: 2, memory: 2G}
              max: {vcore: 8, memory: 8G}
            limits:
              - limit: everybody
                users: ["*"]
                maxresources: {vcore: 6}
          - name: gangs
          - name: full
            resources:
              max: {vcore: 1}
"""


class Stream:
    """One of an RM's streams."""

    def __init__(self, method: Any, rm_id: str) -> None:
        self._said: SimpleQueue[Any] = SimpleQueue()
        self._answers = method(iter(self._said.get, None), timeout=TIMEOUT_S, metadata=(("muster-rm-id", rm_id),))

    def until(self, message: Any, wanted: Any) -> None:
        """Sends a message, and reads answers until one of them is as wanted."""
        self._said.put(message)
        for answer in self._answers:
            if wanted(answer):
                return
        raise RuntimeError(f"the stream ended: {message}")


def resource(**quantities: int) -> si.Resource:
    return si.Resource(resources={name: si.Quantity(value=value) for name, value in quantities.items()})


CORE = resource(vcore=1_000, memory=10**9)


def node(node_id: str, action: Any = si.NodeInfo.CREATE) -> si.NodeInfo:
    return si.NodeInfo(
        nodeID=node_id,
        action=action,
        attributes={"si/node-partition": "default", "si/hostname": f"host-{node_id}"},
        schedulableResource=resource(vcore=8_000, memory=16 * 10**9),
    )


def application(app: str, queue: str, **fields: Any) -> si.AddApplicationRequest:
    return si.AddApplicationRequest(
        applicationID=app,
        queueName=queue,
        partitionName="default",
        ugi=si.UserGroupInformation(user="ada", groups=["makers"]),
        **fields,
    )


def allocation(app: str, key: str, **fields: Any) -> si.Allocation:
    fields.setdefault("resourcePerAlloc", CORE)
    return si.Allocation(allocationKey=key, applicationID=app, partitionName="default", **fields)


def current(scheduler: Any) -> None:
    """An RM of the current generation, with something of each kind."""
    scheduler.RegisterResourceManager(
        si.RegisterResourceManagerRequest(rmID=CURRENT, version="1", policyGroup="frozen", config=QUEUES),
        timeout=TIMEOUT_S,
    )
    nodes = Stream(scheduler.UpdateNode, CURRENT)
    for one in ("n1", "n2", "n3"):
        nodes.until(si.NodeRequest(rmID=CURRENT, nodes=[node(one)]), lambda answer: answer.accepted)
    nodes.until(
        si.NodeRequest(rmID=CURRENT, nodes=[node("n3", si.NodeInfo.DRAIN_NODE)]), lambda answer: answer.accepted
    )
    apps = Stream(scheduler.UpdateApplication, CURRENT)
    new = [
        application("runs", "root.a", tags={"team": "x"}),
        application("waits", "root.full"),
        application("dynamic", "", tags={"namespace": "dev"}),
        application("gang", "root.gangs", placeholderAsk=resource(vcore=2_000, memory=2 * 10**9)),
        application("ended", "root.a"),
    ]
    for one in new:
        apps.until(si.ApplicationRequest(rmID=CURRENT, new=[one]), lambda answer: answer.accepted)
    refused = application("refused", "root.nowhere")
    apps.until(si.ApplicationRequest(rmID=CURRENT, new=[refused]), lambda answer: answer.rejected)
    asks = Stream(scheduler.UpdateAllocation, CURRENT)

    def placed(*items: si.Allocation) -> None:
        for item in items:
            asks.until(
                si.AllocationRequest(rmID=CURRENT, allocations=[item]),
                lambda answer, key=item.allocationKey: key in [made.allocationKey for made in answer.new],
            )

    placed(
        allocation("", "daemon", nodeID="n1", allocationTags={"foreign": "static"}),
        allocation("runs", "recovered", nodeID="n2"),
        allocation("runs", "task-1", priority=5, allocationTags={"zone": "b"}),
        allocation("runs", "task-2", requiredNode="n1")
        if hasattr(si.Allocation(), "requiredNode")
        else allocation("runs", "task-2"),
        allocation("dynamic", "task-3"),
        allocation("ended", "task-4"),
        allocation("gang", "place-1", placeholder=True, taskGroupName="workers"),
        allocation("gang", "place-2", placeholder=True, taskGroupName="workers"),
    )
    apps.until(
        si.ApplicationRequest(
            rmID=CURRENT, remove=[si.RemoveApplicationRequest(applicationID="ended", partitionName="default")]
        ),
        lambda answer: "Completed" in [changed.state for changed in answer.updated] or answer.updated,
    )
    waiting = [allocation("waits", "large", resourcePerAlloc=resource(vcore=4_000)), allocation("waits", "first")]
    asks.until(si.AllocationRequest(rmID=CURRENT, allocations=waiting), lambda answer: answer.new)
    # The gang's member takes a placeholder's place; the RM does not confirm yet.
    member = allocation("gang", "member", taskGroupName="workers")
    asks.until(si.AllocationRequest(rmID=CURRENT, allocations=[member]), lambda answer: answer.released)


def previous(scheduler: Any) -> None:
    """An RM of the previous generation: an ask with repeats."""
    config = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
    scheduler.RegisterResourceManager(
        si.RegisterResourceManagerRequest(
            rmID=PREVIOUS,
            version="1",
            policyGroup="frozen",
            config=config,
            extraConfig={"muster.generation": "previous"},
        ),
        timeout=TIMEOUT_S,
    )
    nodes = Stream(scheduler.UpdateNode, PREVIOUS)
    nodes.until(si.NodeRequest(rmID=PREVIOUS, nodes=[node("n1")]), lambda answer: answer.accepted)
    apps = Stream(scheduler.UpdateApplication, PREVIOUS)
    apps.until(si.ApplicationRequest(rmID=PREVIOUS, new=[application("app", "root.a")]), lambda answer: answer.accepted)
    ask = si.AllocationAsk(
        allocationKey="many", applicationID="app", partitionName="default", resourceAsk=CORE, maxAllocations=12
    )
    asks = Stream(scheduler.UpdateAllocation, PREVIOUS)
    asks.until(si.AllocationRequest(rmID=PREVIOUS, asks=[ask]), lambda answer: answer.new)


def forgotten(channel: grpc.Channel, scheduler: Any) -> None:
    """An RM that an operator has forgotten."""
    scheduler.RegisterResourceManager(si.RegisterResourceManagerRequest(rmID=FORGOTTEN, version="1"), timeout=TIMEOUT_S)
    admin = admin_pb2_grpc.AdminStub(channel)
    admin.ForgetResourceManager(admin_pb2.ForgetResourceManagerRequest(rm_id=FORGOTTEN, force=True), timeout=TIMEOUT_S)


def shown(http: str) -> dict[str, Any]:
    """What REST shows of the RMs."""
    paths = ["partition/default/nodes", "partition/default/queues", "partition/default/applications/active"]
    paths += ["partition/default/applications/rejected", "partition/default/applications/completed", "events/batch"]
    found: dict[str, Any] = {}
    for rm_id in (CURRENT, PREVIOUS):
        for path in paths:
            url = f"{http}/ws/v1/{path}?rm={rm_id}" + ("&count=10000" if path == "events/batch" else "")
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                found[f"{rm_id} {path}"] = json.load(answer)
    return found


def main() -> None:
    address, http = sys.argv[1:]
    with grpc.insecure_channel(address) as channel:
        scheduler = si_pb2_grpc.SchedulerStub(channel)
        current(scheduler)
        previous(scheduler)
        forgotten(channel, scheduler)
    time.sleep(2)  # the view and the events follow
    json.dump(shown(http), sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
