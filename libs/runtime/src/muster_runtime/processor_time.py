"""How much of the processor a program used, and waited for, as Linux counts it for watchdogs.

========================  =============================================================================================
the system has            then
========================  =============================================================================================
/proc/PID/task/*          as :class:`~muster_runtime.watchdog.Usage` says
no schedstat in it        waits are unknown: between two looks, a program that is runnable at the second one waited for
                          all that it did not use
no such /proc             nothing is known: a watched program counts as asleep, so that its time is the watcher's. A
(macOS; hidden, ended)    starved one is told from a stuck one only if its watcher is late, too
========================  =============================================================================================

All threads count: an interpreter's lock makes one wait for another. One look costs some 20 µs a thread.
"""

from __future__ import annotations

import os
import threading

from muster_runtime.watchdog import Activity, Usage

# Of /proc/PID/task/TID/stat, counted after the name.
_STATE_FIELD, _USER_FIELD, _SYSTEM_FIELD = 0, 11, 12
# A file of either kind is shorter.
_BYTES = 4096


def usage_of(pid: int, but: int = 0, proc: str = "/proc") -> Usage:
    """Returns the usage of a process.

    :param but: the id of a thread whose state does not count: the watcher's own, which runs while it looks.
    """
    tasks = f"{proc}/{pid}/task"
    try:
        threads = os.listdir(tasks)  # noqa: PTH208 - names are enough
    except OSError:
        return Usage()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    used_s, waited_s = 0.0, 0.0
    counted = measured = 0
    states = set()
    for thread in threads:
        try:
            fields = _read(f"{tasks}/{thread}/stat").rpartition(b")")[2].split()
            state, ticks = fields[_STATE_FIELD], int(fields[_USER_FIELD]) + int(fields[_SYSTEM_FIELD])
        except (OSError, ValueError, IndexError):
            continue  # it has ended
        counted += 1
        if int(thread) != but and (int(thread) == pid or state in b"RTt"):
            states.add(state)
        figures = _schedstat(f"{tasks}/{thread}/schedstat")
        if figures is None or (ticks and not any(figures)):  # where the kernel was told not to count, all are 0
            used_s += ticks * tick_s
        else:
            measured += 1
            used_s += figures[0] / 1e9
            waited_s += figures[1] / 1e9
    if not counted:
        return Usage()
    return Usage(used_s, waited_s if measured == counted else None, _activity(states))


def own_usage() -> Usage:
    """Returns the usage of this process, for a watchdog of something in it. Call this in the thread that watches."""
    return usage_of(os.getpid(), threading.get_native_id())


def _activity(states: set[bytes]) -> Activity:
    """Of a process, from the states of its threads: its first one's, and those of others that use the processor."""
    if states & {b"T", b"t"}:
        return Activity.STOPPED
    if b"R" in states:
        return Activity.RUNNABLE
    return Activity.BLOCKED if b"D" in states else Activity.ASLEEP


def _schedstat(path: str) -> tuple[int, int] | None:
    """Returns nanoseconds of a thread on the processor and in the run queue; None: this kernel does not count them."""
    try:
        used, waited, _ = (int(figure) for figure in _read(path).split())
    except (OSError, ValueError):
        return None
    return used, waited


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _BYTES)
    finally:
        os.close(file)
