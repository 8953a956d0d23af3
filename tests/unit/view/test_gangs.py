"""Gangs in REST and in explain: placeholders, replacements, reasons.

The view folds the records only. It must show each step of a gang's life as it shows the scheduler's own core.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from builders import Cluster
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import EventDetail
from muster_core.model.pending_reason import ask_reason
from muster_core.model.states import AppState
from muster_runtime.go_json import go_json
from muster_si.constants import REQUIRED_NODE_TAG
from muster_state.state_folder import RmEntry, RmInfo
from muster_view.explain import asks as explain
from muster_view.explain import queue as explain_queue
from muster_view.rest import dao, json_render, usage
from unit.view import explained
from unit.view.recorded import Bench, ClockOf, Recorded, client_of
from unordered import unordered

P = "/ws/v1/partition/default"
E = "/ws/v1/explain"
QUEUES = """
{name: root, submitacl: '*', queues: [
  {name: a, maxapplications: 2, limits: [{users: ['*'], maxresources: {vcore: 9m}}]},
  {name: p, queues: [{name: b, properties: {gang.start: incremental}}, {name: c}]}]}
"""


def gang(cluster: Cluster, app: str, queue: str = "root.a", *, total: int = 0, style: str = "") -> None:
    asked = {"vcore": total} if total else None
    cluster.do(UpdateApplications((AppItem(app, queue, "default", "ann", placeholder_ask=asked, gang_style=style),)))


def placeholders(cluster: Cluster, app: str, count: int, vcore: int, group: str = "workers") -> None:
    asks = [
        AskItem(f"{group}-p{number}", app, "default", {"vcore": vcore}, task_group=group, placeholder=True)
        for number in range(count)
    ]
    cluster.do(UpdateAllocations(asks))


def real(cluster: Cluster, app: str, key: str, vcore: int, group: str = "workers", **tags: str) -> None:
    cluster.do(UpdateAllocations([AskItem(key, app, "default", {"vcore": vcore}, tags=tags, task_group=group)]))


def confirm(cluster: Cluster, app: str, key: str) -> None:
    cluster.release(app, key, Termination.PLACEHOLDER_REPLACED)


def text(pieces: Iterator[bytes]) -> bytes:
    return b"".join(pieces)


def said_of(cluster: Cluster, app: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text(json_render.application(cluster.partition, cluster.application(app))))
    return found


# ---- the shapes ------------------------------------------------------------------------------------------------------


def test_placeholder_data_stands_between_the_states_and_the_reservations() -> None:
    cluster = Cluster(QUEUES)
    cluster.node("n1", vcore=10)
    gang(cluster, "x", total=8)
    placeholders(cluster, "x", 3, 2)
    placeholders(cluster, "x", 1, 2, "driver")
    real(cluster, "x", "w", 1)
    confirm(cluster, "x", "workers-p0")
    real(cluster, "x", "large", 3)  # no placeholder is as large: one is released for it
    cluster.release("x", "workers-p1", Termination.TIMEOUT)
    tail = go_json(dao.application_tail(cluster.application("x")))
    assert (
        b'],"placeholderData":['
        b'{"taskGroupName":"workers","count":3,"minResource":{"vcore":2},"replaced":1,"timedout":1},'
        b'{"taskGroupName":"driver","count":1,"minResource":{"vcore":2}}],"maxRequestPriority":'
    ) in tail


def test_an_application_without_placeholders_has_no_placeholder_data() -> None:
    cluster = Cluster(QUEUES)
    gang(cluster, "x", total=8)
    cluster.app("y", "root.a")
    assert b"placeholderData" not in go_json(dao.application_tail(cluster.application("x")))
    assert b"placeholderData" not in go_json(dao.application_tail(cluster.application("y")))


def test_an_allocation_that_took_a_placeholders_place_was_asked_for_when_that_was() -> None:
    cluster = Cluster(QUEUES)
    cluster.node("n1", vcore=10)
    gang(cluster, "x", total=2)
    asked_ns = cluster.now_ns
    placeholders(cluster, "x", 1, 2)
    (held,) = said_of(cluster, "x")["allocations"]
    assert held["placeholder"]
    assert held["taskGroupName"] == "workers"
    assert "placeholderUsed" not in held
    assert "allocationDelay" not in held
    cluster.wait(7)
    real(cluster, "x", "w", 1)
    (waits,) = said_of(cluster, "x")["requests"]
    assert waits["pendingReason"] == {
        "code": "PLACEHOLDER_LEAVING", "node": "n1", "taskGroupName": "workers", "placeholder": "workers-p0",
        "since": cluster.now_ns, "message": waits["pendingReason"]["message"],
    }  # fmt: skip
    assert waits["allocationLog"][0]["message"] == waits["pendingReason"]["message"]
    cluster.wait(2)
    confirm(cluster, "x", "workers-p0")
    (took,) = cluster.application("x").allocations.values()
    assert go_json(dao.allocation(took)) == (
        b'{"allocationKey":"w","requestTime":%d,"allocationTime":%d,"allocationDelay":7000000000,'
        b'"resource":{"vcore":1},"priority":"0","nodeId":"n1","applicationId":"x","placeholderUsed":true,'
        b'"taskGroupName":"workers","bindTime":%d}' % (asked_ns, asked_ns + 7 * 10**9, asked_ns + 9 * 10**9)
    )
    assert said_of(cluster, "x")["resourceHistory"] == {"placeholderResource": {"UNKNOWN": {"vcore": 2 * 9}}}


def test_a_forming_gang_is_allocating_in_its_queues_and_running_in_none() -> None:
    cluster = Cluster(QUEUES)
    cluster.node("n1", vcore=100)
    gang(cluster, "forms", "root.p.c", total=4)
    placeholders(cluster, "forms", 1, 2)
    gang(cluster, "formed", "root.p.b")
    placeholders(cluster, "formed", 1, 2)
    cluster.app("runs", "root.p.c")
    cluster.ask("runs", "k", vcore=1)
    gang(cluster, "waits", "root.p.c", total=4)

    def shown(path: str) -> tuple[int, list[str]]:
        partition, queue = cluster.partition, cluster.queue(path)
        found = json.loads(text(json_render.queue(partition, queue, tree=False)))
        return found.get("runningApps", 0), found.get("allocatingAcceptedApps", [])

    assert shown("root.p.b") == (0, ["formed"])
    assert shown("root.p.c") == (1, ["forms"])
    assert shown("root.p") == (1, ["formed", "forms"])
    assert shown("root") == (1, ["formed", "forms"])
    assert cluster.queue("root").running_applications == 3, "a gang that forms counts against the maxima"
    tree = json.loads(text(json_render.queue(cluster.partition, cluster.partition.root, tree=True)))
    parent = next(each for each in tree["children"] if each["queuename"] == "root.p")
    assert (tree["allocatingAcceptedApps"], parent["allocatingAcceptedApps"]) == (["formed", "forms"],) * 2
    real(cluster, "formed", "w", 2)
    confirm(cluster, "formed", "workers-p0")
    assert shown("root.p.b") == (1, [])
    # As in YuniKorn, a forming gang counts against the user's limit, and so as running.
    users = usage.of_user(cluster.partition, "ann", usage.by_user(cluster.partition)["ann"])
    assert users.queues is not None
    assert users.queues.running_applications == ["forms", "formed"]


def test_an_accepted_application_with_a_reserved_node_is_allocating_in_its_queues() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a, maxapplications: 5}, {name: b}]}").having(
        {"n1": {"vcore": 4}}, {"runs": "root.a"}
    )
    cluster.ask("runs", "k", vcore=3)
    cluster.app("waits", "root.a")
    cluster.ask("waits", "large", vcore=2)
    cluster.wait(3)
    assert cluster.application("waits").asks["large"].reserved_node
    tree = json.loads(text(json_render.queue(cluster.partition, cluster.partition.root, tree=True)))
    (leaf,) = [each for each in tree["children"] if each["queuename"] == "root.a"]
    for shown in (tree, leaf):
        assert (shown["allocatingAcceptedApps"], shown["runningApps"]) == (["waits"], 1)
    cluster.release("runs", "k")
    leaf = json.loads(text(json_render.queue(cluster.partition, cluster.queue("root.a"), tree=False)))
    assert (cluster.application("waits").state, leaf.get("allocatingAcceptedApps")) == (AppState.RUNNING, None)


def test_a_placeholder_that_was_replaced_at_once_is_in_the_history_of_a_running_gang() -> None:
    cluster = Cluster(QUEUES)
    cluster.node("n1", vcore=10)
    gang(cluster, "x", total=2)
    placeholders(cluster, "x", 1, 2)
    real(cluster, "x", "w", 2)
    confirm(cluster, "x", "workers-p0")
    said = said_of(cluster, "x")
    assert (said["applicationState"], said["resourceHistory"]) == (
        "Running",
        {"placeholderResource": {"UNKNOWN": {"vcore": 0}}},
    )


def test_a_reason_in_rest_has_the_reason_of_the_rest_in_it() -> None:
    cluster = Cluster(QUEUES)
    cluster.node("n1", vcore=3)
    gang(cluster, "x", total=4)
    placeholders(cluster, "x", 2, 2)
    real(cluster, "x", "w", 1)
    reason = next(each for each in said_of(cluster, "x")["requests"] if each["allocationKey"] == "w")["pendingReason"]
    assert {name: reason[name] for name in ("code", "taskGroupName", "placed", "members")} == {
        "code": "GANG_FORMING", "taskGroupName": "workers", "placed": 1, "members": 2,
    }  # fmt: skip
    assert (reason["because"]["code"], reason["because"]["resourceType"]) == ("NO_NODE_HAS_ROOM", "vcore")


# ---- explain ---------------------------------------------------------------------------------------------------------


def test_room_that_is_promised_is_shown_at_the_application_and_its_queue() -> None:
    found = explained.gang_room()
    waits = explained.application(found.cluster, "second")
    since = waits["waiting"].pop("since")
    assert since
    assert waits["waiting"] == {
        "reason": "GANG_ROOM", "queue": "root.a", "who": "", "resourceType": "vcore", "asked": 4_000, "used": 3_000,
        "limit": 8_000, "promised": 2_000,
    }  # fmt: skip
    assert waits["gang"]["phase"] == "WAITING"
    assert waits["gang"]["promised"] == {}
    (workers,) = waits["gang"]["taskGroups"]
    assert (workers["asked"], workers["pending"], workers["because"]["reason"]) == (1, 1, "GANG_ROOM")
    assert workers["because"]["promised"] == 2_000
    forms = explained.application(found.cluster, "first")["gang"]
    assert (forms["phase"], forms["placed"], forms["promised"]) == ("FORMING", {"vcore": 2_000}, {"vcore": 2_000})
    assert forms["message"] == "Its gang forms. Of 1 placeholder 1 holds room."
    partition = found.cluster.partition
    now_ns = found.cluster.now_ns
    queue = explained.decoded(explain_queue.explain(partition, partition.queues["root.a"], now_ns, pause=None))
    assert (queue["promised"], queue["formingApplications"], queue["runningApplications"]) == ({"vcore": 2_000}, 1, 1)
    assert queue["asks"] == {"GANG_ROOM": 1}


def test_of_a_stopped_rm_that_is_why_placeholders_are_pending() -> None:
    found = explained.gang_forming()

    def because(life: str) -> str:
        state = RmEntry(RmInfo("rm1", life=life), found.cluster.core)
        app = found.cluster.application("spark")
        said = json.loads(text(explain.application(state, found.cluster.partition, app, 0)))
        (workers,) = said["gang"]["taskGroups"]
        reason: str = workers["because"]["reason"]
        return reason

    assert because("RUNNING") == "NO_NODE_HAS_ROOM"
    assert because("STOPPED") == "RM_STOPPED"


def test_a_queue_that_is_full_of_gangs_says_so() -> None:
    cluster = Cluster(QUEUES).having({"n1": {"vcore": 10}}, {"runs": "root.a"})
    cluster.ask("runs", "k", vcore=1)
    gang(cluster, "x", total=4)
    placeholders(cluster, "x", 1, 2)
    shown = explain_queue.explain(cluster.partition, cluster.queue("root.a"), cluster.now_ns, pause=None)
    assert (shown.running_applications, shown.forming_applications) == (1, 1)
    assert "It runs its maximum of 2 applications (1 of them with a forming gang)." in shown.message


def test_a_users_limit_without_room_for_the_gang_names_the_user() -> None:
    cluster = Cluster(QUEUES)
    cluster.node("n1", vcore=20)
    gang(cluster, "x", total=9)
    placeholders(cluster, "x", 1, 4)
    gang(cluster, "y", total=2)
    placeholders(cluster, "y", 1, 2)
    waiting = dao.reason_of(ask_reason(cluster.application("y").asks["workers-p0"]))  # type: ignore[arg-type]
    assert (waiting.code, waiting.who, waiting.queue, waiting.promised) == ("GANG_ROOM", "ann", "root.a", 5)
    assert (
        "User ann uses 0.004 cores of its limit of 0.009 cores in queue root.a; 0.005 cores are promised"
        in waiting.message
    )


def test_announced_and_never_asked_for_says_what_is_missing() -> None:
    cluster = Cluster(QUEUES)
    cluster.node("n1", vcore=20)
    gang(cluster, "x", total=6)
    placeholders(cluster, "x", 2, 2)
    real(cluster, "x", "w", 1)
    wanted = cluster.application("x").asks["w"]
    reason = ask_reason(wanted)
    assert reason is not None
    shown = dao.reason_of(reason)
    assert (shown.code, shown.resource_type, shown.asked, shown.used) == ("GANG_FORMING", "vcore", 6, 4)
    assert "announced placeholders of 0.006 cores; 0.004 cores are placed" in shown.message


def test_the_phases_in_words() -> None:
    cluster = Cluster(QUEUES)
    gang(cluster, "x", total=4, style="Hard")

    def said() -> str:
        found: str = json.loads(
            text(explain.application(_state(cluster), cluster.partition, cluster.application("x"), 0))
        )["message"]
        return found

    assert said() == (
        "It is new. It has no allocation, and wants no more. Its gang waits to start. It has asked for no placeholder."
    )
    placeholders(cluster, "x", 2, 2)
    assert said().startswith(
        "It is accepted. It has no allocation, and wants 2 more. Its gang waits to start. Of 2 placeholders 2 are "
        "pending."
    )
    cluster.node("n1", vcore=3)
    assert "Its gang forms. Of 2 placeholders 1 is pending and 1 holds room." in said()
    cluster.node("n2", vcore=3)
    assert "Its gang is formed. Of 2 placeholders 2 hold room." in said()
    cluster.wait(15 * 60 + 1)
    assert said() == (
        "It is failing. It has 2 allocations, all of which are being released, and wants no more. "
        "Its placeholders timed out before any real allocation. Of 2 placeholders 2 are being released."
    )


def test_a_member_preempted_with_its_whole_gang_says_so() -> None:
    queue = "{name: a, properties: {gang.preemption: whole}}"
    arena = explained.cluster("{name: poor, resources: {guaranteed: {vcore: 2}}}", queue)
    arena.node("n1", vcore=4_000)
    explained.gang(arena, "x", 4_000)
    placeholders = [
        AskItem(
            f"p{number}",
            "x",
            "default",
            {"vcore": 1_000},
            wanted=1,
            priority=0,
            tags={},
            task_group="workers",
            placeholder=True,
            allow_preempt_self=True,
        )
        for number in range(4)
    ]
    arena.do(UpdateAllocations(placeholders))
    explained.add(arena, "app", "root.poor")
    explained.asked(arena)
    state = RmEntry(RmInfo("rm1", life="RUNNING"), arena.core)
    told = json.loads(text(explain.preempted(state, arena.now_ns)))["preempted"]
    assert [(each["allocationKey"], each["placeholder"], each["taskGroup"], each["withGang"]) for each in told] == [
        (f"p{number}", True, "workers", True) for number in range(4)
    ]
    assert all(each["message"].endswith(" Its whole gang is preempted.") for each in told)


def test_the_event_of_a_replacement_names_the_real_ask() -> None:
    cluster = Cluster(QUEUES)
    cluster.node("n1", vcore=10)
    gang(cluster, "x", total=2)
    placeholders(cluster, "x", 1, 2)
    real(cluster, "x", "w", 1)
    confirm(cluster, "x", "workers-p0")
    (event,) = [each for each in cluster.outcomes[-1].events if each.detail is EventDetail.ALLOC_REPLACED]
    assert (event.object_id, event.reference_id, event.message) == ("x", "workers-p0", "replaced by w")


def _state(cluster: Cluster) -> RmEntry:
    return RmEntry(RmInfo("rm1", life="RUNNING"), cluster.core)


# ---- the folded state is the core's ----------------------------------------------------------------------------------


def life(cluster: Cluster) -> Iterator[str]:
    """Yield the steps of a life of two gangs and an ordinary application."""
    cluster.node("n1", vcore=4)
    cluster.app("plain", "root.p.c")
    cluster.ask("plain", "k", vcore=1)
    gang(cluster, "x", total=6)
    yield "announced"
    placeholders(cluster, "x", 3, 2)
    real(cluster, "x", "early", 2)
    gang(cluster, "y", total=6)
    placeholders(cluster, "y", 3, 2)
    yield "the first forms, the second waits for the user's limit"
    cluster.node("n2", vcore=4)
    yield "formed, a replacement is under way"
    confirm(cluster, "x", "workers-p0")
    real(cluster, "x", "smaller", 1)
    real(cluster, "x", "again", 2)
    yield "one replaced, two under way"
    cluster.release("x", "again")
    yield "an ask went, its placeholder goes still"
    cluster.do(UpdateNodes((NodeItem("n1", NodeAction.DRAIN_NODE), NodeItem("n2", NodeAction.DRAIN_NODE))))
    confirm(cluster, "x", "workers-p1")
    yield "allocated nowhere: its node is draining"
    gang(cluster, "z", "root.p.b")
    placeholders(cluster, "z", 2, 1)
    cluster.node("n3", vcore=1)
    yield "incremental"
    cluster.node("n4", vcore=1)
    cluster.do(UpdateNodes((NodeItem("n3", NodeAction.DRAIN_NODE), NodeItem("n4", NodeAction.DRAIN_NODE))))
    real(cluster, "z", "next", 1)
    real(cluster, "z", "bound", 1, **{REQUIRED_NODE_TAG: "n1"})
    yield "stuck"
    cluster.do(UpdateNodes((NodeItem("n2", NodeAction.DECOMISSION),)))
    yield "a node went"
    cluster.wait(15 * 60 + 1)
    yield "timed out"


def test_the_life_below_meets_every_reason_that_gangs_have() -> None:
    cluster = Cluster(QUEUES)
    seen = {code for _ in life(cluster) for code in explain.summary(_state(cluster), "").counts}
    assert seen >= {"GANG_ROOM", "GANG_FORMING", "PLACEHOLDER_LEAVING", "PLACEHOLDER_STUCK"}


def expected(rm: Recorded, now_ns: int) -> dict[str, Callable[[], bytes]]:
    partition, state = rm.cluster.partition, RmEntry(rm.info, rm.cluster.core)

    def of_queue(path: str) -> bytes:
        return go_json(explain_queue.explain(partition, partition.queues[path], now_ns, pause=None))

    return {
        f"{P}/queues": lambda: text(
            json_render.queue(partition, partition.root, tree=True, shown_partition=partition.name)
        ),
        f"{E}/pending": lambda: text(explain.pending(state, now_ns)),
        f"{E}/summary": lambda: go_json(explain.summary(state, "It is connected.")),
        **{f"{E}/queue/{path}": lambda path=path: of_queue(path) for path in partition.queues},  # type: ignore[misc]
        **{
            f"{P}/application/{app.app_id}": lambda app=app: text(json_render.application(partition, app))  # type: ignore[misc]
            for app in partition.apps.values()
        },
        **{
            f"{E}/application/{app.app_id}": lambda app=app: text(  # type: ignore[misc]
                explain.application(state, partition, app, now_ns)
            )
            for app in partition.apps.values()
        },
    }


@pytest.mark.parametrize("piecemeal", [False, True], ids=["collected", "followed"])
async def test_each_step_is_shown_as_it_was_decided(bench: Bench, *, piecemeal: bool) -> None:
    rm = bench.rm(queues=QUEUES)
    bench.clock = ClockOf(lambda: rm.cluster.now_ns)
    await bench.write(rm)
    seen = []
    if piecemeal:
        async with bench.view() as view, client_of(view) as client:
            for step in life(rm.cluster):
                await bench.write(rm)
                await compare(client, rm, step)
                seen.append(step)
    else:
        for step in life(rm.cluster):
            await bench.write(rm)
            async with bench.view() as view, client_of(view) as client:
                await compare(client, rm, step)
            seen.append(step)
    assert len(seen) == 10


async def compare(client: Any, rm: Recorded, step: str) -> None:
    for path, make in expected(rm, rm.cluster.now_ns).items():
        answer = await client.get(path)
        assert answer.status_code == 200, (step, path, answer.text)
        assert unordered(answer.json()) == unordered(json.loads(make())), f"{step}: {path}"
