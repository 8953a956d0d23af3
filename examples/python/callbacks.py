"""A resource manager that is asked before anything is placed: it refuses a node, and Muster can say why nothing runs.

Beside its three streams it opens muster.v1.Callbacks/Connect (proto/muster/v1/callbacks.proto).

Start Muster (`muster up --data-dir /tmp/muster`), then: `python examples/python/callbacks.py [host:port]`
"""

import time

import grpc
from muster_proto.muster.v1 import admin_pb2 as admin
from muster_proto.muster.v1 import admin_pb2_grpc, callbacks_pb2_grpc
from muster_proto.muster.v1 import callbacks_pb2 as callbacks
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1 import si_pb2_grpc
from wire import TIMEOUT_S, Stream, Unexpected, expect, leave, resource, run

RM = "python-callbacks"
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: batch
"""
FULL = "its disk is full"


def main(channel: grpc.Channel) -> None:
    scheduler = si_pb2_grpc.SchedulerStub(channel)

    print("1. register, and say what the RM wants to be asked")
    scheduler.RegisterResourceManager(
        si.RegisterResourceManagerRequest(
            rmID=RM,
            version="1.8.0",
            policyGroup="queues",
            config=QUEUES,
            extraConfig={"muster.callbacks.retry": "60s"},  # a refused node is asked about again after this pause
        )
    )
    asked = Stream("callbacks", callbacks_pb2_grpc.CallbacksStub(channel).Connect, RM)
    asked.say(callbacks.FromResourceManager(hello=callbacks.Hello(rm_id=RM, predicates=True)))
    asked.hear("welcome")
    nodes = Stream("node", scheduler.UpdateNode, RM)
    applications = Stream("application", scheduler.UpdateApplication, RM)
    allocations = Stream("allocation", scheduler.UpdateAllocation, RM)

    print("2. two nodes, an application")
    nodes.say(si.NodeRequest(rmID=RM, nodes=[node("node-1"), node("node-2")]))
    nodes.hear("accepted", nodeID="node-1")
    nodes.hear("accepted", nodeID="node-2")
    applications.say(si.ApplicationRequest(rmID=RM, new=[application("app-1")]))
    applications.hear("accepted", applicationID="app-1")

    print("3. an ask: one node is refused, the other one is not")
    allocations.say(si.AllocationRequest(rmID=RM, allocations=[ask("task-1")]))
    first = refuse(asked, "task-1")
    question = asked.hear("predicates")
    expect("the other node is asked about", question.args.nodeID != first)
    asked.say(answer(question, fits=True))
    allocations.hear("new", allocationKey="task-1", nodeID=question.args.nodeID)

    print("4. another one: both are refused, and it waits")
    allocations.say(si.AllocationRequest(rmID=RM, allocations=[ask("task-2")]))
    refused = {refuse(asked, "task-2"), refuse(asked, "task-2")}
    expect("both nodes are asked about", refused == {"node-1", "node-2"})

    print("5. why does it wait? What the RM said is part of the answer")
    why = explained(admin_pb2_grpc.AdminStub(channel), "task-2", [f"{node_id}: {FULL}" for node_id in refused])
    for sentence in why.sentences:
        print(f"   {sentence}")

    print("6. another configuration, from the same stream")
    more = si.UpdateConfigurationRequest(rmID=RM, policyGroup="queues", config=QUEUES + "          - name: night\n")
    asked.say(
        callbacks.FromResourceManager(configurations=[callbacks.ConfigurationUpdate(id="add-a-queue", request=more)])
    )
    result = asked.hear("configurations", id="add-a-queue", error="").response
    expect("it is accepted", result.accepted)
    for change in result.changes:
        print(f"   {change}")

    print("7. the RM leaves for good: every stream is over")
    applications.hear("updated", applicationID="app-1", state="Accepted")
    applications.hear("updated", applicationID="app-1", state="Running")
    leave(scheduler, RM, [asked, nodes, applications, allocations])


def refuse(asked: Stream, key: str) -> str:
    """Answers the next question with no; gives the node that was meant."""
    question = asked.hear("predicates", application_id="app-1")
    expect(f"{key} is to be allocated", question.args.allocationKey == key and question.args.allocate)
    asked.say(answer(question, fits=False, reason=FULL))
    node_id: str = question.args.nodeID
    return node_id


def answer(question: callbacks.PredicatesQuestion, *, fits: bool, reason: str = "") -> callbacks.FromResourceManager:
    said = callbacks.PredicatesAnswer(id=question.id, fits=fits, reason=reason)
    return callbacks.FromResourceManager(predicates=[said])


def explained(operator: admin_pb2_grpc.AdminStub, key: str, words: list[str]) -> admin.ExplainResponse:
    """The explanation of an ask, once it says all of this: who explains hears of everything a moment later."""
    about = admin.ExplainRequest(rm_id=RM, ask=admin.AskId(application_id="app-1", allocation_key=key))
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        why = operator.Explain(about, timeout=TIMEOUT_S)
        said = "\n".join(why.sentences)
        if all(word in said for word in words):
            return why
        time.sleep(0.1)
    raise Unexpected(f"expected {words} in the explanation:\n{said}")


def node(node_id: str) -> si.NodeInfo:
    return si.NodeInfo(
        nodeID=node_id,
        action=si.NodeInfo.CREATE,
        attributes={"si/node-partition": "default", "si/hostname": node_id},
        schedulableResource=resource(vcore=4_000, memory=16 * 2**30),
    )


def application(application_id: str) -> si.AddApplicationRequest:
    return si.AddApplicationRequest(
        applicationID=application_id,
        queueName="root.batch",
        partitionName="default",
        ugi=si.UserGroupInformation(user="me", groups=["us"]),
    )


def ask(key: str) -> si.Allocation:
    size = resource(vcore=1_000, memory=2**30)
    return si.Allocation(allocationKey=key, applicationID="app-1", partitionName="default", resourcePerAlloc=size)


if __name__ == "__main__":
    run(main)
