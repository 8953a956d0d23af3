"""One command about very many allocations, through the scheduler and the embedded log: no step of the loop is long.

The bound is on processor time of single steps. Before the steps, each of these commands held the loop for 80 to 230 ms
(as source, on a quiet machine); now its longest step takes 8 to 20 ms.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from loop_steps import measured_steps
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_cli import gc_tuning

from bench.commands_bench import COMMANDS, Rm, decided, run_command, scheduler_on

ALLOCATIONS = 10_000
LONGEST_STEP_S = 0.06

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def collected_rarely() -> Iterator[None]:
    """The garbage collector as in Muster's process."""
    thresholds = gc.get_threshold()
    gc_tuning.collect_young()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("collected_rarely")
@pytest.mark.parametrize("name", COMMANDS)
async def test_no_step_of_the_loop_is_long(tmp_path: Path, name: str) -> None:
    settings = LogSettings(sqlite_path=tmp_path / "log.db", partitions=1)
    topics, log = settings.topics(), make_log(settings, SystemClock())
    await log.start()
    try:
        async with scheduler_on(log, topics):
            rm = Rm(log, topics, await log.writer("test"), "loud")
            reader = await log.reader(topics.events, 0)
            try:
                apps = [f"app-{number}" for number in range(500 if name == "remove_1000" else 1)]
                await rm.start(apps)
                await rm.report(ALLOCATIONS, apps)
                gc.collect()
                gc.freeze()
                start = await (await log.reader(topics.responses, 0)).end_offset()
                events = await reader.end_offset()
                with measured_steps() as steps:
                    await decided(log, topics, 0, await run_command(name, rm, apps), start)
                assert steps.count > 50, "nothing was measured"
                assert steps.longest_s < LONGEST_STEP_S, steps.longest()
                written = await reader.end_offset() - events
                assert written >= 2 * ALLOCATIONS, "each allocation has its events, with the answer"
            finally:
                await rm.stop()
                await reader.close()
    finally:
        await log.close()
