"""What a scheduler says about the partitions of the log that it owns, for the state of the whole."""

from __future__ import annotations

from collections.abc import Iterable

from muster_bus.worker_progress import WorkerProgress, WorkerState
from muster_rest.system_health import OwnerFacts, OwnerState

_TAKES_OVER = (WorkerState.STARTING, WorkerState.FOLDING, WorkerState.BACKING_OFF)


class OwnedPartitions:
    """The states of the workers, and how long they have been in them.

    :param partitions: the number of all partitions of the log.
    :param limit_s: how long a take-over may take.
    """

    def __init__(self, partitions: int, limit_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._since = [(OwnerState.NONE, now_s)] * partitions

    def facts(self, workers: Iterable[WorkerProgress], now_s: float) -> list[OwnerFacts]:
        """Returns the facts about every partition of the log."""
        running = {worker.partition: worker for worker in workers}
        return [self._facts(partition, running.get(partition), now_s) for partition in range(len(self._since))]

    def _facts(self, partition: int, progress: WorkerProgress | None, now_s: float) -> OwnerFacts:
        state = _state_of(progress)
        was, since_s = self._since[partition]
        if state is not was:
            since_s = now_s
            self._since[partition] = state, now_s
        for_s = 0.0 if state is OwnerState.SERVING else now_s - since_s
        if progress is None:
            return OwnerFacts(partition, state, for_s, self._limit_s)
        if state is OwnerState.STUCK:
            return OwnerFacts(partition, state, progress.idle_s, self._limit_s, problem_of(progress))
        return OwnerFacts(partition, state, for_s, self._limit_s, progress.last_error)


def problem_of(progress: WorkerProgress) -> str:
    """Returns why a worker does not serve."""
    if progress.state is WorkerState.RUNNING:
        behind = progress.end_offset - progress.committed
        return f"partition {progress.partition} has not moved for {progress.idle_s:.0f} s, {behind} records wait"
    cause = f": {progress.last_error}" if progress.last_error else ""
    return f"partition {progress.partition} is {progress.state.value.replace('_', ' ')}{cause}"


def _state_of(progress: WorkerProgress | None) -> OwnerState:
    if progress is None:
        return OwnerState.NONE
    if progress.serving:
        return OwnerState.SERVING
    if progress.state is WorkerState.RUNNING:
        return OwnerState.STUCK
    return OwnerState.STARTING if progress.state in _TAKES_OVER else OwnerState.NONE
