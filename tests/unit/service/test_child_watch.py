"""A parent ends a child that hangs, and no child that gets no processor. Real processes; ``test_watchdog.py`` has the
judgement alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from muster_runtime.child_process import ChildProcess
from muster_runtime.processor_time import usage_of
from muster_runtime.watchdog import LATE_MAX_S, Activity
from unit.service.watched_child import PIECE_S, Beat, Do
from waiting import eventually

WITHIN_S = 120.0
# Little, so that the tests are short, and more than a piece of work.
AVAILABLE_S = 2.0
assert AVAILABLE_S > 3 * PIECE_S
# What a watchdog by the clock does not survive.
SILENT_S = 3 * AVAILABLE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long others waited")


class Watched:
    """A child that is listened to.

    :ivar beats: number of its signs of life.
    """

    def __init__(self, child: ChildProcess[Beat]) -> None:
        self.child, self.beats = child, 0
        self.listening = asyncio.create_task(self._listen())

    async def _listen(self) -> str:
        async def nothing() -> None: ...

        return await self.child.listen(self._take, AVAILABLE_S, nothing)

    def _take(self, _: Beat) -> None:
        self.beats += 1

    async def ends(self) -> str:
        async with asyncio.timeout(WITHIN_S):
            return await asyncio.shield(self.listening)

    async def beats_on(self) -> None:
        before = self.beats
        await eventually(lambda: self.beats > before + 1 or self.listening.done(), within_s=WITHIN_S)
        assert not self.listening.done(), self.listening.result()


@asynccontextmanager
async def child(monkeypatch: pytest.MonkeyPatch, do: Do) -> AsyncIterator[Watched]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    process: ChildProcess[Beat] = ChildProcess.spawn("unit.service.watched_child", Beat)
    channel = await process.connect()
    watched = Watched(process)
    try:
        channel.send(do)
        await eventually(lambda: watched.beats >= 3, within_s=WITHIN_S)
        yield watched
    finally:
        await process.end()
        await asyncio.gather(watched.listening, return_exceptions=True)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def lives(pid: int) -> bool:
    """Whether a process runs that this one has started. (It is a zombie when it has ended.)"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


# ---- never killed ---------------------------------------------------------------------------------------------------


async def test_one_that_is_starved_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """nice 19, and two busy loops on its processor."""
    processors = os.sched_getaffinity(0)
    one = {min(processors)}
    async with child(monkeypatch, Do("work", nice=19)) as watched:
        os.sched_setaffinity(watched.child.pid, one)
        os.sched_setaffinity(0, one)  # what is started now inherits it
        try:
            loops = busy_loops(2)
            with loops:
                os.sched_setaffinity(0, processors)
                await asyncio.sleep(SILENT_S)
                assert not watched.listening.done(), watched.listening.result()
        finally:
            os.sched_setaffinity(0, processors)
        await watched.beats_on()


async def test_one_that_is_stopped_and_continued_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    async with child(monkeypatch, Do("work")) as watched:
        os.kill(watched.child.pid, signal.SIGSTOP)
        await asyncio.sleep(SILENT_S)
        assert not watched.listening.done(), watched.listening.result()
        os.kill(watched.child.pid, signal.SIGCONT)
        await watched.beats_on()


async def test_a_parent_that_is_late_judges_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with child(monkeypatch, Do("deadlocked")) as watched:
        end_s = time.monotonic() + 2 * SILENT_S
        while time.monotonic() < end_s:
            time.sleep(3 * LATE_MAX_S)  # noqa: ASYNC251 - this loop is late
            for _ in range(10):  # (the watchdog looks in one of these turns)
                await asyncio.sleep(0)
            assert lives(watched.child.pid)
        assert "did not move in " in await watched.ends()


# ---- killed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "activity"),
    [
        ("busy", Activity.RUNNABLE),
        ("deadlocked", Activity.ASLEEP),
        ("reads", Activity.ASLEEP),
        ("in the kernel", Activity.BLOCKED),
    ],
)
async def test_one_that_hangs_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str, activity: Activity
) -> None:
    began_s = time.monotonic()
    async with child(monkeypatch, Do(how, where=str(tmp_path))) as watched:
        try:
            why = await watched.ends()
        finally:
            if how == "in the kernel":  # lets what it started go on, which ends then
                with suppress(OSError):
                    os.close(os.open(tmp_path / "fifo", os.O_WRONLY | os.O_NONBLOCK))
    assert why.startswith("did not move in ")
    assert why.endswith(f"s of processor time that it could have had ({activity.value})")
    assert time.monotonic() - began_s > AVAILABLE_S


async def test_one_that_hangs_while_it_is_starved_is_ended_when_it_had_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with child(monkeypatch, Do("busy")) as watched:
        with busy_loops(2):
            await watched.ends()
    assert watched.child.usage().used_s == 0.0, "it is gone"


async def test_an_answer_that_does_not_come_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    process: ChildProcess[Beat] = ChildProcess.spawn("unit.service.watched_child", Beat)
    channel = await process.connect()
    channel.send(Do("deadlocked"))
    try:
        for _ in range(3):
            assert await process.answer(WITHIN_S) == Beat()
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError) as not_judged:
            async with asyncio.timeout(SILENT_S):
                await process.answer(AVAILABLE_S)
        assert "did not move" not in str(not_judged.value)
        os.kill(process.pid, signal.SIGCONT)
        with pytest.raises(TimeoutError, match=r"did not move in \d+ s"):
            await process.answer(AVAILABLE_S)
        assert usage_of(process.pid).used_s > 0, "its caller decides what becomes of it"
    finally:
        await process.end()
