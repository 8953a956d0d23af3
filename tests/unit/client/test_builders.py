"""Nodes, applications, asks and releases in the messages of both generations."""

from __future__ import annotations

from muster_client import (
    application,
    ask,
    confirmation,
    existing_allocation,
    node,
    previous_ask,
    previous_ask_release,
    quantities,
    release,
    removal,
    resource,
)
from muster_proto.si.v1 import si_pb2 as si


def test_quantities_go_there_and_back() -> None:
    there = {"vcore": 1_500, "memory": 2**40, "nvidia.com/gpu-milli": 0}
    assert quantities(resource(there)) == there


def test_a_node_says_its_partition_in_its_attribute_and_leaves_out_what_is_not_given() -> None:
    made = node("n1", {"vcore": 1})
    assert dict(made.attributes) == {"si/node-partition": "default"}
    assert made.action == si.NodeInfo.CREATE
    assert not made.HasField("occupiedResource")
    drained = node("n1", {}, action=si.NodeInfo.DRAIN_NODE, partition="gpu", attributes={"si/hostname": "h"})
    assert dict(drained.attributes) == {"si/node-partition": "gpu", "si/hostname": "h"}
    assert not drained.HasField("schedulableResource")


def test_both_generations_say_the_same_ask() -> None:
    policy = si.PreemptionPolicy(allowPreemptSelf=True)
    now = ask("k", "a", {"vcore": 5}, priority=3, tags={"t": "1"}, task_group="g", placeholder=True, originator=True,
              preemption_policy=policy)  # fmt: skip
    then = previous_ask("k", "a", {"vcore": 5}, priority=3, tags={"t": "1"}, task_group="g", placeholder=True,
                        originator=True, preemption_policy=policy, max_allocations=2)  # fmt: skip
    assert (now.allocationKey, now.applicationID, now.partitionName) == ("k", "a", "default")
    assert (then.allocationKey, then.applicationID, then.partitionName) == ("k", "a", "default")
    assert now.resourcePerAlloc == then.resourceAsk == resource({"vcore": 5})
    assert now.priority == then.priority == 3
    assert dict(now.allocationTags) == dict(then.tags) == {"t": "1"}
    assert now.taskGroupName == then.taskGroupName == "g"
    assert now.placeholder and then.placeholder and now.originator and then.Originator  # noqa: PT018
    assert now.preemptionPolicy == then.preemptionPolicy == policy
    assert then.maxAllocations == 2
    assert now.nodeID == "", "without a node it is an ask"


def test_releases_removals_and_recovered_allocations() -> None:
    assert release("a", "k") == si.AllocationRelease(
        partitionName="default", applicationID="a", allocationKey="k", terminationType=si.STOPPED_BY_RM
    )
    assert release("a", uuid="u").UUID == "u"
    assert previous_ask_release("a", "k").allocationKey == "k"
    assert removal("a", partition="p") == si.RemoveApplicationRequest(applicationID="a", partitionName="p")
    recovered = existing_allocation("k", "a", "n1", {"vcore": 1})
    assert (recovered.nodeID, recovered.UUID) == ("n1", "k")


def test_a_confirmation_repeats_exactly_the_release() -> None:
    told = release("a", "k", uuid="u", termination_type=si.PLACEHOLDER_REPLACED, message="replacing", partition="p")
    assert confirmation(told) == si.AllocationRelease(
        partitionName="p", applicationID="a", allocationKey="k", UUID="u", terminationType=si.PLACEHOLDER_REPLACED
    )
    assert previous_ask_release("a", "k", termination_type=si.TIMEOUT).terminationType == si.TIMEOUT


def test_placeholders_that_run_already_keep_their_task_group_and_their_uuid() -> None:
    recovered = existing_allocation("k", "a", "n1", {"vcore": 1}, uuid="u", task_group="g", placeholder=True)
    assert (recovered.UUID, recovered.taskGroupName, recovered.placeholder) == ("u", "g", True)
    assert not existing_allocation("k", "a", "n1", {"vcore": 1}).placeholder


def test_a_gang_says_what_it_takes_in_all() -> None:
    made = application(
        "a", "root.q", placeholder_ask={"vcore": 3}, execution_timeout_ms=5, gang_scheduling_style="Hard"
    )
    assert made.placeholderAsk == resource({"vcore": 3})
    assert (made.executionTimeoutMilliSeconds, made.gangSchedulingStyle) == (5, "Hard")


def test_an_application_without_a_gang_has_no_placeholder_ask() -> None:
    made = application("a", "root.q", user="u", groups=["g"], tags={"namespace": "n"})
    assert not made.HasField("placeholderAsk")
    assert (made.ugi.user, list(made.ugi.groups)) == ("u", ["g"])
