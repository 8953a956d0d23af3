"""Every arrow of the interface's lifecycle drawings, in both generations, through a whole Muster; some also on Kafka.

The arrows are in lifecycles/arrows.yaml, the scenarios beside them; lifecycles/README.md has their words.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from e2e.gang_rig import Muster, muster_here
from muster_proto.si.v1 import si_pb2 as si
from scenario.lifecycles import draw
from scenario.lifecycles.peer import Peer, foreign_words
from scenario.lifecycles.runner import (
    SCENARIO_FILES,
    Arrow,
    Scenario,
    ScenarioError,
    play,
    read_drawings,
    read_scenarios,
)

DRAWINGS = read_drawings()
ARROWS = [arrow for drawing in DRAWINGS for arrow in drawing.arrows]
SCENARIOS = [scenario for path in SCENARIO_FILES for scenario in read_scenarios(path)]

# Nothing is told twice and no time is lost by waiting for a sweep; the rest is as `muster up` has it.
SETTINGS = (
    "gateway.resend_window_s=0",
    "gateway.lease_ttl_s=0.5",
    "scheduler.worker.idle_wait_s=0.05",
    "log.partitions=2",
    "log.kafka_linger_ms=0",
)
on_the_embedded_log = pytest.mark.parametrize("muster", ["embedded"], indirect=True)
on_kafka = pytest.mark.parametrize(
    "muster", [pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.redis])], indirect=True
)


def casts(scenarios: Iterable[Scenario], most: int | None = None) -> list[Any]:
    """(scenario, cast) of each scenario's first casts; None: all of them."""
    return [
        pytest.param(scenario, cast, id=f"{scenario}: {' and '.join(cast.values())}")
        for scenario in scenarios
        for cast in itertools.islice(scenario.casts, most)
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def muster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Muster]:
    """A whole Muster, on the embedded log and SQLite, or on Kafka and Redis; all scenarios share it."""
    settings = list(SETTINGS)
    if request.param == "kafka":
        prefix = f"lifecycles-{uuid.uuid4().hex[:12]}"
        settings += [
            "log.backend=kafka",
            f"log.kafka_bootstrap_servers={request.getfixturevalue('kafka_bootstrap')}",
            f"log.topic_prefix={prefix}.",
            f"gateway.sessions_url={request.getfixturevalue('redis_url')}",
            f"gateway.sessions_prefix={prefix}:",
        ]
    async with muster_here(Path(tmp_path_factory.mktemp("muster")), settings) as it:
        yield it


@pytest.mark.asyncio(loop_scope="module")
@on_the_embedded_log
@pytest.mark.parametrize(("scenario", "cast"), casts(SCENARIOS))
async def test_scenario(muster: Muster, scenario: Scenario, cast: dict[str, str]) -> None:
    await play(muster, scenario, cast)


# A log sees neither generations nor lifecycles, and each backend passes the contract of logs: one of each file will do.
@pytest.mark.asyncio(loop_scope="module")
@on_kafka
@pytest.mark.parametrize(("scenario", "cast"), casts((read_scenarios(path)[0] for path in SCENARIO_FILES), 1))
async def test_scenario_on_kafka(muster: Muster, scenario: Scenario, cast: dict[str, str]) -> None:
    await play(muster, scenario, cast)


# ---- what the runner notices ---------------------------------------------------------------------------------------

CREATE = {"UpdateNode": {"nodes": [{"nodeID": "n1", "action": "CREATE", "schedulableResource": {"vcore": 10}}]}}


def of_steps(*steps: dict[str, Any]) -> Scenario:
    return Scenario("node", "made up", "made up", "none", ("current",), {}, ({"register": {}}, *steps))


@pytest.mark.asyncio(loop_scope="module")
@on_the_embedded_log
@pytest.mark.parametrize(
    ("steps", "difference"),
    [
        ([{"send": CREATE, "hear": {"UpdateNode": [{"accepted": {"nodeID": "n2"}}]}}], "expected accepted"),
        ([{"send": CREATE, "hear": {"UpdateNode": [{"rejected": {"nodeID": "n1"}}]}}], "expected rejected"),
        ([{"send": CREATE, "see": {"partition/default/node/n1": {"nodeID": "n1"}}}], "got unexpected messages"),
    ],
)
async def test_a_difference_from_the_scenario_fails(
    muster: Muster, steps: list[dict[str, Any]], difference: str
) -> None:
    with pytest.raises(AssertionError, match=difference):
        await play(muster, of_steps(*steps), {"rm": "current"})


@pytest.mark.asyncio(loop_scope="module")
@on_the_embedded_log
@pytest.mark.parametrize(
    "step",
    [
        {"send": {"UpdateNode": {"nodes": [{"nodeID": "n1", "colour": "blue"}]}}, "hear": {"UpdateNode": []}},
        {"send": {"UpdateQueue": {}}, "hear": {"UpdateNode": []}},
        {"send": {"UpdateNode": {}}},
    ],
    ids=["a field that no generation has", "a stream that nobody has", "nothing is expected"],
)
async def test_a_scenario_that_is_wrong_in_itself_is_refused(muster: Muster, step: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        await play(muster, of_steps(step), {"rm": "current"})


def test_a_peer_notices_what_its_generation_does_not_know() -> None:
    response = si.AllocationResponse(responseSequence=7)
    response.new.add(allocationKey="k", UUID="u", originator=True)
    response.rejected.add(allocationKey="lost")
    raw = response.SerializeToString()
    current, previous = (Peer("", "rm", generation).classes for generation in ("current", "previous"))
    assert list(foreign_words(current["AllocationResponse"].FromString(raw))) == [
        "AllocationResponse has a field 4: b'\\n\\x04lost'",
        "Allocation has a field 3: b'u'",
    ]
    assert list(foreign_words(previous["AllocationResponse"].FromString(raw))) == ["Allocation has a field 14: 1"]


# ---- the table of arrows -------------------------------------------------------------------------------------------


def unplayed(arrow: Arrow, scenarios: Iterable[Scenario]) -> set[str]:
    """The generations that draw the arrow, and have no scenario of it."""
    of_arrow = [each for each in scenarios if (each.drawing, each.arrow) == (arrow.drawing, arrow.name)]
    return set(arrow.generations).difference(*(scenario.played_in() for scenario in of_arrow))


@pytest.mark.parametrize("arrow", ARROWS, ids=lambda arrow: f"{arrow.drawing}: {arrow.name}")
def test_every_arrow_has_a_scenario_in_each_generation_that_draws_it(arrow: Arrow) -> None:
    assert unplayed(arrow, SCENARIOS) == set()


def test_an_arrow_without_a_scenario_is_noticed() -> None:
    arrow = next(arrow for arrow in ARROWS if arrow.name == "Paused -> Stopped")
    others = [scenario for scenario in SCENARIOS if scenario.arrow != arrow.name]
    assert unplayed(arrow, others) == {"current", "previous"}
    once = [replace(scenario, generations=("current",)) for scenario in SCENARIOS]
    assert unplayed(arrow, once) == {"previous"}


def test_every_scenario_is_one_of_an_arrow() -> None:
    known = {(arrow.drawing, arrow.name) for arrow in ARROWS}
    assert [str(scenario) for scenario in SCENARIOS if (scenario.drawing, scenario.arrow) not in known] == []


def test_both_generations_play_each_lifecycle_at_the_same_time() -> None:
    lifecycles = {drawing.name: drawing.lifecycle for drawing in DRAWINGS}
    together = {lifecycles[each.drawing] for each in SCENARIOS if set(each.rms.values()) == {"previous", "current"}}
    assert together == set(lifecycles.values())


def test_no_two_scenarios_have_one_name() -> None:
    names = sorted(str(scenario) for scenario in SCENARIOS)
    assert [one for one, other in itertools.pairwise(names) if one == other] == []


def test_the_page_is_drawn_from_the_arrows_and_their_scenarios() -> None:
    assert draw.DOC.read_text(encoding="utf-8") == draw.page(), "the page is stale: run lifecycles/draw.py"
