"""The runner itself: whatever a scenario says must be able to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scenario.core.runner import Scenario, ScenarioError, read_scenarios, run, scenarios_of

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
def test_what_is_so_passes(expect: dict[str, Any]) -> None:
    run(last(expect))


@pytest.mark.parametrize("expect", WRONG, ids=str)
def test_what_is_not_so_fails(expect: dict[str, Any]) -> None:
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
            ]
        },
        True,
    ),
    ({"events_exactly": ["APP ADD APP_REQUEST x k1"]}, False),
    ({"no_events": ["NODE REMOVE", "APP REMOVE APP_REQUEST x k1"]}, True),
    ({"no_events": ["NODE ADD"]}, False),
]


@pytest.mark.parametrize(("expect", "so"), TOLD, ids=str)
def test_what_was_told(expect: dict[str, Any], so: bool) -> None:
    made = scenario([STEPS[0], {**ASK, "expect": expect}])
    if so:
        run(made)
        return
    with pytest.raises(AssertionError):
        run(made)


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
