"""Gangs in the core: the corners that a story in the gang design's words does not reach (those are in
tests/scenario/core)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from builders import Cluster, allocations, ask, nodes
from muster_core.allocation import item_conversion
from muster_core.gangs.placeholders import timeout_ns
from muster_core.model.application import Allocation, Application, Gang
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
from muster_core.model.free_placeholders import FreePlaceholders, covers
from muster_core.model.outcome import Outcome, ReleasedAllocation, ReleasedAsk
from muster_core.model.resources import INT64_MAX, ResourceTypes
from muster_core.model.states import PLACEHOLDER_TIMEOUT_NS, AppState, GangPhase
from muster_core.model.wait_points import GangQueues
from muster_si.constants import APP_CREATION_TIME_TAG
from muster_state import state_codec

OPEN = "submitacl: '*'"
LEAF = f"{{name: root, {OPEN}, queues: [{{name: a, resources: {{max: {{m: 10}}}}}}]}}"


def gang(
    cluster: Cluster,
    app_id: str,
    total: int,
    queue: str = "root.a",
    *,
    timeout_ms: int = 0,
    style: str = "",
    **tags: str,
) -> Outcome:
    asked = {"m": total}
    item = AppItem(
        app_id,
        queue,
        "default",
        "alice",
        tags=tags,
        execution_timeout_ms=timeout_ms,
        placeholder_ask=asked,
        gang_style=style,
    )
    return cluster.do(UpdateApplications((item,)))


def asks(cluster: Cluster, app_id: str, keys: str, m: int = 1, *, placeholder: bool = False, **more: object) -> Outcome:
    """Asks of task group t, their keys with blanks between."""
    given = {"task_group": "t", "placeholder": placeholder, **more}
    return cluster.do(
        UpdateAllocations([replace(AskItem(key, app_id, "default", {"m": m}), **given) for key in keys.split()])
    )


def confirm(cluster: Cluster, app_id: str, key: str, uuid: str = "") -> Outcome:
    release = ReleaseItem("default", app_id, key, Termination.PLACEHOLDER_REPLACED, uuid)
    return cluster.do(UpdateAllocations((), [release]))


def told(out: Outcome) -> list[tuple[str, str]]:
    """(key, termination) of what was told to go."""
    return [(fact.key, fact.termination.name) for fact in out.facts if isinstance(fact, ReleasedAllocation)]


def the_gang(cluster: Cluster, app_id: str) -> Gang:
    found = cluster.application(app_id).gang
    assert found is not None
    return found


def small(**node: int) -> Cluster:
    cluster = Cluster(LEAF)
    cluster.node("n1", **(node or {"m": 10}))
    return cluster


# ---- what an RM may say ----------------------------------------------------------------------------------------------


def test_a_time_out_of_centuries_is_recorded_as_the_latest_time_there_is() -> None:
    cluster = small()
    gang(cluster, "x", 2, timeout_ms=INT64_MAX)
    out = asks(cluster, "x", "p1", placeholder=True)
    assert the_gang(cluster, "x").deadline_ns == INT64_MAX
    for partition, what, _ in out.objects():
        state_codec.encode(partition, what)


def test_a_run_time_of_centuries_is_recorded_too() -> None:
    cluster = small()
    cluster.do(UpdateApplications((AppItem("x", "root.a", "default", "alice", execution_timeout_ms=INT64_MAX),)))
    out = cluster.ask("x", "k", m=1)
    assert cluster.application("x").deadline_ns == INT64_MAX
    for partition, what, _ in out.objects():
        state_codec.encode(partition, what)


@pytest.mark.parametrize(
    ("tag", "own_ms", "expected_ns"),
    [
        ("", 0, PLACEHOLDER_TIMEOUT_NS),
        ("", -5, PLACEHOLDER_TIMEOUT_NS),
        ("", 60_000, 60_000_000_000),
        ("990", 60_000, 50_000_000_000),
        ("900", 60_000, 1_000_000),
        ("1001", 60_000, 60_000_000_000),
        ("0", 60_000, 60_000_000_000),
        ("soon", 60_000, 60_000_000_000),
        ("٩٩٠", 60_000, 60_000_000_000),
        ("9" * 40, 60_000, 60_000_000_000),
    ],
)
def test_how_long_placeholders_wait(tag: str, own_ms: int, expected_ns: int) -> None:
    cluster = small()
    tags = {APP_CREATION_TIME_TAG: tag} if tag else {}
    gang(cluster, "x", 2, timeout_ms=own_ms, **tags)
    assert timeout_ns(cluster.application("x")) == expected_ns


def test_a_refused_gang_leaves_no_types_behind() -> None:
    cluster = small()
    cluster.do(
        UpdateApplications(
            (AppItem("x", "root.a", "default", "alice", placeholder_ask={"m": 99, **{f"t{n}": 1 for n in range(250)}}),)
        )
    )
    assert "x" in cluster.partition.rejected
    assert "t0" not in cluster.partition.types.names


# ---- who is woken ----------------------------------------------------------------------------------------------------


def test_a_place_to_run_that_a_gang_cannot_use_goes_to_the_next() -> None:
    cluster = Cluster(
        f"{{name: root, {OPEN}, queues: [{{name: a, maxapplications: 2, resources: {{max: {{m: 10}}}}}}]}}"
    )
    cluster.node("n1", m=100)
    for app_id, held in (("a1", 8), ("a2", 1)):
        cluster.app(app_id, "root.a")
        cluster.ask(app_id, "k", m=held)
    for app_id in ("b1", "b2", "b3"):
        gang(cluster, app_id, 5)
        asks(cluster, app_id, "p1", 5, placeholder=True)
    cluster.app("c", "root.a")
    cluster.ask("c", "k", m=1)
    assert cluster.pending("c") == {"k": "QUEUE_MAX_APPLICATIONS"}
    cluster.release("a2")
    assert cluster.placed("c") == {"k": "n1"}
    assert {cluster.pending(app_id)["p1"] for app_id in ("b1", "b2", "b3")} <= {"GANG_ROOM", "QUEUE_MAX_APPLICATIONS"}


def test_a_gang_that_runs_by_the_rms_report_waits_for_room_no_more() -> None:
    cluster = Cluster(LEAF).having({"n1": {"m": 100}}, {"other": "root.a"})
    cluster.ask("other", "k", m=6)
    gang(cluster, "x", 6)
    asks(cluster, "x", "p1 p2", 2, placeholder=True)
    assert cluster.pending("x") == {"p1": "GANG_ROOM", "p2": "GANG_ROOM"}
    cluster.do(UpdateAllocations([AskItem("real", "x", "default", {"m": 1}, node_id="n1")]))
    assert the_gang(cluster, "x").phase is GangPhase.USED
    assert set(cluster.placed("x")) == {"real", "p1"}


def test_of_gangs_of_many_sizes_one_is_tried_for_each_that_starts() -> None:
    cluster = Cluster(f"{{name: root, {OPEN}, queues: [{{name: a, resources: {{max: {{m: 1000}}}}}}]}}").having(
        {"n1": {"m": 5000}}, {"full": "root.a"}
    )
    cluster.ask("full", "k", m=1000)
    sizes = random.Random(3).sample(range(10, 300), 100)
    for size in sizes:
        gang(cluster, f"g{size}", size)
        asks(cluster, f"g{size}", "p", size, placeholder=True)
    leaf = cluster.queue("root.a")
    lines = cluster.partition.waiting.waiting_gangs[leaf][leaf]
    assert len(list(lines)) == 100
    cluster.release("full", "k")
    while not cluster.core.exhausted:
        cluster.do()
    room = 1000
    for size in sizes:  # in the order of submission, each that fits
        placed = bool(cluster.placed(f"g{size}"))
        assert placed == (size <= room)
        room -= size if placed else 0


def test_a_guarantee_is_room_enough_to_start() -> None:
    """Others borrow the guarantee under the parent's max. The placeholders preempt it one by one."""
    cluster = Cluster(
        f"{{name: root, {OPEN}, queues: [{{name: p, resources: {{max: {{m: 10}}}}, queues: ["
        "{name: a, resources: {guaranteed: {m: 6}}}, {name: b}]}]}",
        partition="preemption: {enabled: true},",
    )
    for number in range(6):
        cluster.node(f"n{number}", m=4)
    cluster.app("rich", "root.p.b")
    cluster.do(
        UpdateAllocations([AskItem(f"k{n}", "rich", "default", {"m": 1}, allow_preempt_self=True) for n in range(10)])
    )
    gang(cluster, "x", 4, "root.p.a")
    asks(cluster, "x", "p1 p2 p3 p4", placeholder=True, allow_preempt_other=True)
    assert cluster.pending("x") == dict.fromkeys(("p1", "p2", "p3", "p4"), "QUEUE_MAX")
    out = cluster.wait(31)
    gone = told(out)
    assert [termination for _, termination in gone] == ["PREEMPTED_BY_SCHEDULER"] * 4
    for key, _ in gone:
        cluster.release("rich", key, Termination.PREEMPTED_BY_SCHEDULER)
    assert the_gang(cluster, "x").phase is GangPhase.FORMED
    gang(cluster, "y", 4, "root.p.a")  # 2 more than is guaranteed
    asks(cluster, "y", "p1", placeholder=True, allow_preempt_other=True)
    assert cluster.pending("y") == {"p1": "GANG_ROOM"}
    cluster.release("x", "p1")
    cluster.release("x", "p2")
    assert set(cluster.placed("y")) == {"p1"}


# ---- confirmations ---------------------------------------------------------------------------------------------------


def test_a_confirmation_ends_only_the_released_repeat() -> None:
    cluster = small()
    gang(cluster, "x", 3)
    asks(cluster, "x", "p", placeholder=True, wanted=3, previous_generation=True)
    assert told(asks(cluster, "x", "r", previous_generation=True)) == [("p", "PLACEHOLDER_REPLACED")]
    out = confirm(cluster, "x", "p")
    assert allocations(out) == [("x", "r", "n1")]
    assert set(cluster.placed("x")) == {"r", "p#1", "p#2"}


def test_a_confirmation_leaves_what_is_pending_of_the_ask() -> None:
    cluster = small(m=1)
    cluster.app("x", "root.a")
    asks(cluster, "x", "p", placeholder=True, wanted=3, previous_generation=True)
    out = asks(cluster, "x", "r", previous_generation=True)
    (uuid,) = [fact.uuid for fact in out.facts if isinstance(fact, ReleasedAllocation)]
    confirm(cluster, "x", "p", uuid)
    assert cluster.placed("x") == {"r": "n1"}
    assert cluster.application("x").asks["p"].pending == 2


def test_existing_allocations_of_one_ask_differ_by_uuid() -> None:
    cluster = small()
    cluster.app("x", "root.a")
    existing = [AskItem("p", "x", "default", {"m": 1}, node_id="n2", uuid=uuid) for uuid in ("u1", "u2", "u3", "u2")]
    cluster.do(UpdateNodes((NodeItem("n2", NodeAction.CREATE, capacity={"m": 5}, existing=tuple(existing)),)))
    assert sum(cluster.the_node("n2").allocated) == 3
    cluster.do(UpdateAllocations((), [ReleaseItem("default", "x", "p", Termination.STOPPED_BY_RM, "u2")]))
    assert sorted(held.uuid for held in cluster.application("x").allocations.values()) == ["u1", "u3"]


def test_each_repetition_is_announced_once() -> None:
    cluster = small()
    gang(cluster, "x", 1)
    asks(cluster, "x", "p", placeholder=True, execution_timeout_ms=600_000)
    asks(cluster, "x", "r")
    for _ in range(4):  # the third is at its execution time-out as well
        assert told(cluster.wait(300)) == [("p", "PLACEHOLDER_REPLACED")]
    assert allocations(confirm(cluster, "x", "p")) == [("x", "r", "n1")]
    assert told(cluster.wait(3600)) == []


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("style", "state"), [("Hard", AppState.FAILED), ("Soft", AppState.RUNNING)])
def test_a_gang_whose_time_is_up_while_it_runs_without_a_real_allocation_is_over(style: str, state: AppState) -> None:
    cluster = small()
    gang(cluster, "x", 4, style=style)
    asks(cluster, "x", "p1", 2, placeholder=True)
    cluster.release("x", "p1")
    assert cluster.application("x").state is AppState.COMPLETING
    asks(cluster, "x", "r")
    assert cluster.application("x").state is AppState.RUNNING
    assert cluster.pending("x") == {"r": "GANG_FORMING"}
    out = cluster.wait(901)
    assert cluster.application("x").state is state
    assert cluster.queue("root.a").promised == {}
    if style == "Soft":
        assert cluster.placed("x") == {"r": "n1"}
    else:
        assert [(fact.key, fact.termination) for fact in out.facts if isinstance(fact, ReleasedAsk)] == [
            ("r", Termination.TIMEOUT)
        ]


def test_an_application_that_goes_is_looked_at_no_more() -> None:
    cluster = small(m=2)
    gang(cluster, "x", 1)
    asks(cluster, "x", "p", placeholder=True)
    cluster.do(nodes(NodeAction.DRAIN_NODE, {"n1": None}))
    asks(cluster, "x", "r")
    assert cluster.pending("x") == {"r": "PLACEHOLDER_STUCK"}
    cluster.do(UpdateApplications((), (("default", "x"),)))
    cluster.node("n2", m=1)
    gangs = cluster.partition.gangs
    assert (gangs.dirty, gangs.reopened, gangs._stuck) == ({}, {}, {})


# ---- the two orders --------------------------------------------------------------------------------------------------


def test_free_placeholders_are_what_a_plain_list_says() -> None:
    types = ResourceTypes()
    shapes = [types.shape({"m": m, "v": v}) for m in (1, 2) for v in (1, 2)]
    app = Application(types, "x", Cluster(LEAF).queue("root.a"), 1, 0)
    rng = random.Random(5)
    for _ in range(20):
        free, plain = FreePlaceholders(), []
        for number in range(60):
            if plain and rng.random() < 0.4:
                gone = plain.pop(rng.randrange(len(plain)))
                assert gone in free
                free.discard(gone)
                free.discard(gone)
            else:
                item = AskItem(f"p{number}", "x", "default", {}, task_group="t", placeholder=True)
                demand = item_conversion.demand_of(item, rng.choice(shapes), number, 0)
                new = Allocation(app, demand, f"n{rng.randrange(4)}", rng.randrange(5))
                free.add(new)
                plain.append(new)
            plain.sort(key=lambda held: (held.allocated_ns, held.submission))
            assert list(free) == plain
            assert (bool(free), len(free)) == (bool(plain), len(plain))
            assert free.on("n1") == any(held.node_id == "n1" for held in plain)
            if plain:
                assert free.first() is plain[0]
            for shape in shapes:
                seen: set[tuple[object, str]] = set()
                oldest = []
                for held in plain:
                    if covers(held.shape, shape) and (held.shape, held.node_id) not in seen:
                        seen.add((held.shape, held.node_id))
                        oldest.append(held)
                assert list(free.covering(shape)) == oldest


@pytest.mark.parametrize("count", [5, 200])
def test_the_first_gang_for_which_there_is_room_is_what_a_plain_list_says(count: int) -> None:
    types = ResourceTypes()
    leaf = Cluster(LEAF).queue("root.a")
    rng = random.Random(count)
    lines, plain = GangQueues(), []
    for number in range(count):
        total = types.shape({"m": rng.randrange(1, 50), "v": rng.randrange(1, 50)})
        key = (-rng.randrange(2), rng.randrange(5), number)
        entry = (key, total, Application(types, f"x{number}", leaf, number, 0))
        lines.add(total, key, entry[2])
        plain.append(entry)
    while plain:
        room = [rng.randrange(60), rng.randrange(60)]
        fitting = [entry for entry in plain if all(value <= room[number] for number, value in entry[1].items)]
        best = min(fitting, key=lambda entry: entry[0], default=None)
        assert lines.first(room) is (None if best is None else best[2])
        gone = best or rng.choice(plain)
        plain.remove(gone)
        lines.remove(gone[1], gone[0], gone[2])
    assert not lines


def test_a_leaving_placeholder_that_becomes_too_small_holds_its_ask_up_no_longer() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}").having({"n1": {"vcore": 6}}, {"x": "root.a"})

    def member(key: str, vcore: int, *, placeholder: bool) -> AskItem:
        return replace(ask("x", key, vcore=vcore), task_group="w", placeholder=placeholder)

    cluster.do(UpdateAllocations([member("p", 3, placeholder=True)]))
    cluster.do(UpdateAllocations([member("real", 3, placeholder=False)]))
    assert cluster.pending("x") == {"real": "PLACEHOLDER_LEAVING"}
    out = cluster.do(UpdateAllocations([member("p", 2, placeholder=True)]))
    assert allocations(out) == [("x", "real", "n1")]
    cluster.release("x", "p", Termination.PLACEHOLDER_REPLACED)
    assert cluster.placed("x") == {"real": "n1"}
