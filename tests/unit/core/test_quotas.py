"""Quotas of a resource manager: what is over one is refused when it comes, and accepted once there is room."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from builders import Cluster, ask, nodes
from muster_core import invariants
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    ReleaseItem,
    SetQuotas,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import (
    AcceptedApplication,
    AcceptedNode,
    Outcome,
    RejectedApplication,
    RejectedAsk,
    RejectedNode,
)
from muster_core.model.quotas import QuotaKind, QuotaLimits, text_bytes
from muster_core.model.states import APP_TERMINAL

TREE = "{name: root, submitacl: '*', queues: [{name: a}, {name: users, parent: true}]}"
DYNAMIC = "placementrules: [{name: provided, create: true}],"


def limited(partition: str = "", **limits: int) -> Cluster:
    cluster = Cluster(TREE, partition=partition)
    cluster.do(SetQuotas(QuotaLimits(**limits)))
    return cluster


def reason_of(out: Outcome) -> str:
    """The one rejection's reason."""
    (found,) = (each.reason for each in out.facts if isinstance(each, RejectedApplication | RejectedAsk | RejectedNode))
    return found


def refused_of(cluster: Cluster) -> dict[QuotaKind, int]:
    return cluster.core.quotas.take_refused()


def test_a_node_over_the_quota_is_rejected_until_one_leaves() -> None:
    cluster = limited(nodes=2).having({"n1": {"vcore": 1}, "n2": {"vcore": 1}})
    out = cluster.node("n3", vcore=1)
    expected = "node n3: quota nodes: 3 with this one, expected at most 2 for this resource manager"
    assert reason_of(out) == expected
    assert refused_of(cluster) == {QuotaKind.NODES: 1}
    assert AcceptedNode("n1") in cluster.do(nodes(NodeAction.UPDATE, {"n1": {"vcore": 9}})).facts
    cluster.do(nodes(NodeAction.DECOMISSION, {"n1": None}))
    assert AcceptedNode("n3") in cluster.node("n3", vcore=1).facts


def test_a_dynamic_queue_over_the_quota_rejects_its_application() -> None:
    cluster = limited(DYNAMIC, queues=5)  # root, a, users are there
    cluster.app("one", "root.users.x.y")
    assert len(cluster.partition.queues) == 5
    out = cluster.app("two", "root.users.z")
    assert reason_of(out) == (
        "failed to place application two: queue 'root.users.z': quota queues: 6 with this one, "
        "expected at most 5 for this resource manager"
    )
    assert AcceptedApplication("three") in cluster.app("three", "root.users.x.y").facts  # the queue is there
    for app_id in ("one", "three"):
        cluster.do(UpdateApplications((), (("default", app_id),)))
    cluster.wait(60)  # empty dynamic queues leave
    assert AcceptedApplication("two") in cluster.app("two", "root.users.z").facts


def test_an_application_that_must_be_accepted_goes_to_the_recovery_queue_without_room_for_its_own() -> None:
    cluster = limited(DYNAMIC, queues=3)
    cluster.app("forced", "root.users.z", **{"application.create.force": "true"})
    assert cluster.application("forced").queue.path == "root.@recovery@"


def test_a_configuration_with_more_queues_is_refused_as_a_whole() -> None:
    cluster = limited(queues=4)
    names = ", ".join(f"{{name: q{number}}}" for number in range(5))
    (obstacle,) = cluster.reload(f"{{name: root, submitacl: '*', queues: [{names}]}}")
    assert obstacle == ("quota queues: 6 with this configuration, expected at most 4 for this resource manager")
    assert sorted(cluster.partition.queues) == ["root", "root.a", "root.users"]
    assert cluster.reload("{name: root, submitacl: '*', queues: [{name: b}, {name: c}, {name: d}]}") == ()


def test_live_applications_over_the_quota_are_rejected() -> None:
    cluster = limited(applications=2)
    cluster.app("one", "root.a")
    cluster.app("two", "root.a")
    expected = "application three: quota applications: 3 with this one, expected at most 2 for this resource manager"
    assert reason_of(cluster.app("three", "root.a")) == expected
    forced = cluster.app("four", "root.a", **{"application.create.force": "true"})
    assert "quota applications: 3" in reason_of(forced)
    cluster.do(UpdateApplications((), (("default", "one"),)))
    assert AcceptedApplication("three") in cluster.app("three", "root.a").facts


def test_finished_applications_leave_for_new_ones_the_oldest_first() -> None:
    cluster = limited(applications=3).having({"n1": {"vcore": 10}})
    for app_id in ("one", "two"):
        cluster.app(app_id, "root.a")
        cluster.ask(app_id, "key", vcore=1)
        cluster.release(app_id, "key")
        cluster.wait(40)
        assert cluster.application(app_id).state in APP_TERMINAL
    cluster.app("three", "root.a")
    assert AcceptedApplication("four") in cluster.app("four", "root.a").facts
    assert sorted(cluster.partition.apps) == ["four", "three", "two"]
    assert AcceptedApplication("five") in cluster.app("five", "root.a").facts
    assert "quota applications" in reason_of(cluster.app("six", "root.a"))


def test_a_finished_application_whose_id_is_used_again_leaves_in_its_turn() -> None:
    cluster = limited(applications=4).having({"n1": {"vcore": 10}})

    def finish(app_id: str) -> set[str]:
        """Returns the applications that are kept, without the times in renamed ones."""
        cluster.app(app_id, "root.a")
        cluster.ask(app_id, "key", vcore=1)
        cluster.release(app_id, "key")
        cluster.wait(40)
        return {each.rpartition("-")[0] + "-" if "-" in each else each for each in cluster.partition.apps}

    for app_id in ("one", "two", "three", "four"):
        finish(app_id)
    assert finish("five") == {"two", "three", "four", "five"}
    assert finish("four") == {"three", "four-", "five", "four"}
    assert finish("six") == {"four-", "five", "four", "six"}
    assert finish("seven") == {"five", "four", "six", "seven"}
    assert not refused_of(cluster)


def test_a_user_more_than_the_quota_is_rejected_and_the_others_go_on() -> None:
    cluster = limited(users=2)
    cluster.app("one", "root.a", user="alice")
    cluster.app("two", "root.a", user="bob")
    expected = "application three: quota users: 3 with this one, expected at most 2 for this resource manager"
    assert reason_of(cluster.app("three", "root.a", user="carol")) == expected
    assert AcceptedApplication("four") in cluster.app("four", "root.a", user="bob").facts
    cluster.do(UpdateApplications((), (("default", "one"),)))
    assert AcceptedApplication("three") in cluster.app("three", "root.a", user="carol").facts


def test_pending_asks_count_with_their_repeats_until_they_are_placed() -> None:
    cluster = limited(asks=5).having({"n1": {"vcore": 2}}, {"app": "root.a"})
    cluster.ask("app", "many", wanted=4, vcore=1)  # two are placed
    cluster.ask("app", "more", wanted=3, vcore=1)
    expected = "allocation last: quota asks: 6 with this one, expected at most 5 for this resource manager"
    assert reason_of(cluster.ask("app", "last", vcore=1)) == expected
    # The same ask with another priority asks for no more; with more repeats it does.
    assert not cluster.ask("app", "more", wanted=3, priority=2, vcore=1).facts
    assert "quota asks: 6" in reason_of(cluster.ask("app", "more", wanted=4, vcore=1))
    cluster.release("app", "more")
    assert not cluster.ask("app", "last", vcore=1).facts


def test_allocations_and_what_may_become_one_stay_below_the_quota() -> None:
    cluster = limited(allocations=3).having({"n1": {"vcore": 2}}, {"app": "root.a"})
    cluster.ask("app", "two", wanted=2, vcore=1)
    cluster.ask("app", "waits", vcore=1)
    expected = "allocation more: quota allocations: 4 with this one, expected at most 3 for this resource manager"
    assert reason_of(cluster.ask("app", "more", vcore=1)) == expected
    running = replace(ask("app", "running", vcore=1), node_id="n1")
    out = cluster.do(UpdateAllocations([running]))
    assert reason_of(out) == expected.replace("more", "running", 1)
    foreign = replace(running, app_id="", tags={"foreign": "static"})
    assert "quota allocations: 4" in reason_of(cluster.do(UpdateAllocations([foreign])))
    # An allocation that was asked for, and one that is reported again, are no more.
    assert not rejected(cluster.do(UpdateAllocations([replace(ask("app", "waits", vcore=1), node_id="n1")])))
    assert not rejected(cluster.do(UpdateAllocations([replace(ask("app", "waits", vcore=2), node_id="n1")])))
    cluster.release("app", "two")
    assert not rejected(cluster.do(UpdateAllocations([running, foreign])))


def rejected(out: Outcome) -> list[str]:
    return [each.reason for each in out.facts if isinstance(each, RejectedAsk)]


def test_tags_and_attributes_count_in_bytes() -> None:
    cluster = limited(text_bytes=100).having({"n1": {"vcore": 4}})
    cluster.app("app", "root.a", tag="ä" * 10)  # 3 + 20
    with_tags = replace(ask("app", "one", wanted=2, vcore=3), tags={"k": "v" * 29})
    cluster.do(UpdateAllocations([with_tags]))  # one runs, one waits: 60 in both
    assert cluster.partition.text_bytes == 83
    assert reason_of(cluster.do(UpdateAllocations([replace(with_tags, key="two")]))) == (
        "allocation two: quota text_bytes: 143 with this one, expected at most 100 for this resource manager"
    )
    assert "quota text_bytes: 103" in reason_of(
        cluster.do(UpdateAllocations([replace(with_tags, tags={"k": "v" * 39})]))
    )
    node = NodeItem("n2", NodeAction.CREATE, capacity={"vcore": 1}, attributes={"rack": "r" * 20})
    assert "node n2: quota text_bytes: 107" in reason_of(cluster.do(UpdateNodes((node,))))
    assert not cluster.do(UpdateAllocations([replace(with_tags, tags={})])).facts
    assert AcceptedNode("n2") in cluster.do(UpdateNodes((node,))).facts
    longer = replace(node, action=NodeAction.UPDATE, attributes={"rack": "r" * 99})
    assert "quota text_bytes" in reason_of(cluster.do(UpdateNodes((longer,))))


def test_a_lower_limit_takes_nothing_away() -> None:
    cluster = limited().having({"n1": {"vcore": 1}, "n2": {"vcore": 1}}, {"app": "root.a"})
    cluster.ask("app", "key", wanted=5, vcore=1)
    cluster.do(SetQuotas(QuotaLimits(nodes=1, asks=1, allocations=1, applications=1, users=1, queues=1)))
    assert len(cluster.partition.nodes) == 2
    assert len(cluster.placed("app")) == 2
    assert "quota nodes: 3" in reason_of(cluster.node("n3", vcore=1))
    cluster.do(SetQuotas(QuotaLimits()))
    assert AcceptedNode("n3") in cluster.node("n3", vcore=1).facts
    assert len(cluster.placed("app")) == 3


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_ever_over_its_quota(seed: int) -> None:
    dice = random.Random(seed)
    limits = QuotaLimits(nodes=4, queues=8, applications=6, asks=12, allocations=20, users=3, text_bytes=400)
    cluster = Cluster(TREE, partition=DYNAMIC)
    cluster.do(SetQuotas(limits))
    core = cluster.core
    tags = [{}, {}, {"t": "x" * 20}, {"long": "y" * 150}]
    for _ in range(150):
        app_id, node_id, key = f"app{dice.randrange(9)}", f"n{dice.randrange(6)}", f"k{dice.randrange(12)}"
        item = AskItem(
            key,
            app_id,
            "default",
            {"vcore": dice.randint(1, 3)},
            wanted=dice.randint(1, 6),
            tags=dict(dice.choice(tags)),
        )
        match dice.randrange(8):
            case 0:
                queue = f"root.users.q{dice.randrange(5)}.r{dice.randrange(3)}"
                new = AppItem(app_id, queue, "default", f"user{dice.randrange(5)}", tags=dict(dice.choice(tags)))
                cluster.do(UpdateApplications((new,)))
            case 1:
                capacity = {"vcore": dice.randint(1, 8)}
                cluster.do(
                    UpdateNodes((NodeItem(node_id, NodeAction.CREATE, dict(dice.choice(tags)), capacity=capacity),))
                )
            case 2:
                cluster.do(UpdateNodes((NodeItem(node_id, NodeAction.UPDATE, dict(dice.choice(tags))),)))
            case 3 | 4:
                cluster.do(UpdateAllocations([item]))
            case 5:
                cluster.do(UpdateAllocations([replace(item, wanted=1, node_id=node_id)]))
            case 6:
                how = dice.choice([Termination.STOPPED_BY_RM, Termination.SCHEDULING_FAILED_ON_RM])
                cluster.do(UpdateAllocations((), [ReleaseItem("default", app_id, key, how)]))
            case 7:
                if dice.random() < 0.5:
                    cluster.do(UpdateApplications((), (("default", app_id),)))
                else:
                    cluster.wait(dice.choice([1, 40]))
        invariants.check(core)
        for kind in QuotaKind:
            if kind is not QuotaKind.ASKS:  # an allocation that failed on the RM is asked for again
                assert core.quotas.used(kind) <= core.quotas.limit(kind), kind
    assert refused_of(cluster), "the life reached no quota"


def test_bytes_of_texts_are_those_of_utf_8() -> None:
    assert text_bytes({"aä": "€", "": "x"}) == 3 + 3 + 1
    assert text_bytes({"k": "\ud800"}) == 4  # a lone surrogate, from a state of an older version


# What mutants of the quotas showed to be untested.


def test_what_adds_nothing_is_accepted_also_over_a_quota_that_was_lowered() -> None:
    cluster = limited().having({"n1": {"vcore": 1}, "n2": {"vcore": 1}})
    quotas = cluster.core.quotas
    cluster.do(SetQuotas(QuotaLimits(nodes=1)))
    assert quotas.problem(QuotaKind.NODES, 0) == ""
    assert quotas.problem(QuotaKind.NODES, -1) == ""
    assert refused_of(cluster) == {}
    assert quotas.problem(QuotaKind.NODES, 1)
    assert refused_of(cluster) == {QuotaKind.NODES: 1}


def test_a_quota_of_one_is_a_quota() -> None:
    cluster = limited(asks=1, allocations=1, text_bytes=1)
    quotas = cluster.core.quotas
    assert quotas.asks_problem(1, 1) == ""
    assert quotas.asks_problem(2, 0) == "quota asks: 2 with this one, expected at most 1 for this resource manager"
    assert (
        quotas.asks_problem(0, 2) == "quota text_bytes: 2 with this one, expected at most 1 for this resource manager"
    )
    assert refused_of(cluster) == {QuotaKind.ASKS: 1, QuotaKind.TEXT_BYTES: 1}
    cluster = limited(allocations=1)
    assert cluster.core.quotas.asks_problem(2, 0).startswith("quota allocations: 2 with this one")


def test_each_refused_configuration_counts() -> None:
    cluster = limited(queues=2)
    quotas = cluster.core.quotas
    assert quotas.queues_problem(2) == ""
    for wanted in (3, 4):
        expected = f"quota queues: {wanted} with this configuration, expected at most 2 for this resource manager"
        assert quotas.queues_problem(wanted) == expected
    assert refused_of(cluster) == {QuotaKind.QUEUES: 2}
    assert refused_of(cluster) == {}
