"""What a Muster of one test leaves in a directory, without a disk: its log and its sessions."""

from __future__ import annotations

from pathlib import Path

from muster_bus.backends.memory import MemoryLog, MemoryStore
from muster_bus.clock import Clock
from muster_bus.topics import Topics
from muster_gateway.sessions.memory import MemorySessions

_STORES: dict[Path, MemoryStore] = {}
_SESSIONS: dict[Path, MemorySessions] = {}


def log_at(directory: Path, topics: Topics, clock: Clock) -> MemoryLog:
    """Returns the log in a directory; a Muster that starts there again has its records."""
    return MemoryLog(topics.specs(), clock, store=_STORES.setdefault(directory, MemoryStore()))


def sessions_at(directory: Path, clock: Clock) -> MemorySessions:
    """Returns the session store in a directory; a Muster that starts there again has its content."""
    sessions = _SESSIONS.setdefault(directory, MemorySessions(clock))
    sessions._clock = clock
    return sessions


def forget() -> None:
    """Drops all logs and sessions."""
    _STORES.clear()
    _SESSIONS.clear()
