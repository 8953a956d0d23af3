"""The event loop is the source of elapsed time, and a generator that of ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from random import Random
from uuid import UUID

import pytest
from muster_bus.clock import SystemClock
from muster_bus.contention import WorkMeter
from muster_client.clock import SystemClock as ClientClock
from muster_runtime.chance import SYSTEM, new_id, new_uuid
from muster_runtime.elapsed import elapsed_s, loop_time


class Own(asyncio.SelectorEventLoop):
    """A loop whose time a test moves."""

    now_s = 7.0

    def time(self) -> float:
        return self.now_s


def on(loop: asyncio.AbstractEventLoop, work: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work)


@pytest.mark.parametrize(
    "made", [lambda: elapsed_s, loop_time, lambda: SystemClock().monotonic, lambda: ClientClock().monotonic]
)
def test_elapsed_time_is_that_of_the_loop(made: Callable[[], Callable[[], float]]) -> None:
    loop = Own()

    async def work() -> None:
        read = made()
        before = read()
        loop.now_s += 3_600.0
        assert (before, read()) == (7.0, 3_607.0)

    on(loop, work())


def test_without_a_loop_it_is_what_the_loops_of_asyncio_read() -> None:
    read, made = [elapsed_s, loop_time(), SystemClock().monotonic, ClientClock().monotonic], list[float]()

    async def work() -> None:
        for each in (*read, loop_time(), SystemClock().monotonic, ClientClock().monotonic):
            before = asyncio.get_running_loop().time()
            made.append(each())
            assert before <= made[-1] <= asyncio.get_running_loop().time()

    asyncio.run(work())
    assert sorted(made) == made
    assert made[-1] <= elapsed_s()


def test_a_thread_beside_a_loop_reads_the_operating_systems_time() -> None:
    async def work() -> None:
        before = time.monotonic()
        assert await asyncio.to_thread(elapsed_s) >= before

    asyncio.run(work())


def test_recorded_time_has_a_source_of_its_own() -> None:
    loop, slept_ns = Own(), 0

    async def work() -> None:
        nonlocal slept_ns
        clock = SystemClock(lambda: slept_ns, lambda: slept_ns, "one")
        at_first, elapsed = clock.now_ns(), clock.monotonic()
        slept_ns += 8 * 3_600 * 10**9  # the machine sleeps for a night: the loop's time stands still
        assert clock.now_ns() - at_first == slept_ns
        assert clock.monotonic() == elapsed

    on(loop, work())


def test_processor_time_is_the_clocks() -> None:
    spent, elapsed = iter((1.0, 1.25, 1.25, 1.5)), iter((7.0, 7.1, 7.5, 9.0))
    meter = WorkMeter(SystemClock(processor_s=lambda: next(spent)).processor_s, lambda: next(elapsed))
    meter.start()
    assert not meter.has_worked(0.25), "less has elapsed: the processor is not asked"
    assert meter.has_worked(0.25)
    assert not meter.has_worked(0.5), "more has elapsed, in which others had the processor"
    meter.stop()
    assert meter.read().us == 500_000


def test_a_generator_with_a_seed_makes_the_same_ids_again() -> None:
    first, second = ([new_uuid(dice), new_id(dice, 4)] for dice in (Random(5), Random(5)))
    assert first == second
    assert UUID(first[0]).version == 4
    assert len(first[1]) == 8


def test_the_systems_generator_makes_other_ids() -> None:
    assert len({new_uuid(SYSTEM) for _ in range(1_000)}) == 1_000
    assert UUID(new_uuid(SYSTEM)).version == 4
    assert new_id(SYSTEM, 16) != new_id(SYSTEM, 16)
