"""`kill -9` in the middle of one command about many allocations: the log has all that follows from it, or nothing, and
the next start does the rest.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from chaos.harness import assert_counted_through, event_ids, folded_state, response_sequences
from chaos.killed_in_steps import RM_ID
from muster_bus.clock import SystemClock
from muster_bus.log import Log
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from waiting import eventually

from bench.commands_bench import scheduler_on

ALLOCATIONS = 4_000
PROGRAM = Path(__file__).parent / "killed_in_steps.py"
KILLS = 4  # of each command
COMMANDS = ("remove", "release", "decommission", "register")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with an RM that has many allocations."""
    directory = tmp_path_factory.mktemp("prepared")
    ran = _run(directory, ALLOCATIONS)
    assert ran.returncode == 0, ran.stderr
    return directory


async def _look(log: Log, topics: Topics) -> int:
    """How many allocations there are; checks that nothing of a transaction is missing."""
    state = await folded_state(log, topics, RM_ID)
    assert_counted_through(await event_ids(log, topics, RM_ID), 0, "events")
    assert_counted_through(await response_sequences(log, topics, RM_ID), 1, "responses")
    events = len(await event_ids(log, topics, RM_ID))
    assert state.rm is not None
    assert state.rm.next_event_id == events, "the events are in the transaction of the state"
    return len(state.allocations)


async def _is_over(log: Log, topics: Topics) -> bool:
    return not (await folded_state(log, topics, RM_ID)).allocations


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_killed_command_is_whole_or_not_there(prepared: Path, tmp_path: Path, command: str) -> None:
    dice, left = random.Random(command), []
    whole = tmp_path / "whole"
    shutil.copytree(prepared, whole)
    ran = await asyncio.to_thread(_run, whole, command, 1 << 40)
    said, _, number_of_steps = ran.stdout.splitlines()[-1].partition(" ")
    assert said == "decided", ran.stderr
    steps = int(number_of_steps)
    assert steps > 40, "the command has no steps: the test would show nothing"
    for number in range(KILLS):
        directory = tmp_path / str(number)
        shutil.copytree(prepared, directory)
        ran = await asyncio.to_thread(_run, directory, command, dice.randrange(2, steps))
        assert ran.returncode in (-signal.SIGKILL, 0), ran.stderr
        settings = LogSettings(sqlite_path=directory / "log.db", partitions=1)
        topics = settings.topics()
        log = make_log(settings, SystemClock())
        await log.start()
        try:
            left.append(await _look(log, topics))
            assert left[-1] in (0, ALLOCATIONS), "half of a command is in the log"
            async with scheduler_on(log, topics):  # the request is on the log: it is decided now
                await eventually(partial(_is_over, log, topics), "the command's end", 120, every_s=0.2)
            assert await _look(log, topics) == 0
        finally:
            await log.close()
    assert ALLOCATIONS in left, "each kill came too late: the test has shown nothing"
