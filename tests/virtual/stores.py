"""What a Muster of one test leaves in a directory, without a disk: its log."""

from __future__ import annotations

from pathlib import Path

from muster_bus.backends.memory import MemoryLog, MemoryStore
from muster_bus.clock import Clock
from muster_bus.topics import Topics

_STORES: dict[Path, MemoryStore] = {}


def log_at(directory: Path, topics: Topics, clock: Clock) -> MemoryLog:
    """Returns the log in a directory; a Muster that starts there again has its records."""
    return MemoryLog(topics.specs(), clock, store=_STORES.setdefault(directory, MemoryStore()))


def forget() -> None:
    """Drops all logs."""
    _STORES.clear()
