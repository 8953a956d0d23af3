"""A child process that is a copy of its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

WITHIN_S = 30

BEGIN = """
import os, signal, subprocess, sys, threading, time
from muster_runtime.child_process import ChildProcess

def fork(main):
    child = ChildProcess.fork(main, None)
    assert child is not None
    return child
"""


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process that has one thread."""
    return subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(program)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def test_a_copy_runs_its_program_on_its_end_of_the_pipe_without_the_parents_settings() -> None:
    done = run(
        """
        def main(end):
            seen = [name for name in os.environ if name.startswith("MUSTER_")]
            ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            end.sendall(repr((seen, ignored, os.read(0, 1))).encode())
            os._exit(7)

        child = fork(main)
        print(child._end.recv(1000).decode(), child._process.wait(), child._process.wait(0), os.environ["MUSTER_X"])
        """,
        MUSTER_X="1",
    )
    assert done.stdout == "([], True, b'') 7 7 1\n", done.stderr


def test_a_copy_that_fails_ends_and_never_goes_on_as_its_parent() -> None:
    done = run(
        """
        def main(end):
            raise ValueError("on purpose")

        child = fork(main)
        print("once", child._process.wait())
        """
    )
    assert done.stdout == "once 1\n"
    assert "ValueError: on purpose" in done.stderr


def test_a_copy_can_be_waited_for_and_killed() -> None:
    done = run(
        """
        child = fork(lambda end: time.sleep(600))
        try:
            child._process.wait(0.01)
        except subprocess.TimeoutExpired:
            print("runs")
        child.kill("was ended")
        print(child._process.wait())
        child.kill("was ended")  # (its pid may be another process's by now)
        """
    )
    assert done.stdout == "runs\n-9\n", done.stderr


def test_a_process_with_threads_is_not_copied() -> None:
    done = run(
        """
        over = threading.Event()
        threading.Thread(target=over.wait).start()
        print(ChildProcess.fork(lambda end: None, None))
        over.set()
        """
    )
    assert done.stdout == "None\n", done.stderr


def test_a_copy_ends_with_its_parent(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    done = run(
        f"""
        child = fork(lambda end: time.sleep(600))
        open({str(noted)!r}, "w").write(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert done.returncode == -9, done.stderr
    stat, until = Path("/proc", noted.read_text(), "stat"), time.monotonic() + WITHIN_S
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)
