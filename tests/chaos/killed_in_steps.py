"""A scheduler on an embedded log that kills its own process in the middle of a long command. Run by test_kill_commands.

.venv/bin/python tests/chaos/killed_in_steps.py DIRECTORY ALLOCATIONS          # prepares the log
.venv/bin/python tests/chaos/killed_in_steps.py DIRECTORY COMMAND STEPS        # dies after so many steps of the loop
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for bench
sys.path.insert(0, str(Path(__file__).parents[1]))

from loop_steps import measured_steps
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings

from bench.commands_bench import Rm, decided, run_command, scheduler_on

RM_ID, APP = "loud", "app"


async def prepare(settings: LogSettings, count: int) -> None:
    topics, log = settings.topics(), make_log(settings, SystemClock())
    await log.start()
    async with scheduler_on(log, topics):
        rm = Rm(log, topics, await log.writer("test"), RM_ID)
        await rm.start([APP])
        await rm.report(count, [APP])
        await rm.stop()
    await log.close()


async def die(settings: LogSettings, command: str, last: int) -> None:
    topics, log = settings.topics(), make_log(settings, SystemClock())
    await log.start()
    async with scheduler_on(log, topics):
        rm = Rm(log, topics, await log.writer("test"), RM_ID)
        end = await (await log.reader(topics.responses, 0)).end_offset()
        with measured_steps() as steps:
            offset = await run_command(command, rm, [APP])
            steps.before(last, lambda: os.kill(os.getpid(), signal.SIGKILL))
            await decided(log, topics, 0, offset, end)
        print("decided", steps.count, flush=True)
        await rm.stop()
    await log.close()


def main() -> None:
    settings = LogSettings(sqlite_path=Path(sys.argv[1]) / "log.db", partitions=1)
    if len(sys.argv) == 3:
        asyncio.run(prepare(settings, int(sys.argv[2])))
    else:
        asyncio.run(die(settings, sys.argv[2], int(sys.argv[3])))


if __name__ == "__main__":
    main()
