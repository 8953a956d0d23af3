"""The loop, the incarnations and the shortening of plans, each by itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from chaos.storm.auditor import Finding
from chaos.storm.plan import Fault

from virtual import module_state
from virtual.faults import CALM, STORMY
from virtual.incarnations import Incarnation
from virtual.loop import Stuck, VirtualLoop
from virtual.mutants import MUTANTS
from virtual.play import Plan, Played, play, stormy
from virtual.rare import missing
from virtual.shrink import shrink


def run(seed: int, work: Coroutine[Any, Any, Any]) -> Any:
    loop = VirtualLoop(seed)
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


# ---- the loop -------------------------------------------------------------------------------------------------------


def test_time_jumps_to_the_next_timer() -> None:
    async def work() -> tuple[float, list[str]]:
        loop, order = asyncio.get_running_loop(), list[str]()

        async def after(wait_s: float, name: str) -> None:
            await asyncio.sleep(wait_s)
            order.append(name)

        began_s = loop.time()
        await asyncio.gather(after(7200.0, "late"), after(3600.0, "early"))
        return loop.time() - began_s, order

    took_s, order = run(1, work())
    assert 7200.0 <= took_s < 7200.1
    assert order == ["early", "late"]


def test_the_order_of_ready_tasks_is_that_of_the_seed_and_of_callbacks_their_own() -> None:
    async def work() -> tuple[str, str]:
        loop = asyncio.get_running_loop()
        tasks, calls = list[str](), list[str]()

        async def note(name: str) -> None:
            tasks.append(name)

        for name in "abcdefgh":
            loop.call_soon(calls.append, name)
        await asyncio.gather(*(note(name) for name in "abcdefgh"))
        return "".join(tasks), "".join(calls)

    orders = {run(seed, work()) for seed in range(6)}
    assert {calls for _, calls in orders} == {"abcdefgh"}
    assert len({tasks for tasks, _ in orders}) > 3
    assert run(3, work()) == run(3, work())


def test_a_reading_of_the_clock_takes_time() -> None:
    async def work() -> list[float]:
        loop = asyncio.get_running_loop()
        return [loop.time() for _ in range(1000)]

    read = run(1, work())
    assert all(earlier < later for earlier, later in itertools.pairwise(read))
    assert 0.001 < read[-1] - read[0] < 0.005


def test_work_of_executors_runs_inline_at_a_later_moment() -> None:
    async def work() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        found = await asyncio.to_thread(sum, [1, 2, 3])
        return loop.time() - began_s, found

    took_s, found = run(1, work())
    assert found == 6
    assert took_s > 0.00001


def test_a_loop_in_which_nothing_can_happen_any_more_says_so() -> None:
    with pytest.raises(Stuck):
        run(1, asyncio.Event().wait())


def test_a_wait_with_a_limit_ends() -> None:
    async def work() -> None:
        async with asyncio.timeout(3600.0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run(1, work())


# ---- incarnations ---------------------------------------------------------------------------------------------------


def test_a_death_reaches_nothing() -> None:
    """Its handles are cut first; what its ends schedule never runs; its timers and steps are dropped."""
    world: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        life = Incarnation(loop, "one")
        is_cut = False

        def cut() -> None:
            nonlocal is_cut
            is_cut = True
            world.append("cut")

        def reach(what: str) -> None:
            if not is_cut:
                world.append(what)

        async def last_words() -> None:
            world.append("a task of the end")

        async def serve() -> None:
            loop.call_later(1.0, world.append, "a timer")
            try:
                reach("begun")
                await asyncio.sleep(60.0)
            finally:
                reach("finally")
                asyncio.get_running_loop().create_task(last_words())
                loop.call_soon(world.append, "a call of the end")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(5.0):
                        await asyncio.sleep(1.0)
                world.append("the wait in a finally ended")

        life.on_death(cut)
        life.task(serve())
        life.task(serve())
        await asyncio.sleep(0.5)
        life.die()
        life.die()
        life.task(last_words())
        await asyncio.sleep(120.0)

    run(1, work())
    assert world == ["begun", "begun", "cut"]


def test_what_was_ready_in_the_turn_of_the_death_does_not_run() -> None:
    for seed in range(8):
        after: list[str] = []

        async def work(after: list[str] = after) -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            life, gate = Incarnation(loop, "one"), asyncio.Event()

            async def step(number: int) -> None:
                await gate.wait()
                if life.dead:
                    after.append(f"step {number}")

            async def kill() -> None:
                await gate.wait()
                life.die()

            tasks = [life.task(step(number)) for number in range(5)]
            killing = loop.create_task(kill())
            await asyncio.sleep(1.0)
            gate.set()
            await killing
            await asyncio.sleep(1.0)
            assert len(tasks) == 5

        run(seed, work())
        assert after == []


def test_others_live_on() -> None:
    async def work() -> list[str]:
        loop, heard = asyncio.get_running_loop(), list[str]()
        assert isinstance(loop, VirtualLoop)
        first, second = Incarnation(loop, "first"), Incarnation(loop, "second")

        async def beat(name: str) -> None:
            while True:
                await asyncio.sleep(1.0)
                heard.append(name)

        first.task(beat("first"))
        second.task(beat("second"))
        await asyncio.sleep(2.5)
        first.die()
        await asyncio.sleep(2.0)
        second.die()
        return heard

    assert Counter(run(1, work())) == {"first": 2, "second": 4}


def test_state_of_modules_is_named_and_reset() -> None:
    play(stormy(1, 30.0))  # imports what is imported late
    before = module_state.sizes()
    play(stormy(2, 60.0))
    after = module_state.sizes()
    changed = {name for name, size in after.items() if before.get(name) != size}
    assert changed - set(module_state.NAMED) == set()
    assert set(module_state.NAMED) <= set(after)
    module_state.reset()
    emptied = module_state.sizes()
    assert [name for name in module_state.NAMED if emptied[name] not in (0, (0, "[]"), (0, "{}"))] == [
        "muster_gateway.response_delivery._FEEDS"
    ]


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_a_function_of_its_seed() -> None:
    assert stormy(1, 3600.0) == stormy(1, 3600.0)
    assert stormy(1, 3600.0).faults != stormy(2, 3600.0).faults
    kinds = Counter(fault.kind for fault in stormy(1, 3600.0).faults)
    assert min(kinds.values()) >= 20
    assert all(fault.until_s <= 3600.0 for fault in stormy(1, 3600.0).faults)


def test_a_plan_that_fails_is_shortened_to_what_matters() -> None:
    """It fails if a gateway is killed after a flush."""

    def again(plan: Plan) -> Played:
        kinds = [fault.kind for fault in plan.faults]
        is_bad = "flush" in kinds and "kill" in kinds[kinds.index("flush") :]
        return Played(plan, findings=[Finding("heard", "rm", "bad")] if is_bad else [])

    kinds = ("snap", "stop", "flush", "kill", "away", "kill", "step", "snap")
    faults = tuple(Fault(20.0 + 10 * place, kind, "gateway-1") for place, kind in enumerate(kinds))
    plan = Plan(1, 600.0, 600, rates=STORMY, faults=faults)
    shortest = shrink(again(plan), again=again).plan
    assert [fault.kind for fault in shortest.faults] == ["flush", "kill"]
    assert shortest.rates == CALM
    assert shortest.seconds < 200.0


def test_another_finding_is_not_the_same_failure() -> None:
    def again(plan: Plan) -> Played:
        return Played(plan, findings=[Finding("limits" if len(plan.faults) < 4 else "heard", "rm", "bad")])

    plan = Plan(1, 600.0, 600, faults=tuple(Fault(20.0, "kill", "view") for _ in range(8)))
    assert len(shrink(again(plan), again=again).plan.faults) == 4


def test_each_mutant_that_lives_must_notice_is_there() -> None:
    assert len({each.mutant for each in MUTANTS}) == len(MUTANTS) >= 10


def test_what_a_run_did_not_meet_is_named() -> None:
    assert "fault kill: 3 times, expected at least 20" in missing(Counter({"fault kill": 3}), hours=1.0)
