"""The load driver of gangs completes its life as a resource manager, and notices a wrong release."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chaos.harness import embedded
from muster_client import release
from muster_proto.si.v1 import si_pb2 as si

from bench.gang_driver import GangDriver, Gangs, run_gangs, run_gangs_on_a_clock

SMALL = Gangs(nodes=4, gangs=3, members=5, queues=2)


def test_all_members_are_placed_and_measured(tmp_path: Path) -> None:
    async def play() -> tuple[dict[str, float], dict[str, float]]:
        deployment = embedded(tmp_path)
        await deployment.start()
        try:
            up_front = await run_gangs(deployment.gateway, "gangs", SMALL)
            return up_front, await run_gangs_on_a_clock(deployment.gateway, "clock", SMALL, 100.0)
        finally:
            await deployment.stop()

    up_front, on_a_clock = asyncio.run(play())
    assert (up_front["nodes"], up_front["gangs"], up_front["members"]) == (4, 3, 5)
    assert min(up_front.values()) > 0
    assert up_front["all_s"] >= up_front["placeholders_s"]
    assert up_front["latency_p50_ms"] <= up_front["latency_p99_ms"]
    assert on_a_clock["asks_per_s"] == 100.0
    assert 0 < on_a_clock["latency_p50_ms"] <= on_a_clock["latency_p99_ms"] <= on_a_clock["latency_max_ms"]


def test_asks_are_gang_after_gang_and_announced() -> None:
    driver = GangDriver("nowhere", "rm", SMALL.shape())
    placeholders, real = driver.asks("p", 15), driver.asks("r", 15)
    assert [ask.applicationID for ask in placeholders[4:6]] == ["app-0", "app-1"]
    assert all(ask.placeholder for ask in placeholders)
    assert not any(ask.placeholder for ask in real)
    assert {ask.taskGroupName for ask in placeholders + real} == {"workers"}
    (announced, *_) = driver.applications()
    for name, quantity in announced.placeholderAsk.resources.items():
        assert quantity.value == 5 * placeholders[0].resourcePerAlloc.resources[name].value
    (ordinary, *_) = GangDriver("nowhere", "rm", SMALL.shape(), announces=False).applications()
    assert not ordinary.HasField("placeholderAsk")


@pytest.mark.parametrize(
    ("ended", "complaint"),
    [
        (si.TIMEOUT, "p-0: too late"),
        (si.PLACEHOLDER_REPLACED, "1 of 15 placeholders were replaced"),
    ],
)
def test_another_end_than_a_replacement_is_noticed(ended: si.TerminationType.ValueType, complaint: str) -> None:
    driver = GangDriver("nowhere", "rm", SMALL.shape())
    driver._on_released([release("app-0", "p-0", termination_type=ended, message="too late")])
    with pytest.raises(AssertionError, match=complaint):
        driver.check()
