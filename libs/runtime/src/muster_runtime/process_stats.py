"""Resource use of this process, from the operating system and Python."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_STATM = Path("/proc/self/statm")
_STAT = Path("/proc/self/stat")
_UPTIME = Path("/proc/uptime")
_STARTED_FIELD = 19  # of /proc/self/stat, counted after the name: start of the process, in ticks since boot
_RESIDENT_FIELD = 1  # of /proc/self/statm, in pages


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """One process at one moment.

    :param host: the machine's name, which distinguishes processes with the same ``pid``.
    :param memory_bytes: resident.
    :param garbage_collections: of all generations.
    """

    host: str
    pid: int
    cpu_seconds: float
    memory_bytes: int
    garbage_collections: int
    uptime_seconds: float


def process_figures() -> ProcessStats:
    """Returns the figures of this process. Takes some 50 µs."""
    return ProcessStats(
        host=socket.gethostname(),
        pid=os.getpid(),
        cpu_seconds=time.process_time(),
        memory_bytes=resident_bytes(),
        garbage_collections=sum(generation["collections"] for generation in gc.get_stats()),
        uptime_seconds=_uptime_s(),
    )


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    try:
        pages = int(_STATM.read_text().split()[_RESIDENT_FIELD])
    except (OSError, ValueError, IndexError):  # not Linux: the maximum so far
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * resource.getpagesize()


def return_memory() -> None:
    """Gives free memory back to the system, where the allocator can (glibc). It keeps a burst of other threads."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def open_files_max() -> int:
    """Returns how many files this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else files


def _uptime_s() -> float:
    try:
        ticks = int(_STAT.read_text().rpartition(")")[2].split()[_STARTED_FIELD])
        return max(0.0, float(_UPTIME.read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):  # not Linux: time since this module was loaded
        return time.monotonic() - _LOADED_S


_LOADED_S = time.monotonic()
