"""The sentences that explain why something waits: a cluster for each cause, and its sentence.

(One for each reason is in docs/explain.md; here are the causes behind them.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders import SECOND_NS, nodes
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalChange,
    ExternalNode,
    ExternalOffer,
    ExternalPool,
    SetSourceState,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.model.commands import NodeAction
from muster_core.model.cordons import Cordon, CordonKind
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.states import QueueEvent
from muster_rest.shapes.explain import NowDao
from muster_state.state_folder import RmInfo
from muster_view.explain import current_state
from muster_view.explain import node as explain_node
from muster_view.explain import queue as explain_queue
from muster_view.explain.current_state import CurrentState
from preempting import Arena
from unit.view import explained
from unit.view.explained import GIB, Explained, add, application, cluster, decoded, one_queue


def say(arena: Arena, source: str, *said: Any) -> None:
    """Puts these objects as a source does."""
    arena.do(SetSourceState("default", source, "1", SourceState.LIVE))
    changes = tuple(ExternalChange(kind_of(each), id_of(each), each) for each in said)
    arena.do(ApplyExternalChanges("default", source, "1", changes))


def closed_host() -> Explained:
    """A node of the RM that the VMs' manager closed."""
    arena = one_queue()
    say(arena, "vms", ExternalNode("n1", schedulable=False))
    arena.want("app", "ask", preempts=False, vcore=1_000)
    arena.wait(180)
    return Explained(arena)


def lent_out() -> Explained:
    """A node that a framework offers whole, with a part revoked."""
    arena = cluster("{name: a}")
    add(arena, "app", "root.a")
    offers = [ExternalOffer("o-1", "n1", {"vcore": 4_000}), ExternalOffer("o-2", "n1", {"vcore": 4_000})]
    say(arena, "mesos", *offers)
    arena.want("app", "runs", preempts=False, vcore=3_000)
    arena.want("app", "runs-too", preempts=False, vcore=3_000)
    say(arena, "mesos", replace(offers[0], revoked=True, grace_ns=60 * SECOND_NS))
    arena.want("app", "ask", preempts=False, vcore=6_000)
    arena.wait(45)
    return Explained(arena)


def pool_used_up() -> Explained:
    arena = one_queue()
    say(arena, "flex", ExternalPool("license", 4))
    arena.want("app", "runs", license=3)
    arena.want("app", "ask", preempts=False, license=2)
    arena.wait(7_260)
    return Explained(arena)


def user_quota() -> Explained:
    found = explained.user_limit()
    found.cluster.wait(180)
    return found


def placeholders() -> Explained:
    found = explained.gang_forming()
    found.cluster.wait(180)
    return found


def reserved() -> Explained:
    found = explained.reserved_for_others()
    found.cluster.wait(180)
    return found


def fenced() -> Explained:
    return explained.NOES[explained.NoPreemptionReason.FENCED]()


def lower_priority() -> Explained:
    """Two asks for the same room: the one with the higher priority gets it."""
    arena = one_queue()
    arena.want("app", "urgent", preempts=False, priority=10, vcore=8_000)
    arena.want("app", "ask", preempts=False, vcore=8_000)
    arena.wait(60)
    return Explained(arena)


def others_first() -> Explained:
    """In a fair queue, the application with less goes first."""
    arena = one_queue("{name: a, properties: {application.sort.policy: fair}}")
    add(arena, "less", "root.a", "bob")
    arena.want("app", "runs", vcore=4_000)
    arena.want("app", "before", preempts=False, vcore=6_000)
    arena.want("less", "other", preempts=False, vcore=3_000)
    arena.want("app", "ask", preempts=False, vcore=3_000)
    arena.wait(60)
    return Explained(arena)


def required_node() -> Explained:
    found = explained.required_node_full()
    found.cluster.wait(30)
    return found


def not_synced() -> Explained:
    """A configured source that has not synced."""
    found = explained.no_node_has_room()
    found.cluster.wait(60)
    found.info = RmInfo("rm", life="RUNNING", awaited=("vms",), awaited_ns=found.cluster.now_ns)
    found.cluster.wait(5)
    return found


def paused() -> Explained:
    found = explained.no_node_has_room()
    found.cluster.wait(60)
    found.info = RmInfo("rm", life="RUNNING", paused=True, paused_ns=found.cluster.now_ns)
    found.cluster.wait(240)
    return found


def stopped_queue() -> Explained:
    found = explained.queue_stopped()
    found.cluster.wait(60)
    return found


def draining_queue() -> Explained:
    """A draining queue, which accepts no new application and still places its asks."""
    arena = one_queue()
    arena.want("app", "runs", vcore=8_000)
    arena.want("app", "ask", preempts=False, vcore=1_000)
    arena.partition.queue_tree.change_queue_state(arena.queue("root.a"), QueueEvent.REMOVE)
    arena.wait(60)
    return Explained(arena)


def drained_node() -> Explained:
    arena = one_queue()
    arena.do(nodes(NodeAction.DRAIN_NODE, {"n1": None}))
    arena.want("app", "ask", preempts=False, memory=GIB)
    arena.wait(90_000)
    return Explained(arena)


CAUSES: dict[str, tuple[Callable[[], Explained], str]] = {
    "the manager of its VMs closed the only host": (
        closed_host,
        (
            "Ask ask of application app has waited for 3 minutes because the partition has no schedulable node: "
            "1 node is closed by source vms."
        ),
    ),
    "what a framework lent is wanted back": (
        lent_out,
        (
            "Ask ask of application app has waited for 45 seconds because it asks for 6 cores, and the largest "
            "node has 4 cores in all."
        ),
    ),
    "a pool of licences is used up": (
        pool_used_up,
        (
            "Ask ask of application app has waited for 2 hours 1 minute because the pool of license has 4, of "
            "which 3 are used; 2 more would exceed it."
        ),
    ),
    "its user is at a limit": (
        user_quota,
        (
            "Ask ask of application app has waited for 3 minutes because user ann uses 12 GiB of its limit of "
            "16 GiB in queue root.a; 8 GiB more would exceed it."
        ),
    ),
    "its gang's placeholders are not all there": (
        placeholders,
        (
            "Ask ask of application spark has waited for 3 minutes because it waits for its gang: task group "
            "workers has 2 of 3 placeholders placed; of the rest: it asks for 3 cores, and no node has more "
            "than 2 cores free."
        ),
    ),
    "the room there is is kept for one that waits longer": (
        reserved,
        (
            "Ask ask of application app has waited for 3 minutes because the nodes with room for it are "
            "reserved for asks that come before it."
        ),
    ),
    "its queue may preempt nothing outside of it": (
        fenced,
        "Ask ask of application app has waited for 31 seconds because it asks for 2 cores, and no node has any free.",
    ),
    "one of a higher priority has the room": (
        lower_priority,
        "Ask ask of application app has waited for 1 minute because it asks for 8 cores, and no node has any free.",
    ),
    "others come first by the queue's order": (
        others_first,
        (
            "Ask ask of application app has waited for 1 minute because it asks for 3 cores, and no node has "
            "more than 1 core free."
        ),
    ),
    "the one node that it may run on is full": (
        required_node,
        (
            "Ask ask of application app has waited for 30 seconds because it must run on node n2 and asks for 1"
            " core, and that node has 0.5 cores of its 8 cores free."
        ),
    ),
    "a source has not said everything yet": (
        not_synced,
        (
            "Ask ask of application app has waited for 1 minute 5 seconds, the last 5 seconds of it because "
            "nothing is scheduled until source vms has listed all its objects."
        ),
    ),
    "an operator paused everything": (
        paused,
        (
            "Ask ask of application app has waited for 5 minutes, the last 4 minutes of it because an operator "
            "paused the resource manager; nothing is scheduled until it is resumed."
        ),
    ),
    "its queue is stopped": (
        stopped_queue,
        "Ask ask of application app has waited for 1 minute because queue root.a is stopped.",
    ),
    "its queue drains, which does not hold it back": (
        draining_queue,
        "Ask ask of application app has waited for 1 minute because it asks for 1 core, and no node has any free.",
    ),
    "every node is drained": (
        drained_node,
        (
            "Ask ask of application app has waited for 1 day 1 hour because the partition has no schedulable node: "
            "1 node is drained by the resource manager."
        ),
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_sentence_of_an_ask(cause: str) -> None:
    make, sentence = CAUSES[cause]
    assert make().json()["sentence"] == sentence


# What else is to be known of it, where the sentence of the ask alone does not say it.


def queue(found: Explained, path: str = "root.a") -> dict[str, Any]:
    arena = found.cluster
    return decoded(explain_queue.explain(arena.partition, arena.queue(path), arena.now_ns, pause=None))


def node(found: Explained) -> str:
    arena = found.cluster
    pieces = explain_node.explain(
        arena.partition, arena.partition.nodes["n1"], arena.now_ns, pause=None, external=arena.core.external
    )
    said: str = json.loads(b"".join(pieces))["message"]
    return said


def test_the_explanation_of_a_node_names_its_closer() -> None:
    assert "source vms says so" in node(closed_host())


def test_the_node_says_what_of_it_is_wanted_back() -> None:
    assert "Offer o-1 of source mesos was revoked" in node(lent_out())


def test_a_recorded_reason_ends_at_the_beginning_of_a_pause() -> None:
    for make, seconds in ((paused, 60), (not_synced, 60)):
        (past,) = make().json()["history"]
        assert (past["reason"], (past["until"] - past["since"]) / SECOND_NS) == ("NO_NODE_HAS_ROOM", seconds)


def test_the_message_says_that_preemption_ends_at_a_fence_and_that_a_node_is_kept_free() -> None:
    assert (
        fenced()
        .json()["message"]
        .endswith(
            "Preemption: its queue may not preempt outside, and has nothing of a lower priority. "
            "Node n1 is reserved for it."
        )
    )


def test_a_queue_says_what_most_in_it_wait_for_and_for_how_long() -> None:
    assert queue(user_quota())["sentence"] == (
        "Queue root.a uses 12 GiB, and has 1 pending ask, which waits for room below the limit of user ann in queue "
        "root.a (memory), for 3 minutes."
    )
    assert queue(others_first())["sentence"] == (
        "Queue root.a uses 7 cores, and has 2 pending asks, which wait for room on a node (vcore), the longest for "
        "1 minute."
    )
    assert queue(draining_queue())["sentence"] == (
        "Queue root.a is draining, uses 8 cores, and has 1 pending ask, which waits for room on a node (vcore), "
        "for 1 minute."
    )
    assert queue(stopped_queue())["sentence"].startswith("Queue root.a is stopped, uses 8 cores, and has 1 pending ask")
    assert queue(closed_host(), "root")["sentence"].startswith("Queue root uses nothing, and has 1 pending ask")


@pytest.mark.parametrize("cause", CAUSES)
def test_the_whole_text_says_nothing_twice_and_names_no_time_as_if_it_were_a_limit(cause: str) -> None:
    found = CAUSES[cause][0]()
    told = [found.json()["message"]]
    told += [queue(found, path)["message"] for path in found.cluster.partition.queues]
    told += [application(found.cluster, app)["message"] for app in found.cluster.partition.apps]
    for text in told:
        for words in ("pending ask", "is draining", "is stopped", *re.findall(r"wait for [^.,]*", text)):
            assert text.count(words) <= 1, text
        assert "for up to" not in text


def test_a_queue_at_its_max_says_since_when_asks_have_waited_for_it() -> None:
    arena = one_queue("{name: a, resources: {max: {vcore: 4, memory: 9Gi}}}")
    arena.want("app", "runs", vcore=3_000)
    arena.want("app", "first", preempts=False, vcore=2_000)
    arena.wait(120)
    arena.want("app", "second", preempts=False, vcore=2_500)
    arena.wait(60)
    found = queue(Explained(arena))
    assert found["sentence"] == (
        "Queue root.a uses 0 bytes of its max of 9 GiB and 3 cores of its max of 4 cores, and has 2 pending asks, "
        "which wait for room below the max of queue root.a (vcore), the longest for 3 minutes."
    )
    assert found["message"] == (
        "Queue root.a uses 0 bytes of its max of 9 GiB and 3 cores of its max of 4 cores, and has 2 pending asks. "
        "It has no guarantee of its own. 2 asks wait for room below the max of queue root.a (vcore), the longest for "
        "3 minutes."
    )
    (full,) = found["history"]
    assert (full["reason"], full["resourceType"], full["limitQueue"]) == ("QUEUE_MAX", "vcore", "root.a")
    assert (full["until"], full["asks"], (found["at"] - full["since"]) / SECOND_NS) == (0, 2, 180)


def test_an_application_says_what_most_of_what_it_wants_waits_for() -> None:
    gang = placeholders()
    assert application(gang.cluster, gang.app)["sentence"] == (
        "Application spark is accepted, has 2 allocations and wants 2 more, of which 1 waits for a gang's "
        "placeholders, for 3 minutes."
    )
    found = application(paused().cluster, "app")
    assert found["sentence"] == (
        "Application app is running, has 1 allocation and wants 1 more, which waits for room on a node (vcore), "
        "for 5 minutes."
    )
    assert [(each["reason"], each["until"], each["asks"]) for each in found["history"]] == [("NO_NODE_HAS_ROOM", 0, 1)]


def test_episodes_of_a_queue_that_overlap_are_one() -> None:
    """One ask waited for 60 s for a node, another one during the last 20 s, then for a larger node."""
    arena = cluster("{name: a}", "{name: b}")
    for app, path in (("app", "root.a"), ("other", "root.b")):
        add(arena, app, path)
    start_ns = arena.now_ns
    arena.want("app", "ask", preempts=False, vcore=2_000)
    arena.wait(40)
    arena.want("other", "ask", preempts=False, vcore=3_000)
    arena.wait(20)
    arena.node("n1", vcore=1_000)
    arena.wait(10)
    told = queue(Explained(arena), "root")["history"]
    times = [(each["reason"], (each["since"] - start_ns) / SECOND_NS, each["until"], each["asks"]) for each in told]
    assert times == [
        ("NO_NODES", 0, start_ns + 60 * SECOND_NS, 0),
        ("LARGER_THAN_ANY_NODE", 60, 0, 2),
    ]


# What was true once is not said as if it were so now.


def test_a_queue_is_as_full_as_it_is_while_it_is_too_full() -> None:
    arena = one_queue("{name: a, resources: {max: {vcore: 8}}}")
    arena.want("app", "runs", vcore=5_000)
    arena.want("app", "ends", vcore=2_000)
    arena.want("app", "ask", preempts=False, vcore=4_000)
    arena.want("app", "larger", preempts=False, vcore=9_000)
    arena.wait(480)
    arena.release("app", "ends")
    found = Explained(arena).json()
    said = "queue root.a uses 5 cores of its max of 8 cores; 4 cores more would exceed it."
    assert found["sentence"] == f"Ask ask of application app has waited for 8 minutes because {said}"
    assert found["message"] == f"Q{said[1:]}"
    assert (found["used"], found["now"]["used"]) == (7_000, 5_000), "the decision's figures stay beside new ones"
    assert Explained(arena, "larger").json()["message"] == (
        "It asks for 9 cores, and queue root.a may use 8 cores in all. Waiting does not help: a higher max would, or "
        "asking for less."
    )


def test_an_application_that_waits_for_another_one_says_how_many_run_now() -> None:
    arena = cluster("{name: a, maxapplications: 2}")
    arena.node("n1", vcore=8_000)
    for app in ("one", "two", "three"):
        add(arena, app, "root.a")
        arena.want(app, "ask", preempts=False, vcore=1_000)
    arena.wait(60)
    arena.reload("{name: root, submitacl: '*', queues: [{name: a, maxapplications: 1}]}")
    found = application(arena, "three")
    assert found["sentence"].endswith("for 1 minute because queue root.a runs 2 applications and may run 1.")


def test_a_node_that_is_too_small_for_what_must_run_on_it_is_not_waited_for() -> None:
    arena = one_queue()
    arena.node("small", vcore=500)
    arena.want("app", "ask", preempts=False, required_node="small", vcore=1_000)
    found = Explained(arena).json()
    assert found["message"] == (
        "It must run on node small and asks for 1 core, and that node has 0.5 cores of its 0.5 cores free. Waiting "
        "does not help: a larger node small would, or asking for less."
    )
    assert found["preemption"]["state"] == "NONE"


def test_a_queue_below_its_guarantee_is_not_said_to_have_enough() -> None:
    found = explained.NOES[explained.NoPreemptionReason.OVER_GUARANTEE]().json()
    assert "Preemption: it would put its queue above its guarantee." in found["message"]


def test_large_counts_are_written_in_one_way() -> None:
    arena = one_queue()
    for number in range(1_100):
        arena.want("app", f"ask-{number}", preempts=False, vcore=9_000)
    found = Explained(arena)
    assert node(found).endswith("Of 1,100 pending asks it has room for none; for 1,100 it has too little vcore.")
    assert queue(found)["message"].endswith("1,100 asks wait for a larger node (vcore), for less than a second.")


def test_the_sentence_of_a_node() -> None:
    def said(found: Explained) -> str:
        arena = found.cluster
        node = arena.partition.nodes["n1"]
        pieces = explain_node.explain(arena.partition, node, arena.now_ns, pause=None, external=arena.core.external)
        sentence: str = json.loads(b"".join(pieces))["sentence"]
        return sentence

    assert said(others_first()) == (
        "Node n1 takes new allocations, has 2 allocations, and has room for none of 2 pending asks."
    )
    assert said(drained_node()) == (
        "Node n1 takes no new allocations (drained by the resource manager), has no allocation, and has room for 1 of "
        "1 pending ask."
    )
    arena = one_queue()
    arena.want("app", "runs", vcore=8_000)
    assert said(Explained(arena)) == (
        "Node n1 takes new allocations, has 1 allocation and no vcore free, and its partition has no pending asks."
    )


def test_a_node_that_is_closed_and_too_small_as_well_gives_no_hope() -> None:
    arena = one_queue()
    arena.do(nodes(NodeAction.CREATE_DRAIN, {"closed": {"vcore": 8_000}}))
    arena.want("app", "ask", preempts=False, vcore=9_000)
    found = Explained(arena).json()
    assert found["closed"] == []
    assert found["message"].endswith("Waiting does not help: a larger node would, or asking for less.")
    arena.do(nodes(NodeAction.CREATE_DRAIN, {"large": {"vcore": 9_000}}))
    found = Explained(arena).json()
    assert found["closed"] == [{"by": "RM", "source": "", "nodes": 1}]
    assert found["message"].endswith("1 node is drained by the resource manager.")


def test_closed_nodes_are_counted_once_for_each_size_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = one_queue()
    arena.do(nodes(NodeAction.CREATE_DRAIN, {"closed": {"vcore": 8_000}}))
    counted: list[Mapping[Cordon, int]] = []
    monkeypatch.setattr(current_state, "closed_counts", counted.append)
    present = CurrentState(arena.partition)
    for asked in (9_000, 9_000, 8_000, 9_000):
        present.closed_for(Reason(ReasonCode.LARGER_THAN_ANY_NODE, resource_type="vcore", asked=asked))
    assert counted == [{}, {Cordon(CordonKind.RM): 1}]


def test_of_a_limit_of_0_it_is_not_said_that_it_is_gone() -> None:
    reason = Reason(ReasonCode.QUEUE_MAX, "root.a", "vcore", asked=1_000, used=3_000, since_ns=SECOND_NS)
    now = NowDao(used=2_000, limit=0, free=0, promised=0)
    assert current_state.changed_text(reason, now, 2 * SECOND_NS) == ""
    gone = current_state.changed_text(replace(reason, limit=4_000), now, 2 * SECOND_NS)
    assert gone == "That was 1 second ago; now the limit is gone."
