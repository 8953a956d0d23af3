"""Allocations, applications and queues of sources (docs/external-rules.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asking import Asking
from builders import allocations, ask
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalQueue,
    SourceState,
)
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import (
    EventDetail,
    NewAllocation,
    Outcome,
    RejectedApplication,
    RejectedAsk,
    ReleasedAllocation,
)
from muster_core.model.states import AppState
from muster_si.constants import APP_TAG_NAMESPACE_RESOURCE_QUOTA, FOREIGN, REQUIRED_NODE_TAG
from outside import Outside, forgets, says

LEAVES = "{name: root, submitacl: '*', queues: [{name: a}, {name: b, resources: {max: {vcore: 6m}}}]}"
TENANT = ExternalApplication("tenant", "root.b", "vic")
ALLOCATION, APPLICATION, QUEUE = ExternalKind.ALLOCATION, ExternalKind.APPLICATION, ExternalKind.QUEUE


def vm(key: str, vcore: int, app_id: str = "", node_id: str = "n") -> ExternalAllocation:
    return ExternalAllocation(key, node_id, {"vcore": vcore}, app_id)


@pytest.fixture
def cluster() -> Outside:
    return Outside(LEAVES).having({"n": {"vcore": 10}}, {"x": "root.a", "y": "root.b"})


def doubts(believed: ExternalAllocation) -> ApplyExternalChanges:
    change = ExternalChange(ALLOCATION, believed.key, believed, stale=True)
    return ApplyExternalChanges("default", "vms", "1", (change,))


def test_an_unreadable_allocation_closes_its_node_until_it_is_read(cluster: Outside) -> None:
    cluster.do(doubts(vm("v", 0)))
    assert not cluster.the_node("n").schedulable
    assert (cluster.entry("vms", ALLOCATION, "v").stale, free(cluster)) == (True, 10)
    cluster.check_folds()
    cluster.restart()
    assert not cluster.the_node("n").schedulable
    cluster.says("vms", vm("v", 4))
    assert (cluster.the_node("n").schedulable, free(cluster)) == (True, 6)
    cluster.do(doubts(vm("v", 0)))
    assert (cluster.the_node("n").schedulable, free(cluster)) == (False, 6), "what was known counts on"
    cluster.forgets("vms", vm("v", 4))
    assert (cluster.the_node("n").schedulable, free(cluster)) == (True, 10)
    cluster.check_folds()


def free(cluster: Outside, node_id: str = "n") -> int:
    node = cluster.the_node(node_id)
    return node.available[node.types.number("vcore")]


def used(cluster: Outside, path: str) -> int:
    queue = cluster.queue(path)
    return queue.allocated[queue.types.number("vcore")]


def maximum(cluster: Outside, path: str) -> dict[str, int] | None:
    queue = cluster.queue(path)
    return queue.by_name(queue.maximum)


def of_queues(out: Outcome) -> list[tuple[str, object, str]]:
    return [
        (each.object_id, each.resource, each.message) for each in out.events if each.detail is EventDetail.QUEUE_MAX
    ]


# ---- allocations -----------------------------------------------------------------------------------------------------


def test_a_vm_counts_on_its_node_without_a_message_to_the_rm(cluster: Outside) -> None:
    out = cluster.says("vms", vm("v", 3))
    assert out.facts == []
    assert [(event.detail, event.resource) for event in out.events] == [(EventDetail.NODE_OCCUPIED, {"vcore": 3})]
    assert free(cluster) == 7
    out = cluster.says("vms", vm("v", 4))
    assert (out.facts, free(cluster)) == ([], 6)
    out = cluster.forgets("vms", vm("v", 4))
    assert (out.facts, free(cluster)) == ([], 10)
    assert cluster.partition.foreign == {}


def test_the_end_of_a_vm_makes_room_for_waiting_asks(cluster: Outside) -> None:
    cluster.says("vms", vm("v", 8))
    cluster.ask("x", "k", vcore=5)
    assert cluster.placed("x") == {}
    assert allocations(cluster.forgets("vms", vm("v", 8))) == [("x", "k", "n")]


def test_a_vm_moves(cluster: Outside) -> None:
    cluster.node("m", vcore=10)
    cluster.says("vms", vm("v", 3, "tenant"), TENANT)
    out = cluster.says("vms", vm("v", 3, "tenant", "m"))
    assert out.facts == []
    assert (free(cluster), free(cluster, "m"), used(cluster, "root.b")) == (10, 7, 3)
    cluster.check_folds()


def test_a_vm_waits_for_its_node(cluster: Outside) -> None:
    cluster.says("vms", vm("v", 3, node_id="m"))
    entry = cluster.entry("vms", ALLOCATION, "v")
    assert entry.problem == "node m is not there"
    cluster.says("other", ExternalNode("m", {"vcore": 5}))
    assert (entry.problem, free(cluster, "m")) == ("", 2)
    cluster.forgets("other", ExternalNode("m"))
    assert entry.problem == "node m is not there"
    cluster.node("m", vcore=4)
    assert free(cluster, "m") == 1
    cluster.check_folds()


def test_an_rms_foreign_allocation_of_the_same_name_is_another_one(cluster: Outside) -> None:
    pod = AskItem("vms/v", "", "default", {"vcore": 2}, tags={FOREIGN: "static"}, node_id="n")
    cluster.says("vms", vm("v", 3))
    out = cluster.do(UpdateAllocations([pod]))
    assert [type(fact) for fact in out.facts] == [NewAllocation]
    assert free(cluster) == 5
    cluster.check_folds()
    release = ReleaseItem("default", "", "vms/v", Termination.STOPPED_BY_RM)
    cluster.do(UpdateAllocations((), [release]))
    assert free(cluster) == 7
    out = cluster.do(UpdateAllocations((), [release]))
    assert "nothing to release" in out.facts[0].message  # type: ignore[union-attr]
    assert free(cluster) == 7, "the RM cannot end a VM"
    cluster.check_folds()


# ---- applications ----------------------------------------------------------------------------------------------------


def test_a_vm_with_an_owner_counts_in_a_queue_and_for_a_user(cluster: Outside) -> None:
    out = cluster.says("vms", TENANT, vm("v", 4, "tenant"))
    assert out.facts == [], "no facts about applications of sources"
    assert (free(cluster), used(cluster, "root.b")) == (6, 4)
    app = cluster.application("tenant")
    assert (app.state, app.user, app.user_group) == (AppState.RUNNING, "vic", "")
    cluster.ask("y", "k", vcore=3)
    assert cluster.pending("y") == {"k": "QUEUE_MAX"}
    assert allocations(cluster.says("vms", vm("v", 3, "tenant"))) == [("y", "k", "n")]
    cluster.check_folds()


def test_it_counts_over_the_max_too_what_runs_runs(cluster: Outside) -> None:
    cluster.says("vms", TENANT, vm("v", 9, "tenant"))
    assert (used(cluster, "root.b"), maximum(cluster, "root.b")) == (9, {"vcore": 6})


@pytest.mark.parametrize("order", ["owner first", "owner last"])
def test_a_vm_counts_on_its_node_whenever_its_owner_comes(cluster: Outside, order: str) -> None:
    words = [lambda: cluster.says("vms", TENANT), lambda: cluster.says("vms", vm("v", 4, "tenant"))]
    for word in words if order == "owner first" else reversed(words):
        word()
        cluster.check_folds()
    assert (free(cluster), used(cluster, "root.b")) == (6, 4)
    out = cluster.forgets("vms", TENANT)
    assert out.facts == []
    assert (free(cluster), used(cluster, "root.b")) == (6, 0)
    entry = cluster.entry("vms", ALLOCATION, "v")
    assert entry.problem == "source vms has no application tenant there: it counts on its node only"
    cluster.says("vms", TENANT)
    assert (free(cluster), used(cluster, "root.b"), entry.problem) == (6, 4, "")
    cluster.check_folds()


def test_another_sources_application_is_not_its_owner(cluster: Outside) -> None:
    cluster.says("vms", TENANT)
    cluster.says("other", vm("v", 4, "tenant"))
    assert (free(cluster), used(cluster, "root.b")) == (6, 0)


def test_an_application_of_a_source_does_not_complete_by_itself(cluster: Outside) -> None:
    cluster.says("vms", TENANT, vm("v", 4, "tenant"))
    cluster.forgets("vms", vm("v", 4))
    cluster.wait(3600)
    assert cluster.application("tenant").state is AppState.RUNNING


def test_an_application_that_moves_to_another_queue_takes_its_vms_along(cluster: Outside) -> None:
    cluster.says("vms", TENANT, vm("v", 4, "tenant"))
    out = cluster.says("vms", ExternalApplication("tenant", "root.a", "vic", tags={"k": "v"}))
    assert out.facts == []
    assert (used(cluster, "root.a"), used(cluster, "root.b"), free(cluster)) == (4, 0, 6)
    cluster.says("vms", ExternalApplication("tenant", "root.a", "vic", tags={"k": "w"}))
    assert cluster.application("tenant").tags == {"k": "w"}
    cluster.check_folds()


def test_a_queue_is_made_where_there_may_be_one_else_it_is_waited_for(cluster: Outside) -> None:
    cluster.says("vms", ExternalApplication("t1", "projects.one"), ExternalApplication("t2", "root.b.below"))
    assert cluster.application("t1").queue.path == "root.projects.one"
    assert cluster.entry("vms", APPLICATION, "t2").problem == "queue root.b.below: root.b is a leaf"
    obstacles = cluster.reload("{name: root, submitacl: '*', queues: [{name: a}, {name: c, parent: true}]}")
    assert obstacles == ()
    cluster.says("vms", ExternalApplication("t3", "root.b"), vm("v", 1, "t3"))
    assert "draining" in cluster.entry("vms", APPLICATION, "t3").problem
    assert free(cluster) == 9
    cluster.reload(LEAVES)
    assert (cluster.entry("vms", APPLICATION, "t3").problem, used(cluster, "root.b")) == ("", 1)
    cluster.check_folds()


def test_the_rm_cannot_touch_an_application_of_a_source(cluster: Outside) -> None:
    cluster.says("vms", TENANT, vm("v", 4, "tenant"))
    new = UpdateApplications((AppItem("tenant", "root.a", "default", "al"),))
    (fact,) = cluster.do(new).facts
    assert isinstance(fact, RejectedApplication)
    assert fact.reason.endswith("but application already existed (source vms brought it)")
    (fact,) = cluster.do(UpdateApplications(remove=(("default", "tenant"),))).facts
    assert fact == RejectedApplication("tenant", "application tenant was brought by source vms, which alone ends it")
    (fact,) = cluster.ask("tenant", "k", vcore=1).facts
    assert isinstance(fact, RejectedAsk)
    assert "brought by source vms" in fact.reason
    (fact,) = cluster.do(UpdateAllocations([replace(ask("tenant", "k", vcore=1), node_id="n")])).facts
    assert isinstance(fact, RejectedAsk)
    (fact,) = cluster.release("tenant", "v").facts
    assert isinstance(fact, ReleasedAllocation)
    assert fact.message.endswith("nothing is released")
    assert used(cluster, "root.b") == 4


def test_an_id_that_the_rm_has_is_the_rms_until_it_is_free(cluster: Outside) -> None:
    cluster.says("vms", ExternalApplication("x", "root.b"), vm("v", 2, "x"))
    entry = cluster.entry("vms", APPLICATION, "x")
    assert entry.problem == "there is an application x of the resource manager"
    assert (free(cluster), used(cluster, "root.b")) == (8, 0)
    cluster.do(UpdateApplications(remove=(("default", "x"),)))
    assert (entry.problem, cluster.application("x").source, used(cluster, "root.b")) == ("", "vms", 2)
    cluster.check_folds()


def test_an_id_is_free_when_the_rms_application_has_completed(cluster: Outside) -> None:
    cluster.ask("x", "k", vcore=1)
    cluster.says("vms", ExternalApplication("x", "root.b"))
    cluster.release("x", "k")
    cluster.wait(31)
    assert cluster.application("x").source == "vms"
    assert [app_id for app_id in cluster.partition.apps if app_id.startswith("x-")], "the RM's stays visible"
    cluster.check_folds()


def test_of_two_sources_with_one_id_the_first_keeps_it(cluster: Outside) -> None:
    cluster.says("b", ExternalApplication("tenant", "root.a"))
    cluster.says("a", ExternalApplication("tenant", "root.b"))
    assert cluster.application("tenant").source == "b"
    assert cluster.entry("a", APPLICATION, "tenant").problem == "there is an application tenant of source b"
    cluster.forgets("b", ExternalApplication("tenant", ""))
    assert cluster.application("tenant").source == "a"
    assert cluster.entry("a", APPLICATION, "tenant").problem == ""


def test_a_vm_is_never_preempted() -> None:
    cluster = Outside(
        "{name: root, submitacl: '*', queues: [{name: a, properties: {preemption.delay: 1s}}, {name: rich},"
        " {name: poor, resources: {guaranteed: {vcore: 9}}, properties: {preemption.delay: 1s}}]}",
        partition="preemption: {enabled: true},",
    )
    cluster.node("n", vcore=10)
    cluster.says("vms", ExternalApplication("tenant", "root.rich"), vm("v", 8, "tenant"))
    cluster.app("x", "root.poor")
    cluster.do(UpdateAllocations([replace(ask("x", "k", vcore=5), allow_preempt_other=True)]))
    for _ in range(5):
        out = cluster.wait(30)
        assert not [fact for fact in out.facts if isinstance(fact, ReleasedAllocation)]
    assert cluster.placed("x") == {}


# ---- queues ----------------------------------------------------------------------------------------------------------


def test_of_two_quotas_the_smaller_holds_type_by_type(cluster: Outside) -> None:
    out = cluster.says("quota", ExternalQueue("root.B", {"vcore": 4, "memory": 5}))
    words = "vcore: the configuration says 6, source quota says 4: the smaller counts"
    assert of_queues(out) == [("root.b", {"vcore": 4, "memory": 5}, words)]
    cluster.ask("y", "k", vcore=5)
    assert cluster.pending("y") == {"k": "QUEUE_MAX"}
    out = cluster.says("quota", ExternalQueue("root.B", {"vcore": 5}))
    assert allocations(out) == [("y", "k", "n")], "it grows: who waits there is looked at"
    cluster.says("other", ExternalQueue("root.b", {"vcore": 3}), ExternalQueue("root.B", {"vcore": 9}))
    assert (maximum(cluster, "root.b"), cluster.queue("root.b").sources) == ({"vcore": 3}, ("other", "quota"))
    cluster.check_folds()
    cluster.forgets("other", ExternalQueue("root.b", {}), ExternalQueue("root.B", {}))
    cluster.forgets("quota", ExternalQueue("root.B", {}))
    assert (maximum(cluster, "root.b"), cluster.queue("root.b").sources) == ({"vcore": 6}, ())
    cluster.check_folds()


def test_a_quota_below_a_gang_starts_its_clock_and_the_end_of_the_quota_stops_it(cluster: Outside) -> None:
    asked = {"vcore": 5}
    cluster.do(
        UpdateApplications((AppItem("g", "root.b", "default", "ann", placeholder_ask=asked, gang_style="Hard"),))
    )
    gang = cluster.application("g").gang
    assert gang is not None
    for vcore, runs in ((4, True), (3, True), (5, False), (4, True)):
        cluster.says("quota", ExternalQueue("root.b", {"vcore": vcore}))
        assert (gang.deadline_ns > 0) == (gang.too_large_since_ns > 0) == runs
        cluster.check_folds()
    cluster.forgets("quota", ExternalQueue("root.b", {}))
    assert gang.deadline_ns == gang.too_large_since_ns == 0
    cluster.says("quota", ExternalQueue("root.b", {"vcore": 4}))
    cluster.restart()
    cluster.wait(15 * 60)
    assert cluster.application("g").state is AppState.FAILED
    cluster.check_folds()


def test_a_quota_of_zero_is_zero(cluster: Outside) -> None:
    cluster.says("quota", ExternalQueue("root.a", {"vcore": 0}))
    cluster.ask("x", "k", vcore=1)
    assert cluster.pending("x") == {"k": "QUEUE_MAX"}
    cluster.check_folds()
    cluster.restart()
    cluster.do()
    assert cluster.pending("x") == {"k": "QUEUE_MAX"}


def test_a_quota_outlives_another_configuration(cluster: Outside) -> None:
    cluster.says("quota", ExternalQueue("root.b", {"vcore": 4}), ExternalQueue("root.c", {"vcore": 1}))
    assert cluster.entry("quota", QUEUE, "root.c").problem == "queue root.c is not there"
    cluster.restart()
    cluster.reload(
        "{name: root, submitacl: '*', queues: [{name: a}, {name: b, resources: {max: {vcore: 2m}}}, {name: c}]}"
    )
    words = "vcore: the configuration says 2, source quota says 4: the smaller counts"
    assert of_queues(cluster.outcomes[-1]) == [("root.b", {"vcore": 2}, words), ("root.c", {"vcore": 1}, "")]
    assert maximum(cluster, "root.b") == {"vcore": 2}
    assert maximum(cluster, "root.c") == {"vcore": 1}
    assert cluster.entry("quota", QUEUE, "root.c").problem == ""
    cluster.reload("{name: root, submitacl: '*', queues: [{name: a}, {name: b}]}")
    assert maximum(cluster, "root.b") == {"vcore": 4}
    cluster.wait(11)
    assert cluster.entry("quota", QUEUE, "root.c").problem == "queue root.c is not there"
    cluster.check_folds()


def test_a_quota_holds_for_a_dynamic_queue_from_its_beginning(cluster: Outside) -> None:
    cluster.says("quota", ExternalQueue("root.made", {"vcore": 2}))
    cluster.reload(LEAVES, partition="placementrules: [{name: provided, create: true}],")
    cluster.app("z", "root.made")
    cluster.ask("z", "k", vcore=3)
    assert cluster.pending("z") == {"k": "QUEUE_MAX"}
    cluster.check_folds()


def test_no_source_sets_the_max_of_root(cluster: Outside) -> None:
    cluster.says("quota", ExternalQueue("root", {"vcore": 1}))
    assert cluster.entry("quota", QUEUE, "root").problem.startswith("the max of root is the capacity of the nodes")
    cluster.ask("x", "k", vcore=5)
    assert cluster.placed("x") == {"k": "n"}


def test_a_lost_source_quotas_still_hold(cluster: Outside) -> None:
    cluster.says("quota", ExternalQueue("root.b", {"vcore": 4}))
    cluster.sets("quota", SourceState.STALE)
    assert maximum(cluster, "root.b") == {"vcore": 4}


def test_after_a_restart_a_quota_is_what_its_source_said_not_what_counted() -> None:
    cluster = Outside(LEAVES, partition="placementrules: [{name: provided, create: true}],")
    cluster.says("quota", ExternalQueue("root.made", {"vcore": 8}))
    cluster.app("z1", "root.made", **{APP_TAG_NAMESPACE_RESOURCE_QUOTA: '{"resources": {"vcore": {"value": 6}}}'})
    assert maximum(cluster, "root.made") == {"vcore": 6}
    cluster.check_folds()
    cluster.restart()
    cluster.app("z2", "root.made", **{APP_TAG_NAMESPACE_RESOURCE_QUOTA: '{"resources": {"vcore": {"value": 9}}}'})
    assert maximum(cluster, "root.made") == {"vcore": 8}
    cluster.check_folds()


def test_a_vm_is_no_victim_for_a_daemon_even_if_opted_out_allocations_are() -> None:
    cluster = Outside(LEAVES, partition="preemption: {enabled: true, optout: last},").having(
        {"n": {"vcore": 10}}, {"x": "root.a"}
    )
    daemon = replace(ask("x", "daemon", vcore=4, priority=5), tags={REQUIRED_NODE_TAG: "n"}, allow_preempt_other=True)
    cluster.says("vms", ExternalApplication("tenant", "root.a"), vm("v", 8, "tenant"))
    cluster.do(UpdateAllocations([daemon]))
    cluster.wait(60)
    assert not any(held.releasing for held in cluster.application("tenant").allocations.values())
    cluster.forgets("vms", vm("v", 8))
    assert cluster.placed("x") == {"daemon": "n"}


@pytest.mark.parametrize(
    "word",
    [
        vm("v", 8),
        ExternalNode("n", {"vcore": 2}),
        ExternalNode("n", occupied={"vcore": 8}),
        ExternalQueue("root.a", {"vcore": 2}),
    ],
)
def test_a_proposal_is_not_placed_where_a_source_took_the_room(word: ExternalObject) -> None:
    """A proposal is booked and only needs a yes, but a host must not be overcommitted knowingly."""
    cluster = Asking().having({"n": {"vcore": 10}}, {"x": "root.a"})
    cluster.ask("x", "small", vcore=1)
    cluster.ask("x", "large", vcore=4)
    assert cluster.open == [("small", "n"), ("large", "n")]
    cluster.do(says("vms", word))
    assert allocations(cluster.yes()) == [("x", "small", "n")], "the latest goes first, as few as must"
    assert [*cluster.pending("x")] == ["large"]
    cluster.do(forgets("vms", word))
    assert allocations(cluster.yes()) == [("x", "large", "n")]


def test_an_ask_that_was_refused_on_a_node_tries_it_again_when_the_rm_gives_the_node_up_and_a_source_keeps_it() -> None:
    cluster = Asking()
    cluster.do(says("vms", ExternalNode("n", {"vcore": 10})))
    cluster.node("n", vcore=10)
    cluster.app("x", "root.a")
    cluster.ask("x", "k", vcore=4)
    cluster.no()
    assert cluster.open == []
    cluster.do(UpdateNodes((NodeItem("n", NodeAction.DECOMISSION),)))
    assert cluster.open == [("k", "n")]
