"""Small clusters for docs/explain.md: one for each reason, each refusal of preemption and each rule of preemption.

A whole core decides in each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from builders import SECOND_NS, nodes
from muster_core.config.queue_config import PreemptionConfig
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalOffer,
    SetSourceState,
    SourceState,
)
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    PredicateAnswer,
    PredicateAnswers,
    SetCallbacks,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import Outcome, PredicateRequested
from muster_core.model.reasons import NoPreemptionReason, ReasonCode
from muster_core.model.scopes import CallbackPolicy, Scope
from muster_core.model.states import QueueEvent
from muster_core.preemption import victim_search
from muster_runtime.go_json import go_json
from muster_si.constants import NODE_READY_ATTRIBUTE
from muster_state.state_folder import CALLBACKS_ABSENT_KEY, Pause, RmEntry, RmInfo
from muster_view.explain import asks
from muster_view.explain import node as explain_node
from muster_view.explain import queue as explain_queue
from preempting import Arena, item

GIB = 1 << 30


@dataclass
class Explained:
    """A cluster and the ask to explain."""

    cluster: Arena
    key: str = "ask"
    app: str = "app"
    info: RmInfo = field(default_factory=lambda: RmInfo("rm", life="RUNNING"))

    def json(self) -> dict[str, Any]:
        partition = self.cluster.partition
        state = RmEntry(self.info, self.cluster.core)
        wanted = self.cluster.application(self.app).asks[self.key]
        return decoded(asks.ask(state, partition, wanted, self.cluster.now_ns))


def decoded(value: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(go_json(value))
    return found


def cluster(*queues: str, preempts: PreemptionConfig | None = None, top: str = "") -> Arena:
    return Arena(f"{{name: root, submitacl: '*', {top}queues: [{', '.join(queues)}]}}", preemption=preempts)


def one_queue(queue: str = "{name: a}", *, preempts: PreemptionConfig | None = None, top: str = "") -> Arena:
    """A node of 8 vcores and 32 GiB, and an application of ann, who is in the group dev."""
    arena = cluster(queue, preempts=preempts, top=top)
    arena.node("n1", vcore=8_000, memory=32 * GIB)
    add(arena, "app", "root.a")
    return arena


def add(arena: Arena, app: str, queue: str, user: str = "ann") -> None:
    arena.do(UpdateApplications((AppItem(app, queue, "default", user, ("dev",)),)))


# ---- reasons -------------------------------------------------------------------------------------------------------


def waiting_for_turn() -> Explained:
    arena = one_queue()
    arena.core.apply(UpdateAllocations([item("app", "ask", preempts=False, vcore=1_000)]), arena.now_ns)
    return Explained(arena)


def no_nodes() -> Explained:
    arena = cluster("{name: a}")
    add(arena, "app", "root.a")
    arena.want("app", "ask", preempts=False, vcore=1_000)
    return Explained(arena)


def larger_than_any_node() -> Explained:
    arena = one_queue()
    arena.node("n2", vcore=4_000, memory=64 * GIB)
    arena.want("app", "ask", preempts=False, vcore=9_000, memory=48 * GIB)
    return Explained(arena)


def no_node_has_room() -> Explained:
    arena = one_queue()
    arena.want("app", "runs", vcore=6_000)
    arena.want("app", "ask", preempts=False, vcore=3_000)
    return Explained(arena)


def free_resources_scattered() -> Explained:
    arena = one_queue()
    arena.node("n2", vcore=2_000, memory=64 * GIB)
    arena.want("app", "ask", preempts=False, vcore=6_000, memory=48 * GIB)
    return Explained(arena)


def reserved_for_others() -> Explained:
    arena = one_queue()
    arena.want("app", "runs", vcore=6_000)
    arena.want("app", "large", preempts=False, vcore=7_000)
    arena.wait(3)
    arena.want("app", "ask", preempts=False, vcore=1_000)
    return Explained(arena)


def queue_max() -> Explained:
    arena = one_queue("{name: a, resources: {max: {vcore: 4}}}")
    arena.want("app", "runs", vcore=3_000)
    arena.want("app", "ask", preempts=False, vcore=2_000)
    return Explained(arena)


def queue_max_applications() -> Explained:
    arena = one_queue("{name: a, maxapplications: 1}")
    return second_application(arena)


def user_limit() -> Explained:
    arena = one_queue("{name: a, limits: [{users: ['*'], maxresources: {memory: 16Gi}}]}")
    arena.want("app", "runs", memory=12 * GIB)
    arena.want("app", "ask", preempts=False, memory=8 * GIB)
    return Explained(arena)


def group_limit() -> Explained:
    arena = one_queue(top="limits: [{groups: [dev], maxresources: {vcore: 2}}], ")
    arena.want("app", "ask", preempts=False, vcore=3_000)
    return Explained(arena)


def user_max_applications() -> Explained:
    return second_application(one_queue("{name: a, limits: [{users: [ann], maxapplications: 1}]}"))


def group_max_applications() -> Explained:
    limits = "[{groups: [ops], maxapplications: 5}, {groups: ['*'], maxapplications: 1}]"
    return second_application(one_queue(f"{{name: a, limits: {limits}}}"))


def second_application(arena: Arena) -> Explained:
    arena.want("app", "runs", vcore=1_000)
    add(arena, "second", "root.a")
    arena.want("second", "ask", preempts=False, vcore=1_000)
    return Explained(arena, app="second")


def required_node_unknown() -> Explained:
    arena = one_queue()
    arena.want("app", "ask", required_node="n7", vcore=1_000)
    return Explained(arena)


def required_node_full() -> Explained:
    arena = one_queue()
    arena.node("n2", vcore=8_000)
    arena.held("app", "runs", "n2", victim=False, vcore=7_500)
    arena.want("app", "ask", required_node="n2", vcore=1_000)
    return Explained(arena)


def gang(arena: Arena, app: str, total: int, *, style: str = "", timeout_ms: int = 0) -> None:
    """An application of ann's. Its placeholders want this many millivcores together."""
    asked = {"vcore": total}
    arena.do(
        UpdateApplications(
            (
                AppItem(
                    app,
                    "root.a",
                    "default",
                    "ann",
                    ("dev",),
                    execution_timeout_ms=timeout_ms,
                    placeholder_ask=asked,
                    gang_style=style,
                ),
            )
        )
    )


def member(
    arena: Arena, app: str, key: str, vcore: int, *, real: bool = False, group: str = "workers", node: str = ""
) -> Outcome:
    """One placeholder of a gang, or one real ask that may replace it."""
    asked = AskItem(key, app, "default", {"vcore": vcore}, task_group=group, placeholder=not real, node_id=node)
    return arena.do(UpdateAllocations([asked]))


def confirm(arena: Arena, app: str, key: str, termination: Termination = Termination.PLACEHOLDER_REPLACED) -> Outcome:
    """The RM confirms the release of a placeholder."""
    return arena.release(app, key, termination)


def gang_room() -> Explained:
    """One gang has started and needs 2 more vcores. There is no room for another gang of 4 beside it."""
    arena = one_queue("{name: a, resources: {max: {vcore: 8}}}")
    arena.want("app", "runs", vcore=1_000)
    gang(arena, "first", 4_000)
    member(arena, "first", "first-0", 2_000)
    gang(arena, "second", 4_000)
    member(arena, "second", "ask", 2_000)
    return Explained(arena, app="second")


def gang_forming() -> Explained:
    """Two of three placeholders are placed; the third fits on no node."""
    arena = one_queue()
    gang(arena, "spark", 9_000)
    for number in range(3):
        member(arena, "spark", f"placeholder-{number}", 3_000)
    member(arena, "spark", "ask", 3_000, real=True)
    return Explained(arena, app="spark")


def placeholder_leaving() -> Explained:
    arena = one_queue()
    gang(arena, "spark", 4_000)
    for number in range(2):
        member(arena, "spark", f"placeholder-{number}", 2_000)
    arena.wait(5)
    member(arena, "spark", "ask", 2_000, real=True)
    return Explained(arena, app="spark")


def placeholder_stuck() -> Explained:
    """The placeholder's node is draining, and the other node has too little room."""
    arena = one_queue()
    gang(arena, "spark", 4_000)
    member(arena, "spark", "placeholder-0", 4_000)
    arena.node("n2", vcore=3_000)
    arena.do(nodes(NodeAction.DRAIN_NODE, {"n1": None}))
    member(arena, "spark", "ask", 4_000, real=True)
    return Explained(arena, app="spark")


def queue_stopped() -> Explained:
    arena = one_queue()
    arena.want("app", "runs", vcore=8_000)
    arena.want("app", "ask", preempts=False, vcore=1_000)
    arena.partition.queue_tree.change_queue_state(arena.queue("root.a"), QueueEvent.STOP)
    return Explained(arena)


def rm_asked() -> Explained:
    """The RM has not answered a question for two seconds."""
    arena = one_queue()
    arena.do(SetCallbacks(CallbackPolicy(predicates=True, connected=True, since_ns=arena.now_ns)))
    arena.want("app", "ask", preempts=False, vcore=1_000)
    arena.wait(2)
    return Explained(arena)


def rm_turn() -> Explained:
    """The RM takes one proposal at a time on each node, and another ask's proposal is open."""
    arena = one_queue()
    policy = CallbackPolicy(predicates=True, connected=True, since_ns=arena.now_ns, alone=Scope.NODE)
    arena.do(SetCallbacks(policy))
    arena.want("app", "earlier", preempts=False, vcore=1_000)
    arena.want("app", "ask", preempts=False, vcore=1_000)
    return Explained(arena)


def refused_by_rm() -> Explained:
    """Two nodes have room, and the RM refuses both for the ask."""
    arena = one_queue()
    arena.node("n2", vcore=4_000)
    arena.do(SetCallbacks(CallbackPolicy(predicates=True, connected=True, since_ns=arena.now_ns)))
    out = arena.want("app", "ask", preempts=False, vcore=1_000)
    while questions := [fact.question for fact in out.facts if isinstance(fact, PredicateRequested)]:
        out = arena.do(
            PredicateAnswers([PredicateAnswer(each, False, "taint gpu-only is not tolerated") for each in questions])
        )
    return Explained(arena)


def rm_absent() -> Explained:
    explained = no_node_has_room()
    explained.info = RmInfo("rm", life="RUNNING", extra_config={CALLBACKS_ABSENT_KEY: "wait"})
    return explained


def rm_stopped() -> Explained:
    explained = no_node_has_room()
    explained.info = RmInfo("rm", life="STOPPED")
    return explained


def rm_held() -> Explained:
    explained = no_node_has_room()
    explained.info = RmInfo("rm", life="RUNNING", paused=True, paused_reason="network maintenance")
    return explained


def source_listing() -> Explained:
    explained = no_node_has_room()
    explained.info = RmInfo("rm", life="RUNNING", awaited=("vms",))
    return explained


REASONS: dict[ReasonCode, Callable[[], Explained]] = {
    ReasonCode.WAITING_FOR_TURN: waiting_for_turn,
    ReasonCode.NO_NODES: no_nodes,
    ReasonCode.LARGER_THAN_ANY_NODE: larger_than_any_node,
    ReasonCode.NO_NODE_HAS_ROOM: no_node_has_room,
    ReasonCode.FREE_RESOURCES_SCATTERED: free_resources_scattered,
    ReasonCode.QUEUE_MAX: queue_max,
    ReasonCode.QUEUE_MAX_APPLICATIONS: queue_max_applications,
    ReasonCode.USER_LIMIT: user_limit,
    ReasonCode.GROUP_LIMIT: group_limit,
    ReasonCode.USER_MAX_APPLICATIONS: user_max_applications,
    ReasonCode.GROUP_MAX_APPLICATIONS: group_max_applications,
    ReasonCode.REQUIRED_NODE_UNKNOWN: required_node_unknown,
    ReasonCode.REQUIRED_NODE_FULL: required_node_full,
    ReasonCode.RESERVED_FOR_OTHERS: reserved_for_others,
    ReasonCode.GANG_ROOM: gang_room,
    ReasonCode.GANG_FORMING: gang_forming,
    ReasonCode.PLACEHOLDER_LEAVING: placeholder_leaving,
    ReasonCode.PLACEHOLDER_STUCK: placeholder_stuck,
    ReasonCode.RM_ASKED: rm_asked,
    ReasonCode.RM_TURN: rm_turn,
    ReasonCode.REFUSED_BY_RM: refused_by_rm,
    ReasonCode.RM_ABSENT: rm_absent,
    ReasonCode.QUEUE_STOPPED: queue_stopped,
    ReasonCode.RM_STOPPED: rm_stopped,
    ReasonCode.RM_HELD: rm_held,
    ReasonCode.SOURCE_LISTING: source_listing,
}


# ---- why preemption does not help ----------------------------------------------------------------------------------

POOR = "{name: a, resources: {guaranteed: {vcore: 4}}}"
RICH = "{name: rich}"


def poor_and_rich(
    poor: str = POOR, *, preempts: PreemptionConfig | None = None, victims: int = 4, opted_out: int = 0
) -> Arena:
    """An application of root.rich has filled the node, and an application of root.a wants a part of it."""
    arena = cluster(poor, RICH, preempts=preempts)
    arena.node("n1", vcore=8_000)
    add(arena, "app", "root.a")
    add(arena, "others", "root.rich", "bob")
    for number in range(victims):
        arena.held("others", f"may-go-{number}", "n1", vcore=2_000)
    for number in range(opted_out):
        arena.held("others", f"opted-out-{number}", "n1", victim=False, vcore=2_000)
    return arena


def asked(arena: Arena, waits_s: float = 31, **what: Any) -> Explained:
    arena.want("app", "ask", **{"vcore": 2_000, **what})
    if waits_s:
        arena.wait(waits_s)
    return Explained(arena)


def limit() -> Explained:
    arena = poor_and_rich(
        "{name: a, resources: {guaranteed: {vcore: 4}}, limits: [{users: [ann], maxresources: {vcore: 1}}]}"
    )
    return asked(arena)


def not_needed() -> Explained:
    """The victims for the first daemon free enough for the second, too."""
    arena = cluster("{name: a}", RICH)
    arena.node("n1", vcore=8_000)
    add(arena, "app", "root.a")
    add(arena, "others", "root.rich", "bob")
    arena.held("others", "may-go", "n1", vcore=8_000)
    arena.want("app", "first", required_node="n1", vcore=5_000)
    arena.want("app", "ask", required_node="n1", vcore=2_000)
    return Explained(arena)


def too_many_ways() -> Explained:
    """The search may try five combinations only."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(victim_search, "STEPS_PER_NODE_MAX", 5)
        arena = cluster("{name: a, resources: {guaranteed: {vcore: 20}}}", RICH)
        arena.node("n1", vcore=40_000)
        add(arena, "app", "root.a")
        add(arena, "others", "root.rich", "bob")
        arena.want("others", "many", wanted=40, vcore=1_000)
        return asked(arena, vcore=9_000)


def nodes_claimed() -> Explained:
    """An older ask of a guaranteed queue has reserved the only node, and may not preempt."""
    arena = poor_and_rich()
    arena.want("app", "first", preempts=False, vcore=1_000)
    return asked(arena)


NOES: dict[NoPreemptionReason, Callable[[], Explained]] = {
    NoPreemptionReason.DISABLED: lambda: asked(poor_and_rich(preempts=PreemptionConfig(enabled=False))),
    NoPreemptionReason.NOT_ALLOWED: lambda: asked(poor_and_rich(), preempts=False),
    NoPreemptionReason.TOO_YOUNG: lambda: asked(poor_and_rich(), waits_s=0),
    NoPreemptionReason.NO_GUARANTEE: lambda: asked(poor_and_rich("{name: a}")),
    NoPreemptionReason.OVER_GUARANTEE: lambda: asked(poor_and_rich(), vcore=5_000),
    NoPreemptionReason.FENCED: lambda: asked(
        poor_and_rich("{name: a, resources: {guaranteed: {vcore: 4}}, properties: {preemption.policy: fence}}")
    ),
    NoPreemptionReason.NO_VICTIMS: lambda: asked(poor_and_rich(victims=0, opted_out=4)),
    NoPreemptionReason.NOT_ENOUGH_VICTIMS: lambda: asked(poor_and_rich(victims=1, opted_out=3), vcore=4_000),
    NoPreemptionReason.NODES_CLAIMED: nodes_claimed,
    NoPreemptionReason.LIMIT: limit,
    NoPreemptionReason.NOT_NEEDED: not_needed,
    NoPreemptionReason.TOO_MANY_WAYS: too_many_ways,
}


# ---- rules of preemption ---------------------------------------------------------------------------------------------


def told(arena: Arena) -> dict[str, Any]:
    """Return the explanation of the cluster's only preempted allocation."""
    partition = arena.partition
    (held,) = [
        held for app in partition.apps.values() for held in app.allocations.values() if held.preempted is not None
    ]
    return decoded(asks.preemption(partition, held, arena.now_ns))


def by_guarantee() -> dict[str, Any]:
    return told(asked(poor_and_rich()).cluster)


def by_priority() -> dict[str, Any]:
    arena = one_queue()
    arena.want("app", "low", vcore=8_000)
    add(arena, "urgent", "root.a", "bob")
    arena.want("urgent", "ask", priority=10, vcore=4_000)
    arena.wait(31)
    return told(arena)


def for_a_daemon() -> dict[str, Any]:
    arena = poor_and_rich(victims=4)
    arena.want("app", "daemon", required_node="n1", vcore=500)
    return told(arena)


def by_quota() -> dict[str, Any]:
    on = PreemptionConfig(quota_enabled=True)
    queue = "{{name: a, resources: {{max: {{vcore: {most}}}}}, properties: {{quota.preemption.delay: 1m}}}}"
    arena = one_queue(queue.format(most=8), preempts=on)
    for number in range(4):
        arena.want("app", f"k{number}", vcore=2_000)
    arena.reload(f"{{name: root, submitacl: '*', queues: [{queue.format(most=6)}]}}")
    arena.wait(61)
    return told(arena)


def wanted_back() -> dict[str, Any]:
    arena = one_queue()
    arena.want("app", "small", vcore=2_000)
    arena.want("app", "large", vcore=6_000)
    lent = ExternalOffer("o-17", "n1", {"vcore": 2_000})
    rest = ExternalOffer("o-18", "n1", {"vcore": 6_000})
    for offers in ((lent, rest), (replace(lent, revoked=True, grace_ns=60 * SECOND_NS),)):
        changes = tuple(ExternalChange(ExternalKind.OFFER, each.offer_id, each) for each in offers)
        arena.do(ApplyExternalChanges("default", "mesos", "1", changes))
    arena.wait(60)
    return told(arena)


RULES: dict[str, Callable[[], dict[str, Any]]] = {
    "GUARANTEE": by_guarantee,
    "PRIORITY": by_priority,
    "REQUIRED_NODE": for_a_daemon,
    "QUOTA": by_quota,
    "REVOKED": wanted_back,
}


def a_node() -> dict[str, Any]:
    """Return the explanation of the first cluster's node, with more pending asks."""
    arena = poor_and_rich()
    arena.want("app", "ask", vcore=2_000)
    arena.wait(31)
    add(arena, "more", "root.rich", "eve")
    arena.want("more", "elsewhere", required_node="n2", vcore=1_000)
    arena.want("more", "large", preempts=False, vcore=3_000)
    node = arena.partition.nodes["n1"]
    found: dict[str, Any] = json.loads(b"".join(explain_node.explain(arena.partition, node, arena.now_ns, pause=None)))
    return found


def one_after_another() -> dict[str, Any]:
    """An ask with three reasons in turn: no node, no node large enough, the queue's max."""
    arena = cluster("{name: a, resources: {max: {vcore: 4}}}")
    add(arena, "app", "root.a")
    arena.want("app", "ask", preempts=False, vcore=2_000)
    arena.wait(600)
    arena.node("small", vcore=1_000)
    arena.wait(90)
    add(arena, "others", "root.a", "bob")
    arena.do(nodes(NodeAction.CREATE_DRAIN, {"n1": {"vcore": 8_000}}))
    arena.held("others", "runs", "n1", vcore=3_000)
    arena.do(nodes(NodeAction.DRAIN_TO_SCHEDULABLE, {"n1": None}))
    arena.wait(180)
    arena.want("others", "runs-too", preempts=False, vcore=1_000)
    return Explained(arena).json()


def closed_nodes() -> dict[str, Any]:
    """Each node is closed for another reason; the offer of a node was revoked."""
    arena = closed_by_all()
    arena.want("app", "ask", preempts=False, vcore=1_000)
    arena.wait(60)
    arena.do(nodes(NodeAction.DRAIN_NODE, {"n2": None}))
    return Explained(arena).json()


def closed_by_all() -> Arena:
    arena = one_queue()
    for name in ("n2", "n3", "n4", "n5", "n6", "n7"):
        arena.node(name, vcore=8_000)
    arena.do(nodes(NodeAction.DRAIN_NODE, {"n1": None}))
    for name in ("n2", "n3"):
        arena.do(UpdateNodes((NodeItem(name, NodeAction.DRAIN_NODE, by_operator=True),)))
    arena.do(UpdateNodes((NodeItem("n4", NodeAction.UPDATE, {NODE_READY_ATTRIBUTE: "false"}),)))
    says(arena, "vms", ExternalNode("n5", schedulable=False), ExternalNode("n6", schedulable=False))
    says(arena, "slurm", ExternalNode("n7"))
    arena.do(SetSourceState("default", "slurm", "1", SourceState.STALE, drains=True))
    lent = ExternalOffer("o-17", "n8", {"vcore": 4_000})
    says(arena, "mesos", lent)
    says(arena, "mesos", replace(lent, revoked=True))
    return arena


def says(arena: Arena, source: str, *said: ExternalNode | ExternalOffer) -> None:
    kinds = {ExternalNode: ExternalKind.NODE, ExternalOffer: ExternalKind.OFFER}
    changes = tuple(
        ExternalChange(kinds[type(each)], each.offer_id if isinstance(each, ExternalOffer) else each.node_id, each)
        for each in said
    )
    arena.do(ApplyExternalChanges("default", source, "1", changes))
    arena.do(SetSourceState("default", source, "1", SourceState.LIVE))


def one_closed() -> dict[str, Any]:
    """An operator has drained one of two nodes, and the other is full."""
    arena = one_queue()
    arena.node("n2", vcore=8_000)
    arena.do(UpdateNodes((NodeItem("n1", NodeAction.DRAIN_NODE, by_operator=True),)))
    arena.want("app", "runs", vcore=6_000)
    arena.want("app", "ask", preempts=False, vcore=3_000)
    return Explained(arena).json()


def after_a_pause() -> dict[str, Any]:
    """The ask waited for room, an operator paused and resumed the RM, and the ask waits for room again."""
    found = no_node_has_room()
    arena = found.cluster
    arena.wait(600)
    paused_ns = arena.now_ns
    arena.wait(300)
    found.info.pauses = (Pause(paused_ns, arena.now_ns, "network maintenance"),)
    arena.wait(60)
    return found.json()


def with_victims() -> dict[str, Any]:
    """The ask of the first cluster with victims."""
    return asked(poor_and_rich()).json()


def a_queue() -> dict[str, Any]:
    arena = asked(poor_and_rich()).cluster
    return decoded(explain_queue.explain(arena.partition, arena.queue("root.a"), arena.now_ns, pause=None))


def a_gang() -> dict[str, Any]:
    """One placeholder was replaced, one is being replaced, one holds room, and one was removed."""
    arena = one_queue()
    gang(arena, "spark", 8_000, style="Hard", timeout_ms=600_000)
    for number in range(4):
        member(arena, "spark", f"placeholder-{number}", 2_000)
    arena.wait(5)
    for number in range(2):
        member(arena, "spark", f"worker-{number}", 1_500, real=True)
    arena.wait(2)
    confirm(arena, "spark", "placeholder-0")
    confirm(arena, "spark", "placeholder-3", Termination.STOPPED_BY_RM)
    return application(arena, "spark")


def application(arena: Arena, app: str) -> dict[str, Any]:
    state = RmEntry(RmInfo("rm", life="RUNNING"), arena.core)
    pieces = asks.application(state, arena.partition, arena.application(app), arena.now_ns)
    found: dict[str, Any] = json.loads(b"".join(pieces))
    return found


def of_a_gang() -> dict[str, Any]:
    """Return the gang's part of the explanation of :func:`a_gang`."""
    found = a_gang()
    return {name: found[name] for name in ("message", "gang", "replacements")}
