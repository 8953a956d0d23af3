"""``/ws/v1/explain/when``: a forecast of the folded state, made in a process of its own (docs/what-if-when.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from muster_core.model.commands import AskItem, Termination, UpdateAllocations, UpdateApplications
from muster_runtime.child_process import ChildProcess
from muster_runtime.message_channel import Channel
from muster_state import snapshot, state_codec
from muster_view import ViewService
from muster_view.fold_gate import TimeSlice
from muster_whatif.errors import ForecastUnavailable
from muster_whatif.forecast.forecaster import Forecaster, ForecastInput
from muster_whatif.forecast.settings import ForecastSettings
from unit.view.recorded import Bench, Recorded, client_of
from waiting import eventually

SLOW = {"forecast": {"wait_s": 60.0, "cpu_s": 600.0}}


async def asked(client: httpx.AsyncClient, key: str = "k2", app: str = "x") -> dict[str, Any]:
    answer = await client.get(f"/ws/v1/explain/when/{app}/{key}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def when(client: httpx.AsyncClient, key: str = "k2", app: str = "x") -> dict[str, Any]:
    """Ask until the forecast is made: its process has the lowest priority, so a busy machine takes its time."""
    for _ in range(5):
        found = await asked(client, key, app)
        if found["state"] != "MAKING":
            return found
    raise AssertionError(found["sentence"])


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
        assert (await asked(client))["state"] == "MAKING"

        async def is_made() -> bool:
            return bool((await asked(client))["state"] == "ESTIMATED")

        await eventually(is_made, within_s=300)


async def test_a_view_that_stops_ends_the_process(bench: Bench) -> None:
    rm = waiting(bench, 3_600_000)
    await bench.write(rm)
    view: ViewService
    async with bench.view(forecast={"wait_s": 0.0}) as view, client_of(view) as client:
        assert (await asked(client))["state"] == "MAKING"


async def test_too_many_at_a_time_are_refused() -> None:
    held = asyncio.Event()

    async def look() -> ForecastInput:
        await held.wait()
        return ForecastInput(0, None)

    forecaster = Forecaster(ForecastSettings(wait_s=0, waiting_max=2))
    assert await forecaster.forecast("a", look) is None
    assert await forecaster.forecast("b", look) is None
    with pytest.raises(Exception, match="2 forecasts are being made already"):
        await forecaster.forecast("c", look)
    assert await forecaster.forecast("a", look) is None, "it shares the one that is being made"
    held.set()
    await forecaster.close()


# ---- what happens while a forecast is made ---------------------------------------------------------------------------


def turn_of(view: ViewService) -> asyncio.Lock:
    """The turn of forecasts: whoever holds it, delays them."""
    return view.asgi._explanations._forecaster._turn


async def in_turn(view: ViewService) -> None:
    """Wait until a forecast waits for its turn."""
    await eventually(lambda: len(view.asgi._explanations._forecaster._tasks) == 1, "a forecast waits for its turn")


@pytest.mark.parametrize("path", ["when/x/k2", "when/x", "futures"])
async def test_a_forecast_that_fails_is_refused_with_the_time_to_try_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def broken(_: object) -> Any:
        raise KeyError("secret of the state")

    monkeypatch.setattr(snapshot, "entries", broken)
    await bench.write(waiting(bench, 1_000))
    async with bench.view(**SLOW) as view, client_of(view) as client:
        answer = await client.request("POST" if path == "futures" else "GET", f"/ws/v1/explain/{path}")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
        assert "the forecast failed, and the service's log says why: try again" in answer.text
        assert "secret" not in answer.text


async def test_without_a_thread_for_its_process_there_is_no_forecast(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ChildProcess, "spawn", full)
    await bench.write(waiting(bench, 1_000))
    async with bench.view(**SLOW) as view, client_of(view) as client:
        found = await when(client)
        assert (found["state"], found["why"]) == ("UNKNOWN", "NOT_SIMULATED")
        assert "because its process ended before it was done" in found["sentence"]


async def test_on_a_loop_without_sockets_there_is_no_forecast(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: object) -> Any:
        raise NotImplementedError  # what asyncio says where a loop has no Unix sockets

    monkeypatch.setattr(Channel, "over", none)
    await bench.write(waiting(bench, 1_000))
    async with bench.view(**SLOW) as view, client_of(view) as client:
        found = await when(client)
        assert (found["state"], found["why"]) == ("UNKNOWN", "NOT_SIMULATED")


async def test_an_ask_that_has_started_meanwhile_is_not_found(bench: Bench) -> None:
    rm = waiting(bench, 3_600_000)
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        async with turn_of(view):
            asking = asyncio.create_task(client.get("/ws/v1/explain/when/x/k2"))
            await in_turn(view)
            rm.cluster.release("x", "k1", Termination.STOPPED_BY_RM)
            await bench.write(rm)
            await eventually(lambda: "k2" in view.states()["rm1"].core.partitions["default"].apps["x"].allocations)
        answer = await asking
        assert answer.status_code == 404, answer.text
        assert "Ask not found: it was allocated " in answer.text


async def test_an_application_that_has_ended_meanwhile_is_not_found(bench: Bench) -> None:
    rm = waiting(bench, 3_600_000)
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        async with turn_of(view):
            asking = asyncio.create_task(client.get("/ws/v1/explain/when/x/k2"))
            await in_turn(view)
            rm.do(UpdateApplications((), (("default", "x"),)))
            await bench.write(rm)
            await eventually(lambda: "x" not in view.states()["rm1"].core.partitions["default"].apps)
        answer = await asking
        assert (answer.status_code, "Application not found" in answer.text) == (404, True), answer.text


@pytest.mark.parametrize("path", ["when/x/k2", "when/x", "futures"])
async def test_a_resource_manager_that_is_forgotten_meanwhile_is_not_found(bench: Bench, path: str) -> None:
    rm = waiting(bench, 3_600_000)
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        async with turn_of(view):
            method = "POST" if path == "futures" else "GET"
            asking = asyncio.create_task(client.request(method, f"/ws/v1/explain/{path}"))
            await in_turn(view)
            await bench.commit(rm.partition, [rm.record(state_codec.RM, "-", value=None)])
            await eventually(lambda: not view.states())
        answer = await asking
        assert (answer.status_code, "No resource manager" in answer.text) == (404, True), answer.text


async def test_a_forecast_starts_from_the_resource_manager_that_is_there_in_its_turn(bench: Bench) -> None:
    """The answer that began it is over: nothing keeps the state of then whole."""
    await bench.write(first := waiting(bench, 1_000))
    async with bench.view(forecast={"wait_s": 0.0, "cpu_s": 600.0}) as view, client_of(view) as client:
        async with turn_of(view):
            assert (await asked(client))["state"] == "MAKING"
            core = view.states()["rm1"].core
            await bench.commit(first.partition, [first.record(state_codec.RM, "-", value=None)])
            await eventually(lambda: not view.states() and not core.partitions, "its core was taken apart")
            await bench.write(second := waiting(bench, 3_600_000))
            await eventually(lambda: bool(view.states()))
        forecaster = view.asgi._explanations._forecaster
        await eventually(lambda: bool(forecaster._made), "it is made", within_s=300)
        found = await asked(client)
        assert (found["state"], found["likely"]) == ("ESTIMATED", second.cluster.now_ns + 3_600 * 10**9)


async def test_partitions_may_come_while_a_forecast_looks_at_the_state(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.write(waiting(bench, 3_600_000))
    original = TimeSlice.yield_loop
    async with bench.view(**SLOW, render_slice_ms=1e-6) as view, client_of(view) as client:
        partitions = view.states()["rm1"].core.partitions

        async def grown(self: TimeSlice, pause_s: float = 0.0) -> None:
            partitions[f"more-{len(partitions)}"] = partitions["default"]
            await original(self, pause_s)

        monkeypatch.setattr(TimeSlice, "yield_loop", grown)
        assert (await client.get("/ws/v1/explain/when/x/k2")).status_code == 200


async def test_a_forecaster_that_was_closed_starts_no_process() -> None:
    async def look() -> ForecastInput:
        return ForecastInput(0, None)

    forecaster = Forecaster(ForecastSettings(wait_s=60))
    await forecaster.close()
    with pytest.raises(ForecastUnavailable, match="the service stops"):
        await forecaster.forecast("a", look)


# ---- the asks of an application that wait for one reason -------------------------------------------------------------


async def row(client: httpx.AsyncClient, app: str = "x", **query: str | int) -> dict[str, Any]:
    """Ask as the page does, until the forecast is made."""
    for _ in range(5):
        answer = await client.get(f"/ws/v1/explain/when/{app}", params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        if found["state"] != "MAKING":
            return found
        query["since"] = found["since"]
    raise AssertionError(found["sentence"])


def rows(bench: Bench) -> Recorded:
    """A node of four cores in ten. Four asks run for an hour each and six more wait; one is larger than the node."""
    rm = bench.rm()
    rm.cluster.now_ns = bench.clock.now_ns()
    rm.cluster.node("n1", vcore=4)
    rm.cluster.app("x", "root.b")
    rm.do(
        UpdateAllocations(
            [
                AskItem(f"runs{n}", "x", "default", {"vcore": 1}, execution_timeout_ms=3_600_000 * (n + 1))
                for n in range(4)
            ]
        )
    )
    later = [AskItem(f"k{n}", "x", "default", {"vcore": 1}, execution_timeout_ms=3_600_000) for n in range(3)]
    rm.do(UpdateAllocations([*later, AskItem("giant", "x", "default", {"vcore": 9})]))
    rm.info.last_decided_ns = rm.cluster.now_ns
    return rm


def ends(rm: Recorded, *keys: str) -> None:
    for key in keys:
        rm.cluster.release("x", key, Termination.STOPPED_BY_RM)
    rm.info.last_decided_ns = rm.cluster.now_ns


async def test_a_row_is_answered_for_its_first_and_its_last_ask(bench: Bench) -> None:
    rm = rows(bench)
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        found = await row(client, reason="NO_NODE_HAS_ROOM")
        assert (found["state"], found["asks"], found["started"], found["reason"]) == (
            "FORECAST", 3, 0, "NO_NODE_HAS_ROOM",
        )  # fmt: skip
        assert found["first"]["likely"] == rm.cluster.now_ns + 3_600 * 10**9
        assert found["last"]["likely"] > found["first"]["likely"]
        assert found["message"].startswith("The first of 3 asks of application x will start in about ")
        assert "The last of them will start in about " in found["message"]
        assert "It rests on 39 simulations" in found["message"]
        alone = await row(client, reason="LARGER_THAN_ANY_NODE")
        assert (alone["state"], alone["asks"], alone["first"]) == ("FORECAST", 1, alone["last"])
        assert alone["message"].startswith("Ask giant of application x starts in none of 39 simulations")
        every = await row(client)
        assert (every["asks"], every["last"]["allocationKey"]) == (4, "giant")


async def test_what_has_started_since_the_forecast_is_said_as_such(bench: Bench) -> None:
    rm = rows(bench)
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        before = await row(client, reason="NO_NODE_HAS_ROOM")
        ends(rm, "runs0", "runs1")
        await bench.write(rm)
        # (The asks that wait now are not newer than the forecast: it is used again.)
        some = await row(client, reason="NO_NODE_HAS_ROOM")
        assert (some["at"], some["state"], some["asks"], some["started"]) == (before["at"], "FORECAST", 3, 2)
        assert some["message"].startswith("Meanwhile 2 of its 3 asks have started. Ask k2 of application x will start ")
        assert some["first"] == some["last"]
        ends(rm, "runs2")
        await bench.write(rm)
        over = await row(client, reason="NO_NODE_HAS_ROOM")
        assert (over["state"], over["asks"], over["started"]) == ("STARTED", 3, 3)
        assert over["first"]["likely"] == before["first"]["likely"], "what the forecast said"
        assert over["message"].startswith("All 3 asks of application x have started meanwhile, the last ")
        assert " ago, say: The first of 3 asks of application x will start in about " in over["message"]
        assert " from then." in over["message"]
        ends(rm, "k0")
        await bench.write(rm)
        left = await row(client, reason="NO_NODE_HAS_ROOM")
        assert "2 of 3 run, the last " in left["message"]
        assert " ago; 1 has started and ended meanwhile, or was withdrawn. The simulations, which " in left["message"]


async def test_a_row_is_answered_although_its_application_has_gone_meanwhile(bench: Bench) -> None:
    rm = rows(bench)
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        before = await row(client, reason="NO_NODE_HAS_ROOM")
        rm.do(UpdateApplications((), (("default", "x"),)))
        await bench.write(rm)
        assert (await client.get("/ws/v1/explain/when/x")).status_code == 404, "who asks now, asks for nothing"
        found = await row(client, reason="NO_NODE_HAS_ROOM", since=before["since"])
        assert (found["state"], found["asks"], found["started"]) == ("STARTED", 3, 0)
        assert found["last"]["likely"] == before["last"]["likely"]
        assert found["message"].startswith("No ask of application x is pending any more: 3 have started and ended ")
        assert (await client.get("/ws/v1/explain/when/nobody", params={"since": before["since"]})).status_code == 404


async def test_a_row_whose_reason_has_changed_is_answered_for_all_asks(bench: Bench) -> None:
    rm = rows(bench)
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        found = await row(client, reason="QUEUE_MAX")
        assert found["message"].startswith(
            "No ask of application x waits for this reason any more. The first of 4 asks "
        )


async def test_a_row_without_pending_asks_is_answered(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.now_ns = bench.clock.now_ns()
    rm.cluster.node("n1", vcore=4)
    rm.cluster.app("x", "root.b")
    rm.cluster.ask("x", "k", vcore=1)
    rm.info.last_decided_ns = rm.cluster.now_ns
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        found = await row(client, reason="NO_NODE_HAS_ROOM")
        assert found["state"] == "STARTED"
        assert found["message"].startswith("No ask of application x was pending any more when the simulations began")
        assert (await client.get("/ws/v1/explain/when/nobody")).status_code == 404
        assert (await client.get("/ws/v1/explain/when/x?since=soon")).status_code == 400


async def test_asks_that_come_meanwhile_do_not_delay_a_row_for_ever(bench: Bench) -> None:
    """The first answer names the newest ask; the forecast that it began is enough for the next ones."""
    rm = rows(bench)
    await bench.write(rm)
    async with bench.view(forecast={"wait_s": 0.0, "cpu_s": 600.0}) as view, client_of(view) as client:
        first = (await client.get("/ws/v1/explain/when/x")).json()
        assert first["state"] == "MAKING"

        async def is_made() -> bool:
            rm.cluster.now_ns += 10**9
            rm.cluster.ask("x", f"more{rm.cluster.now_ns}", vcore=1)
            rm.info.last_decided_ns = rm.cluster.now_ns
            await bench.write(rm)
            found = (await client.get("/ws/v1/explain/when/x", params={"since": first["since"]})).json()
            return bool(found["state"] == "FORECAST" and found["asks"] == 4)

        await eventually(is_made, within_s=300)


async def test_a_paused_rm_answers_no_row(bench: Bench) -> None:
    rm = rows(bench)
    rm.info.paused, rm.info.paused_ns = True, rm.cluster.now_ns
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        found = await row(client, reason="RM_HELD")
        assert (found["state"], found["why"], found["first"]) == ("UNKNOWN", "NOT_DECIDING", None)
        assert "because an operator paused the resource manager" in found["message"]


async def test_a_forecast_of_an_older_state_is_not_enough() -> None:
    times = iter((100, 200))

    async def look() -> ForecastInput:
        return ForecastInput(next(times), None)

    forecaster = Forecaster(ForecastSettings(wait_s=60))
    assert await forecaster.forecast("a", look, since_ns=150) is None, "it had begun before"
    told = await forecaster.forecast("a", look, since_ns=150)
    assert told is not None
    assert told.at_ns == 200
    await forecaster.close()
