"""``/ws/v1/metrics``: YuniKorn's families and their figures for a cluster."""

from __future__ import annotations

import random
import re
from typing import Any

import httpx
import pytest
from builders import nodes
from exposed import Family, parse
from muster_core.model.commands import AskItem, NodeAction, Termination, UpdateAllocations, UpdateApplications
from muster_core.model.states import AppState
from muster_state.tally import DECIDING_LIMITS_US, Tally
from muster_view.metrics import yunikorn_metrics
from muster_view.metrics.object_counts import PartitionCounts, StateCounts
from unit.view.recorded import Bench, Recorded, client_of

METRICS = "/ws/v1/metrics"
# YuniKorn's metrics: name, type, labels, and the possible values of a label.
STATES = {"new", "accepted", "rejected", "running", "failing", "failed", "resuming", "completing", "completed"}
REFERENCE: dict[str, tuple[str, tuple[str, ...], dict[str, set[str]]]] = {
    "yunikorn_scheduler_container_allocation_attempt_total": (
        "counter",
        ("state",),
        {"state": {"allocated", "rejected", "error", "released"}},
    ),
    "yunikorn_scheduler_application_submission_total": (
        "counter",
        ("result",),
        {"result": {"new", "accepted", "rejected"}},
    ),
    "yunikorn_scheduler_application_total": (
        "gauge",
        ("state",),
        {"state": {"running", "resuming", "failing", "completing", "completed", "failed"}},
    ),
    "yunikorn_scheduler_node": ("gauge", ("state",), {"state": {"active", "failed", "draining", "decommissioned"}}),
    "yunikorn_scheduler_vcore_node_usage_total": (
        "gauge",
        ("range",),
        {
            "range": {
                "[0,10%]",
                "(10%,20%]",
                "(20%,30%]",
                "(30%,40%]",
                "(40%,50%]",
                "(50%,60%]",
                "(60%,70%]",
                "(70%,80%]",
                "(80%,90%]",
                "(90%,100%]",
            }
        },
    ),
    "yunikorn_scheduler_scheduling_latency_milliseconds": ("histogram", (), {}),
    "yunikorn_scheduler_scheduling_cycle_milliseconds": ("histogram", (), {}),
    "yunikorn_scheduler_trynode_latency_milliseconds": ("histogram", (), {}),
    "yunikorn_scheduler_trynode_evaluation_milliseconds": ("histogram", (), {}),
    "yunikorn_scheduler_trypreemption_latency_milliseconds": ("histogram", (), {}),
    "yunikorn_scheduler_node_sorting_latency_milliseconds": ("histogram", ("level",), {"level": {"app", "queue"}}),
    "yunikorn_queue_app": ("gauge", ("queue", "state"), {"state": STATES}),
    "yunikorn_queue_app_total": ("counter", ("queue", "state"), {"state": {"completed", "failed", "rejected"}}),
    "yunikorn_queue_resource": (
        "gauge",
        ("queue", "resource", "state"),
        {"state": {"guaranteed", "max", "allocated", "pending", "preempting", "maxRunningApps"}},
    ),
    "yunikorn_root_a_queue_container": ("counter", ("state",), {"state": {"allocated", "released"}}),
    "yunikorn_root_b_queue_container": ("counter", ("state",), {"state": {"allocated", "released"}}),
    "yunikorn_event_total_created": ("gauge", (), {}),
    "yunikorn_event_total_channeled": ("gauge", (), {}),
    "yunikorn_event_total_not_channeled": ("gauge", (), {}),
    "yunikorn_event_total_processed": ("gauge", (), {}),
    "yunikorn_runtime_go_mem_stats": ("gauge", ("MemStats",), {}),
}
# Metrics of YuniKorn that Muster does not have; docs/metrics.md gives the reasons.
LEFT_OUT = {
    "yunikorn_runtime_go_pause_ns",
    "yunikorn_runtime_go_pause_end",
    "yunikorn_runtime_go_generic",
    "yunikorn_runtime_go_alloc_bysize_maxsize",
    "yunikorn_runtime_go_alloc_bysize_free",
    "yunikorn_runtime_go_alloc_bysize_malloc",
    "yunikorn_event_total_stored",
    "yunikorn_event_total_not_stored",
    "yunikorn_event_total_collected",
}
BUCKETS = ["0.0001", "0.001", "0.01", "0.1", "1", "10", "100", "1000", "+Inf"]
QUEUES = """
{name: root, submitacl: '*', queues: [
  {name: a, maxapplications: 3, resources: {guaranteed: {vcore: 2}, max: {vcore: 8, memory: 100}}},
  {name: b},
  {name: p, parent: true}]}
"""
DYNAMIC = "placementrules: [{name: provided, create: true}],"


async def scraped(client: httpx.AsyncClient, **parameters: str) -> dict[str, Family]:
    answer = await client.get(METRICS, params=parameters)
    assert answer.status_code == 200, answer.text
    return {name: family for name, family in parse(answer.text).items() if name.startswith("yunikorn_")}


def busy(rm: Recorded) -> None:
    cluster = rm.cluster
    cluster.node("n1", vcore=10_000, memory=100)
    cluster.node("n2", vcore=10_000)
    cluster.app("x", "root.a")
    cluster.app("y", "root.b")
    cluster.ask("x", "k1", vcore=2_500)
    cluster.ask("x", "k2", vcore=9_000)


async def test_the_families_are_the_real_core_s(bench: Bench) -> None:
    rm = bench.rm(queues=QUEUES, partition=DYNAMIC)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        busy(rm)
        rm.cluster.app("dynamic", "root.p.of-alice")
        rm.cluster.app("nowhere", "root.b.below-a-leaf")
        await bench.write(rm)
        found = await scraped(client)
    expected = {*REFERENCE, "yunikorn_root_p_of_alice_queue_container", "yunikorn_scheduler_memory_node_usage_total"}
    assert set(found) == expected
    assert not LEFT_OUT & set(found)
    for name, (kind, labels, values) in REFERENCE.items():
        family = found[name]
        assert family.type == kind, name
        assert family.labels <= {labels}, name
        assert family.help
        for label, allowed in values.items():
            said = set(family.values(label))
            exact = label != "state" or len(labels) == 1
            assert said == allowed if exact else said <= allowed, (name, said)
        if kind == "histogram":
            limits = [dict(at)["le"] for (sample, at) in family.samples if sample.endswith("_bucket")]
            assert limits == BUCKETS * max(1, len(values.get("level", ()))), name
    # The table of families must agree.
    table = {each.name: (each.type, tuple(sorted(each.labels))) for each in yunikorn_metrics.FAMILIES}
    for name, (kind, labels, _) in REFERENCE.items():
        general = name.replace("_vcore_", "_{}_").replace("_root_a_", "_{}_").replace("_root_b_", "_{}_")
        assert table[general] == (kind, labels)


async def test_names_of_queues_as_older_dashboards_have_them(bench: Bench) -> None:
    """The shim's dashboard queries ``yunikorn_root_<queue>_queue_app`` and ``…_queue_resource``."""
    queues = QUEUES.replace("{name: b}", "{name: b}, {name: a-a}, {name: a_a, resources: {max: {vcore: 1}}}")
    rm = bench.rm(queues=queues, partition=DYNAMIC)
    busy(rm)
    await bench.write(rm)
    async with bench.view(queue_metrics_by_name=True) as view, client_of(view) as client:
        found = await scraped(client)
        again = await scraped(client)
    assert set(found) == set(again)
    named = {name for name in found if re.fullmatch(r"yunikorn_root.*_queue_(app|resource)", name)}
    paths = {"root": "root", "root_a": "root.a", "root_b": "root.b", "root_p": "root.p", "root_a_a": "root.a-a"}
    assert named >= {f"yunikorn_{name}_queue_resource" for name in paths}
    assert {name for name in named if name.endswith("_app")} == {
        "yunikorn_root_a_queue_app",
        "yunikorn_root_b_queue_app",
    }
    for name, path in paths.items():
        for kind in ("queue_app", "queue_resource"):
            labelled = found[f"yunikorn_{kind}"]
            of_path = {
                tuple(each for each in labels if each[0] != "queue"): value
                for (_, labels), value in labelled.samples.items()
                if ("queue", path) in labels
            }
            by_name = found.get(f"yunikorn_{name}_{kind}")
            assert {at: value for (_, at), value in by_name.samples.items()} == of_path if by_name else not of_path
            assert by_name is None or by_name.type == labelled.type
    # Two queues have the same name here. The first counts: a-a, which has no max of its own.
    assert "max" not in found["yunikorn_root_a_a_queue_resource"].values("state")


async def test_a_queue_s_resources(bench: Bench) -> None:
    rm = bench.rm(queues=QUEUES, partition=DYNAMIC)
    busy(rm)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        resources = (await scraped(client))["yunikorn_queue_resource"]

        def of(queue: str) -> dict[tuple[str, str], float]:
            found = {}
            for (_, labels), value in resources.samples.items():
                by = dict(labels)
                if by["queue"] == queue:
                    found[by["state"], by["resource"]] = value
            return found

        assert of("root.a") == {
            ("guaranteed", "vcore"): 2_000,
            ("max", "vcore"): 8_000,
            ("max", "memory"): 100,
            ("allocated", "vcore"): 2_500,
            ("pending", "vcore"): 9_000,
            ("preempting", "vcore"): 0,
            ("maxRunningApps", "apps"): 3,
        }
        assert of("root") == {
            ("max", "vcore"): 20_000,
            ("max", "memory"): 100,
            ("allocated", "vcore"): 2_500,
            ("pending", "vcore"): 9_000,
            ("preempting", "vcore"): 0,
            ("maxRunningApps", "apps"): 0,
        }
        assert of("root.b") == {("maxRunningApps", "apps"): 0}
        # A series that existed once stays, with 0.
        rm.cluster.release("x")
        await bench.write(rm)
        resources = (await scraped(client))["yunikorn_queue_resource"]
        assert of("root.a")["allocated", "vcore"] == of("root.a")["pending", "vcore"] == 0


async def test_a_releasing_allocation_shows_until_it_is_gone(bench: Bench) -> None:
    rm = bench.rm(
        queues="{name: root, submitacl: '*', queues: [{name: a, resources: {guaranteed: {vcore: 4}},"
        " properties: {preemption.delay: 1s}}, {name: b}]}"
    )
    cluster = rm.cluster
    cluster.node("n1", vcore=10_000)
    cluster.app("x", "root.a")
    cluster.app("y", "root.b")
    low = [AskItem(f"v{n}", "y", "default", {"vcore": 2_000}, allow_preempt_self=True) for n in range(5)]
    cluster.do(UpdateAllocations(low))
    cluster.do(UpdateAllocations([AskItem("k", "x", "default", {"vcore": 2_000}, allow_preempt_other=True)]))
    cluster.wait(4)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        resources = (await scraped(client))["yunikorn_queue_resource"]
        assert resources.value(queue="root.b", state="preempting", resource="vcore") == 2_000
        (victim,) = (held.key for held in cluster.application("y").allocations.values() if held.preempted)
        cluster.release("y", victim, Termination.PREEMPTED_BY_SCHEDULER)
        await bench.write(rm)
        resources = (await scraped(client))["yunikorn_queue_resource"]
        assert resources.value(queue="root.b", state="preempting", resource="vcore") == 0
        assert resources.value(queue="root.a", state="allocated", resource="vcore") == 2_000


async def test_changes_are_counted(bench: Bench) -> None:
    rm = bench.rm(queues=QUEUES, partition=DYNAMIC)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        busy(rm)
        await bench.write(rm)
        found = await scraped(client)
        assert found["yunikorn_root_a_queue_container"].values("state") == {"allocated": 1, "released": 0}
        assert found["yunikorn_root_b_queue_container"].values("state") == {"allocated": 0, "released": 0}
        assert found["yunikorn_queue_app"].value(queue="root.a", state="running") == 1
        assert found["yunikorn_queue_app"].value(queue="root.b", state="new") == 1
        assert found["yunikorn_queue_app_total"].samples == {}
        # 1. the application ends
        rm.cluster.release("x")
        rm.cluster.wait(40)
        rm.cluster.app("wrong", "root.b.no-parent")
        rm.cluster.app("again", "root.a")
        await bench.write(rm)
        found = await scraped(client)
        assert found["yunikorn_root_a_queue_container"].values("state") == {"allocated": 1, "released": 1}
        assert found["yunikorn_queue_app"].value(queue="root.a", state="completed") == 1
        assert found["yunikorn_queue_app"].value(queue="root.a", state="running") == 0
        assert found["yunikorn_scheduler_application_total"].values("state")["completed"] == 1
        assert found["yunikorn_queue_app_total"].value(queue="root.a", state="completed") == 1
        # 2. its id is used again: the end is not counted twice
        rm.cluster.app("x", "root.a")
        await bench.write(rm)
        found = await scraped(client)
        assert found["yunikorn_queue_app_total"].value(queue="root.a", state="completed") == 1
        assert found["yunikorn_queue_app"].value(queue="root.a", state="completed") == 1
        assert found["yunikorn_queue_app"].value(queue="root.a", state="new") == 2


async def test_a_rejected_application_counts_in_its_requested_queue(bench: Bench) -> None:
    rm = bench.rm(queues="{name: root, queues: [{name: a, submitacl: alice}, {name: b, submitacl: '*'}]}")
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        rm.cluster.app("one", "root.a", user="bob")
        rm.cluster.app("two", "root.a", user="bob")
        rm.cluster.app("three", "root.nowhere", user="bob")
        await bench.write(rm)
        found = await scraped(client)
    assert set(rm.cluster.partition.rejected) == {"one", "two", "three"}
    assert found["yunikorn_queue_app"].value(queue="root.a", state="rejected") == 2
    assert found["yunikorn_queue_app_total"].value(queue="root.a", state="rejected") == 2
    # (Otherwise there would be a queue "", and names without a limit.)
    assert set(found["yunikorn_queue_app"].values("queue")) == {"root.a"}


async def test_nodes_by_how_full_they_are(bench: Bench) -> None:
    rm = bench.rm()
    cluster = rm.cluster
    for number, used in enumerate((0, 1_000, 1_001, 5_000, 10_000)):
        cluster.node(f"n{number}", vcore=10_000)
        cluster.app(f"x{number}", "root.b")
        if used:
            held = AskItem(f"k{number}", f"x{number}", "default", {"vcore": used}, node_id=f"n{number}")
            cluster.do(UpdateAllocations([held]))
    cluster.node("others", **{"nvidia.com/gpu": 4})
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        found = await scraped(client)
        usage = found["yunikorn_scheduler_vcore_node_usage_total"].values("range")
        assert {name: count for name, count in usage.items() if count} == {
            "[0,10%]": 2,
            "(10%,20%]": 1,
            "(40%,50%]": 1,
            "(90%,100%]": 1,
        }
        assert found["yunikorn_scheduler_nvidia_com_gpu_node_usage_total"].values("range")["[0,10%]"] == 1
        assert found["yunikorn_scheduler_node"].values("state")["active"] == 6
        # 1. one is drained, one is emptied, one is removed
        cluster.do(nodes(NodeAction.DRAIN_NODE, {"n0": None}))
        cluster.release("x4", "k4")
        cluster.do(nodes(NodeAction.DECOMISSION, {"n3": None}))
        await bench.write(rm)
        found = await scraped(client)
        usage = found["yunikorn_scheduler_vcore_node_usage_total"].values("range")
        assert {name: count for name, count in usage.items() if count} == {"[0,10%]": 3, "(10%,20%]": 1}
        assert found["yunikorn_scheduler_node"].values("state") == {
            "active": 5,
            "failed": 0,
            "draining": 1,
            "decommissioned": 1,
        }
        # 2. the allocations of the removed node are released
        assert found["yunikorn_root_b_queue_container"].values("state") == {"allocated": 0, "released": 2}


async def test_a_queue_that_goes_takes_its_series_along(bench: Bench) -> None:
    rm = bench.rm(queues=QUEUES, partition=DYNAMIC)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        rm.cluster.node("n1", vcore=10_000)
        rm.cluster.app("z", "root.p.dynamic")
        rm.cluster.ask("z", "k", vcore=1_000)
        await bench.write(rm)
        found = await scraped(client)
        assert found["yunikorn_root_p_dynamic_queue_container"].values("state") == {"allocated": 1, "released": 0}
        assert "root.p.dynamic" in found["yunikorn_queue_resource"].values("queue")
        rm.cluster.release("z", "k")
        rm.cluster.wait(40)
        rm.cluster.wait(20)
        await bench.write(rm)
        assert "root.p.dynamic" not in rm.cluster.partition.queues
        found = await scraped(client)
        assert "yunikorn_root_p_dynamic_queue_container" not in found
        for name in ("yunikorn_queue_resource", "yunikorn_queue_app"):
            assert "root.p.dynamic" not in found[name].values("queue")
        # As in the core, the count of ended applications continues.
        assert found["yunikorn_queue_app_total"].value(queue="root.p.dynamic", state="completed") == 1
        assert found["yunikorn_scheduler_application_total"].values("state")["completed"] == 1
        follower = view._followers[rm.partition]
        assert list(follower.census.counts["rm1"].containers) == []


async def test_several_resource_managers_are_added_up_and_one_may_be_named(bench: Bench) -> None:
    first, second = bench.rm("rm1", QUEUES), bench.rm("rm2", QUEUES)
    for rm, times in ((first, 1), (second, 2)):
        for number in range(times):
            rm.cluster.node(f"n{number}", vcore=10_000)
        rm.cluster.app("x", "root.a")
        rm.cluster.ask("x", "k", vcore=1_000)
        rm.info.tally.allocated = times
        rm.info.next_event_id = 100 * times
    await bench.write(first, second)
    async with bench.view() as view, client_of(view) as client:
        both, one = await scraped(client), await scraped(client, rm="rm2")
        assert both["yunikorn_scheduler_node"].value(state="active") == 3
        assert one["yunikorn_scheduler_node"].value(state="active") == 2
        assert both["yunikorn_queue_resource"].value(queue="root.a", state="allocated", resource="vcore") == 2_000
        assert one["yunikorn_queue_resource"].value(queue="root.a", state="allocated", resource="vcore") == 1_000
        assert both["yunikorn_scheduler_container_allocation_attempt_total"].value(state="allocated") == 3
        assert one["yunikorn_event_total_created"].value() == 200
        assert both["yunikorn_event_total_created"].value() == 300
        assert (await client.get(METRICS, params={"rm": "nope"})).status_code == 404


async def test_the_tally_s_figures_outlive_the_view(bench: Bench) -> None:
    rm = bench.rm()
    tally = rm.info.tally = Tally(
        allocated=9,
        released=3,
        preempted=1,
        timed_out=1,
        replaced=1,
        reported=2,
        ended=5,
        dropped=1,
        asks_rejected=4,
        applications_accepted=7,
        applications_rejected=2,
        nodes_rejected=5,
        deciding_us=1_500_000,
    )
    for took_us in (1, 100, 101, 90_000, 10**10):
        tally.spread(took_us)
    await bench.write(rm)
    for _ in range(2):
        async with bench.view() as view, client_of(view) as client:
            found = await scraped(client)
        attempts = found["yunikorn_scheduler_container_allocation_attempt_total"]
        assert attempts.values("state") == {"allocated": 11, "rejected": 4, "error": 0, "released": 5}
        submitted = found["yunikorn_scheduler_application_submission_total"]
        assert submitted.values("result") == {"new": 9, "accepted": 7, "rejected": 2}
        assert found["yunikorn_scheduler_node"].value(state="failed") == 5
        name = "yunikorn_scheduler_scheduling_latency_milliseconds"
        latency = found[name].samples
        counts = [latency[f"{name}_bucket", (("le", limit),)] for limit in BUCKETS]
        assert counts == [2, 3, 3, 4, 4, 4, 4, 4, 5]
        assert (latency[f"{name}_sum", ()], latency[f"{name}_count", ()]) == (1.5, 5)


def test_a_round_counts_where_it_belongs() -> None:
    for place, limit_us in enumerate(DECIDING_LIMITS_US):
        tally = Tally()
        tally.spread(limit_us)
        tally.spread(limit_us + 1)
        assert [number for number, count in enumerate(tally.deciding_spread) if count] == [place, place + 1]


def test_names_and_texts_are_safe() -> None:
    assert yunikorn_metrics.metric_name("root.a-b.c:d") == "root_a_b_c:d"
    assert yunikorn_metrics.metric_name("1st/type") == "_1st_type"
    line = yunikorn_metrics._sample("m", (("queue", 'a"b\\c\nd'),), 1)
    assert line == b'm{queue="a\\"b\\\\c\\nd"} 1\n'
    assert parse(f"# HELP m h\n# TYPE m gauge\n{line.decode()}")["m"].value(queue='a"b\\c\nd') == 1


async def test_two_queues_of_one_name_share_a_family(bench: Bench) -> None:
    rm = bench.rm(queues="{name: root, submitacl: '*', queues: [{name: a_b}, {name: a, queues: [{name: b}]}]}")
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        rm.cluster.node("n1", vcore=10_000)
        for app, queue in (("x", "root.a_b"), ("y", "root.a.b")):
            rm.cluster.app(app, queue)
            rm.cluster.ask(app, "k", vcore=1_000)
        await bench.write(rm)
        found = await scraped(client)
    assert found["yunikorn_root_a_b_queue_container"].values("state") == {"allocated": 2, "released": 0}


# ---- incremental counts and full counts agree ----------------------------------------------------------------


def counted(census: PartitionCounts) -> dict[str, Any]:
    while census.weigh(7):
        pass
    return {
        "applications": {key: count for key, count in census.applications.items() if count},
        "usage": {number: tenths for number, tenths in census.usage.items() if any(tenths)},
        "draining": {node.node_id for node in census.draining},
    }


@pytest.mark.parametrize("seed", range(12))
async def test_incremental_counts_equal_a_full_count(bench: Bench, seed: int) -> None:
    rm, chance = bench.rm(queues=QUEUES, partition=DYNAMIC), random.Random(seed)
    await bench.write(rm)
    async with bench.view() as view:
        follower = view._followers[rm.partition]
        for _ in range(25):
            live(rm, chance)
            await bench.write(rm)
            await view.wait_fresh()
            if chance.random() < 0.3:
                (counted(follower.census.counts_of(each)) for each in follower.rms["rm1"].core.partitions.values())
        partition = follower.rms["rm1"].core.partitions["default"]
        anew = StateCounts({})
        anew.on_built(follower.rms)
        assert counted(follower.census.counts_of(partition)) == counted(anew.counts_of(partition))
        containers = follower.census.counts["rm1"].containers
        held = {
            path: sum(len(app.allocations) for app in partition.apps_in(queue))
            for path, queue in partition.queues.items()
            if queue.leaf
        }
        assert {path: count for path, count in held.items() if count} == {
            path: came - went for (_, path), (came, went) in containers.items() if came - went
        }


def live(rm: Recorded, chance: random.Random) -> None:
    cluster, number = rm.cluster, chance.randrange(8)
    node, app = f"n{number}", f"x{number}"
    partition = cluster.partition
    match chance.randrange(8):
        case 0 | 1 if node not in partition.nodes:
            cluster.node(node, vcore=chance.choice((2_000, 10_000)), memory=chance.choice((0, 50)))
        case 2 if node in partition.nodes:
            cluster.do(nodes(NodeAction.DECOMISSION, {node: None}))
        case 3 if node in partition.nodes:
            cluster.do(nodes(NodeAction.DRAIN_NODE, {node: None}))
        case 4:
            cluster.app(app, chance.choice(("root.a", "root.b", "root.p.one", "root.p.two", "root.nope")))
        case 5 if app in partition.apps:
            rm.do(UpdateApplications(remove=(("default", app),)))
        case 6:
            cluster.wait(chance.choice((1, 40)))
        case _:
            found = partition.apps.get(app)
            if found is None or found.state in (AppState.COMPLETED, AppState.FAILED):
                return
            if found.allocations and chance.random() < 0.5:
                key = next(iter(found.allocations.values())).key
                cluster.release(app, key)
            else:
                cluster.ask(app, f"k{chance.randrange(1000)}", vcore=chance.choice((500, 3_000)))
