"""A resource manager of the previous generation, on gRPC alone: asks with repeats, allocations with UUIDs.

It says nothing that such an RM did not say: Muster sees by its words which generation it is, and answers in the same.

Start Muster (`muster up --data-dir /tmp/muster`), then: `python examples/python/previous.py [host:port]`
"""

from typing import Any

import grpc
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1 import si_pb2_grpc
from wire import Stream, expect, leave, resource, run

RM = "python-previous"
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: batch
"""
CORE = resource(vcore=1_000, memory=2**30)


def main(channel: grpc.Channel) -> None:
    scheduler = si_pb2_grpc.SchedulerStub(channel)

    print("1. register; whatever Muster knew of this RM is dropped")
    scheduler.RegisterResourceManager(
        si.RegisterResourceManagerRequest(rmID=RM, version="1.3.0", policyGroup="queues", config=QUEUES)
    )
    nodes = Stream("node", scheduler.UpdateNode, RM)
    applications = Stream("application", scheduler.UpdateApplication, RM)
    allocations = Stream("allocation", scheduler.UpdateAllocation, RM)

    print("2. an application, then a node with what runs on it already")
    applications.say(si.ApplicationRequest(rmID=RM, new=[application("app-1")]))
    applications.hear("accepted", applicationID="app-1")
    survivor = si.Allocation(
        allocationKey="survivor",
        UUID="9c2f6b1e",
        nodeID="node-1",
        applicationID="app-1",
        partitionName="default",
        resourcePerAlloc=CORE,
    )
    nodes.say(node_request(node("node-1", si.NodeInfo.CREATE, survivor)))
    nodes.hear("accepted", nodeID="node-1")
    allocations.hear("new", allocationKey="survivor", UUID="9c2f6b1e", nodeID="node-1")
    for state in ("Accepted", "Starting", "Running"):
        applications.hear("updated", applicationID="app-1", state=state)

    print("3. one ask, three allocations: the same key, a UUID each")
    allocations.say(ask_request(ask("task", maxAllocations=3)))
    uuids = [allocations.hear("new", allocationKey="task", nodeID="node-1").UUID for _ in range(3)]
    expect("three UUIDs, all different", len({*uuids, "9c2f6b1e", ""}) == 5)

    print("4. the same ask with one more, and an ask of an application that is not there")
    allocations.say(ask_request(ask("task", maxAllocations=4), ask("lost", applicationID="nobody")))
    uuids.append(allocations.hear("new", allocationKey="task").UUID)
    allocations.hear("rejected", allocationKey="lost", applicationID="nobody")

    print("5. an ask that fits nowhere is taken back")
    allocations.say(ask_request(ask("large", resourceAsk=resource(vcore=64_000), maxAllocations=2)))
    allocations.say(
        release_request(
            asks=[si.AllocationAskRelease(partitionName="default", applicationID="app-1", allocationKey="large")]
        )
    )
    allocations.hear("releasedAsks", applicationID="app-1", allocationKey="large")

    print("6. one of the four has ended: its UUID says which")
    allocations.say(release_request(release(uuids[1], si.STOPPED_BY_RM)))
    allocations.hear("released", UUID=uuids[1], allocationKey="task", terminationType=si.STOPPED_BY_RM)

    print("7. an ask with a time-out of its own: the scheduler tells when it is over, and the RM confirms")
    allocations.say(ask_request(ask("short", executionTimeoutMilliSeconds=200)))
    short = allocations.hear("new", allocationKey="short").UUID
    told = allocations.hear("released", UUID=short, terminationType=si.TIMEOUT)
    allocations.say(release_request(release(told.UUID, told.terminationType)))  # the pod is gone; no answer to that

    print("8. a node is drained, not drained, and gone with what runs on it")
    for action in (si.NodeInfo.DRAIN_NODE, si.NodeInfo.DRAIN_TO_SCHEDULABLE, si.NodeInfo.DECOMISSION):
        nodes.say(node_request(node("node-1", action)))
        nodes.hear("accepted", nodeID="node-1")
    for uuid in ("9c2f6b1e", uuids[0], *uuids[2:]):
        allocations.hear("released", UUID=uuid, terminationType=si.STOPPED_BY_RM)
    applications.hear("updated", applicationID="app-1", state="Completing")

    print("9. the application is removed, and the RM leaves for good: every stream is over")
    removal = si.RemoveApplicationRequest(applicationID="app-1", partitionName="default")
    applications.say(si.ApplicationRequest(rmID=RM, remove=[removal]))
    leave(scheduler, RM, [nodes, applications, allocations])


def node(node_id: str, action: si.NodeInfo.ActionFromRM.ValueType, *existing: si.Allocation) -> si.NodeInfo:
    return si.NodeInfo(
        nodeID=node_id,
        action=action,
        attributes={"si/node-partition": "default", "si/hostname": node_id, "ready": "true"},
        schedulableResource=resource(vcore=8_000, memory=32 * 2**30),
        existingAllocations=existing,
    )


def node_request(*nodes: si.NodeInfo) -> si.NodeRequest:
    return si.NodeRequest(rmID=RM, nodes=nodes)


def application(application_id: str) -> si.AddApplicationRequest:
    return si.AddApplicationRequest(
        applicationID=application_id,
        queueName="root.batch",
        partitionName="default",
        ugi=si.UserGroupInformation(user="me", groups=["us"]),
    )


def ask(key: str, **more: Any) -> si.AllocationAsk:
    fields: dict[str, Any] = {"applicationID": "app-1", "resourceAsk": CORE, "maxAllocations": 1, **more}
    return si.AllocationAsk(allocationKey=key, partitionName="default", **fields)


def ask_request(*asks: si.AllocationAsk) -> si.AllocationRequest:
    return si.AllocationRequest(rmID=RM, asks=asks)


def release(uuid: str, why: si.TerminationType.ValueType) -> si.AllocationRelease:
    return si.AllocationRelease(partitionName="default", applicationID="app-1", UUID=uuid, terminationType=why)


def release_request(
    *allocations: si.AllocationRelease, asks: list[si.AllocationAskRelease] | None = None
) -> si.AllocationRequest:
    releases = si.AllocationReleasesRequest(allocationsToRelease=allocations, allocationAsksToRelease=asks)
    return si.AllocationRequest(rmID=RM, releases=releases)


if __name__ == "__main__":
    run(main)
