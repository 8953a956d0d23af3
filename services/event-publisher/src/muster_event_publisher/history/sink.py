"""The contract of a store for history. The words first.

batch
    Tracking events of one partition, in log order, and the positions ``[start, end)`` that they cover. Batches of a
    partition come one after the other; each begins where the previous ended.

durable
    When ``write`` returns, every event of the batch survives any crash, and so does the progress. A sink holds nothing
    back: what waits, waits in the exporter, and after ``kill -9`` it is read again from the log.

progress
    Per partition: the position up to which everything is durable, and the last event before it. The sink keeps it in
    the target itself, together with the events; nobody else remembers it. The last event is there to recognise the
    log: if it is no longer the event at that offset, the log is another one, and its positions mean nothing.

idempotent
    An event is identified by (instance, RM, event id); the instance is the RM's own, so the RM is there only to be
    safe. Writing it again, in whatever batch, leaves one. So a batch may
    always be written again after an error.

another log
    When the exporter finds that the log is another one, it says so (``new_log``) before it writes anything of it: from
    then on positions are those of the new log, and there is no progress until the next write.

errors
    SinkUnavailable for what time may heal, SinkUnfit for what needs a person; both are tried again for ever. An event
    whose content the target cannot take is stored in a form that it can take. Where even that is refused,
    SinkRefused: after some attempts the exporter looks for the event by halves, puts it to the dead letters and goes
    on without it. An exception that is none of these is a defect of the sink, and counts as SinkRefused.

A sink is made by a factory, an entry point of the group ``muster.event_sinks`` (``registry.py``). New sinks are checked
by ``tests/contract/test_sinks.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from muster_event_publisher.events import EventBatch


class LastEvent(NamedTuple):
    """Which event a sink stored last, and where it was in the log."""

    offset: int
    rm_id: str
    instance: str
    event_id: int


class Progress(NamedTuple):
    """What is durable of a partition: everything before position ``end``; ``last`` is the last event of it."""

    end: int
    last: LastEvent


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When what waits is written: whatever comes first. The reason for waiting at all is larger, fewer writes."""

    records: int
    size_bytes: int
    wait_s: float


class Sink(Protocol):
    """A store for history."""

    @property
    def name(self) -> str:
        """Short and fixed: for logs and metrics."""
        ...

    async def start(self) -> None:
        """Connects, and makes or checks what must be there. Called before anything else, and again after an error.

        Raises: SinkUnavailable, SinkUnfit, as everything here.
        """
        ...

    async def progress(self, partition: int) -> Progress | None:
        """What is durable of the partition; None when nothing is."""
        ...

    async def new_log(self, partition: int) -> None:
        """Forgets the partition's progress: its positions were another log's. The events stay."""
        ...

    async def write(self, batch: EventBatch) -> None:
        """Stores the batch (never one without events), durable on return. Raises also SinkRefused."""
        ...

    async def close(self) -> None:
        """Lets go of the target. Nothing is written."""
        ...


def last_event(batch: EventBatch) -> LastEvent:
    """The last event of a batch that has one."""
    run = batch.runs[-1]
    return LastEvent(run.offsets[-1], run.rm_id, run.instance, run.last_id)
