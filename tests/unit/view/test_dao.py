"""The shapes, byte for byte: names, order, required and omitted fields."""

from __future__ import annotations

import json
import re
from typing import Any

from builders import Cluster, nodes
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.states import AppState, QueueState
from muster_runtime.go_json import go_json
from muster_si.constants import REQUIRED_NODE_TAG
from muster_state.state_folder import RmInfo
from muster_view.rest import dao, json_render
from muster_view.rest.json_render import Pieces

LEAVES = "{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 4}}}, {name: b}]}"
T = 1_000_000_000_000  # Cluster's clock at its start, in nanoseconds
INFO = RmInfo("rm<1>", build_info={"buildVersion": "1.0"}, life="RUNNING", registered_ns=T)
IDLE = b"-2147483648"


def text(pieces: Pieces) -> bytes:
    return plain(b"".join(pieces))


def plain(shown: bytes) -> bytes:
    """Return the shape without the ids of history servers (test_ids.py tests those)."""
    return re.sub(rb',"id":"\w{26}"(?=})|"(id|partition_id|queueID|parentID)":"\w{26}",', b"", shown)


def test_cluster() -> None:
    assert go_json(dao.cluster(INFO, Cluster(LEAVES).partition)) == (
        b'{"startTime":1000000000000,"rmBuildInformation":[{"buildVersion":"1.0","rmId":"rm\\u003c1\\u003e"}],'
        b'"partition":"default","clusterName":"kubernetes"}'
    )


def test_secrets_of_a_build_are_masked() -> None:
    info = RmInfo("rm", build_info={"buildVersion": "1", "registryPassword": "tiger"})
    (build,) = dao.cluster(info, Cluster(LEAVES).partition).rm_build_information
    assert build == {"buildVersion": "1", "registryPassword": "***", "rmId": "rm"}


def test_an_empty_partition_has_its_objects_and_the_total_of_its_applications() -> None:
    assert plain(go_json(dao.partition_info(INFO, Cluster(LEAVES).partition))) == (
        b'{"clusterId":"rm\\u003c1\\u003e","name":"default","capacity":{},'
        b'"nodeSortingPolicy":{"type":"fair","resourceWeights":{"memory":1,"vcore":1}},'
        b'"preemptionEnabled":true,"quotaPreemptionEnabled":false,"applications":{"total":0},'
        b'"state":"Active","lastStateTransitionTime":1000000000000}'
    )


def test_partition_in_use() -> None:
    cluster = Cluster(LEAVES).having({"n1": {"vcore": 10_000, "memory": 100}}, {"x": "root.b"})
    cluster.ask("x", "k", vcore=2_500, memory=33)
    cluster.app("idle", "root.b")
    assert plain(go_json(dao.partition_info(INFO, cluster.partition))) == (
        b'{"clusterId":"rm\\u003c1\\u003e","name":"default","capacity":{"capacity":{"memory":100,"vcore":10000},'
        b'"usedCapacity":{"memory":33,"vcore":2500},"utilization":{"memory":33,"vcore":25}},'
        b'"nodeSortingPolicy":{"type":"fair","resourceWeights":{"memory":1,"vcore":1}},'
        b'"preemptionEnabled":true,"quotaPreemptionEnabled":false,"totalNodes":1,'
        b'"applications":{"New":1,"Running":1,"total":2},"totalContainers":1,'
        b'"state":"Active","lastStateTransitionTime":1000000000000}'
    )


def test_the_partition_of_a_stopped_rm_is_stopped_since_its_last_decision() -> None:
    stopped = RmInfo("rm", life="STOPPED", registered_ns=T, last_decided_ns=T + 5)
    found = dao.partition_info(stopped, Cluster(LEAVES).partition)
    assert (found.state, found.last_state_transition_time) == ("Stopped", T + 5)


def test_queue_tree() -> None:
    cluster = Cluster(LEAVES).having({"n1": {"vcore": 10_000}}, {"x": "root.a"})
    cluster.ask("x", "k", vcore=1_000, priority=7)
    cluster.ask("x", "more", vcore=4_000, priority=7)
    partition = cluster.partition
    leaf_tail = (
        b'"sortingPolicy":"fifo","prioritySorting":true,"preemptionEnabled":true,"isPreemptionFence":false,'
        b'"preemptionDelay":"30s","quotaPreemptionDelay":"0s","isPriorityFence":false}'
    )
    assert text(json_render.queue(partition, partition.root, tree=True, shown_partition="default")) == (
        b'{"queuename":"root","status":"Active","partition":"default","pendingResource":{"vcore":4000},'
        b'"maxResource":{"vcore":10000},"allocatedResource":{"vcore":1000},"headroom":{"vcore":9000},'
        b'"isLeaf":false,"isManaged":true,"children":['
        b'{"queuename":"root.a","status":"Active","partition":"","pendingResource":{"vcore":4000},'
        b'"maxResource":{"vcore":4000},"allocatedResource":{"vcore":1000},"headroom":{"vcore":3000},"isLeaf":true,'
        b'"isManaged":true,"parent":"root","absUsedCapacity":{"vcore":25},"runningApps":1,"currentPriority":7,'
        + leaf_tail
        + b',{"queuename":"root.b","status":"Active","partition":"","headroom":{"vcore":9000},"isLeaf":true,'
        b'"isManaged":true,"parent":"root","currentPriority":'
        + IDLE
        + b","
        + leaf_tail
        + b'],"childNames":["root.a","root.b"],"absUsedCapacity":{"vcore":10},"runningApps":1,"currentPriority":7,'
        b'"sortingPolicy":"fair","prioritySorting":true,"preemptionEnabled":true,"isPreemptionFence":false,'
        b'"preemptionDelay":"30s","quotaPreemptionDelay":"0s","isPriorityFence":false}'
    )


def test_a_single_queue_names_its_children_without_showing_them() -> None:
    partition = Cluster(LEAVES).partition
    shown = text(json_render.queue(partition, partition.root, tree=False))
    assert b'"partition":""' in shown
    assert b'"childNames":["root.a","root.b"]' in shown
    assert b'"children"' not in shown


def test_queue_properties_and_what_they_mean() -> None:
    queues = (
        "{name: root, submitacl: '*', queues: [{name: a, maxapplications: 3, resources: {guaranteed: {vcore: 1}},"
        " properties: {application.sort.policy: fair, application.sort.priority: disabled, preemption.policy: Fence,"
        " preemption.delay: 5m, quota.preemption.delay: 90s, priority.policy: fence, priority.offset: '-4', x: y}}]}"
    )
    partition = Cluster(queues).partition
    leaf = partition.queues["root.a"]
    leaf.state = QueueState.DRAINING
    shown = text(json_render.queue(partition, leaf, tree=True))
    assert shown.startswith(
        b'{"queuename":"root.a","status":"Draining","partition":"","guaranteedResource":{"vcore":1000},'
    )
    assert b'"x":"y"' in shown
    assert shown.endswith(
        b'"parent":"root","maxRunningApps":3,"currentPriority":-2147483648,"sortingPolicy":"fair","prioritySorting":false,'
        b'"preemptionEnabled":true,"isPreemptionFence":true,"preemptionDelay":"5m0s","quotaPreemptionDelay":"1m30s",'
        b'"isPriorityFence":true,"priorityOffset":-4}'
    )


def test_delays_are_shown_where_they_have_an_effect() -> None:
    """The delay of preemption counts at leaves, that of quotas at configured queues. Other queues show the default."""
    queues = (
        "{name: root, submitacl: '*', properties: {preemption.delay: 5m, quota.preemption.delay: 90s}, queues:"
        " [{name: a}, {name: p, parent: true, childtemplate: {properties: {preemption.delay: 2m,"
        " quota.preemption.delay: 3m}}}]}"
    )
    cluster = Cluster(queues, partition="placementrules: [{name: provided, create: true}],")
    cluster.app("x", "root.p.made")
    tails = {
        path: dao.queue_tail(cluster.partition, queue, dao.INT32_MIN, dao.AllocatingApplications([], 0))
        for path, queue in cluster.partition.queues.items()
    }
    assert {path: (tail.preemption_delay, tail.quota_preemption_delay) for path, tail in tails.items()} == {
        "root": ("30s", "1m30s"),
        "root.a": ("5m0s", "1m30s"),
        "root.p": ("30s", "1m30s"),
        "root.p.made": ("2m0s", "0s"),
    }


def test_secrets_of_queues_are_masked() -> None:
    queues = (
        "{name: root, submitacl: '*', queues: [{name: p, parent: true, properties: {dbPassword: tiger, x: y},"
        " childtemplate: {properties: {dbPassword: tiger, x: y}}}]}"
    )
    partition = Cluster(queues).partition
    head = dao.queue_head(partition, partition.queues["root.p"], "")
    assert head.template is not None
    assert head.properties == head.template.properties == {"dbPassword": "***", "x": "y"}


def test_preemption_can_be_disabled_and_bad_values_mean_the_default() -> None:
    queues = (
        "{name: root, submitacl: '*', queues: [{name: a, properties: {preemption.policy: disabled,"
        " preemption.delay: soon, priority.offset: '99999999999', quota.preemption.delay: -5s}}]}"
    )
    partition = Cluster(queues).partition
    tail = dao.queue_tail(partition, partition.queues["root.a"], dao.INT32_MIN, dao.AllocatingApplications([], 0))
    assert not tail.preemption_enabled
    assert (tail.preemption_delay, tail.quota_preemption_delay, tail.priority_offset) == ("30s", "0s", 0)


def test_priorities_are_offset_on_the_way_up_and_saturate() -> None:
    queues = (
        "{name: root, submitacl: '*', queues: [{name: p, properties: {priority.offset: '10'}, queues:"
        " [{name: a, properties: {priority.offset: '5'}}]}, {name: b}]}"
    )
    cluster = Cluster(queues)
    cluster.app("x", "root.p.a")
    cluster.ask("x", "k", vcore=1, priority=1)
    assert [
        dao.current_priority(cluster.partition, cluster.queue(path)) for path in ("root.p.a", "root.p", "root")
    ] == [6, 16, 16]
    cluster.ask("x", "k2", vcore=1, priority=dao.INT32_MAX - 3)
    assert dao.current_priority(cluster.partition, cluster.queue("root")) == dao.INT32_MAX


def test_a_priority_fence_lends_its_offset_while_something_is_pending() -> None:
    queues = (
        "{name: root, submitacl: '*', queues: [{name: p, properties: {priority.policy: fence, priority.offset: '3'},"
        " queues: [{name: a}]}]}"
    )
    cluster = Cluster(queues)
    paths = ("root.p.a", "root.p", "root")
    assert [dao.current_priority(cluster.partition, cluster.queue(path)) for path in paths] == [dao.INT32_MIN] * 3
    cluster.app("x", "root.p.a")
    cluster.ask("x", "k", vcore=1, priority=100)
    assert [dao.current_priority(cluster.partition, cluster.queue(path)) for path in paths] == [100, 3, 3]
    cluster.node("n", vcore=1)
    assert [dao.current_priority(cluster.partition, cluster.queue(path)) for path in paths] == [dao.INT32_MIN] * 3


def test_in_a_tree_each_queue_has_the_priority_that_it_has_alone() -> None:
    queues = (
        "{name: root, submitacl: '*', queues: [{name: p, properties: {priority.offset: '10'}, queues:"
        " [{name: a, properties: {priority.offset: '-5'}}, {name: b}, {name: c}]}, {name: e, parent: true}, {name: d,"
        " properties: {priority.policy: fence, priority.offset: '7'}}]}"
    )
    cluster = Cluster(queues)
    for number, path in enumerate(("root.p.a", "root.p.b", "root.d")):
        cluster.app(f"x{number}", path)
        cluster.ask(f"x{number}", "k", vcore=1, priority=10 * number)
    partition = cluster.partition
    shown: dict[str, int] = {}

    def walk(queue: dict[str, Any]) -> None:
        shown[queue["queuename"]] = queue["currentPriority"]
        for child in queue.get("children", []):
            walk(child)

    walk(json.loads(text(json_render.queue(partition, partition.root, tree=True))))
    assert shown == {path: dao.current_priority(partition, queue) for path, queue in partition.queues.items()}
    assert len(set(shown.values())) >= 5
    assert b'"children":[]' not in text(json_render.queue(partition, cluster.queue("root.e"), tree=True))


def test_the_template_of_new_leaves() -> None:
    queues = (
        "{name: root, submitacl: '*', queues: [{name: p, parent: true, childtemplate: {maxapplications: 4, properties:"
        " {application.sort.policy: fair}, resources: {guaranteed: {memory: 5}, max: {vcore: 2}}}}, {name: b}]}"
    )
    partition = Cluster(queues).partition
    assert (
        b'"parent":"root","template":{"maxApplications":4,"maxResource":{"vcore":2000},'
        b'"guaranteedResource":{"memory":5},"properties":{"application.sort.policy":"fair"}}'
    ) in text(json_render.queue(partition, partition.queues["root.p"], tree=True))
    assert b"template" not in text(json_render.queue(partition, partition.queues["root.b"], tree=True))


def test_a_reservation_is_on_its_node_its_application_and_its_ask() -> None:
    cluster = Cluster(LEAVES).having({"n1": {"vcore": 10}}, {"x": "root.b"})
    cluster.ask("x", "small", vcore=5)
    cluster.ask("x", "large", vcore=8)
    cluster.wait(3)
    partition = cluster.partition
    assert text(json_render.node(partition, cluster.the_node("n1"))).endswith(
        b'"schedulable":true,"isReserved":true,"reservations":["large"]}'
    )
    shown = text(json_render.application(partition, cluster.application("x")))
    assert b',"hasReserved":true,"reservations":["large"],' in shown
    cluster.release("x", "small")
    shown = text(json_render.application(partition, cluster.application("x")))
    assert b"hasReserved" not in shown
    assert b"reservations" not in shown
    assert b'"isReserved":false' in text(json_render.node(partition, cluster.the_node("n1")))


def test_a_preemption_is_on_the_ask_the_victim_and_their_queues() -> None:
    queues = (
        "{name: root, submitacl: '*', queues: [{name: a, resources: {guaranteed: {vcore: 5m}}, properties:"
        " {preemption.delay: 1s}}, {name: b}]}"
    )
    cluster = Cluster(queues).having({"n1": {"vcore": 10}}, {"x": "root.a", "y": "root.b"})
    for number in range(5):
        victim = AskItem(f"v{number}", "y", "default", {"vcore": 2}, allow_preempt_self=True)
        cluster.do(UpdateAllocations([victim]))
    asking = AskItem("k", "x", "default", {"vcore": 2}, allow_preempt_other=True)
    cluster.do(UpdateAllocations([asking]))
    cluster.wait(2)
    (told,) = [held for held in cluster.application("y").allocations.values() if held.preempted is not None]
    partition = cluster.partition
    assert b',"triggeredPreemption":true,' in go_json(dao.ask(cluster.application("x").asks["k"]))
    assert b',"preempted":true,' in go_json(dao.allocation(told))
    assert dao.queue_head(partition, cluster.queue("root.b"), "").preempting_resource == {"vcore": 2}
    assert dao.queue_head(partition, cluster.queue("root.a"), "").preempting_resource == {}
    cluster.do(UpdateNodes((NodeItem("n1", NodeAction.DECOMISSION),)))
    asking_still = cluster.application("x").asks["k"]
    assert (asking_still.preempts, asking_still.lost) == (False, "the node was removed")
    assert b',"triggeredPreemption":true,' in go_json(dao.ask(asking_still))


def test_an_ask_that_was_reported_to_the_autoscaler() -> None:
    cluster = Cluster(LEAVES)
    cluster.app("x", "root.b")
    cluster.ask("x", "k", vcore=1)
    assert b"triggeredScaleUp" not in go_json(dao.ask(cluster.application("x").asks["k"]))
    cluster.wait(2)
    assert b',"triggeredScaleUp":true,' in go_json(dao.ask(cluster.application("x").asks["k"]))


def test_a_reason_with_nodes_shows_what_they_lack() -> None:
    cluster = Cluster(LEAVES).having(
        {"n1": {"vcore": 9, "memory": 1}, "n2": {"vcore": 1, "memory": 9}}, {"x": "root.b"}
    )
    cluster.ask("x", "k", vcore=5, memory=5)
    shown = go_json(dao.ask(cluster.application("x").asks["k"]))
    assert (
        b'"pendingReason":{"code":"FREE_RESOURCES_SCATTERED","nodes":2,"lacking":[{"resourceType":"memory","nodes":1},'
        b'{"resourceType":"vcore","nodes":1}],"message":'
    ) in shown


def test_headroom_is_the_least_on_the_way_and_types_without_max_are_not_there() -> None:
    queues = (
        "{name: root, submitacl: '*', queues: [{name: p, resources: {max: {vcore: 3, gpu: 2}}, queues:"
        " [{name: a, resources: {max: {memory: 50}}}, {name: b}]}]}"
    )
    cluster = Cluster(queues).having({"n1": {"vcore": 10_000, "memory": 100}}, {"x": "root.p.b"})
    cluster.ask("x", "k", vcore=3_000, memory=20)
    partition = cluster.partition
    assert dao.headroom(partition, cluster.queue("root")) == {"vcore": 7_000, "memory": 80}
    assert dao.headroom(partition, cluster.queue("root.p")) == {"vcore": 0, "memory": 80, "gpu": 2}
    assert dao.headroom(partition, cluster.queue("root.p.a")) == {"vcore": 0, "memory": 50, "gpu": 2}


def test_application_with_asks_and_allocations() -> None:
    cluster = Cluster(LEAVES)
    cluster.node("n1", vcore=10_000)
    cluster.do(UpdateApplications((AppItem("x", "root.a", "default", "bob", ("g1", "g2")),)))
    cluster.do(
        UpdateAllocations([AskItem("k1", "x", "default", {"vcore": 3_000, "pods": 0}, tags={"t": "<v"}, priority=-1)])
    )
    cluster.now_ns += 1
    cluster.ask("x", "k2", vcore=2_000, wanted=3)
    assert text(json_render.application(cluster.partition, cluster.application("x"))) == (
        b'{"applicationID":"x","usedResource":{"vcore":3000},"maxUsedResource":{"vcore":3000},"pendingResource":{"vcore":6000},"partition":"default",'
        b'"queueName":"root.a","submissionTime":1000000000000,'
        b'"requests":[{"allocationKey":"k2","requestTime":1000000000001,"resource":{"vcore":2000},"priority":"0",'
        b'"applicationId":"x","allocationLog":[{"message":"Queue root.a uses 3 cores of its max of 4 cores; '
        b'2 cores more would exceed it.","lastOccurrence":1000000000001,"count":1}],"schedulingAttempted":true,'
        b'"pendingCount":3,"pendingReason":{"code":"QUEUE_MAX","queue":"root.a","resourceType":"vcore","asked":2000,'
        b'"used":3000,"limit":4000,"message":"Queue root.a uses 3 cores of its max of 4 cores; '
        b'2 cores more would exceed it.","since":1000000000001}}],'
        b'"allocations":[{"allocationKey":"k1","allocationTags":{"t":"\\u003cv"},"requestTime":1000000000000,'
        b'"allocationTime":1000000000000,"resource":{"pods":0,"vcore":3000},"priority":"-1","nodeId":"n1",'
        b'"applicationId":"x","bindTime":1000000000000}],'
        b'"applicationState":"Running","user":"bob","groups":["g1","g2"],'
        b'"stateLog":[{"time":1000000000000,"applicationState":"New"},'
        b'{"time":1000000000000,"applicationState":"Accepted"},{"time":1000000000000,"applicationState":"Running"}],'
        b'"startTime":1000000,"resourceHistory":{}}'
    )


def test_the_most_that_an_application_used_stays() -> None:
    cluster = Cluster(LEAVES).having({"n1": {"vcore": 10_000}}, {"x": "root.b"})
    cluster.ask("x", "k1", vcore=3_000)
    cluster.ask("x", "k2", vcore=1_000)
    cluster.release("x", "k1")
    shown = text(json_render.application(cluster.partition, cluster.application("x")))
    assert b'"usedResource":{"vcore":1000},"maxUsedResource":{"vcore":4000},"partition"' in shown


def test_an_application_that_was_refused() -> None:
    cluster = Cluster(LEAVES)
    cluster.app("bad", "root.Nowhere")
    app = cluster.partition.rejected["bad"]
    assert (
        text(json_render.application(cluster.partition, app))
        == (
            b'{"applicationID":"bad","partition":"default","queueName":"root.Nowhere","submissionTime":1000000000000,'
            b'"finishedTime":1000000000000,"applicationState":"Rejected","user":"alice",'
            b'"rejectedMessage":"%b",'
            b'"stateLog":[{"time":1000000000000,"applicationState":"New"},'
            b'{"time":1000000000000,"applicationState":"Rejected"}],'
            b'"maxRequestPriority":-2147483648,"startTime":-62135596800000,"resourceHistory":{}}'
        )
        % app.rejected_message.encode()
    )


def test_an_application_that_never_ran() -> None:
    cluster = Cluster(LEAVES)
    cluster.app("x", "root.a")
    assert text(json_render.application(cluster.partition, cluster.application("x"))) == (
        b'{"applicationID":"x","partition":"default","queueName":"root.a","submissionTime":1000000000000,'
        b'"applicationState":"New","user":"alice","groups":["alice"],"stateLog":[{"time":1000000000000,"applicationState":"New"}],'
        b'"maxRequestPriority":-2147483648,"startTime":-62135596800000,"resourceHistory":{}}'
    )


def test_an_ask_without_reason_and_one_for_a_named_node() -> None:
    cluster = Cluster(LEAVES)
    cluster.app("x", "root.a")
    item = AskItem(
        "k",
        "x",
        "default",
        {"vcore": 1},
        tags={REQUIRED_NODE_TAG: "n9"},
        task_group="tg",
        placeholder=True,
        originator=True,
    )
    cluster.core.apply(UpdateAllocations([item]), T)
    assert go_json(dao.ask(cluster.application("x").asks["k"])) == (
        b'{"allocationKey":"k","allocationTags":{"yunikorn.apache.org/requiredNode":"n9"},'
        b'"requestTime":1000000000000,"resource":{"vcore":1},"priority":"0","requiredNodeId":"n9","applicationId":"x",'
        b'"placeholder":true,"taskGroupName":"tg","originator":true}'
    )


def test_a_previous_generations_allocation_carries_its_uuid() -> None:
    cluster = Cluster(LEAVES).having({"n1": {"vcore": 10}}, {"x": "root.a"})
    cluster.do(UpdateAllocations([AskItem("k", "x", "default", {"vcore": 1}, previous_generation=True)]))
    held = cluster.application("x").allocations["k"]
    assert held.uuid
    assert go_json(dao.allocation(held)).endswith(b',"bindTime":1000000000000,"uuid":"%b"}' % held.uuid.encode())


def test_node_with_allocations_and_what_others_hold() -> None:
    cluster = Cluster(LEAVES)
    attributes = {"si/hostname": "h", "si/rackname": "r"}
    item = NodeItem(
        "n1", NodeAction.CREATE, attributes, capacity={"vcore": 10_000, "memory": 10}, occupied={"vcore": 500}
    )
    cluster.do(UpdateNodes((item,)))
    cluster.app("x", "root.b")
    cluster.ask("x", "k", vcore=9_000)
    for key, kind in (("f1", "default"), ("f2", "static")):
        foreign = AskItem(key, "", "default", {"memory": 5}, tags={"foreign": kind}, node_id="n1", priority=3)
        cluster.do(UpdateAllocations([foreign]))
    cluster.do(nodes(NodeAction.DRAIN_NODE, {"n1": None}))
    assert text(json_render.node(cluster.partition, cluster.the_node("n1"))) == (
        b'{"nodeID":"n1","hostName":"h","rackName":"r","attributes":'
        b'{"si/hostname":"h","si/node-partition":"[]default","si/rackname":"r"},'
        b'"capacity":{"memory":10,"vcore":10000},"allocated":{"vcore":9000},"occupied":{"memory":10,"vcore":500},'
        b'"available":{"vcore":500},"utilized":{"vcore":90},'
        b'"allocations":[{"allocationKey":"k","requestTime":1000000000000,"allocationTime":1000000000000,'
        b'"resource":{"vcore":9000},"priority":"0","nodeId":"n1","applicationId":"x","bindTime":1000000000000}],'
        b'"foreignAllocations":[{"allocationKey":"f1","allocationTags":{"foreign":"default"},'
        b'"allocationTime":1000000000000,"resource":{"memory":5},"priority":"3","nodeId":"n1","preemptable":true},'
        b'{"allocationKey":"f2","allocationTags":{"foreign":"static"},"allocationTime":1000000000000,'
        b'"resource":{"memory":5},"priority":"3","nodeId":"n1"}],"schedulable":false,"isReserved":false}'
    )
    assert dao.partition_info(INFO, cluster.partition).total_containers == 1


def test_a_node_without_attributes_has_its_partition() -> None:
    cluster = Cluster(LEAVES)
    cluster.node("n1", vcore=1)
    assert text(json_render.node(cluster.partition, cluster.the_node("n1"))) == (
        b'{"nodeID":"n1","attributes":{"si/node-partition":"[]default"},"capacity":{"vcore":1},"available":{"vcore":1},'
        b'"schedulable":true,"isReserved":false}'
    )


def test_long_lists_are_rendered_in_pieces_that_make_the_same_text() -> None:
    cluster = Cluster(LEAVES).having({"n1": {"vcore": 1_000}}, {"x": "root.b"})
    cluster.do(UpdateAllocations([AskItem(f"k{n}", "x", "default", {"vcore": 1}) for n in range(1_200)]))
    app = cluster.application("x")
    pieces = list(json_render.application(cluster.partition, app))
    assert len(pieces) > 10
    whole = b"".join(pieces)
    asks = go_json([dao.ask(wanted) for wanted in app.asks.values()])
    held = go_json([dao.allocation(each) for each in app.allocations.values()])
    assert len(app.asks) == 200
    assert b'"requests":' + asks + b',"allocations":' + held + b',"applicationState"' in whole


def test_objects_removed_during_a_rendering_are_left_out() -> None:
    cluster = Cluster(LEAVES)
    for name in ("n1", "n2", "n3"):
        cluster.node(name, vcore=1)
    partition = cluster.partition
    listing = json_render.listing(list(partition.nodes.values()), lambda node: json_render.node(partition, node))
    first = [next(listing) for _ in range(3)]
    cluster.do(nodes(NodeAction.DECOMISSION, {"n2": None}))
    whole = b"".join([*first, *listing])
    assert whole.count(b'"nodeID"') == 2
    assert b'"n2"' not in whole
    assert whole.endswith(b"}]\n")


def test_percent() -> None:
    used = {"a": 1, "b": 5, "c": 7, "d": -1, "e": 1 << 40}
    assert dao.percent(used, {"a": 3, "b": 0, "d": 4, "e": 1}) == {"a": 33, "b": 100, "d": 0, "e": dao.INT32_MAX}


def test_which_applications_are_active_or_completed() -> None:
    cluster = Cluster(LEAVES)
    cluster.app("x", "root.a")
    app = cluster.application("x")
    seen = {}
    for state in AppState:
        app.state = state
        seen[state.value] = (dao.is_active(app), dao.is_completed(app))
    app.state = AppState.NEW
    assert {name for name, (active, _) in seen.items() if active} == {
        "New", "Accepted", "Running", "Completing", "Failing", "Resuming",
    }  # fmt: skip
    assert {name for name, (_, completed) in seen.items() if completed} == {"Completed", "Failed", "Expired"}
