"""The contract of a store for history. The terms:

batch
    Tracking events of one partition, in log order, and the positions ``[start, end)`` that they cover. Batches of a
    partition come one after the other; each begins where the previous ended.

durable
    When ``write`` returns, every event of the batch and the progress survive any crash. A sink buffers nothing: only
    the exporter lets events wait, and after ``kill -9`` it reads them again from the log.

progress
    Per partition: the position up to which all events are durable, and the last event before it. The sink stores the
    progress in the target, together with the events; there is no other record of it. The last event identifies the log:
    if the log has another event at that offset, it is another log, and its positions mean something else.

idempotent
    (instance, RM, event id) identifies an event; the instance belongs to one RM already, so the RM is only there to be
    safe. Writing an event again, in any batch, leaves one. So a batch may always be written again after an error.

several publishers
    They share the partitions, so several sinks of one target write at the same time, each other partitions. For a
    moment two of them may believe that a partition is theirs. A sink keeps each event once even then, or it refuses
    the later one with SinkUnavailable, which tries again: see :class:`LockingSink`.

another log
    When the exporter finds another log, it calls ``new_log`` before it writes any of its events. From then on positions
    are those of the new log, and there is no progress until the next write.

errors
    SinkUnavailable: a later attempt may succeed. SinkUnusable: a person must act. The exporter retries both for ever. A
    sink stores an event whose content the target cannot take in a form that it can take. If the target refuses even
    that, it raises SinkRejected: after some attempts the exporter finds the event by halving the batch, writes it to
    the dead letters and continues without it. Any other exception is a defect of the sink and counts as SinkRejected.

A factory makes the sink: an entry point of the group ``muster.event_sinks`` (``registry.py``).
``tests/contract/test_sinks.py`` tests each sink.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from muster_event_publisher.event_runs import EventBatch


class LastEvent(NamedTuple):
    """The last event that a sink stored, and the event's place in the log."""

    offset: int
    rm_id: str
    instance: str
    event_id: int


class SinkProgress(NamedTuple):
    """The durable part of a partition: all events before position ``end``; ``last`` is the last one of them."""

    end: int
    last: LastEvent


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """The limits at which waiting events are written; the first one counts. Waiting makes writes larger and fewer."""

    records: int
    size_bytes: int
    wait_s: float


class Sink(Protocol):
    """A store for history."""

    @property
    def name(self) -> str:
        """The sink's name, short and fixed: for logs and metrics."""
        ...

    async def start(self) -> None:
        """Connects, and creates or checks tables or folders. Called first, and again after an error.

        Raises: SinkUnavailable, SinkUnusable, as everything here.
        """
        ...

    async def progress(self, partition: int) -> SinkProgress | None:
        """The durable part of the partition; None: there is none."""
        ...

    async def new_log(self, partition: int) -> None:
        """Forgets the partition's progress, because its positions were another log's. The events stay."""
        ...

    async def write(self, batch: EventBatch) -> None:
        """Stores the batch (never an empty one); it is durable on return. Raises also SinkRejected."""
        ...

    async def close(self) -> None:
        """Closes the connection to the target. Writes nothing."""
        ...


@runtime_checkable
class LockingSink(Protocol):
    """A sink that holds a partition from ``progress`` on, so that no other one writes it."""

    async def release(self, partition: int) -> None:
        """Lets go of a partition. No call for the partition is under way."""
        ...


def last_event(batch: EventBatch) -> LastEvent:
    """The last event of a batch that has one."""
    run = batch.runs[-1]
    return LastEvent(run.offsets[-1], run.rm_id, run.instance, run.last_id)


def __getattr__(name: str) -> Any:
    """Returns what stores of others import under its name of 0.2. Raises AttributeError."""
    if name == "Progress":
        text = f"{__name__}.Progress is SinkProgress now; 0.4.0 has only that name"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return SinkProgress
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
