"""A sink in memory: the shortest one that keeps the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from muster_event_publisher.errors import SinkRejected, SinkUnavailable
from muster_event_publisher.event_runs import EventBatch
from muster_event_publisher.history.sink import SinkProgress, last_event


@dataclass
class MemoryTarget:
    """The stored events and progress. They outlive a :class:`MemorySink`, and the next one gets them."""

    events: dict[tuple[str, str, int], bytes] = field(default_factory=dict)
    progress: dict[int, SinkProgress] = field(default_factory=dict)


class MemorySink:
    """See :class:`muster_event_publisher.history.sink.Sink`.

    :param target: the target of an earlier sink; None: a new one.
    :ivar down: the store cannot be reached.
    :ivar refuse: the events that it always refuses, by RM and event id.
    """

    name = "memory"

    def __init__(self, target: MemoryTarget | None = None) -> None:
        self.target = target if target is not None else MemoryTarget()
        self.down = False
        self.refuse: Callable[[str, int], bool] = lambda rm_id, event_id: False

    async def start(self) -> None:
        self._check()

    async def progress(self, partition: int) -> SinkProgress | None:
        self._check()
        return self.target.progress.get(partition)

    async def new_log(self, partition: int) -> None:
        self._check()
        self.target.progress.pop(partition, None)

    async def write(self, batch: EventBatch) -> None:
        self._check()
        if any(self.refuse(run.rm_id, n) for run in batch.runs for n in range(run.first_id, run.last_id + 1)):
            raise SinkRejected(self.name, "there is an event that it does not like")
        for run in batch.runs:
            for index, value in enumerate(run.values):
                self.target.events.setdefault((run.instance, run.rm_id, run.first_id + index), value)
        self.target.progress[batch.partition] = SinkProgress(batch.end, last_event(batch))

    async def close(self) -> None:
        return

    def _check(self) -> None:
        if self.down:
            raise SinkUnavailable(self.name, "it is down")
