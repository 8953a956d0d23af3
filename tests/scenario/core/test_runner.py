"""The runner itself: whatever a scenario says must be able to fail."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from muster_queue_config.queue_yaml import load_queue_config
from scenario.core import runner
from scenario.core.runner import Scenario, ScenarioError, World, config_text, read_scenarios, run, scenarios_of

GIVEN: dict[str, Any] = {
    "root": [{"name": "a", "resources": {"max": {"vcore": 2}}}],
    "nodes": {"n1": {"vcore": 10}},
}
# What all scenarios here do: k1 and k2 find their place, k3 is over the queue's max.
STEPS: list[dict[str, Any]] = [
    {"application": "x", "queue": "root.a"},
    {"ask": "k1..k2", "application": "x", "wants": {"vcore": 1}},
    {"ask": "k3", "application": "x", "wants": {"vcore": 1}},
]


def scenario(steps: list[dict[str, Any]], **body: Any) -> Scenario:
    return Scenario("here", "a name", "a rule", {**GIVEN, **body, "steps": steps})


def last(expect: dict[str, Any]) -> Scenario:
    return scenario([*STEPS, {"expect": expect}])


TRUE: list[dict[str, Any]] = [
    {"placed": {"x": {"k1": "n1", "k2": "anywhere"}}},
    {"placed": {"x": 2}},
    {"pending": {"x": {"k3": "QUEUE_MAX"}}},
    {"pending": {"x": {"k3": {"queue": "root.a", "asked": 1, "used": 2, "limit": 2, "says": "root.a", "since_s": 0}}}},
    {"pending": {"x": 1}},
    {"applications": {"x": "Running", "y": "gone"}},
    {"applications": {"x": {"queue": "root.a", "user": "alice", "story": ["New", "Accepted", "Running"]}}},
    {"applications": {"x": {"allocated": {"vcore": 2}, "pending": {"vcore": 1}, "counts_as_running": True}}},
    {
        "queues": {
            "root.a": {"allocated": {"vcore": 2}, "pending": {"vcore": 1}, "max": {"vcore": 2}, "state": "Active"}
        }
    },
    {"queues": {"root.a": {"guaranteed": "unset", "running": 1, "leaf": True, "managed": True}, "root.b": "absent"}},
    {"nodes": {"n1": {"available": {"vcore": 8}, "schedulable": True, "foreign": []}, "n2": "absent"}},
    {"partition": {"capacity": {"vcore": 10}, "queues": ["root", "root.a"], "applications": ["x"]}},
]
WRONG: list[dict[str, Any]] = [
    {"placed": {"x": {"k1": "n1"}}},
    {"placed": {"x": {"k1": "n1", "k2": "n2"}}},
    {"placed": {"x": {"k1": "n1", "k2": "n1", "k3": "anywhere"}}},
    {"placed": {"x": {"k1": "n1", "k2": "n1", "k9": "n1"}}},
    {"placed": {"x": 3}},
    {"placed": {"y": 0}},
    {"pending": {"x": {}}},
    {"pending": {"x": {"k3": "NO_NODE_HAS_ROOM"}}},
    {"pending": {"x": {"k3": "NO_SUCH_REASON"}}},
    {"pending": {"x": {"k2": "QUEUE_MAX"}}},
    {"pending": {"x": {"k3": {"limit": 3}}}},
    {"pending": {"x": {"k3": {"limit": "2m"}}}},
    {"pending": {"x": {"k3": {"says": "root.b"}}}},
    {"pending": {"x": {"k3": {"since_s": 1}}}},
    {"pending": {"x": 0}},
    {"pending": {"y": {}}},
    {"applications": {"x": "Completing"}},
    {"applications": {"y": "Running"}},
    {"applications": {"x": "gone"}},
    {"applications": {"x": {"queue": "root.b"}}},
    {"applications": {"x": {"allocated": {"vcore": 3}}}},
    {"applications": {"x": {"allocated": {"vcore": 2, "memory": 1}}}},
    {"queues": {"root.a": {"allocated": {}}}},
    {"queues": {"root.a": {"max": "unset"}}},
    {"queues": {"root.a": {"guaranteed": {"vcore": 1}}}},
    {"queues": {"root.b": {"leaf": True}}},
    {"queues": {"root.a": "absent"}},
    {"queues": {"root.a": {"properties": {"priority.offset": "1"}}}},
    {"nodes": {"n1": {"available": {"vcore": 9}}}},
    {"nodes": {"n2": {"schedulable": True}}},
    {"nodes": {"n1": "absent"}},
    {"partition": {"queues": ["root"]}},
    {"partition": {"capacity": {"vcore": 10, "memory": 1}}},
    {"in_partition": "other", "placed": {"x": 2}},
]


@pytest.mark.parametrize("expect", TRUE, ids=str)
def test_true_expectations_pass(expect: dict[str, Any]) -> None:
    run(last(expect))


@pytest.mark.parametrize("expect", WRONG, ids=str)
def test_false_expectations_fail(expect: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        run(last(expect))


ASK = {"ask": "k1", "application": "x", "wants": {"vcore": 1}}
TOLD: list[tuple[dict[str, Any], bool]] = [
    ({"tells": ["application x is Accepted", "application x is Running", "new x/k1 on n1"]}, True),
    ({"tells": ["application x is Accepted", "application x is Running"]}, False),
    ({"tells": ["application x is Running", "application x is Accepted", "new x/k1 on n1"]}, False),
    ({"tells": []}, False),
    ({"tells_among_others": ["application x is Accepted", "new x/k1 on n1"]}, True),
    ({"tells_among_others": ["new x/k1 on n1", "application x is Accepted"]}, False),
    ({"tells_among_others": ["new x/k1 on n2"]}, False),
    ({"new": ["x/k1 on n1"]}, True),
    ({"new": 1}, True),
    ({"new": 2}, False),
    ({"new": []}, False),
    ({"new": ["x/k1"]}, False),
    ({"released": []}, True),
    ({"released": ["x/k1 STOPPED_BY_RM"]}, False),
    ({"updated": ["x is Accepted: runApplication", "x is Running"]}, True),
    ({"updated": ["x is Accepted: something else", "x is Running"]}, False),
    ({"accepted": []}, True),
    ({"accepted": ["node n1"]}, False),
    ({"rejected": {}}, True),
    ({"rejected": {"ask x/k1": "words"}}, False),
    ({"events": ["APP ADD APP_REQUEST x k1", "NODE ADD NODE_ALLOC n1 k1"]}, True),
    ({"events": ["NODE ADD NODE_ALLOC n1 k1", "APP ADD APP_REQUEST x k1"]}, False),
    ({"events": ["APP ADD APP_REQUEST x"]}, False),
    ({"events": [{"event": "APP ADD APP_ALLOC x k1", "resource": {"vcore": 1}}]}, True),
    ({"events": [{"event": "APP ADD APP_ALLOC x k1", "resource": {"vcore": 2}}]}, False),
    ({"events": [{"event": "APP ADD APP_ALLOC x k1", "says": "anything"}]}, False),
    (
        {
            "events_exactly": [
                "APP ADD APP_REQUEST x k1",
                "APP SET APP_ACCEPTED x",
                "APP SET APP_RUNNING x",
                "APP ADD APP_ALLOC x k1",
                "NODE ADD NODE_ALLOC n1 k1",
                "USERGROUP ADD UG_USER_RESOURCE alice root.a",
            ]
        },
        True,
    ),
    ({"events_exactly": ["APP ADD APP_REQUEST x k1"]}, False),
    ({"no_events": ["NODE REMOVE", "APP REMOVE APP_REQUEST x k1"]}, True),
    ({"no_events": ["NODE ADD"]}, False),
]


@pytest.mark.parametrize(("expect", "so"), TOLD, ids=str)
def test_the_messages_to_the_rm_are_compared(expect: dict[str, Any], so: bool) -> None:
    made = scenario([STEPS[0], {**ASK, "expect": expect}])
    if so:
        run(made)
        return
    with pytest.raises(AssertionError):
        run(made)


# A gang of three of which p1 was replaced by r1, p2 leaves for r2, and p3 has found no room.
GANG: list[dict[str, Any]] = [
    {"application": "x", "queue": "root.a", "placeholder_ask": {"vcore": 2}},
    {"ask": "p1..p2", "application": "x", "wants": {"vcore": 1}, "task_group": "t", "placeholder": True},
    {"ask": "r1", "application": "x", "wants": {"vcore": 1}, "task_group": "t", "priority": 3},
    {"release": "p1", "application": "x", "as": "PLACEHOLDER_REPLACED"},
    {"wait": 5},
    {"ask": "r2", "application": "x", "wants": {"vcore": 1}, "task_group": "t"},
    {"ask": "p3", "application": "x", "wants": {"vcore": 1}, "task_group": "t", "placeholder": True},
    {"application": "y", "queue": "root.a"},
]
COUNTS = {"asked": 3, "held": 1, "replaced": 1, "pending": 1}
GANG_TRUE: list[dict[str, Any]] = [
    {"gangs": {"x": "USED", "y": "none"}},
    {"gangs": {"x": {"phase": "USED", "deadline_s": 900, "groups": {"t": COUNTS}}}},
    {"gangs": {"x": {"groups": {"t": {**COUNTS, "lost": 0}}}}},
    {"placeholders": {"x": {"p2": "Leaving", "p3": "Asked"}, "y": "none"}},
    {"allocations": {"x": {"r1": {"replaces": "p1", "node": "n1", "placeholder": False, "task_group": "t"}}}},
    {"allocations": {"x": {"p2": {"told": True, "replaces": "nothing", "holds": {"vcore": 1}}, "p1": "gone"}}},
    {"allocations": {"x": {"r1": {"asked_s": 0, "allocated_s": 0, "place_asked_s": 0, "priority": 3}}}},
    {"pending": {"x": {"p3": "QUEUE_MAX", "r2": {"code": "PLACEHOLDER_LEAVING", "placeholder": "p2", "node": "n1"}}}},
    {"pending": {"x": {"p3": "QUEUE_MAX", "r2": {"task_group": "t", "since_s": 5, "still_wanted": 1}}}},
    {"queues": {"root.a": {"promised": {}}}},
]
GANG_WRONG: list[dict[str, Any]] = [
    {"gangs": {"x": "FORMED"}},
    {"gangs": {"x": "none"}},
    {"gangs": {"y": "WAITING"}},
    {"gangs": {"z": "none"}},
    {"gangs": {"x": {"phase": "FORMED"}}},
    {"gangs": {"x": {"deadline_s": 901}}},
    {"gangs": {"x": {"deadline_s": "none"}}},
    {"gangs": {"x": {"groups": {}}}},
    {"gangs": {"x": {"groups": {"u": COUNTS}}}},
    {"gangs": {"x": {"groups": {"t": COUNTS, "u": {}}}}},
    *({"gangs": {"x": {"groups": {"t": {**COUNTS, name: 7}}}}} for name in (*COUNTS, "lost", "timed_out")),
    *({"gangs": {"x": {"groups": {"t": {**COUNTS, name: 0}}}}} for name in COUNTS),
    {"placeholders": {"x": {"p2": "Leaving"}}},
    {"placeholders": {"x": {"p2": "Leaving", "p3": "Held"}}},
    {"placeholders": {"x": {"p2": "Leaving", "p3": "Asked", "p1": "Gone"}}},
    {"placeholders": {"x": "none"}},
    {"placeholders": {"y": {"p2": "Leaving"}}},
    {"placeholders": {"z": "none"}},
    {"allocations": {"x": {"r1": {"replaces": "p2"}}}},
    {"allocations": {"x": {"r1": {"replaces": "nothing"}}}},
    {"allocations": {"x": {"p2": {"replaces": "p1"}}}},
    {"allocations": {"x": {"p2": {"told": False}}}},
    {"allocations": {"x": {"p2": {"placeholder": False}}}},
    {"allocations": {"x": {"p2": {"task_group": ""}}}},
    {"allocations": {"x": {"p2": {"node": "n2"}}}},
    {"allocations": {"x": {"p2": {"holds": {"vcore": 2}}}}},
    {"allocations": {"x": {"p2": {"place_asked_s": 0}}}},
    {"allocations": {"x": {"r1": {"place_asked_s": 1}}}},
    {"allocations": {"x": {"r1": {"asked_s": 1}}}},
    {"allocations": {"x": {"r1": {"allocated_s": 1}}}},
    {"allocations": {"x": {"r1": {"priority": 0}}}},
    {"allocations": {"x": {"r1": "gone"}}},
    {"allocations": {"x": {"p1": {"told": False}}}},
    {"allocations": {"z": {"p1": "gone"}}},
    {"pending": {"x": {"p3": "QUEUE_MAX", "r2": {"placeholder": "p3"}}}},
    {"pending": {"x": {"p3": "QUEUE_MAX", "r2": {"task_group": "u"}}}},
    {"pending": {"x": {"p3": "QUEUE_MAX", "r2": {"since_s": 0}}}},
    {"pending": {"x": {"p3": "QUEUE_MAX", "r2": {"still_wanted": 2}}}},
    {"pending": {"x": {"p3": {"code": "QUEUE_MAX", "because": {"code": "QUEUE_MAX"}}, "r2": "PLACEHOLDER_LEAVING"}}},
    {"queues": {"root.a": {"promised": {"vcore": 1}}}},
]


@pytest.mark.parametrize("expect", GANG_TRUE, ids=str)
def test_true_expectations_of_a_gang_pass(expect: dict[str, Any]) -> None:
    run(scenario([*GANG, {"expect": expect}]))


@pytest.mark.parametrize("expect", GANG_WRONG, ids=str)
def test_false_expectations_of_a_gang_fail(expect: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        run(scenario([*GANG, {"expect": expect}]))


FORMING: list[dict[str, Any]] = [
    {"node": "n1", "has": {"vcore": 1}},
    {"application": "x", "queue": "root.a", "placeholder_ask": {"vcore": 2}},
    {"ask": "p1..p2", "application": "x", "wants": {"vcore": 1}, "task_group": "t", "placeholder": True},
    {"ask": "r1", "application": "x", "wants": {"vcore": 1}, "task_group": "t"},
]


@pytest.mark.parametrize(
    ("reason", "so"),
    [
        ({"code": "GANG_FORMING", "placed": 1, "members": 2, "because": {"code": "NO_NODE_HAS_ROOM", "free": 0}}, True),
        ({"because": "NO_NODE_HAS_ROOM"}, True),
        ({"because": "QUEUE_MAX"}, False),
        ({"because": "nothing"}, False),
        ({"because": {"code": "NO_NODE_HAS_ROOM", "free": 1}}, False),
        ({"placed": 2}, False),
        ({"members": 1}, False),
        ({"promised": 1}, False),
    ],
    ids=str,
)
def test_why_a_real_ask_waits_for_its_gang(reason: dict[str, Any], so: bool) -> None:
    expect = {
        "pending": {"x": {"p2": "NO_NODE_HAS_ROOM", "r1": reason}},
        "queues": {"root.a": {"promised": {"vcore": 1}}},
    }
    made = scenario([*FORMING, {"expect": expect}], nodes={})
    if so:
        run(made)
        return
    with pytest.raises(AssertionError):
        run(made)


def test_dropped_asks_differ_from_releases() -> None:
    wait = {"wait": 900}
    so = {"dropped": ["x/p2 TIMEOUT"], "released": ["x/p1 TIMEOUT"]}
    run(scenario([*FORMING, {**wait, "expect": so}], nodes={}))
    for wrong in ({"dropped": []}, {"dropped": ["x/p1 TIMEOUT"]}, {"dropped": 2}, {"released": 2}):
        with pytest.raises(AssertionError):
            run(scenario([*FORMING, {**wait, "expect": wrong}], nodes={}))


REPEATS: list[dict[str, Any]] = [
    STEPS[0],
    {"ask": "k", "application": "x", "wants": {"vcore": 1}, "wanted": 2, "previous_generation": True},
]


def test_one_of_several_repeats_is_released_by_its_uuid() -> None:
    release = {"release": "k", "application": "x", "uuid_of": "k#1"}
    run(scenario([*REPEATS, {**release, "expect": {"placed": {"x": {"k": "n1"}}}}]))
    with pytest.raises(AssertionError):
        run(scenario([*REPEATS, {**release, "expect": {"placed": {"x": {"k#1": "n1"}}}}]))
    for unknown in ({**release, "uuid_of": "k#2"}, {**release, "application": "y"}):
        with pytest.raises(AssertionError):
            run(scenario([*REPEATS, unknown, {"expect": {"placed": {"x": 2}}}]))
    with pytest.raises(AssertionError):  # of this generation: it has no UUID
        run(scenario([*STEPS, {"release": "k1", "application": "x", "uuid_of": "k1", "expect": {"placed": {"x": 1}}}]))


def test_a_new_node_brings_its_allocations() -> None:
    existing = [{"allocation": "old1..old2", "application": "x", "holds": {"vcore": 1}}]
    come = {"node": "n2", "has": {"vcore": 5}, "existing": existing}
    run(scenario([STEPS[0], {**come, "expect": {"placed": {"x": {"old1": "n2", "old2": "n2"}}}}]))
    with pytest.raises(AssertionError):
        run(scenario([STEPS[0], {**come, "expect": {"placed": {"x": 0}}}]))
    elsewhere = {**come, "existing": [{**existing[0], "node": "n1"}]}
    run(scenario([STEPS[0], {**elsewhere, "expect": {"placed": {"x": 0}}}]))
    with pytest.raises(AssertionError):
        run(scenario([STEPS[0], {**elsewhere, "expect": {"placed": {"x": 2}}}]))
    with pytest.raises(ScenarioError):
        run(scenario([STEPS[0], {**come, "existing": [{**existing[0], "queue": "a"}], "expect": {"placed": {"x": 2}}}]))


def test_a_restart_goes_on_with_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [*GANG, {"restart": True, "expect": {**GANG_TRUE[1], "placed": {"x": 2}, "tells": []}}]
    run(scenario(steps))
    run(scenario(GANG[:-1] + steps[-1:]), restarts=True)
    with pytest.raises(AssertionError):
        run(scenario([*GANG, {"restart": True, "expect": {"gangs": {"x": "FORMED"}}}]))
    with pytest.raises(AssertionError):
        run(scenario([*GANG, {"restart": True}, {"expect": {"placed": {"x": 1}}}]))
    # What is not recorded is not there afterwards, and the scenario notices.
    monkeypatch.setattr(runner.state_codec, "encode", _forgetting(runner.state_codec.encode))
    with pytest.raises(AssertionError, match="messages"):
        run(scenario(steps))


def _forgetting(encode: Callable[[str, Any], bytes]) -> Callable[[str, Any], bytes]:
    def forget(partition: str, what: Any) -> bytes:
        if getattr(what, "replaced_by", None) is None:
            return encode(partition, what)
        changed = copy(what)
        changed.replaced_by = None
        return encode(partition, changed)

    return forget


def test_a_restart_that_reads_other_things_than_were_written_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    text = config_text({"root": GIVEN["root"]})
    config, _ = load_queue_config(text)
    assert config is not None
    world = World(config, text)
    for step in [{"node": "n1", "has": {"vcore": 10}}, *GANG[:-1]]:
        if "wait" not in step:
            world.do(*runner._commands(world, step))
    world.restart()
    monkeypatch.setattr(runner.state_codec, "encode", _forgetting(runner.state_codec.encode))
    with pytest.raises(AssertionError, match="alloc/default/x/p2"):
        world.restart()


def test_steps_that_come_before_are_taken_first_and_can_fail() -> None:
    run(scenario([{"expect": {"placed": {"x": 2}}}], before=STEPS))
    with pytest.raises(AssertionError, match="step 1,"):
        run(scenario([{"expect": {"placed": {"x": 1}}}], before=STEPS))
    with pytest.raises(AssertionError, match="step 0,"):
        run(scenario([{"expect": {"placed": {"x": 2}}}], before=[*STEPS, {"expect": {"placed": {"x": 1}}}]))
    with pytest.raises(ScenarioError):
        run(scenario([], before=STEPS))


def test_a_rejection_needs_its_words() -> None:
    step = {"ask": "k", "application": "ghost", "wants": {"vcore": 1}}
    run(scenario([{**step, "expect": {"rejected": {"ask ghost/k": ["failed to find", "ghost"]}}}]))
    for wrong in ({"ask ghost/k": "no such words"}, {"ask ghost/other": "ghost"}, {}):
        with pytest.raises(AssertionError):
            run(scenario([{**step, "expect": {"rejected": wrong}}]))


MISTAKES: list[list[dict[str, Any]]] = [
    [{"asks": "k"}],
    [{"ask": "k", "application": "x", "want": {"vcore": 1}}],
    [{"ask": "k", "application": "x", "wants": {"vcore": 1.5}}],
    [{"ask": "k", "application": "x", "wants": {"memory": "4Mb"}}],
    [{"release": "k", "application": "x", "as": "GONE"}],
    [{"release": "k", "application": "x", "uuids_of": "k"}],
    [{"restart": True, "hurry": True}],
    [{"node": "n2", "has": {"vcore": 1}, "existing": [{"ask": "k"}]}],
    [{"expect": {"placeholders": {"x": {"p1": "Helt"}}}}],
    [{"expect": {"placeholders": {"x": {}}}}],
    [{"expect": {"allocations": {"x": {}}}}],
    [{"expect": {"allocations": {"x": {"k1": {}}}}}],
    [{"expect": {"allocations": {"x": {"k1": {"replaced": "p"}}}}}],
    [{"expect": {"dropped": "x/p"}}],
    [{"wait": 1, "hurry": True}],
    [{"node": "n2", "has": 5}],
    [{"expect": {"place": {"x": 1}}}],
    [{"expect": {"placed": {}}}],
    [{"expect": {"placed": {"x": "n1"}}}],
    [{"expect": {"pending": {"x": {"k3": {"limits": 2}}}}}],
    [{"expect": {"applications": {"x": "Runing"}}}],
    [{"expect": {"applications": {"x": {"stat": "Running"}}}}],
    [{"expect": {"queues": {"root.a": {"used": {}}}}}],
    [{"expect": {"nodes": {"n1": {"free": {}}}}}],
    [{"expect": {"partition": {"name": "default"}}}],
    [{"expect": {"tells_among_others": []}}],
    [{"expect": {"events": []}}],
    [{"expect": {"no_events": []}}],
    [{"expect": {"no_events": ["NODES ADD"]}}],
    [{"expect": {"events": [{"event": "APP ADD NONE x", "message": "m"}]}}],
    [{"expect": {"rejected": ["x"]}}],
    [{"expect": {}}],
    [{}],
    [{"budget": 1}],
    [],
]


def test_a_phase_or_a_count_that_there_is_not_is_a_mistake() -> None:
    for wrong in ({"phase": "FORMD"}, {"groups": {"t": {"helt": 1}}}, {"deadline": 900}):
        with pytest.raises(ScenarioError):
            run(scenario([*GANG, {"expect": {"gangs": {"x": wrong}}}]))


@pytest.mark.parametrize("steps", MISTAKES, ids=str)
def test_a_mistake_in_a_scenario_is_no_pass(steps: list[dict[str, Any]]) -> None:
    with pytest.raises(ScenarioError):
        run(scenario([*STEPS, *steps]))


def test_a_configuration_that_is_refused_is_refused_for_the_reasons_given() -> None:
    bad = {"root": [{"name": "a b"}, {"name": "c", "maxapplications": -1}], "nodes": {}}
    both = [{"says": "-1", "path": "partitions[0].queues[0].queues[1].maxapplications"}, "invalid queue name"]
    run(scenario([], **bad, refused=both))
    for wrong in ([], both[:1], [*both, "more"], ["invalid queue name", "something else"]):
        with pytest.raises(AssertionError):
            run(scenario([], **bad, refused=wrong))
    with pytest.raises(AssertionError):
        run(scenario([], **bad))
    with pytest.raises(AssertionError):
        run(scenario([], root=[{"name": "a"}], nodes={}, refused=[]))
    with pytest.raises(ScenarioError):
        run(scenario(STEPS, **bad, refused=both))


def test_warnings_are_listed_completely() -> None:
    odd = {"root": [{"name": "a", "properties": {"what.is": "this"}}], "nodes": {}}
    run(scenario([], **odd, warned=["what.is"]))
    for wrong in ([], ["something else"], ["what.is", "what.is"]):
        with pytest.raises(AssertionError):
            run(scenario([], **odd, warned=wrong))


@pytest.mark.parametrize(
    "document",
    [
        {"section": "s"},
        {"scenarios": [{"name": "n", "proves": "p"}]},
        {"section": "s", "scenarios": [{"name": "n"}]},
        {"section": "s", "scenarios": [{"proves": "p"}]},
        {"section": "s", "scenarios": [{"name": "n", "proves": "p", "step": []}]},
        {"section": "s", "scenarios": [{"name": "n", "proves": "p", "given": "ghost"}]},
        {"section": "s", "scenarios": [{"name": "n", "proves": "p"}], "more": 1},
        {"section": "s", "given": {"g": {"nods": {}}}, "scenarios": [{"name": "n", "proves": "p", "given": "g"}]},
    ],
    ids=str,
)
def test_a_file_that_is_not_as_it_should_be(document: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        scenarios_of(document, "file")


def test_a_key_that_stands_twice_would_hide_an_expectation(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("section: s\nscenarios:\n- {name: n, proves: p, steps: [], steps: []}\n")
    with pytest.raises(ScenarioError):
        read_scenarios(file)
