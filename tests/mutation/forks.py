"""Pieces of work in forked processes, so many at a time; each gives JSON, or is ended by its limits."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

MORE_MEMORY = 3 << 30
# A process that used no processor time for so long is asleep for good. (Beside others it gets some.)
ASLEEP_S = 60.0
_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1


def in_forks(
    pieces: Iterable[Callable[[Path], Any]], jobs: int, asleep_s: float = ASLEEP_S
) -> Iterator[tuple[int, Any, str]]:
    """Runs each piece in a fork of this process, and yields its place, what it gave, and how it ended if it gave
    nothing (then that is None), in the order in which they end. The piece's folder is its alone.
    """
    folder = Path(tempfile.mkdtemp(prefix="mutation-"))
    running: dict[int, tuple[int, Path]] = {}
    moved: dict[int, tuple[float, float]] = {}
    todo = enumerate(pieces)
    more = True
    try:
        while more or running:
            while more and len(running) < jobs:
                number, piece = next(todo, (-1, None))
                more = piece is not None
                if piece is not None:
                    place = folder / str(number)
                    place.mkdir()
                    running[_fork(piece, place)] = (number, place)
            for pid, (number, place) in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended and _is_asleep(pid, moved, asleep_s):
                    _end(pid)
                    ended, status = os.waitpid(pid, 0)
                if ended:
                    del running[pid]
                    moved.pop(pid, None)
                    _end(pid)
                    found, how = _given(place, status)
                    shutil.rmtree(place, ignore_errors=True)
                    yield number, found, how
            time.sleep(_POLL_S)
    finally:
        for pid in running:
            _end(pid)
            os.waitpid(pid, 0)
        shutil.rmtree(folder, ignore_errors=True)


def _is_asleep(pid: int, moved: dict[int, tuple[float, float]], asleep_s: float) -> bool:
    """Whether a child, not yet waited for, has used no processor time for long; ``moved`` has what is known of it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used, now = sum(map(float, fields[11:15])), time.monotonic()  # (its own and that of its children, in ticks)
    before = moved.setdefault(pid, (used, now))
    if used > before[0]:
        moved[pid] = (used, now)
    return now - moved[pid][1] > asleep_s


def _given(place: Path, status: int) -> tuple[Any, str]:
    given, error = place / "given.json", place / "error.txt"
    if status == 0 and given.exists():
        return json.loads(given.read_text()), ""
    if os.WIFSIGNALED(status):
        return None, f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return None, error.read_text().splitlines()[-1] if error.exists() else f"ended with status {os.WEXITSTATUS(status)}"


def cpu_limit(seconds: float) -> None:
    """This process ends if it uses so much processor time from now on; 0 lifts it."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)


def _fork(piece: Callable[[Path], Any], place: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # (The parent may be killed: nothing works on.)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        # (The default action ends the process also where it is within C code, or would catch an exception.)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MORE_MEMORY, resource.RLIM_INFINITY))
        given = piece(place)
        (place / "given.json").write_text(json.dumps(given))
        status = 0
    except BaseException:
        (place / "error.txt").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _end(pid: int) -> None:
    """Ends a process, and what it started in its session."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
