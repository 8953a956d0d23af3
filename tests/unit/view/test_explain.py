"""Explain over a log in memory: each endpoint's answers and statuses."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from builders import SECOND_NS, Cluster, ask, nodes
from muster_core.external.model import ApplyExternalChanges, ExternalChange, ExternalPool, ExternalQueue, id_of, kind_of
from muster_core.model.allocation import PreemptionRecord
from muster_core.model.commands import (
    AppItem,
    AskItem,
    EndApplication,
    NodeAction,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
)
from muster_core.model.states import QueueEvent
from muster_runtime.go_json import go_json
from muster_si.constants import FOREIGN, REQUIRED_NODE_TAG
from muster_state.state_folder import Pause, RmEntry, RmInfo
from muster_view.explain import asks
from unit.view.recorded import Bench, Recorded, client_of
from waiting import eventually

E = "/ws/v1/explain"
BAD_NAME = "Invalid queue name 'root..a': each part between dots takes 1 to 64 of letters, digits and _ : # / @ -"
PREEMPTING = """
{name: root, submitacl: '*', queues: [
  {name: a, resources: {guaranteed: {vcore: 4m}}, properties: {preemption.delay: 1s}},
  {name: b, resources: {max: {vcore: 20m}}, properties: {preemption.policy: fence, priority.offset: '2'}}]}
"""


def preempting(rm: Recorded) -> None:
    """root.a, with x, is below its guarantee; y of root.b is preempted."""
    cluster = rm.cluster
    cluster.node("n1", vcore=10)
    cluster.app("x", "root.a")
    cluster.app("y", "root.b")
    cluster.do(
        UpdateAllocations([AskItem(f"v{n}", "y", "default", {"vcore": 2}, allow_preempt_self=True) for n in range(5)])
    )
    cluster.do(UpdateAllocations([AskItem("k", "x", "default", {"vcore": 3}, priority=5, allow_preempt_other=True)]))
    cluster.wait(2)


async def get(bench: Bench, path: str, status: int = 200) -> Any:
    async with bench.view() as view, client_of(view) as client:
        answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def timeless(found: dict[str, Any]) -> dict[str, Any]:
    """Return the answer without the fields that depend on the time of the request."""
    return {name: each for name, each in found.items() if name not in ("at", "sentence")}


async def test_pending_has_every_figure_and_the_counts(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=10_000)
    rm.do(UpdateApplications((AppItem("x", "root.a", "default", "u"),)))
    rm.do(UpdateAllocations([ask("x", "k1", vcore=3_000), ask("x", "k2", vcore=2_000, wanted=4)]))
    since = rm.cluster.now_ns
    rm.cluster.core.apply(UpdateAllocations([ask("x", "k3", vcore=1)]), since, rm.cluster.outcomes[-1])
    await bench.write(rm)
    assert await get(bench, f"{E}/summary") == {
        "rm": "rm1", "life": "RUNNING", "lifeSince": 0, "held": False, "description": "It is connected.",
        "allocated": 1, "pending": 5,
        "counts": {"QUEUE_MAX": 4, "WAITING_FOR_TURN": 1},
    }  # fmt: skip
    explained = await get(bench, f"{E}/pending?rm=rm1")
    assert explained["rm"] == "rm1"
    assert explained["counts"] == {"QUEUE_MAX": 4, "WAITING_FOR_TURN": 1}
    limited, waiting = explained["pending"]
    at, sentence = limited.pop("at"), limited.pop("sentence")
    assert at > since
    assert sentence.startswith("Ask k2 of application x has waited for ")
    assert sentence.endswith(" because queue root.a uses 3 cores of its max of 4 cores; 2 cores more would exceed it.")
    assert limited == {
        "partition": "default", "applicationID": "x", "allocationKey": "k2", "queue": "root.a", "count": 4,
        "priority": 0, "resource": {"vcore": 2_000}, "placeholder": False, "taskGroup": "", "reason": "QUEUE_MAX",
        "resourceType": "vcore", "asked": 2_000, "used": 3_000, "limit": 4_000, "free": 0, "promised": 0,
        "limitQueue": "root.a", "who": "", "node": "", "nodes": 0, "reservedNodes": 0, "lacking": [], "closed": [],
        "since": since,
        "asOf": since, "now": {"used": 3_000, "limit": 4_000, "free": 0, "promised": 0}, "waitingSince": since,
        "history": [],
        "gang": None, "reservation": None,
        "preemption": {"state": "NO", "no": "NOT_ALLOWED", "mayAt": 0, "lost": "", "victims": []},
        "refusals": [], "refusedUntil": 0, "scaledUp": False,
        "message": "Queue root.a uses 3 cores of its max of 4 cores; 2 cores more would exceed it.",
    }  # fmt: skip
    assert (waiting["allocationKey"], waiting["reason"], waiting["since"]) == ("k3", "WAITING_FOR_TURN", since)
    assert waiting["preemption"]["state"] == "NONE"
    assert timeless(await get(bench, f"{E}/ask/x/k2")) == limited


async def test_a_preempted_allocation_names_its_ask(bench: Bench) -> None:
    rm = bench.rm(queues=PREEMPTING)
    preempting(rm)
    await bench.write(rm)
    now_ns = rm.cluster.now_ns
    asked = await get(bench, f"{E}/ask/x/k")
    victims = asked["preemption"]["victims"]
    assert [each.pop("since") for each in victims] == [now_ns, now_ns]
    assert asked["preemption"] == {"state": "CHOSEN", "no": "", "mayAt": 0, "lost": "", "victims": victims}
    assert asked["reservation"] == {"node": "n1", "since": now_ns}
    assert "2 allocations were preempted for it " in asked["message"]
    assert asked["message"].endswith(" ago and have not ended yet. Node n1 is reserved for it.")
    told = await get(bench, f"{E}/preempted")
    assert told["rm"] == "rm1"
    assert [
        {"applicationID": each["applicationID"], "allocationKey": each["allocationKey"], "node": each["node"]}
        for each in told["preempted"]
    ] == victims
    first = told["preempted"][0]
    for path in (f"preemption/y/{first['allocationKey']}", f"preemption/{first['allocationKey']}"):
        assert timeless(await get(bench, f"{E}/{path}")) == timeless(first)
    message, first = first["message"], timeless(first)
    del first["message"]
    assert first == {
        "partition": "default", "applicationID": "y", "allocationKey": first["allocationKey"], "queue": "root.b",
        "node": "n1", "priority": 0, "resource": {"vcore": 2}, "placeholder": False, "taskGroup": "",
        "withGang": False, "rule": "GUARANTEE", "since": now_ns,
        "forApplicationID": "x", "forAllocationKey": "k", "forQueue": "root.a", "victimShareBefore": 0.5,
        "victimShareAfter": 0.3, "askerShareBefore": 0.0, "askerShareAfter": 0.75,
    }  # fmt: skip
    assert message == (
        "It was preempted for k of application x, whose queue is below its guarantee: root.a goes from 0% to 75% of "
        "its share, root.b goes from 50% to 30% of its share."
    )
    app = await get(bench, f"{E}/application/y")
    assert [each["allocationKey"] for each in app["preempted"]] == [each["allocationKey"] for each in victims]


async def test_an_ended_allocation_is_no_victim_any_more(bench: Bench) -> None:
    rm = bench.rm(queues=PREEMPTING)
    preempting(rm)
    cluster = rm.cluster
    keys = [held.key for held in cluster.application("y").allocations.values() if held.preempted is not None]
    gone = [ReleaseItem("default", "y", key, Termination.PREEMPTED_BY_SCHEDULER) for key in keys[:1]]
    cluster.do(UpdateAllocations((), gone))
    await bench.write(rm)
    asked = await get(bench, f"{E}/ask/x/k")
    assert [each["allocationKey"] for each in asked["preemption"]["victims"]] == keys[1:]
    assert " ago and has not ended yet." in asked["message"]
    assert len((await get(bench, f"{E}/preempted"))["preempted"]) == 1


async def test_preempted_allocations_that_ended_are_told_for_a_while(bench: Bench) -> None:
    rm = bench.rm(queues=PREEMPTING)
    preempting(rm)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:

        async def asked() -> Any:
            return (await client.get(f"{E}/preempted")).json()

        before = await asked()
        assert (len(before["preempted"]), before["ended"]) == (2, [])
        first, second = before["preempted"]
        key = first["allocationKey"]
        rm.cluster.do(UpdateAllocations((), [ReleaseItem("default", "y", key, Termination.PREEMPTED_BY_SCHEDULER)]))
        await bench.write(rm)

        async def ended() -> Any:
            return (found := await asked())["ended"] and found

        after = await eventually(ended, "its end is folded")
    assert [each["allocationKey"] for each in after["preempted"]] == [second["allocationKey"]]
    assert timeless(after["ended"][0]) == timeless(first)
    assert (len(after["ended"]), after["ended"][0]["message"]) == (1, first["message"])


async def test_an_application(bench: Bench) -> None:
    rm = bench.rm(queues="{name: root, submitacl: '*', queues: [{name: a, maxapplications: 1}]}")
    rm.cluster.node("n1", vcore=10)
    for app in ("x", "y"):
        rm.cluster.app(app, "root.a")
        rm.cluster.ask(app, "k", vcore=1)
    rm.cluster.ask("x", "wide", vcore=11)
    since = rm.cluster.now_ns
    await bench.write(rm)
    runs, waits = await get(bench, f"{E}/application/x"), await get(bench, f"{E}/application/y")
    assert re.fullmatch(
        r"It is running\. It has 1 allocation, and wants 1 more\. 1 ask waits for a larger node \(vcore\), for [^.]+\.",
        runs.pop("message"),
    )
    assert {name: runs[name] for name in timeless(runs) if name not in ("asks", "preempted", "replacements")} == {
        "partition": "default", "applicationID": "x", "queue": "root.a", "state": "Running", "since": since,
        "user": "alice", "group": "", "allocations": 1, "pending": 1, "counts": {"LARGER_THAN_ANY_NODE": 1},
        "waiting": None, "gang": None, "rejected": "",
        "history": [
            {"reason": "LARGER_THAN_ANY_NODE", "resourceType": "vcore", "limitQueue": "", "who": "", "since": since,
             "until": 0, "asks": 1}
        ],
    }  # fmt: skip
    assert runs["sentence"].startswith(
        "Application x is running, has 1 allocation and wants 1 more, which waits for a larger node (vcore), for "
    )
    assert waits["sentence"].startswith(
        "Application y is accepted, has no allocation and wants 1 more, but has waited for "
    )
    assert waits["sentence"].endswith(" because queue root.a runs 1 application and may run 1.")
    assert [each["allocationKey"] for each in runs["asks"]] == ["wide"]
    assert (runs["preempted"], runs["replacements"]) == ([], [])
    assert waits["waiting"] == {
        "reason": "QUEUE_MAX_APPLICATIONS", "queue": "root.a", "who": "", "resourceType": "", "asked": 0, "used": 1,
        "limit": 1, "promised": 0, "since": since,
    }  # fmt: skip
    assert waits["message"] == (
        "It is accepted. It has no allocation, and wants 1 more. Queue root.a runs 1 application and may run 1."
    )
    assert waits["asks"][0]["reason"] == "QUEUE_MAX_APPLICATIONS"


async def test_a_queue_with_its_guarantee_and_its_fences(bench: Bench) -> None:
    rm = bench.rm(queues=PREEMPTING)
    preempting(rm)
    rm.cluster.ask("y", "waits", vcore=50)
    await bench.write(rm)
    poor, fenced = await get(bench, f"{E}/queue/root.a"), await get(bench, f"{E}/queue/root.B")
    since = rm.cluster.now_ns - 2_000_000_000
    assert poor.pop("message").startswith(
        "Queue root.a uses nothing, and has 1 pending ask. It is below its guarantee by 0.004 cores. No vcore is left "
        "in its headroom. "
        "1 ask waits for room on a node (vcore), for "
    )
    assert timeless(poor) == {
        "partition": "default", "queue": "root.a", "state": "Active", "leaf": True, "managed": True, "share": 0.0,
        "allocated": {}, "preempting": {}, "pending": {"vcore": 3}, "promised": {}, "maximum": {},
        "sources": [], "disputed": "", "headroom": {"vcore": 0},
        "guarantees": [
            {"queue": "root.a", "resourceType": "vcore", "guaranteed": 4, "used": 0, "preempting": 0, "missing": 4}
        ],
        "applications": 1, "runningApplications": 0, "formingApplications": 0, "maxApplications": 0,
        "preemptionFence": "root", "protectedBy": "", "preemptionDelay": 1_000_000_000, "preemptsByPriority": True,
        "priorityFence": False,
        "priorityOffset": 0, "currentPriority": 5, "quotaAt": 0, "fairShares": [],
        "asks": {"NO_NODE_HAS_ROOM": 1},
        "history": [
            {"reason": "NO_NODE_HAS_ROOM", "resourceType": "vcore", "limitQueue": "", "who": "", "since": since,
             "until": 0, "asks": 1}
        ],
    }  # fmt: skip
    assert (fenced["share"], fenced["allocated"], fenced["preempting"]) == (0.5, {"vcore": 10}, {"vcore": 4})
    assert (fenced["preemptionFence"], fenced["priorityOffset"], fenced["currentPriority"]) == ("root.b", 2, 2)
    assert fenced["asks"] == {"QUEUE_MAX": 1}
    assert "Asks in it preempt nothing outside of root.b." in fenced["message"]
    root = await get(bench, f"{E}/queue/root")
    assert root["asks"] == {"NO_NODE_HAS_ROOM": 1, "QUEUE_MAX": 1}
    assert (root["applications"], root["runningApplications"]) == (2, 1)


async def test_an_order_by_use_is_explained_with_the_users_figures(bench: Bench) -> None:
    properties = "application.sort.policy: fairshare, application.sort.halflife: 8h"
    rm = bench.rm(queues=f"{{name: root, submitacl: '*', queues: [{{name: a, properties: {{{properties}}}}}]}}")
    rm.cluster.node("n", vcore=1000)
    for user in ("ann", "bob", "cat"):
        rm.cluster.app(user, "root.a", user=user)
    rm.cluster.ask("ann", "run", vcore=1000)
    for user in ("ann", "bob"):
        rm.cluster.ask(user, "more", vcore=500)
    await bench.write(rm)
    queue = await get(bench, f"{E}/queue/root.a")
    bob, cat, ann = queue["fairShares"]  # (neither of the first two has used anything)
    assert [bob["user"], cat["user"], ann["user"]] == ["bob", "cat", "ann"]
    assert (bob["share"], bob["used"], bob["held"], bob["pending"], cat["pending"]) == (0.0, {}, {}, 1, 0)
    assert (ann["held"], ann["pending"]) == ({"vcore": 1000}, 1)
    # (The view's clock is ages later: she has had all of it for ever.)
    assert (ann["share"], ann["shareAhead"]) == pytest.approx((1.0, 1.0), rel=1e-6)
    assert ann["used"]["vcore"] == pytest.approx(1000 * 8 * 3600 / math.log(2), rel=1e-6)
    assert (
        "Its users come in the order of their use, which counts half after 8h: user bob (0 % of it lately) comes first "
        "and user ann (100 %) last of 2 users with asks." in queue["message"]
    )
    poor = await get(bench, f"{E}/application/ann")
    (ask,) = poor["asks"]
    assert (
        "user ann with 100 % of root.a is number 2 of 2 users with asks there, behind user bob with 0 %."
        in ask["message"]
    )


GUARANTEES = """
{name: root, submitacl: '*', resources: {}, queues: [{name: top, resources: {guaranteed: {vcore: 8m, memory: 5}},
  properties: {preemption.policy: disabled}, queues: [
   {name: fenced, properties: {preemption.policy: fence}, resources: {guaranteed: {memory: 1}}, queues:
     [{name: leaf, resources: {guaranteed: {vcore: 2m}}}]}, {name: open}]}]}
"""


async def test_guarantees_count_up_to_the_fence_and_the_nearest_word_protects(bench: Bench) -> None:
    rm = bench.rm(queues=GUARANTEES)
    rm.cluster.node("n", vcore=10, memory=10)
    rm.cluster.app("x", "root.top.open")
    rm.cluster.ask("x", "k", vcore=3, memory=7)
    await bench.write(rm)
    leaf, open_ = await get(bench, f"{E}/queue/root.top.fenced.leaf"), await get(bench, f"{E}/queue/root.top.open")
    assert [(each["queue"], each["resourceType"], each["missing"]) for each in leaf["guarantees"]] == [
        ("root.top.fenced.leaf", "vcore", 2),
    ]
    assert leaf["preemptionFence"] == "root.top.fenced"
    assert leaf["protectedBy"] == ""
    assert [(each["queue"], each["resourceType"], each["missing"]) for each in open_["guarantees"]] == [
        ("root.top", "memory", 0),
        ("root.top", "vcore", 5),
    ]
    assert open_["protectedBy"] == "root.top.open", "the queue inherits the property, so it protects itself"
    assert "no pending asks. It has no guarantee of its own." in open_["message"]
    assert "Its allocations are protected from preemption." in open_["message"]


async def test_a_queue_that_a_source_restricts(bench: Bench) -> None:
    rm = bench.rm(queues="{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 9m}}}, {name: b}]}")
    quotas = [ExternalQueue("root.a", {"vcore": 6}), ExternalQueue("root.b", {"vcore": 1}), ExternalPool("licence", 2)]
    rm.do(
        ApplyExternalChanges("default", "quota", "life", tuple(ExternalChange(kind_of(e), id_of(e), e) for e in quotas))
    )
    await bench.write(rm)
    both, one, root = [await get(bench, f"{E}/queue/{path}") for path in ("root.a", "root.b", "root")]
    assert (both["maximum"], both["sources"]) == ({"vcore": 6}, ["quota"])
    assert both["disputed"] == "vcore: the configuration says 9, source quota says 6: the smaller counts"
    assert f"Several reports set its max ({both['disputed']})." in both["message"]
    assert (one["sources"], one["disputed"]) == (["quota"], "")
    assert "Its max is set by source quota." in one["message"]
    assert (root["sources"], root["disputed"]) == (["quota"], "")
    assert "Its pools are reported by source quota." in root["message"]


async def test_a_draining_queue_and_one_whose_quota_is_due(bench: Bench) -> None:
    rm = bench.rm(queues="{name: root, submitacl: '*', queues: [{name: a, maxapplications: 1}]}")
    rm.cluster.app("x", "root.a")
    rm.cluster.node("n", vcore=1)
    rm.cluster.ask("x", "k", vcore=1)
    queue = rm.cluster.queue("root.a")
    rm.cluster.partition.queue_tree.change_queue_state(queue, QueueEvent.REMOVE)
    queue.quota_ns = 7
    rm.cluster.outcomes[-1].mark_changed(queue, "default")
    await bench.write(rm)
    found = await get(bench, f"{E}/queue/root.a")
    assert (found["state"], found["quotaAt"]) == ("Draining", 7)
    assert found["message"] == (
        "Queue root.a uses 0.001 cores, and has no pending asks. It is draining: its applications continue, "
        "and no new ones enter. It has no guarantee of its own. No vcore is left in its headroom. Preemption will "
        "remove the usage above its max. It runs its maximum of 1 application."
    )


async def test_for_a_stopped_rm_that_is_the_reason_whatever_was_before(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.app("x", "root.a")
    rm.cluster.ask("x", "k", vcore=1)
    rm.info.life = "STOPPED"
    await bench.write(rm)
    assert (await get(bench, f"{E}/summary"))["counts"] == {"RM_STOPPED": 1}
    (asked,) = (await get(bench, f"{E}/pending"))["pending"]
    assert asked["message"] == ("The resource manager is stopped; start it so that it registers again, or forget it.")
    assert (await get(bench, f"{E}/queue/root.a"))["asks"] == {"RM_STOPPED": 1}
    assert (await get(bench, f"{E}/application/x"))["counts"] == {"RM_STOPPED": 1}


async def test_a_pause_began_when_it_did_and_ends_what_was_waited_for(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.app("x", "root.a")
    rm.cluster.ask("x", "k", vcore=1)
    start_ns = rm.cluster.now_ns
    rm.cluster.wait(10)
    rm.cluster.node("small", vcore=0, memory=1)
    rm.cluster.wait(20)
    rm.info.paused, rm.info.paused_ns = True, rm.cluster.now_ns
    await bench.write(rm)
    asked = await get(bench, f"{E}/ask/x/k")
    assert (asked["reason"], asked["since"]) == ("RM_HELD", start_ns + 30_000_000_000)
    told = [(each["reason"], each["since"] - start_ns, each["until"] - start_ns) for each in asked["history"]]
    assert told == [("NO_NODES", 0, 10_000_000_000), ("LARGER_THAN_ANY_NODE", 10_000_000_000, 30_000_000_000)]
    queue = (await get(bench, f"{E}/queue/root"))["history"]
    assert [(each["reason"], each["asks"]) for each in queue] == [
        ("NO_NODES", 0), ("LARGER_THAN_ANY_NODE", 0), ("RM_HELD", 1),
    ]  # fmt: skip


async def test_pauses_that_are_over_stay_in_the_history_and_part_what_was_waited_for(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.app("x", "root.a")
    rm.cluster.ask("x", "k", vcore=1)
    start_ns = rm.cluster.now_ns
    rm.cluster.wait(50)
    rm.cluster.ask("x", "later", vcore=1)
    rm.cluster.wait(50)
    rm.info.pauses = (
        Pause(start_ns + 10 * SECOND_NS, start_ns + 30 * SECOND_NS, "new racks"),
        Pause(start_ns + 40 * SECOND_NS, start_ns + 60 * SECOND_NS, ""),
    )
    await bench.write(rm)

    def told(entries: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
        return [
            (each["reason"], (each["since"] - start_ns) // SECOND_NS, (each["until"] - start_ns) // SECOND_NS)
            if each["until"]
            else (each["reason"], (each["since"] - start_ns) // SECOND_NS, 0)
            for each in entries
        ]

    asked = await get(bench, f"{E}/ask/x/k")
    assert (asked["reason"], asked["since"]) == ("NO_NODES", start_ns + 60 * SECOND_NS)
    past = [("NO_NODES", 0, 10), ("RM_HELD", 10, 30), ("NO_NODES", 30, 40), ("RM_HELD", 40, 60)]
    assert told(asked["history"]) == past
    assert [each["message"] for each in asked["history"] if each["reason"] == "RM_HELD"] == [
        "An operator had paused the resource manager (new racks); nothing was scheduled until it was resumed.",
        "An operator had paused the resource manager; nothing was scheduled until it was resumed.",
    ]
    assert told((await get(bench, f"{E}/ask/x/later"))["history"]) == [("RM_HELD", 50, 60)]
    for what in ("application/x", "queue/root.a", "queue/root"):
        assert told((await get(bench, f"{E}/{what}"))["history"]) == [*past, ("NO_NODES", 60, 0)]


async def test_figures_after_a_pause_are_not_shown_for_the_time_before(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=9)
    rm.cluster.app("x", "root.a")
    rm.cluster.ask("x", "k", vcore=10)
    start_ns = rm.cluster.now_ns
    rm.cluster.wait(30)
    rm.info.pauses = (Pause(start_ns + 10 * SECOND_NS, start_ns + 20 * SECOND_NS, ""),)
    (waitlist,) = rm.cluster.queue("root.a").waitlists.values()
    assert waitlist.reason is not None
    waitlist.reason = replace(waitlist.reason, asked=11, as_of_ns=rm.cluster.now_ns)
    rm.cluster.outcomes[-1].mark_changed(waitlist, "default")
    await bench.write(rm)
    first, _ = (await get(bench, f"{E}/ask/x/k"))["history"]
    assert (first["reason"], first["asked"], first["message"]) == (
        "LARGER_THAN_ANY_NODE", 0, "It waited for a larger node.",
    )  # fmt: skip


async def test_an_application_that_was_rejected_or_ended_is_explained(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.do(UpdateApplications((AppItem("x", "root.nope", "default", "u"),)))
    rm.cluster.app("y", "root.a")
    rm.cluster.node("n1", vcore=4)
    rm.cluster.ask("y", "k", vcore=1)
    rm.cluster.release("y", "k")
    rm.cluster.app("v", "root.a")
    rm.cluster.app("w", "root.a")
    rm.cluster.ask("w", "k", vcore=1)
    rm.do(EndApplication("default", "v", "ended by an operator"))
    rm.do(EndApplication("default", "w", "ended by an operator: stuck"))
    rm.cluster.wait(60)
    await bench.write(rm)
    found = await get(bench, f"{E}/application/x")
    assert (found["state"], found["queue"], found["asks"]) == ("Rejected", "root.nope", [])
    assert "root.nope" in found["rejected"]
    assert re.fullmatch(r"Application x was rejected .+ ago: .+[.]", found["message"])
    assert found["message"].endswith(f" ago: {found['rejected']}.")
    assert re.fullmatch(r"Application y completed .+ ago[.]", (await get(bench, f"{E}/application/y"))["sentence"])
    said = (await get(bench, f"{E}/application/v"))["sentence"]
    assert re.fullmatch(r"Application v failed .+ ago \(ended by an operator\)[.]", said)
    found = await get(bench, f"{E}/application/w")
    has = "has 1 allocation, which is being released, and wants no more."
    assert found["sentence"] == f"Application w is failing (ended by an operator: stuck), {has}"
    assert found["message"] == f"It is failing (ended by an operator: stuck). It {has}"
    await get(bench, f"{E}/application/z", 404)


async def test_a_preempted_allocation_whose_key_several_applications_have(bench: Bench) -> None:
    rm = bench.rm(queues=PREEMPTING)
    cluster = rm.cluster
    cluster.node("n1", vcore=10)
    cluster.app("x", "root.a")
    for app in ("y", "z"):
        cluster.app(app, "root.b")
        cluster.do(UpdateAllocations([AskItem("v", app, "default", {"vcore": 5}, allow_preempt_self=True)]))
        held = cluster.application(app).allocations["v"]
        why = PreemptionRecord("QUOTA", "", "", "root.b", cluster.now_ns)
        cluster.partition.releases.preempt(held, why, "", cluster.outcomes[-1], cluster.now_ns)
    await bench.write(rm)
    answer = await get(bench, f"{E}/preemption/v", 400)
    assert "Allocation 'v' is in 2 applications, y, z" in answer["message"]
    assert (await get(bench, f"{E}/preemption/z/v"))["applicationID"] == "z"


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("ask/x/nope", 404, "Ask not found: no ask or allocation has this key"),
        ("ask/nope/k", 404, "Application not found"),
        ("ask/x/k2?partition=nope", 404, "Partition not found"),
        ("ask/x/k2?partition=default", 200, None),
        ("ask/x/k2?rm=nope", 404, "Resource manager not found: 'nope'"),
        ("application/nope", 404, "Application not found"),
        ("application/x", 200, None),
        ("queue/root.nope", 404, "Queue not found"),
        ("queue/root..a", 400, BAD_NAME),
        ("queue/root.a?partition=default", 200, None),
        ("preempted", 200, None),
        ("preemption/x/k1", 404, "Allocation was not preempted"),
        ("preemption/x/nope", 404, "Allocation not found"),
        ("preemption/nope/k1", 404, "Application not found"),
        ("preemption/k1", 404, "Allocation not found among those that were preempted and are still there"),
        ("preemption/k1?partition=nope", 404, "Partition not found"),
    ],
)  # fmt: skip
async def test_each_route(bench: Bench, path: str, status: int, message: str | None) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=10_000)
    rm.cluster.app("x", "root.a")
    rm.cluster.ask("x", "k1", vcore=3_000)
    rm.cluster.ask("x", "k2", vcore=2_000)
    await bench.write(rm)
    answer = await get(bench, f"{E}/{path}", status)
    if message is not None:
        assert answer == {"status_code": status, "message": message, "description": message}


def test_an_ask_is_known_by_all_that_was_allocated_for_it() -> None:
    """Keys may have any characters. The first of its allocations may be gone."""
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}").having(
        {"n1": {"vcore": 10}}, {"x": "root.a"}
    )
    cluster.ask("x", "k#1", vcore=1)
    cluster.ask("x", "k", wanted=2, vcore=1)
    app = cluster.application("x")
    app.unindex(app.allocations["k"])
    for key in ("k", "k#1"):
        assert asks.no_ask(app, key, cluster.now_ns).endswith(" ago, on node n1")


async def test_without_any_rm(bench: Bench) -> None:
    for path in ("pending", "preempted", "ask/x/k", "application/x", "queue/root", "preemption/x/k"):
        assert (await get(bench, f"{E}/{path}", 404))["message"] == "No resource manager is registered"


# ---- facts of one ask alone ------------------------------------------------------------------------------------------


def explained(cluster: Cluster, key: str, now_ns: int | None = None) -> Any:
    state = RmEntry(RmInfo("rm1", life="RUNNING"), cluster.core)
    wanted = cluster.application("x").asks[key]
    return json.loads(go_json(asks.ask(state, cluster.partition, wanted, cluster.now_ns if now_ns is None else now_ns)))


def test_asks_that_share_a_reason_have_their_own_word_about_preemption() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a, resources: {guaranteed: {vcore: 5m}}}]}").having(
        {"n": {"vcore": 5}}, {"x": "root.a"}
    )
    cluster.do(UpdateAllocations([AskItem("held", "x", "default", {"vcore": 4})]))
    for key, other in (("may", True), ("may-not", False)):
        cluster.do(UpdateAllocations([AskItem(key, "x", "default", {"vcore": 2}, allow_preempt_other=other)]))
    cluster.wait(40)
    cluster.do(UpdateAllocations([AskItem("young", "x", "default", {"vcore": 2}, allow_preempt_other=True)]))
    assert [explained(cluster, key)["preemption"]["no"] for key in ("may", "may-not", "young")] == [
        "OVER_GUARANTEE",
        "NOT_ALLOWED",
        "TOO_YOUNG",
    ]
    young = explained(cluster, "young")
    assert young["preemption"]["mayAt"] == cluster.now_ns + 30_000_000_000
    assert "Preemption: it has not waited long enough to preempt." in young["message"]
    assert "Preemption" not in explained(cluster, "may-not")["message"]
    assert explained(cluster, "young", cluster.now_ns + 30_000_000_000)["preemption"]["no"] == "OVER_GUARANTEE"


def test_a_daemon_says_that_its_room_was_lost_and_from_when_it_may_preempt_again() -> None:
    queues = "{name: root, submitacl: '*', queues: [{name: a}, {name: b}]}"
    cluster = Cluster(queues).having({"n1": {"vcore": 4}}, {"x": "root.a", "y": "root.b"})
    for key in ("v1", "v2"):
        cluster.do(UpdateAllocations([AskItem(key, "y", "default", {"vcore": 2}, allow_preempt_self=True)]))
    cluster.do(UpdateAllocations([AskItem("d", "x", "default", {"vcore": 2}, tags={REQUIRED_NODE_TAG: "n1"})]))
    chosen_ns = cluster.now_ns
    assert explained(cluster, "d")["preemption"]["state"] == "CHOSEN"
    other = AskItem("f", "", "default", {"vcore": 2}, node_id="n1", tags={FOREIGN: "default"})
    cluster.do(UpdateAllocations([other]))
    cluster.wait(4)
    (victim,) = [each for each in cluster.application("y").allocations.values() if each.preempted is not None]
    cluster.release("y", victim.key)
    said = explained(cluster, "d")
    may_at = chosen_ns + 15_000_000_000
    expected = {"state": "PENDING", "no": "", "mayAt": may_at, "lost": "others use it", "victims": []}
    assert said["preemption"] == expected
    lost = "The room that was made for it is lost: others use it."
    assert f"{lost} It may preempt again in 11 seconds." in said["message"]
    later = explained(cluster, "d", may_at)
    assert (later["preemption"]["mayAt"], later["preemption"]["lost"]) == (0, "others use it")
    assert lost in later["message"]


def test_in_a_stopped_queue_nothing_is_decided() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: p, queues: [{name: a}]}]}")
    cluster.app("x", "root.p.a")
    cluster.ask("x", "k", vcore=1)
    assert explained(cluster, "k")["reason"] == "NO_NODES"
    cluster.partition.queue_tree.change_queue_state(cluster.queue("root.p"), QueueEvent.STOP)
    found = explained(cluster, "k")
    assert (found["reason"], found["limitQueue"]) == ("QUEUE_STOPPED", "root.p")
    assert found["message"] == "Queue root.p is stopped."


def test_the_sentence_is_that_of_the_reason_of_now() -> None:
    """Sentences are cached by the reason's identity, which another reason must not reuse meanwhile."""
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
    cluster.app("x", "root.a")
    cluster.ask("x", "k", vcore=1, memory=1)
    explainer = asks.Explainer(cluster.partition, {}, cluster.now_ns, pause=None)
    wanted = cluster.application("x").asks["k"]
    codes = set()
    for number in range(1, 60):
        capacity = {"memory": number} if number % 2 else {"vcore": number, "memory": 0}
        cluster.do(nodes(NodeAction.CREATE, {"n": capacity}))
        codes.add(asks.reason_of(wanted, pause=None).code)
        assert explainer.ask(wanted).message == asks.reason_of(wanted, pause=None).sentence()
        cluster.do(nodes(NodeAction.DECOMISSION, {"n": None}))
        codes.add(asks.reason_of(wanted, pause=None).code)
        assert explainer.ask(wanted).message == asks.reason_of(wanted, pause=None).sentence()
    assert len(codes) >= 2
