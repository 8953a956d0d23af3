"""What goes wrong between one process and a log in memory: delays, failures, and outcomes that nobody can tell.

A log in memory without faults does everything at once. With faults it does what a log over a network may do, within the
contract of ``muster_bus.log``: an append takes a while, a commit fails although it was done, a reader gets a visible
record later than another reader.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol


class Outcome(StrEnum):
    """How a write ends."""

    DONE = "done"
    LOST = "lost"  # nothing was written, and the writer gets an error
    WRITTEN = "written"  # it was written, and the writer gets an error
    LATE = "late"  # the writer gets an error; it is written later, unless another owner takes over before


class Faults(Protocol):
    """The faults of one process's connection to a log."""

    def check(self) -> None:
        """Raises LogUnavailable while the log cannot be reached, LogFull while it takes no records."""
        ...

    def append(self, topic: str, partition: int) -> tuple[float, Outcome]:
        """Returns how long the next append takes (seconds), and how it ends: not LATE."""
        ...

    def commit(self, group: str, partition: int) -> tuple[float, Outcome]:
        """Returns how long the next commit takes (seconds), and how it ends."""
        ...

    def lag_s(self, topic: str, partition: int) -> float:
        """Returns after how long a reader gets a record that is visible now."""
        ...

    def share_s(self) -> float:
        """Returns after how long a member hears of a new share of its group."""
        ...

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Calls back after a time, also if the process has ended by then: it concerns the log."""
        ...
