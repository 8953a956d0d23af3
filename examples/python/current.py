"""A resource manager of the current generation, on gRPC alone: all that such an RM says and hears.

Start Muster (`muster up --data-dir /tmp/muster`), then: `python examples/python/current.py [host:port]`
"""

from typing import Any

import grpc
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1 import si_pb2_grpc
from wire import Stream, expect, leave, resource, run

RM = "python-current"
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: batch
"""
GONE = si.NodeInfo.DECOMISSION
CORE = resource(vcore=1_000, memory=2**30)


def main(channel: grpc.Channel) -> None:
    scheduler = si_pb2_grpc.SchedulerStub(channel)

    print("1. register; whatever Muster knew of this RM is dropped")
    scheduler.RegisterResourceManager(
        si.RegisterResourceManagerRequest(
            rmID=RM, version="1.8.0", policyGroup="queues", config=QUEUES, extraConfig={"muster.generation": "current"}
        )
    )
    nodes = Stream("node", scheduler.UpdateNode, RM)
    applications = Stream("application", scheduler.UpdateApplication, RM)
    allocations = Stream("allocation", scheduler.UpdateAllocation, RM)

    print("2. nodes: each item has one answer")
    nodes.say(node_request(node("node-1", si.NodeInfo.CREATE), node("node-2", si.NodeInfo.CREATE)))
    nodes.hear("accepted", nodeID="node-1")
    nodes.hear("accepted", nodeID="node-2")
    nodes.say(node_request(node("node-2", si.NodeInfo.CREATE)))
    nodes.hear("rejected", nodeID="node-2")  # it is there already

    print("3. applications")
    applications.say(
        si.ApplicationRequest(rmID=RM, new=[application("app-1", "root.batch"), application("app-2", "root.nowhere")])
    )
    applications.hear("rejected", applicationID="app-2")
    applications.hear("accepted", applicationID="app-1")

    print("4. what runs already, an Allocation with its nodeID; and what others run there, which takes its room")
    daemon = si.Allocation(
        allocationKey="kube-proxy", nodeID="node-2", resourcePerAlloc=CORE, allocationTags={"foreign": "static"}
    )
    allocations.say(allocation_request(daemon, allocation("survivor", nodeID="node-1")))
    allocations.hear("new", allocationKey="kube-proxy", nodeID="node-2")
    allocations.hear("new", allocationKey="survivor", nodeID="node-1")
    applications.hear("updated", applicationID="app-1", state="Accepted")
    applications.hear("updated", applicationID="app-1", state="Running")

    print("5. asks: an Allocation without a nodeID")
    allocations.say(allocation_request(allocation("task-1"), allocation("task-2"), allocation("task-3", "app-2")))
    allocations.hear("new", allocationKey="task-1")
    allocations.hear("new", allocationKey="task-2")
    allocations.hear("rejectedAllocations", allocationKey="task-3")  # of an application that was rejected

    print("6. an ask that is too large waits, and is sent again with another size: the same ask, changed")
    large = resource(vcore=8_000, memory=2**30)
    allocations.say(allocation_request(allocation("task-4", resourcePerAlloc=large)))
    allocations.say(allocation_request(allocation("task-4")))
    allocations.hear("new", allocationKey="task-4")

    print("7. the RM could not start one: it is an ask again, and gets a place again")
    allocations.say(release("task-4", si.SCHEDULING_FAILED_ON_RM))
    allocations.hear("new", allocationKey="task-4")

    print("8. an allocation has ended, and an ask that waits is taken back: each is answered once")
    allocations.say(allocation_request(allocation("task-5", resourcePerAlloc=large)))
    for key in ("task-4", "task-5"):
        allocations.say(release(key, si.STOPPED_BY_RM))
        allocations.hear("released", allocationKey=key, terminationType=si.STOPPED_BY_RM)

    print("9. a gang of one: its placeholder is told to go, and the real one has its place when that is confirmed")
    gang = application("gang", "root.batch")
    gang.placeholderAsk.CopyFrom(CORE)
    applications.say(si.ApplicationRequest(rmID=RM, new=[gang]))
    applications.hear("accepted", applicationID="gang")
    allocations.say(allocation_request(allocation("room", "gang", taskGroupName="workers", placeholder=True)))
    allocations.hear("new", allocationKey="room", placeholder=True)
    allocations.say(allocation_request(allocation("worker", "gang", taskGroupName="workers")))
    told = allocations.hear("released", allocationKey="room", terminationType=si.PLACEHOLDER_REPLACED)
    allocations.say(release(told.allocationKey, told.terminationType, "gang"))  # the pod is gone
    allocations.hear("new", allocationKey="worker", placeholder=False)
    applications.hear("updated", applicationID="gang", state="Accepted")
    applications.hear("updated", applicationID="gang", state="Running")

    print("10. an application is removed, with all it has")
    applications.say(si.ApplicationRequest(rmID=RM, remove=[removal("gang")]))
    allocations.hear("released", allocationKey="worker", terminationType=si.STOPPED_BY_RM)

    print("11. a node takes nothing new; and nodes go, with what runs on them")
    leaving = [node("node-1", si.NodeInfo.DRAIN_NODE), node("node-1", GONE), node("node-2", GONE)]
    nodes.say(node_request(*leaving))
    for item in leaving:
        nodes.hear("accepted", nodeID=item.nodeID)
    gone = {allocations.hear("released", terminationType=si.STOPPED_BY_RM).allocationKey for _ in range(3)}
    expect("all the others are told", gone == {"survivor", "task-1", "task-2"})
    applications.hear("updated", applicationID="app-1", state="Completing")

    print("12. the RM leaves for good: every stream is over")
    leave(scheduler, RM, [nodes, applications, allocations])


def node(node_id: str, action: si.NodeInfo.ActionFromRM.ValueType) -> si.NodeInfo:
    return si.NodeInfo(
        nodeID=node_id,
        action=action,
        attributes={"si/node-partition": "default", "si/hostname": node_id},
        schedulableResource=resource(vcore=4_000, memory=16 * 2**30),
    )


def node_request(*nodes: si.NodeInfo) -> si.NodeRequest:
    return si.NodeRequest(rmID=RM, nodes=nodes)


def application(application_id: str, queue: str) -> si.AddApplicationRequest:
    return si.AddApplicationRequest(
        applicationID=application_id,
        queueName=queue,
        partitionName="default",
        ugi=si.UserGroupInformation(user="me", groups=["us"]),
    )


def removal(application_id: str) -> si.RemoveApplicationRequest:
    return si.RemoveApplicationRequest(applicationID=application_id, partitionName="default")


def allocation(key: str, application_id: str = "app-1", **more: Any) -> si.Allocation:
    fields: dict[str, Any] = {"partitionName": "default", "resourcePerAlloc": CORE, **more}
    return si.Allocation(allocationKey=key, applicationID=application_id, **fields)


def allocation_request(*allocations: si.Allocation) -> si.AllocationRequest:
    return si.AllocationRequest(rmID=RM, allocations=allocations)


def release(key: str, why: si.TerminationType.ValueType, application_id: str = "app-1") -> si.AllocationRequest:
    gone = si.AllocationRelease(
        partitionName="default", applicationID=application_id, allocationKey=key, terminationType=why
    )
    return si.AllocationRequest(rmID=RM, releases=si.AllocationReleasesRequest(allocationsToRelease=[gone]))


if __name__ == "__main__":
    run(main)
