"""``/ws/v1/explain/when``: a forecast of the folded state, made in a process of its own (docs/what-if-when.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from muster_core.model.commands import AskItem, Termination, UpdateAllocations
from muster_view import ViewService
from muster_whatif.when.forecaster import Forecaster, Present
from muster_whatif.when.settings import ForecastSettings
from unit.view.recorded import Bench, Recorded, client_of
from waiting import eventually

SLOW = {"forecast": {"wait_s": 60.0, "cpu_s": 60.0}}


async def when(client: httpx.AsyncClient, key: str = "k2", app: str = "x") -> dict[str, Any]:
    answer = await client.get(f"/ws/v1/explain/when/{app}/{key}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def waiting(bench: Bench, declared_ms: int) -> Recorded:
    """A node of three cores: k1 runs on it, k2 waits for it."""
    rm = bench.rm()
    rm.cluster.now_ns = bench.clock.now_ns()
    rm.cluster.node("n1", vcore=3)
    rm.cluster.app("x", "root.a")
    first = AskItem("k1", "x", "default", {"vcore": 3}, execution_timeout_ms=declared_ms)
    rm.do(UpdateAllocations((first,)))
    rm.cluster.ask("x", "k2", vcore=3)
    rm.info.last_decided_ns = rm.cluster.now_ns
    return rm


async def test_an_ask_starts_when_what_runs_has_ended_as_declared(bench: Bench) -> None:
    rm = waiting(bench, 3_600_000)
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        found = await when(client)
        assert (found["state"], found["why"], found["simulations"]) == ("ESTIMATED", "", 39)
        assert (found["declared"], found["learnt"], found["unknown"]) == (1, 0, 0)
        assert found["earliest"] == found["likely"] == found["latest"] == rm.cluster.now_ns + 3_600 * 10**9
        assert "Ask k2 of application x will start in about " in found["sentence"]
        assert (await when(client))["at"] == found["at"], "it is used again"
        assert (await client.get("/ws/v1/explain/when/x/k1")).status_code == 404, "it runs"


async def test_lengths_are_learnt_from_what_ends(bench: Bench) -> None:
    rm = waiting(bench, 0)
    await bench.write(rm)
    async with bench.view(**SLOW, fresh_wait_s=60.0) as view, client_of(view) as client:
        first = await when(client)
        assert (first["state"], first["why"], first["unknown"]) == ("UNKNOWN", "LENGTHS_UNKNOWN", 1)
        assert "the lengths of 1 running allocation are neither declared nor learnt" in first["sentence"]
        for number in range(20):  # each runs for 100 s
            rm.cluster.ask("x", f"more{number}", vcore=3)
            rm.cluster.now_ns += 100 * 10**9
            running = next(iter(rm.cluster.core.partitions["default"].apps["x"].allocations))
            rm.cluster.release("x", running, Termination.STOPPED_BY_RM)
            rm.info.last_decided_ns = rm.cluster.now_ns
            await bench.write(rm)
        last = "more19"
        found = await when(client, last)
        assert found["learnt"] == 1
        assert found["state"] == "ESTIMATED"
        assert 0 < found["latest"] - rm.cluster.now_ns <= 400 * 10**9


async def test_a_paused_rm_is_not_simulated(bench: Bench) -> None:
    rm = waiting(bench, 1_000)
    rm.info.paused, rm.info.paused_ns = True, rm.cluster.now_ns
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        found = await when(client)
        assert (found["state"], found["why"]) == ("UNKNOWN", "NOT_DECIDING")
        assert "because an operator paused the resource manager" in found["sentence"]


async def test_a_state_that_is_too_large_is_not_simulated(bench: Bench) -> None:
    rm = waiting(bench, 1_000)
    for number in range(400):
        rm.cluster.ask("x", f"large-{number:0>200}", vcore=1)
    await bench.write(rm)
    limits = {"forecast": {**SLOW["forecast"], "state_bytes_max": 1 << 16}}
    async with bench.view(**limits) as view, client_of(view) as client:
        found = await when(client)
        assert (found["state"], found["why"]) == ("UNKNOWN", "NOT_SIMULATED")
        assert "the state is larger than 0 MiB" in found["sentence"]


async def test_whoever_does_not_wait_asks_again(bench: Bench) -> None:
    rm = waiting(bench, 3_600_000)
    await bench.write(rm)
    async with bench.view(forecast={"wait_s": 0.0}) as view, client_of(view) as client:
        assert (await when(client))["state"] == "MAKING"

        async def is_made() -> bool:
            return bool((await when(client))["state"] == "ESTIMATED")

        await eventually(is_made)


async def test_a_view_that_stops_ends_the_process(bench: Bench) -> None:
    rm = waiting(bench, 3_600_000)
    await bench.write(rm)
    view: ViewService
    async with bench.view(forecast={"wait_s": 0.0}) as view, client_of(view) as client:
        assert (await when(client))["state"] == "MAKING"


async def test_too_many_at_a_time_are_refused() -> None:
    held = asyncio.Event()

    async def look() -> Present:
        await held.wait()
        return Present(0, None)

    forecaster = Forecaster(ForecastSettings(wait_s=0, waiting_max=2))
    assert await forecaster.of("a", look) is None
    assert await forecaster.of("b", look) is None
    with pytest.raises(Exception, match="2 forecasts are being made already"):
        await forecaster.of("c", look)
    assert await forecaster.of("a", look) is None, "it shares the one that is being made"
    held.set()
    await forecaster.close()
