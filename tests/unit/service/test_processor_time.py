"""What Linux counts of a process, and what is known where it does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster_runtime.processor_time import own_usage, usage_of
from muster_runtime.watchdog import Activity, Usage

WITHIN_S = 60.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def thread(proc: Path, pid: int, tid: int, state: str, ticks: tuple[int, int], schedstat: str | None) -> None:
    folder = proc / str(pid) / "task" / str(tid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{tid} (a) b (c)) {state} " + "0 " * 10 + f"{ticks[0]} {ticks[1]} " + "0 " * 30)
    if schedstat is not None:
        (folder / "schedstat").write_text(schedstat + "\n")


def test_the_times_of_all_threads_add_up(tmp_path: Path) -> None:
    thread(tmp_path, 5, 5, "S", (1, 1), "1500000000 250000000 9")
    thread(tmp_path, 5, 6, "S", (0, 0), "0 0 0")  # (it has not run yet)
    thread(tmp_path, 5, 7, "D", (9, 9), "500000000 1000000000 9")
    assert usage_of(5, proc=str(tmp_path)) == Usage(2.0, 1.25, Activity.ASLEEP)


@pytest.mark.parametrize(
    ("first", "other", "activity"),
    [
        ("S", "S", Activity.ASLEEP),
        ("S", "R", Activity.RUNNABLE),
        ("R", "S", Activity.RUNNABLE),
        ("D", "S", Activity.BLOCKED),
        ("S", "D", Activity.ASLEEP),
        ("D", "R", Activity.RUNNABLE),
        ("T", "T", Activity.STOPPED),
        ("t", "R", Activity.STOPPED),
        ("Z", "S", Activity.ASLEEP),
    ],
)
def test_the_first_thread_and_whoever_uses_the_processor_tell_what_it_does(
    tmp_path: Path, first: str, other: str, activity: Activity
) -> None:
    thread(tmp_path, 5, 5, first, (1, 1), "1 1 1")
    thread(tmp_path, 5, 7, other, (1, 1), "1 1 1")
    assert usage_of(5, proc=str(tmp_path)).activity is activity


def test_a_watchers_own_thread_is_no_sign_of_work(tmp_path: Path) -> None:
    thread(tmp_path, 5, 5, "S", (1, 1), "1000000000 1 1")
    thread(tmp_path, 5, 7, "R", (1, 1), "1000000000 1 1")
    assert usage_of(5, 7, proc=str(tmp_path))[::2] == (2.0, Activity.ASLEEP)


@pytest.mark.parametrize("schedstat", [None, "0 0 0", "what"])
def test_a_kernel_without_schedstat_counts_ticks_and_no_waits(tmp_path: Path, schedstat: str | None) -> None:
    thread(tmp_path, 5, 5, "R", (150, 50), schedstat)
    assert usage_of(5, proc=str(tmp_path)) == Usage(200 * TICK_S, None, Activity.RUNNABLE)


def test_nothing_is_known_of_a_process_that_cannot_be_seen(tmp_path: Path) -> None:
    assert usage_of(5, proc=str(tmp_path)) == Usage()
    (tmp_path / "5" / "task" / "5").mkdir(parents=True)  # (it ends just now)
    assert usage_of(5, proc=str(tmp_path)) == Usage()


@pytest.fixture
def busy() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process.pid
    process.kill()
    process.wait()


@linux
def test_a_busy_process_uses_the_processor_or_waits_for_it(busy: int) -> None:
    first, until_s = usage_of(busy), time.monotonic() + WITHIN_S
    assert first.waited_s is not None, "this kernel has no schedstat"
    while (now := usage_of(busy)).used_s - first.used_s < 0.2:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert now.activity is Activity.RUNNABLE


@linux
def test_this_process_sees_a_thread_that_works_beside_the_one_that_looks() -> None:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            sum(range(100))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        before, until_s = own_usage(), time.monotonic() + WITHIN_S
        while own_usage().used_s - before.used_s < 0.1:
            assert time.monotonic() < until_s
            time.sleep(0.01)
    finally:
        over.set()
        for each in threads:
            each.join()
