"""The state of a partition worker, for health checks and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WorkerState(StrEnum):
    """starting → folding → running; after a failure backing_off → folding; finally stopped or failed."""

    STARTING = "starting"
    FOLDING = "folding"
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """A worker's state at one moment.

    :param position: input offset up to which the machine has applied.
    :param committed: input offset up to which outputs are committed.
    :param end_offset: end of the input when last asked (about once a second).
    :param idle_s: the worker's available time (``muster_runtime.watchdog``) since it last folded, committed, or had
        nothing to do.
    :param failures: number since the last commit.
    :param last_error: one line, or "".
    :param serving: the worker has folded and is not stalled.
    """

    partition: int
    state: WorkerState
    position: int
    committed: int
    end_offset: int
    idle_s: float
    failures: int
    last_error: str
    serving: bool

    @property
    def lag(self) -> int:
        """Input offsets without committed output."""
        return max(0, self.end_offset - self.committed)
