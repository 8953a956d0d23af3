"""Gangs over the public interface: the messages of a resource manager, and the answers of REST (the gang design).

The names of the tests cite the sections of the gang design. Those with ``words`` are said in both generations of the
interface: the current one's Allocations, and the previous one's AllocationAsks with repeats and UUIDs (previous
generation).
"""

from __future__ import annotations

from typing import Any

import pytest
from e2e.gang_rig import E, Muster, P, Rm, Told, live_through
from muster_client import AdminClient, ask, release
from muster_proto.si.v1 import si_pb2 as si
from waiting import eventually

QUEUES = """
partitions:
  - name: default
    preemption: {enabled: true}
    placementrules: [{name: provided, create: true}]
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: free}
          - {name: stateaware, properties: {application.sort.policy: stateaware}}
          - {name: fair, properties: {application.sort.policy: fair}}
          - {name: loose, properties: {gang.start: incremental}}
          - {name: limited, resources: {max: {vcore: 4}}}
          - {name: parent, resources: {max: {vcore: 5}}, queues: [{name: leaf}]}
          - {name: users, limits: [{users: [ann], maxresources: {vcore: 3}}]}
          - {name: dynamic, parent: true, childtemplate: {resources: {max: {vcore: 2}}}}
          - {name: one, maxapplications: 1}
          - {name: poor, resources: {guaranteed: {vcore: 2}}, properties: {preemption.delay: 1s}}
          - {name: whole, properties: {gang.preemption: whole}}
"""


REPLACED, TIMED_OUT, RESUMING, FAILING, REQUEST_TIMED_OUT = 503, 502, 211, 209, 102


DEFAULT_TIMEOUT_S = 15 * 60


both = pytest.mark.parametrize("previous", [False, True], ids=["current words", "previous words"])


def rm_of(muster: Muster, *, previous: bool = False, rm_id: str = "rm") -> Rm:
    return Rm(muster.gateway, muster.http, rm_id, QUEUES, previous=previous)


def states(app: dict[str, Any]) -> list[str]:
    """(Of the previous generation Starting comes before Running: a word, not a state.)"""
    return [each["applicationState"] for each in app["stateLog"] if each["applicationState"] != "Starting"]


def kinds(rm: Rm, *names: str) -> list[tuple[str, str]]:
    """What it heard of these, in order."""
    return [(told.kind, told.name) for told in rm.heard if told.name in names]


async def formed(rm: Rm, app: str, queue: str, count: int, **more: Any) -> list[str]:
    """Forms a gang of that many placeholders of one vcore each."""
    assert (await rm.application(app, queue, count * 1_000, **more)).how == "accepted"
    names = await rm.placeholders(app, count, 1_000)
    await eventually(lambda: set(names) <= set(rm.runs), f"{names} run")
    return names


async def test_003_total_placeholder_size_what_can_never_fit_is_rejected(muster: Muster) -> None:
    cases = {
        "limited": (5_000, ("map[vcore:5000]", "larger than max queue allocation map[vcore:4000]")),
        "parent.leaf": (6_000, ("map[vcore:6000]", "larger than max queue allocation map[vcore:5000]")),
        "users": (4_000, ("map[vcore:4000]", "larger than the limit of user ann in queue root.users")),
        "dynamic.new": (3_000, ("map[vcore:3000]", "larger than max queue allocation map[vcore:2000]")),
        "fair": (1_000, ("queue root.fair cannot run application in-fair", "unsupported sort type fair")),
    }
    async with rm_of(muster) as rm:
        for queue, (total, why) in cases.items():
            answer = await rm.application(f"in-{queue}", f"root.{queue}", total)
            assert answer.how == "Rejected", queue
            assert all(part in answer.message for part in why), answer.message
        shown = await rm.shows(f"{P}/applications/rejected", lambda found: len(found) == len(cases))
        said = {told.name: told.message for told in rm.heard if told.how == "Rejected"}
        assert {each["applicationID"]: each["rejectedMessage"] for each in shown} == said
        assert {states(each)[-1] for each in shown} == {"Rejected"}
        assert await rm.get(f"{P}/queue/root.dynamic.new") is None, "a rejected application leaves no queue behind"


async def test_003_total_placeholder_size_what_fits_to_the_last_is_accepted(muster: Muster) -> None:
    cases = {"limited": 4_000, "parent.leaf": 5_000, "users": 3_000, "dynamic.new": 2_000, "stateaware": 9_000}
    async with rm_of(muster) as rm:
        for queue, total in cases.items():
            assert (await rm.application(f"in-{queue}", f"root.{queue}", total)).how == "accepted", queue
        shown = await rm.shows(f"{P}/applications/active", lambda found: len(found) == len(cases))
        assert {each["applicationState"] for each in shown} == {"New"}


async def test_003_stateaware_is_taken_as_fifo_and_the_registration_says_so(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        (warning,) = rm.client.warnings
        where = "partitions[0].queues[0].queues[1].properties.application.sort.policy"
        assert where in warning
        assert "stateaware is deprecated: it means fifo" in warning


@both
async def test_003_quota_no_placeholder_before_there_is_room_for_all_and_others_go_on(
    muster: Muster, *, previous: bool
) -> None:
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=9_000)
        await rm.application("other", "root.limited")
        first = await rm.real("other", "first", 2_000, group="")
        await rm.runs_these(first)
        await rm.application("x", "root.limited", 3_000)
        names = await rm.placeholders("x", 3, 1_000)
        second = await rm.real("other", "second", 1_000, group="")
        await rm.hears("new", second)
        await rm.barrier()
        await rm.runs_these(first, second)
        waits = await rm.explains("x", lambda said: said["waiting"])
        assert {name: waits["waiting"][name] for name in ("reason", "queue", "resourceType", "asked", "limit")} == {
            "reason": "GANG_ROOM", "queue": "root.limited", "resourceType": "vcore", "asked": 3_000, "limit": 4_000,
        }  # fmt: skip
        assert waits["gang"]["phase"] == "WAITING"
        assert waits["counts"] == {"GANG_ROOM": 3}
        assert (await rm.app("x"))["applicationState"] == "Accepted"
        await rm.ends(first)
        await rm.runs_these(second, *names)
        found = await rm.explains("x", lambda said: said["gang"]["phase"] == "FORMED")
        assert found["waiting"] is None


async def test_003_quota_what_is_promised_to_one_gang_is_not_there_for_another(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=1_000)
        await rm.application("first", "root.limited", 3_000)
        await rm.placeholders("first", 3, 1_000, group="a")
        await rm.runs_these("a-p0")
        await rm.application("second", "root.limited", 2_000)
        await rm.placeholders("second", 2, 1_000, group="b")
        waits = await rm.explains("second", lambda said: said["waiting"])
        assert (waits["waiting"]["used"], waits["waiting"]["promised"]) == (1_000, 2_000)
        assert "2 cores are promised to gangs that have started" in waits["message"]
        forms = await rm.explains("first")
        assert (forms["gang"]["placed"], forms["gang"]["promised"]) == ({"vcore": 1_000}, {"vcore": 2_000})
        assert (await rm.get(f"{E}/queue/root.limited"))["promised"] == {"vcore": 2_000}
        await rm.nodes(n2=9_000)
        await rm.runs_these("a-p0", "a-p1", "a-p2")


async def limits_to(muster: Muster, vcores: int) -> None:
    """Sets the max of root.limited, as an operator."""
    before, after = (f"{{name: limited, resources: {{max: {{vcore: {each}}}}}}}" for each in (4, vcores))
    assert before in QUEUES
    async with AdminClient(muster.gateway) as admin:
        assert (await admin.update_configuration("rm", QUEUES.replace(before, after))).accepted


@both
async def test_003_quota_a_max_lowered_below_an_accepted_gang_starts_its_clock_and_its_style_decides(
    muster: Muster, *, previous: bool
) -> None:
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=9_000)
        for app, style in (("hard", "Hard"), ("soft", "Soft")):
            assert (await rm.application(app, "root.limited", 4_000, style=style, timeout_ms=600_000)).how == "accepted"
        await limits_to(muster, 2)
        for app in ("hard", "soft"):
            await rm.placeholders(app, 4, 1_000, group=app)
        await rm.real("hard", "never", 1_000, group="hard")
        wanted = await rm.real("soft", "wanted", 1_000, group="soft")
        waits = await rm.explains("hard", lambda said: said["waiting"] and said["gang"]["deadline"])
        assert waits["gang"]["phase"] == "WAITING"
        lacks = "the placeholderAsk vcore:4000 is larger than the max of queue root.limited, vcore:2000"
        assert f"It cannot start: {lacks}" in waits["gang"]["message"]
        await rm.barrier()
        assert not rm.runs
        muster.clock.forward(601)
        failing = await rm.hears("application", "hard", "Failing")
        assert failing.message == "ResourceReservationTimeout"
        await rm.hears("application", "hard", "Failed")
        dropped = await rm.hears("dropped", "hard-p" if previous else "hard-p3", "TIMEOUT")
        assert dropped.message == f"the placeholders' time-out of 600000 ms is over: {lacks}"
        resuming = await rm.hears("application", "soft", "Resuming")
        assert resuming.message == "ResourceReservationTimeout"
        await rm.runs_these(wanted)
        assert states(await rm.app("soft", lambda said: said["applicationState"] == "Running")) == [
            "New", "Accepted", "Resuming", "Accepted", "Running",
        ]  # fmt: skip
        assert (len(await rm.events("hard", FAILING)), len(await rm.events("soft", RESUMING))) == (1, 1)


async def test_003_quota_a_max_raised_again_before_the_time_out_lets_the_gang_go_on(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=9_000)
        await rm.application("x", "root.limited", 4_000, style="Hard")
        names = await rm.placeholders("x", 2, 1_000, group="a")
        await rm.runs_these(*names)
        await rm.application("y", "root.limited", 3_000, style="Hard")
        later = await rm.placeholders("y", 3, 1_000, group="b")
        await limits_to(muster, 2)
        await rm.explains("y", lambda said: said["gang"]["deadline"])
        muster.clock.forward(DEFAULT_TIMEOUT_S - 60)
        await limits_to(muster, 4)
        await rm.explains("y", lambda said: not said["gang"]["deadline"])
        muster.clock.forward(61)
        # The one that had placeholders has kept the clock of its first one, and makes room for the other.
        await rm.hears("application", "x", "Failing")
        for name in names:
            await rm.hears("released", name, "TIMEOUT")
        await rm.confirm(*names)
        await rm.runs_these(*later)
        assert not [told for told in rm.heard if told[:3] == ("application", "y", "Failing")]
        await rm.explains("y", lambda said: said["gang"]["phase"] == "FORMED" and said["gang"]["deadline"])


@both
async def test_003_scheduler_logic_placeholders_count_in_full_and_keep_the_application_accepted(
    muster: Muster, *, previous: bool
) -> None:
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=2_000)
        await rm.application("x", "root.one", 3_000)
        names = await rm.placeholders("x", 3, 1_000)
        await rm.runs_these(*names[:2])
        held = rm.runs[names[0]]
        assert (held.placeholder, held.taskGroupName) == (True, "workers")
        wanted = await rm.real("x", "w", 1_000)
        waits = await rm.shows(f"{E}/ask/x/w", lambda said: said["reason"] == "GANG_FORMING")
        gang = waits["gang"]
        assert (gang["taskGroup"], gang["placed"], gang["members"]) == ("workers", 2, 3)
        assert (gang["because"]["reason"], gang["because"]["resourceType"]) == ("NO_NODE_HAS_ROOM", "vcore")
        assert waits["message"].startswith("It waits for its gang: task group workers has 2 of 3 placeholders placed; ")
        # Accepted, and counted in full: for the queue (its maximum of applications too), the user and the node.
        app = await rm.app("x")
        assert (app["applicationState"], app["maxUsedResource"]) == ("Accepted", {"vcore": 2_000})
        assert "usedResource" not in app, "that is what its real allocations hold"
        assert app["placeholderData"] == [{"taskGroupName": "workers", "count": 3, "minResource": {"vcore": 1_000}}]
        queue = await rm.get(f"{P}/queue/root.one")
        assert queue["allocatedResource"] == {"vcore": 2_000}
        assert (queue["allocatingAcceptedApps"], queue.get("runningApps", 0)) == (["x"], 0)
        shown = await rm.get(f"{P}/node/n1")
        assert (shown["allocated"], [each["placeholder"] for each in shown["allocations"]]) == (
            {"vcore": 2_000},
            [True, True],
        )
        usage = await rm.get(f"{P}/usage/user/ann")
        assert usage["queues"]["resourceUsage"] == {"vcore": 2_000}
        await rm.application("y", "root.one")
        await rm.real("y", "k", 100, group="")
        second = await rm.explains("y", lambda said: said["waiting"])
        assert second["waiting"]["reason"] == "QUEUE_MAX_APPLICATIONS"
        # Room for the last one: the gang is formed, and the real ask gets the place of the first.
        await rm.nodes(n2=1_000)
        await rm.swaps(names[0], wanted)
        assert states(await rm.app("x", lambda said: said["applicationState"] == "Running")) == [
            "New", "Accepted", "Running",
        ]  # fmt: skip


async def test_003_scheduler_logic_several_task_groups_form_one_gang(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=3_000)
        await rm.application("x", "root.free", 4_000)
        (driver,) = await rm.placeholders("x", 1, 2_000, group="driver")
        workers = await rm.placeholders("x", 2, 1_000)
        await rm.real("x", "d", 2_000, group="driver")
        await rm.runs_these(driver, workers[0])
        waits = await rm.shows(f"{E}/ask/x/d", lambda said: said["reason"] == "GANG_FORMING")
        assert waits["gang"]["taskGroup"] == "workers", "its own group is complete: it waits for the other group"
        await rm.nodes(n2=1_000)
        await rm.hears("released", driver, "PLACEHOLDER_REPLACED")
        groups = {each["taskGroup"]: each for each in (await rm.explains("x"))["gang"]["taskGroups"]}
        assert {name: (each["asked"], each["held"], each["leaving"]) for name, each in groups.items()} == {
            "driver": (1, 1, 1), "workers": (2, 2, 0),
        }  # fmt: skip


async def test_003_scheduler_logic_incremental_gangs_start_as_they_fit(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=1_000)
        await rm.application("x", "root.loose", 3_000)
        names = await rm.placeholders("x", 3, 1_000)
        await rm.runs_these(names[0])
        await rm.real("x", "w", 1_000)
        await rm.hears("released", names[0], "PLACEHOLDER_REPLACED")
        await rm.real("x", "next", 1_000)
        waits = await rm.shows(f"{E}/ask/x/next", lambda said: said["reason"] == "GANG_FORMING")
        assert (waits["gang"]["placed"], waits["gang"]["members"]) == (1, 3)
        await rm.confirm(names[0])
        await rm.hears("new", "w")


@both
async def test_003_replacement_has_two_phases_and_counts_nothing_twice(muster: Muster, *, previous: bool) -> None:
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=2_000)
        names = await formed(rm, "x", "root.free", 2)
        wanted = await rm.real("x", "w", 1_000)
        told = await rm.hears("released", names[0])
        assert (told.how, told.message) == ("PLACEHOLDER_REPLACED", "replacing allocationKey: w")
        await rm.barrier()
        assert wanted not in rm.runs, "not before the confirmation"
        waits = await rm.shows(f"{E}/ask/x/w", lambda said: said["reason"] == "PLACEHOLDER_LEAVING")
        assert (waits["gang"]["placeholder"], waits["node"]) == (rm.runs[names[0]].allocationKey, "n1")
        middle = await rm.explains("x")
        assert [(each["allocationKey"], each["state"]) for each in middle["replacements"]] == [("w", "LEAVING")]
        assert (await rm.get(f"{P}/queue/root.free"))["allocatedResource"] == {"vcore": 2_000}
        await rm.confirm(names[0])
        assert (await rm.hears("new", wanted)).how == "n1"
        assert kinds(rm, names[0], wanted) == [("new", names[0]), ("released", names[0]), ("new", wanted)]
        app = await rm.app("x", lambda said: said["applicationState"] == "Running")
        assert app["usedResource"] == {"vcore": 1_000}
        assert (await rm.get(f"{P}/queue/root.free"))["allocatedResource"] == {"vcore": 2_000}
        assert app["placeholderData"][0]["replaced"] == 1
        took = next(each for each in app["allocations"] if each["allocationKey"] == "w")
        left = next(each for each in app["allocations"] if each["allocationKey"] != "w")
        assert took["placeholderUsed"]
        assert took["requestTime"] == left["requestTime"] < took["allocationTime"]
        assert took["allocationDelay"] == took["allocationTime"] - took["requestTime"]
        assert "placeholderUsed" not in left
        node = await rm.get(f"{P}/node/n1")
        assert (node["allocated"], len(node["allocations"])) == ({"vcore": 2_000}, 2)
        done = await rm.explains("x", lambda said: said["replacements"])
        assert [(each["allocationKey"], each["state"], each["node"]) for each in done["replacements"]] == [
            ("w", "DONE", "n1")
        ]
        (event,) = await rm.events("x", REPLACED)
        assert (event["message"], event["referenceID"]) == ("replaced by w", middle["replacements"][0]["placeholder"])


async def test_003_replacement_on_another_node_keeps_that_one_free_until_the_placeholder_is_gone(
    muster: Muster,
) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=1_000)
        (placeholder,) = await formed(rm, "x", "root.free", 1)
        await rm.nodes(n2=1_000)
        await rm.node_action("n1", si.NodeInfo.DRAIN_NODE)
        await rm.shows(f"{P}/node/n1", lambda node: not node["schedulable"])
        await rm.real("x", "w", 1_000)
        await rm.hears("released", placeholder, "PLACEHOLDER_REPLACED")
        node = await rm.shows(f"{P}/node/n2", lambda node: node["isReserved"])
        assert node["reservations"] == ["w"]
        await rm.application("other", "root.free")
        await rm.real("other", "k", 1_000, group="")
        await rm.barrier()
        assert "k" not in rm.runs, "the node is kept for the real ask"
        await rm.confirm(placeholder)
        assert (await rm.hears("new", "w")).how == "n2"
        assert (await rm.shows(f"{P}/node/n2", lambda node: not node["isReserved"]))["allocated"] == {"vcore": 1_000}


@both
async def test_003_replacement_a_larger_ask_goes_the_normal_way_and_one_placeholder_goes_for_it(
    muster: Muster, *, previous: bool
) -> None:
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=2_000)
        names = await formed(rm, "x", "root.free", 2)
        wanted = await rm.real("x", "large", 1_500)
        told = await rm.hears("released", names[0])
        assert (told.how, told.message) == ("TIMEOUT", "cancel placeholder: resource incompatible")
        found = await rm.shows(f"{E}/ask/x/large", lambda said: said["reason"] == "NO_NODE_HAS_ROOM")
        assert found["gang"] is None
        await rm.confirm(names[0])
        await rm.nodes(n2=2_000)
        assert (await rm.hears("new", wanted)).how == "n2"
        app = await rm.app("x", lambda said: len(said.get("allocations", ())) == 2)
        assert app["placeholderData"][0]["timedout"] == 1
        assert not any(each.get("placeholderUsed") for each in app["allocations"])
        assert names[1] in rm.runs, "the other placeholder stays"
        (event,) = await rm.events("x", TIMED_OUT)
        assert event["eventChangeType"] == 3


async def test_003_replacement_a_smaller_ask_gives_the_rest_back(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=2_000)
        names = await formed(rm, "x", "root.free", 2)
        await rm.real("x", "small", 250)
        await rm.swaps(names[0], "small")
        assert (await rm.app("x", lambda said: said["applicationState"] == "Running"))["usedResource"] == {"vcore": 250}
        assert (await rm.get(f"{P}/queue/root.free"))["allocatedResource"] == {"vcore": 1_250}
        await rm.application("other", "root.free")
        await rm.real("other", "k", 750, group="")
        await rm.hears("new", "k")


@both
async def test_003_replacement_oldest_placeholder_first_and_what_is_beyond_them_goes_the_normal_way(
    muster: Muster, *, previous: bool
) -> None:
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=9_000)
        names = await formed(rm, "x", "root.free", 2)
        reals = [await rm.real("x", f"w{number}", 1_000) for number in range(3)]
        await rm.hears("released", names[1], "PLACEHOLDER_REPLACED")
        leaving = [told for told in rm.heard if told.kind == "released"]
        assert [(told.name, told.message) for told in leaving] == [
            (names[0], "replacing allocationKey: w0"), (names[1], "replacing allocationKey: w1"),
        ]  # fmt: skip
        without = await rm.real("x", "no-group", 1_000, group="")
        await rm.runs_these(*names, reals[2], without)  # at once: no placeholder goes for them
        await rm.confirm(*names)
        await rm.runs_these(*reals, without)


async def test_003_replacement_that_is_never_confirmed_is_repeated(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=1_000)
        (placeholder,) = await formed(rm, "x", "root.free", 1)
        await rm.real("x", "w", 1_000)
        first = await rm.hears("released", placeholder)
        muster.clock.forward(5 * 60 + 1)
        again = await rm.hears("released", placeholder, times=2)
        assert (again.how, again.message.startswith(f"{first.message} (reminder")) == (first.how, True)
        await rm.confirm(placeholder)
        await rm.hears("new", "w")


async def test_003_replacement_whose_node_goes_opens_the_ask_again(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=1_000)
        (placeholder,) = await formed(rm, "x", "root.free", 1)
        await rm.real("x", "w", 1_000)
        await rm.hears("released", placeholder, "PLACEHOLDER_REPLACED")
        await rm.node_action("n1", si.NodeInfo.DECOMISSION)
        found = await rm.shows(f"{E}/ask/x/w", lambda said: said["reason"] == "NO_NODES")
        assert found["gang"] is None
        await rm.nodes(n2=1_000)
        assert (await rm.hears("new", "w")).how == "n2"
        (workers,) = (await rm.explains("x", lambda said: not said["pending"]))["gang"]["taskGroups"]
        assert (workers["asked"], workers["held"], workers["replaced"], workers["lost"]) == (1, 0, 0, 1)


async def test_003_replacement_whose_ask_is_cancelled_leaves_nothing(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=2_000)
        names = await formed(rm, "x", "root.free", 2)
        await rm.real("x", "w", 1_000)
        await rm.hears("released", names[0], "PLACEHOLDER_REPLACED")
        await rm.client.send_releases([release("x", "w")])
        await rm.barrier()
        await rm.confirm(names[0])
        await rm.barrier()
        await rm.runs_these(names[1])
        app = await rm.app("x", lambda said: len(said["allocations"]) == 1)
        assert "requests" not in app
        assert (await rm.explains("x"))["replacements"] == []


async def test_003_replacement_whose_application_is_removed_leaves_nothing(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=2_000)
        names = await formed(rm, "x", "root.free", 2)
        await rm.real("x", "w", 1_000)
        await rm.hears("released", names[0], "PLACEHOLDER_REPLACED")
        await rm.client.send_applications(
            remove=[si.RemoveApplicationRequest(applicationID="x", partitionName="default")]
        )
        await rm.shows(f"{P}/node/n1", lambda node: "allocated" not in node)
        await rm.confirm(names[0])
        await rm.barrier()
        assert "w" not in rm.runs
        assert await rm.get(f"{P}/application/x") is None
        assert (await rm.get(f"{P}/queue/root.free")).get("allocatedResource", {}) == {}
        assert (await rm.get("/ws/v1/scheduler/healthcheck"))["Healthy"]


async def test_003_replacement_goes_on_when_the_connection_was_lost(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=1_000)
        (placeholder,) = await formed(rm, "x", "root.free", 1)
        await rm.real("x", "w", 1_000)
        await rm.hears("released", placeholder, "PLACEHOLDER_REPLACED")
        await rm.comes_back()
        await rm.confirm(placeholder)
        await rm.hears("new", "w")


async def test_003_replacement_of_a_placeholder_that_could_not_start_waits_until_it_is_there(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=2_000)
        names = await formed(rm, "x", "root.free", 2)
        failed = rm.reports(names[0])
        rm.runs.pop(names[0])
        await rm.client.send_releases([release("x", failed.allocationKey, termination_type=si.SCHEDULING_FAILED_ON_RM)])
        await rm.hears("new", names[0], times=2)
        (workers,) = (await rm.explains("x"))["gang"]["taskGroups"]
        assert (workers["asked"], workers["held"], workers["lost"]) == (2, 2, 0)
        await rm.real("x", "w", 1_000)
        told = await eventually(lambda: [told for told in rm.heard if told.how == "PLACEHOLDER_REPLACED"], "it is told")
        await rm.confirm(told[0].name)
        await rm.hears("new", "w")


async def test_000_a_placeholder_without_a_task_group_is_an_ordinary_ask(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=1_000)
        await rm.application("x", "root.free")
        await rm.client.send_asks([ask("k", "x", {"vcore": 1_000}, placeholder=True)])
        await rm.hears("new", "k")
        assert not rm.runs["k"].placeholder
        app = await rm.app("x", lambda said: said["applicationState"] == "Running")
        assert "placeholderData" not in app
        assert (await rm.explains("x"))["gang"] is None


async def test_003_a_placeholder_that_ends_without_a_release_is_removed(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=9_000)
        for how in (si.PLACEHOLDER_REPLACED, si.TIMEOUT, si.PREEMPTED_BY_SCHEDULER, si.STOPPED_BY_RM):
            app = group = f"ends-{how}"
            await rm.application(app, "root.free", 2_000)
            first, second = await rm.placeholders(app, 2, 1_000, group)
            await rm.hears("new", second)
            rm.runs.pop(first)
            gone = release(app, first, termination_type=how)
            await rm.client.send_releases([gone])
            await rm.client.send_releases([gone])  # and once more
            await rm.barrier()
            found = await rm.explains(app, lambda said: said["allocations"] == 1)
            (members,) = found["gang"]["taskGroups"]
            assert (members["asked"], members["held"], members["lost"]) == (2, 1, 1)
            wanted = await rm.real(app, f"real-{how}", 1_000, group)
            await rm.swaps(second, wanted)
        assert (await rm.get("/ws/v1/scheduler/healthcheck"))["Healthy"]


@both
async def test_003_cleanup_soft_time_out_before_anything_real_resumes_the_application(
    muster: Muster, *, previous: bool
) -> None:
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=2_000)
        await rm.application("x", "root.free", 3_000)
        names = await rm.placeholders("x", 3, 1_000)
        await rm.runs_these(*names[:2])
        wanted = await rm.real("x", "w", 2_000)
        deadline = (await rm.explains("x", lambda said: said["pending"] == 2))["gang"]["deadline"]
        assert deadline > muster.clock.now_ns()
        muster.clock.forward(DEFAULT_TIMEOUT_S + 1)
        dropped = "workers-p" if previous else names[2]
        assert (await rm.hears("dropped", dropped)).how == "TIMEOUT"
        resumed = await rm.hears("application", "x", "Resuming")
        assert resumed.message == "ResourceReservationTimeout"
        for name in names[:2]:
            await rm.hears("released", name, "TIMEOUT")
        await rm.barrier()
        assert wanted not in rm.runs, "the placeholders are still there"
        await rm.confirm(*names[:2])
        await rm.hears("application", "x", "Accepted", times=2)
        await rm.hears("new", wanted)
        app = await rm.app("x", lambda said: said["applicationState"] == "Running")
        assert states(app) == ["New", "Accepted", "Resuming", "Accepted", "Running"]
        assert app["placeholderData"][0]["timedout"] == 3
        gang = (await rm.explains("x"))["gang"]
        assert gang["deadline"] == 0
        assert [each["eventChangeType"] for each in await rm.events("x", RESUMING)] == [1]
        assert len(await rm.events("x", TIMED_OUT, 2)) == 2
        assert await rm.events("x", REQUEST_TIMED_OUT)


@both
async def test_003_cleanup_hard_time_out_before_anything_real_fails_the_application(
    muster: Muster, *, previous: bool
) -> None:
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=2_000)
        await rm.application("x", "root.free", 3_000, style="Hard", timeout_ms=60_000)
        names = await rm.placeholders("x", 3, 1_000)
        await rm.runs_these(*names[:2])
        await rm.real("x", "w", 1_000)
        await rm.barrier()
        muster.clock.forward(61)
        failing = await rm.hears("application", "x", "Failing")
        assert failing.message == "ResourceReservationTimeout"
        await rm.hears("dropped", "workers-p" if previous else names[2], "TIMEOUT")
        await rm.app("x", lambda said: said["applicationState"] == "Failing" and "requests" not in said)
        await rm.confirm(*names[:2])
        await rm.hears("application", "x", "Failed")
        (over,) = await rm.shows(f"{P}/applications/completed", bool)
        assert states(over)[-2:] == ["Failing", "Failed"]
        assert (await rm.get(f"{P}/node/n1")).get("allocated", {}) == {}
        assert len(await rm.events("x", FAILING)) == 1
        # Its id may be used again, by a gang that fits.
        await rm.nodes(n2=1_000)
        again = await rm.application("x", "root.free", 3_000)
        assert again.how == "accepted"


@both
async def test_003_cleanup_with_real_allocations_only_unused_placeholders_go(muster: Muster, *, previous: bool) -> None:
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=3_000)
        names = await formed(rm, "x", "root.free", 3, style="Hard")
        wanted = await rm.real("x", "w", 1_000)
        await rm.swaps(names[0], wanted)
        muster.clock.forward(DEFAULT_TIMEOUT_S + 1)
        for name in names[1:]:
            await rm.hears("released", name, "TIMEOUT")
        await rm.confirm(*names[1:])
        app = await rm.app("x", lambda said: len(said["allocations"]) == 1)
        assert (app["usedResource"], app["applicationState"], app["placeholderData"][0]) == (
            {"vcore": 1_000},
            "Running",
            {"taskGroupName": "workers", "count": 3, "minResource": {"vcore": 1_000}, "replaced": 1, "timedout": 2},
        )
        assert app["resourceHistory"]["placeholderResource"]["UNKNOWN"]["vcore"] >= 2 * DEFAULT_TIMEOUT_S * 1_000
        (workers,) = (await rm.explains("x"))["gang"]["taskGroups"]
        assert (workers["asked"], workers["replaced"], workers["timedOut"], workers["held"]) == (3, 1, 2, 0)


async def test_003_cleanup_the_clock_of_the_application_itself(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=1_000)
        (placeholder,) = await formed(rm, "x", "root.free", 1, timeout_ms=300)
        assert (await rm.hears("released", placeholder)).how == "TIMEOUT"
        assert (await rm.explains("x"))["gang"]["timeout"] == 300_000_000


async def test_003_completion_leftover_placeholders_go_and_the_id_may_be_used_again(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=2_000)
        names = await formed(rm, "x", "root.free", 2)
        await rm.real("x", "w", 1_000)
        await rm.swaps(names[0], "w")
        await rm.ends("w")
        await rm.hears("application", "x", "Completing")
        await rm.barrier()
        assert not [told for told in rm.heard if told[:2] == ("released", names[1])], "further asks may still come"
        muster.clock.forward(31)
        assert (await rm.hears("released", names[1])).how == "TIMEOUT"
        await rm.app("x", lambda said: said["applicationState"] == "Completing")
        await rm.confirm(names[1])
        await rm.hears("application", "x", "Completed")
        (over,) = await rm.shows(f"{P}/applications/completed", bool)
        assert states(over) == ["New", "Accepted", "Running", "Completing", "Completed"]
        assert over["placeholderData"][0] == {
            "taskGroupName": "workers", "count": 2, "minResource": {"vcore": 1_000}, "replaced": 1, "timedout": 1,
        }  # fmt: skip
        assert set(await formed(rm, "x", "root.free", 2)) <= set(rm.runs)


async def test_003_completion_a_new_ask_takes_a_leftover_placeholder_while_completing(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=2_000)
        names = await formed(rm, "x", "root.free", 2)
        await rm.real("x", "w", 1_000)
        await rm.swaps(names[0], "w")
        await rm.ends("w")
        await rm.hears("application", "x", "Completing")
        await rm.real("x", "late", 1_000)
        await rm.swaps(names[1], "late")
        assert states(await rm.app("x", lambda said: said["applicationState"] == "Running"))[-2:] == [
            "Completing", "Running",
        ]  # fmt: skip


@both
async def test_003_recovery_reported_placeholders_are_placeholders_and_are_replaced(
    muster: Muster, *, previous: bool
) -> None:
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=2_000)
        names = await formed(rm, "x", "root.free", 2)
        reports = [rm.reports(name) for name in names]
        await rm.client.register()  # the resource manager begins anew, and reports what runs
        rm.runs.clear()
        rm.heard.clear()
        if not previous:
            await rm.nodes(n1=2_000)
        await rm.application("x", "root.free", 2_000)
        if previous:
            await rm.nodes(n1=2_000, existing=reports)
        else:
            await rm.client.send_asks(reports)
        await rm.runs_these(*names)
        assert all(held.placeholder and held.taskGroupName == "workers" for held in rm.runs.values())
        found = await rm.explains("x", lambda said: said["gang"] and said["gang"]["phase"] == "FORMED")
        assert (found["state"], found["gang"]["taskGroups"][0]["held"]) == ("Accepted", 2)
        assert found["gang"]["deadline"] > muster.clock.now_ns(), "the clock starts at the report"
        wanted = await rm.real("x", "w", 1_000)
        await rm.swaps(names[0], wanted)
        assert rm.runs[wanted].UUID not in [report.UUID for report in reports]
        app = await rm.app("x", lambda said: said["applicationState"] == "Running")
        assert app["placeholderData"] == [
            {"taskGroupName": "workers", "count": 2, "minResource": {"vcore": 1_000}, "replaced": 1}
        ]


@pytest.mark.parametrize(("queue", "gone"), [("root.loose", 2), ("root.whole", 4)], ids=["members", "whole"])
async def test_003_preemption_takes_single_members_or_the_whole_gang(muster: Muster, queue: str, gone: int) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=4_000)
        await rm.application("x", queue, 4_000)
        policy = si.PreemptionPolicy(allowPreemptSelf=True, allowPreemptOther=True)
        names = [f"p{number}" for number in range(4)]
        await rm.client.send_asks(
            [
                ask(name, "x", {"vcore": 1_000}, task_group="workers", placeholder=True, preemption_policy=policy)
                for name in names
            ]
        )
        await rm.runs_these(*names)
        await rm.application("poor", "root.poor", user="bob")
        await rm.client.send_asks([ask("k", "poor", {"vcore": 2_000}, preemption_policy=policy)])
        await rm.barrier()
        muster.clock.forward(2)
        victims: list[Told] = await eventually(
            lambda: [told for told in rm.heard if told.kind == "released"], "placeholders are preempted"
        )
        await rm.barrier()
        victims = [told for told in rm.heard if told.kind == "released"]
        assert len(victims) == gone
        assert {told.how for told in victims} == {"PREEMPTED_BY_SCHEDULER"}
        await rm.confirm(*(told.name for told in victims))
        await rm.hears("new", "k")
        (workers,) = (await rm.explains("x", lambda said: said["gang"]["taskGroups"][0]["lost"]))["gang"]["taskGroups"]
        assert (workers["asked"], workers["lost"]) == (4, gone)


async def test_003_a_users_limit_counts_placeholders_in_full(muster: Muster) -> None:
    async with rm_of(muster) as rm:
        await rm.nodes(n1=9_000)
        await formed(rm, "x", "root.users", 2)
        await rm.application("y", "root.users")
        await rm.real("y", "fits", 1_000, group="")
        await rm.hears("new", "fits")
        await rm.real("y", "beyond", 100, group="")
        found = await rm.shows(f"{E}/ask/y/beyond", lambda said: said["reason"] == "USER_LIMIT")
        assert (found["used"], found["limit"], found["who"]) == (3_000, 3_000, "ann")
        # A placeholder's own place is none of the limit's business: it is held already.
        await rm.real("x", "w", 1_000)
        await rm.swaps("workers-p0", "w")


@both
async def test_003_generic_flow_many_gangs_share_a_queue_and_all_are_done(muster: Muster, *, previous: bool) -> None:
    """Twelve gangs of four in a queue with room for one and a half at a time: one after the other, and none twice."""
    async with rm_of(muster, previous=previous) as rm:
        await rm.nodes(n1=2_500, n2=2_500)
        gangs = [f"gang-{number}" for number in range(12)]
        await live_through(rm, "root.parent.leaf", gangs)
        muster.clock.forward(31)
        over = await rm.shows(f"{P}/applications/completed", lambda found: len(found) == len(gangs))
        assert {each["placeholderData"][0]["replaced"] for each in over} == {4}
        assert {each["applicationState"] for each in over} == {"Completed"}
        heard = [told.name for told in rm.heard if told.kind == "new"]
        assert len(heard) == len(set(heard)) == 12 * 8
        assert (await rm.get("/ws/v1/scheduler/healthcheck"))["Healthy"]
